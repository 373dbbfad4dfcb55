"""Attention of one query per sequence, or a few, on a long cache: it is read once, split over the GPU's SMs.

A CTA handles one KV head of one sequence, or one of s parts of its keys (n CTAs per part, k keys each):
    L  = fix * (1 + growth) + keys / s * key cycles                   cycles of a CTA; growth with the query heads
    Tc = rounds(n * s / (SM * occupancy)) * L / clock                 rounds between the exact and the smooth count
    Tm = max(loaded bytes / L2 rate, miss * (bytes / DRAM rate + ramp))
    t  = floor + (Tc^p + Tm^p)^(1/p) + [s > 1] * (combine + s * join) + copies
`miss` is 0 while the cache, and what else is read before it is read again (`copies`), fits in L2: the measurements
repeat on the same cache, as layers of a model do not. A GPU starts at most one CTA in `dispatch` cycles.

Kernels (from what is known of the libraries, and read off the measurements of `ops/attention.parquet`):
- single: TensorRT-LLM's plain kernel, one query head per CTA: before Blackwell without groups, anywhere with groups
  above 32, whose query heads then read the same keys from L2 one by one.
- group: its grouped kernel before Blackwell and on consumers' Blackwell. It splits to six CTAs per SM, whatever that
  costs.
- whole: the same for FP8 caches where nothing is asynchronous. It never splits a sequence; where widening FP8 is slow
  (`converts_fp8_fast`) that alone is what a key costs.
- fused: its kernels for Blackwell, and for FP8 caches on Hopper. CTAs overlap like those of `single`, and stream keys
  like flash attention on asynchronous units; what starts one grows with a key's bytes, and with heads times their dim.
- flash: flash attention; a tile of 64 query rows is multiplied however few are filled. vLLM's version 3 is told the
  parts by a kernel before it. In version 2 CTAs of a multiprocessor take as long together as one after another: on A100
  128 of them twice as long as 64, 256 four times. One kernel more joins its parts.

A few queries per sequence (speculative decoding) share a tile with the heads of their group, but in FlashAttention-2,
which then takes heads one by one (its `seqlenq_ngroups_swapped` is for one query alone). No measurement is of them.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.attention_kernels import AttentionKernel
from ....specs.fleet import Fleet
from ....specs.generations import converts_fp8_fast, has_wide_head_blocks, is_async, is_blackwell, is_hopper
from ..frame.gpu_physics import launch_s, miss_ratio
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from ..frame.problems import HALF_BYTES
from . import kernels
from .kernels import PARAMETERS as KERNEL_PARAMETERS
from .problems import SIZES, AttentionProblems, operand_bytes, peak_flops_per_s, sizes_of, visible_keys

SPLITS: Final = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
MIN_SPLIT_KEYS: Final = 128.0
MAX_SHARED_GROUP: Final = 32.0
"""TensorRT-LLM: query heads per KV head above which they no longer share a CTA."""
MAX_FUSED_FP8_GROUP: Final = 16.0
"""The same for the kernel of FP8 caches on Hopper."""
SPLIT_CTAS_PER_SM: Final = 6.0
SPLITS_PER_ROOT_KEY: Final = 0.22
"""The grouped kernel makes min(keys / 128, 0.22 * sqrt(keys), 6 * SM / n) parts, as its times with a window show."""
FREE_GROUP: Final = 8.0
"""Query heads per KV head that fit the smallest tile."""
GROUP_STEP: Final = 16.0
"""Larger tiles come in steps of this."""
NEVER_SPLIT: Final = (AttentionKernel.EFFICIENT, AttentionKernel.TRITON)
"""Their forward passes walk over all keys in one block."""
FLASH_ROWS: Final = 64.0
FLASH2_BYTES: Final = 80.0 * 1024.0
"""Of shared memory, a CTA's: 64 queries, 128 keys and values of dim 128. Of more than two at once nothing is known."""
FLASH2_PARTS, FLASH2_ENOUGH, FLASH2_SHARE = np.arange(1.0, 129.0), 0.8, 0.85
"""Keys are parted where CTAs fill less of two per multiprocessor than the second, into the fewest parts that fill the
third of what the best number would (`num_splits_heuristic`)."""
CUDNN_FIX_RATIO: Final = 0.3
"""Of flash attention's fixed cycles, what cuDNN's CTAs take: by own trained shapes, which no fit of decodes sees."""
FLASH_DIMS, FLASH_KEYS = (64.0, 128.0), np.array([256.0, 128.0, 64.0])
FLASH2_KERNELS, FLASH_MOST_KEYS = (AttentionKernel.FLASH2, AttentionKernel.PAGED), 128.0
"""Keys of a step: of heads up to each width, and of wider ones; but for FlashAttention-2 no more than the last."""

