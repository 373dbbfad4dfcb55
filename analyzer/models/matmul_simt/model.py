"""Matrix products on vector (SIMT) units: fp32 without TF32, fp64, and matrix units that take fp32 itself (AMD)."""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Rows, Singles
from ....specs.fleet import Fleet
from ....specs.generations import is_async, is_before_volta, is_nvidia, sgemm_kernels
from ....specs.product_kernels import SgemmKernels
from ..frame.gpu_physics import event_time_ns
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from ..frame.problems import peak_flops_per_s
from ..matmul.feed import driven_out
from .limits import SimtRun, run_of
from .pairs import COLD_LATENCY, SimtPairs, missed, pairs_of, stack_pairs, take_pairs
from .problems import MatmulSimtProblems
from .tiles import LAYOUTS, MENUS, SPLIT, TILE_NAMES, SimtLaunch, launch_of, may_split

FEATURES: Final = (
    "log time / bound",
    "share of compute",
    "share of memory",
    "share of address translation",
    "log slow-down",
    "log waves",
    "tail",
    "log padding",
    "log tile area",
    "log split",
    "log k",
    "log m",
    "log n",
    "k contiguous",
)


PARAMETERS: Final = priors("matmul, vector units")
"""`other_instructions` 1 follows from counting, before any fit. That 128 lanes wait for issue slots and that writes are
not hidden was chosen with H100's rows in sight, `gddr_strided_ratio` with P4's. `matrix_load` is what MI100's kernels
take per word of their operands: MI100 left out is not blind to it. `throttle_exponent` is that of gpu_physics.py, from
A100's and L40's power curves.
`launch_us`: all models' microsecond and some of its 3,500 cycles; `split_us`: three kernels and the gaps between them.
Both are narrow because event times hardly tell them.
`accesses_per_clock`: that they hold up Hopper's results and operands is read off H100's kernels, which take as long on
H200; whichever chip is left out, fits of Pascal and of what followed end at 2.4 to 3.3. `gddr_strided_ratio`: one chip
tells it where the other is left out. `vector_load_ratio`: of a word across k, of which four come at once.
`paused_clock`: 5 % is declared; back to back a product of 4,096^3 takes 8 % less on H100 than after a pause.
`flushed_share`: matmul's. The skinny kernels' priors are guesses with Hopper's rows in sight."""
SKINNY_ROWS: Final = 16.0
CHAINED_ROWS: Final = 8.0
"""Vectors that lengthen a block's way along k as much as the matrix does."""
SKINNY_COLUMNS: Final = 48.0
"""Of the matrix, that a multiprocessor takes at once: six blocks of 128 threads with 75 registers, of eight columns."""
LANES: Final = 128.0
CLASSES: Final = ("before Volta", "Volta and later", "AMD")


def gpu_class(fleet: Fleet) -> Codes:
    """Return the class of each GPU; what is not NVIDIA counts as AMD."""
    return np.where(is_nvidia(fleet), np.where(is_before_volta(fleet), 0, 1), 2).astype(np.int64)


