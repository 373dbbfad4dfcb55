"""What a recommender is and how it is trained: all that its iteration is predicted from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ...work.indices import USUAL, Indices

PAD: Final = 8
"""Features to which widths of products are filled up: 16 bytes of 16-bit elements, as matrix units load them."""


USUAL_PART_COST: Final = 1.75
USUAL_TABLE_GB: Final = 60.0
"""Of a collection's planner, in HugeCTR's configuration for a DGX H100 (samples/dlrm/config_DGXH100_1x8x6912.sh: a
ratio of 7 over its default of 4) and by default."""

MEMORY_SHARE: Final = 0.75
"""Of a GPU's memory, that tables may take at most: 60 of an H100's 80 GB."""


class Interaction(StrEnum):
    """Name what stands between vectors and the top layers."""

    DOT = "dot"
    """Products of all pairs of vectors (DLRM, arXiv 1906.00091)."""
    CROSS = "cross"
    """Low-rank cross layers over all vectors side by side (DCNv2, arXiv 2008.13535)."""


class TableLayout(StrEnum):
    """Name how tables are shared among GPUs, and by whose kernels."""

    HYBRID = "hybrid"
    """HugeCTR's hybrid embedding: rows looked up often on all GPUs, each other row on one."""
    COLLECTION = "collection"
    """HugeCTR's embedding collection: small tables on all GPUs, others in parts that its planner deals out."""
    LOCALIZED = "localized"
    """Whole tables dealt out one after the other: HugeCTR's localized slots, NVIDIA's DLRM of PyTorch."""


class HostWork(StrEnum):
    """Name what the host does for an iteration."""

    GRAPH = "graph"
    """It launches one CUDA graph."""
    NATIVE = "native"
    """It launches each kernel, from C++."""
    EAGER = "eager"
    """It runs PyTorch's eager mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderSizes:
    """Hold a recommender: dense features through the bottom layers, lookups, what joins them, the top layers."""

    name: str
    table_rows: tuple[int, ...]
    pooling: tuple[int, ...]
    """Lookups of each table per sample; their rows are added up."""
    width: int
    """Of the tables' rows."""
    dense_features: int
    bottom: tuple[int, ...]
    """Outputs of the bottom layers; the last one is `width`."""
    top: tuple[int, ...]
    interaction: Interaction
    cross_layers: int = 3
    cross_rank: int = 512

    @property
    def vectors(self) -> int:
        """Return how many vectors of a sample are joined: one per table, and the bottom layers' result."""
        return len(self.table_rows) + 1

    @property
    def joined(self) -> int:
        """Return the features that the top layers take in, filled up."""
        if self.interaction is Interaction.CROSS:
            return self.vectors * self.width
        return padded(self.vectors * (self.vectors - 1) // 2 + self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Hold how it is trained: on what, and with which implementation. The latter is given, never fitted."""

    global_batch: int
    gpus: int
    gpus_per_node: int
    layout: TableLayout
    host: HostWork
    is_half: bool = True
    """Whether layers, vectors and gradients have 16 bits, with master weights and tables in float32."""
    optimizer: str = "sgd"
    """`sgd`, or `adagrad` with a float32 beside each parameter, tables included."""
    overlaps: bool = True
    """Whether vectors are sent beside the bottom layers, and gradients beside the tables' update."""
    sums_in_network: bool = False
    """Whether switches between machines add up gradients (InfiniBand with SHARP)."""
    fuses_casts: bool = True
    """Whether the optimizer writes the 16-bit weights too."""
    replicated_rows: int = 0
    """Of a collection: tables of fewer rows are on all GPUs."""
    plans_nodes: bool = False
    """Of a collection: parts are dealt out to machines, whose GPUs share each evenly."""
    shard_cost: float = USUAL_PART_COST
    """Of a collection's planner: what each part costs beside its lookups, in lookups per sample."""
    table_gigabytes: float = USUAL_TABLE_GB
    """Of each GPU's memory, that a collection's planner gives to tables and their state."""
    duplicate_share: float = 0.03
    """Of the hybrid embedding within one machine: a row is on all GPUs where it is more often twice in a GPU's
    batch."""
    indices: Indices = field(default=USUAL)
    """How a table's lookups are spread, of the first index of each bag."""
    has_fixed_bags: bool = False
    """Whether each first index has its own bag, drawn evenly once, as in MLPerf's synthetic bags
    (facebookresearch/dlrm, torchrec_dlrm/multi_hot.py); else indices of a bag are drawn like the first one."""

    @property
    def batch(self) -> int:
        """Return the samples of one GPU."""
        return max(self.global_batch // self.gpus, 1)

    @property
    def nodes(self) -> int:
        """Return how many machines it runs on."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def dtype(self) -> str:
        """Return the dtype of layers and vectors."""
        return "float16" if self.is_half else "float32"


def padded(features: int) -> int:
    """Return a number of features filled up to a multiple of `PAD`.

    >>> padded(479), padded(13)
    (480, 16)
    """
    return -(-features // PAD) * PAD