PARAMETERS: Final = (*priors("attention decode"), *KERNEL_PARAMETERS)
"""With chips in sight: `slow_elements_per_cycle` and `slow_single_ratio` (how fast FP8 is widened on compute capability
8.9) are L40S's own times, of which no other card speaks; `whole_key_cycles` is RTX PRO 6000's, rounded, the only other
one that runs the kernel; `dispatch_cycles`: 17 to 21 on all five GPUs, from thousands of CTAs with a few keys each;
`gddr_resident_ratio` 1: L40S and RTX PRO 6000 hold repeated caches up to their L2's size. `legacy_ratio`: prefill's.
`flash2_…`, `join_…`, `copy_launches`: of A100 and L40S, which alone tell of version 2; in time or launches where their
cycles differ. `group_occupancy`, `single_occupancy`: held, as they trade with fixed cycles. `newer_single_ratio`: a CTA
with a 16-bit cache takes 3,080 cycles of all four chips of Blackwell, 2,100 to 2,330 of Hopper's and Ada's.
`flash_fix_kcycles`: about `single_fix_kcycles`. `alone_floor_ratio`: Hopper's kernel of FP8 caches
rotates and appends the new key itself: one kernel, not two."""
FEATURES: Final = (
    *("log time", "rounds share", "L2 share", "DRAM share", "floor share", "miss"),
    *("log CTAs per SM", "log keys", "log splits", "log group", "dim", "cache bytes", "is flash", "is single"),
)
GROUPS: Final = ("TensorRT-LLM", "flash attention")


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What the kernels that run cost, arrays over problems and GPUs."""

    ctas: Floats
    """Without splits."""
    loads: Floats
    """Times that the keys are loaded by CTAs."""
    fix_cycles: Floats
    key_cycles: Floats
    least_keys: Floats
    """What a CTA computes at least, masked or not."""
    occupancy: Floats
    fixed_splits: Floats
    """The number of parts where a rule gives it, else 0."""
    held: Floats
    """CTAs that start and end together on a multiprocessor, each as long as alone; 0: rounds are of `occupancy`."""


@dataclass(frozen=True, slots=True)
class _Masks:
    single: Mask
    group: Mask
    whole: Mask
    fused: Mask
    flash: Mask
    flash2: Mask
    slow: Mask
    """An FP8 cache where widening it holds the kernel up."""


def simulate(problems: AttentionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Estimate kernel times; the candidates are the numbers of splits."""
    sizes, problems = sizes_of(problems), kernels.as_run(problems, fleet)
    dims = problems.query_dim + problems.value_dim
    cache = problems.batch * problems.kv_heads * visible_keys(problems) * dims * problems.kv_bytes
    moved = cache + problems.batch * problems.heads * problems.queries * dims * operand_bytes(problems)
    miss = miss_ratio(moved * problems.copies, fleet, values)
    ramp_us = np.where(problems.kernel == AttentionKernel.CUDNN, kernels.COLD_US, values["ramp_us"])
    dram = miss * (moved / kernels.dram_bytes_per_s(fleet, values) * 1e9 + ramp_us * kernels.US)
    kernel, masks, clock = _kernel(problems, fleet, values), _masks(problems, fleet), fleet.clock_hz / 1e9
    combine = values["combine_us"] * kernels.US + values["combine_kcycles"] * kernels.KILO / clock
    combine = np.where(masks.flash2, values["join_launches"] * launch_s(fleet, values) * 1e9, combine)
    join = ~masks.group * values["join_us"] * kernels.US
    if choice is None:
        lifted = _Kernel(*(kernels.lift(getattr(kernel, name)) for name in _Kernel.__slots__))
        rounds, l2 = _parts_ns(problems, fleet, values, lifted, cache, SPLITS)
        cost = np.sqrt(rounds**2 + np.maximum(l2, kernels.lift(dram)) ** 2)
        cost = cost + np.where(SPLITS > 1, kernels.lift(combine) + kernels.lift(join) * SPLITS, 0.0)
        too_short = kernels.lift(problems.keys) < SPLITS * MIN_SPLIT_KEYS
        cost = np.where((SPLITS > 1) & (too_short | (lifted.fixed_splits == 1.0)), np.inf, cost)
        choice = np.asarray(np.argmin(cost, axis=-1), dtype=np.int64)
    splits = np.where(kernel.fixed_splits > 0, kernel.fixed_splits, SPLITS[choice])
    rounds_ns, l2_ns = _parts_ns(problems, fleet, values, kernel, cache, splits)
    is_alone = masks.fused & is_hopper(fleet)
    floor = kernels.floor_ns(problems, fleet, values) * np.where(is_alone, values["alone_floor_ratio"], 1.0)
    copied, p = kernels.copy_ns(problems, fleet, values, values["copy_launches"]), values["sharpness"]
    body = (rounds_ns**p + np.maximum(l2_ns, dram) ** p) ** (1.0 / p)
    time = floor + body + copied + np.where(splits > 1, combine + join * splits, 0.0)
    total = rounds_ns + l2_ns + dram + floor
    shares = (rounds_ns / total, l2_ns / total, dram / total, floor / time, miss)
    return Estimate(
        time_ns=time,
        features=lambda: _features(problems, fleet, kernel, splits, time, shares),
        sizes=sizes,
        choice=choice,
    )


