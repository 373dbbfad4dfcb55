"""The measurement tables that can be scored, and who reads them."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import InputError
from ...records import replace
from ...specs.fleet import build_fleet
from ...specs.gpu import Catalog
from ..models.frame.problems import P
from ..models.registry import OP_MODELS, OpModel, columns_of
from .networks import NODES, load_samples as load_nodes
from .samples import Samples, has_rows, take_samples

SampleReader = Callable[[Path, Catalog | None], Sequence[Samples[Any]]]
"""(directory, catalogue or None for the built-in one) -> samples."""


def table_of(model: OpModel) -> str:
    """Return the table that holds a model's measurements, e.g. `ops/matmul.parquet`."""
    return str(_module(model).TABLE)


def _tables_of(model: OpModel) -> tuple[str, ...]:
    """Return all tables that hold a model's measurements."""
    return getattr(_module(model), "TABLES", (table_of(model),))


def find_reader(model: OpModel) -> SampleReader:
    """Return what reads a model's measurements."""
    reader: SampleReader = getattr(_module(model), model.reader)
    return reader


def _module(model: OpModel) -> Any:
    return import_module(f".{model.family}", __package__)


MEASURED: Final = tuple(model for model in OP_MODELS.values() if model.is_measured)
TABLES: Final = tuple(dict.fromkeys([*(name for model in MEASURED for name in _tables_of(model)), NODES]))
"""What is read as samples of op models: their own tables, and ops of whole networks."""
MODEL_TABLES: Final = ("models/neusight_e2e.parquet", "models/throughput.parquet", "own/iterations.parquet")
JOB_TABLES: Final = ("distributed/iterations.parquet", "distributed/recommenders.parquet", "serving/points.csv")
TRACES: Final = "traces"


def load_tables(data: Path, catalog: Catalog | None = None) -> Iterator[Samples[Any]]:
    """Yield the samples of every table with rows, or notes of rows left out; `catalog` None: the built-in one.

    `data` is a directory, or a file of `wavecast measure`.

    >>> [(samples.model, len(samples.measured_ns)) for samples in load_tables(tables)]
    [('matmul', 40)]
    """
    readers = dict.fromkeys((_tables_of(model), find_reader(model)) for model in MEASURED)
    for tables, load in (*readers, ((NODES,), load_nodes)):
        if any(has_rows(data / name) for name in tables):
            found = (part for samples in load(data, catalog) for part in by_library(samples))
            yield from (samples for samples in found if len(samples.measured_ns) or samples.notes)


def by_library(samples: Samples[P]) -> Iterator[Samples[P]]:
    """Yield the samples of each model, where AMD's GPUs run another one's kernels."""
    for model in filter(None, (samples.model, OP_MODELS[samples.model].amd)):
        columns = columns_of(model, build_fleet(samples.gpus))
        part = take_samples(samples, np.flatnonzero(np.isin(samples.gpu, columns)))
        gpus = tuple(samples.gpus[column] for column in columns)
        yield replace(part, model=model, gpus=gpus, gpu=np.searchsorted(columns, part.gpu))


def check_directory(data: Path) -> None:
    """Raise InputError where the directory, or file of `wavecast measure`, holds nothing that can be scored."""
    if data.is_file():
        if not any(has_rows(data / name) for name in TABLES):
            raise InputError(f"{data}: nothing to score; measure more with 'wavecast measure -o {data}'")
        return
    if not data.is_dir():
        raise InputError(f"{data}: no such directory; expected one with {', '.join(TABLES)} or {TRACES}/")
    known = (*TABLES, *MODEL_TABLES, *JOB_TABLES, TRACES)
    if not any((data / name).exists() for name in known):
        raise InputError(f"{data}: nothing to score; expected at least one of {', '.join(known)}")
