"""What FBGEMM's calls leave open, said to a reader: where tables lie, and how wide they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...formats.trace.signature import Signature
from ...formats.trace.tables import Trace
from ..work import Family
from ..work.embedding_dims import EmbeddingDims
from ..work.table_batched import HOST_TABLE_OPS
from ..work.table_batched_call import holds_host_tables
from .workload import GpuWorkload


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
    mixed = [work.dims for work in workload.works if work is not None and _is_mixed(work.dims)]
    if mixed:
        lines.append(_describe_mixed(mixed))
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


def _is_mixed(dims: object) -> bool:
    return isinstance(dims, EmbeddingDims) and dims.unstated > 0


def _describe_mixed(found: Sequence[object]) -> str:
    tables = max(dims.tables for dims in found if isinstance(dims, EmbeddingDims))
    return (
        f"FBGEMM's lookups in up to {tables:,} tables of several widths: which table is how wide and looked up how "
        "often is in no recording, so that rows count as the mean over tables, with wider intervals"
    )