def _parts_ns(
    problems: AttentionProblems, fleet: Fleet, values: Values, kernel: _Kernel, cache: Floats, splits: Floats
) -> tuple[Floats, Floats]:
    """Return the time of all rounds and of all loads from L2; `kernel` has the axes of `splits`."""
    expand = kernels.lift if kernel.ctas.ndim > cache.ndim else np.asarray
    sms, clock = expand(fleet.sm_count), expand(fleet.clock_hz / 1e9)
    ctas = kernel.ctas * splits
    smooth = np.maximum(ctas / (sms * kernel.occupancy), 1.0)
    exact_share = expand(values["exact_rounds_share"])
    rounds = exact_share * np.ceil(smooth - 1e-6) + (1.0 - exact_share) * smooth
    held = np.minimum(np.ceil(ctas / sms), kernel.held)
    rounds = np.where(kernel.held > 0, held * np.ceil(ctas / (np.maximum(held, 1.0) * sms)), rounds)
    keys = np.minimum(expand(visible_keys(problems)), expand(problems.keys) / splits)
    cycles = kernel.fix_cycles + kernel.key_cycles * np.maximum(keys, kernel.least_keys)
    rate = expand(values["l2_bytes_per_cycle"]) * np.minimum(sms, ctas) * clock
    busy = np.maximum(rounds * cycles, ctas * expand(values["dispatch_cycles"]))
    return busy / clock, np.where(kernel.held > 0, 0.0, expand(cache) * kernel.loads / rate)


def _masks(p: AttentionProblems, fleet: Fleet) -> _Masks:
    group = p.heads / p.kv_heads
    trtllm, is_grouped = kernels.is_trtllm(p), group > 1
    fp8_on_hopper = is_hopper(fleet) & (p.kv_bytes == 1) & is_grouped & (group <= MAX_FUSED_FP8_GROUP)
    newer = is_blackwell(fleet) | fp8_on_hopper
    single = trtllm & ((group > MAX_SHARED_GROUP) | (~is_grouped & ~newer))
    is_fp8 = p.kv_bytes == 1
    grouped = trtllm & ~single & ~newer
    return _Masks(
        single=single,
        group=grouped & (is_async(fleet) | ~is_fp8),
        whole=grouped & ~is_async(fleet) & is_fp8,
        fused=trtllm & ~single & newer,
        flash=~trtllm & (group > 0),
        flash2=np.isin(p.kernel, FLASH2_KERNELS) & ~is_async(fleet),
        slow=is_fp8 & ~converts_fp8_fast(fleet),
    )


