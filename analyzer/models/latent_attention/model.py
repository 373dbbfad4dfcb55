"""Multi-head latent attention: prefill with keys and values per head, decode on the latent itself.

A block takes `tile` rows of queries (absorbed: of all heads of a sequence, which read the same latent) through the keys
that they see, or one of s parts of them:
    C  = fix + keys / s * (ratio * 2 * tile * (d + e) / FLOP per cycle + key cycles)
    Tc = max(1, blocks * s / SM) * C / clock                  with a part of the last round's waste
    Tm = max(miss * bytes / DRAM rate, blocks' bytes / L2 rate)
    t  = floor + (Tc^p + Tm^p)^(1/p) + passes over queries, results (and new keys) by the kernels beside it
FLOPs: DeepSeek-V2 (arXiv 2405.04434), section 2.1: d = 576, e = 512 absorbed, else 192 and 128.

Kernels (`LatentKernel`), as their times show. Where matrix units are asynchronous, hand-written ones reach DRAM's and
the units' rates together; Hopper widens an FP8 cache to multiply it, Blackwell multiplies FP8. Triton's take sixteen
heads per block and wait for each key; so do TensorRT-LLM's before Hopper, which never part a sequence.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....specs.fleet import Fleet
from ....specs.generations import exponential_ratio, has_tensor_memory, is_async
from ...work.work import LatentKernel
from ..frame.gpu_physics import DRAM_PARAMETERS, L2_PARAMETERS, dram_bytes_per_s, l2_bytes_per_s, miss_ratio
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from ..frame.problems import peak_flops_per_s
from .problems import FP8_RATE, LatentAttentionProblems, cached_elements

TRITON_SPLITS: Final = 4.0
"""vLLM's `num_kv_splits` of latent attention."""
MIN_SPLIT_KEYS: Final = 64.0
ABSORBED_ROWS: Final = np.array([64.0, 16.0, 16.0, 64.0])
"""Rows of a tile by `LatentKernel`; the other form's are `HEAD_ROWS`."""
PARTIAL_SPLITS: Final = np.array([0.0, 4.0, 8.0, 0.0])
"""Parts whose results Triton's kernels write in FP32 and read again, whether there are keys for them or not."""
NARROW_ROWS, NARROW_HEADS = 16.0, 32.0
"""On Blackwell 32 heads read 0.4 of DRAM's bandwidth, 16 and 64 heads 0.7 (B200, B300, GB200): twice the keys,
as tiles follow one another."""
HALF_SPLITS: Final = 16.0
"""Parts of a sequence whose joining takes half of what that of many takes."""
UNSPLIT_BLOCKS: Final = 2.0
"""Blocks per tile of TensorRT-LLM's before Hopper, several at a time on a multiprocessor: A100's times step so."""
HEAD_ROWS: Final = 128.0
SYNC_HEAD_ROWS: Final = 64.0
PREFILL_ROWS: Final = np.array([64.0, 32.0, 32.0, 64.0])
"""Of an absorbed tile with several queries; in Triton 32: a block's own time on L40S is half of what it adds."""
EXPONENTIALS_PER_CYCLE: Final = 16.0
"""Per multiprocessor."""

PARAMETERS: Final = (*priors("latent attention"), *DRAM_PARAMETERS, *L2_PARAMETERS)
"""Chosen with all five GPUs of the tables in sight: the kernels' forms, and the priors of what a key costs a block
(`unsplit_…`, `triton_…`), of the passes beside it and of joining parts, rounded over A100, L40S, H100 and B200; but
`partial_passes` 1: what is written is read once. One query of keys per head is a prefill, as its times are, no decode.
`sequence_cycles`: a decode's sequence of 16-bit operands; with blocks' own 34 to 55 ns on H100, B200, B300, GB200.
`prefill_floor_us`: of one kernel more, which TensorRT-LLM's prefill starts on Blackwell: its shortest calls take 2.5 to
3.5 us longer than a decode's, flash attention's on H100 no longer."""
OTHER_SHARPNESS: Final = 3.0
CLASS_NAMES: Final = ("sync", "async", "tensor memory")
"""How matrix units are fed, and where their results are: other kernels, whose floors differ."""
FEATURES: Final = (
    *("log time", "compute share", "DRAM share", "floor share", "miss"),
    *("log blocks per SM", "log keys", "log rows", "cache bytes", "is absorbed"),
)
GROUPS: Final = ("prefill", "decode", "decode in Triton")


