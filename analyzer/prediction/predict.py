"""Choose a method for every kernel on every GPU, and predict its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Rows, group_rows
from ...formats.column import Column
from ...formats.trace import KernelKind, Trace
from ...specs.fleet import Fleet, build_fleet
from ...specs.gpu import Gpu
from ...specs.occupancy import resident_blocks
from ..models.frame.intervals import separations
from ..models.library import Library, carried_factor
from ..work import Family
from .bounds import Bounds, bound_ops, rate_matrix
from .method import Method
from .op_models import ModelTimes, assign_rows, covered_rows, model_times
from .ratio_widths import ratio_half_widths
from .wave import exact_wave_factor, large_wave_factor, memory_boundedness
from .workload import GpuWorkload

KERNEL_OVERHEAD_NS: Final = 1250.0
"""The part of a kernel's time that no faster memory or arithmetic shortens: the shortest kernel of the V100 traces;
H100's shortest is 1,500, B200's 1,980. Scaling it as well would promise times that no GPU reaches."""
BLOCK_ROWS: Final = 512
"""Rows computed at a time, so that intermediate arrays stay in the processor's cache
(benchmarks/speed/predict_speed.py)."""
METHODS: Final = tuple(Method)
_CODE: Final = {method: code for code, method in enumerate(METHODS)}


_ALL: Final = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Hold the time of n workload rows on m GPUs."""

    fleet: Fleet
    time_ns: Floats
    """Mean time of one kernel (or op) of the row, [n, m]."""
    weight: Floats
    """What a row's time counts in the GPU-busy time: its number of kernels, less where they overlap others, [n]."""
    method: npt.NDArray[np.int8]
    """Index into `METHODS`, [n, m]."""
    reason: tuple[str, ...]
    """Why the method was chosen, per row."""
    half_width: Floats
    """Of the 90 % interval of a row's time, natural log, [n, m]; 0 where measured, NaN where nothing tells."""
    bounds: Bounds
    bound_share: Floats
    """The part of its op's bound that a row's time cannot be under, [n]; 0 where no bound holds."""

    def busy_ns(self, column: int) -> Floats:
        """Return the GPU-busy time of each row on one GPU, overlap shared out as on the source, [n]."""
        return np.asarray(self.time_ns[:, column] * self.weight)

    def total_busy_ns(self) -> Floats:
        """Return the GPU-busy time on each GPU, [m]."""
        return np.asarray(np.einsum("i,ij->j", self.weight, self.time_ns))

    def fall(self, rows: Rows | slice = _ALL, column: int | slice = _ALL) -> Floats:
        """Return by which part of its time a row's low end is under it, [rows, m] or [rows]; NaN where it has none.

        The low end of the 90 % interval, but not under what the bound leaves.
        """
        time, width = self.time_ns[rows, column], self.half_width[rows, column]
        share = self.bound_share[rows, None] if isinstance(column, slice) else self.bound_share[rows]
        above = np.ones_like(time)
        np.divide(self.bounds.lower_ns[rows, column] * share, time, out=above, where=time > 0)
        np.subtract(1.0, above, out=above)
        np.maximum(above, 0.0, out=above)
        return np.asarray(np.minimum(-np.expm1(-width), above))


