"""Predict the time of every kernel on every GPU: measured ones moved, others from their shapes.

By how much more the ops of real networks are off than the same models' single ops, no table of ops tells: what an op
finds in caches, which kernel a network's layout leads to, what runs beside it. mlp_weights/train/family_widths.py
learns it by family from our own recordings, for GPUs whose chip the weights saw and for others.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...arrays import Floats, Mask, Rows, row_blocks
from ...formats.files.constants import read_constants
from ...formats.trace.tables import KernelKind, Trace
from ...specs.attention_kernels import AttentionKernel
from ...specs.fabric import link_separations
from ...specs.fleet import Fleet, build_fleet, take_gpus
from ...specs.generations import generation_codes, is_untested
from ...specs.gpu import Gpu, chip_of
from ...specs.nodes import Node
from ..models.frame.gpu_physics import at_capped_clock
from ..models.frame.intervals import separations
from ..models.library import Library, carried_factor
from ..models.registry import Assignment
from ..recorded.waiting import waiting_by_row
from ..work import Family
from .attention import as_asked, as_recorded, attention_rows
from .bounds import BLOCK_ROWS, bound_ops, kernel_overhead_ns, with_overhead_spread
from .limits import hold_reached
from .op_models import ModelTimes, assign_rows, covered_rows, model_times
from .prediction import METHODS, Method, Prediction
from .ratio_widths import cache_gap, may_be_cached, width_of
from .ratios import RULE_OF, Move, move_by_ratios, ratio_half_widths
from .shared_error import ANY_KIND, IterationKind, shared_half_widths
from .workload import GpuWorkload

CONSTANTS: Final = "family_widths"
OTHER: Final = "other"
SHORT, LONG = "short", "long"
LONG_NS: Final = 10e3
"""Predicted time from which on an op counts as long: in shorter ones launches and caches are most of the error."""
LEAST_PART: Final = 0.6
"""Of its model's half-width that an op keeps where its family needs less. Declared, with our recordings in sight."""


def family_half_widths(
    families: Sequence[Family | None], time_ns: Floats, gpus: Sequence[Gpu], trained: Set[str]
) -> Floats:
    """Return the 90 % half-width, natural log, of an op's error beside its model's own, by family and time [n, m].

    Below zero: what the model's own has too much. `trained` holds the chips that the models have seen.

    >>> time_ns = np.array([[5e3, 5e4]])
    >>> family_half_widths([Family.SOFTMAX], time_ns, [h100, a100], {"GH100"}).shape
    (1, 2)
    """
    known: Mapping[str, Any] = read_constants(CONSTANTS)
    is_seen = np.array([chip_of(gpu) in trained and chip_of(gpu) in known["chips"] for gpu in gpus], dtype=bool)
    names = [family.value if family else OTHER for family in families]

    def column(widths: Mapping[str, float]) -> Floats:
        return np.array([widths.get(name, widths[OTHER]) for name in names], dtype=np.float64).reshape(-1, 1)

    seen, unseen = (
        np.where(time_ns >= LONG_NS, column(widths[LONG]), column(widths[SHORT]))
        for widths in (known["seen"], known["unseen"])
    )
    # Left out, a chip's family may fit by chance what its own ops do not: nothing is better known of others.
    return np.where(is_seen, seen, np.maximum(np.maximum(seen, unseen), 0.0))


def joint_half_width(model: Floats, family: Floats) -> Floats:
    """Return a model's half-widths with those of `family_half_widths`, natural log."""
    return np.sqrt(np.maximum(np.square(model) + family * np.abs(family), np.square(LEAST_PART * model)))


