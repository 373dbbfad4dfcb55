"""Own measurements of optimizer steps as problems of the vector model: kernel by kernel, by what each is named."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from ...specs.gpu import Catalog
from ..models.frame.problems import problems_from
from ..models.vector.problems import VectorKernel, VectorProblems
from ..work.optimizer import CHUNK, ROOT_OPERATIONS
from .own_ops import BYTES, COLUMNS, TABLE, own_share, read_own
from .samples import MeasurementTable, Samples, records_of, samples_of

KERNELS: Final[Mapping[tuple[str, int], tuple[int, int, int, int]]] = {
    ("UnaryOp", 2): (1, 1, 1, 1),
    ("BinaryOpScalar", 1): (1, 1, 1, 0),
    ("BinaryOpScalar", 2): (1, 1, 1, 0),
    ("BinaryOpListAlpha", 2): (2, 1, 2, 0),
    ("TernaryOpScalar", 2): (2, 1, 3, 0),
    ("ScalarListBina", 1): (1, 1, 1, 1),
    ("ScalarListPoin", 3): (3, 1, 3, 1),
    ("LpNorm", 1): (1, 0, 2, 0),
    ("FusedAd", 4): (4, 3, 15, 2),
    ("FusedSgd", 2): (2, 1, 4, 0),
    ("FusedSgd", 3): (3, 2, 7, 0),
}
"""Lists read and written, FLOPs, and divisions and roots per element, by the functor, as far as its name is recorded,
and the lists that a kernel is given. Of the steps only Adam's divide by a list of scalars."""
SETS: Final[Mapping[str, tuple[float, int]]] = {
    "bert_base": (0.95, CHUNK),
    "gpt2_medium": (0.97, CHUNK),
    "llama_1b": (1.0, CHUNK),
    "llama_3b": (1.0, CHUNK),
    "many_small": (1.0, 4096),
    "mlp": (0.5, CHUNK),
}
"""Sets whose tensors fill their chunks alike: the share of blocks that hold more than a bias, and what they hold."""
_FORM: Final = re.compile(r"(ScalarList)?Metadata<(?:float, )?(\d)>.*?::([A-Z]\w+)")


def load_lists(data: Path, trained: float, catalog: Catalog | None = None) -> list[Samples[VectorProblems]]:
    """Return the kernels over lists of tensors whose sizes are known; none where there is no table."""
    table = read_own(data, "optimizer", columns=(*COLUMNS, "kernel_us", "grids"))
    found = []
    for row, share in zip(records_of(table), own_share(table, trained).tolist(), strict=True):
        found += [(*item, row, share) for item in _kernels(row)]
    if not found:
        return []
    lists, written, flops, roots, blocks, held, time_us, rows, share = zip(*found, strict=True)
    width = np.array([BYTES[row["dtype"]] for row in rows])
    elements = np.multiply(blocks, held)
    every = width * np.array([row["dims"]["elements"] for row in rows])
    problems = problems_from(
        VectorProblems,
        len(found),
        kind=VectorKernel.LIST,
        read_bytes=elements * width * lists,
        written_bytes=elements * width * written,
        elements=elements,
        rows=blocks,
        columns=held,
        flops=elements * np.array(flops),
        index_operations=ROOT_OPERATIONS * np.array(roots),
        moved_since_bytes=np.add(lists, written) * (every - elements * width),
        launches=1.0,
        host_ratio=1.0,
        in_turn=1.0,
    )
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name in ("gpu", "dtype")}
    return [
        samples_of(
            MeasurementTable(data / TABLE, {**columns, "latency_us": np.array(time_us)}),
            "vector",
            problems,
            catalog,
            family="lists of tensors",
            share=np.array(share),
        )
    ]


def _kernels(row: Mapping[str, Any]) -> list[tuple[int, int, int, int, float, float, float]]:
    """Return what `KERNELS` tells, full blocks, elements of each and the median time of each kind of kernel."""
    if row["dims"]["set"] not in SETS:
        return []
    full, held = SETS[row["dims"]["set"]]
    by_kind: dict[tuple[tuple[str, int], int], list[float]] = defaultdict(list)
    for name, time, grid in zip(row["kernels"], row["kernel_us"], orjson.loads(row["grids"]), strict=True):
        form = _FORM.search(name)
        named = (f"{form[1] or ''}{form[3]}", int(form[2])) if form else ("", 0)
        key = next((key for key in KERNELS if named[0].startswith(key[0]) and named[1] == key[1]), None)
        # A fused step also counts steps, tensors of one element each.
        if key is not None and ("fused" in row["op"]) is key[0].startswith("Fused"):
            by_kind[key, grid[0]].append(time)
    return [
        (*KERNELS[key], full * blocks, float(held), float(np.median(times))) for (key, blocks), times in by_kind.items()
    ]
