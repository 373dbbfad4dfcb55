"""Ops of which one kernel walks over rows, and whose time is that of its blocks' chains of loads as often as of bytes.

    t = T_start + (Td^3 + Tl^3 + Ti^3 + Tw^3)^(1/3) + Ts + launches * (t0 + c0/clk)

Td, Tl: bytes of the walking kernel over the rates of DRAM and L2; Ti: its instructions over the SMs' issue rate; Tw:
waves of blocks, each as long as one block's chain of dependent loads: a batch norm of 64 channels runs on 64 SMs, a
layer norm of 16 rows on 16. T_start: a block's first load and its merging of what its threads found, and the first
loads of further kernels. Ts: what elementwise kernels of the same op move, over the same rates. Where a block holds its
row and reads all of it before it computes, Td is added, as no other block's work hides it.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask, Singles, single
from ....specs.fleet import Fleet
from ....specs.generations import is_async, is_nvidia
from ...work.row_kernels import RowKernel
from ..frame import gpu_physics
from ..frame.classes import time_by_class
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from . import launch
from .problems import GROUP_NAMES, ReductionProblems, alike, group, is_strided_scan, kernel_facts, kernel_kind

NVIDIA, OTHER_VENDOR, HOPPER = range(3)
CLASS_NAMES: Final = ("NVIDIA", "AMD", "Hopper and later")
USEFUL_L2: Final = 0.8
"""Of its size, from one use to the next; `vector` fits 0.75 beside HBM."""
DIRTY_L2: Final = 0.5
"""Part of what loads push out of L2 that was written before and must go to DRAM first: after a fill H100's and H200's
sums, gradients of row norms and topks take longer than after themselves, by half of their loads, and by 7 to 10 us from
L2's size on. Kernels that write much leave as much behind as they found."""
INPUT_FLOPS, PARAMETER_LOAD = 11.0, 0.5
"""Of a row norm's gradients: operations per element without those of more than one sum, which tell layer norm from RMS
norm; part of a step of their sums that is a load."""
MOST_PRESSURE: Final = 1e6
LEAST_DIGITS, DIGIT_BYTES = 128.0, 256.0  # columns, and bytes of their keys, that a block sorts by digits, at least
CODE_US: Final = 2.0
"""What a sum of columns takes longer where other kernels ran since, as its long code must be fetched again. Sweeps,
which repeat one call, cannot show it. The form was found with our recorded networks in sight; A100's recorded training
has the same sums 0.8 us longer than right after each other, V100's some of equal grids 1.5 to 5, others none."""


