"""What measurements of one's own say of an engine: a server's recorded steps, or a log of requests."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats, share_busy_time
from ....errors import InputError, parameter
from ....formats.files.open import load_trace
from ....formats.trace.column import MISSING
from ....formats.trace.tables import Trace
from ....records import replace
from ....specs.cluster import Cluster
from ....specs.gpu import Gpu
from ...asking.question import Gpus
from ...models.library import Library
from .engines import Engine, engine_on, stack_of
from .forecast import capacity_of
from .load import read_measured
from .ops import ServePlan
from .report import ServeQuestion, Target
from .schedule import Scheduler, step_times
from .step import StepClock, StepColumns, StepTables, step_tables

_STEP: Final = re.compile(
    r"execute_(?:\d+_)?context_(\d+)\((.*?)\)_generation_(\d+)\((.*?)\)"  # vLLM: prompts, tokens, sequences, tokens
    r"|\[Executor\] _forward_step \d+: (0)() ctx reqs, (\d+)() gen reqs"  # TensorRT-LLM, which tells no tokens
    r"|step\[DECODE bs=()()(\d+)()|step\[(?:EXTEND|PREFILL) bs=(\d+) toks=(\d+)()()"  # SGLang
)
_SUMS: Final = re.compile(r"sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)")
"""vLLM's sums over sequences: new tokens q, tokens k with those cached, q^2 and q k."""
MOST_RATIO: Final = 4.0
"""Kernels further off than this are those of another model, plan or precision, not another engine's."""
ROUNDS: Final = 5
"""Of fits: which steps serve requests depends on how long steps take."""
LEAST_FITTED: Final = 8
_RATIOS: Final = ("prefill_ratio", "decode_ratio")
Files = tuple[str | Path | None, str | Path | None]
"""A recording and a log."""


def read_step(annotation: str, context: float) -> tuple[float, ...] | None:
    """Return what a server says ran, as `StepClock.step_ns` takes it; `context`: of sequences where it is not told.

    None where it does not say how many tokens there were.

    >>> read_step("step[DECODE bs=8]", 1000.0)
    (8, 1000.0, 0, 0, 0.0, 0.0)
    """
    found = _STEP.match(annotation)
    if found is None:
        return None
    prompts, new, sequences, old = (text for text in found.groups() if text is not None)
    chunks, decoding, sums = int(prompts or 0), int(sequences or 0), [_SUMS.fullmatch(text) for text in (new, old)]
    fresh, _, squares, products = map(int, sums[0].groups()) if sums[0] else (int(new) if new.isdigit() else 0, 0, 0, 0)
    if not (decoding or chunks) or bool(chunks) != bool(fresh):
        return None
    square = (squares / chunks) ** 0.5 if squares else fresh / max(chunks, 1)
    before = max(products - squares, 0) / max(fresh, 1)
    return decoding, int(sums[1][2]) / decoding if sums[1] and decoding else context, chunks, fresh, square, before


def calibrate(
    question: ServeQuestion, files: Files, named: Gpus, targets: Sequence[Target], library: Library, cluster: Cluster
) -> ServeQuestion:
    """Return the question with what a recording or a log says of the engine; as it is without either."""
    trace, log = files
    if log is not None:
        if len(targets) != 1:
            raise InputError(f"{parameter('calibrate')}: expected the one GPU that was measured in {parameter('to')}")
        question = replace(question, tp=question.tp or targets[0].count or 1)
        engine, said = _by_log(question, Path(log), targets[0].gpu, library, cluster)
    elif trace is not None:
        plain = replace(question.engine, prefill_ratio=1.0, decode_ratio=1.0)
        engine, said = _by_trace(replace(question, engine=plain), Path(trace), named, library, cluster)
    else:
        return question
    return replace(question, engine=engine, calibration=said)


