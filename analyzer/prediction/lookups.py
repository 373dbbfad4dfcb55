"""How lookups in embedding tables are spread over rows: what a prediction took, said to its reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...errors import parameter
from ..models.embedding.problems import with_indices
from ..work.embedding_dims import EmbeddingDims, EmbeddingStep
from ..work.indices import USUAL
from ..work.recorded_indices import RecordedIndices, Spread
from .workload import GpuWorkload

HOT_PART: Final = 0.01
"""Of the rows: what a reader is told of a recorded spread is how many lookups the most looked-up ones get."""


def explain_lookups(workload: GpuWorkload, indices: Spread | None, recorded_rows: int = 0) -> tuple[str, ...]:
    """Say in one line how indices were taken to be spread where the user did not, or that there are none to spread.

    `recorded_rows` are those of the recording's histograms: with none that can be believed there is no spread of them.
    """
    dims = [None if work is None else with_indices(work, indices).dims for work in workload.works]
    if indices is not None and not any(isinstance(item, EmbeddingDims) for item in dims):
        is_asked = not isinstance(indices, RecordedIndices)
        unused = f"{parameter('indices', indices)} changes nothing: no embedding lookups of known sizes"
        return (unused,) if is_asked else ()
    lookups = sum(
        count * item.lookups
        for count, item in zip(workload.count.tolist(), dims, strict=True)
        if isinstance(item, EmbeddingDims)
        and item.step is EmbeddingStep.LOOKUP
        and (indices is not None or item.indices is None)
    )
    if isinstance(indices, RecordedIndices):
        return (_explain_recorded(indices, lookups),)
    if indices is not None or not lookups:
        return ()
    dropped = f"; all {recorded_rows:,} rows of the recorded histograms contradict themselves" if recorded_rows else ""
    return (
        f"{lookups:,} embedding lookups are taken to be spread as {USUAL} (assumed; random test data are uniform): say "
        f"how they are with {parameter('indices')} uniform, zipf:EXPONENT or a histogram file{dropped}",
    )


def _explain_recorded(indices: RecordedIndices, lookups: int) -> str:
    bins = np.array([item for _, table in indices.tables for item in table.bins])
    order = np.argsort(-bins[:, 1] / bins[:, 0], kind="stable")
    rows, got = np.cumsum(bins[order, 0]), np.cumsum(bins[order, 1])
    share = float(np.interp(HOT_PART * rows[-1], np.append(0.0, rows), np.append(0.0, got)) / got[-1])
    text = (
        f"{lookups:,} embedding lookups are taken to be spread as recorded: of {indices.lookups:,} that were counted "
        f"the most looked-up {HOT_PART:.0%} of rows get {share:.0%}; {parameter('indices')} says otherwise"
    )
    if indices.left_out:
        text += f"; {indices.left_out:,} rows of the recorded histograms contradict themselves and are left out"
    return text
