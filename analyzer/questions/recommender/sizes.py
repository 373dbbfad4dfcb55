"""What a recommender is and how it is trained, as a file describes it: all that it is predicted from."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, structs

from ....errors import InputError
from ....formats.trace.printable import clean_text
from ....records import dataclass, field, replace
from ....specs.documents import read_table, read_toml
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


MOST_GPUS: Final = 1024
MOST_SAMPLES: Final = 10**9
_Rows = Annotated[int, Meta(ge=1, le=10**12)]
_Features = Annotated[int, Meta(ge=1, le=10**6)]
_Layers = Annotated[
    tuple[_Features, ...], Meta(min_length=1, max_length=64, description="up to 64 whole numbers from 1 to 1,000,000")
]
_Amount = Annotated[float, Meta(ge=0.0, le=1e6, description="a number from 0 to 1,000,000")]


class _Model(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str = "recommender"
    table_rows: Annotated[
        tuple[_Rows, ...],
        Meta(min_length=1, max_length=1024, description="up to 1,024 whole numbers from 1 to 1,000,000,000,000"),
    ]
    pooling: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=10**5)], ...],
        Meta(min_length=1, max_length=1024, description="up to 1,024 whole numbers from 1 to 100,000"),
    ] = (1,)
    width: _Features
    dense_features: _Features
    bottom: _Layers
    top: _Layers
    interaction: Interaction = Interaction.DOT
    cross_layers: Annotated[int, Meta(ge=1, le=64)] = 3
    cross_rank: _Features = 512


_FILE_KEYS: Final = {
    "overlaps": "overlap",
    "fuses_casts": "fused_casts",
    "replicated_rows": "replicate_below",
    "shard_cost": "part_cost",
    "table_gigabytes": "table_memory_gb",
    "has_fixed_bags": "fixed_bags",
}
"""What a file calls fields of `Training`."""


class _Training(Struct, kw_only=True, forbid_unknown_fields=True, rename=_FILE_KEYS):
    gpus: Annotated[int, Meta(ge=1, le=MOST_GPUS)]
    global_batch: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]
    layout: TableLayout = TableLayout.HYBRID
    host: HostWork = HostWork.GRAPH
    precision: Literal["float16", "float32"] = "float16"
    optimizer: Literal["sgd", "adagrad"] = "sgd"
    overlaps: bool = True
    sums_in_network: bool = False
    fuses_casts: bool = True
    replicated_rows: Annotated[int, Meta(ge=0, le=10**12)] = 0
    deal_to: Literal["gpus", "machines"] = "gpus"
    shard_cost: _Amount = USUAL_PART_COST
    table_gigabytes: _Amount = USUAL_TABLE_GB
    has_fixed_bags: bool = False


class _Document(Struct, kw_only=True, forbid_unknown_fields=True):
    model: _Model
    training: _Training


def read_recommender(path: Path) -> tuple[RecommenderSizes, Training]:
    """Return the recommender that a file describes, and its training on machines of as many GPUs as it has.

    Raises InputError, in one line, that names table and key.

    >>> path = folder / "job.toml"
    >>> _ = path.write_text('''
    ... [model]
    ... table_rows = [1000, 50]
    ... width = 64
    ... dense_features = 4
    ... bottom = [32, 64]
    ... top = [32, 1]
    ... [training]
    ... global_batch = 4096
    ... gpus = 8
    ... ''')
    >>> sizes, training = read_recommender(path)
    >>> sizes.pooling, training.layout.value, training.batch
    ((1, 1), 'hybrid', 512)
    """
    document = read_toml(path)
    model = document.get("model")
    if isinstance(model, dict):  # of one table or layer alone, its number will do
        for key in ("table_rows", "pooling", "bottom", "top"):
            if isinstance(model.get(key), int):
                model[key] = [model[key]]
    found = read_table(document, _Document, path.name, example="give it")
    return _model(found.model, path.name), _training(found.training, path.name)


def on_machines(training: Training, gpus_per_node: int) -> Training:
    """Return the training on machines of so many GPUs. Raises InputError where parts cannot be shared among these."""
    beside = min(gpus_per_node, training.gpus)
    if training.plans_nodes and training.gpus % beside:
        raise InputError(
            f"tables are dealt to machines of {beside} GPUs, of which {training.gpus} GPUs are no whole number: "
            "expected a multiple, or deal_to = 'gpus'"
        )
    return replace(training, gpus_per_node=beside)


def _model(said: _Model, file: str) -> RecommenderSizes:
    count = len(said.table_rows)
    pooling = said.pooling * count if len(said.pooling) == 1 else said.pooling
    if len(pooling) != count:
        raise InputError(f"{file}: model.pooling: expected {count} numbers, one per table, found {len(pooling)}")
    if said.bottom[-1] != said.width:
        raise InputError(
            f"{file}: model.bottom: expected the last layer to have the tables' width {said.width}, "
            f"found {said.bottom[-1]}"
        )
    return RecommenderSizes(**(structs.asdict(said) | {"name": clean_text(said.name), "pooling": pooling}))


def _training(said: _Training, file: str) -> Training:
    if said.global_batch < said.gpus:
        raise InputError(
            f"{file}: training.global_batch: expected at least a sample for each of {said.gpus} GPUs, "
            f"found {said.global_batch}"
        )
    known = structs.asdict(said)
    is_half, plans_nodes = known.pop("precision") == "float16", known.pop("deal_to") == "machines"
    return Training(**known, gpus_per_node=said.gpus, is_half=is_half, plans_nodes=plans_nodes)