def simulate(problems: LatentAttentionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:  # noqa: ARG001
    """Return kernel times; there are no candidates to choose from."""
    # Arithmetic and memory overlap in part: their power mean lies between the longer of both and their sum. What stands
    # aside is not overlapped: passes over queries and outputs that libraries make before and after the kernel (casts,
    # transposes, padding), and the reduction of what splits over keys leave behind, which grows until there are many
    # splits. Splits also write and read partial results through DRAM, hence twice its time.
    p, v = problems, values
    kernel = kernel_on(p, fleet)
    clock = fleet.clock_hz / 1e9
    compute, blocks, loads, splits = _compute_cycles(p, fleet, v, kernel)
    cached = cached_elements(p) * p.cache_bytes
    around = p.batch * p.heads * p.queries * (p.query_dim + p.value_dim) * p.element_bytes
    miss = miss_ratio((cached + around) * p.copies, fleet, v)
    dram = 1e9 / dram_bytes_per_s(fleet, v)
    reads = np.where(_has_narrow_tiles(p, fleet, kernel), loads, 1.0)
    memory = np.maximum(miss * (cached * reads + around) * dram, cached * loads / l2_bytes_per_s(fleet, v) * 1e9)
    is_decode, is_fp8 = (p.queries == 1) & (p.is_absorbed == 1), p.cache_bytes == 1.0
    sharpness = np.where(is_decode & (kernel == LatentKernel.LIBRARY), v["sharpness"], OTHER_SHARPNESS)
    busy = ((compute / clock) ** sharpness + memory**sharpness) ** (1.0 / sharpness)
    touched = around + np.where(is_decode | (p.is_absorbed == 1), 0.0, cached_elements(p) * p.element_bytes)
    passes = np.where(is_decode, v["decode_passes"], v["prefill_passes"] + np.where(is_fp8, v["fp8_passes"], 0.0))
    passes = np.where((kernel == LatentKernel.LIBRARY) | ~is_decode, passes, 0.0)
    own_rate = 1.0 / (v["pass_bytes_per_clock"] * fleet.sm_count * clock)
    aside = touched * passes * np.maximum(dram * miss, own_rate)
    aside = aside + 1e3 * (v["combine_us"] + v["combine_kcycles"] / clock) * (
        1.0 - HALF_SPLITS / (splits + HALF_SPLITS - 1)
    )
    is_wide = is_decode & (kernel == LatentKernel.LIBRARY) & ~(is_fp8 & has_tensor_memory(fleet))
    aside = aside + is_wide * p.batch * v["sequence_cycles"] / clock
    partial = PARTIAL_SPLITS[kernel] * p.batch * p.heads * p.queries * p.value_dim * 4.0 * v["partial_passes"]
    aside = aside + np.where(is_decode, partial, 0.0) * 2.0 * dram
    beside_us = ~is_decode * (is_fp8 * v["fp8_floor_us"] + has_tensor_memory(fleet) * v["prefill_floor_us"])
    floor = fleet.launch_ratio * 1e3 * (v["floor_us"] + v["floor_kcycles"] / clock + beside_us)
    time = floor + busy + aside
    columns = (
        np.log(time) - 10.0,
        compute / clock / time,
        memory / time,
        floor / time,
        miss,
        np.log(blocks / fleet.sm_count),
        np.log(p.keys) - 6.0,
        np.log(p.heads * p.queries) - 4.0,
        p.cache_bytes,
        p.is_absorbed,
    )
    return Estimate(time_ns=time, features=np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64))


def kernel_on(p: LatentAttentionProblems, fleet: Fleet) -> Codes:
    """Return the `LatentKernel` that runs on each GPU: hand-written ones are for asynchronous matrix units."""
    is_missing = (p.kernel == LatentKernel.LIBRARY) & ~is_async(fleet)
    return np.where(is_missing, LatentKernel.TRITON, p.kernel).astype(np.int64)


