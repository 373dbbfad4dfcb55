"""The least work of measured problems, for their rooflines."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ...measurements.samples import Samples
from ...models import registry
from ...work.table import WorkTable


def least_work(samples: Samples[Any]) -> WorkTable | None:
    """Return the least work of each row; None where nobody knows it."""
    if samples.work is not None or samples.model not in registry.OP_MODELS:
        return samples.work
    return registry.least_work(registry.OP_MODELS[samples.model], samples.problems)


def take_work(work: WorkTable, rows: npt.NDArray[Any]) -> WorkTable:
    """Return some rows of a table of work."""
    return WorkTable(flops=work.flops[rows], moved_bytes=work.moved_bytes[rows], rate=work.rate[rows])
