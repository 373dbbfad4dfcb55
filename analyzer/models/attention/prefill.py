"""Attention of many queries: causal prefill, encoders, and training's forward.

A CTA takes a tile of query rows of one head (64 or 128, the faster that its kernel has) and walks over the keys seen:
    key  = (matrix^3 + loads^3 + exponentials^3)^(1/3) + overhead
           matrix = 4 * rows * dim / (FLOP per cycle * e), loads = 4 * rows * dim / (FLOP per cycle that they feed)
           exponentials = rows / exponentials per cycle
    work = seen keys * key + fix * (share of rows filled)             cycles of a CTA
    Tc   = sqrt((CTAs / SM * work)^2 + (longest CTA)^2) where causal: long CTAs go first and the tail overlaps; torch's
           go head by head: max(longest, CTAs / SM * work + longest / 2), in cuDNN's from Hopper on all of the longest,
           as calls of few tiles show; rounds * work where all are alike
    Tm   = miss * bytes / DRAM rate
    t    = floor + (Tc'^p + Tm^p)^(1/p) + extra passes
Tc' is Tc slowed to the power that the board sustains (`frame/gpu_physics.py`); the rate of the products depends on
whose kernel runs (`kernels.py`). Before Hopper's instructions operands go from shared memory through registers, at the
same rate on every multiprocessor: half-rate units (GeForce) hide these loads, those of A100 do not. Extra passes are
kernels of their own beside the attention, which write the cache (TensorRT-LLM also rotates queries and keys): they
stream tensors that are partly in L2. TensorRT-LLM starts one kernel more on Hopper, and on Blackwell but for encoders,
as the shortest calls of five chips show. Nor has an encoder on Blackwell of data centres a pass beside it: with one it
came out 20 to 30 % too long, and L40S's beyond its L2 a third too short, as both shared its bytes. Its 16-bit kernels
of wide heads on Blackwell of consumers compute whole tiles of 128 keys: RTX PRO 6000, in sight, takes 15 us for 1 to
128 tokens of dim 128, where L40S takes 10 to 14.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass, replace
from ....specs.attention_kernels import AttentionKernel
from ....specs.fleet import Fleet
from ....specs.generations import (
    exponential_ratio,
    has_tensor_memory,
    has_wide_head_blocks,
    is_async,
    is_blackwell,
    is_hopper,
    matrix_energy,
)
from ....specs.gpu import Rate
from ..frame import gpu_physics
from ..frame.gpu_physics import POWER_PARAMETERS, boosted_flops_per_s, matrix_joule_per_flop, miss_ratio, slow_down
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from . import kernels
from .kernels import KILO, NARROW_DIM, PARAMETERS as KERNEL_PARAMETERS, REFERENCE_DIM, TORCH_KERNELS, US
from .problems import (
    SIZES,
    ArithmeticFormat,
    AttentionProblems,
    dropout_cycles,
    operand_bytes,
    peak_flops_per_s,
    sizes_of,
)

TILE_ROWS: Final = np.array([64.0, 128.0])
ASYNC_KEY_BLOCK: Final = 128.0
SYNC_KEY_BLOCK: Final = 64.0
KEY_STEPS: Final = np.array([[256.0, 128.0, 64.0], [256.0, 256.0, 128.0], [32.0, 32.0, 16.0], [128.0, 32.0, 32.0]])
"""Of TensorRT-LLM's kernels for head dims up to 64, 128 and more: Hopper's of 16 bits, of FP8; older ones, the same
(`fmha_v2` in NVIDIA/TensorRT-LLM, 010669f8). Data-centre Blackwell's are others."""
FP8_DIM: Final = 128.0
"""FP8 kernels before Hopper are quick for this head dim only; others are slower than bf16's, as if they widened. With a
window, Hopper's FP8 kernels spill registers, but for this dim's with FP8 results: they are shipped compiled."""
DIM_STEP: Final = 16.0
"""TensorRT-LLM's Blackwell kernels take dims that are multiples of this; others fall to kernels for the
older matrix instructions, which run at about a quarter of the rate (measured) and pad to powers of two."""
SCORE_PASSES: Final = 6.0
SCORE_BYTES: Final = 4.0
"""Without a fused kernel the scores are written, scaled (read and written), normalised (read and written) and read;
PyTorch computes them in FP32 whatever the inputs are (since 2.5)."""

