"""Gradients of fused attention: the scores again and four gradients, block by block of keys.

A block takes 128 keys of one head and walks over the queries that see them; what it adds to the queries' gradients goes
to memory in fp32, where all blocks of a head meet:

    row  = 128 * (2 (3 d + 2 e) / FLOP per cycle + 1 / scores per cycle)         cycles of a query's row of a block
    work = seen queries * row + fix
    Tc   = sqrt((blocks / SM * work)^2 + longest^2) where causal, rounds * work otherwise
    t    = floor + (Tc'^p + Tm^p)^(1/p) + passes beside it

d, e: head dims of queries and values. Tc' is Tc stretched by the board's power limit. Beside it run kernels that sum
the output times its gradient, clear and convert the queries' gradients, and add up the keys' gradients of a group's
heads. FP8 kernels spend most of their time on the scores: each is converted, and before Blackwell transposed.

cuDNN's is measured on Hopper and GB200, FlashAttention-2's and the memory-efficient one on Hopper; the other kernels
have priors with their sources below.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.attention_kernels import AttentionKernel
from ....specs.fleet import Fleet
from ....specs.generations import has_tensor_memory, has_tf32, is_amd, is_async, is_hopper
from ..attention.kernels import OWN_INSTRUCTIONS, WIDE_PRODUCT_COUNT, kernel_on
from ..attention.problems import ArithmeticFormat, dropout_cycles, operand_bytes, peak_flops_per_s, visible_keys
from ..frame import gpu_physics
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from .problems import BackwardProblems, pair_flops

BLOCK: Final = 128.0
"""Keys of a block."""
BUSY_BLOCKS: Final = 256.0
"""From so many on memory-efficient kernels take two blocks' keys at once, if that is all keys (PyTorch, BSD)."""
LONE_SHARE: Final = 0.7
"""By which one of several blocks that would share a multiprocessor is slower alone than they are together, per block:
from trained shapes of few blocks, with others in sight."""
LOCK_CYCLES: Final = 4000.0
"""For which a memory-efficient block of keys locks queries' gradients to add to them. Read off the one shape that shows
it, 77 queries by 4,096 keys: its error is no blind figure."""
NARROW_DIM: Final = 128.0
DROPOUT_CYCLES: Final = {AttentionKernel.CUDNN: 0.13, AttentionKernel.EFFICIENT: 0.8, AttentionKernel.FLASH2: 0.07}
"""As in the prefill model; cuDNN's is what the same recordings take over our own rows of their shapes."""
WIDE_DIM: Final = 192.0
COARSE_DIM: Final = 64.0
FINE_DIM: Final = 32.0
LAUNCH_COUNT: Final = 3.0
"""The sums before, the gradients, the conversion after; memory-efficient: clearing, in FP32 three kernels before."""
FP32_BYTES: Final = 4.0
SCORE_PASSES: Final = 8.0
"""Without a fused kernel: gradients of scores written, and read with the scores by the softmax's and two products."""

PARAMETERS: Final = (
    *priors("attention backward"),
    *gpu_physics.POWER_PARAMETERS,
    *gpu_physics.DRAM_PARAMETERS,
    *gpu_physics.LAUNCH_PARAMETERS,
    *priors("attention backward, other kernels"),
)
"""`scores_per_cycle`: 16 exponentials, then some five vector instructions of 128 lanes for each score (scaled, less the
sum of its row, multiplied, two conversions), and the way through shared memory; counted after a fit had said 8.
With both chips in sight: `matrix_efficiency`'s spread, `wide_ratio` (head dims above 128, whose tiles are smaller),
that only narrow heads pay for determinism, that FP8 kernels ignore windows and count scores apart, and their two rates.

Of cuDNN's rate: FlashAttention-3 equal (Shah et al., "FlashAttention-3", arXiv 2407.08608, figure 6: its backward on
H100), FlashAttention-2 on Hopper `older_instructions_ratio`; on Blackwell its instructions are no faster per
multiprocessor and clock than on Hopper. On Ampere FlashAttention-2's backward reaches 196 of 312 TFLOP/s (Dao,
"FlashAttention-2", arXiv 2307.08691, section 4), what this formula gives there within 5 %: taken as equal. Of the
memory-efficient kernels Hopper's rows tell; `efficient_fp32_ratio`: FP32 of three products over a third of theirs.
`widest_ratio`: head dims above 192 on Hopper. `emulated_scores_ratio`: the prefill model's
`emulated_exponentials_ratio`. Triton, CK: the prefill model's ratios of forward passes, since nobody
states their backward's."""
HOPPER_FLOPS_PER_CLOCK: Final = 4096.0
"""In half precision, of a multiprocessor."""


