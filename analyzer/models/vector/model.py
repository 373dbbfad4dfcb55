"""Ops that move much and compute little: elementwise, normalisation, softmax, reduction, gather, quantise.

A kernel's time is a soft maximum of four resources, each used at its own pace, and a floor:

    t = (Td^4 + Tl^4 + Ti^4 + Tw^4)^(1/4) + launches * (t0 + c0/clk) + T1

Td: bytes that miss L2, because of what was moved since their last use or because a row's second reading comes late,
over the DRAM rate that kernels reach (in a network L2 takes what is written, as far as it holds it); Tl: all bytes, and
whole sectors of scattered reads, over the L2 rate; Ti: instructions over the SMs' issue rate; Tw: waves of blocks, each
as long as one block's chain of dependent loads and reductions, but for an elementwise kernel's first, T1. Kernels over
lists, and beside HBM those that take elements in turn, wait without asking for more: there the longer of Td and Tl
joins the rest by squares. That is Ti + Tw for lists, whose blocks compute between their loads; else Tw joined with Ti,
or with the start of blocks where that takes longer. What another kernel of the op moves before comes on top.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask, Singles, fourth, single
from ....records import replace
from ....specs.fleet import Fleet
from ....specs.generations import is_before_volta, is_blackwell, is_hopper, is_nvidia, is_since_volta, is_volta
from ....specs.gpu import MemoryKind
from ...work.access import SECTOR_BYTES
from ..frame import gpu_physics
from ..frame.classes import time_by_class
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from .launch import LEAST_WRITTEN, launch_of
from .problems import GROUP_NAMES, VectorKernel, VectorProblems, group, kernel_kind

HBM, PASCAL, GDDR, OTHER_VENDOR, HOPPER = range(5)
CLASS_NAMES: Final = ("HBM since Volta", "Pascal", "GDDR since Volta", "AMD", "Hopper")
_MOST_PRESSURE: Final = 1e2
"""Of what a cache is asked for over what it holds: its sixteenth power still is a single float, and nothing hits."""
_IS_PLAIN: Final = np.isin(list(VectorKernel), (VectorKernel.LIST, VectorKernel.ELEMENTWISE))
_IS_TOLD: Final = np.isin(list(VectorKernel), (VectorKernel.ROW_NORM, VectorKernel.SOFTMAX, VectorKernel.HELD_SOFTMAX))
"""Kernels that were measured with operands in L2 and out of it; the others' waits are as they were measured."""
_IS_QUANTIZE: Final = np.isin(list(VectorKernel), (VectorKernel.QUANTIZE, VectorKernel.QUANTIZE_DYNAMIC))


def gpu_class(fleet: Fleet) -> Codes:
    """Return what sets GPUs apart in arithmetic and caches; what memories differ in are parameters of their own."""
    with_hbm = np.where(is_hopper(fleet), HOPPER, HBM)
    classes = np.where(is_before_volta(fleet), PASCAL, np.where(fleet.has_hbm, with_hbm, GDDR))
    return np.where(is_nvidia(fleet), classes, OTHER_VENDOR).astype(np.int64)


