"""Gated delta nets, Mamba-2, Mamba and causal convolutions: chunks one after another, or a state that is rewritten.

Chunks (Gated Delta Networks, arXiv 2412.06464, section 3.3; Mamba-2, arXiv 2405.21060, section 6) of 64 tokens:
    fused  t = floor + ((rounds * chunks * chain)^2 + Td^2)^(1/2)       a block per head walks over its chunks
    Triton t = floor + (Tc^2 + Td^2 + (chunks * step)^2)^(1/2)          several kernels, results of each through DRAM;
           Tc = heads * chunks * chunk cycles / (SM * clock)            only the one that passes states on is a chain
Token by token:  t = floor + max-like(states / rate, 2 * states' bytes / DRAM rate where L2 does not hold them).
Causal convolutions: Triton's by elements, Tri Dao's by blocks of one channel of one sequence; both no faster than DRAM.

Mamba-2's chunks and Mamba's scan were not measured: theirs are the delta net's forms with less arithmetic.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....specs.fleet import Fleet
from ....specs.generations import has_tensor_memory, is_async
from ...work.work import StateRule
from ..frame import gpu_physics
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from ..frame.problems import peak_flops_per_s
from .problems import FLOPS, StateSpaceProblems, states, token_bytes

CHUNK: Final = 64.0
CHUNK_SURPLUS: Final = 1.5
"""Products of a chunk over what the same tokens take one by one, about: those between its own tokens."""
SCAN_BLOCK: Final = 1024.0
"""Elements of a sequence that a block of Tri Dao's convolution takes at once: 128 threads of 16 bytes."""

PARAMETERS: Final = (
    *priors("state space"),
    *gpu_physics.DRAM_PARAMETERS,
    *gpu_physics.L2_PARAMETERS,
)
"""`scalar_chunk_ratio`: Mamba-2 multiplies 2 C N + 2 C P + 4 N P per token and head where a delta net does more than
twice that. `scan_states_per_clock`: an exponential per state, of which a multiprocessor makes 16 per clock, beside
loads; neither was measured. The priors of chunks, chains, blocks and passes are rounded from the tables with all five
GPUs in sight."""
CLASS_NAMES: Final = ("registers", "tensor memory")
"""Where the matrix units' results are: FlashInfer's delta rule is another kernel for each, and starts in 15 thousand
cycles on H100, in 32 on B200."""
FEATURES: Final = (
    *("log time", "compute share", "DRAM share", "floor share", "miss"),
    *("log streams per SM", "log steps", "is fused", "is update", "is convolution"),
)
GROUPS: Final = ("delta rule", "delta rule, update", "convolution", "convolution, update", "scalar decay and scan")


def simulate(problems: StateSpaceProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:  # noqa: ARG001
    """Return kernel times; there are no candidates to choose from."""
    p, v = problems, values
    clock = fleet.clock_hz / 1e9
    is_update, is_convolution = p.is_update == 1, p.rule == StateRule.CAUSAL_CONVOLUTION
    is_fused = runs_fused(p, fleet)
    kernel_bytes = _moved_bytes(p, v, is_fused)
    miss = gpu_physics.miss_ratio(_live_bytes(p, v, kernel_bytes, is_fused) * p.copies, fleet, v)
    dram = gpu_physics.dram_bytes_per_s(fleet, v)
    slow_l2 = np.where(fleet.has_hbm, 0.0, 1.0 / (v["l2_share"] * gpu_physics.l2_bytes_per_s(fleet, v)))
    memory = 1e9 * kernel_bytes * np.maximum(miss / dram, slow_l2)
    cycles = np.where(
        is_convolution,
        np.where(is_update, _shift_cycles(p, fleet, v), _convolution_cycles(p, fleet, v, is_fused)),
        np.where(is_update, _update_cycles(p, fleet, v), _chunk_cycles(p, fleet, v, is_fused)),
    )
    compute = cycles / clock
    sharpness = v["sharpness"]
    busy = (compute**sharpness + memory**sharpness) ** (1.0 / sharpness)
    floor = _floor_ns(p, fleet, v, is_fused)
    time = floor + busy
    columns = (
        np.log(time) - 10.0,
        compute / time,
        memory / time,
        floor / time,
        miss,
        np.log(p.batch * p.heads / fleet.sm_count),
        np.log(p.steps),
        is_fused,
        is_update,
        is_convolution,
    )
    return Estimate(time_ns=time, features=np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64))


def runs_fused(p: StateSpaceProblems, fleet: Fleet) -> Mask:
    """Say where one kernel runs: FlashInfer's delta rule is for asynchronous matrix units, the convolution for all."""
    is_delta = p.rule == StateRule.GATED_DELTA
    return np.asarray((p.is_fused > 0) & (is_async(fleet) | ~is_delta))


def _floor_ns(p: StateSpaceProblems, fleet: Fleet, v: Values, is_fused: Mask) -> Floats:
    clock = fleet.clock_hz / 1e9
    launch = gpu_physics.launch_s(fleet, v) * 1e9
    chunks = 1e3 * (v["chunk_floor_us"] + v["chunk_floor_kcycles"] / clock)
    chunks = fleet.launch_ratio * (chunks + 1e3 * v["chunk_wait_us"] * np.minimum(p.steps / CHUNK, 1.0))
    chunks = np.where(is_fused, launch, chunks)
    is_update, is_convolution = p.is_update == 1, p.rule == StateRule.CAUSAL_CONVOLUTION
    waits = np.where(is_fused, v["fused_wait_us"], np.where(is_update, 0.0, v["convolution_wait_us"] * (p.steps > 1)))
    single = np.where(
        is_convolution,
        launch * np.where(is_fused, 1.0, v["triton_launch_ratio"]) + 1e3 * waits,
        launch + 1e3 * v["update_floor_us"],
    )
    return np.where(is_update | is_convolution, single, chunks)


