"""Recurrent layers measured alone: `ops/recurrent.parquet` (DeepBench) as problems of the recurrent model.

A host's clock over a hundred calls, cuDNN's standard algorithm, one layer, one direction. The inputs' product is
skipped there (`CUDNN_SKIP_INPUT`). Pascal's rows are cuDNN 6's, V100's cuDNN 7.6's. P100's fp16 rows hold one time for
the backward, which DeepBench's program of that time took of the data gradient alone. Our own rows, of cuDNN 9, are
kernel times.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...specs.gpu import Catalog
from ..models.recurrent.problems import RecurrentProblems, problems_of_dims
from ..work.work import Direction, RecurrentDims
from .convolution import DIRECTIONS as CONVOLUTIONS
from .own_ops import RATES, own_share, read_own
from .samples import Samples, pick, read_table, records_of, samples_of, shape_share
from .table_columns import check_known

TABLE: Final = "ops/recurrent.parquet"
SIZES: Final = ("batch", "steps", "input_size", "hidden_size", "layers")
GATES: Final = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}
DIRECTIONS: Final = {**CONVOLUTIONS, "backward": Direction.INPUT_GRADIENT}
COLUMNS: Final = ("gpu", "op", "direction", *SIZES, "bidirectional", "input_product", "dtype", "timing", "latency_us")
TRAINED_SHARE: Final = 0.6
"""Shapes below train: as in the model's recipe."""
HOST_TIMING: Final = "host_mean"
"""What the names of a host's timings begin with."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[RecurrentProblems]]:
    """Return all rows that are not suspect."""
    table = read_table(data / TABLE, COLUMNS)
    table = pick(table, ~table["suspect"].astype(bool)) if "suspect" in table else table
    for name, known in (("op", GATES), ("direction", DIRECTIONS), ("dtype", RATES)):
        check_known(table.path, name, table[name], known)
    dims = [_dims(row["op"], row, DIRECTIONS[row["direction"]]) for row in records_of(table)]
    problems = problems_of_dims(dims, [RATES[name] for name in table["dtype"].tolist()])
    problems = replace(
        problems,
        input_size=np.where(table["input_product"].astype(bool), problems.input_size, 0.0),
        is_host_timed=np.char.startswith(table["timing"].astype(str), HOST_TIMING).astype(np.float64),
    )
    gates, walk = problems.gates.astype(np.int64), problems.is_backward.astype(np.int64)
    return [
        samples_of(
            table,
            "recurrent",
            problems,
            catalog,
            family=[f"recurrent {name}" for name in table["op"].tolist()],
            share=shape_share(gates, walk, *(table[name] for name in SIZES)),
        ),
        *load_own(data, catalog),
    ]


def _dims(op: str, sizes: Mapping[str, Any], direction: Direction) -> RecurrentDims:
    """Return a layer; our own table's names lack `_size`."""
    return RecurrentDims(
        gates=GATES[op],
        layers=sizes["layers"],
        directions=1 + bool(sizes["bidirectional"]),
        steps=sizes["steps"],
        batch=sizes["batch"],
        input_size=sizes["input" if "input" in sizes else "input_size"],
        hidden_size=sizes["hidden" if "hidden" in sizes else "hidden_size"],
        direction=direction,
    )


def load_own(data: Path, catalog: Catalog | None = None) -> list[Samples[RecurrentProblems]]:
    """Return our own rows of torch's layers, none where there is no table: the sums of their kernels' times."""
    table = read_own(data, "recurrent", lambda row: row["op"] in GATES and row["dtype"] in RATES)
    if not len(table["gpu"]):
        return []
    ways = [Direction.FORWARD if way == "forward" else Direction.BOTH_GRADIENTS for way in table["direction"].tolist()]
    dims = [_dims(row["op"], row["dims"], way) for row, way in zip(records_of(table), ways, strict=True)]
    return [
        samples_of(
            table,
            "recurrent",
            problems_of_dims(dims, [RATES[name] for name in table["dtype"].tolist()]),
            catalog,
            family=[f"recurrent {name}, own" for name in table["op"].tolist()],
            share=own_share(table, TRAINED_SHARE),
        )
    ]