def simulate(problems: MatmulSimtProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return the time of the kernel that the library would launch."""
    pairs = pairs_of(problems, fleet, values)
    tile = choose_tile(problems, fleet, pairs) if choice is None else choice
    launch = launch_of(pairs, tile)
    run = run_of(pairs, launch)
    seconds = np.minimum(run.kernel_s, _skinny_s(problems, fleet, values))
    return Estimate(
        time_ns=_with_host(problems, values, np.asarray(seconds * 1e9, dtype=np.float64)),
        features=lambda: _features(problems, launch, run, fleet),
        choice=tile,
    )


def _skinny_s(p: MatmulSimtProblems, fleet: Fleet, values: Values) -> Floats:
    """Return what kernels without tiles take, which read a matrix once for a few vectors; infinite where none is.

    cuBLAS has them for few rows along k (`gemvx`, `gemv2T`, `gemmSN_TN`, `sgemm_largek`): DRAM, instructions an element
    of the matrix and per vector, and a block's way along k, which a product with one vector shares out. Measured on
    Hopper alone: with its numbers products of few rows were off by more on T4 and P100.
    """
    rows = np.minimum(p.m, p.n)
    elements = p.batch * np.maximum(p.m, p.n) * p.k
    cold = missed(p.copies * elements * p.element_bytes, values["l2_share"] * fleet.l2_cache_bytes)
    per_element = values["skinny_instructions"] + values["skinny_row_instructions"] * rows
    issued_s = elements * per_element / (LANES * fleet.sm_count * fleet.clock_hz)
    moved = elements * p.element_bytes * cold + driven_out(
        p.copies, elements * p.element_bytes, fleet.l2_cache_bytes, values
    )
    read_s = moved / (fleet.bandwidth_bytes_per_s * np.minimum(values["skinny_bandwidth"], 1.0))
    rounds = np.ceil(p.batch * np.maximum(p.m, p.n) / (SKINNY_COLUMNS * fleet.sm_count))
    depth = np.where(rows > 1.0, rounds * p.k * (1.0 + rows / CHAINED_ROWS), 0.0)
    chain_s = depth * values["skinny_chain_cycles"] * (1.0 + cold * (COLD_LATENCY - 1.0)) / fleet.clock_hz
    seconds = values["skinny_us"] * 1e-6 + np.sqrt(issued_s * issued_s + read_s * read_s + chain_s * chain_s)
    exists = (rows <= SKINNY_ROWS) & ((p.contiguous > 0) | (rows <= 1.0)) & is_async(fleet)
    return np.asarray(np.where(exists, seconds, np.inf))


def _with_host(p: MatmulSimtProblems, values: Values, kernel_ns: Floats) -> Floats:
    floor = np.where(np.isnan(p.host_floor_ns), values["host_floor_us"] * 1e3, p.host_floor_ns) * p.host_ratio
    if not np.any(floor):
        return kernel_ns
    return np.where(floor > 0, event_time_ns(kernel_ns, floor, values["host_overlap"]), kernel_ns)


def _features(p: MatmulSimtProblems, launch: SimtLaunch, run: SimtRun, fleet: Fleet) -> Floats:
    moved = p.element_bytes * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
    flops = 2.0 * p.batch * p.m * p.n * p.k
    bound_s = np.maximum(flops / peak_flops_per_s(p.rate, fleet), moved / fleet.bandwidth_bytes_per_s)
    waves = p.batch * launch.columns * launch.rows * launch.split / fleet.sm_count
    columns = (
        np.log(run.kernel_s / bound_s),
        run.compute_s * run.slow / run.kernel_s,
        run.memory_s / run.kernel_s,
        run.translation_s / run.kernel_s,
        np.log(run.slow),
        np.log(waves),
        np.minimum(np.ceil(waves) / waves, 4.0),
        np.log(launch.columns * launch.width * launch.rows * launch.height / (p.m * p.n)),
        np.log(launch.area / 4096.0),
        np.log(launch.split),
        np.log(p.k / 256.0),
        np.log(p.m / 256.0),
        np.log(p.n / 256.0),
        p.contiguous,
    )
    features = np.empty((*run.kernel_s.shape, len(columns)))
    for row, column in enumerate(columns):
        features[..., row] = column
    return features


def group(problems: MatmulSimtProblems) -> Codes:
    """Return 2 for kernels' own times; by a host's clock 1 for linear layers, 0 for other products."""
    return np.where(problems.host_floor_ns == 0.0, 2, problems.contiguous)


MODEL: Final = Model(
    name="matmul_simt",
    parameters=PARAMETERS,
    class_names=CLASSES,
    gpu_class=gpu_class,
    simulate=simulate,
    feature_names=FEATURES,
    group_names=("batched", "linear", "kernel times"),
    group=group,
)


PAIRS_AT_ONCE: Final = 2048
"""Products on GPUs whose candidates stay in the processor's cache."""


def _numbered_menus() -> tuple[list[list[Codes]], Codes]:
    """Return the different menus, of tiles [t, 1] and those that share k out [s, 1]; the number of each library's."""
    numbers: dict[tuple[tuple[str, ...], ...], int] = {}
    table = np.zeros((len(SgemmKernels), len(LAYOUTS)), dtype=np.int64)
    for library, layouts in MENUS.items():
        splits = SPLIT if library == SgemmKernels.HOPPER else ((), *layouts[1:])
        for row, menu in enumerate(zip(layouts, splits, strict=True)):
            table[library, row] = numbers.setdefault(menu, len(numbers))
    rows = {name: row for row, name in enumerate(TILE_NAMES)}
    return [[np.array([[rows[name]] for name in part]).reshape(-1, 1) for part in menu] for menu in numbers], table


_MENUS, _NUMBERS = _numbered_menus()


def choose_tile(problems: MatmulSimtProblems, fleet: Fleet, pairs: SimtPairs) -> Codes:
    """Return the choice of least time on each GPU's menu, [n, m], or [n] on a paired fleet; `launch_of` reads it.

    A GPU that is better in some figure is not slower by its choice: what it chooses costs no more than what the other
    one chose. A single product's k may be split or not. Times are compared in single precision.
    """
    library = sgemm_kernels(fleet)
    # Batches along k have tiles of their own on Hopper; elsewhere those of others (a DLRM's 128 x 32 recorded on V100).
    is_batch = (problems.batch > 1) & ((problems.contiguous == 0) | (library != SgemmKernels.HOPPER))
    is_biased = (problems.has_bias > 0) & ((problems.contiguous > 0) | (library != SgemmKernels.HOPPER))
    layout = np.where(is_batch, 0, np.where(is_biased, 3, 1 + problems.contiguous))
    number = _NUMBERS[library, layout]
    table = stack_pairs(pairs, number.shape)
    found = np.empty(number.size, dtype=np.int64)
    for menu, (whole, split) in enumerate(_MENUS):
        asked = np.flatnonzero(number == menu)
        for start in range(0, len(asked), PAIRS_AT_ONCE):
            chosen = asked[start : start + PAIRS_AT_ONCE]
            found[chosen] = _least(table, chosen, whole, split)
    return found.reshape(number.shape)


def _least(table: Singles, chosen: Rows, whole: Codes, split: Codes) -> Codes:
    """Return the choice of least time of some pairs: k in one piece unless its parts are faster."""
    whole = whole + len(TILE_NAMES)
    if len(whole) == 1 and not len(split):
        return np.full(len(chosen), whole[0, 0])
    pairs = take_pairs(table, chosen)
    best, least = _fastest(pairs, whole)
    idle = np.flatnonzero(may_split(pairs)) if len(split) else chosen[:0]
    if len(idle):
        parts, time_s = _fastest(take_pairs(table, chosen[idle]), split)
        best[idle] = np.where(time_s < least[idle], parts, best[idle])
    return best


def _fastest(pairs: SimtPairs, choices: Codes) -> tuple[Codes, Singles]:
    """Return the fastest of the choices [t, 1] of each pair, and its time; tiles that could share k out must do so."""
    launch = launch_of(pairs, choices)
    is_offered = (choices >= len(TILE_NAMES)) | (launch.split > 1)
    time_s = np.asarray(np.where(is_offered, run_of(pairs, launch).kernel_s, np.inf), dtype=np.float32)
    row = np.argmin(time_s, axis=0)
    return choices[row, 0], np.take_along_axis(time_s, row[None], axis=0)[0]
