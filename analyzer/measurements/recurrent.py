"""Recurrent layers measured alone: `ops/recurrent.parquet` (DeepBench) as problems of the recurrent model.

A host's clock over a hundred calls, cuDNN's standard algorithm, one layer, one direction. The inputs' product is
skipped there (`CUDNN_SKIP_INPUT`). Pascal's rows are cuDNN 6's, V100's cuDNN 7.6's. P100's fp16 rows hold one time for
the backward, which DeepBench's program of that time took of the data gradient alone. Our own rows, of cuDNN 9, are
kernel times.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...specs.gpu import Catalog, Rate
from ..models.recurrent.problems import RecurrentProblems, problems_of_dims
from ..work.work import Direction, RecurrentDims
from .own_ops import own_share, read_own
from .samples import Samples, pick, read_table, records_of, samples_of, shape_share
from .table_columns import check_known

TABLE: Final = "ops/recurrent.parquet"
SIZES: Final = ("batch", "steps", "input_size", "hidden_size", "layers")
GATES: Final = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}
DIRECTIONS: Final = {
    "forward": Direction.FORWARD,
    "backward_data": Direction.INPUT_GRADIENT,
    "backward": Direction.INPUT_GRADIENT,
    "backward_weights": Direction.WEIGHT_GRADIENT,
    "backward_both": Direction.BOTH_GRADIENTS,
}
RATES: Final = {"fp32": Rate.MATRIX_FP32, "tf32": Rate.MATRIX_TF32, "fp16": Rate.MATRIX_FP16, "bf16": Rate.MATRIX_BF16}
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
    names = ("op", "direction", *SIZES, "bidirectional")
    dims = [
        RecurrentDims(
            gates=GATES[op],
            layers=layers,
            directions=1 + bool(bidirectional),
            steps=steps,
            batch=batch,
            input_size=inputs,
            hidden_size=hidden,
            direction=DIRECTIONS[direction],
        )
        for op, direction, batch, steps, inputs, hidden, layers, bidirectional in zip(
            *(table[name].tolist() for name in names), strict=True
        )
    ]
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


def load_own(data: Path, catalog: Catalog | None = None) -> list[Samples[RecurrentProblems]]:
    """Return our own rows of torch's layers, none where there is no table: the sums of their kernels' times."""
    table = read_own(data, "recurrent", lambda row: row["op"] in GATES and row["dtype"] in RATES)
    if not len(table["gpu"]):
        return []
    dims = [
        RecurrentDims(
            gates=GATES[row["op"]],
            layers=row["dims"]["layers"],
            directions=1 + bool(row["dims"]["bidirectional"]),
            steps=row["dims"]["steps"],
            batch=row["dims"]["batch"],
            input_size=row["dims"]["input"],
            hidden_size=row["dims"]["hidden"],
            direction=Direction.FORWARD if row["direction"] == "forward" else Direction.BOTH_GRADIENTS,
        )
        for row in records_of(table)
    ]
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
