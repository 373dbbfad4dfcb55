"""Gradients of fused attention: the scores again and four gradients, block by block of keys.

A block takes 128 keys of one head and walks over the queries that see them; what it adds to the queries' gradients goes
to memory in fp32, where all blocks of a head meet:

    row  = 128 * (products + 1 / scores per cycle)         cycles of a query's row of a block
           products = 2 (3 d + 2 e) / FLOP per cycle, of the units or that loads feed, whichever are fewer
    work = seen queries * row + fix
    Tc   = max(longest, mean + longest / 2) where causal, the longest where all start at once, else rounds * work
           mean = blocks / SM * work
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
from ....specs.generations import has_tensor_memory, has_tf32, is_amd, is_async, is_hopper, is_nvidia
from ....specs.gpu import Rate
from ..attention.kernels import OWN_INSTRUCTIONS, WIDE_DIM, WIDE_PRODUCT_COUNT, kernel_on
from ..attention.problems import ArithmeticFormat, dropout_cycles, operand_bytes, peak_flops_per_s, visible_keys
from ..frame import gpu_physics
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from ..frame.problems import HALF_BYTES
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
FLASH1_RATIO: Final = 0.5
"""Of FlashAttention-2's rate on A100, which is twice as fast (Dao, arXiv 2307.08691, section 4.1)."""
NARROW_DIM: Final = 128.0
CUDNN_DROPOUT_CYCLES: Final = 0.13
"""What the recordings that tell the prefill model take over our own rows of their shapes."""
UNTILED: Final = (AttentionKernel.MATH, AttentionKernel.TRITON, AttentionKernel.CK, AttentionKernel.FLASH1)
"""Kernels whose tiles nobody stated here, or that have none."""
COARSE_DIM: Final = 64.0
FINE_DIM: Final = 32.0
LAUNCH_COUNT: Final = 3.0
"""The sums before, gradients, the conversion; cuDNN clears by one more. Memory-efficient: in FP32 three before."""
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
`passes_ratio`: of the time at DRAM's rate, which such small kernels do not quite reach.
With both chips in sight: `matrix_efficiency`'s spread, `wide_ratio` (head dims above 128, whose tiles are smaller),
that only narrow heads pay for determinism, that FP8 kernels ignore windows and count scores apart, and their two rates.