def _moved_bytes(p: StateSpaceProblems, v: Values, is_fused: Mask) -> Floats:
    """Return what DRAM moves where L2 holds nothing."""
    is_convolution, is_update = p.rule == StateRule.CAUSAL_CONVOLUTION, p.is_update == 1
    state = np.where(is_convolution, p.element_bytes, p.state_bytes)
    kept = np.where(is_update, 2.0, np.where(is_convolution, 0.0, 1.0)) * states(p) * state
    between = p.batch * p.steps * p.heads * p.head_dim * p.element_bytes * v["chunk_passes"]
    between = between * np.where(p.rule == StateRule.GATED_DELTA, 1.0, v["scalar_chunk_ratio"])
    is_apart = ~is_update & ~is_convolution & ~is_fused & (p.rule != StateRule.SELECTIVE_SCAN)
    return token_bytes(p) + kept + np.where(is_apart, between, 0.0)


def _live_bytes(p: StateSpaceProblems, v: Values, moved: Floats, is_fused: Mask) -> Floats:
    """Return what L2 must hold for nothing to be read from DRAM.

    A state that is rewritten is one; what one of several kernels leaves is read by the next, and then no more.
    """
    is_apart = (p.is_update == 0) & (p.rule != StateRule.CAUSAL_CONVOLUTION) & ~is_fused
    return np.where(p.is_update == 1, (moved + token_bytes(p)) / 2.0, moved * np.where(is_apart, v["live_share"], 1.0))


def _chunk_cycles(p: StateSpaceProblems, fleet: Fleet, v: Values, is_fused: Mask) -> Floats:
    # Chunks are either walked by one block per head, whose steps form a chain (fused kernels), or computed side by side
    # with a short scan over their states in between. Of the latter the parallel part and the chain overlap, hence the
    # norm; selective scans have no chunks and go state by state.
    streams, chunks = p.batch * p.heads, np.ceil(p.steps / CHUNK)
    rounds = streams / fleet.sm_count
    half = 0.5 * (np.ceil(rounds) + np.maximum(rounds, 1.0))  # between equal blocks and perfectly shared ones
    per_cycle = np.maximum(peak_flops_per_s(p.rate, fleet), 1.0) / (fleet.sm_count * fleet.clock_hz)
    products = FLOPS[p.rule] * p.head_dim * p.state_dim * CHUNK * CHUNK_SURPLUS / per_cycle
    fused = half * (1e3 * v["start_kcycles"] + chunks * np.maximum(1e3 * v["chain_kcycles"], products))
    filled = np.where(chunks > 1, 1.0, p.steps / CHUNK)
    share = v["short_chunk_share"] + (1.0 - v["short_chunk_share"]) * filled
    size = (
        np.where(p.rule == StateRule.SCALAR_DECAY, v["scalar_chunk_ratio"], 1.0) * p.head_dim * p.state_dim / 128.0**2
    )
    parallel = rounds * chunks * np.maximum(1e3 * v["chunk_kcycles"] * size, products) * share
    chain = (chunks - 1.0) * 1e3 * v["step_kcycles"]
    scan = p.steps * rounds * p.head_dim * p.state_dim / v["scan_states_per_clock"]
    apart = np.where(p.rule == StateRule.SELECTIVE_SCAN, scan, np.sqrt(parallel**2 + chain**2))
    return np.where(is_fused & (p.rule == StateRule.GATED_DELTA), fused, apart)


def _update_cycles(p: StateSpaceProblems, fleet: Fleet, v: Values) -> Floats:
    return states(p) * p.steps / (v["update_states_per_clock"] * fleet.sm_count)


def _shift_cycles(p: StateSpaceProblems, fleet: Fleet, v: Values) -> Floats:
    return p.batch * p.steps * p.heads * p.head_dim / (v["shift_elements_per_clock"] * fleet.sm_count)


def _convolution_cycles(p: StateSpaceProblems, fleet: Fleet, v: Values, is_fused: Mask) -> Floats:
    channels = p.heads * p.head_dim
    triton = p.batch * p.steps * channels / (v["convolution_elements_per_clock"] * fleet.sm_count)
    ragged = np.where(p.steps % 8 == 0, 1.0, v["ragged_ratio"])
    blocks = p.batch * channels / fleet.sm_count * v["block_cycles"] * ragged * np.ceil(p.steps / SCAN_BLOCK)
    return np.where(is_fused, blocks * np.where(p.is_fused > 1, v["old_block_ratio"], 1.0), triton)


def gpu_class(fleet: Fleet) -> Codes:
    """Return the index into `CLASS_NAMES` of each GPU."""
    return has_tensor_memory(fleet).astype(np.int64)


def group_of_kind(problems: StateSpaceProblems) -> Codes:
    """Return the index into `GROUPS` of each problem."""
    delta, convolution = problems.is_update, 2 + problems.is_update
    measured = np.where(problems.rule == StateRule.CAUSAL_CONVOLUTION, convolution, delta)
    return np.where(problems.rule > StateRule.GATED_DELTA, 4, measured).astype(np.int64)


MODEL: Final = Model(
    name="state_space",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    simulate=simulate,
    feature_names=FEATURES,
    group_names=GROUPS,
    group=group_of_kind,
)