def _kernel(p: AttentionProblems, fleet: Fleet, v: Values) -> _Kernel:
    group, masks = p.heads / p.kv_heads, _masks(p, fleet)
    packs = is_async(fleet) | (p.queries == 1)
    flash_loads = np.where(packs, np.ceil(group * p.queries / FLASH_ROWS), group)
    loads = np.where(masks.single, group, np.where(masks.flash, flash_loads, 1.0))
    fix, key = _cycles(p, fleet, v, masks)
    occupancy = np.where(masks.single | masks.fused, v["single_occupancy"], v["group_occupancy"])
    is_paged = p.kernel == AttentionKernel.PAGED
    is_ruled = is_paged | masks.flash2
    may_not = (is_paged & (group == 1) & ~is_async(fleet)) | np.isin(p.kernel, NEVER_SPLIT)
    parts = np.minimum(np.ceil(p.keys / MIN_SPLIT_KEYS), np.maximum(np.round(SPLITS_PER_ROOT_KEY * np.sqrt(p.keys)), 2))
    parts = np.minimum(parts, np.round(SPLIT_CTAS_PER_SM * fleet.sm_count / (p.batch * p.kv_heads)))
    planned = np.where(p.planned_kv_heads > 0, p.planned_kv_heads, p.kv_heads)
    block = FLASH_KEYS[np.searchsorted(FLASH_DIMS, p.query_dim)]
    block = np.where(masks.flash2, block, np.minimum(block, FLASH_MOST_KEYS))
    blocks, ctas = np.ceil(visible_keys(p) / block), p.batch * p.kv_heads * loads
    flash_parts = np.maximum(np.minimum(np.floor(fleet.sm_count / (planned * p.batch)), blocks), 1.0)
    is_parted = is_ruled & masks.flash2 & ~may_not & (ctas < FLASH2_ENOUGH * 2.0 * fleet.sm_count)
    flash_parts = np.where(is_async(fleet), flash_parts, 1.0)
    flash_parts[is_parted] = flash2_parts(
        *(np.broadcast_to(item, is_parted.shape)[is_parted, None] for item in (ctas / (2.0 * fleet.sm_count), blocks))
    )
    ruled = [masks.whole | may_not, masks.group, is_ruled]
    return _Kernel(
        ctas=ctas,
        loads=loads,
        fix_cycles=fix,
        key_cycles=key,
        least_keys=np.where(masks.flash, block, 1.0),
        occupancy=np.where(masks.flash, 1.0, occupancy),
        fixed_splits=np.select(ruled, [1.0, np.maximum(parts, 1.0), flash_parts], 0.0),
        held=np.where(masks.flash2, np.clip(np.floor(fleet.shared_memory_per_sm_bytes / FLASH2_BYTES), 1.0, 2.0), 0.0),
    )


def flash2_parts(share: Floats, blocks: Floats) -> Floats:
    """Return the parts that FlashAttention-2 makes of `blocks` of keys; a number that leaves all as long is not taken.

    Both [n, 1]; `share`: of the CTAs that run at a time, without parts.
    """
    waves = share * FLASH2_PARTS
    longer = np.ceil(blocks / np.maximum(FLASH2_PARTS - 1.0, 0.5)) > np.ceil(blocks / FLASH2_PARTS)
    busy = np.where(longer, waves / np.ceil(waves), 0.0)
    first = np.argmax(busy >= FLASH2_SHARE * busy.max(axis=-1, keepdims=True), axis=-1)
    return np.asarray(FLASH2_PARTS[first], dtype=np.float64)


