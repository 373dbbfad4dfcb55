"""How a measured time moves to other GPUs by a plain ratio: one table of rules, first to last the first that holds."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Codes, Floats, Mask, Rows, group_rows, row_blocks
from ...formats.trace.column import Column
from ...formats.trace.tables import KernelKind, Trace
from ...records import dataclass
from ...specs.fleet import Fleet
from ...specs.occupancy import resident_blocks
from ..work import Family
from .bounds import BLOCK_ROWS, Bounds, kernel_overhead_ns, rate_matrix
from .prediction import METHODS, Method
from .ratio_widths import HalfWidth, by_distance, by_distance_or_cache, by_host_or_node, memory_rates, width_of
from .wave import exact_wave_factor, large_wave_factor, reached_boundedness
from .workload import GpuWorkload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move:
    """Hold what factors are computed from: n measured rows, the GPU that they come from, the m that they go to."""

    trace: Trace
    workload: GpuWorkload
    origin: Fleet
    """The one GPU that was measured."""
    origin_bounds: Bounds
    fleet: Fleet
    bounds: Bounds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """Hold what chooses the rule of each of n rows."""

    is_modelled: Mask
    """An op model of its family covers it."""
    is_copy: Mask
    """A copy or a fill."""
    crosses_host: Mask
    """A copy from or to the host."""
    joins_gpus: Mask
    """A copy from GPU to GPU."""
    is_collective: Mask
    is_varying: Mask
    """Libraries choose its kernel per GPU."""
    has_work: Mask
    rate_known: Mask
    launch_known: Mask


CACHED_RATIO: Final = 1.2
"""A kernel that moves so much more than DRAM could in its time had its bytes in the cache."""
Factor = Callable[[Move, Rows], Floats]
"""Target time over source time of some rows, to be broadcast to [rows, m]; not finite where a GPU lacks a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Say how kernels of a kind move from one GPU to another."""

    name: str
    """Under which its width is stated."""
    method: Method
    reasons: Mapping[str, Callable[[Facts], Mask]]
    """When it holds, under the reason that is given then."""
    factor: Factor
    half_width: HalfWidth | None
    """None: the op model states it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratios:
    """Hold by what n measured times are multiplied on m GPUs, and what that may be off by."""

    factor: Floats
    """On the part that scales, [n, m]; 1 where nothing tells."""
    method: npt.NDArray[np.int8]
    """Index into `METHODS`, [n, m]."""
    half_width: Floats
    """Of the 90 % interval, natural log, [n, m]; NaN where there is none."""
    reason: tuple[str, ...]
    """Per row."""


def move_by_ratios(move: Move, modelled: Mask) -> Ratios:
    """Return the factor of every row on every GPU by the first rule that holds; 1 for those that are `modelled`."""
    workload = move.workload
    number, reason = choose_rules(_gather_facts(move, modelled))
    shape = (len(number), len(move.fleet.gpus))
    factor, method, half_width = np.empty(shape), np.empty(shape, dtype=np.int8), np.empty(shape)
    unmodelled = METHODS.index(Method.UNMODELLED)
    for position, rule in enumerate(RULES):
        everywhere = np.flatnonzero(number == position)
        for block in row_blocks(len(everywhere), BLOCK_ROWS):
            rows = everywhere[block]
            found = np.broadcast_to(rule.factor(move, rows), (len(rows), shape[1]))
            families = [workload.family[row] for row in rows.tolist()]
            width = ratio_half_widths(rule, families, workload.duration_ns[rows], found, move.fleet, move.origin)
            known = np.isfinite(found)
            factor[rows], half_width[rows] = np.where(known, found, 1.0), np.where(known, width, np.nan)
            method[rows] = np.where(known, METHODS.index(rule.method), unmodelled)
    return Ratios(factor=factor, method=method, half_width=half_width, reason=reason)


def choose_rules(facts: Facts) -> tuple[Codes, tuple[str, ...]]:
    """Return which of `RULES` moves each row, [n], and why."""
    count = len(facts.is_modelled)
    rule, text = np.full(count, -1), np.full(count, -1)
    reasons = list[str]()
    for position, item in enumerate(RULES):
        for reason, holds in item.reasons.items():
            rows = holds(facts) & (rule < 0)
            rule[rows], text[rows] = position, len(reasons)
            reasons.append(reason)
    return rule, tuple(reasons[at] for at in text.tolist())


def ratio_half_widths(
    rule: Rule, families: Sequence[Family | None], measured_ns: Floats, factor: Floats, fleet: Fleet, origin: Fleet
) -> Floats:
    """Return the half widths [n, m] of times that a rule moved by `factor` [n, m]; NaN where it has none."""
    if rule.half_width is None:
        return np.full(factor.shape, np.nan)
    known = {family: width_of(rule.name, family) for family in set(families)}
    width = np.array([known[family] for family in families])
    return rule.half_width(width, measured_ns, factor, fleet, origin)