TOLD_HERE: Final = {"older_instructions_ratio": 0.15, "efficient_ratio": 0.2, "async_cudnn_ratio": 0.1}
"""Spreads of what torch's forward passes on Hopper tell of kernels, which no table of decoding does."""
CUDNN_DROPOUT_CYCLES: Final = 0.23
"""Of each score, read off the recordings that tell of the memory-efficient kernels'."""
WINDOW_CYCLES: Final = 4 / 128
"""Of each score in a window, by cuDNN, and TensorRT-LLM on Hopper: two comparisons, their conjunction, a choice; 128
lanes. TensorRT-LLM's other kernels take no longer with one."""
WIDENING_LAUNCHES: Final = 2.0 * kernels.COPY_LAUNCHES
"""Beside a kernel that widens FP8, as two copies: 3.5 us on L40S, 6.2 on RTX PRO 6000, at any head dim, in sight."""
LONE_SHARE: Final = 0.28
"""Of a CTA's time, what each one that is missing beside it costs: from trained shapes of few memory-efficient CTAs."""
CLEARING_US: Final = 1.0
"""A memset before cuDNN's kernels of Hopper: 0.7 to 1.2 us in own rows."""
SHARED_BYTES: Final = 128.0
"""Per clock and multiprocessor, of shared memory: what is transposed is read and written once."""
COARSE_DIM: Final = 64.0
"""Steps of head dims for which memory-efficient kernels, and cuDNN's of Hopper, come."""
PARAMETERS: Final = (
    *priors("attention prefill"),
    *(item for item in POWER_PARAMETERS if item.name != "picojoule_per_byte"),
    *priors("attention prefill, memory"),
    *(replace(item, spread=TOLD_HERE.get(item.name, item.spread)) for item in KERNEL_PARAMETERS),
)
"""`register_flash_efficiency`: FlashAttention-2 on an RTX 5090, whose matrix units have half the rate, makes 187 of
209.5 TFLOP/s at 400 W, cuDNN's 204 (gau-nernst, "Writing Speed-of-Light Flash Attention for 5090 in CUDA C++").
`fed_flops_per_cycle`: what it makes of full-rate units, where its operands' way from shared memory limits it: 225
TFLOP/s on A100 (Dao, arXiv 2307.08691), 370 on H100 (FlashAttention-3, arXiv 2407.08608, figure 5), are both 1,480 to
1,600 FLOP per clock and multiprocessor; the form was chosen with timm's networks on RTX 3090 in sight.
`fallback_ratio` and its exponent: FP8 kernels that widen before Hopper, over bf16's (L40S and RTX PRO 6000 agree
within 10 %, each speaks for the other); `windowed_fp8_ratio`: Hopper's that spill; `emulated_exponentials_ratio`:
cuDNN on Blackwell of data centres, whose kernels compute a part of the exponentials on the vector units (what
FlashAttention-4's authors describe for these GPUs), with GB200's rows in sight. `energy_ratio`: of a FLOP over a plain
product's; chosen with L40S, RTX PRO 6000 and A100 in sight. `torch_fix_kcycles`: what TensorRT-LLM's CTAs take to start
and end before Hopper; those that share a multiprocessor hide it. `overlapping_sharpness`: the gradients', where CTAs
load while others compute. Of memory-efficient kernels on Hopper, in sight: `efficient_fp32_ratio`, of three products
over a third of a 16-bit one's rate, and `efficient_narrow_ratio`, of head dims up to 64."""
FEATURES: Final = (
    *("log time", "compute share", "DRAM share", "extra share", "floor share", "log slow-down"),
    *("log CTAs per SM", "log keys", "log queries", "tile", "dim", "log group"),
    *("causal", "FP8", "cache bytes", "is flash", "log window"),
)
GROUPS: Final = ("TensorRT-LLM", "vLLM", "encoder", "PyTorch: FlashAttention-2", "PyTorch: cuDNN, memory-efficient")


