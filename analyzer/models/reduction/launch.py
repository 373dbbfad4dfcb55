"""What walks over rows: blocks, threads, and the loads that a thread waits for one after another.

Read off PyTorch's CUDA sources (Normalization.cuh, group_norm_kernel.cu, layer_norm_kernel.cu, ScanUtils.cuh, Loss.cu,
the pooling kernels); what cuDNN and Triton launch is what their profiles show: a block per channel or row.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Singles, last_power, next_power, single
from ....records import dataclass, replace
from ....specs.fleet import Fleet
from ....specs.generations import is_nvidia
from ...work.reduce_blocks import ReduceBlocks, column_blocks, row_blocks
from ...work.row_kernels import RowKernel
from ..frame.problems import take_problems
from .problems import ReductionProblems, alike, is_half, is_held, is_strided_scan

WARP: Final = 32.0
CHANNEL_THREADS: Final = 512.0
"""`MAX_BLOCK_SIZE` of the batch norm kernels; group norm's moments have as many (`kCUDABlockReduceNumThreads`)."""
TILE_COLUMNS, ROWS_PER_THREAD, MOST_TILES, LOADS_AT_ONCE = 32.0, 16.0, 128.0, 4.0
"""`OPTIMAL_TILE_W`, `ELEMENTS_PER_THREAD`, `MAX_H_BLOCK` and `PARALLEL_LOADS` of the kernels for channels last."""
LEAST_TILES: Final = 8.0
"""Tiles of a column under which one block takes it whole."""
COUNTER_STEPS, SHARING_STEPS = 2.0, 6.0
"""What a block writes for the last one, and the counter that tells which is; of the general reduction a block also
merges its threads' sums in shared memory before, and waits for two fences (`global_reduce` in Reduce.cuh)."""
MOST_PARTS: Final = 256.0 * 1024.0
"""Blocks of `batch_norm_transform_input` over all channels, unless there are more channels."""
VECTOR: Final = 4.0
BATCH_NORMS: Final = (RowKernel.BATCH_NORM, RowKernel.BATCH_NORM_BACKWARD, RowKernel.BATCH_NORM_ROWS_GRADIENT)
PERSISTENT: Final = (RowKernel.PERSISTENT_NORM, RowKernel.PERSISTENT_GRADIENT)
PERSISTENT_BLOCKS, TILE_CHANNELS, TILE_ROWS, MOST_SHARING, START_STEPS = 2.0, 64.0, 32.0, 264.0, 10.0
"""Of `semiPersist`: blocks of a multiprocessor; channels, and elements of them, that a block takes at a time (grids and
shared memory on H100: two to five times into registers, three to seven into shared memory); blocks whose parts are
added; a first load, in steps of those that add up parts."""
ROW_THREADS, FUSED_THREADS, POOL_THREADS = 128.0, 256.0, 256.0
PIXEL_THREADS: Final = 1024.0
"""The most threads of a block, which resampling kernels take."""
SCAN_THREADS: Final = 512.0
REDUCED_PER_BLOCK: Final = 8192.0
"""Elements of a reduction that a block of 512 threads takes at least, sixteen each."""
PICKED_PER_THREAD, TARGET_STEP = 16.0, 0.42
"""Rows that a thread picks a loss's entry of; of a step what its gradient waits for, while stores of 1,024 threads to
rows apart take a whole one (H100, 32 to 16,384 rows and recorded networks: 1.0 us a step, of 32 threads 0.45)."""
MOST_THREADS: Final = 1024.0
SCAN_STEPS: Final = 7.0
"""Levels of a scan's tree that its loads, stores and first and last sums are worth; a tree has at least four."""
SCAN_LOAD: Final = 0.5
"""Of a step of a scan, what is a load."""
SCANNED: Final = 3840.0
"""Up to so many columns a block of 512 threads scans one row; and what a block of a scan over one long row takes."""
LOOKUPS_PER_THREAD, STARTS_OF_RUN = 10.0, 4.0
"""Of a table's gradient: lookups of one row that a thread adds up (`NROWS_PER_THREAD` in EmbeddingBackwardKernel.cu),
and loads in turn that tell it which these are."""
FEW_SUMS, INDEX_TURNS = 528.0, 1.0 / 7.0
"""Blocks up to which parts are added by atomics (four for each SM of an H100); then one thread only numbers them, in
27 cycles each where it adds them in 190 (read off recorded networks on H100)."""
GRADIENT_ROWS: Final = 32.0
LONGEST_GRADIENT, PARTS_STEPS = 65536.0, 14.0
"""Rows that a block takes at a time for the gradients of weight and bias, and rows of more than which blocks share them
(`LaunchGammaBetaBackwardCUDAKernel`); then a sum of columns adds up their parts, in steps of one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowWalk:
    """Hold what n problems launch, as columns."""

    blocks: Floats
    threads: Floats
    steps: Floats
    """Loads that a thread waits for in turn."""
    last_steps: Floats
    """The same of a block that adds up what the others found, after them."""
    registers: Floats
    """Of a thread, where they limit the blocks that are resident together; else 0."""
    fills: Floats
    """Counters that are set to zero before, by a launch of their own."""
    held: Floats
    """Share of what is read twice that blocks keep from the first time."""
    walks: Floats
    """How often an element is computed with."""
    units: Floats
    """What instructions are counted for beside elements: threads, or rows that a block ends with."""


def walk_of(problems: ReductionProblems, fleet: Fleet) -> RowWalk:
    """Return blocks, threads and steps by the rule of each kernel; those of shared columns also by the GPU.

    Kernels without one run a thread per element; where no block waits for long, they count as one wave.
    """
    kernel = problems.kernel
    parts = [np.full(kernel.shape, POOL_THREADS), np.ones(kernel.shape)]
    blocks, (threads, steps) = np.where(np.isin(kernel, _BY_ELEMENT), problems.elements / POOL_THREADS, 1.0), parts
    for kernels, rule in _RULES:
        chosen = np.isin(kernel, kernels)
        if chosen.any():
            found = rule(take_problems(problems, chosen))
            for column, value in zip((blocks, threads, steps), found, strict=True):
                column[chosen] = value
    units = np.where(np.isin(kernel, _BY_ROW), problems.rows * alike(problems), blocks * threads)
    units = units * np.where(kernel == RowKernel.SORT_ROWS, problems.run, 1.0)
    held, last_steps, walks = is_held(problems).astype(float), _last_steps(problems), _walks(problems)
    is_wide = (kernel == RowKernel.BATCH_NORM) | (kernel == RowKernel.BATCH_NORM_BACKWARD) & (held > 0.0)
    registers = np.where(is_wide, WIDE_REGISTERS, 0.0)
    is_persistent = np.isin(kernel, PERSISTENT)
    if is_persistent.any():
        whole = zip(_persistent(problems, fleet), (held, last_steps), strict=True)
        held, last_steps = (np.where(is_persistent, found, usual) for found, usual in whole)
    if (is_parts := kernel == RowKernel.TOP_PARTS).any():
        own = _parts(problems, fleet)
        blocks, threads, steps = (np.where(is_parts, own[at], item) for at, item in enumerate((blocks, threads, steps)))
    if (is_few := kernel == RowKernel.BROADCAST).any():  # By cuDNN alone: others have as many as they need.
        steps = np.where(is_few & ~is_nvidia(fleet), 1.0, steps)
    columns = [blocks, threads, np.maximum(steps * walks, 1.0), last_steps, registers, np.zeros(kernel.shape)]
    for kernels, shared in _SHARED_RULES:
        chosen = np.isin(kernel, kernels)
        if chosen.any():
            columns = _with_shared(problems, fleet, columns, chosen, shared)
    return RowWalk(**dict(zip(_BY_KERNEL, columns, strict=True)), units=units, held=held, walks=walks)


_BY_KERNEL: Final = ("blocks", "threads", "steps", "last_steps", "registers", "fills")
_SharedRule = Callable[[Floats, Floats, Floats, Floats], ReduceBlocks]
"""Results, elements of each, multiprocessors, threads of each -> what is launched."""


def _with_shared(
    problems: ReductionProblems, fleet: Fleet, columns: Sequence[Floats], chosen: Mask, rule: _SharedRule
) -> list[Floats]:
    """Return the columns, with what the chosen reductions launch on each GPU: a thread takes four loads at once."""
    shape = np.broadcast_shapes(problems.kernel.shape, fleet.sm_count.shape)
    rows = np.flatnonzero(chosen)
    sms, threads = (np.broadcast_to(item, shape)[rows] for item in (fleet.sm_count, fleet.threads_per_sm))
    found = rule(problems.rows[rows], problems.columns[rows], sms, threads)
    adding = found.deep * (found.across if rule is row_blocks else 1.0)
    parts = (
        found.grid * found.sharing,
        found.across * found.deep,
        np.maximum(np.ceil(found.values / LOADS_AT_ONCE), 1.0),
        np.where(found.sharing > 1.0, SHARING_STEPS + np.ceil(found.sharing / adding), 0.0),
        np.where(found.width == VECTOR, WIDE_REGISTERS, 0.0),
        found.sharing > 1.0,
    )
    wide = [np.broadcast_to(item, shape).copy() for item in columns]
    for item, part in zip(wide, parts, strict=True):
        item[rows] = part
    return wide


TOP_KERNELS: Final = (RowKernel.TOP_ROWS, RowKernel.TOP_PARTS)
SORTED_BYTES: Final = 1150.0
"""Of keys, whose sort by one block takes as long as its start: up to 32 take 4 us, 1,024 floats 16 (H100, these in a
recorded network)."""
PARTS_PER_SM, MOST_IN_PARTS, COUNTED_AT_ONCE = 6.0, 64.0, 16.0
"""Blocks of a multiprocessor that share a topk's rows (40 registers a thread), and elements of a thread."""
COLUMN_WISE: Final = (RowKernel.REDUCE_COLUMNS, RowKernel.SELECT_COLUMNS)
WIDE_REGISTERS: Final = 56.0
"""Of threads that take four columns each (torch 2.11: 54 of sums, 54 to 61 of extremes, handed out by eights)."""
_BY_ELEMENT: Final = (RowKernel.POOL, RowKernel.POOL_BACKWARD, RowKernel.COMPILED_POOL, RowKernel.STREAM)
_ROW_WISE: Final = (RowKernel.REDUCE, RowKernel.SELECT_ROWS, RowKernel.MOMENT_ROWS, RowKernel.REDUCE_PIECES)
SHARED_KERNELS: Final = (*COLUMN_WISE, *_ROW_WISE)
_SHARED_RULES: Final = ((COLUMN_WISE, column_blocks), (_ROW_WISE, row_blocks))
_BY_ROW: Final = (*_ROW_WISE, RowKernel.SORT_ROWS, RowKernel.TOP_PARTS)
"""Kernels whose work beside elements is a row's: a block that ends with it, passes over a byte of a sort's keys."""