def _gather_facts(move: Move, modelled: Mask) -> Facts:
    workload, kernels = move.workload, move.trace.kernels
    is_copy = (workload.kind == KernelKind.MEMCPY) | (workload.kind == KernelKind.MEMSET)
    crosses_host, joins_gpus = np.zeros(len(is_copy), dtype=bool), np.zeros(len(is_copy), dtype=bool)
    for row in np.flatnonzero(is_copy).tolist():
        name = move.trace.strings[kernels.name[workload.kernel[row]]]
        crosses_host[row] = any(way in name for way in _HOST_COPIES)
        joins_gpus[row] = _PEER_COPY in name
    return Facts(
        is_modelled=modelled,
        is_copy=is_copy,
        crosses_host=crosses_host,
        joins_gpus=joins_gpus,
        is_collective=workload.is_family(Family.COLLECTIVE),
        is_varying=workload.is_varying,
        has_work=workload.has_work,
        rate_known=workload.rate_known,
        launch_known=_product(kernels.grid[workload.kernel]) > 0,
    )


_HOST_COPIES: Final = ("HtoD", "DtoH", "HostToDevice", "DeviceToHost")
_PEER_COPY: Final = "PtoP"


def _link_factor(move: Move, _rows: Rows) -> Floats:
    """Return the ratio of GPU-to-GPU bandwidths; NaN where either GPU has no link of its own."""
    here, there = move.origin.link_bytes_per_s, move.fleet.link_bytes_per_s
    both = (here > 0) & (there > 0)
    return np.asarray(np.divide(here, there, out=np.full(len(there), np.nan), where=both))


def _rate_factor(move: Move, rows: Rows) -> Floats:
    rate = move.workload.work.rate[rows]
    return rate_matrix(rate, move.origin) / rate_matrix(rate, move.fleet)


def _wave_factor(move: Move, rows: Rows) -> Floats:
    """Return Habitat's factor [rows, m]; exact where the launch is known, fits on both GPUs and holds on both.

    Frameworks choose launches by the warp size, so between 32 and 64 wide warps the recorded one says nothing but how
    many threads there are.
    """
    origin, fleet, table = move.origin, move.fleet, move.trace.kernels
    kernels = move.workload.kernel[rows]
    gamma, bandwidth, clock = boundedness(move, rows), memory_ratio(move, rows), origin.clock_hz / fleet.clock_hz
    grid = _product(table.grid[kernels])[:, None]
    block = _product(table.block[kernels]).clip(max=_MOST).astype(np.int64)
    registers, shared_memory_bytes = table.registers[kernels], table.shared_memory_bytes[kernels]
    first, group = group_rows([registers, shared_memory_bytes, block])
    distinct = (block[first], registers[first], shared_memory_bytes[first])
    source_wave, target_wave = (
        (resident_blocks(*distinct, side.gpus) * side.sm_count).astype(np.float64)[group] for side in (origin, fleet)
    )
    fits = (grid > 0) & (source_wave > 0) & (target_wave > 0) & (origin.warp_size == fleet.warp_size)
    waves = (np.maximum(grid, 1.0), np.maximum(source_wave, 1.0), np.maximum(target_wave, 1.0))
    factor = exact_wave_factor(gamma, bandwidth, clock, *waves)
    if not fits.all():
        filled = _filled_ratio(grid * block[:, None], origin, fleet)
        factor = np.where(fits, factor, large_wave_factor(gamma, bandwidth, clock, filled))
    return factor


def _filled_ratio(threads: Floats, origin: Fleet, fleet: Fleet) -> Floats:
    """Return the multiprocessors of the source over the target's, [rows, m], as far as so many threads fill them.

    0 threads: it is not known how many there are.
    """
    here, there = origin.sm_count * origin.threads_per_sm, fleet.sm_count * fleet.threads_per_sm
    filled = np.maximum(threads / there, 1.0) / np.maximum(threads / here, 1.0)
    return np.where(threads > 0, filled, origin.sm_count / fleet.sm_count)


UNREAD_SHARE: Final = 0.45
"""What follows the memory's rate of the time of kernels whose bytes no formula tells, measured on an H100 and an H200:
0.41 of a convolution's changes of layout, 0.61 of its conversions (benchmarks/check/own_ops.py)."""
UPDATE_SHARE: Final = 0.76
"""The same of updates of lists of tensors."""
STREAM_SHARE: Final = 0.89
"""The same of pointwise kernels of contiguous tensors."""
_STREAMS: Final = re.compile(r"vectorized_elementwise_kernel|\b(?:triton_poi|loop)_")
"""Names of such kernels: torch's, Triton's and XLA's."""