def predict_measured(
    trace: Trace,
    workload: GpuWorkload,
    origin: Fleet,
    fleet: Fleet,
    library: Library,
    *,
    retimed: bool = False,
    attention: AttentionKernel | None = None,
) -> Prediction:
    """Move measured kernels from the one GPU of `origin` to every GPU of the fleet.

    t_target = overhead there + (t_source - overhead here) * factor, with the factor of the row's rule; no longer than
    t_source on a GPU that is better in every figure; never under the physical bound where the source kept to it as
    well. On the source itself the measured time stands, unless the times are `retimed`: a what-if's, predicted there
    as well. What a collective waited for other ranks is carried as it is. `attention` is the kernel that is asked for,
    on the source too.

    >>> (predict_measured(measured, kernels, build_fleet([a100]), fleet, library).time_ns / 1e3).round(-1)  # µs
    array([[180., 500.],
           [ 10.,  30.]])
    """
    recorded_ns, waiting_ns = workload.duration_ns, waiting_by_row(trace, workload.row_of, len(workload.op))
    workload = replace(workload, duration_ns=recorded_ns - waiting_ns)
    bounds, source_bounds = bound_ops(workload.work, fleet), bound_ops(workload.work, origin)
    count = len(workload.op)
    assignments, recorded = _assign_both(workload, attention, library)
    modelled = covered_rows(assignments, count) & np.isin(workload.kind, (KernelKind.KERNEL, KernelKind.COLLECTIVE))
    here, there = at_capped_clock(origin), at_capped_clock(fleet)
    move = Move(
        trace=trace,
        workload=workload,
        origin=here,
        origin_bounds=source_bounds if here is origin else bound_ops(workload.work, here),
        fleet=there,
        bounds=bounds if there is fleet else bound_ops(workload.work, there),
    )
    ratios = move_by_ratios(move, modelled)
    measured = workload.duration_ns
    time, method, width = ratios.factor, ratios.method, ratios.half_width
    plain = np.flatnonzero(~modelled)
    time[plain] = _scaled_ns(measured[plain], time[plain], fleet, origin)
    if modelled.any():
        _anchor(time, width, workload, (assignments, recorded), np.flatnonzero(modelled), fleet, origin, library)
    stands = ~attention_rows(workload) if attention is not None else np.ones(count, dtype=bool)
    hold_reached(time, width, move, modelled & stands)
    hold_order(time, workload, stands, fleet, origin)
    obeys = workload.has_work & (measured >= source_bounds.lower_ns[:, 0] * workload.op_share)
    share = workload.op_share * obeys
    _hold_bounds(time, width, bounds.lower_ns, share)
    width = _add_waiting(time, width, waiting_ns)
    is_source = np.array([gpu.name == origin.gpus[0].name for gpu in fleet.gpus], dtype=bool)
    kept = np.ix_(stands, is_source)
    time[kept] = recorded_ns[stands, None]
    if not retimed:
        method[kept], width[kept] = METHODS.index(Method.MEASURED), 0.0
    return Prediction(
        fleet=fleet,
        time_ns=time,
        weight=np.divide(workload.busy_ns, recorded_ns, out=np.zeros_like(recorded_ns), where=recorded_ns > 0),
        method=method,
        reason=ratios.reason,
        half_width=width,
        shared_half_width=np.zeros(len(fleet.gpus)),
        bounds=bounds,
        bound_share=share,
    )


def _hold_bounds(time: Floats, width: Floats, lower_ns: Floats, share: Floats) -> None:
    """Widen half-widths by the overhead's spread, and hold times to their share of the bound; all [n, m] but [n]."""
    for block in row_blocks(len(time), BLOCK_ROWS):
        width[block] = with_overhead_spread(width[block], time[block])
        np.maximum(time[block], lower_ns[block] * share[block, None], out=time[block])


def _add_waiting(time: Floats, width: Floats, waiting_ns: Floats) -> Floats:
    """Add to times [n, m] what other ranks were waited for [n], which no link shortens; return their half-widths."""
    if not np.any(waiting_ns):
        return width
    moved = time.copy()
    time += waiting_ns[:, None]
    share = np.divide(moved, time, out=np.ones_like(time), where=time > 0)
    return np.where(waiting_ns[:, None] > 0, np.log1p(np.expm1(width) * share), width)


