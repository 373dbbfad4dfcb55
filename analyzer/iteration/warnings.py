"""What a reader of the report should be wary of, and iterations that are refused since they were cut."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...arrays import Floats, Mask, at_rows, distinct, share_busy_time
from ...errors import InputError, parameter
from ...formats.trace.column import MISSING
from ...formats.trace.tables import Trace
from ...specs.gpu import Gpu
from ..prediction.limits import describe_impossible
from ..prediction.prediction import METHODS, Method
from ..recorded.choice import ALL, LONGEST, MEDIAN, list_numbers
from ..recorded.graphs import named_graph_kernels, unexplained_graph_kernels
from ..recorded.no_iteration import Reason, Standstill, describe_left_out, describe_outside
from ..recorded.recording import describe_gaps, describe_loss
from ..recorded.waiting import waiting_by_row
from ..recorded.window import Window
from ..replay.causes import CAUSES, IdleCause
from ..work import Family, family_of
from .captured import brief, warn_captured
from .decision.goal import passes_of
from .result import Analysis

UNEXPLAINED_SHARE = 0.05
"""Of the GPU time: beyond this, kernels that no formula explains are named."""
UNEXPLAINED_GRAPH_SHARE: Final = 0.05
"""Of the GPU time: from here on, kernels from graphs whose ops are not known are pointed out."""
LEAST_SHARE = 0.01
"""Of the GPU time: what takes less is not named."""
SHOWN_COUNT = 3
SHOWN_NAME_WIDTH = 60

OPAQUE_SHARE = 0.1
"""Of the iteration: beyond this, GPU time without any recorded reason is pointed out."""

STRETCH_SHARE = 0.05
"""How far the replay of the recording may be scaled before it is pointed out."""


def warn(result: Analysis) -> Iterator[str]:
    """Yield one sentence per doubt."""
    yield from result.warnings
    unexplained_ns = unexplained_graph_ns(result)
    yield from warn_recorded(result, float(unexplained_ns.sum()))
    yield from _describe_cut(result.recorded.trace, result.window)
    yield from describe_gaps(result.recorded.trace, result.window)
    yield from warn_captured(result.recorded.trace, result.window, float(result.workload.busy_ns.sum()))
    if result.origin is not None:
        yield from _warn_measured(result, result.origin, unexplained_ns)
    else:
        if result.trace.meta.capture == "cpu":
            yield (
                "the ops were recorded on a CPU, which calls some that a GPU does not and copies back what it need "
                "not: record its shapes instead (`wavecast record --shapes-only`; in Python device='meta')"
            )
        trace, workload = result.trace, result.workload
        unmodelled = int(workload.count[~workload.has_work].sum())
        if unmodelled:
            names = sorted({trace.strings[trace.ops.name[row]] for row in workload.op[~workload.has_work].tolist()})
            shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
            yield f"{unmodelled} of {int(workload.count.sum())} ops have no formula and count 0: {shown}"
    if (passes := passes_of(result)) > 1:
        yield f"an iteration makes {passes} passes over a batch: that many times the samples of one (gradients add up)"
    packages = [gpu.name for gpu in result.prediction.fleet.gpus if gpu.is_package]
    if packages:
        yield f"{', '.join(packages)}: a package of several devices, predicted as if it were one"


def _warn_measured(result: Analysis, origin: Gpu, unexplained_ns: Floats) -> Iterator[str]:
    workload, window = result.workload, result.window
    busy_ns = float(workload.busy_ns.sum())
    is_collective = workload.is_family(Family.COLLECTIVE)
    collective_ns = float(workload.busy_ns[is_collective].sum())
    if collective_ns > 0.05 * busy_ns:
        yield f"{collective_ns / busy_ns:.0%} of the GPU time is communication{_explain_waiting(result)}"
    is_unexplained = ~workload.has_work & ~is_collective & (workload.kind == 0)
    yield from _warn_unexplained(result, is_unexplained, workload.busy_ns - unexplained_ns)
    yield from describe_impossible(workload, origin)
    yield from _warn_unmoved(result)
    yield from _warn_opaque(result, origin)
    stretch = result.slowdown.stretch_ratio
    if abs(stretch - 1) > STRETCH_SHARE:
        how = "longer" if stretch > 1 else "shorter"
        yield (
            f"the measured iteration is {abs(stretch - 1):.0%} {how} than what was recorded of it, and the host's "
            "speed does not explain it: all times are scaled to match"
        )
    if window.other_device_kernel_count:
        yield f"{window.other_device_kernel_count} kernels on other devices of the file are left out"


def _explain_waiting(result: Analysis) -> str:
    """Say what of the communication is waiting, as far as equal collectives tell."""
    workload = result.workload
    waiting_ns = waiting_by_row(result.trace, workload.row_of, len(workload.op))
    duration_ns = np.maximum(workload.duration_ns, 1.0)
    waited_ns = float((workload.busy_ns * waiting_ns / duration_ns).sum())
    if waited_ns <= 0:
        return ", which includes waiting for other ranks"
    return (
        f"; {waited_ns / 1e6:.3g} ms of it is waiting for other ranks (what collectives took beyond the least of their "
        "equals), which is kept as it is"
    )


def _warn_unexplained(result: Analysis, rows: Mask, busy_ns: Floats) -> Iterator[str]:
    """Name the kernels that no formula explains, by what of them is missing; `busy_ns` is what each row counts."""
    trace, workload = result.trace, result.workload
    whole_ns = float(workload.busy_ns.sum())
    if not len(result.window.op_rows) or float(busy_ns[rows].sum()) <= UNEXPLAINED_SHARE * whole_ns:
        return
    has_op = workload.op >= 0
    has_shapes = has_op & (at_rows(trace.ops.signature, workload.op) != MISSING)
    groups = (
        ("that no recorded op launched", rows & ~has_op),
        ("whose op has no recorded shapes", rows & has_op & ~has_shapes),
        ("whose op has no formula, or lacks arguments that it needs", rows & has_shapes),
    )
    parts = []
    for words, group in groups:
        share = float(busy_ns[group].sum()) / whole_ns
        if share > LEAST_SHARE:
            parts.append(f"{share:.0%} of the GPU time is in kernels {words} ({_name_rows(result, group, busy_ns)})")
    is_unshaped = bool((rows & has_op & ~has_shapes).any())
    advice = "; record with record_shapes=True for better predictions" if is_unshaped else ""
    yield f"{', '.join(parts)}: moved by ratios of the GPUs alone{advice}"


def _warn_unmoved(result: Analysis) -> Iterator[str]:
    """Name the kernels that no rule moves to some of the GPUs, as collectives to one without links."""
    prediction = result.prediction
    unmoved = prediction.method == METHODS.index(Method.UNMODELLED)
    unmoved_ns = np.einsum("i,ij,ij->j", prediction.weight, prediction.time_ns, unmoved)
    share = unmoved_ns / np.maximum(prediction.total_busy_ns(), 1.0)
    columns = np.flatnonzero(share > LEAST_SHARE)
    if not len(columns):
        return
    gpus = [gpu.name for gpu in prediction.fleet.gpus]
    worst = columns[np.argsort(-share[columns], kind="stable")]
    shown = ", ".join(f"{share[at]:.0%} of the GPU time on {gpus[at]}" for at in worst[:SHOWN_COUNT].tolist())
    more = f" and so on for {len(columns)} of {len(gpus)} GPUs" if len(columns) > SHOWN_COUNT else ""
    names = _name_rows(result, unmoved[:, columns].any(axis=1), result.workload.busy_ns)
    yield f"kernels that nothing moves to a GPU keep their measured time there, {shown}{more}: {names}"


def _name_rows(result: Analysis, rows: Mask, busy_ns: Floats) -> str:
    """Name what takes most of the GPU time among rows of the workload: ops, or kernels without one."""
    trace, workload = result.trace, result.workload
    spent: dict[str, float] = {}
    for row in np.flatnonzero(rows & (busy_ns > 0)).tolist():
        op, kernel = int(workload.op[row]), int(workload.kernel[row])
        is_named = op >= 0 and workload.family[row] is not Family.COLLECTIVE
        name = trace.strings[trace.ops.name[op] if is_named else trace.kernels.name[kernel]]
        text = name if is_named else _short_kernel(name)
        spent[text] = spent.get(text, 0.0) + float(busy_ns[row])
    ranked = sorted(spent, key=lambda text: -spent[text])
    return ", ".join(ranked[:SHOWN_COUNT]) + (" …" if len(ranked) > SHOWN_COUNT else "")


def _short_kernel(name: str) -> str:
    """Return a kernel's name without its arguments."""
    short = name.removeprefix("void ").partition("(")[0].partition("<")[0]
    return short[:SHOWN_NAME_WIDTH]


