"""How lookups in embedding tables are spread over rows: what a prediction took, said to its reader."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.embedding.problems import with_indices
from ..work.embedding_dims import EmbeddingDims, EmbeddingStep
from ..work.indices import USUAL, Indices
from .workload import GpuWorkload


def explain_lookups(workload: GpuWorkload, indices: Indices | None) -> tuple[str, ...]:
    """Say in one line how indices were taken to be spread where nobody said it, or that there are none to spread."""
    if indices is not None:
        is_any = any(_is_lookup(item) for item in _dims(workload, indices))
        return () if is_any else (f"--indices {indices} changes nothing: no embedding lookups of known sizes",)
    lookups = sum(
        count * item.lookups
        for count, item in zip(workload.count.tolist(), _dims(workload, None), strict=True)
        if isinstance(item, EmbeddingDims) and item.step is EmbeddingStep.LOOKUP
    )
    if not lookups:
        return ()
    return (
        f"{lookups:,} embedding lookups are taken to be spread as {USUAL} (of Criteo's logs; random test data are "
        "uniform): say how they are with --indices uniform, zipf:EXPONENT or a histogram file",
    )


def _dims(workload: GpuWorkload, indices: Indices | None) -> Sequence[object]:
    return [None if work is None else with_indices(work, indices).dims for work in workload.works]


def _is_lookup(dims: object) -> bool:
    return isinstance(dims, EmbeddingDims)