def _assign_both(
    workload: GpuWorkload, attention: AttentionKernel | None, library: Library
) -> tuple[Sequence[Assignment], Sequence[Assignment]]:
    """Return which model covers which rows, as the targets run the ops and as the source ran them; one, where alike."""
    asked, recorded = as_asked(workload, attention), as_recorded(workload)
    found = assign_rows(asked, library)
    return found, found if recorded is asked else assign_rows(recorded, library)


def _scaled_ns(measured_ns: Floats, factor: Floats, fleet: Fleet, origin: Fleet) -> Floats:
    """Return measured times moved by their factors [n, m], in whose place they come: all but a kernel's overhead."""
    here, there = kernel_overhead_ns(origin), kernel_overhead_ns(fleet)
    fixed = np.minimum(measured_ns, here)
    factor *= (measured_ns - fixed)[:, None]
    factor += (fixed / here)[:, None] * there
    return factor


def _anchor(
    time: Floats,
    width: Floats,
    workload: GpuWorkload,
    assignments: tuple[Sequence[Assignment], Sequence[Assignment]],
    rows: Rows,
    fleet: Fleet,
    origin: Fleet,
    library: Library,
) -> None:
    """Write times and half-widths [n, m] of the rows that models cover.

    `assignments`: as the targets run the ops, and as the source ran them.
    """
    asked, recorded = assignments
    count, shape = len(workload.op), (len(rows), len(fleet.gpus))
    target = model_times(asked, count, fleet, library)
    if recorded is asked and origin.gpus[0] in fleet.gpus:
        source = target.on(fleet.gpus.index(origin.gpus[0]))
    else:
        source = model_times(recorded, count, origin, library)
    apart, foreign = np.broadcast_to(_separations(workload, rows, fleet, origin), shape), _foreign(fleet, origin)
    for block in row_blocks(len(rows), BLOCK_ROWS):
        at = rows[block]
        time[at] = _anchored_ns(workload, (target, source), at, apart[block], foreign)
        width[at] = _cached_width(workload, target, at, fleet, origin)
    _widen_foreign(width, workload, target, rows, fleet, origin)
    # What is not known of collectives that took longer than the model's interval has it. They waited for other ranks,
    # who may hurry on another GPU or not. No wider than a plain ratio of links.
    sent = rows[workload.is_family(Family.COLLECTIVE)[rows]]
    if len(sent):
        measured = workload.duration_ns[sent] / np.maximum(workload.op_share[sent], 1e-9)
        excess = np.log(np.maximum(measured, 1.0) / source.time_ns[sent, 0]) - source.half_width[sent, 0]
        width[sent] = np.hypot(width[sent], np.clip(excess, 0.0, width_of("link", Family.COLLECTIVE))[:, None])


def _separations(workload: GpuWorkload, rows: Rows, fleet: Fleet, origin: Fleet) -> Floats:
    """Return how far the GPUs are from the source, [m], or for each row, [rows, m]: what ranks send each other knows
    links alone, so that between equal ones all that the source taught carries over."""
    apart = separations(fleet, origin)
    sent = workload.is_family(Family.COLLECTIVE)[rows]
    if not sent.any():
        return apart
    return np.where(sent[:, None], link_separations(fleet.fabric, origin.fabric), apart)


FOREIGN_SHARE: Final = 0.75
"""The part, as an exponent, of a recorded kernel's deviation from its model that goes along to another vendor's GPU.

Ops of networks deviate alike on both (cold operands, short kernels), more than single ops of tables do; what is one
GPU's alone does not carry over. Recordings of five networks on an H100 and an MI300X asked for 0.5 to 0.75, the two in
samples/ for 0.75 to 1.
"""


def _foreign(fleet: Fleet, origin: Fleet) -> Mask:
    """Say which GPUs are of another vendor than the source, [m]."""
    return np.array([gpu.vendor != origin.gpus[0].vendor for gpu in fleet.gpus], dtype=bool)