def _warn_opaque(result: Analysis, origin: Gpu) -> Iterator[str]:
    """Say where the GPU waits without a recorded reason, as around CUDA graphs whose kernels were not recorded."""
    columns = [at for at, gpu in enumerate(result.prediction.fleet.gpus) if gpu.name == origin.name]
    opaque_ns = float(result.forecast.idle_ns[columns[0], CAUSES.index(IdleCause.UNEXPLAINED)])
    share = opaque_ns / max(float(result.forecast.iteration_ns[columns[0]]), 1.0)
    if share > OPAQUE_SHARE:
        yield (
            f"{share:.0%} of the iteration the GPU waits, or works, without anything recorded (kernels inside CUDA "
            f"graphs often are not): that time is kept as it is on every GPU{_longest_stretch(result)}"
        )


def _longest_stretch(result: Analysis) -> str:
    """Say how long the recorded GPU ran nothing at one time, and where the host was then; nothing if that is short."""
    trace, window = result.recorded.trace, result.window
    if window.index is None:
        return ""
    begin, end = int(trace.iterations.start_ns[window.index]), int(trace.iterations.end_ns[window.index])
    start_ns = trace.kernels.start_ns[window.kernel_rows]
    end_ns = start_ns + trace.kernels.duration_ns[window.kernel_rows]
    order = np.argsort(start_ns, kind="stable")
    since = np.maximum(np.append(begin, np.maximum.accumulate(end_ns[order])), begin)
    gap = np.minimum(np.append(start_ns[order], end), end) - since
    at = int(gap.argmax())
    if gap[at] <= OPAQUE_SHARE * (end - begin):
        return ""
    calls = trace.calls
    inside = np.minimum(calls.start_ns + calls.duration_ns, since[at] + gap[at]) - np.maximum(calls.start_ns, since[at])
    where = ""
    if len(inside) and inside.max() > 0.5 * gap[at]:
        call = int(inside.argmax())
        op = f" of {trace.strings[trace.ops.name[calls.op[call]]]}" if calls.op[call] >= 0 else ""
        where = f", while the host is in {trace.strings[calls.name[call]]}{op}"
    return f"; the longest stretch lasts {gap[at] / 1e6:.3g} ms{where}"


