"""Embedding tables: rows from L2 or from DRAM, by how lookups are spread over them.

    t = launches + sort + (Td^4 + Tl^4 + Tw^4)^(1/4)

Tl: all bytes over the L2 rate; Td: what L2 does not hold over the rate of DRAM, rows that are rewritten over the lower
rate of scattered reads and writes; Tw: FBGEMM's waves of blocks, which take their time for short and empty bags too.
Kernels walk over one table after another, so each finds the whole cache for itself and nothing of its rows in it,
unless all that was moved since their last use fits (`hits.py`):

    misses = s * misses for ever + (1 - s) * misses of a call that begins with nothing,   s = 1 / (1 + (moved / L2)^16)

The exponent is the vector model's: a stream that comes round evicts itself within a few percent of the cache's size.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ....specs.generations import has_tf32
from ...work.embedding_dims import EmbeddingStep
from ..frame import gpu_physics
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from .hits import characteristic_time, cold_misses, steady_misses, touched_rows
from .problems import GROUPS, EmbeddingProblems, group, spreads_of

SECTOR_BYTES: Final = 32.0
"""What L2 is filled by: a row takes whole ones."""
LINE_BYTES: Final = 128.0
"""What L2 is tagged by: rows of fewer bytes take up a line each, as neighbours in a table are seldom neighbours in
time."""
COLD_EXPONENT: Final = 16.0
MOST_PRESSURE: Final = 1e3
KEY_BYTES: Final = 16.0
"""Of an index and where it came from, as they are sorted."""
RADIX_BITS: Final = 8.0
PAIRS_AT_A_TIME: Final = 4096
"""Of a problem and a GPU: with their bins about what a processor's cache holds."""

PARAMETERS: Final = (
    *gpu_physics.DRAM_PARAMETERS,
    *gpu_physics.L2_PARAMETERS,
    *gpu_physics.LAUNCH_PARAMETERS,
    *priors("embedding"),
)
"""`whole_l2_ratio` and `halved_l2_ratio` (A100 on): what L2 holds over its size, as the vector model was fitted;
membench's dependent loads on V100 take half as long again at 1.04 times its L2. `row_read_ratio`: what membench's
copies reach of what its reads reach (V100, A100, H100 PCIe: 0.88 to 0.98), as rows come in pieces and results are
written between them; zeros are written at the whole rate. `rewrite_ratio`: a scattered row that is read and written
back turns the bus round and opens its page twice; the one value that was set by measurements, V100's rows of a fused
SGD with 16 indices per bag (embedding_check.py at f56f3bcf leaves these two out of its score).
`sort_pass_launches`: histogram, scan, scatter for each eight bits."""
BLOCKS_PER_SM: Final = 3.0
"""Of 512 threads, with the 33 registers that FBGEMM's forward kernels have in both recordings."""
WAVE_CYCLES: Final = 2800.0
"""What a wave of FBGEMM's blocks takes however little its bags hold. Two calls on a recorded A100 set it, of 6.3 and
37.9 waves; a V100's two of one wave check it (fbgemm_recordings.py at f56f3bcf)."""