PARAMETERS: Final = (
    *gpu_physics.COPY_PARAMETERS,
    *gpu_physics.L2_PARAMETERS,
    *gpu_physics.LAUNCH_PARAMETERS,
    *priors("reduction"),
    *priors("reduction, kernels", CLASS_NAMES),
)
"""By kernel: instructions per element, cycles of a block before its steps, and of each step; `unit_instructions` are of
a thread, or of a row that a block ends with, beside those of its elements (`RowWalk.units`). A dependent load from DRAM
takes 500-650 cycles (`membench`), and Welford's update, a division among it, some 150 more. Chosen with chips in sight:
topk's and sorts' (H100, and a recorded Mask R-CNN: a block's 16 counts take 500 cycles each, each 1,024 columns), steps
of MOMENTS, CHANNEL_SUMS and ROW_FORWARD (V100, A100, H100, L40S: 770-1,070 cycles), of whole batch norms (as of
MOMENTS; V100's take 800, H100's 1,230), of a column's tiles (V100's take 1,500, H100's 800), elements and sums (without
V100 and Hopper 1,280 to 1,710), fused norms' (H200 21, GB200 12), POOL's 150 + 30 per neighbour, SCAN's and SCATTER's,
steps of elements (H100), PICK's (A100; its start H100), one launch for all (H100 left out), BROADCAST's 60 (H100's
row-wise sums). A scan's step is a load and a tree of some 18 levels with a barrier each; its start stands: few rows
tell it. A scattered addition takes about a clock of an SM. MOMENT_ROWS' step is a load and four updates.

Spread 0 of all: nothing was measured of POOL_BACKWARD and STREAM alone. Spread 0 of cycles: blocks are many and short,
the chain never counts. 0.08 to 0.3: what most chips agree with, and a few rows timed by events on one would pull away,
which lost V100's batch norms when it was left out (chosen with these in sight). 0.6 and 0.8: kernels whose shortest
calls were measured. 0.2: topk's by parts, whose priors hold for H100's rows as well as a fit; loops of COLUMN_MOMENTS
and COLUMN_SUMS have few instructions per element: V100's volumes in fp16 come at DRAM's rate (chosen with these in
sight). Left free, the rows under 100 us, which wait for each other's tiles, would make them 45 to 75."""
_REREAD: Final = np.array([float(Fraction(text or "0")) for text in kernel_facts("reread")])
"""Part of what a kernel walks over that it reads again: the input of input and output, with the output's gradient."""
_TAPS, _MERGES = (tuple(f"{name}_instructions" for name in kernel_facts(column)) for column in ("tap", "merge"))
"""What a neighbour in a window takes, and a thread of a block that merges what each found of its row: of means and
variances with a division each time."""
_IS_SHARED: Final = np.isin(list(RowKernel), launch.SHARED_KERNELS)
_ONLY_READS: Final = np.isin(list(RowKernel), (*launch.SHARED_KERNELS, RowKernel.ROW_BACKWARD, RowKernel.TOP_PARTS))
"""Kernels, or the last of an op, that leave nothing to write behind; so they wait for what others left."""
_IS_TOP: Final = np.isin(list(RowKernel), launch.TOP_KERNELS)
_IS_PERSISTENT: Final = np.isin(list(RowKernel), launch.PERSISTENT)
_READS_FIRST: Final = np.isin(list(RowKernel), (*launch.BATCH_NORMS, RowKernel.SORT_ROWS))
_IS_COLUMN_WISE: Final = np.isin(list(RowKernel), launch.COLUMN_WISE)
_IS_TILED: Final = np.isin(list(RowKernel), (RowKernel.COLUMN_MOMENTS, RowKernel.COLUMN_SUMS))
_LOADING: Final = np.ones(len(RowKernel))
_LOADING[RowKernel.SCAN], _LOADING[RowKernel.PICK] = launch.SCAN_LOAD, 0.67
_LOADING[[RowKernel.TABLE_GRADIENT, RowKernel.SORT_ROWS, *launch.TOP_KERNELS]] = 0.0
"""Part of a step that is a load, sooner done where operands were just used. Half of a scan's is its tree, a third of a
pick's its target, which a warp reads together. A table's gradient starts with kernels that sort its keys: what it walks
over then is as after a fill. A step of topk is 16 or more counts of digits, of which the first alone loads from afar.
"""
_ADDS_PARTS: Final = _IS_SHARED | _IS_PERSISTENT
COLUMN_MERGES: Final = 0.35
"""Of a thread's merging in a tree over a warp, then over the block's warps (ten levels): three for its four loads in
turn, and its part of a tree over at most 16 rows, of which half the threads take part in each level."""
STRIDED_SCAN_LOG_WIDTH: Final = 1.0
"""Of scans along another dim than the last, which nothing measured: a load from L2 takes a third of one from memory."""
_LAST_STEPS: Final = ("partial_step_cycles", "tile_step_cycles", "turn_cycles", "sorted_cycles")
_NAMES: Final = tuple(kernel.name.lower() for kernel in RowKernel)


def gpu_class(fleet: Fleet) -> Codes:
    """Return the vendor; Hopper and what followed it in data centres, where today's kernels were measured, apart.

    What else differs are parameters of the shared physics.
    """
    of_nvidia = np.where(is_async(fleet), HOPPER, NVIDIA)
    return np.where(is_nvidia(fleet), of_nvidia, OTHER_VENDOR).astype(np.int64)


def simulate(problems: ReductionProblems, fleet: Fleet, values: Values, choice: Codes | None = None) -> Estimate:
    """Return kernel times (event times where the problems carry a host's floor); there are no candidates.

    Pairs of problem and GPU are computed in milliseconds and float32, whose range holds their cubes.
    """
    del choice
    time_ns = time_by_class(_class_time, problems, fleet, values, gpu_class(fleet))
    strided = is_strided_scan(problems)
    unstated = np.where(strided, STRIDED_SCAN_LOG_WIDTH, np.zeros(time_ns.shape)) if strided.any() else None
    return Estimate(time_ns=time_ns, features=np.empty((*time_ns.shape, 0)), unstated=unstated)