def _by_trace(
    question: ServeQuestion, path: Path, named: Gpus, library: Library, cluster: Cluster
) -> tuple[Engine, str]:
    """Return the engine with what a recording says of it, and what that is in words.

    Raises InputError where the file has no step that says what ran, no GPU, or one that does not fit the model.
    """
    trace, name = load_trace(path), path.name
    decoding, context, chunks, fresh, square, before, busy_ns, idle_ns = _recorded_steps(trace, question.context)
    if not len(busy_ns):
        raise InputError(
            f"{name}: expected kernels in steps of a server that say their sequences and tokens, annotated as "
            "execute_…context_1(…)_generation_8(…) by vLLM or step[DECODE bs=8] by SGLang"
        )
    gpu = named.measured(trace)
    if gpu is None:
        raise InputError(f"{name}: does not say its GPU: add {parameter('from', 'GPU')}")
    if question.tp is None and (trace.meta.world_size or 1) > 1:
        raise InputError(f"{name}: is one rank of {trace.meta.world_size}: say {parameter('tp')}")
    tables, engine, host_ratio = _tables(question, gpu, library, cluster)
    steps = StepColumns(decoding, context, chunks, fresh, square, before, np.ones(len(busy_ns)))
    ratios = busy_ns / _kernels_ns(engine, tables.clock(0, engine), steps)
    found: dict[str, Any] = {"measured_on": gpu.name, "source": f"read from {name}"}
    words, has_prompts = list[str](), chunks > 0
    for field, what, chosen in zip(
        _RATIOS, ("steps with prompts", "decode steps"), (has_prompts, ~has_prompts), strict=True
    ):
        found[field] = ratio = float(np.median(ratios[chosen])) if chosen.any() else 1.0
        words.append(f"{chosen.sum()} {what}{f' with kernels of {ratio:.2f} x' if chosen.any() else ''}")
        if not 1.0 / MOST_RATIO <= ratio <= MOST_RATIO:
            expected = f"what {question.sizes.name} is predicted to: expected this model, precision and tp"
            raise InputError(f"{name}: kernels of its {what} take {ratio:.2g} times on {gpu.name} {expected}")
    follows, host = ~np.isnan(idle_ns), "the host's time is not told, as no two steps follow each other"
    if follows.any():
        idle, sequences = float(np.median(idle_ns[follows])), float(np.median((decoding + chunks)[follows]))
        each = min(engine.sequence_ns, idle / sequences)
        found |= {"step_ns": idle - each * sequences, "sequence_ns": each / host_ratio}
        host = f"the GPU waits {idle / 1e6:.2f} ms per step for the host, which the profiler slows"
    return replace(question.engine, **found), (
        f"From {name}, {gpu.name}: {', '.join(words)} what is predicted; {host}. Contexts that it does not tell are "
        f"taken as {question.context:,.0f} tokens. Other GPUs get the same ratios, and intervals wider by as much."
    )


def _recorded_steps(trace: Trace, context: float) -> Floats:
    """Return the steps of a recording that say what ran, [8, steps]: as `read_step`, and the GPU's ns busy and idle.

    Idle is NaN where the step before was not recorded.
    """
    table, kernels, steps = trace.iterations, trace.kernels, list[tuple[float, ...]]()
    for row, (start, end, name) in enumerate(zip(table.start_ns, table.end_ns, table.annotation, strict=True)):
        step = None if name == MISSING else read_step(trace.strings[name], context)
        inside = slice(*np.searchsorted(kernels.start_ns, (start, end)).tolist())
        busy = float(share_busy_time(kernels.start_ns[inside], kernels.duration_ns[inside]).sum()) if step else 0.0
        if step and busy:
            follows = row > 0 and start == table.end_ns[row - 1]
            steps.append((*step, busy, max(float(end - start) - busy, 0.0) if follows else np.nan))
    return np.array(steps).reshape(-1, 8).T


def _kernels_ns(engine: Engine, clock: StepClock, steps: StepColumns) -> Floats:
    return step_times(replace(engine, step_ns=0.0, sequence_ns=0.0), clock, steps)