def streamed_blocks(problems: ReductionProblems) -> tuple[Floats, Floats]:
    """Return blocks and threads that move what is streamed with a scale and a shift per channel."""
    blocks, threads, _ = _channel_elements(problems)
    return np.where(problems.streaming == RowKernel.CHANNEL_ELEMENTS, blocks, 0.0), np.asarray(blocks * threads)


def streamed_steps(problems: ReductionProblems, resident: Singles) -> Singles:
    """Return the steps in turn of a stream over channels last, on GPUs of so many resident threads; of others 0."""
    blocks, threads, steps = _columns(replace(problems, kernel=problems.streaming))
    waves = np.maximum(single(blocks * threads) / resident, 1.0)
    return single(waves * single(np.where(problems.streaming == RowKernel.COLUMN_ELEMENTS, steps, 0.0)))


_Rule = Callable[[ReductionProblems], tuple[Floats | float, Floats | float, Floats | float]]
"""Problems of one kind -> blocks, threads, steps."""


def _pieces(problems: ReductionProblems) -> Floats:
    return np.maximum(problems.columns / np.maximum(problems.run, 1.0), 1.0)


def _channel(problems: ReductionProblems) -> tuple[Floats, float, Floats]:
    """A block per channel: threads along a run, the rest of them over its pieces."""
    wide = np.clip(next_power(problems.run), WARP, CHANNEL_THREADS)
    tall = CHANNEL_THREADS / wide
    return problems.rows, CHANNEL_THREADS, np.ceil(_pieces(problems) / tall) * np.ceil(problems.run / wide)