def _class_time(problems: ReductionProblems, fleet: Fleet, values: Values) -> Floats:
    """Return times on GPUs of one class."""
    # A row kernel walks over its rows in steps, each of which waits for the one before: on few or long rows that chain
    # decides, not bandwidth. Bytes that L2 still holds come from there (`cold` is the share that does not); what a
    # second walk reads again misses only as far as the first has pushed it out (`late`). DRAM, L2, issue slots and the
    # chain are joined by a cube norm; a stream over the whole tensor, where the op has one, follows by itself.
    shared = {name: float(value.flat[0]) for name, value in values.items()}
    kernel, walk = problems.kernel, launch.walk_of(problems, fleet)
    vendor = np.where(is_nvidia(fleet), 1.0, values["amd_dram_ratio"])
    dram, cached = (
        single(1e3 / (gpu_physics.dram_bytes_per_s(fleet, values) * vendor)),
        single(1e3 / gpu_physics.l2_bytes_per_s(fleet, values)),
    )
    kept, cycle_ms = single(1.0 / (USEFUL_L2 * fleet.l2_cache_bytes)), single(1e3 / fleet.clock_hz)
    walked, streamed = single(problems.walked_bytes), single(problems.streamed_bytes)
    own, sms = walked * kept, single(np.asarray(fleet.sm_count))
    # Of a call that is repeated, what it streams lies between, but for softmax's products, which come right before.
    is_again = (problems.moved_since_bytes == 0.0) & (kernel != RowKernel.SOFTMAX_GRADIENT)
    cold = _cold(own + single(np.where(is_again, problems.streamed_bytes, problems.moved_since_bytes)) * kept)
    latency = single(_by_name("latency_cycles", shared)[kernel] * alike(problems))
    step = _by_name("step_cycles", shared)[kernel]
    is_sorted, is_apart = kernel == RowKernel.TABLE_GRADIENT, kernel == RowKernel.ROW_BACKWARD
    hot = single(1.0 - _LOADING[kernel] * (1.0 - min(shared["hot_step_ratio"], 1.0)))
    kinds = [_ADDS_PARTS[kernel], _IS_TILED[kernel], is_sorted, _IS_TOP[kernel]]
    last = np.select(kinds, [shared[name] for name in _LAST_STEPS], step)
    loading = np.where(_is_filled(problems), 0.0, np.maximum(problems.launches - 1.0, 0.0))
    # The chain of a row norm's parameter gradients is that of a kernel of its own, which streams what it adds up.
    sums, again = _parameter_sums(problems), walked * single(_REREAD[kernel] * (1.0 - walk.held))
    apart_cycles = single(shared["parameter_step_cycles"] * (2.0 + sums) * walk.last_steps * (sums > 0.0))
    parts = launch.PARTS_STEPS * sums * (problems.rows > launch.LONGEST_GRADIENT)
    adding = np.where(is_apart, shared["reduce_columns_step_cycles"] * parts, last * walk.last_steps)
    ending = single(adding + shared["next_load_cycles"] * loading)
    blocks, (waves, at_once) = single(walk.blocks), _waves(kernel, fleet, walk, shared["rounding"])
    # Blocks over tiles of columns are alike, and merge means and variances together, while nobody loads.
    between = latency * ~(is_sorted | np.isin(kernel, (RowKernel.TOP_PARTS, RowKernel.COLUMN_MOMENTS)))
    late = _late(problems, own, waves, shared["reread_ratio"])
    # Of two walks the second waits for what the first has left in L2.
    lost = np.where(_READS_FIRST[kernel] & (walk.held == 0.0), (cold + _cold(late)) / 2.0, cold)
    chain_ms = (waves * single(step * walk.steps) * (hot + (1.0 - hot) * lost) + (waves - 1.0) * between) * cycle_ms
    held = np.minimum(single(np.minimum(problems.moved_since_bytes, fleet.l2_cache_bytes)), walked * cold)
    dram_ms = (walked * cold + held * single(DIRTY_L2 * _ONLY_READS[kernel]) + again * _cold(late)) * dram
    block_ms = np.float32(shared["block_cycles"]) * (cycle_ms / sms)
    lanes = cycle_ms / (sms * single(gpu_physics.issue_width(fleet, shared["fp32_share"])))
    issue_ms = single(_instructions(problems, walk, shared)) * lanes * _busiest(problems, walk, sms, at_once)
    # A block that holds its channel first reads, then computes, all alike; so does an SM's first that walks twice.
    first_ms = walked * single(_REREAD[kernel]) * cold * dram
    first_ms /= np.where(_READS_FIRST[kernel], np.maximum(waves, blocks / sms), waves)
    apart_ms = np.where(_READS_FIRST[kernel] & (walk.held == 1.0), dram_ms, first_ms)
    # Starting a gather's blocks, which do nothing but load, hides all else: joined by sixth powers.
    sharp = np.where(kernel == RowKernel.GATHER_ROWS, np.float32(2.0), np.float32(1.0))
    own_ms = _joined(dram_ms - apart_ms, (walked + again) * cached, issue_ms, chain_ms)
    own_ms = single(_joined(own_ms**sharp, (blocks * block_ms) ** sharp) ** (1.0 / sharp))
    busy_ms = (latency * waves ** (kernel == RowKernel.COLUMN_MOMENTS) + ending) * cycle_ms + apart_ms + own_ms
    is_refetched = _IS_COLUMN_WISE[kernel] & np.isfinite(problems.moved_since_bytes) & (problems.moved_since_bytes > 0)
    busy_ms = np.where(kernel == RowKernel.STREAM, 0.0, busy_ms) + single(np.where(is_refetched, 1e-3 * CODE_US, 0.0))
    is_lost = _cold(np.where(is_apart, np.float32(0.0), streamed * kept) + own)
    steps = launch.streamed_steps(problems, single(fleet.threads_per_sm) * sms) * (hot + (1.0 - hot) * is_lost)
    gradient = apart_cycles * (1.0 - PARAMETER_LOAD * (1.0 - hot) * (1.0 - is_lost))
    apart_ms = single((gradient + shared["column_elements_step_cycles"] * steps) * cycle_ms)
    written = np.where(_is_filled(problems), dram / single(gpu_physics.fill_ratio(fleet)), dram)
    issue_ms = single(_streamed_instructions(problems, shared, sms)) * lanes
    blocks_ms = single(launch.streamed_blocks(problems)[0]) * block_ms
    busy_ms = busy_ms + _joined(streamed * is_lost * written, streamed * cached, issue_ms, apart_ms, blocks_ms)
    launch_ns = (problems.launches + walk.fills) * (1e9 * gpu_physics.launch_s(fleet, values))
    return _event(problems, 1e6 * busy_ms.astype(np.float64) + launch_ns, shared)


