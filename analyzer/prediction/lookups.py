"""What a prediction took of lookups in embedding tables: their spread, and what FBGEMM's calls leave open."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...errors import parameter
from ...formats.trace.signature import Signature
from ...formats.trace.tables import Trace
from ..models.embedding.problems import with_indices
from ..work import Family
from ..work.embedding_dims import EmbeddingDims, EmbeddingStep
from ..work.indices import USUAL, RecordedIndices, Spread
from ..work.table_batched import HOST_TABLE_OPS
from ..work.table_batched_call import holds_host_tables
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


def explain_tables(trace: Trace, workload: GpuWorkload) -> tuple[str, ...]:
    """Say which lookups are refused because their tables lie in host memory, and which are of unnamed widths."""
    refused = sorted({name for name, signature in _refused(trace, workload) if _is_of_host(name, signature)})
    lines = []
    if refused:
        more = f" and {len(refused) - 1} more ops" if len(refused) > 1 else ""
        lines.append(
            f"{refused[0]}{more}: tables in host memory are not modelled (what they take is the link to the host); "
            "kernels of theirs that were measured are moved by ratios of the GPUs alone"
        )
    every = [work.dims for work in workload.works if work is not None]
    mixed = [dims for dims in every if isinstance(dims, EmbeddingDims) and dims.unstated > 0]
    if mixed:
        tables = max(dims.tables for dims in mixed)
        lines.append(
            f"FBGEMM's lookups in up to {tables:,} tables of several widths: which table is how wide and looked up how "
            "often is in no recording, so that rows count as the mean over tables, with wider intervals"
        )
    return tuple(lines)


def _refused(trace: Trace, workload: GpuWorkload) -> Iterator[tuple[str, Signature | None]]:
    """Yield names and signatures of the embedding ops whose work is not known."""
    for op, family, work in zip(workload.op.tolist(), workload.family, workload.works, strict=True):
        if op >= 0 and work is None and family in (Family.EMBEDDING, None):
            signature = int(trace.ops.signature[op])
            yield trace.strings[trace.ops.name[op]], trace.signatures[signature] if signature >= 0 else None


def _is_of_host(name: str, signature: Signature | None) -> bool:
    if name in HOST_TABLE_OPS:
        return True
    return name.startswith("fbgemm::") and signature is not None and holds_host_tables(signature)