def _compute_cycles(
    p: LatentAttentionProblems, fleet: Fleet, v: Values, kernel: Codes
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return cycles at full clock, blocks, how often they together load the keys, and the parts of a sequence."""
    is_absorbed, is_decode = p.is_absorbed == 1, (p.queries == 1) & (p.is_absorbed == 1)
    rows = np.where(is_absorbed, p.heads * p.queries, p.queries)
    head_rows = np.where(is_async(fleet), HEAD_ROWS, SYNC_HEAD_ROWS)
    decode_rows = np.where(_has_narrow_tiles(p, fleet, kernel), NARROW_ROWS, ABSORBED_ROWS[kernel])
    tile = np.where(is_absorbed, np.where(is_decode, decode_rows, PREFILL_ROWS[kernel]), head_rows)
    per_sequence = np.ceil(rows / tile)
    blocks = np.where(is_absorbed, p.batch, p.batch * p.heads) * per_sequence
    span = np.minimum(np.where(is_absorbed, tile / p.heads, tile), p.queries)
    stairs = p.keys - (p.queries - span) / 2.0
    seen = np.where((p.is_causal == 1) & ~is_decode, stairs, p.keys)
    key, fix = _key_cycles(p, fleet, v, kernel, tile)
    room = np.clip(fleet.sm_count / blocks, 1.0, np.maximum(p.keys / MIN_SPLIT_KEYS, 1.0))
    splits = np.where(kernel == LatentKernel.TRITON, TRITON_SPLITS, np.where(kernel == LatentKernel.UNSPLIT, 1.0, room))
    splits = np.where(is_decode, splits, 1.0)
    rounds = blocks * splits / fleet.sm_count
    is_exact = is_decode & (kernel != LatentKernel.LIBRARY)
    count = np.where(is_exact, np.ceil(rounds), np.maximum(rounds, 1.0))
    beside = v["unsplit_overlap"] * np.ceil(UNSPLIT_BLOCKS * rounds)
    count = np.where(is_decode & (kernel == LatentKernel.UNSPLIT), np.maximum(beside, 1.0), count)
    cycles = count * (fix + seen / splits * key)
    longest = np.where(is_decode, 0.0, fix + p.keys * (key + v["longest_key_cycles"]))
    return np.sqrt(cycles**2 + longest**2), blocks * splits, per_sequence * seen / p.keys, splits


def _has_narrow_tiles(p: LatentAttentionProblems, fleet: Fleet, kernel: Codes) -> Mask:
    """Say where libraries on Blackwell decode up to `NARROW_HEADS` heads, in tiles of `NARROW_ROWS`."""
    is_few = (p.queries == 1) & (p.is_absorbed == 1) & (p.heads <= NARROW_HEADS)
    return np.asarray(is_few & (kernel == LatentKernel.LIBRARY) & has_tensor_memory(fleet))


def _key_cycles(
    p: LatentAttentionProblems, fleet: Fleet, v: Values, kernel: Codes, tile: Floats
) -> tuple[Floats, Floats]:
    """Return the cycles of a key in a block, and of a block beside its keys."""
    is_absorbed, is_fp8 = p.is_absorbed == 1, p.cache_bytes == 1.0
    is_decode = is_absorbed & (p.queries == 1)
    rate = np.where(is_fp8 & has_tensor_memory(fleet) & is_decode, FP8_RATE, p.rate)
    per_cycle = np.maximum(peak_flops_per_s(rate, fleet), 1.0) / (fleet.sm_count * fleet.clock_hz)
    matrix = 2.0 * tile * (p.query_dim + p.value_dim) / per_cycle
    exponentials = tile / (EXPONENTIALS_PER_CYCLE * exponential_ratio(fleet))
    is_library, is_unsplit = kernel == LatentKernel.LIBRARY, kernel == LatentKernel.UNSPLIT
    decode = np.where(is_library, v["decode_ratio"], np.where(is_unsplit, v["unsplit_ratio"], v["triton_ratio"]))
    waits = np.where(
        is_library, v["decode_key_cycles"], np.where(is_unsplit, v["unsplit_key_cycles"], v["triton_key_cycles"])
    )
    by_heads = np.where(is_async(fleet), v["prefill_ratio"], v["sync_prefill_ratio"])
    by_heads = by_heads * np.where(is_fp8 & is_async(fleet), v["fp8_prefill_ratio"], 1.0)
    absorbed = np.where(is_library, v["absorbed_prefill_ratio"], v["triton_prefill_ratio"])
    prefill = np.where(is_absorbed, absorbed, by_heads)
    rows = np.where(is_absorbed, p.heads * p.queries, p.queries)
    least = matrix * np.minimum(rows / tile, 1.0)
    matrix = matrix * np.where(is_decode, decode, prefill)
    key = np.maximum(np.where(is_decode, matrix + waits, np.hypot(matrix, exponentials)), least)
    fix = np.where(is_async(fleet), v["prefill_fix_kcycles"], v["sync_prefill_fix_kcycles"])
    return key, 1e3 * np.where(is_decode, v["decode_fix_kcycles"], fix)


def gpu_class(fleet: Fleet) -> Codes:
    """Return the index into `CLASS_NAMES` of each GPU."""
    return is_async(fleet).astype(np.int64) + has_tensor_memory(fleet).astype(np.int64)


def group_of_kind(problems: LatentAttentionProblems) -> Codes:
    """Return the index into `GROUPS` of each problem."""
    decode = np.where(problems.kernel == LatentKernel.LIBRARY, 1, 2)
    return np.where((problems.queries == 1) & (problems.is_absorbed == 1), decode, 0).astype(np.int64)


MODEL: Final = Model(
    name="latent_attention",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    simulate=simulate,
    feature_names=FEATURES,
    group_names=GROUPS,
    group=group_of_kind,
)