def simulate(problems: BackwardProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:  # noqa: ARG001
    """Estimate kernel times; there are no candidates."""
    v = values
    kernel = kernel_on(problems, fleet)
    p = replace(problems, kernel=kernel, is_causal=np.where(kernel == AttentionKernel.MATH, 0, problems.is_causal))
    compute = _compute_s(p, fleet, v)
    own, beside = _memory_s(p, fleet, v)
    sharpness = v["sharpness"]
    busy_s = (compute**sharpness + own**sharpness) ** (1.0 / sharpness) + beside
    alone = np.where(p.arithmetic == ArithmeticFormat.FP32, LAUNCH_COUNT + 2.0, LAUNCH_COUNT - 1.0)
    launches = np.where(kernel == AttentionKernel.EFFICIENT, alone, LAUNCH_COUNT)
    time_ns = 1e9 * (launches * gpu_physics.launch_s(fleet, v) + busy_s)
    return Estimate(time_ns=time_ns, features=np.zeros((*time_ns.shape, 0)))


def _padded(p: BackwardProblems, fleet: Fleet) -> BackwardProblems:
    """Return the problems with head dims as the kernels' tiles have them; cuDNN's of Hopper and memory-efficient ones
    come for 64 and 128, the others in steps of 32.
    """
    is_coarse = ((p.kernel == AttentionKernel.CUDNN) & is_hopper(fleet)) | (p.kernel == AttentionKernel.EFFICIENT)
    step = np.where(operand_bytes(p) > 1, np.where(is_coarse, COARSE_DIM, FINE_DIM), 1.0)
    return replace(p, query_dim=np.ceil(p.query_dim / step) * step, value_dim=np.ceil(p.value_dim / step) * step)


def _keys_of_block(p: BackwardProblems) -> tuple[Floats, Floats]:
    """Return how many keys a block takes, and how many blocks a multiprocessor holds: 128 and 1.

    Memory-efficient kernels take 64 in FP32 or for narrow heads, as names and grids say, and of the latter's blocks
    registers hold two or three.
    """
    is_efficient, is_narrow = p.kernel == AttentionKernel.EFFICIENT, p.query_dim <= COARSE_DIM
    is_fp32 = p.arithmetic == ArithmeticFormat.FP32
    keys = np.where(is_efficient & (is_narrow | is_fp32), COARSE_DIM, BLOCK)
    is_whole = is_efficient & (p.keys <= 2.0 * keys) & (p.batch * p.heads >= BUSY_BLOCKS)
    held = np.where(is_efficient & is_narrow, np.where(is_fp32, 2.0, 3.0), 1.0)
    return np.where(is_whole, np.ceil(p.keys / keys) * keys, keys), held


def _rows(p: BackwardProblems) -> tuple[Floats, Floats]:
    """Return the queries that a block of keys walks over, on average and at most."""
    window = np.where((p.window > 0) & (operand_bytes(p) > 1), p.window, np.inf)
    longest = np.minimum(window + BLOCK, p.queries)
    least = np.minimum(longest, _keys_of_block(p)[0])
    # All blocks see as many as fit between the diagonal and the window's edge; the last few see fewer.
    climbing = np.minimum(longest / np.maximum(p.queries, 1.0), 1.0)
    causal = longest - climbing * (longest - least) / 2.0
    full = np.minimum(p.queries, 2.0 * window)
    return np.where(p.is_causal == 1, causal, full), np.where(p.is_causal == 1, longest, full)


def _compute_s(p: BackwardProblems, fleet: Fleet, v: Values) -> Floats:
    """Return the time of all blocks under the board's power limit."""
    # Blocks of keys walk over the queries that see them: a row of the walk is five products and the exponentials of the
    # scores, which take other units and so add up. Without a mask all blocks are alike and run in whole rounds, more or
    # less (`exact_rounds_share`). With a causal mask they differ by up to a factor of two: the longest block and the
    # mean load are joined as a norm, since the scheduler evens out what it can.
    is_fp8 = operand_bytes(p) == 1
    peak = peak_flops_per_s(p, fleet)
    efficiency = v["matrix_efficiency"]
    is_wide = (p.query_dim > NARROW_DIM) & ~is_fp8
    widest = is_hopper(fleet) & (p.query_dim > WIDE_DIM)
    efficiency = efficiency * np.where(is_wide, v["wide_ratio"], 1.0) * np.where(widest, v["widest_ratio"], 1.0)
    per_cycle = peak * np.minimum(efficiency, 1.0) / (fleet.sm_count * fleet.clock_hz)
    fp8 = np.where(has_tensor_memory(fleet), v["fp8_scores_per_cycle"], v["older_fp8_scores_per_cycle"])
    fp8 = fp8 * np.where(p.is_block_scaled == 1, v["block_scaled_ratio"], 1.0)
    emulated = np.where(has_tensor_memory(fleet), v["emulated_scores_ratio"], 1.0)
    scores = np.where(is_fp8, fp8, v["scores_per_cycle"] * emulated * np.where(is_wide, v["wide_ratio"], 1.0))
    keys, held = _keys_of_block(p)
    row = keys * (pair_flops(_padded(p, fleet)) / per_cycle + 1.0 / scores)
    efficient = p.kernel == AttentionKernel.EFFICIENT
    per_clock = peak_flops_per_s(p, fleet) / (fleet.sm_count * fleet.matrix_clock_hz)
    older = v["older_instructions_ratio"] * np.minimum(HOPPER_FLOPS_PER_CLOCK / per_clock, 1.0)
    is_older = is_async(fleet) & np.isin(p.kernel, OWN_INSTRUCTIONS)
    ratio = np.where(is_older, older, 1.0) * np.where(efficient, v["efficient_ratio"], 1.0)
    wide = efficient & (p.arithmetic == ArithmeticFormat.FP32) & has_tf32(fleet)
    ratio = ratio / np.where(wide, WIDE_PRODUCT_COUNT / v["efficient_fp32_ratio"], 1.0)
    ratio = ratio * np.where(p.kernel == AttentionKernel.TRITON, v["triton_ratio"], 1.0)
    amd = np.where(p.kernel == AttentionKernel.CK, v["ck_ratio"], v["amd_triton_ratio"])
    row = row / np.asarray(np.where(is_amd(fleet), amd, ratio))
    ordered = (p.is_deterministic == 1) & ~is_fp8 & (p.query_dim <= NARROW_DIM)
    row = row * np.where(ordered, v["deterministic_ratio"], 1.0)
    row = row + keys * dropout_cycles(p, DROPOUT_CYCLES)
    rows, longest = _rows(p)
    fix = v["fix_kcycles"] * 1e3
    blocks = np.ceil(p.keys / keys)
    rounds = p.batch * p.heads * blocks / fleet.sm_count
    beside = np.maximum(np.minimum(rounds, held), np.maximum(LONE_SHARE * held, 1.0))
    work, most = rows * row + fix, v["longest_ratio"] * longest * row * beside + fix
    exact = v["exact_rounds_share"]
    alike = (exact * np.ceil(rounds) + (1.0 - exact) * np.maximum(rounds, 1.0)) * work
    joined = np.where(efficient, np.maximum(rounds * work, most), np.sqrt((rounds * work) ** 2 + most**2))
    # Of one head all blocks wait for the same lock; heads that run at a time do not wait for each other.
    turns = np.maximum(np.minimum(rounds / held, p.batch * p.heads), 1.0)
    locked = np.where(efficient, turns * blocks * LOCK_CYCLES, 0.0)
    free_s = np.maximum(np.where(p.is_causal == 1, joined, alike), locked) / fleet.clock_hz
    flops = rounds * fleet.sm_count * rows * keys * pair_flops(p)
    joule = flops * gpu_physics.matrix_joule_per_flop(fleet, v, operand_bytes(p)) * v["energy_ratio"]
    return np.asarray(free_s * (1.0 + gpu_physics.slow_down(joule, free_s, fleet, v)))


def _memory_s(p: BackwardProblems, fleet: Fleet, v: Values) -> tuple[Floats, Floats]:
    """Return the DRAM time of the gradients' kernel and of the kernels beside it."""
    width = operand_bytes(p)
    queries = p.batch * p.heads * p.queries
    dims = p.query_dim + p.value_dim
    keys = p.batch * p.keys * dims
    is_efficient, is_fp32 = p.kernel == AttentionKernel.EFFICIENT, p.arithmetic == ArithmeticFormat.FP32
    sums = np.where(is_efficient & (p.keys <= _keys_of_block(p)[0]), 0.0, queries * p.query_dim * FP32_BYTES)
    own = queries * dims * width + keys * p.kv_heads * width + keys * p.heads * width + 2.0 * sums
    own = own + np.where(p.kernel == AttentionKernel.MATH, SCORE_PASSES * FP32_BYTES * queries * visible_keys(p), 0.0)
    beside = 2.0 * queries * p.value_dim * width + 2.0 * sums + queries * p.query_dim * width
    beside = np.where(is_efficient, sums + np.where(is_fp32, 4.0 * queries * p.value_dim * width, 0.0), beside)
    beside = beside + np.where(p.heads > p.kv_heads, keys * (p.heads + p.kv_heads) * width, 0.0)
    rate = gpu_physics.dram_bytes_per_s(fleet, v)
    return own / rate, v["passes_ratio"] * beside / rate


GROUPS: Final = ("bf16", "fp8", "other kernels")


def group(problems: BackwardProblems) -> Codes:
    """Return the index into `GROUPS` of each problem."""
    fp8 = (operand_bytes(problems) == 1).astype(np.int64)
    return np.where(problems.kernel == AttentionKernel.CUDNN, fp8, 2).astype(np.int64)


MODEL: Final = Model(
    name="attention_backward", parameters=PARAMETERS, simulate=simulate, group_names=GROUPS, group=group
)