def _anchored_ns(
    workload: GpuWorkload, models: tuple[ModelTimes, ModelTimes], rows: Rows, apart: Floats, foreign: Mask
) -> Floats:
    """Return the times [rows, m] of measured kernels, moved by their op's model; `models`: of targets and source.

    t_target = model_target * carried_factor of the source's deviation from the model, in the kernel's share of its op.
    """
    target, source = models
    share = workload.op_share[rows][:, None]
    measured_ns = np.divide(workload.duration_ns[rows][:, None], share, out=np.ones_like(share), where=share > 0)
    source_ns, width = source.time_ns[rows], source.half_width[rows]
    carried = carried_factor(measured_ns, source_ns, source.anchor[rows], width, apart)
    alone = workload.is_family(Family.COLLECTIVE)[rows, None] | ~foreign
    carried = np.where(alone, carried, (measured_ns / source_ns) ** FOREIGN_SHARE)
    return np.asarray(target.time_ns[rows] * carried * share)


def _cached_width(workload: GpuWorkload, target: ModelTimes, rows: Rows, fleet: Fleet, origin: Fleet) -> Floats:
    """Return the half widths [rows, m] of anchored times between GPUs of one vendor.

    What is bound by memory may have found its bytes in the cache on one GPU and not on the other.
    """
    width = target.anchored_half_width[rows]
    moving = np.flatnonzero(~workload.is_varying[rows] & ~workload.is_family(Family.COLLECTIVE)[rows])
    cached = may_be_cached(workload.duration_ns[rows[moving]], fleet, origin)
    width[moving] = np.sqrt(width[moving] ** 2 + cached * cache_gap(fleet, origin) ** 2)
    return width


def _widen_foreign(
    width: Floats, workload: GpuWorkload, target: ModelTimes, rows: Rows, fleet: Fleet, origin: Fleet
) -> None:
    """Widen half widths [n, m] of anchored times of some rows on GPUs of another vendor than the source.

    Those of a model that learned them from pairs of their chips; without such pairs, no narrower than
    those of a plain ratio, and on GPUs like which none was measured the widest of all these.
    """
    foreign = np.flatnonzero(_foreign(fleet, origin))
    if not len(foreign):
        return
    abroad = take_gpus(fleet, foreign)
    untested = is_untested(abroad)
    is_collective, is_varying = workload.is_family(Family.COLLECTIVE)[rows], workload.is_varying[rows]
    rules = (("bound", is_varying), ("link", is_collective), ("wave", ~is_varying & ~is_collective))
    for rule, mine in ((RULE_OF[name], rows[mine]) for name, mine in rules):
        families = [workload.family[row] for row in mine.tolist()]
        factor = np.ones((len(families), len(foreign)))
        plain = ratio_half_widths(rule, families, workload.duration_ns[mine], factor, abroad, origin)
        here = np.ix_(mine, foreign)
        learned = target.foreign_half_width[here]
        widest = np.fmax(width[here], plain)
        known = np.where(np.isnan(learned), widest, learned)
        width[here] = np.where(untested, np.fmax(widest, learned), known)


_SHAPE_METHODS: Final = (
    (Method.UNMODELLED, "no formula for this op, or its shapes are missing"),
    (Method.ROOFLINE, "no op model for this family: roofline"),
    (Method.OP_MODEL, "nothing was measured: op model of its family, from the shapes"),
)
"""With a reason each: for ops without a formula, with one, and with an op model as well."""


