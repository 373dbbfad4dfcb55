"""Whole recurrent layers: cuDNN's standard algorithm, its persistent one where PyTorch asks for it, AMD's products.

A layer multiplies its inputs of all steps at once, then its state step by step (Appleyard, Kocisky, Blunsom,
"Optimizing performance of recurrent neural networks on GPUs", 2016):

    t    = products of all steps + steps * (waits * chains + layers * directions * step) + launch
    step = (chain^3 + read^3 + math^3)^(1/3) + gates

waits: the launches of a product and of the gates' arithmetic, which depend on each other; layers and directions wait
in part at once (`sequential_share`). chain: a block's way along k, which is the hidden size forward and gates * hidden
size for the data gradient, where blocks share it out (`gradient_exponent`). read: the state's weights, each step
again, from DRAM or L2. math: rounds of 64-wide tiles. gates: their operands' traffic. A weight gradient multiplies all
steps at once, in as few blocks as the weights have tiles (`LEAST_BUSY`), and clears, reads and writes the weights
beside (`weight_passes`). A stack's layers overlap, so that the inputs of upper ones come few steps at a time.

Of kernels' own times the launches leave a product's and the gates' shortest times, `step_us`, of all layers and
directions one by one, since their kernels are added up; and what a layer has beside its steps (`layer_us`). Measured so
were cuDNN 9's kernels of Hopper. A product with a vector shares k among threads: no chain. The data gradient's product
is as deep as all gates, and few blocks share that out (`MOST_PARTS`). A tile of vector units alone on its SM goes along
k in `lane_chain_cycles` (118 and 126 by the grids and times of own rows). Half precision reaches little of its units
where the state's rows do not start at whole 16 bytes. bf16 weights are copied before each forward pass.

Before Volta the measurements are cuDNN 6's, whose products come in three kinds: up to 16 sequences in kernels that read
the weights once per eight, up to 32 (in half precision any number) in kernels that crawl along k, and others.

The persistent algorithm (Diamos et al., "Persistent RNNs", ICML 2016) holds the weights in registers: instead of
reading them a step waits for all blocks of the grid. Nothing measured it: priors. AMD's library runs a product and the
gates' kernels per step, as the standard algorithm does: the same formula, unmeasured.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.fleet import Fleet
from ....specs.generations import has_persistent_layers, has_tf32, is_before_volta, is_hopper, is_nvidia
from ....specs.gpu import Rate
from ..frame.gpu_physics import DRAM_PARAMETERS, L2_PARAMETERS, dram_bytes_per_s, l2_bytes_per_s
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from ..frame.problems import HALF_BYTES, RATES, has_unit, peak_flops_per_s
from .problems import GROUPS, RecurrentProblems, group, input_weights, kernel_kind, product_flops, state_weights

PARAMETERS: Final = (*priors("recurrent"), *DRAM_PARAMETERS, *L2_PARAMETERS, *priors("recurrent, steps"))
"""Three chips are few: the kinds of kernel, their limits in sequences, and the priors of `weight_passes`, `early_us`,
`narrow_efficiency`, `slow_chain_cycles` (176 cycles of P100 per step of k) and `old_math_ratio` were chosen while
reading the errors of all three; `math_efficiency` is what cuBLAS's fp32 products reach on Volta. `barrier_us`: a
grid-wide barrier of a GPU of the time, 1 to 3 us, and a round trip of the state through L2. `layer_us`: by own rows'
names three kernels beside a layer's steps, eight of its gradient (`gradient_layer_us`), each half of `step_us`.
`kernel_math_efficiency`: between a tile alone, 0.27 of its SM by `lane_chain_cycles`, and as many as hide each other.
`unaligned_ratio`: Ampere's instructions, at 0.6 of Hopper's rate, with loads of half the width."""
APART: Final = ("large_efficiency", "matrix_large_efficiency", "math_efficiency", "weight_passes", "resident_ratio")
"""What kernels' own times have apart (`kernel_` and the name): of cuDNN 9 on Hopper, they would bend older calls."""
TILE, LARGE_TILE, NARROW_TILE = 64.0, 128.0, 32.0
"""Narrow ones where all of them find a multiprocessor each, as the names of fp32 kernels show."""
BIAS_CYCLES: Final = 11.0
"""Of a row of one gate in a bias's gradient, which few blocks sum one row after another, however wide it is: recorded
networks' kernels take 6 to 12."""
LEAST_PARTS, MOST_PARTS = 3.0, 4.0
"""Into which cuBLAS shares out a product's k, by the grids of most own rows."""
DEEPEST: Final = 4096.0
"""That a product computes in one part where blocks fill a third of the GPU: own grids of 4,096 have one, 6,000 four."""
STREAMED_STEPS: Final = 2.0
"""Whose inputs an upper layer multiplies at once: recorded networks have 24 to 50 such products in 50 steps, one 12."""
LEAST_BUSY: Final = 0.09
"""Of SMs in a weight gradient: no own row has fewer blocks than 12 on 132 SMs."""
WIDE_RATE: Final = 8192.0
"""FLOP per clock and multiprocessor of Hopper's matrix units, times an element's bytes. Kernels of own rows reach
`kernel_matrix_efficiency` of them; smaller units are kept busier, up to `matrix_efficiency`, as V100's are."""
OTHER_KERNELS_LOG_WIDTH: Final = 0.8
"""Of kernels' own times, which Hopper's rows alone tell: of the calls measured on 1080 Ti, P100 and V100, each chip
counting alike, nine of ten lie within 0.9 of the sum of kernels, which intervals of 0.34 were said to hold."""
ALIGNED_BYTES: Final = 16.0
UNALIGNED_LARGE: Final = 2.5
"""Slowness of such rows in products of all steps, which no own row tells: between 1.7, of Ampere's instructions alone,
and 3.3, of those with loads of half the width."""
TILE_ROWS: Final = 16.0
"""Sequences that the narrowest product computes together."""
VECTOR_ROWS: Final = 4.0
"""Sequences up to which a product is one with vectors, without tiles: 1080 Ti's rows of 1, 2 and 4 are alike."""
NARROW_STEP: Final = 8.0
NARROW_ROWS: Final = 16.0
SLOW_ROWS: Final = 32.0
COPY_PASSES, COPIES = 3.0, 4.0
"""Over weights that are copied (filled, read, written), and copies of one layer in one direction."""
GATE_STREAMS: Final = 4.0
"""Tensors of all gates that a step's arithmetic moves: two products' results, what the backward needs, the output."""
EARLY_STEPS: Final = 100.0
"""In the table each call's first steps take `early_us` longer, about these many: runs of 25 to 50 steps take twice as
long per step as those of 1,500 of the same size on V100. A host's doing: kernel times leave it out."""
LONGEST_PERSISTENT: Final = 1024
PERSISTENT_STEP: Final = 128
MOST_PERSISTENT_BATCH: Final = 128
LEAST_PERSISTENT_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which product runs in a step, arrays over problems and GPUs."""

    is_old: Mask
    is_narrow: Mask
    is_slow: Mask
    is_vector: Mask
    is_matrix: Mask
    """On matrix units."""
    is_unaligned: Mask
    """There, with rows that do not start at whole 16 bytes."""


def simulate(problems: RecurrentProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:  # noqa: ARG001
    """Return kernel times (a host's where the problems say so); there are no candidates to choose from."""
    p, is_kernel_timed = problems, problems.is_host_timed == 0
    v = {**values, **{name: np.where(is_kernel_timed, values[f"kernel_{name}"], values[name]) for name in APART}}
    kind = _kind(p, fleet)
    peak = _peak(p, fleet, kind)
    together = p.layers * p.directions
    chains = np.where(is_kernel_timed, together, 1.0 + (together - 1.0) * v["sequential_share"])
    early_us = np.where(p.is_host_timed > 0, v["early_us"] * np.minimum(1.0, EARLY_STEPS / p.steps), 0.0)
    is_backward, cycles = p.is_backward > 0, 1.0 / fleet.clock_hz
    host_us = v["wait_us"] * fleet.launch_ratio + np.where(kind.is_vector, 0.0, v["tile_us"] + early_us)
    kernels_us = v["step_us"] * fleet.launch_ratio * np.where(is_backward, v["gradient_step_ratio"], 1.0)
    wait_us = np.where(is_kernel_timed, kernels_us, host_us)
    across = np.minimum(np.ceil(p.batch / TILE_ROWS) * TILE_ROWS, TILE)
    is_square = is_kernel_timed & (p.element_bytes > HALF_BYTES) & (is_backward | kind.is_matrix)
    across = np.where(is_square, TILE, across)
    narrow_tiles = np.ceil(p.gates * p.hidden_size / NARROW_TILE) * np.ceil(p.batch / NARROW_TILE)
    is_small = is_kernel_timed & ~is_square & ~kind.is_matrix & (narrow_tiles <= fleet.sm_count)
    across = np.where(is_small, np.minimum(across, NARROW_TILE), across)
    rounds = np.ceil(p.gates * p.hidden_size / TILE) * np.ceil(p.batch / across) / fleet.sm_count
    # The data gradient's products are as deep as all gates, but as narrow as the state: few blocks, which share out k.
    parts = np.floor(fleet.sm_count / (np.ceil(p.hidden_size / TILE) * np.ceil(p.batch / across)))
    few = np.where(p.gates * p.hidden_size > DEEPEST, MOST_PARTS, 1.0)
    parts = np.where(parts < LEAST_PARTS, few, np.minimum(parts, MOST_PARTS))
    alone = np.where(is_kernel_timed & is_backward, p.gates / parts, 1.0)
    shared = np.where(is_backward, p.gates ** v["gradient_exponent"], 1.0)
    depth = p.hidden_size * np.where(is_kernel_timed, alone, shared)
    whole = p.hidden_size * np.where(is_backward, p.gates, 1.0)
    own = np.where(kind.is_matrix, v["matrix_chain_cycles"], v["lane_chain_cycles"] * across / TILE)
    own = np.where(is_kernel_timed, np.where(kind.is_vector, 0.0, own), v["chain_cycles"])
    chain = np.where(kind.is_slow, whole * v["slow_chain_cycles"], depth * own) * cycles
    exact = v["exact_rounds_share"]
    rounds = exact * np.ceil(rounds) + (1.0 - exact) * np.maximum(rounds, 1.0)
    rounds = np.maximum(rounds, alone)
    slower = np.where(kind.is_unaligned, v["unaligned_ratio"], 1.0)
    wide = _wideness(p, v, kind)
    efficiency = _efficiency(p, fleet, v, kind, peak) / (slower * wide)
    tiled = 2.0 * rounds * TILE * across * p.hidden_size * fleet.sm_count / (peak * efficiency)
    rows = np.ceil(p.batch / NARROW_STEP) * NARROW_STEP
    narrow = 2.0 * rows * state_weights(p) / (peak * v["narrow_efficiency"])
    waits = slower * _norm(chain * wide, _read_s(p, fleet, v, kind))
    arithmetic = np.where(kind.is_vector, 0.0, np.where(kind.is_narrow, narrow, tiled))
    product = together * _norm(waits, arithmetic) + _streamed(p) * _norm(waits / STREAMED_STEPS, arithmetic)
    gates = GATE_STREAMS * p.batch * p.gates * p.hidden_size * p.element_bytes
    step_s = wait_us * 1e-6 * chains + together * gates / (dram_bytes_per_s(fleet, v) * v["gates_ratio"]) + product
    held = v["barrier_us"] * 1e-6 + 2.0 * p.batch * state_weights(p) / (peak * v["persistent_efficiency"])
    step_s = np.where(_is_persistent(p, fleet), np.minimum(held, step_s), step_s)
    layer_us = np.where(is_backward, v["gradient_layer_us"], v["layer_us"])
    layer_us = layer_us + np.where(_is_copied(p), COPIES * v["copy_us"], 0.0)
    call_us = np.where(is_kernel_timed, together * layer_us * fleet.launch_ratio, v["call_us"])
    time_ns = 1e9 * (_large_s(p, fleet, v, kind, peak) + p.walks * p.steps * step_s) + 1e3 * call_us
    unstated = np.where(is_kernel_timed & is_nvidia(fleet) & ~is_hopper(fleet), OTHER_KERNELS_LOG_WIDTH, 0.0)
    return Estimate(time_ns=time_ns, features=np.zeros((*time_ns.shape, 0)), unstated=unstated)


def _kind(p: RecurrentProblems, fleet: Fleet) -> _Kind:
    is_old, is_half, is_vector = is_before_volta(fleet), p.element_bytes < 4, p.batch <= VECTOR_ROWS
    is_own = is_half & has_unit(p.rate, fleet)  # not bf16 on Volta, which is widened
    is_matrix = np.where(p.rate == RATES.index(Rate.MATRIX_TF32), has_tf32(fleet), is_own) & ~is_old
    return _Kind(
        is_old=is_old,
        is_narrow=is_old & (p.batch <= NARROW_ROWS) & ~is_vector,
        is_slow=is_old & (p.batch > NARROW_ROWS) & ((p.batch <= SLOW_ROWS) | is_half),
        is_vector=is_vector,
        is_unaligned=is_matrix & is_half & ~is_vector & (p.hidden_size * p.element_bytes % ALIGNED_BYTES > 0),
        is_matrix=is_matrix,
    )


def _efficiency(p: RecurrentProblems, fleet: Fleet, v: Values, kind: _Kind, peak: Floats) -> Floats:
    """Return which part of `peak` a step's tiled products reach."""
    narrowness = WIDE_RATE * fleet.sm_count * fleet.matrix_clock_hz / (p.element_bytes * peak)
    reached = np.where(p.is_host_timed == 0, v["kernel_matrix_efficiency"] * np.maximum(narrowness, 1.0), np.inf)
    efficiency = np.where(kind.is_matrix, np.minimum(reached, v["matrix_efficiency"]), v["math_efficiency"])
    return np.asarray(efficiency * np.where(kind.is_old, v["old_math_ratio"], 1.0))


def _peak(p: RecurrentProblems, fleet: Fleet, kind: _Kind) -> Floats:
    """Return the rate of the unit that multiplies; what it does not take is computed in fp32."""
    is_own, single = kind.is_matrix | (p.element_bytes > 4), fleet.flops_per_s[Rate.MATRIX_FP32]
    return np.where(is_own, np.maximum(peak_flops_per_s(p.rate, fleet), fleet.flops_per_s[Rate.FP64]), single)


def _large_s(p: RecurrentProblems, fleet: Fleet, v: Values, kind: _Kind, peak: Floats) -> Floats:
    """Return the time of the products of all steps at once."""
    dram, together = dram_bytes_per_s(fleet, v), p.layers * p.directions
    flops = product_flops(p)[0] - 2.0 * p.steps * p.batch * p.walks * _streamed(p) * state_weights(p)
    # A weight gradient is as small as the weights: few blocks, each of which sums over all steps and sequences.
    columns = np.where(kind.is_matrix, LARGE_TILE, TILE)
    blocks = np.ceil(p.gates * p.hidden_size / LARGE_TILE) * np.ceil(p.hidden_size / columns)
    busy = np.clip(blocks / fleet.sm_count, LEAST_BUSY, 1.0) / _wideness(p, v, kind)
    own = 2.0 * p.steps * p.batch * p.directions * p.weight_gradients * (p.layers * state_weights(p) + input_weights(p))
    flops = flops + np.where(p.is_host_timed > 0, 0.0, own * (1.0 / busy - 1.0))
    efficiency = np.where(kind.is_matrix, v["matrix_large_efficiency"], v["large_efficiency"])
    inputs = p.directions * input_weights(p) * p.element_bytes
    streams = p.steps * p.batch * together * p.hidden_size * (p.gates + 2.0) * p.element_bytes + p.walks * inputs
    slower = np.where(kind.is_unaligned, UNALIGNED_LARGE, 1.0)
    product = np.maximum(flops * slower / (peak * efficiency), np.where(flops > 0, streams / dram, 0.0))
    weights = together * state_weights(p) * p.element_bytes + inputs
    passes = p.weight_gradients * v["weight_passes"] + np.where(_is_copied(p), COPY_PASSES, 0.0)
    bias_cycles = BIAS_CYCLES * p.weight_gradients * p.steps * p.batch * p.gates * together * (p.is_host_timed == 0)
    return np.asarray(product + passes * weights / dram + bias_cycles / fleet.clock_hz)


def _streamed(p: RecurrentProblems) -> Floats:
    """Return the layers that run beside the one below, as recorded grids show; two directions wait for all steps."""
    is_stack = (p.directions == 1) & (p.batch > VECTOR_ROWS) & (p.is_host_timed == 0)
    return np.where(is_stack, p.layers - 1.0, 0.0)


def _wideness(p: RecurrentProblems, v: Values, kind: _Kind) -> Floats:
    """Return the slowness of gradients in TF32, which Hopper's matrix units take only with k innermost."""
    is_wide = kind.is_matrix & (p.element_bytes > HALF_BYTES) & (p.is_backward > 0)
    return np.where(is_wide, v["tf32_slowness"], 1.0)


def _is_copied(p: RecurrentProblems) -> Mask:
    """Say where PyTorch fills a buffer and copies all weights to it before a forward pass.

    It keeps weights together in the formats of `torch.backends.cudnn.is_acceptable`, of which bf16 is none.
    """
    is_bf16 = p.rate == RATES.index(Rate.MATRIX_BF16)
    return np.asarray(is_bf16 & (p.is_backward == 0) & (p.walks > 0) & (p.is_host_timed == 0))


def _read_s(p: RecurrentProblems, fleet: Fleet, v: Values, kind: _Kind) -> Floats:
    size = state_weights(p) * p.element_bytes
    l2 = l2_bytes_per_s(fleet, v) * np.where(p.is_host_timed > 0, 1.0, v["kernel_read_ratio"])
    held = v["resident_ratio"] * fleet.l2_cache_bytes / size
    missed = 1.0 / (1.0 + held * held * held)
    ratio = v["read_ratio"] * np.where(kind.is_narrow, v["narrow_ratio"] / np.ceil(p.batch / NARROW_STEP), 1.0)
    return size * (missed / (dram_bytes_per_s(fleet, v) * ratio) + 1.0 / l2)


def _norm(*parts: Floats) -> Floats:
    return np.cbrt(sum((part * part * part for part in parts), start=np.zeros(1)))


def _is_persistent(p: RecurrentProblems, fleet: Fleet) -> Mask:
    """Say where PyTorch asks for the persistent algorithm (`use_persist_common_heuristics` in its cudnn/RNN.cpp).

    Half precision alone, one layer and direction, sizes in steps of 128 up to 1,024, whole groups of eight sequences.
    The measured calls ask for the standard one.
    """
    fits = (p.layers * p.directions == 1) & (p.hidden_size <= LONGEST_PERSISTENT)
    fits = fits & (p.hidden_size % PERSISTENT_STEP == 0) & (p.input_size % PERSISTENT_STEP == 0)
    fits = fits & (p.batch % NARROW_STEP == 0) & (p.batch <= MOST_PERSISTENT_BATCH)
    fits = fits & (p.steps >= LEAST_PERSISTENT_STEPS) & (p.is_host_timed == 0)
    return np.asarray(fits & (p.rate == RATES.index(Rate.MATRIX_FP16)) & has_persistent_layers(fleet))


MODEL: Final = Model(
    name="recurrent", parameters=PARAMETERS, simulate=simulate, group_names=GROUPS, group=group, kind=kernel_kind
)