def _cycles(p: AttentionProblems, fleet: Fleet, v: Values, masks: _Masks) -> tuple[Floats, Floats]:
    """Return a CTA's fixed cycles and its cycles per key."""
    # One head by itself is bound by loads, which grow with its width. Heads that share keys ride along free up to
    # FREE_GROUP, beyond that in steps. Whole-group kernels on units without the cache's format are bound by widening.
    group, dim = p.heads / p.kv_heads, p.query_dim / kernels.REFERENCE_DIM
    together = group * p.queries
    tile = np.where(together > FREE_GROUP, np.ceil(together / GROUP_STEP) * GROUP_STEP, FREE_GROUP)
    excess = tile / FREE_GROUP - 1.0
    rows = np.minimum(together, FLASH_ROWS) / FREE_GROUP
    grouped = masks.group | masks.whole
    grown = 1.0 + np.where(grouped, v["group_growth"], np.where(masks.fused, v["fused_growth"] * dim, 0.0)) * excess
    fp8 = np.where(masks.single & masks.slow, v["slow_single_ratio"], 1.0)
    dim_share = np.where(grouped | masks.fused, v["group_dim_share"], v["single_dim_share"])
    scale = 1.0 + dim_share * ((dim * np.where(masks.fused, p.kv_bytes / HALF_BYTES, 1.0)) ** 2 - 1.0)
    fused_fix = v["single_fix_kcycles"] * v["fused_fix_ratio"]
    is_newer = (is_blackwell(fleet) | has_wide_head_blocks(fleet)) & (p.kv_bytes > 1)
    single_fix = v["single_fix_kcycles"] * np.where(is_newer, v["newer_single_ratio"], 1.0)
    fix = np.where(grouped, v["group_fix_kcycles"], np.where(masks.fused, fused_fix, single_fix)) * grown
    flash_fix = v["flash_fix_kcycles"] * np.where(p.kernel == AttentionKernel.CUDNN, CUDNN_FIX_RATIO, 1.0)
    flash_fix = np.where(masks.flash2, v["flash2_fix_us"] * fleet.clock_hz / 1e9, flash_fix)
    fix = np.where(masks.flash, flash_fix * (1.0 + v["flash_growth"] * rows), fix)
    flops_per_cycle = peak_flops_per_s(p, fleet) / fleet.sm_count / fleet.clock_hz
    flops_per_cycle = flops_per_cycle * kernels.speed_ratio(p, p.kernel, fleet, v)
    matrix = v["flash_matrix_ratio"] * 4.0 * FLASH_ROWS * p.query_dim / flops_per_cycle
    fused_key = v["flash_key_cycles"] * v["fused_key_ratio"]
    key = np.where(masks.group, v["group_key_cycles"], np.where(masks.fused, fused_key, v["single_key_cycles"])) * grown
    flash_key = np.where(masks.flash2, v["flash2_key_cycles"], v["flash_key_cycles"])
    key = np.where(masks.flash, flash_key * dim + matrix, key * dim)
    whole = v["whole_key_cycles"] * (1.0 + v["whole_dim_share"] * (dim - 1.0))
    whole = whole * (1.0 + v["whole_growth"] * (np.ceil(together / GROUP_STEP) - 1.0))
    widening = np.where(masks.slow, (p.query_dim + p.value_dim) / v["slow_elements_per_cycle"], 0.0)
    key = np.where(masks.whole, np.maximum(whole, widening), key)
    return fix * scale * kernels.KILO * fp8, key * fp8


def _features(
    p: AttentionProblems, fleet: Fleet, kernel: _Kernel, splits: Floats, time: Floats, shares: tuple[Floats, ...]
) -> Floats:
    group = p.heads / p.kv_heads
    columns = (
        *(np.log(time) - 10.0, *shares, np.log(kernel.ctas * splits / fleet.sm_count), np.log(p.keys) - 6.0),
        *(np.log(splits), np.log(group), p.query_dim / kernels.REFERENCE_DIM, p.kv_bytes, ~kernels.is_trtllm(p)),
        kernel.loads == group,
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64, copy=False)


def group_of_library(problems: AttentionProblems) -> Codes:
    """Return the index into `GROUPS` of each problem."""
    return np.asarray(~kernels.is_trtllm(problems), dtype=np.int64)


DECODE: Final = Model(
    name="attention_decode",
    parameters=PARAMETERS,
    class_names=kernels.CLASS_NAMES,
    gpu_class=kernels.gpu_class,
    simulate=simulate,
    feature_names=FEATURES,
    size_names=SIZES,
    group_names=GROUPS,
    group=group_of_library,
)