PARAMETERS: Final = (
    *(replace(x, class_spread=0.01 * (x.name == "hbm_efficiency"), only=HOPPER) for x in gpu_physics.COPY_PARAMETERS),
    *priors("vector"),
    *priors("vector, apart", CLASS_NAMES),
    *priors("vector, kinds", CLASS_NAMES),
)
"""Chosen with a chip in sight, beside what functions say of theirs: AMD's floor of small kernels (the shortest in
traces of MI300X, 1.9 us); a layer norm's instructions per row and cycles per block (networks on RTX 3090); hosts'
floors where a table has no short rows (the mean of NeuSight's five NVIDIA hosts, and MI100's); the steps of a
softmax (A100).

Hopper's own spread of 0.8: kernels of torch 2.11 were measured there alone, and those of which older versions were
measured elsewhere are not the same; what serving software launches is the same everywhere. By kind: instructions per
element, cycles of a block before its steps, and of each step. Spreads of 0.1 and 0.2: one load and one store take
hundreds of cycles each, as `membench` has them (500-650 from DRAM); a layer norm's block merges seven times too, some
200 cycles each. `plain_hot_ratio`: L2's latency over DRAM's there, 0.37 to 0.49 on five GPUs. The floor, too, is
membench's: small kernels of a graph come every 1.34 us on A100 and 0.94 on L40, of which a load out of L2 is some 430
cycles. `index_instructions`: an integer multiply-add takes two slots (64 lanes), and each division a comparison and a
branch; the value was seen to suit H100. `profiler_us`: by H100's traces, as `measurements/vector.py` says, and of all
GPUs: it is the software's. `half_softmax_ratio`, `half_norm_ratio` and `flushed_us`: H100's rows in sight, no other
has any: after a flush of L2 kernels of any size start two loads from DRAM later, of a page table and of
code. A layer norm's step is two loads and Welford's update between. `dies_us`: kernels of a graph come every 2.1 us on
B200 and GB200 and 1.8 on B300, whose two dies start and end together, 1.4 on H100; quantising takes 0.3 us longer.
`quantize_floor_us`: one starts every 1.3 to 1.4 us on H100, L40S and RTX PRO 6000, at 1.75 to 2.6 GHz.
`blackwell_quantize_ratio`: in L2, 26 instructions an element on B200 and B300, under 18 on H100. Gathers wait for an
index, then for a row (T4 in sight). `softmax_step_cycles`: a load in each of three readings. `held_softmax`: H100's
instructions suit MI100's rows too (in sight), where a block takes twice the cycles (`amd_held_ratio`). Large
copies reach 0.92 of the datasheet on V100, 0.85 to 0.89 on A100, 0.87 to 0.91 on Hopper. `hot_latency_ratio` starts
under 1, its bound. `wide_l2_bytes_per_cycle_per_sm` (since A100, beside HBM): own rows of 2 to 34 MB, 20 to 22 in fits
that see them. `written_l2_ratio`, `switched_us`: half of the networks recorded on H100 and H200, where kernels of 8 to
80 MB hardly wait for what they write and small ones take 0.1 us more than in a loop; the square: sums and silu in
layers on A100, H100 and GA102. `early_hbm_ratio`, `volta_hbm_ratio`, `gddr7_ratio` (RTX PRO 6000, 0.83 of the
datasheet) and `amd_dram_ratio` are told by one chip each, in sight. `block_cycles`: as lookups'; strided kernels in
fp32, 256 elements a block, take 0.6 ns a block. `function_cycles`: 0.25 us for a division, twice that with an
exponential (own rows). `index_cycles`: four until the next, and other warps."""


def simulate(problems: VectorProblems, fleet: Fleet, values: Values, choice: Codes | None = None) -> Estimate:
    """Return kernel times (event times where the problems carry a host's floor); there are no candidates.

    Pairs of problem and GPU are computed in microseconds and float32, whose range holds their fourth powers.
    """
    del choice
    time_ns = time_by_class(_class_time, problems, fleet, values, gpu_class(fleet))
    return Estimate(time_ns=time_ns, features=np.empty((*time_ns.shape, 0)))