def warn_recorded(result: Analysis, unexplained_ns: float) -> Iterator[str]:
    """Yield one sentence per doubt about the recording; `unexplained_ns` is the sum of `unexplained_graph_ns`."""
    for reason, describe in ((Reason.SETUP, _cold_start), (Reason.EARLIER_WORK, _earlier_work)):
        found = [item for item in result.recorded.standstills if item.reason is reason]
        if found:
            yield describe(result, found)
    yield from describe_left_out(result.recorded.standstills)
    yield from describe_outside(result.recorded.trace)
    choice, spent_ns = result.recorded.choice, result.recorded.trace.iterations.compiling_ns
    left_out, index = choice.idle if choice.rule in (MEDIAN, LONGEST) else (), result.window.index
    compiling = tuple(row for row in left_out if row in np.flatnonzero(spent_ns > 0))
    evaluating = tuple(row for row in left_out if row in choice.evaluating)
    idle = tuple(row for row in left_out if row not in (*compiling, *evaluating))
    spent = brief(float(spent_ns[list(compiling)].sum()))
    for rows, verbs, what in (
        (compiling, ("compile", "compiles"), f"code for {spent}"),
        (evaluating, ("evaluate", "evaluates"), "the model, without gradients,"),
        (idle, ("do", "does"), "next to nothing"),
    ):
        if rows:
            noun, verb, do = ("iterations", verbs[0], "do") if len(rows) > 1 else ("iteration", verbs[1], "does")
            yield f"{noun} {list_numbers(rows)} of {choice.count} {verb} {what} and {do} not count"
    if choice.index in choice.evaluating:
        yield f"iteration {index} evaluates the model, without gradients, while others train it"
    if (
        index is not None
        and index not in compiling
        and spent_ns[index] > LEAST_SHARE * (result.window.duration_ns or 0)
    ):
        yield f"code is compiled for {brief(float(spent_ns[index]))} of this iteration: record after a few of warm-up"
    if result.recorded.graphs.kernel_count:
        yield from _warn_graphs(result, unexplained_ns)