def boundedness(move: Move, rows: Rows) -> Floats:
    """Return gamma [rows, 1]: by the bandwidth that a kernel reached; of its kind where nothing tells what it moves."""
    moved = _moved_bytes(move, rows)
    spent = move.workload.duration_ns[rows] - kernel_overhead_ns(move.origin)
    reached = reached_boundedness(moved, spent, memory_rates(move.origin).dram)
    is_unread = ~(moved > 0)
    unread = rows[is_unread]
    usual = np.where(move.workload.is_family(Family.OPTIMIZER)[unread], UPDATE_SHARE, UNREAD_SHARE)
    names, at = np.unique(move.trace.kernels.name[move.workload.kernel[unread]], return_inverse=True)
    streams = [_STREAMS.search(move.trace.strings[name]) is not None for name in names.tolist()]
    reached[is_unread] = np.where(np.array(streams, dtype=bool)[at], STREAM_SHARE, usual)
    return reached[:, None]


def memory_ratio(move: Move, rows: Rows) -> Floats:
    """Return the ratio of the memories' rates [rows, m], or of the caches' where both hold all that a kernel moves.

    A kernel faster than DRAM had its bytes in the cache of the source.
    """
    moved = _moved_bytes(move, rows)[:, None]
    here, there = memory_rates(move.origin), memory_rates(move.fleet)
    spent = (move.workload.duration_ns[rows] - kernel_overhead_ns(move.origin))[:, None] * 1e-9
    is_cached = (moved > CACHED_RATIO * np.maximum(spent, 0.0) * here.dram) & (moved <= move.fleet.l2_cache_bytes)
    return np.where(is_cached, here.l2 / there.l2, here.dram / there.dram)


def _moved_bytes(move: Move, rows: Rows) -> Floats:
    """Return what kernels move, a part of what their op moves; 0 where that is not known."""
    workload = move.workload
    return workload.work.moved_bytes[rows] * workload.op_share[rows] * workload.has_work[rows]


_MOST: Final = 2.0**62
"""Threads of a block that no file means: none fits."""


def _product(dimensions: Column) -> Floats:
    return np.asarray(dimensions.astype(np.float64).prod(axis=1))


_SAME_LAUNCH: Final = "same kernel taken: whole waves (many, to another warp size)"
_MANY_WAVES: Final = "same kernel taken: launch not recorded, many waves taken"
_FROM_SHAPES: Final = "intensity from shapes"
_BY_KIND: Final = "intensity unknown, that of its kind taken"
RULES: Final = (
    Rule(
        name="model",
        method=Method.ANCHORED_MODEL,
        reasons={"op model of its family, anchored at the measured time": lambda it: it.is_modelled},
        factor=lambda _, rows: np.ones((len(rows), 1)),
        half_width=None,
    ),
    Rule(
        name="pcie",
        method=Method.LINK_RATIO,
        reasons={"copy over PCIe: ratio of PCIe bandwidths": lambda it: it.crosses_host},
        factor=lambda move, _: move.origin.pcie_bytes_per_s / move.fleet.pcie_bytes_per_s,
        half_width=by_host_or_node,
    ),
    Rule(
        name="link",
        method=Method.LINK_RATIO,
        reasons={
            "copy between GPUs: ratio of link bandwidths": lambda it: it.joins_gpus,
            "collective: ratio of link bandwidths; waiting for other ranks is inside": lambda it: it.is_collective,
        },
        factor=_link_factor,
        half_width=by_host_or_node,
    ),
    Rule(
        name="bandwidth",
        method=Method.BANDWIDTH_RATIO,
        reasons={"copy or fill on the device: ratio of memory bandwidths": lambda it: it.is_copy},
        factor=lambda move, _: memory_rates(move.origin).dram / memory_rates(move.fleet).dram,
        half_width=by_distance_or_cache,
    ),
    Rule(
        name="bound",
        method=Method.BOUND_RATIO,
        reasons={
            "the library chooses another kernel there: ratio of rooflines": lambda it: it.is_varying & it.has_work
        },
        factor=lambda move, rows: move.bounds.roofline_ns[rows] / move.origin_bounds.roofline_ns[rows],
        half_width=by_distance,
    ),
    Rule(
        name="compute",
        method=Method.BOUND_RATIO,
        reasons={
            "shapes not recorded, unit known from the kernel's name: ratio of its peak rates": lambda it: (
                it.is_varying & it.rate_known
            )
        },
        factor=_rate_factor,
        half_width=by_distance,
    ),
    Rule(
        name="guess",
        method=Method.BOUND_RATIO,
        reasons={"neither shapes nor unit recorded: ratio of FP32 peak rates": lambda it: it.is_varying},
        factor=_rate_factor,
        half_width=by_distance,
    ),
    Rule(
        name="wave",
        method=Method.WAVE_SCALING,
        reasons={
            f"{_SAME_LAUNCH}, {_FROM_SHAPES}": lambda it: it.launch_known & it.has_work,
            f"{_SAME_LAUNCH}, {_BY_KIND}": lambda it: it.launch_known,
            f"{_MANY_WAVES}, {_FROM_SHAPES}": lambda it: it.has_work,
            f"{_MANY_WAVES}, {_BY_KIND}": lambda it: ~it.has_work,
        },
        factor=_wave_factor,
        half_width=by_distance_or_cache,
    ),
)
"""In the order in which they are asked; the last one takes whatever the others leave."""
RULE_OF: Final = {rule.name: rule for rule in RULES}