def _waves(kernel: Codes, fleet: Fleet, walk: launch.RowWalk, rounding: float) -> tuple[Singles, Singles]:
    """Return how many blocks an SM runs in turn, rounded up by that part, at least one; and a wave's blocks."""
    room = np.minimum(fleet.threads_per_sm, fleet.registers_per_sm / np.maximum(walk.registers, 1.0))
    resident = np.clip(np.floor(single(room) / single(walk.threads)), 1.0, gpu_physics.MAX_BLOCKS_PER_SM)
    at_once = np.asarray(resident * single(np.asarray(fleet.sm_count)))
    waves = single(walk.blocks) / at_once
    # Blocks that share a result are alike, and their last one waits for the last round.
    part = np.where(_IS_SHARED[kernel], np.float32(1.0), np.float32(min(rounding, 1.0)))
    return np.maximum(waves + part * (np.ceil(waves) - waves), 1.0), at_once


def _busiest(problems: ReductionProblems, walk: launch.RowWalk, sms: Singles, at_once: Singles) -> Singles:
    """Return how much more than the average the SM with most instructions has, where blocks are long and few.

    A block that sorts a row has an SM of its own while there are some. A topk's blocks are alike: those of a wave end
    together, and the next ones go where there is room first, not where they are fewest.
    """
    alone, blocks = np.maximum(sms / np.maximum(single(problems.rows), 1.0), 1.0), np.maximum(single(walk.blocks), 1.0)
    most = np.where(blocks > at_once, np.ceil(blocks / at_once) * at_once, np.ceil(blocks / sms) * sms)
    kinds = [problems.kernel == RowKernel.SORT_ROWS, problems.kernel == RowKernel.TOP_PARTS]
    return np.asarray(np.select(kinds, [alone, most / blocks], np.float32(1.0)), dtype=np.float32)


def _instructions(problems: ReductionProblems, walk: launch.RowWalk, shared: Mapping[str, float]) -> Floats:
    """Return thread instructions: per element, per neighbour in a window, and of blocks that merge what they found."""
    taps, merge = (np.array([shared.get(name, 0.0) for name in names]) for names in (_TAPS, _MERGES))
    merge = np.where(_IS_TILED, COLUMN_MERGES * merge, merge)
    each = _by_name("instructions", shared)[problems.kernel] * problems.elements * walk.walks
    each += _by_name("unit_instructions", shared)[problems.kernel] * walk.units
    return each + taps[problems.kernel] * problems.flops + merge[problems.kernel] * walk.blocks * walk.threads