def _by_log(question: ServeQuestion, path: Path, gpu: Gpu, library: Library, cluster: Cluster) -> tuple[Engine, str]:
    """Return the engine with a time per step and per sequence fitted to a log's requests, and how far off it is.

        last token - first token = kernels + a * steps + b * sum over these of sequences + chunks;  a, b >= 0

    Each request counts by its relative error. Raises InputError for a log without times or with too few requests.
    """
    load, decoded_ns = read_measured(path)
    is_used = (load.outputs > 1) & (decoded_ns > 0)
    if is_used.sum() < LEAST_FITTED:
        raise InputError(f"{path.name}: {is_used.sum()} requests of several tokens: expected {LEAST_FITTED} or more")
    tables, engine, host_ratio = _tables(question, gpu, library, cluster)
    clock, given = tables.clock(0, engine), {"cache_bytes": question.cache_bytes, "context": question.context}
    capacity = capacity_of(question.sizes, tables.plan, tables.stack.precision, gpu, engine, **given)
    errors, tried = list[float](), engine
    for number in range(ROUNDS + 1):
        run = Scheduler(engine=tried, clock=clock, capacity=capacity.tokens).run(load)
        kernels = _kernels_ns(tried, clock, run.steps)
        sequences = run.steps.repeats * (run.steps.decoding + run.steps.chunks)
        sums = np.stack([kernels, run.steps.repeats, sequences]).cumsum(axis=1)  # A request's first step is behind it.
        kernel, *host = (sums[:, run.last - 1] - sums[:, run.first - 1])[:, is_used] / decoded_ns[is_used]
        errors.append(float(np.abs(kernel + tried.step_ns * host[0] + tried.sequence_ns * host[1] - 1.0).mean()))
        if number < ROUNDS:
            step_ns, sequence_ns = least_squares(np.stack(host), 1.0 - kernel)
            tried = replace(tried, step_ns=step_ns, sequence_ns=sequence_ns)
    note = (
        f"Fitted to {is_used.sum():,} of {len(is_used):,} requests of {path.name} on {gpu.name}: their TPOT is "
        f"{100 * errors[-1]:.1f} % off in the mean, {100 * errors[0]:.1f} % before."
    )
    if not tried.step_ns + tried.sequence_ns:
        note += " Kernels alone are predicted to take longer: nothing is left for the engine."
    each = tried.sequence_ns / host_ratio
    return replace(question.engine, step_ns=tried.step_ns, sequence_ns=each, source=f"fitted to {path.name}"), note


def _tables(question: ServeQuestion, gpu: Gpu, library: Library, cluster: Cluster) -> tuple[StepTables, Engine, float]:
    """Return the steps of what was measured, the engine there, and its time per sequence by what it is elsewhere."""
    precision, *others = question.precisions
    if others:
        raise InputError(f"{parameter('precision')}: expected the one that was measured")
    stack, plan = stack_of(gpu, precision, question.engine.name), ServePlan(tp=question.tp or 1)
    given: dict[str, Any] = {"cache_bytes": question.cache_bytes, "nodes": cluster.nodes_of([gpu])}
    engine, unit = (
        engine_on(item, gpu, question.sizes, precision)
        for item in (question.engine, replace(question.engine, sequence_ns=1.0))
    )
    return step_tables(question.sizes, plan, stack, [gpu], library, **given), engine, unit.sequence_ns


def least_squares(columns: Floats, wanted: Floats) -> tuple[float, float]:
    """Return the two factors, 0 or more, of columns [2, n] whose sum is closest to what is wanted, [n]."""
    both = np.linalg.lstsq(columns.T, wanted, rcond=None)[0]
    alone = np.diag(np.maximum((columns @ wanted) / np.square(columns).sum(axis=1), 0.0))
    tried = [both] if (both >= 0).all() else list(alone)
    step, sequence = min(tried, key=lambda factors: float(np.square(factors @ columns - wanted).sum()))
    return float(step), float(sequence)