@dataclass(frozen=True, slots=True)
class _Unit:
    """How fast a CTA computes, arrays over problems and GPUs."""

    flops_per_cycle: Floats
    """Of one SM, at the efficiency that kernels reach."""
    fed_flops_per_cycle: Floats
    """Of one SM, that loads of operands into registers feed."""
    peak_flops_per_s: Floats
    """Of the GPU, without it."""
    dim: Floats
    """Head dim as the kernel pads it."""
    exponentials_per_cycle: Floats
    key_block: Floats
    element_bytes: Floats
    """Of the operands as the products take them."""
    energy_ratio: Floats
    """Of a FLOP, over a plain product's: exponentials and what feeds them draw power too."""
    fix_ratio: Floats
    """Of a CTA's fixed cycles, over the usual kernel's."""
    widening_launches: Floats
    transposing_cycles: Floats
    """Of one SM, for a key's values: Hopper multiplies FP8 only with the summed dimension innermost."""
    score_cycles: Floats
    """Of one SM, for a score: what drops some, or compares with a window's ends."""
    is_whole: Floats
    """1: a tile takes as long with few queries and keys as with its full number."""
    held: Floats
    """CTAs that share a multiprocessor."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a problem is cut into CTAs, arrays with a last axis of tiles."""

    ctas: Floats
    keys: Floats
    """That a CTA sees on average."""
    longest: Floats
    """That the last one sees."""
    filled: Floats
    """Share of the tile's rows that hold queries."""


