"""What ops take beside their tensors, against the allocator's events of an H100 under torch 2.11."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.memory.temporaries import reserve_bytes, temporary_bytes
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Meta, OpTable, Precision, Trace, Workload

MIB = 1 << 20


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec("bfloat16", shape)


def taken(name: str, *arguments: Any, results: tuple[TensorSpec, ...] = (), precision: Precision | None = None) -> int:
    meta = Meta(capture="shapes", workload=Workload(name="toy"))
    trace = Trace(
        meta=meta if precision is None else replace(meta, precision=precision),
        ops=build_table(OpTable, 1, name=[0], signature=[0]),
        signatures=(Signature(arguments, results),),
        strings=(name,),
    )
    return int(temporary_bytes(trace, np.array([0]))[1, 0])


@pytest.mark.parametrize(
    ("rows", "columns", "size_bytes"),
    [(16384, 768, 100663296), (2048, 3072, 50331648), (12800, 32000, 212992000), (16384, 30522, 62509056)],
)
def test_partial_sums_of_columns(rows: int, columns: int, size_bytes: int) -> None:
    assert taken("aten::sum", bf16(rows, columns), (0,), True, None) == size_bytes


def test_a_sum_along_rows_needs_no_buffer() -> None:
    assert taken("aten::sum", bf16(16384, 768), (1,), True, None) == 0


def convolution(x: TensorSpec, weight: TensorSpec, result: TensorSpec, precision: Precision | None = None) -> int:
    padding = (weight.shape[-1] // 2,) * 2
    arguments = (x, weight, padding, (1, 1), (1, 1), 1, False, False, False)
    return taken("aten::cudnn_convolution", *arguments, results=(result,), precision=precision)


def test_a_convolution_copies_to_channels_last() -> None:
    images, weight = bf16(128, 64, 56, 56), bf16(64, 64, 3, 3)
    assert convolution(images, weight, images) / MIB == pytest.approx(98.07, abs=0.01)
    last = TensorSpec("bfloat16", (128, 64, 56, 56), (64 * 56 * 56, 1, 64 * 56, 64))
    assert convolution(last, weight, last) == 0


@pytest.mark.parametrize(
    ("channels", "side", "kernel", "size_mib"), [(64, 56, 3, 198.11), (256, 14, 3, 58.0), (64, 56, 1, 2.0)]
)
def test_a_weight_gradient_has_partial_sums(channels: int, side: int, kernel: int, size_mib: float) -> None:
    """As an H100's allocator counted them."""
    images = TensorSpec("float32", (128, channels, side, side))
    weight = TensorSpec("float32", (channels, channels, kernel, kernel))
    rest = ((0,), (1, 1), (kernel // 2,) * 2, (1, 1), False, (0, 0), 1, (True, True, False))
    tf32 = Precision(cudnn_tf32=True)
    size = taken("aten::convolution_backward", images, images, weight, *rest, results=(images, weight), precision=tf32)
    assert size / MIB == pytest.approx(size_mib, abs=0.01)


def test_products_and_float32_convolutions_copy_nothing_forward() -> None:
    images = bf16(128, 64, 56, 56)
    assert convolution(images, bf16(64, 64, 1, 1), images) == 0
    single = TensorSpec("float32", (128, 64, 56, 56))
    weight = TensorSpec("float32", (64, 64, 3, 3))
    assert convolution(single, weight, single, Precision(cudnn_tf32=False)) == 0
    assert convolution(single, weight, single, Precision(cudnn_tf32=True)) / MIB == pytest.approx(196.14, abs=0.01)


LAYER = tuple(bf16(*shape) for shape in ((4096, 1024), (4096, 1024), (4096,), (4096,)))


def recurrent(batch: int, *, trains: bool = True) -> Signature:
    state = bf16(2, batch, 1024)
    layers = (
        bf16(batch, 50, 1024),
        LAYER * 2,
        4,
        None,
        state,
        state,
        2,
        1024,
        0,
        2,
        True,
        0.2,
        trains,
        False,
        (),
        None,
    )
    return Signature(layers, (bf16(batch, 50, 1024),))


@pytest.mark.parametrize(("batch", "size_bytes"), [(64, 72499456), (256, 289997056)])
def test_what_a_recurrent_layer_keeps_for_backward(batch: int, size_bytes: int) -> None:
    assert reserve_bytes(recurrent(batch)) == pytest.approx(size_bytes, abs=512)
    assert reserve_bytes(recurrent(batch, trains=False)) == 0


def test_the_workspace_of_a_recurrent_layer() -> None:
    call = recurrent(256)
    assert taken("aten::_cudnn_rnn", *call.arguments, results=()) / MIB == pytest.approx(233, rel=0.02)


def test_attention_backward_keeps_the_gradient_of_queries_in_float32() -> None:
    queries, sums = bf16(16, 12, 128, 64), TensorSpec("float32", (16, 12, 128))
    arguments = (*(queries,) * 5, sums, None, None, 128, 128, 0.1, False, None, None, None)
    name = "aten::_scaled_dot_product_flash_attention_backward"
    assert taken(name, *arguments, results=(queries,) * 3) == pytest.approx(6390272, abs=512)
