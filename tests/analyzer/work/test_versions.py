"""Which kernels an older PyTorch ran."""

from __future__ import annotations

import pytest
from wavecast.analyzer.models.vector.problems import VectorKernel, problems_of
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.work import work_of
from wavecast.analyzer.work.kernel_names import with_kernel
from wavecast.analyzer.work.row_kernels import RowKernel
from wavecast.analyzer.work.work import RowDims, Work
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Meta, OpTable, Trace

ROWS = Signature((TensorSpec("float32", (512, 2048)), -1, False))
TABLE = Signature((TensorSpec("float32", (1000, 64)), TensorSpec("int64", (128,))))


def found(name: str, signature: Signature) -> Work:
    work = work_of(name, signature)
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("framework", "kernel"),
    [
        ("torch 2.1.0", VectorKernel.SOFTMAX),
        ("torch 2.3.1+cu121", VectorKernel.SOFTMAX),
        ("torch 2.4.0", VectorKernel.HELD_SOFTMAX),
        ("torch 2.11.0", VectorKernel.HELD_SOFTMAX),
        ("jax 0.4", VectorKernel.HELD_SOFTMAX),
        (None, VectorKernel.HELD_SOFTMAX),
    ],
)
def test_long_rows_of_softmax_were_read_three_times_before_torch_2_4(
    framework: str | None, kernel: VectorKernel
) -> None:
    (kind,) = problems_of([with_kernel(found("aten::_softmax", ROWS), "", framework)], []).kind
    assert kind == kernel


@pytest.mark.parametrize(("framework", "is_by_row"), [("torch 2.7.1", False), ("torch 2.8.0", True), (None, True)])
def test_rows_were_gathered_element_by_element_before_torch_2_8(framework: str | None, is_by_row: bool) -> None:
    dims = with_kernel(found("aten::embedding", TABLE), "", framework).dims
    assert isinstance(dims, RowDims)
    assert (dims.kernel is RowKernel.GATHER_ROWS) == is_by_row


def test_a_trace_runs_by_the_torch_that_it_names() -> None:
    ops = build_table(OpTable, 1, name=[0], signature=[0])
    for framework, kernel in (("torch 2.1.0", VectorKernel.SOFTMAX), ("torch 2.13.0", VectorKernel.HELD_SOFTMAX)):
        meta = Meta(framework=framework, has_shapes=True)
        (work,) = shape_workload(Trace(meta=meta, strings=("aten::_softmax",), signatures=(ROWS,), ops=ops)).works
        assert work is not None
        assert problems_of([work], []).kind.tolist() == [kernel]