def predict_measured(
    trace: Trace, workload: GpuWorkload, source: Gpu, targets: Sequence[Gpu], library: Library, *, retimed: bool = False
) -> Prediction:
    """Move measured kernels from `source` to every target.

    t_target = overhead + (t_source - overhead) * factor, with the factor of the row's method; never under the
    physical bound where the source kept to it as well. On the source itself the measured time stands, unless the times
    are `retimed`: a what-if's, predicted there as well.
    """
    fleet, origin = build_fleet(targets), build_fleet([source])
    bounds, source_bounds = bound_ops(workload.work, fleet), bound_ops(workload.work, origin)
    assignments, count = assign_rows(workload, library), len(workload.op)
    modelled = covered_rows(assignments, count) & (workload.kind == KernelKind.KERNEL)
    time, method, width, reason = _scale(trace, workload, modelled, fleet, origin, (bounds, source_bounds))
    measured = workload.duration_ns
    fixed = np.minimum(measured, KERNEL_OVERHEAD_NS)
    time *= (measured - fixed)[:, None]
    time += fixed[:, None]
    if modelled.any():
        target_model, source_model = (model_times(assignments, count, item, library) for item in (fleet, origin))
        apart = separations(fleet, origin)
        time[modelled] = _anchored_ns(workload, target_model, source_model, modelled, apart)
        width[modelled] = _anchored_width(workload, target_model, modelled, fleet, origin)
    obeys = workload.has_work & (measured >= source_bounds.lower_ns[:, 0] * workload.op_share)
    share = workload.op_share * obeys
    for begin in range(0, len(time), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        np.maximum(time[block], bounds.lower_ns[block] * share[block, None], out=time[block])
    is_source = np.array([gpu.name == source.name for gpu in targets], dtype=bool)
    time[:, is_source] = measured[:, None]
    if not retimed:
        method[:, is_source], width[:, is_source] = _CODE[Method.MEASURED], 0.0
    return Prediction(
        fleet=fleet,
        time_ns=time,
        weight=np.divide(workload.busy_ns, measured, out=np.zeros_like(measured), where=measured > 0),
        method=method,
        reason=reason,
        half_width=width,
        bounds=bounds,
        bound_share=share,
    )


def _anchored_width(
    workload: GpuWorkload, target: ModelTimes, rows: npt.NDArray[np.bool_], fleet: Fleet, origin: Fleet
) -> Floats:
    """Return the half widths [rows, m] of anchored times.

    Between vendors no anchored prediction was ever compared with a measurement in training: there they are no narrower
    than those of a plain ratio.
    """
    width = target.anchored_half_width[rows]
    vendor = origin.gpus[0].vendor
    foreign = np.array([gpu.vendor != vendor for gpu in fleet.gpus], dtype=bool)
    if not foreign.any():
        return width
    families = [family for family, chosen in zip(workload.family, rows.tolist(), strict=True) if chosen]
    rules = np.where(workload.is_varying[rows], "bound", "wave").astype(object)
    plain = ratio_half_widths(rules, families, workload.duration_ns[rows], np.ones(width.shape), (fleet, origin))
    width[:, foreign] = np.fmax(width, plain)[:, foreign]
    return width


def _anchored_ns(
    workload: GpuWorkload, target: ModelTimes, source: ModelTimes, rows: npt.NDArray[np.bool_], apart: Floats
) -> Floats:
    """Return the times [rows, m] of measured kernels, moved by their op's model.

    t_target = model_target * carried_factor of the source's deviation from the model, in the kernel's share of its op.
    """
    share = workload.op_share[rows][:, None]
    measured_ns = np.divide(workload.duration_ns[rows][:, None], share, out=np.ones_like(share), where=share > 0)
    source_ns, width = source.time_ns[rows], source.half_width[rows]
    carried = carried_factor(measured_ns, source_ns, source.anchor[rows][:, None], width, apart)
    return np.asarray(target.time_ns[rows] * carried * share)


def predict_shapes(workload: GpuWorkload, targets: Sequence[Gpu], library: Library) -> Prediction:
    """Give every op the time of its op model; its roofline where no model covers it, 0 where it has no formula."""
    fleet = build_fleet(targets)
    assignments = assign_rows(workload, library)
    bounds, modelled = bound_ops(workload.work, fleet), model_times(assignments, len(workload.op), fleet, library)
    known, covered = workload.has_work[:, None], modelled.is_covered[:, None]
    time = np.where(covered, np.maximum(modelled.time_ns, bounds.lower_ns), np.where(known, bounds.roofline_ns, 0.0))
    method = np.where(known, _CODE[Method.ROOFLINE], _CODE[Method.UNMODELLED])
    method = np.where(covered, _CODE[Method.OP_MODEL], method)
    return Prediction(
        fleet=fleet,
        time_ns=time,
        weight=workload.count.astype(np.float64),
        method=np.broadcast_to(method, time.shape).astype(np.int8),
        reason=tuple(
            _shape_reason(known, covered)
            for known, covered in zip(workload.has_work.tolist(), modelled.is_covered.tolist(), strict=True)
        ),
        half_width=modelled.half_width,
        bounds=bounds,
        bound_share=workload.has_work.astype(np.float64),
    )


def _shape_reason(is_known: bool, is_covered: bool) -> str:
    if is_covered:
        return "nothing was measured: op model of its family, from the shapes"
    return "no op model for this family: roofline" if is_known else "no formula for this op, or its shapes are missing"


def _scale(
    trace: Trace,
    workload: GpuWorkload,
    modelled: npt.NDArray[np.bool_],
    fleet: Fleet,
    origin: Fleet,
    bounds: tuple[Bounds, Bounds],
) -> tuple[Floats, npt.NDArray[np.int8], Floats, tuple[str, ...]]:
    """Return factor, method code and half width [n, m], and the reason of each row."""
    cases = _cases(trace, workload, modelled)
    rules = np.array([rule for rule, _ in cases], dtype=object)
    rate = workload.work.rate
    factors: dict[str, Callable[[Rows], Floats]] = {
        "model": lambda rows: np.ones((len(rows), len(fleet.gpus))),
        "wave": lambda rows: _wave_factor(trace, workload, rows, fleet, origin),
        "bound": lambda rows: bounds[0].roofline_ns[rows] / bounds[1].roofline_ns[rows],
        "compute": lambda rows: rate_matrix(rate[rows], origin) / rate_matrix(rate[rows], fleet),
        "guess": lambda rows: rate_matrix(rate[rows], origin) / rate_matrix(rate[rows], fleet),
        "bandwidth": lambda _: origin.bandwidth_bytes_per_s / fleet.bandwidth_bytes_per_s,
        "pcie": lambda _: origin.pcie_bytes_per_s / fleet.pcie_bytes_per_s,
        "link": lambda _: _link_factor(origin, fleet),
    }
    shape = (len(cases), len(fleet.gpus))
    factor, method = np.ones(shape), np.full(shape, _CODE[Method.UNMODELLED], dtype=np.int8)
    for rule, chosen in _RULES.items():
        everywhere = np.flatnonzero(rules == rule)
        for begin in range(0, len(everywhere), BLOCK_ROWS):
            rows = everywhere[begin : begin + BLOCK_ROWS]
            found = np.broadcast_to(factors[rule](rows), (len(rows), shape[1]))
            factor[rows], method[rows] = found, _CODE[chosen]
            if not np.isfinite(found).all():
                unknown = np.nonzero(~np.isfinite(found))
                factor[rows[unknown[0]], unknown[1]] = 1.0
                method[rows[unknown[0]], unknown[1]] = _CODE[Method.UNMODELLED]
    width = np.full(shape, np.nan)
    moved = np.flatnonzero(~modelled)
    families = [workload.family[row] for row in moved.tolist()]
    width[moved] = ratio_half_widths(
        rules[moved], families, workload.duration_ns[moved], factor[moved], (fleet, origin)
    )
    width[method == _CODE[Method.UNMODELLED]] = np.nan
    return factor, method, width, tuple(reason for _, reason in cases)


_RULES: Final = {
    "model": Method.ANCHORED_MODEL,
    "wave": Method.WAVE_SCALING,
    "bound": Method.BOUND_RATIO,
    "compute": Method.BOUND_RATIO,
    "guess": Method.BOUND_RATIO,
    "bandwidth": Method.BANDWIDTH_RATIO,
    "pcie": Method.LINK_RATIO,
    "link": Method.LINK_RATIO,
}


def _wave_factor(trace: Trace, workload: GpuWorkload, rows: Rows, fleet: Fleet, origin: Fleet) -> Floats:
    """Return Habitat's factor [rows, m]; exact where the launch is known, fits on both GPUs and holds on both.

    Frameworks choose launches by the warp size, so between 32 and 64 wide warps the recorded one says nothing.
    """
    kernels, table = workload.kernel[rows], trace.kernels
    grid, block = _product(table.grid[kernels])[:, None], _product(table.block[kernels])
    flops, moved = workload.work.flops[rows], workload.work.moved_bytes[rows]
    intensity = np.divide(flops, moved, out=np.zeros(len(rows)), where=moved > 0)[:, None]
    ridge = rate_matrix(workload.work.rate[rows], fleet) / fleet.bandwidth_bytes_per_s
    gamma = memory_boundedness(intensity, ridge)
    bandwidth, clock = origin.bandwidth_bytes_per_s / fleet.bandwidth_bytes_per_s, origin.clock_hz / fleet.clock_hz
    launch = [table.registers[kernels], table.shared_memory_bytes[kernels], block.astype(np.int64)]
    first, group = group_rows(launch)
    distinct = [column[first] for column in launch]
    source_wave, target_wave = _wave_blocks(distinct, origin)[group], _wave_blocks(distinct, fleet)[group]
    fits = (grid > 0) & (source_wave > 0) & (target_wave > 0) & (origin.warp_size == fleet.warp_size)
    waves = (np.maximum(grid, 1.0), np.maximum(source_wave, 1.0), np.maximum(target_wave, 1.0))
    factor = exact_wave_factor(gamma, bandwidth, clock, *waves)
    if not fits.all():
        factor = np.where(fits, factor, large_wave_factor(gamma, bandwidth, clock, origin.sm_count / fleet.sm_count))
    return factor


def _wave_blocks(launch: Sequence[Column], fleet: Fleet) -> Floats:
    """Return the blocks that are resident on the whole GPU at once, [n, m]; 0 where a block does not fit.

    `launch` holds registers per thread, shared memory per block in bytes, and threads per block.
    """
    registers, shared_memory_bytes, threads = launch
    per_sm = resident_blocks(threads, registers, shared_memory_bytes, fleet.gpus)
    return np.asarray(per_sm * fleet.sm_count, dtype=np.float64)


def _product(dimensions: Column) -> Floats:
    return np.asarray(dimensions.astype(np.float64).prod(axis=1))


def _link_factor(origin: Fleet, fleet: Fleet) -> Floats:
    """Return the ratio of GPU-to-GPU bandwidths; NaN where either GPU has no link of its own."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = origin.link_bytes_per_s / fleet.link_bytes_per_s
    known = (origin.link_bytes_per_s > 0) & (fleet.link_bytes_per_s > 0)
    return np.where(known, ratio, np.nan)


def _cases(trace: Trace, workload: GpuWorkload, modelled: npt.NDArray[np.bool_]) -> list[tuple[str, str]]:
    """Return each row's rule and the reason for it."""
    names = trace.kernels.name[workload.kernel].tolist()
    launch_known = (_product(trace.kernels.grid[workload.kernel]) > 0).tolist()
    facts = zip(
        names,
        workload.kind.tolist(),
        workload.family,
        workload.is_varying.tolist(),
        workload.has_work.tolist(),
        workload.rate_known.tolist(),
        launch_known,
        strict=True,
    )
    cases = [
        _copy_case(trace.strings[name]) if kind in _COPY_KINDS else _kernel_case(family, varying, worked, rated, launch)
        for name, kind, family, varying, worked, rated, launch in facts
    ]
    for row in np.flatnonzero(modelled).tolist():
        cases[row] = ("model", "op model of its family, anchored at the measured time")
    return cases


_COPY_KINDS: Final = (KernelKind.MEMCPY, KernelKind.MEMSET)


def _copy_case(name: str) -> tuple[str, str]:
    if "HtoD" in name or "DtoH" in name or "HostToDevice" in name or "DeviceToHost" in name:
        return "pcie", "copy over PCIe: ratio of PCIe bandwidths"
    if "PtoP" in name:
        return "link", "copy between GPUs: ratio of link bandwidths"
    return "bandwidth", "copy or fill on the device: ratio of memory bandwidths"


def _kernel_case(family: Family | None, varying: bool, worked: bool, rated: bool, launch: bool) -> tuple[str, str]:
    if family is Family.COLLECTIVE:
        return "link", "collective: ratio of link bandwidths; waiting for other ranks is inside"
    if varying and worked:
        return "bound", "the library chooses another kernel there: ratio of rooflines"
    if varying and rated:
        return "compute", "shapes not recorded, unit known from the kernel's name: ratio of its peak rates"
    if varying:
        return "guess", "neither shapes nor unit recorded: ratio of FP32 peak rates"
    intensity = "intensity from shapes" if worked else "intensity unknown, taken as memory-bound"
    waves = "whole waves (many, to another warp size)" if launch else "launch not recorded, many waves taken"
    return "wave", f"same kernel taken: {waves}, {intensity}"
