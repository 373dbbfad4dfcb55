"""Products on GPUs as columns of what no tile changes, so that trying a tile costs only what it changes."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Rows, Singles
from ....records import dataclass, fields
from ....specs.fleet import Fleet
from ....specs.generations import is_before_volta, is_nvidia, process_energy, sgemm_kernels
from ....specs.product_kernels import SgemmKernels
from ..frame.gpu_physics import capped_energy, capped_stretch, capped_switching
from ..frame.parameters import Values
from ..frame.problems import peak_flops_per_s
from ..matmul.feed import driven_out
from .problems import MatmulSimtProblems

Reals = npt.NDArray[np.floating[Any]]
"""Quantities in the precision of whoever asks: double for times, single for the comparison of tiles."""

CLOCK_EXPONENT: Final = 1.5
"""Of energy per operation over clock: 2 if the voltage went with the clock, 0.8 by L40's board (gpu_physics.py's
`CAP_EXPONENT`). Between them, chosen with T4, V100, P4 and P100 left out in sight."""
UNKNOWN_BASE_RATIO: Final = 0.75
"""Base over boost clock where no base clock is known (the catalogue's median)."""
STEP_DEPTH: Final = 8.0
"""k that a block loads at once."""
DRIFT_DEPTH: Final = 1024.0
"""k at which blocks have drifted apart by `drift_bytes` per row: what delays each is chance, so with the root of k."""
LINE_BYTES: Final = 2.0 * 128.0
"""Of L2 per row along k: pieces of 32 bytes take up whole lines, the one in use and the next."""
COLD_LATENCY: Final = 2.0
"""DRAM's over L2's, read off H100's rows of few vectors: cold ones take twice as long as reused ones. Hopper's alone,
whose rows are either: with stalls that follow it, errors of older chips left out rose nearly as often as they fell."""
ISSUED_PER_CLOCK: Final = 128.0
"""Lanes that a multiprocessor's four schedulers give an instruction per clock."""
AMD_STRIP_ROWS: Final = 8.0
"""rocBLAS's usual `WorkGroupMapping`: generated libraries try 1 and 8 (ROCm/Tensile, MIT)."""
WAVES_WORTH_SPLITTING: Final = 8.0
SUM_SHARE: Final = 0.25
"""Of what splitting k costs beside its traffic: with a bias parts are cleared, scaled, summed and added to by kernels
of their own (`scal_kernel`, `epilogue::impl::globalKernel`), without one they are summed. Seen on Hopper."""
MATRIX_ENERGY_RATIO: Final = 0.77
"""Energy per FLOP of AMD's matrix units over vector lanes': twice the rate, to the power -0.37 of gpu_physics.py."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimtPairs:
    """Hold what a product brings to a GPU whatever the tile; arrays broadcast with one another.

    Cycles are a multiprocessor's; those of arithmetic count per k and element of the tile unless stated.
    """

    batch: Reals
    m: Reals
    n: Reals
    k: Reals
    sm_count: Reals
    clock_hz: Reals
    registers_per_sm: Reals
    threads_per_sm: Reals
    fma_cycles: Reals
    issue_cycles: Reals
    """Of the multiply-add's own instruction; 0 where issuing one is free."""
    other_cycles: Reals
    """Of every other instruction, times their number per multiply-add."""
    turn_cycles: Reals
    """Of each word of operands, in turn with arithmetic; 0 on NVIDIA."""
    lone_cycles: Reals
    """Of one warp's multiply-add."""
    stall_cycles: Reals
    epilogue_depth: Reals
    epilogue_cycles: Reals
    store_cycles: Reals
    """Of each result, where threads store them one by one."""
    load_cycles: Reals
    """Of each word of operands: along k threads load them one by one; 0 where `turn_cycles` counts them."""
    single_cycles: Reals
    """The same where they do so in any layout: twice where both lie along k, as H100's kernels take."""
    cold_s: Reals
    """Reading both operands once."""
    left_again_s: Reals
    right_again_s: Reals
    """Reading an operand once more, as far as L2 does not hold it."""
    result_s: Reals
    exposed_write: Reals
    drift: Reals
    """Of L2, per row in flight."""
    strip_rows: Reals
    """Rows of tiles that blocks walk along together."""
    left_walk_s: Reals
    right_walk_s: Reals
    """Address translation of an operand where every piece misses."""
    page_reach: Reals
    """Of the translation cache, per row that a multiprocessor works on."""
    power: Reals
    """Of the limit, for one FLOP of each of k per second without the operands' share."""
    operand_energy: Reals
    throttle_exponent: Reals
    most_throttle: Reals
    throttle_s: Reals
    launch_s: Reals
    split_s: Reals
    split_waves: Reals
    """Blocks per multiprocessor below which k may be split."""


_NAMES: Final = tuple(item.name for item in fields(SimtPairs))


def pairs_of(p: MatmulSimtProblems, fleet: Fleet, values: Values) -> SimtPairs:
    """Return the columns of n problems [n, 1] on m GPUs, or [n] on as many."""
    is_hopper = sgemm_kernels(fleet) == SgemmKernels.HOPPER
    one_by_one = np.where(is_nvidia(fleet), 1.0 / values["accesses_per_clock"], 0.0)
    across = 0.5 * (1 + p.turned - p.contiguous)
    is_summed = is_hopper & (p.host_floor_ns == 0.0) & (p.has_bias == 0)
    return SimtPairs(
        batch=p.batch,
        m=p.m,
        n=p.n,
        k=p.k,
        sm_count=fleet.sm_count,
        clock_hz=fleet.clock_hz * np.where(p.paused > 0, values["paused_clock"], 1.0),
        registers_per_sm=fleet.registers_per_sm,
        threads_per_sm=fleet.threads_per_sm,
        epilogue_depth=values["epilogue_depth"],
        epilogue_cycles=values["epilogue_cycles"],
        store_cycles=one_by_one * is_hopper,
        load_cycles=one_by_one * (1.0 - across * (1.0 - values["vector_load_ratio"])),
        single_cycles=one_by_one * (1.0 + p.contiguous),
        exposed_write=values["exposed_write"],
        drift=(values["drift_bytes"] * np.sqrt(p.k / DRIFT_DEPTH) + LINE_BYTES * p.contiguous) / fleet.l2_cache_bytes,
        strip_rows=np.where(is_nvidia(fleet), 1.0, AMD_STRIP_ROWS),
        operand_energy=values["operand_energy"],
        throttle_exponent=values["throttle_exponent"],
        throttle_s=values["throttle_us"] * 1e-6,
        launch_s=values["launch_us"] * 1e-6 + p.before_bytes / _bandwidth(fleet, values),
        split_s=values["split_us"] * np.where(is_summed, SUM_SHARE, 1.0) * 1e-6,
        split_waves=np.where(is_hopper, np.where(p.has_bias > 0, 1.0, 2.0), WAVES_WORTH_SPLITTING),
        **_cycles(p, fleet, values),
        **_traffic(p, fleet, values),
        **_power(p, fleet, values),
    )


def stack_pairs(pairs: SimtPairs, shape: tuple[int, ...]) -> Singles:
    """Return the columns in single precision, one row each, over the flattened `shape`."""
    table = np.empty((len(_NAMES), *shape), dtype=np.float32)
    for row, name in enumerate(_NAMES):
        table[row] = getattr(pairs, name)
    return table.reshape(len(_NAMES), -1)


def take_pairs(table: Singles, chosen: Rows) -> SimtPairs:
    """Return some pairs of what `stack_pairs` made."""
    return SimtPairs(**dict(zip(_NAMES, np.take(table, chosen, axis=1), strict=True)))


def _cycles(p: MatmulSimtProblems, fleet: Fleet, values: Values) -> dict[str, Floats]:
    """Return what arithmetic takes.

    Since Volta a scheduler issues one instruction per clock: with 128 lanes every FMA takes such a slot, and so do the
    reads, four words each, and the copies from memory. Matrix units (AMD) read in turn with their arithmetic.
    """
    period = fleet.sm_count * fleet.clock_hz / peak_flops_per_s(p.rate, fleet)
    efficiency = np.minimum(values["fma_efficiency"], 1.0)
    issues_alone = is_nvidia(fleet) & ~is_before_volta(fleet)
    issued = np.where(issues_alone, 1.0 / (ISSUED_PER_CLOCK * efficiency), 0.0)
    words = p.element_bytes / 4.0
    return {
        "fma_cycles": 2.0 * period / efficiency,
        "issue_cycles": issued,
        "other_cycles": issued * values["other_instructions"],
        "turn_cycles": np.where(is_nvidia(fleet), 0.0, values["matrix_load"]) * words,
        "lone_cycles": 256.0 * period,
    }


def _traffic(p: MatmulSimtProblems, fleet: Fleet, values: Values) -> dict[str, Floats]:
    """Return what the operands and the result take in DRAM and in address translation.

    An operand with k contiguous is read in pieces of 32 bytes, which DRAM serves at `strided_efficiency` once rows are
    apart by more than `stride_bytes`; only such pieces miss the translation cache (NVIDIA; AMD's pages are larger).
    """
    left, right = p.element_bytes * p.batch * p.k * p.m, p.element_bytes * p.batch * p.k * p.n
    result = p.element_bytes * p.batch * p.m * p.n
    cache = values["l2_share"] * fleet.l2_cache_bytes
    leaves = 1.0 - 1.0 / (1.0 + square((left + right) / p.batch / cache))
    stride = square(values["stride_bytes"] / (p.element_bytes * p.k))
    pieces = values["strided_efficiency"] * np.where(fleet.has_hbm, 1.0, values["gddr_strided_ratio"])
    strided = 1.0 + (1.0 / np.minimum(pieces, 1.0) - 1.0) / (1.0 + stride)
    bandwidth = _bandwidth(fleet, values)
    left_s, right_s = left * strided / bandwidth, right * (1.0 + p.contiguous * (strided - 1.0)) / bandwidth
    walked = values["translation_bytes_per_clock"] * fleet.sm_count * fleet.clock_hz
    pages = p.contiguous * p.k * p.element_bytes / 2.0**20
    cold = missed(p.copies * (left + right) + result, cache)
    waiting = np.where(sgemm_kernels(fleet) == SgemmKernels.HOPPER, cold * (COLD_LATENCY - 1.0), 0.0)
    return {
        "stall_cycles": values["stall_cycles"] / STEP_DEPTH * (1.0 + waiting),
        "cold_s": (left_s + right_s) * cold
        + driven_out(p.copies, left + right, fleet.l2_cache_bytes, values) / bandwidth,
        "left_again_s": left_s * leaves,
        "right_again_s": right_s * leaves,
        "result_s": result * missed(left + right + result, cache) / bandwidth,
        "left_walk_s": left / walked,
        "right_walk_s": right / walked,
        "page_reach": pages * np.where(is_nvidia(fleet), 1.0 / values["translation_mib"], 0.0),
    }


def _power(p: MatmulSimtProblems, fleet: Fleet, values: Values) -> dict[str, Floats]:
    """Return what arithmetic draws of what the limit, or a cap below it, leaves, and how far the clock can fall.

    The base clock is what the vendor holds.
    """
    energy, reference_hz = process_energy(fleet)
    uncapped_hz = fleet.clock_hz * capped_stretch(fleet)
    joule = energy * values["picojoule_per_flop"] * 1e-12 * (uncapped_hz / reference_hz) ** CLOCK_EXPONENT
    joule = joule * np.where(is_nvidia(fleet), 1.0, MATRIX_ENERGY_RATIO) * capped_energy(fleet)
    base_hz = np.where(fleet.base_clock_hz < fleet.clock_hz, fleet.base_clock_hz, UNKNOWN_BASE_RATIO * fleet.clock_hz)
    return {
        "power": p.k * (p.element_bytes / 2.0) * (joule / (fleet.tdp_w * capped_switching(fleet))),
        "most_throttle": fleet.clock_hz / base_hz - 1.0,
    }


def _bandwidth(fleet: Fleet, values: Values) -> Floats:
    return np.asarray(fleet.bandwidth_bytes_per_s * np.minimum(values["bandwidth_efficiency"], 1.0))


def missed(working_set: Reals, cache: Reals) -> Reals:
    """Return the share of bytes that a cache no longer holds when they are used again."""
    return np.asarray(1.0 - 1.0 / (1.0 + cube(working_set / cache)))


def square(values: Reals) -> Reals:
    """Multiply out: a power of arrays takes ten times as long."""
    return np.asarray(values * values)


def cube(values: Reals) -> Reals:
    """Multiply out, as `square`."""
    return np.asarray(values * values * values)