def _late(problems: ReductionProblems, own: Singles, waves: Singles, ratio: float) -> Singles:
    """Return what is read before a row is again, over L2's useful size: what all blocks at work read twice, or all
    channels of a persistent kernel's tile."""
    tile = own * single(launch.TILE_CHANNELS / np.maximum(problems.rows, launch.TILE_CHANNELS))
    late = own * single(_REREAD[problems.kernel] * ratio) / waves
    return np.minimum(np.where(_IS_PERSISTENT[problems.kernel], tile, late), own)


def _parameter_sums(problems: ReductionProblems) -> Floats:
    """Return how many sums over rows a row norm's parameter gradients are: layer norm's 2, RMS norm's 1; else 0.

    A step of them is a load, as long as two sums, and a sum per parameter; of many rows parts are added up at last.
    """
    sums = np.clip(problems.flops / np.maximum(problems.elements, 1.0) - INPUT_FLOPS, 1.0, 2.0)
    return np.where((problems.kernel == RowKernel.ROW_BACKWARD) & (problems.launches > 1.0), sums, 0.0)


def _is_filled(problems: ReductionProblems) -> Mask:
    """Say of which ops the one other kernel writes zeros, and loads nothing."""
    kernels = (RowKernel.PICK, RowKernel.TABLE_FEW, RowKernel.SCATTER, RowKernel.INDEX_ADD)
    return np.isin(problems.kernel, kernels) & (problems.streamed_bytes < problems.least_bytes)


def _streamed_instructions(problems: ReductionProblems, shared: Mapping[str, float], sms: Singles) -> Floats:
    """Return thread instructions of what is streamed, or of sorting what a topk found; 0 where bytes alone bind it.

    Of a row norm's parameter gradients those of the SM with most blocks, as if all had as many.
    """
    code = np.maximum(problems.streaming, 0)
    each = _by_name("instructions", shared)[code] * problems.elements
    by_thread = _by_name("unit_instructions", shared)[code] * launch.streamed_blocks(problems)[1]
    start = shared["sort_rows_unit_instructions"] * (problems.run >= DIGIT_BYTES) / LEAST_DIGITS
    sorting = problems.rows * problems.run * (shared["sort_rows_instructions"] + start)
    sums, parts = _parameter_sums(problems), np.where(problems.rows > launch.LONGEST_GRADIENT, launch.WARP, 1.0)
    blocks = np.maximum(np.ceil(problems.columns / launch.WARP), 1.0) * parts
    summing = shared["parameter_instructions"] * (2.0 + sums) * problems.elements * np.ceil(blocks / sms) * sms / blocks
    kinds = [problems.streaming >= 0, _IS_TOP[problems.kernel] & (problems.run > 1.0), sums > 0.0]
    return np.select(kinds, [each + by_thread, sorting, summing], 0.0)


def _event(problems: ReductionProblems, time_ns: Floats, shared: Mapping[str, float]) -> Floats:
    """Return event times: a part of the floor comes before the kernel, the rest hides behind it."""
    floor = problems.host_floor_ns
    if not np.any(floor > 0):
        return time_ns
    before = min(shared["host_overlap"], 1.0) * floor
    return np.where(floor > 0, before + gpu_physics.event_time_ns(time_ns, floor - before, 0.0), time_ns)


def _cold(pressure: Singles) -> Singles:
    """Return the share of bytes that L2 does not hold: x^4 / (1 + x^4) of what was moved over its useful size."""
    bounded = np.minimum(pressure, np.float32(MOST_PRESSURE))
    squared = bounded * bounded
    return np.asarray(1.0 - 1.0 / (1.0 + squared * squared), dtype=np.float32)


def _joined(*times: Singles) -> Singles:
    """Return the cube root of the sum of cubes: the longest, and some of the others.

    Of squares, cubes and fourth powers, chosen by the errors on chips left out: squares fit V100's batch norms best
    (9 %, with fourth powers 10 %), fourth powers the long rows of H100 and L40S (10 and 2 %, with squares 20 and 15 %).
    """
    cubes = (time * time * time for time in times)
    return np.asarray(np.cbrt(sum(cubes, start=next(cubes))), dtype=np.float32)


def _by_name(part: str, shared: Mapping[str, float]) -> Floats:
    return np.array([shared.get(f"{name}_{part}", 0.0) for name in _NAMES], dtype=np.float64)


MODEL: Final = Model(
    name="reduction",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    is_by_class=True,
    simulate=simulate,
    group_names=GROUP_NAMES,
    group=group,
    kind=kernel_kind,
)