def simulate(problems: EmbeddingProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:  # noqa: ARG001
    """Return kernel times; there are no candidates to choose from."""
    # Rows are read in sectors, in an order that the indices give, so DRAM serves them at a lower rate than streams
    # (`row_read_ratio`). Updates read and write a row with its state, hence `per_row` of two; the dense gradient writes
    # the whole table. Gradients that must add up rows of one index first sort the indices: a radix sort passes over its
    # keys once per RADIX_BITS of the table's rows, each pass a few launches. What L2 holds of the rows was worked out
    # by `_table_rows`.
    p, v = problems, values
    held = np.where(fleet.has_hbm & has_tf32(fleet), v["halved_l2_ratio"], v["whole_l2_ratio"]) * fleet.l2_cache_bytes
    missed, touched = _table_rows(p, held)
    sector = SECTOR_BYTES * np.ceil(p.row_bytes / SECTOR_BYTES)
    rewritten = np.where(p.step == EmbeddingStep.UNSORTED_UPDATE, missed, touched) * (sector + p.state_bytes)
    is_lookup, is_dense = p.step == EmbeddingStep.LOOKUP, p.step == EmbeddingStep.DENSE_GRADIENT
    whole_table = np.where(is_dense, p.tables * p.rows * p.row_bytes, 0.0)
    is_coalesce = p.step == EmbeddingStep.COALESCE
    per_row = np.where(is_dense, 1.0, np.where(is_coalesce, 0.0, 2.0)) * rewritten
    stream = _cold_share(p, held, touched * sector) * p.streamed_bytes
    dram = gpu_physics.dram_bytes_per_s(fleet, v)
    in_order = np.where(is_lookup, missed, np.where(is_coalesce, touched, 0.0)) * sector
    plain = (stream + in_order) / (v["row_read_ratio"] * dram)
    dram_s = whole_table / dram + plain + np.where(is_lookup, 0.0, per_row / (v["rewrite_ratio"] * dram))
    asked = np.where(p.step == EmbeddingStep.UNSORTED_UPDATE, 2.0, 1.0) * p.lookups * sector
    l2_s = (asked + p.streamed_bytes + whole_table) / gpu_physics.l2_bytes_per_s(fleet, v)
    passes = np.where(
        is_dense | is_coalesce | (p.step == EmbeddingStep.UPDATE),
        np.ceil(np.log2(np.maximum(p.tables * p.rows, 2.0)) / RADIX_BITS),
        0.0,
    )
    sort_s = passes * 2.0 * KEY_BYTES * p.lookups / dram
    launches = 1.0 + is_dense + np.where(passes > 0, 2.0 + v["sort_pass_launches"] * passes, 0.0)
    waves = np.where(p.blocks > 0, np.maximum(p.blocks / (BLOCKS_PER_SM * fleet.sm_count), 1.0), 0.0)
    wave_s = waves * WAVE_CYCLES / fleet.clock_hz
    busy_s = np.sqrt(np.sqrt(dram_s**4 + l2_s**4 + wave_s**4))
    time_ns = 1e9 * (launches * gpu_physics.launch_s(fleet, v) + sort_s + busy_s)
    unstated = np.broadcast_to(p.unstated, time_ns.shape) if (p.unstated > 0).any() else None
    return Estimate(time_ns=time_ns, features=np.empty((*time_ns.shape, 0)), unstated=unstated)


def _table_rows(p: EmbeddingProblems, held_bytes: Floats) -> tuple[Floats, Floats]:
    """Return how often L2 lacks a row that is looked up, and how many different rows are, of all tables."""
    line = LINE_BYTES * np.ceil(p.row_bytes / LINE_BYTES)
    shape = np.broadcast_shapes(p.rows.shape, held_bytes.shape)
    codes = np.broadcast_to(p.indices, shape).reshape(-1)
    columns: tuple[Floats, ...] = (p.rows, p.lookups / np.maximum(p.tables, 1.0), held_bytes / line)
    rows, lookups, capacity = (np.broadcast_to(item, shape).reshape(-1) for item in columns)
    cold, steady, touched = (np.empty(len(codes)) for _ in range(3))
    for begin in range(0, len(codes), PAIRS_AT_A_TIME):
        at = slice(begin, begin + PAIRS_AT_A_TIME)
        counts, share = spreads_of(codes[at], rows[at])
        time = characteristic_time(counts, share, capacity[at])
        cold[at] = cold_misses(counts, share, time, lookups[at])
        steady[at] = lookups[at] * steady_misses(counts, share, time)
        touched[at] = touched_rows(counts, share, lookups[at])
    cold, steady, touched = (p.tables * item.reshape(shape) for item in (cold, steady, touched))
    lost = _cold_share(p, held_bytes, touched * line)
    return np.asarray(lost * cold + (1.0 - lost) * np.minimum(steady, cold)), np.asarray(touched)


def _cold_share(p: EmbeddingProblems, held_bytes: Floats, table_bytes: Floats) -> Floats:
    """Return the share of bytes that L2 lost since their last use, an iteration ago."""
    moved = p.moved_since_bytes + p.streamed_bytes + table_bytes
    pressure = np.minimum(moved / held_bytes, MOST_PRESSURE) ** COLD_EXPONENT
    return np.asarray(pressure / (1.0 + pressure))


MODEL: Final = Model(name="embedding", parameters=PARAMETERS, simulate=simulate, group_names=GROUPS, group=group)