def _cold_start(result: Analysis, found: list[Standstill]) -> str:
    """Say what was set up, how long that took, and what is left without."""
    longest = max(found, key=lambda item: item.call_ns)
    where = f" in {longest.op}" if longest.op is not None else ""
    spent = sum(item.length_ns for item in found)
    return (
        f"a cold start: for {brief(spent)} of this iteration the GPU stood still while the process set itself up "
        f"(the longest call: {longest.call}{where}, {brief(longest.call_ns)}); that time is left out on every GPU, "
        f"which leaves {brief(result.window.duration_ns or 0.0)}; {_other_iteration(result)}"
    )


def _other_iteration(result: Analysis) -> str:
    """Say how to get an iteration that is no cold start."""
    choice, index = result.recorded.choice, result.window.index
    others = [row for row in choice.recorded if row not in choice.idle and row != index]
    if choice.rule == ALL and others:
        return f"{parameter('iteration', others[-1])} predicts one without it"
    if others and index is not None:
        later = next((row for row in others if row > index), others[-1])
        return f"{parameter('iteration', later)} predicts another one"
    return "record after a few iterations of warm-up, or several iterations"


def _earlier_work(result: Analysis, found: list[Standstill]) -> str:
    spent = sum(item.length_ns for item in found)
    return (
        f"for {brief(spent)} of this iteration the host waits in {found[0].call} for GPU work from before the "
        "recording; that time is left out on every GPU, "
        f"which leaves {brief(result.window.duration_ns or 0.0)}"
    )


def unexplained_graph_ns(result: Analysis) -> Floats:
    """Return of each row of the workload how long its kernels from graphs took whose op no capture tells."""
    trace, rows, workload = result.trace, result.window.kernel_rows, result.workload
    if not result.recorded.graphs.kernel_count:
        return np.zeros(len(workload.op))
    busy = share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows])
    mine = unexplained_graph_kernels(trace)[rows]
    return np.bincount(workload.row_of[rows[mine]], weights=busy[mine], minlength=len(workload.op)).astype(np.float64)