def simulate(problems: AttentionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Estimate kernel times; the candidates are the tiles."""
    p, v = kernels.as_run(problems, fleet), values
    unit = _unit(p, fleet, v)
    if choice is None:
        lifted = _Unit(*(kernels.lift(getattr(unit, name)) for name in _Unit.__slots__))
        cost = _compute_ns(p, fleet, v, lifted, TILE_ROWS)[0]
        choice = np.argmin(np.where(kernels.has_tiles(p, fleet, TILE_ROWS), cost, np.inf), axis=-1)
    rows = TILE_ROWS[choice]
    free_ns, shape = _compute_ns(p, fleet, v, unit, rows)
    compute, slow = _throttled(fleet, v, unit, free_ns, shape.ctas * shape.keys * 4.0 * rows * unit.dim)
    dram, extra = _memory_ns(p, fleet, v)
    beside_ns = np.where(kernels.is_short_cudnn(p, fleet), CLEARING_US * US * fleet.launch_ratio, 0.0)
    starts_more = kernels.is_trtllm(p) & (is_hopper(fleet) | (is_blackwell(fleet) & (p.is_causal == 1)))
    launch_ns = gpu_physics.launch_s(fleet, v) * 1e9
    # As in `floor_ns`: torch's kernels, which nobody timed there, have no such step.
    is_served = kernels.is_trtllm(p) | (p.kernel == AttentionKernel.PAGED)
    late_ns = is_served * has_wide_head_blocks(fleet) * gpu_physics.STEP_US / 2.0 * US
    floor = kernels.floor_ns(p, fleet, v) + late_ns + np.where(starts_more, launch_ns, beside_ns)
    floor = floor + unit.widening_launches * launch_ns + kernels.copy_ns(p, fleet, v, kernels.COPY_LAUNCHES)
    is_overlapping = np.isin(p.kernel, TORCH_KERNELS) & (p.kernel != AttentionKernel.FLASH2)
    sharpness = np.where(is_overlapping, v["overlapping_sharpness"], v["sharpness"])
    time = floor + (compute**sharpness + dram**sharpness) ** (1.0 / sharpness) + extra
    total = compute + dram + extra + floor
    shares = (compute / total, dram / total, extra / total, floor / time, np.log(slow))
    # What the correction sees; NaN, so none, of single queries and of kernels that few chips tell of.
    is_corrected = kernels.is_trtllm(problems) | (problems.kernel == AttentionKernel.PAGED) & (problems.is_causal == 1)
    return Estimate(
        time_ns=time,
        features=_features(p, fleet, shape, rows, time, shares),
        sizes=np.where((is_corrected & (problems.queries > 1))[..., None], sizes_of(problems), np.nan),
        choice=choice,
    )


def _unit(p: AttentionProblems, fleet: Fleet, v: Values) -> _Unit:
    # Answers differ by library and generation, all as ratios of one peak: which format is multiplied (an FP8 cache is
    # widened on older chips and under windows), the share reached, what feeds operands, what exponentials cost.
    trtllm = kernels.is_trtllm(p)
    fp8_cache = trtllm & (p.kv_bytes == 1) & is_async(fleet)
    fp8 = fp8_cache | (p.arithmetic == ArithmeticFormat.FP8)
    widened = trtllm & ~is_async(fleet) & fp8 & (p.query_dim != FP8_DIM)
    has_window = (p.window > 0) & (p.window < p.keys)
    windowed = fp8_cache & is_hopper(fleet) & has_window & ((operand_bytes(p) > 1) | (p.query_dim != FP8_DIM))
    peak = np.where(fp8_cache, fleet.flops_per_s[Rate.MATRIX_FP8], peak_flops_per_s(p, fleet))
    fallback = v["fallback_ratio"] * (p.query_dim / REFERENCE_DIM) ** v["fallback_dim_exponent"]
    fallback = np.where(windowed, v["windowed_fp8_ratio"], fallback)
    peak = np.where(widened | windowed, fleet.flops_per_s[Rate.MATRIX_BF16] / fallback, peak)
    legacy = trtllm & is_blackwell(fleet) & (p.query_dim % DIM_STEP > 0)
    peak = peak / np.where(legacy, v["legacy_ratio"], 1.0)
    element_bytes = np.where(fp8 & ~widened & ~windowed, 1.0, operand_bytes(p))
    efficiency = np.where(trtllm, v["matrix_efficiency"], kernels.flash_efficiency(p, fleet, v))
    fed = kernels.fed_flops_per_cycle(p, element_bytes, fleet, v)
    efficiency = efficiency * kernels.speed_ratio(p, p.kernel, fleet, v, np.isfinite(fed))
    efficiency = np.minimum(efficiency * np.where(fp8 & ~widened, v["fp8_efficiency_ratio"], 1.0), 1.0)
    efficient = (p.kernel == AttentionKernel.EFFICIENT) & is_async(fleet)
    fp32 = efficient & (p.arithmetic == ArithmeticFormat.FP32)
    efficiency = efficiency * np.where(fp32, v["efficient_fp32_ratio"], 1.0)
    efficiency = efficiency * np.where(efficient & (p.query_dim <= NARROW_DIM), v["efficient_narrow_ratio"], 1.0)
    is_torch, held = np.isin(p.kernel, TORCH_KERNELS), kernels.held_ctas(p, fleet)
    torch_fix = v["torch_fix_kcycles"] / v["fix_kcycles"]
    wide = trtllm & has_wide_head_blocks(fleet) & (p.query_dim > NARROW_DIM) & ~fp8 & (p.is_causal == 1)
    stated = trtllm & ~has_tensor_memory(fleet) & ~wide
    steps = KEY_STEPS[2 * ~is_hopper(fleet) + fp8, np.searchsorted((NARROW_DIM, FP8_DIM), p.query_dim)]
    compares = ((p.kernel == AttentionKernel.CUDNN) | (trtllm & is_hopper(fleet))) & has_window
    emulates = has_tensor_memory(fleet) & (p.kernel == AttentionKernel.CUDNN)
    boosted = boosted_flops_per_s(peak, matrix_joule_per_flop(fleet, v, element_bytes), fleet, v)
    return _Unit(
        flops_per_cycle=boosted * efficiency / (fleet.sm_count * fleet.clock_hz),
        fed_flops_per_cycle=fed,
        peak_flops_per_s=peak,
        dim=_padded_dim(p, fleet),
        exponentials_per_cycle=v["exponentials_per_cycle"]
        * np.where(emulates, v["emulated_exponentials_ratio"], 1.0)
        * exponential_ratio(fleet),
        key_block=np.select([stated, is_async(fleet) | wide], [steps, ASYNC_KEY_BLOCK], SYNC_KEY_BLOCK),
        element_bytes=element_bytes,
        energy_ratio=np.where(trtllm, v["energy_ratio"], v["flash_energy_ratio"]),
        fix_ratio=np.select([widened, is_torch], [v["widened_fix_ratio"], torch_fix / held], 1.0),
        widening_launches=widened * WIDENING_LAUNCHES,
        transposing_cycles=(trtllm & is_hopper(fleet) & (element_bytes == 1.0)) * 2.0 * p.value_dim / SHARED_BYTES,
        score_cycles=dropout_cycles(p, CUDNN_DROPOUT_CYCLES) + np.where(compares, WINDOW_CYCLES, 0.0),
        is_whole=wide.astype(np.float64),
        held=held,
    )


def _padded_dim(p: AttentionProblems, fleet: Fleet) -> Floats:
    """Return the head dim that kernels compute, the mean of both products'.

    Powers of two where TensorRT-LLM runs its Hopper kernels, or older ones on Blackwell; elsewhere multiples of 16, and
    of 32 in flash attention.
    """
    queries, values = (_padded(p, fleet, dim) for dim in (p.query_dim, p.value_dim))
    return (queries + values) / 2.0


def _padded(p: AttentionProblems, fleet: Fleet, dim: Floats) -> Floats:
    power = 2.0 ** np.ceil(np.log2(np.maximum(dim, 64.0)))
    fine = np.ceil(dim / DIM_STEP) * DIM_STEP
    is_coarse = is_async(fleet) & (p.kernel == AttentionKernel.EFFICIENT)
    is_coarse = is_coarse | (is_hopper(fleet) & (p.kernel == AttentionKernel.CUDNN))
    step = np.where(is_coarse, COARSE_DIM, 2 * DIM_STEP)
    coarse = np.ceil(dim / step) * step
    is_fine = ~is_async(fleet) | (is_blackwell(fleet) & (dim % DIM_STEP == 0))
    return np.where(kernels.is_trtllm(p), np.where(is_fine, fine, power), coarse)


def _compute_ns(p: AttentionProblems, fleet: Fleet, v: Values, unit: _Unit, rows: Floats) -> tuple[Floats, _Shape]:
    """Return the time of all CTAs at full clock, and how they are cut; `unit` has the axes of `rows`."""
    expand = np.asarray if rows is not TILE_ROWS else kernels.lift
    shape = _shape(p, fleet, unit, rows, is_lifted=rows is TILE_ROWS)
    is_torch = expand(np.isin(p.kernel, TORCH_KERNELS))
    penalty = 1.0 + np.where((rows < TILE_ROWS[-1]) & ~is_torch, expand(v["small_tile_penalty"]), 0.0)
    flops = 4.0 * rows * unit.dim * penalty
    matrix, loads = flops / unit.flops_per_cycle, flops / unit.fed_flops_per_cycle
    exponentials = rows / unit.exponentials_per_cycle
    cubes = matrix * matrix * matrix + loads * loads * loads + exponentials * exponentials * exponentials
    key = np.cbrt(cubes) + expand(v["key_cycles"]) + rows * unit.score_cycles + unit.transposing_cycles
    fix = unit.fix_ratio * expand(v["fix_kcycles"]) * KILO * (1.0 - expand(v["fix_row_share"]) * (1.0 - shape.filled))
    work = shape.keys * key + fix
    rounds = shape.ctas / expand(fleet.sm_count)
    longest = shape.longest * key * np.where(is_torch, 1.0 + LONE_SHARE * (unit.held - 1.0), expand(v["longest_ratio"]))
    longest, mean = longest + fix, rounds * work
    exact = expand(v["exact_rounds_share"])
    busy = exact * np.ceil(rounds) + (1.0 - exact) * np.maximum(rounds, 1.0)
    alike = (busy + LONE_SHARE * np.maximum(unit.held - busy, 0.0)) * work
    tail = longest / np.where(expand((p.kernel == AttentionKernel.CUDNN) & is_async(fleet)), 1.0, 2.0)
    joined = np.where(is_torch, np.maximum(longest, mean + tail), np.sqrt(mean * mean + longest * longest))
    cycles = np.where(expand(p.is_causal) == 1, joined, alike)
    cycles = np.maximum(cycles, shape.ctas * expand(v["dispatch_cycles"]))
    return cycles / expand(fleet.clock_hz / 1e9), shape


def _shape(p: AttentionProblems, fleet: Fleet, unit: _Unit, rows: Floats, *, is_lifted: bool) -> _Shape:
    """Cut a problem into tiles: a causal row sees the keys up to its own place, counted from the end.

    Averages are of the staircase that tiles of `rows` make under the diagonal, cut off at the window.
    """
    expand = kernels.lift if is_lifted else np.asarray
    # The query heads whose rows share a tile: flash attention packs groups on Hopper, or for one query.
    packs = ~kernels.is_trtllm(p) & (is_async(fleet) | (p.queries == 1))
    queries, keys, packed = expand(p.queries), expand(p.keys), expand(np.where(packs, p.heads / p.kv_heads, 1.0))
    window = expand(np.where(p.window > 0, p.window, np.inf))
    tokens = rows / packed
    tiles = np.ceil(queries * packed / rows)
    longest = np.minimum(window + tokens, keys)
    covered = np.maximum(queries, tokens)
    stairs = np.where(longest < covered, longest - longest**2 / (2.0 * covered), (covered + tokens) / 2.0)
    stairs = np.where(keys > queries, np.minimum(keys - queries + stairs, longest), stairs)
    full = np.ceil(np.minimum(keys, 2.0 * window) / unit.key_block) * unit.key_block
    causal = expand(p.is_causal) == 1
    ends = unit.key_block / np.where(window < keys, 2.0, 4.0)
    seen = np.maximum(np.where(causal, stairs + ends, full), unit.key_block)
    return _Shape(
        ctas=expand(p.batch * p.heads) / packed * tiles,
        keys=seen,
        longest=np.where(causal, np.maximum(longest, unit.is_whole * unit.key_block), seen),
        filled=np.maximum(np.minimum(queries * packed / rows, 1.0), unit.is_whole),
    )


def _throttled(fleet: Fleet, v: Values, unit: _Unit, free_ns: Floats, flops: Floats) -> tuple[Floats, Floats]:
    """Slow a long kernel down to what the board's power sustains; return time and slow-down."""
    # What a generation's multipliers save is not saved in exponentials and registers (L40S, RTX PRO 6000 looked at).
    per_flop = matrix_joule_per_flop(fleet, v, unit.element_bytes) / matrix_energy(fleet) * unit.energy_ratio
    slow = 1.0 + slow_down(flops * per_flop, free_ns * 1e-9, fleet, v)
    return free_ns * slow, slow


def _memory_ns(p: AttentionProblems, fleet: Fleet, v: Values) -> tuple[Floats, Floats]:
    """Return the attention's own DRAM time, and that of the kernels beside it with what none hides."""
    dims, width = p.query_dim + p.value_dim, operand_bytes(p)
    queries, keys = p.batch * p.heads * p.queries * dims, p.batch * p.kv_heads * p.keys * dims
    own = queries * width + keys * p.kv_bytes
    # Reads 16 bits, writes what the kernel takes; `queries`, which counts results too, stands for both.
    rotated = v["extra_passes"] * (queries * (2.0 + width) / 2.0 + keys * (2.0 + p.kv_bytes)) / 2.0
    is_paged = p.kernel == AttentionKernel.PAGED
    paged = np.where(is_paged, v["paged_extra_passes"] * 2.0 * keys * p.kv_bytes, 0.0)
    scores = SCORE_PASSES * SCORE_BYTES * p.batch * p.heads * p.queries * p.keys
    encoder_ratio = np.where(has_tensor_memory(fleet), 0.0, v["encoder_extra_ratio"])
    share = np.where((p.is_causal == 1) | ~kernels.is_trtllm(p), 1.0, encoder_ratio)
    extra = share * np.where(kernels.is_trtllm(p), rotated, np.where(p.kernel == AttentionKernel.MATH, scores, paged))
    # In L2 lies what such a pass reads, in 16 bits, and what it writes.
    read = share * np.select([kernels.is_trtllm(p), is_paged], [queries + 2.0 * keys, 2.0 * keys], extra)
    miss = miss_ratio(own + read, fleet, v)
    own_miss = miss_ratio((own + read) * p.copies, fleet, v)
    ns_per_byte = 1e9 / kernels.dram_bytes_per_s(fleet, v)
    held = fleet.l2_cache_bytes / (own * p.copies)
    cold_ns = np.isin(p.kernel, TORCH_KERNELS) * kernels.COLD_US * US / (1.0 + held * held * held)
    return own_miss * own * ns_per_byte, extra * ns_per_byte * (miss + (1.0 - miss) / v["extra_l2_ratio"]) + cold_ns


def _features(
    p: AttentionProblems, fleet: Fleet, shape: _Shape, rows: Floats, time: Floats, shares: tuple[Floats, ...]
) -> Floats:
    columns = (
        *(np.log(time) - 10.0, *shares, np.log(shape.ctas / fleet.sm_count), np.log(p.keys) - 6.0),
        *(np.log(p.queries) - 6.0, rows / TILE_ROWS[-1], p.query_dim / REFERENCE_DIM, np.log(p.heads / p.kv_heads)),
        *(p.is_causal, p.arithmetic == ArithmeticFormat.FP8, p.kv_bytes, ~kernels.is_trtllm(p)),
        np.log1p(p.window) / 8.0,
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64, copy=False)


def group_of_kind(problems: AttentionProblems) -> Codes:
    """Return the index into `GROUPS` of each problem."""
    kernel, is_causal = problems.kernel, problems.is_causal == 1
    of_torch = (kernel == AttentionKernel.FLASH2, np.isin(kernel, TORCH_KERNELS))
    return np.select([*of_torch, is_causal & kernels.is_trtllm(problems), is_causal], [3, 4, 0, 1], 2).astype(np.int64)


PREFILL: Final = Model(
    name="attention_prefill",
    parameters=PARAMETERS,
    class_names=kernels.CLASS_NAMES,
    gpu_class=kernels.gpu_class,
    simulate=simulate,
    feature_names=FEATURES,
    size_names=SIZES,
    group_names=GROUPS,
    group=group_of_kind,
)