def predict_shapes(
    workload: GpuWorkload,
    targets: Sequence[Gpu],
    library: Library,
    kind: IterationKind = ANY_KIND,
    *,
    attention: AttentionKernel | None = None,
    nodes: Sequence[Node] | None = None,
) -> Prediction:
    """Give every op the time of its op model; its roofline where no model covers it, 0 where it has no formula.

    `kind` says what error the times share on a GPU. `attention` is the kernel that is asked for; default: each GPU's
    own choice. `nodes` holds the machine of each GPU; default: its usual one.

    >>> prediction = predict_shapes(workload, [h100, a100], library)
    >>> (workload.count @ prediction.time_ns / 1e6).round()  # ms on each GPU
    array([ 6., 11.])
    """
    fleet = build_fleet(targets, nodes)
    assignments = assign_rows(as_asked(workload, attention), library)
    bounds, modelled = bound_ops(workload.work, fleet), model_times(assignments, len(workload.op), fleet, library)
    trained = {chip for found in assignments for chip in library.trained_chips(found.model)}
    known, covered = workload.has_work[:, None], modelled.is_covered[:, None]
    time = np.where(covered, np.maximum(modelled.time_ns, bounds.lower_ns), np.where(known, bounds.roofline_ns, 0.0))
    case = np.where(modelled.is_covered, 2, workload.has_work.astype(np.int64))
    method = np.array([METHODS.index(method) for method, _ in _SHAPE_METHODS], dtype=np.int8)[case]
    return Prediction(
        fleet=fleet,
        time_ns=time,
        weight=workload.count.astype(np.float64),
        method=np.repeat(method[:, None], len(fleet.gpus), axis=1),
        reason=tuple(_SHAPE_METHODS[item][1] for item in case.tolist()),
        half_width=joint_half_width(modelled.half_width, family_half_widths(workload.family, time, targets, trained)),
        shared_half_width=shared_half_widths(kind, targets, trained),
        bounds=bounds,
        bound_share=workload.has_work.astype(np.float64),
    )


ROUNDED: Final = 1.01
"""Datasheets round rates: those of one multiprocessor may differ by so much and are the same."""


def hold_order(time_ns: Floats, workload: GpuWorkload, rows: Mask, fleet: Fleet, origin: Fleet) -> None:
    """Keep kernels of some rows no slower on GPUs better than the source than there, and no faster on worse ones.

    `time_ns` [n, m] is changed in place. How far a source deviates from its model carries over whole to the GPU itself
    and in part to others, and a launch of few blocks may be said to suffer from more multiprocessors: without this, the
    same kernel could take longer on the better of two like GPUs.
    """
    is_product = ~workload.is_family(Family.COLLECTIVE)
    chosen = np.flatnonzero(rows & is_product & (workload.kind == KernelKind.KERNEL))
    measured_ns = workload.duration_ns[chosen][:, None]
    for columns, limit in ((at_least(fleet, origin), np.minimum), (at_least(origin, fleet), np.maximum)):
        if columns.any():
            here = np.ix_(chosen, np.flatnonzero(columns))
            time_ns[here] = limit(time_ns[here], measured_ns)


_BETTER_WITH_MORE: Final = (
    *("bandwidth_bytes_per_s", "l2_cache_bytes", "sm_count", "clock_hz", "fp32_lanes_per_sm", "threads_per_sm"),
    *("shared_memory_per_sm_bytes", "registers_per_sm", "tdp_w", "power_ratio", "l2_ratio"),
)


def at_least(fleet: Fleet, other: Fleet) -> Mask:
    """Say where a GPU is of the same generation as the other and as good in every figure; the fleets broadcast.

    >>> from wavecast.specs.fleet import build_fleet
    >>> at_least(fleet, build_fleet([h100])), at_least(fleet, build_fleet([a100]))
    (array([ True, False]), array([False,  True]))
    """
    alike = generation_codes(fleet) == generation_codes(other)
    pairs = [(getattr(fleet, name), getattr(other, name)) for name in _BETTER_WITH_MORE]
    pairs += [(other.launch_ratio, fleet.launch_ratio), (~fleet.has_inline_ecc, ~other.has_inline_ecc)]
    for name, rate in fleet.flops_per_s.items():
        theirs = other.flops_per_s[name]
        per_sm = [found / (it.sm_count * it.clock_hz) for found, it in ((rate, fleet), (theirs, other))]
        pairs += [(rate, theirs), (per_sm[0] * ROUNDED, per_sm[1])]
    return np.asarray(alike & np.logical_and.reduce(np.broadcast_arrays(*(mine >= theirs for mine, theirs in pairs))))
