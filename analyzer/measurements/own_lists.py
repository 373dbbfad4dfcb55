"""Own measurements of optimizer steps as problems of the vector model: kernel by kernel, by what each is named."""

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from ...specs.gpu import Catalog
from ..models.frame.problems import problems_from
from ..models.vector.problems import VectorKernel, VectorProblems
from ..work.optimizer import CHUNK
from .own_ops import BYTES, COLUMNS, TABLE, own_rows, own_share, read_own
from .samples import Samples, gpus_of

KERNELS: Final[Mapping[tuple[str, int], tuple[int, int, int]]] = {
    ("UnaryOp", 2): (1, 1, 8),
    ("BinaryOpScalar", 1): (1, 1, 1),
    ("BinaryOpScalar", 2): (1, 1, 1),
    ("BinaryOpListAlpha", 2): (2, 1, 2),
    ("TernaryOpScalar", 2): (2, 1, 3),
    ("FusedAd", 4): (4, 3, 15),
    ("FusedSgd", 2): (2, 1, 4),
    ("FusedSgd", 3): (3, 2, 7),
}
"""Lists read and written and FLOPs per element, by the functor and the lists that a kernel is given."""
ALIKE: Final = frozenset({"bert_base", "gpt2_medium", "llama_1b", "llama_3b", "many_small"})
"""Sets whose tensors fill their chunks alike, so that a block's elements are known."""
FEWEST_BLOCKS: Final = 64
"""Fewer blocks are a set's last, of which tensors are not known."""
_FORM: Final = re.compile(r"Metadata<(?:float, )?(\d)>.*::(\w+)")


def load_lists(data: Path, trained: float, catalog: Catalog | None = None) -> list[Samples[VectorProblems]]:
    """Return the kernels over lists of tensors whose sizes are known; none where there is no table."""
    table = read_own(data, "optimizer", columns=(*COLUMNS, "kernel_us", "grids"))
    found = []
    for row, share in zip(own_rows(table), own_share(table, trained).tolist(), strict=True):
        found += [(*item, row, share) for item in _kernels(row)]
    if not found:
        return []
    lists, written, flops, blocks, held, time_us, rows, share = zip(*found, strict=True)
    width = np.array([BYTES[row["dtype"]] for row in rows])
    elements = np.multiply(blocks, held)
    gpus, gpu = gpus_of(np.array([row["gpu"] for row in rows], dtype=object), catalog)
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
        launches=1.0,
        host_ratio=1.0,
        in_turn=1.0,
    )
    return [
        Samples(
            table=TABLE,
            model="vector",
            problems=problems,
            gpus=gpus,
            gpu=gpu,
            measured_ns=1e3 * np.array(time_us),
            family=np.full(len(found), "lists of tensors", dtype=object),
            dtype=np.array([row["dtype"] for row in rows], dtype=object),
            share=np.array(share),
        )
    ]


def _kernels(row: Mapping[str, Any]) -> list[tuple[int, int, int, float, float, float]]:
    """Return lists read and written, FLOPs, blocks, elements of a block and the median time of each kind of kernel."""
    if row["dims"]["set"] not in ALIKE:
        return []
    each = row["dims"]["elements"] / row["dims"]["tensors"]
    grids = [grid[0] for grid in orjson.loads(row["grids"])]
    named = zip(row["kernels"], row["kernel_us"], grids, strict=True)
    found = []
    for name, group in groupby(named, key=lambda item: item[0]):
        form = _FORM.search(name)
        key = next((key for key in KERNELS if form and form[2].startswith(key[0]) and key[1] == int(form[1])), None)
        kernels = [item for item in group if item[2] >= FEWEST_BLOCKS]
        for blocks, alike in groupby(sorted(kernels, key=lambda item: item[2]), key=lambda item: item[2]):
            if key is not None:
                times = [time for _, time, _ in alike]
                found.append((*KERNELS[key], float(blocks), float(min(each, CHUNK)), float(np.median(times))))
    return found