def _class_time(problems: VectorProblems, fleet: Fleet, values: Values) -> Floats:
    """Return times on GPUs of one class."""
    # The joined time of four limits: DRAM, L2, instructions issued, and waves of blocks with their latency. `cold` is
    # the share of bytes that L2 lost since they were last used; `miss` the share of what a kernel reads twice
    # (softmax's rows, say) that is gone when it comes back, from L2 and, before that, from the first-level caches of
    # the blocks that are resident together. Kernels that run before (a fill, a copy) add their own joined time.
    shared = {name: float(value.flat[0]) for name, value in values.items()}
    launch = launch_of(problems, fleet, shared)
    cycle_us, of_nvidia = 1e6 / fleet.clock_hz, bool(is_nvidia(fleet).all())
    moved = single(problems.read_bytes + problems.written_bytes)
    again, sectors = single(launch.rereads * problems.read_bytes), single(problems.sector_bytes)
    per_hot_byte, per_held = single(1.0 / _hot_bytes(fleet, shared)), single(1.0 / fleet.l2_cache_bytes)
    cold = _cold((moved + single(problems.moved_since_bytes)) * per_hot_byte)
    is_plain, is_elementwise = _IS_PLAIN[problems.kind], problems.kind == VectorKernel.ELEMENTWISE
    is_filled = problems.read_bytes * LEAST_WRITTEN <= problems.written_bytes
    is_between = _follows_another(problems) & of_nvidia
    held = np.minimum(moved * per_held / single(shared["written_l2_ratio"]), _MOST_PRESSURE)
    evicted = np.where(is_between & ~is_filled, 1.0 - 1.0 / (1.0 + held * held), cold)
    resident = np.clip(single(fleet.threads_per_sm) // single(launch.threads), 1.0, gpu_physics.MAX_BLOCKS_PER_SM)
    first = resident * single(launch.first_level_bytes) * single(1.0 / _first_level_bytes(fleet, shared))
    late = np.minimum(single(launch.row_steps) * single(_row_pressure(fleet, shared)), first)
    miss = _miss(np.minimum(late, (moved - single(problems.written_bytes / 2.0)) * per_hot_byte))
    dram, cached = single(1e6 / _dram_bytes_per_s(fleet, values)), single(1e6 / _l2_bytes_per_s(fleet, values))
    filled = single(np.maximum(dram / gpu_physics.fill_ratio(fleet), 1e6 / fleet.bandwidth_bytes_per_s))
    missed = (single(problems.read_bytes) + again * miss) * cold + single(problems.written_bytes) * evicted
    dram_us, l2_us = missed * np.where(is_filled, filled, dram), (moved + again + sectors) * cached
    issue_us = single(launch.instructions) + single(launch.flops) * single(_flop_instructions(fleet, values))
    issue_us = issue_us * single(cycle_us / fleet.sm_count / gpu_physics.issue_width(fleet, shared["fp32_share"]))
    waves = np.maximum(single(launch.blocks) / (resident * single(fleet.sm_count)), 1.0)
    hot = np.where(_IS_TOLD[problems.kind], min(shared["hot_latency_ratio"], 1.0), 1.0)
    hot = single(np.where(is_plain, min(shared["plain_hot_ratio"], 1.0), hot))
    # What is broadcast waits for DRAM in its stores alone, what is filled for nothing but the first load, if any.
    read = single(0.5 + 0.5 * np.minimum(problems.read_bytes / np.maximum(problems.written_bytes, 1.0), 1.0))
    chain = single(launch.chain_cycles) * of_nvidia
    wait = single(launch.latency_cycles) * (hot + (1.0 - hot) * cold * read) + chain
    later = np.where(is_filled & is_plain & of_nvidia, chain, wait)
    wave_us = (single(launch.start_cycles) + (waves - single(is_elementwise)) * later) * single(cycle_us)
    if (is_longer := (problems.kind == VectorKernel.QUANTIZE) & is_blackwell(fleet)).any():
        issue_us = issue_us * np.where(is_longer, single(shared["blackwell_quantize_ratio"]), single(1.0))
    busy_us, is_in_turn = _joined(dram_us, l2_us, issue_us, wave_us), problems.in_turn > 1
    # Blocks that wait leave the memory idle, but not GDDR, whose queue is longer than their waits: the longer of both
    # (seen in timm's networks on RTX 3090 and 4090).
    if is_in_turn.any() or (problems.kind == VectorKernel.LIST).any():
        limits = np.maximum(dram_us, l2_us), _worked_us(problems, launch.blocks, fleet, shared, issue_us, wave_us)
        waited_us = np.where(is_in_turn & ~fleet.has_hbm, np.maximum(*limits), np.hypot(*limits))
        busy_us = np.where(is_in_turn | (problems.kind == VectorKernel.LIST), waited_us, busy_us)
    busy_us = busy_us + np.where(problems.read_bytes < SECTOR_BYTES, later, wait) * is_elementwise * single(cycle_us)
    before = single(problems.before_bytes)
    if before.any():
        busy_us = busy_us + _joined(before * cold * dram, (before + single(problems.before_sector_bytes)) * cached)
    launch_us = (shared["floor_us"] if of_nvidia else shared["amd_floor_us"]) + values["floor_cycles"] * cycle_us
    floor_us = np.where(_IS_QUANTIZE[problems.kind], single(shared["quantize_floor_us"]), single(launch_us))
    dies_us = np.where(_IS_QUANTIZE[problems.kind], shared["quantize_dies_us"], shared["dies_us"])
    floor_us = single(fleet.launch_ratio) * floor_us + single(dies_us) * (is_blackwell(fleet) & fleet.has_hbm)
    floor_us = floor_us + single(problems.is_by_profiler) * single(shared["profiler_us"])
    floor_us = (single(launch.launches) + (before > 0)) * floor_us
    added_us = np.isinf(problems.moved_since_bytes) * single(shared["flushed_us"]) + single(problems.link_us)
    floor_us = floor_us + added_us + is_between * single(shared["switched_us"])
    return _event(problems, 1e3 * (single(problems.launches) * (busy_us + floor_us)).astype(np.float64), fleet, shared)


def _worked_us(
    problems: VectorProblems, blocks: Floats, fleet: Fleet, shared: Mapping[str, float], issue: Singles, wave: Singles
) -> Floats:
    """Return what kernels work beside the memory that waits for them: `issue` and `wave` are their limits, us.

    Lists take few, long blocks: the SM that has most of them ends last. Blocks of elements in turn are short enough to
    wait for their starts.
    """
    start_us = shared["block_cycles"] * (1e6 / fleet.clock_hz) / fleet.sm_count
    per_sm = np.maximum(single(blocks), 1.0) / single(fleet.sm_count)
    worked = issue * np.ceil(per_sm) / per_sm
    started = single(blocks * (problems.in_turn > 1)) * single(start_us)
    return np.where(problems.kind == VectorKernel.LIST, worked + wave, _joined(np.maximum(worked, started), wave))


def _follows_another(problems: VectorProblems) -> Mask:
    """Say which elementwise kernels run in a network, after others.

    There L2 keeps what is written until others need the room, but the code was another kernel's. In a loop of one call,
    or after a flush, the lines that make room are as dirty.
    """
    is_known = (problems.moved_since_bytes > 0) & np.isfinite(problems.moved_since_bytes)
    return np.asarray(is_known & (problems.kind == VectorKernel.ELEMENTWISE))


def _event(problems: VectorProblems, time_ns: Floats, fleet: Fleet, shared: Mapping[str, float]) -> Floats:
    """Return event times: what of the floor comes before the launch, then the kernel or the rest, whichever is longer.

    What an op's own floor has beyond the plain one comes before.
    """
    if not np.any(problems.host_floor_ns != 0):
        return time_ns
    unknown_us = np.where(is_nvidia(fleet), shared["host_floor_us"], shared["amd_host_floor_us"])
    floor = np.where(np.isnan(problems.host_floor_ns), 1e3 * unknown_us, problems.host_floor_ns)
    floor = floor * problems.host_ratio
    before = np.minimum(shared["host_overlap"] * problems.host_ratio, 1.0) * floor
    return np.where(floor > 0, before + gpu_physics.event_time_ns(time_ns, floor - before, 0.0), time_ns)


def _dram_bytes_per_s(fleet: Fleet, values: Values) -> Floats:
    """Return the rate of DRAM for streams that are read and written.

    P100's controller reaches 3/4 of the peak where V100's reaches more than 9/10 (NVIDIA, Tesla V100 GPU
    Architecture, 2017, STREAM figure), a little more than later HBM. AMD's with HBM reaches 0.76-0.85 (BabelStream on
    MI250X and MI300X).
    """
    vendor = np.where(is_nvidia(fleet), 1.0, values["amd_dram_ratio"])
    early = [old(fleet) & fleet.has_hbm for old in (is_before_volta, is_volta)]
    apart = [*early, fleet.memory_kind == MemoryKind.GDDR7]
    ratio = np.select(apart, [values[f"{name}_ratio"] for name in ("early_hbm", "volta_hbm", "gddr7")], vendor)
    return gpu_physics.dram_bytes_per_s(fleet, values) * ratio


def _hot_bytes(fleet: Fleet, shared: Mapping[str, float]) -> Floats:
    """Return the bytes that L2 holds from one use to the next: all of it where there is one; beside HBM it is halved.

    Since A100 each half keeps what the multiprocessors at its side read (NVIDIA A100 Tensor Core GPU Architecture,
    2020), so that a part lies in both.
    """
    return np.where(fleet.has_hbm, shared["halved_l2_ratio"], shared["whole_l2_ratio"]) * fleet.l2_cache_bytes


def _l2_bytes_per_s(fleet: Fleet, values: Values) -> Floats:
    """Return the rate of the second level: so much per SM, but where DRAM is fast, well over its rate."""
    is_wide = fleet.has_hbm & is_since_volta(fleet) & ~is_volta(fleet)
    width = np.where(is_wide, values["wide_l2_bytes_per_cycle_per_sm"], values["l2_bytes_per_cycle_per_sm"])
    by_sms = width * fleet.sm_count * fleet.clock_hz
    return fleet.l2_ratio * np.maximum(by_sms, values["l2_over_dram_ratio"] * fleet.bandwidth_bytes_per_s)


def _row_pressure(fleet: Fleet, shared: Mapping[str, float]) -> Floats:
    """Return how often DRAM fills the second level in the time of one dependent load.

    A row is read again after as many such loads as a thread takes of it; what passed through the cache meanwhile is
    their time x the DRAM's rate. NeuSight's layer norms and softmaxes lose half of their rows at 250 steps x GB/s / MiB
    on P4, T4, P100, A100 and MI100 alike (seen in choosing the form), whatever their multiprocessors hold.
    """
    return np.asarray(shared["row_step_us"] * 1e-6 * fleet.bandwidth_bytes_per_s / fleet.l2_cache_bytes)


def _first_level_bytes(fleet: Fleet, shared: Mapping[str, float]) -> Floats:
    """Return what an SM keeps of rows that its blocks read again: since Volta the first level is shared memory's."""
    return np.where(is_since_volta(fleet), shared["first_level_ratio"] * fleet.shared_memory_per_sm_bytes, 1.0)


def _miss(pressure: Singles) -> Singles:
    """Return the share of bytes that a cache does not hold: x^4 / (1 + x^4) of the bytes over its useful size."""
    return 1.0 - 1.0 / (1.0 + fourth(np.minimum(pressure, _MOST_PRESSURE)))


def _cold(pressure: Singles) -> Singles:
    """Return the share of bytes that L2 lost since their last use: x^16 / (1 + x^16) of all moved since over its size.

    A stream that comes round evicts itself: between 0.97 and 1.15 times its size L40S's cache turns from all to none.
    """
    return 1.0 - 1.0 / (1.0 + fourth(fourth(np.minimum(pressure, _MOST_PRESSURE))))


def _joined(*times: Singles) -> Singles:
    """Return the fourth root of the sum of fourth powers: the longest, and a little of the others."""
    fourths = map(fourth, times)
    return np.sqrt(np.sqrt(sum(fourths, start=next(fourths))))


def _flop_instructions(fleet: Fleet, values: Values) -> Floats:
    """Return instructions per counted one: AMD's library computes powers in pairs of floats.

    The prior of its ratio was chosen with MI100 in sight, the only card of its vendor that is measured.
    """
    return values["flop_instructions"] * np.where(is_nvidia(fleet), 1.0, values["amd_flop_ratio"])


MODEL: Final = Model(
    name="vector",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    is_by_class=True,
    simulate=simulate,
    group_names=GROUP_NAMES,
    group=group,
    kind=kernel_kind,
)