Of cuDNN's rate: FlashAttention-3 equal (Shah et al., "FlashAttention-3", arXiv 2407.08608, figure 6: its backward on
H100). What feeds kernels of Ampere's instructions limits them. FlashAttention-2 makes 180 of A100's 312 TFLOP/s at dim
128 (cudnn-frontend 816ea457; 196 says Dao, arXiv 2307.08691), which less the scores is the forward's
`fed_flops_per_cycle`. `async_fed_ratio`: from Hopper on, per clock and multiprocessor, as forward passes say (370 of
H100 for 225 of A100); FP32's, which splits its operands, has its own. `efficient_ratio`: the forward's;
`efficient_scores_per_cycle`: what it leaves of 64 to 81 TFLOP/s at dims 64 and 128 on A100, bias included (CUTLASS pull
request 992; PyTorch 101847: 66). Both with Hopper in sight. `efficient_fp32_ratio`, of three products over a third:
0.92 on A100 (xFormers 587), by kernels that PyTorch 101847 made 1.17 times as fast.
`widest_ratio`: head dims above 192 on Hopper. `emulated_scores_ratio`, Triton, CK: the prefill model's ratios."""


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
    cleared = (kernel == AttentionKernel.CUDNN) & (p.lacks_clearing == 0)
    launches = np.where(kernel == AttentionKernel.EFFICIENT, alone, LAUNCH_COUNT + cleared)
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
    registers hold two or three. Others whose tiles are known take 64 of heads wider than 192.
    """
    is_efficient, is_narrow = p.kernel == AttentionKernel.EFFICIENT, p.query_dim <= COARSE_DIM
    is_fp32 = p.arithmetic == ArithmeticFormat.FP32
    is_small = np.where(is_efficient, is_narrow | is_fp32, ~np.isin(p.kernel, UNTILED) & (p.query_dim > WIDE_DIM))
    keys = np.where(is_small, COARSE_DIM, BLOCK)
    is_whole = is_efficient & (p.keys <= 2.0 * keys) & (p.batch * p.heads >= BUSY_BLOCKS)
    held = np.where(is_efficient & is_narrow, np.where(is_fp32, 2.0, 3.0), 1.0)
    return np.where(is_whole, np.ceil(p.keys / keys) * keys, keys), held


def _rows(p: BackwardProblems) -> tuple[Floats, Floats]:
    """Return the queries that a block of keys walks over, on average and at most."""
    window = np.where((p.window > 0) & (operand_bytes(p) > 1), p.window, np.inf)
    # Queries come in tiles of 128 in wide memory-efficient kernels and narrow ones of FlashAttention-2, else of 64.
    other = np.where(p.query_dim <= COARSE_DIM, AttentionKernel.FLASH2, AttentionKernel.EFFICIENT)
    tile = np.where(p.kernel == other, BLOCK, COARSE_DIM)
    queries = np.where(np.isin(p.kernel, UNTILED), p.queries, np.ceil(p.queries / tile) * tile)
    longest = np.minimum(window + BLOCK, queries)
    least = np.minimum(longest, _keys_of_block(p)[0])
    # All blocks see as many as fit between the diagonal and the window's edge; the last few see fewer.
    climbing = np.minimum(longest / np.maximum(queries, 1.0), 1.0)
    causal = longest - climbing * (longest - least) / 2.0
    full = np.minimum(queries, 2.0 * window)
    return np.where(p.is_causal == 1, causal, full), np.where(p.is_causal == 1, longest, full)


def _compute_s(p: BackwardProblems, fleet: Fleet, v: Values) -> Floats:
    """Return the time of all blocks under the board's power limit."""
    # Blocks of keys walk over the queries that see them: a row of the walk is five products and the exponentials of the
    # scores, which take other units and so add up. Without a mask all blocks are alike and run in whole rounds, more or
    # less (`exact_rounds_share`). With a causal mask they differ: each head's begin with the longest and end with the
    # shortest, so that the last ones leave half of the longest idle at the end; but all at once where there are no
    # more than multiprocessors.
    is_fp8 = operand_bytes(p) == 1
    peak = peak_flops_per_s(p, fleet)
    efficiency = v["matrix_efficiency"]
    is_wide = (p.query_dim > NARROW_DIM) & ~is_fp8
    widest = is_hopper(fleet) & (p.query_dim > WIDE_DIM)
    efficiency = efficiency * np.where(is_wide, v["wide_ratio"], 1.0) * np.where(widest, v["widest_ratio"], 1.0)
    efficient = p.kernel == AttentionKernel.EFFICIENT
    # On vector lanes, which no loads starve, they reach what they do of a product's rate in the prefill model.
    lanes = efficient & ~has_tf32(fleet) & (peak <= 2.0 * fleet.flops_per_s[Rate.FP32])
    efficiency = efficiency * np.where(lanes, v["efficient_ratio"], 1.0)
    per_cycle = peak * np.minimum(efficiency, 1.0) / (fleet.sm_count * fleet.clock_hz)
    fp8 = np.where(has_tensor_memory(fleet), v["fp8_scores_per_cycle"], v["older_fp8_scores_per_cycle"])
    fp8 = fp8 * np.where(p.is_block_scaled == 1, v["block_scaled_ratio"], 1.0)
    emulated = np.where(has_tensor_memory(fleet), v["emulated_scores_ratio"], 1.0)
    scores = np.where(is_fp8, fp8, v["scores_per_cycle"] * emulated * np.where(is_wide, v["wide_ratio"], 1.0))
    scores = np.where(efficient, v["efficient_scores_per_cycle"], scores)
    wide = efficient & (p.arithmetic == ArithmeticFormat.FP32) & has_tf32(fleet)
    flops = pair_flops(_padded(p, fleet)) * np.where(wide, WIDE_PRODUCT_COUNT / v["efficient_fp32_ratio"], 1.0)
    later = np.where(is_async(fleet) & (operand_bytes(p) == HALF_BYTES), v["async_fed_ratio"], 1.0)
    fed = v["fed_flops_per_cycle"] * later * np.where(efficient, v["efficient_ratio"], 1.0)
    fed = fed * np.where(is_wide, v["wide_ratio"], 1.0) * HALF_BYTES / operand_bytes(p)
    is_fed = is_nvidia(fleet) & (p.kernel != AttentionKernel.MATH)
    is_fed = is_fed & (~is_async(fleet) | np.isin(p.kernel, OWN_INSTRUCTIONS))
    products = np.maximum(flops / per_cycle, np.where(is_fed, flops / fed, 0.0))
    keys, held = _keys_of_block(p)
    row = keys * (products + 1.0 / scores)
    first = np.where(p.kernel == AttentionKernel.FLASH1, FLASH1_RATIO, 1.0)
    ratio = np.where(p.kernel == AttentionKernel.TRITON, v["triton_ratio"], first)
    amd = np.where(p.kernel == AttentionKernel.CK, v["ck_ratio"], v["amd_triton_ratio"])
    row = row / np.asarray(np.where(is_amd(fleet), amd, ratio))
    ordered = (p.is_deterministic == 1) & ~is_fp8 & (p.query_dim <= NARROW_DIM)
    row = row * np.where(ordered, v["deterministic_ratio"], 1.0)
    row = row + keys * dropout_cycles(p, CUDNN_DROPOUT_CYCLES)
    rows, longest = _rows(p)
    fix = v["fix_kcycles"] * 1e3
    blocks = np.ceil(p.keys / keys)
    rounds = p.batch * p.heads * blocks / fleet.sm_count
    beside = np.maximum(np.minimum(rounds, held), np.maximum(LONE_SHARE * held, 1.0))
    work, most = rows * row + fix / held, v["longest_ratio"] * longest * row * beside + fix
    exact = v["exact_rounds_share"]
    alike = (exact * np.ceil(rounds) + (1.0 - exact) * np.maximum(rounds, 1.0)) * work
    joined = np.maximum(most, rounds * work + np.where(rounds > 1.0, most / 2.0, 0.0))
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
    beside = 2.0 * queries * p.value_dim * width + (2.0 - p.lacks_clearing) * sums + queries * p.query_dim * width
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
