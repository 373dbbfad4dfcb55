"""A recommender and its training as a TOML file: what is read, and what is refused in a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ....errors import InputError
from ....formats.trace.printable import clean_text
from ....specs.documents import read_table, read_toml
from .sizes import USUAL_PART_COST, USUAL_TABLE_GB, HostWork, Interaction, RecommenderSizes, TableLayout, Training

MOST_GPUS: Final = 1024
MOST_SAMPLES: Final = 10**9
_Rows = Annotated[int, Meta(ge=1, le=10**12)]
_Features = Annotated[int, Meta(ge=1, le=10**6)]
_Layers = Annotated[
    tuple[_Features, ...],
    Meta(min_length=1, max_length=64, description="up to 64 whole numbers from 1 to 1,000,000"),
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


class _Training(Struct, kw_only=True, forbid_unknown_fields=True):
    gpus: Annotated[int, Meta(ge=1, le=MOST_GPUS)]
    global_batch: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]
    layout: TableLayout = TableLayout.HYBRID
    host: HostWork = HostWork.GRAPH
    precision: Literal["float16", "float32"] = "float16"
    optimizer: Literal["sgd", "adagrad"] = "sgd"
    overlap: bool = True
    sums_in_network: bool = False
    fused_casts: bool = True
    replicate_below: Annotated[int, Meta(ge=0, le=10**12)] = 0
    deal_to: Literal["gpus", "machines"] = "gpus"
    part_cost: _Amount = USUAL_PART_COST
    table_memory_gb: _Amount = USUAL_TABLE_GB
    fixed_bags: bool = False


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
    return RecommenderSizes(
        name=clean_text(said.name),
        table_rows=said.table_rows,
        pooling=pooling,
        width=said.width,
        dense_features=said.dense_features,
        bottom=said.bottom,
        top=said.top,
        interaction=said.interaction,
        cross_layers=said.cross_layers,
        cross_rank=said.cross_rank,
    )


def _training(said: _Training, file: str) -> Training:
    if said.global_batch < said.gpus:
        raise InputError(
            f"{file}: training.global_batch: expected at least a sample for each of {said.gpus} GPUs, "
            f"found {said.global_batch}"
        )
    return Training(
        global_batch=said.global_batch,
        gpus=said.gpus,
        gpus_per_node=said.gpus,
        layout=said.layout,
        host=said.host,
        is_half=said.precision == "float16",
        optimizer=said.optimizer,
        overlaps=said.overlap,
        sums_in_network=said.sums_in_network,
        fuses_casts=said.fused_casts,
        replicated_rows=said.replicate_below,
        plans_nodes=said.deal_to == "machines",
        shard_cost=said.part_cost,
        table_gigabytes=said.table_memory_gb,
        has_fixed_bags=said.fixed_bags,
    )