def _warn_graphs(result: Analysis, unknown_ns: float) -> Iterator[str]:
    use, total_ns = result.recorded.graphs, float(result.workload.busy_ns.sum())
    if unknown_ns > UNEXPLAINED_GRAPH_SHARE * total_ns:
        is_one = use.launch_count == 1
        launches = "a CUDA graph" if is_one else f"{use.launch_count:,} CUDA graphs"
        part = f"{use.kernel_count - use.explained_count:,} of the {use.kernel_count:,}"
        yield (
            f"this records the execution of {launches}: the ops of {part} kernels in {'it' if is_one else 'them'}, "
            f"{unknown_ns / total_ns:.0%} of the GPU time, are not known; {parameter('capture', 'FILE')} explains them "
            "with a recording of the graph's capture"
        )
    # How long kernels from graphs took whose op is known without its inputs.
    trace, rows = result.trace, result.window.kernel_rows
    busy = share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows])
    named_ns = float(busy[named_graph_kernels(trace)[rows]].sum())
    if named_ns > UNEXPLAINED_GRAPH_SHARE * total_ns:
        yield (
            f"of {named_ns / total_ns:.0%} of the GPU time, in CUDA graphs, ops and modules are known by torch's "
            "annotations alone, which have no shapes: these kernels are moved by their launches and names; "
            f"{parameter('capture')} FILE adds the shapes with a recording of the graph's capture"
        )


LEAST_LEFT_RATIO: Final = 0.5
"""Of such ops: with fewer of them measured, the answer would be about less than half of the work."""
_WHOLE_RATIO: Final = 0.99
_FULLER_RATIO: Final = 1.02
"""An iteration with so many more kernels than the one that is predicted says that kernels of that are missing."""
_SURE_FAMILIES: Final = (Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION)
"""Whose ops run a kernel whatever their inputs are."""


def check_cut(trace: Trace, window: Window) -> None:
    """Raise InputError where a file lost the kernels of most of its iteration.

    >>> check_cut(measured, recorded.window)  # a whole file: nothing to say
    """
    whole, left = _count_sure_ops(trace, window)
    if left < LEAST_LEFT_RATIO * whole:
        raise InputError(
            f"{describe_loss(trace.quality)}, with it the kernels of {whole - left:,} of the iteration's {whole:,} "
            "matrix products and convolutions: copy or export it again"
        )


def _describe_cut(trace: Trace, window: Window) -> Iterator[str]:
    """Yield what a file has lost, and what of that is the iteration's; nothing for a whole file."""
    if not trace.quality.bytes_lost:
        return
    whole, left = _count_sure_ops(trace, window)
    lost = "the iteration may not be whole"
    if left < _WHOLE_RATIO * whole:
        lost = f"{whole - left:,} of the iteration's {whole:,} matrix products and convolutions have no kernels"
    yield f"{describe_loss(trace.quality)}; {lost}{_fuller_iteration(trace, window)}"


def _fuller_iteration(trace: Trace, window: Window) -> str:
    """Say how many kernels the window holds, where another iteration holds more."""
    profiled = np.flatnonzero(trace.iterations.profiled)
    start, end = trace.iterations.start_ns[profiled], trace.iterations.end_ns[profiled]
    began = np.sort(trace.kernels.start_ns)
    most = int((np.searchsorted(began, end) - np.searchsorted(began, start)).max()) if len(profiled) else 0
    kept = len(window.kernel_rows) + window.other_device_kernel_count
    return f": it holds {kept:,} kernels, another iteration {most:,}" if most > _FULLER_RATIO * kept else ""


def _count_sure_ops(trace: Trace, window: Window) -> tuple[int, int]:
    """Count the window's ops that surely launched kernels, and those whose kernels are in the file.

    Only names count of which some op has a kernel: of nested ops it is the innermost that launches. Zero for a file
    that lost nothing.
    """
    if not trace.quality.bytes_lost or not len(window.kernel_rows):
        return 0, 0
    owners = distinct(trace.kernels.op[trace.kernels.op >= 0])
    is_sure = np.zeros(len(trace.strings), dtype=bool)
    for name in distinct(trace.ops.name[owners]).tolist():
        is_sure[name] = family_of(trace.strings[name]) in _SURE_FAMILIES
    rows = window.op_rows[is_sure[trace.ops.name[window.op_rows]]]
    return len(rows), int(np.isin(rows, owners).sum())