def _channel_sums(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    """The same, but threads over pieces come first, up to a warp's worth of blocks' width."""
    pieces = _pieces(problems)
    tall = np.minimum(last_power(pieces), CHANNEL_THREADS / WARP)
    wide = np.minimum(np.clip(next_power(problems.run), WARP, CHANNEL_THREADS), CHANNEL_THREADS / tall)
    return problems.rows, wide * tall, np.ceil(pieces / tall) * np.ceil(problems.run / wide)


def _channel_elements(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    pieces, run = _pieces(problems), problems.run
    least = np.clip(next_power(run), WARP, 2.0 * WARP)
    wide = np.clip(next_power(run / VECTOR), least, CHANNEL_THREADS)
    tall = np.maximum(2.0 * WARP / wide, 1.0)
    parts = np.minimum(np.maximum(MOST_PARTS / np.maximum(problems.rows, 1.0), 1.0), np.ceil(pieces / tall))
    return problems.rows * parts, wide * tall, np.ceil(run / wide) * np.ceil(pieces / (tall * parts))


def _columns(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    """Tiles of channels x elements (`flexible_launch_configs`)."""
    wide, tall, tiles = _column_tiles(problems)
    steps = np.ceil(problems.columns / (tall * tiles * LOADS_AT_ONCE))
    return np.ceil(problems.rows / wide) * tiles, wide * tall, steps


def _column_tiles(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    """Return a block's threads over channels and over elements, and the tiles of a column."""
    rows, columns = problems.rows, problems.columns
    wide = np.minimum(last_power(rows), TILE_COLUMNS)
    tall = np.minimum(last_power(np.ceil(columns / ROWS_PER_THREAD)), CHANNEL_THREADS / wide)
    wide = np.minimum(last_power(rows), CHANNEL_THREADS / tall)
    tiles = np.clip(np.ceil(columns / (tall * ROWS_PER_THREAD)), 1.0, MOST_TILES)
    return wide, tall, np.where((tiles < LEAST_TILES) & np.isin(problems.kernel, _TILED), 1.0, tiles)


def _last_steps(problems: ReductionProblems) -> Floats:
    """Return what the last block waits for: of a column's tiles their counter, then their sums; of a table's gradient
    the parts of the row that is looked up most, which one thread adds up; of the largest of a row their sort."""
    _, tall, tiles = _column_tiles(problems)
    is_tiled = np.isin(problems.kernel, _TILED) & (tiles > 1.0)
    is_table = problems.kernel == RowKernel.TABLE_GRADIENT
    sums, parts = problems.rows * np.ceil(problems.columns / MOST_THREADS), problems.flops / LOOKUPS_PER_THREAD
    is_atomic = (sums < FEW_SUMS) & (parts / np.maximum(problems.columns, 1.0) > 4.0 * sums)
    turns = problems.run / LOOKUPS_PER_THREAD * np.where(is_atomic, INDEX_TURNS, 1.0)
    is_sorted = np.isin(problems.kernel, TOP_KERNELS) & (problems.run > 1.0)
    walked = np.where(problems.rows <= LONGEST_GRADIENT, problems.rows, problems.rows / 32.0)
    has_parameters = (problems.kernel == RowKernel.ROW_BACKWARD) & (problems.launches > 1.0)
    kinds = [is_tiled, is_table, is_sorted, has_parameters]
    found = [COUNTER_STEPS + np.ceil(tiles / tall), turns, 1.0 + problems.run / SORTED_BYTES, walked / GRADIENT_ROWS]
    return np.select(kinds, found, 0.0)


def _by_row(threads: float, *, walks: float = 1.0) -> _Rule:
    """A block per row, whose threads take four of its elements at a time, in one walk or two."""

    def rule(problems: ReductionProblems) -> tuple[Floats, float, Floats]:
        return problems.rows, threads, walks * np.ceil(problems.columns / (VECTOR * threads))

    return rule


def _walks(problems: ReductionProblems) -> Floats:
    """Return how often a batch norm's block walks over its channel: twice, or once where it holds it; by pairs of
    halves in half a walk. A scan goes through a tree's levels for each two elements, or through none. Others once."""
    levels = np.where(problems.rows > 1.0, (SCAN_STEPS + _scan_power(problems)) / (SCAN_STEPS + 4.0), 1.0)
    levels = np.where(is_strided_scan(problems), SCAN_LOAD, levels)
    other = np.where(problems.kernel == RowKernel.SCAN, levels, 1.0)
    once = np.where(is_half(problems) & (problems.run % 2.0 == 0.0), 0.5, 1.0)
    return np.where(np.isin(problems.kernel, BATCH_NORMS), np.where(is_held(problems), once, 2.0), other)


def _persistent(problems: ReductionProblems, fleet: Fleet) -> tuple[Floats, Floats]:
    """Return the share that blocks keep, and their steps: those of an SM's two share the elements of some channels.

    All wait for each other, then add up each other's sums; so for the next channels.
    """
    is_forward = problems.kernel == RowKernel.PERSISTENT_NORM
    in_registers = TILE_ROWS * np.where(is_forward, np.where(is_half(problems), 5.0, 2.0), 3.0)
    most = in_registers + TILE_ROWS * np.where(is_forward, 7.0, 3.0)
    blocks, columns = PERSISTENT_BLOCKS * fleet.sm_count, np.maximum(problems.columns, 1.0)
    tiles = np.maximum(np.ceil(problems.rows / TILE_CHANNELS), 1.0)
    at_once = np.clip(np.floor(blocks / np.ceil(columns / most)), 1.0, tiles)
    sharing = np.minimum(np.ceil(columns / in_registers), MOST_SHARING / at_once)
    each = START_STEPS + SHARING_STEPS + sharing / (LOADS_AT_ONCE * CHANNEL_THREADS / TILE_CHANNELS)
    return np.minimum(most * blocks / columns, 1.0), np.ceil(tiles / at_once) * each - START_STEPS


def _parts(problems: ReductionProblems, fleet: Fleet) -> tuple[Floats, float, Floats]:
    """Blocks of one wave share the rows, 4 to 64 elements a thread, in a pass for each byte of a key and one more; a
    row's last block, which takes what is left of it, counts as that part of one."""
    passes = np.maximum(problems.launches // 3.0 - 2.0, 1.0)
    columns = problems.columns / passes
    each = np.ceil(problems.rows * columns / (fleet.sm_count * PARTS_PER_SM * POOL_THREADS))
    each = np.clip(each, VECTOR, MOST_IN_PARTS)
    sharing = np.maximum(columns / (each * POOL_THREADS), 1.0)
    steps = np.minimum(each, np.ceil(columns / POOL_THREADS)) + np.ceil(sharing) / COUNTED_AT_ONCE
    return problems.rows * sharing, POOL_THREADS, passes * steps


def _by_warps(most: float) -> _Rule:
    """A block per row, of whole warps; of a gather a thread for 16 bytes of it (`vectorized_gather_kernel`)."""

    def rule(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
        columns = np.where(problems.kernel == RowKernel.GATHER_ROWS, problems.run, problems.columns)
        threads = np.clip(np.ceil(columns / WARP) * WARP, WARP, most)
        return problems.rows, threads, np.ceil(columns / threads)

    return rule


def _fused(problems: ReductionProblems) -> tuple[Floats, float, Floats]:
    """A block per row, or several short rows."""
    taken = VECTOR * FUSED_THREADS
    return np.minimum(problems.rows, problems.elements / taken), FUSED_THREADS, np.ceil(problems.columns / taken)


def _scan(problems: ReductionProblems) -> tuple[Floats, float, Floats]:
    """Threads along a row by the sizes' logarithms (`get_log_num_threads_x_inner_scan` in ScanUtils.cuh).

    They are unsigned there: of far more rows than columns what is below zero wraps, and each takes a whole block. Along
    another dim than the last a thread walks over each row, and waits for each load, which its last store may change.
    """
    doubled, is_strided = _doubled_scan_power(problems), is_strided_scan(problems)
    is_whole, wide = problems.rows == 1.0, np.where(doubled < 0.0, SCAN_THREADS, 2.0 ** _scan_power(problems))
    blocks = np.where(
        is_whole, problems.columns / SCANNED, problems.rows * np.where(is_strided, 1.0, wide) / SCAN_THREADS
    )
    steps = np.where(is_whole, 1.0, np.ceil(problems.columns / np.where(is_strided, 1.0, 2.0 * wide)))
    return np.ceil(blocks), SCAN_THREADS, steps


def _doubled_scan_power(problems: ReductionProblems) -> Floats:
    rows, columns = np.maximum(problems.rows, 1.0), np.maximum(problems.columns, 1.0)
    return np.asarray(9.0 + np.ceil(np.log2(columns)) - np.ceil(np.log2(rows)))


def _scan_power(problems: ReductionProblems) -> Floats:
    return np.asarray(np.clip(np.floor(_doubled_scan_power(problems) / 2.0), 4.0, 9.0))


def _broadcast(problems: ReductionProblems) -> tuple[Floats, float, Floats]:
    """Up to 13 blocks share an image (H100), sixteen elements a thread; it waits for each, and for its scale."""
    tiles = np.clip(np.ceil(problems.columns / REDUCED_PER_BLOCK), 1.0, 13.0)
    return problems.rows * tiles, CHANNEL_THREADS, 2.0 * np.ceil(problems.columns / (tiles * CHANNEL_THREADS))


def _interpolate(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    """A thread per pixel, for all images."""
    threads = np.clip(problems.rows, WARP, PIXEL_THREADS)
    return np.ceil(problems.rows / threads), threads, problems.columns


def _table_gradient(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    """A thread per column and part of a row's lookups, then one per column and row, which adds up its parts."""
    lookups, rows = problems.flops / np.maximum(problems.columns, 1.0), np.maximum(problems.rows, 1.0)
    wide = np.maximum(np.ceil(problems.columns / WARP), 1.0) * WARP
    threads, parts = np.minimum(wide, MOST_THREADS), rows + lookups / LOOKUPS_PER_THREAD
    steps = STARTS_OF_RUN + np.minimum(lookups / rows, LOOKUPS_PER_THREAD)
    return np.ceil((parts + rows) * wide / threads), threads, steps


def _softmax_gradient(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    """A block per row, whose threads take 16 bytes at a time (`SoftMax_getBlockSize`)."""
    taken = VECTOR * np.where(is_half(problems), 2.0, 1.0)
    threads = np.clip(next_power(problems.columns / taken) / 2.0, WARP, CHANNEL_THREADS)
    return problems.rows, threads, np.ceil(problems.columns / (taken * threads))


def _pick(problems: ReductionProblems) -> tuple[Floats, Floats, Floats]:
    """One block (`nll_loss_threads`), or one per image and part of its pixels; gradients wait for their stores."""
    rows, is_gradient = problems.rows, (problems.streamed_bytes > 0) & (problems.streamed_bytes < problems.least_bytes)
    usual = np.clip(2.0 ** np.round(np.log2(np.maximum(rows // PICKED_PER_THREAD, 1.0))), WARP, MOST_THREADS)
    threads = np.where(problems.columns > 1, problems.columns, usual)
    stores = np.where(problems.columns > 1, 0.0, threads / MOST_THREADS)
    return np.ones(rows.shape), threads, np.ceil(rows / threads) * np.where(is_gradient, TARGET_STEP + stores, 1.0)


_TILED: Final = (RowKernel.COLUMN_MOMENTS, RowKernel.COLUMN_SUMS)
_RULES: Final[Sequence[tuple[tuple[RowKernel, ...], _Rule]]] = (
    ((RowKernel.MOMENTS, RowKernel.BATCH_NORM_ROWS_GRADIENT), _channel),
    ((RowKernel.CHANNEL_SUMS,), _channel_sums),
    ((RowKernel.CHANNEL_ELEMENTS,), _channel_elements),
    ((*_TILED, RowKernel.COLUMN_ELEMENTS), _columns),
    ((RowKernel.BATCH_NORM, RowKernel.BATCH_NORM_BACKWARD), _by_row(CHANNEL_THREADS)),
    ((RowKernel.ROW_FORWARD, RowKernel.ROW_BACKWARD), _by_row(ROW_THREADS, walks=2.0)),
    (
        (RowKernel.FUSED_FORWARD, RowKernel.FUSED_BACKWARD, RowKernel.COMPILED_FORWARD, RowKernel.COMPILED_BACKWARD),
        _fused,
    ),
    ((RowKernel.COMPILED_REDUCE,), lambda found: (found.elements / REDUCED_PER_BLOCK, CHANNEL_THREADS, LOADS_AT_ONCE)),
    ((RowKernel.SOFTMAX_GRADIENT,), _softmax_gradient),
    ((RowKernel.GATHER_ROWS,), _by_warps(FUSED_THREADS)),
    ((RowKernel.ROOT_NORM,), _by_row(ROW_THREADS)),
    ((RowKernel.TOP_ROWS,), _by_warps(MOST_THREADS)),
    # Passes in turn for each byte of a key; what many rows take are instructions.
    ((RowKernel.SORT_ROWS,), lambda problems: (1.0, POOL_THREADS, problems.run)),
    ((RowKernel.TABLE_FEW,), lambda problems: (np.ceil(problems.columns / WARP), MOST_THREADS, problems.rows)),
    ((RowKernel.TABLE_GRADIENT,), _table_gradient),
    ((RowKernel.SCAN,), _scan),
    ((RowKernel.PICK,), _pick),
    ((RowKernel.INTERPOLATE,), _interpolate),
    ((RowKernel.BROADCAST,), _broadcast),
)
