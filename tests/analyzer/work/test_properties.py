"""What holds for every formula: no exception, nothing negative, and work that grows with its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.work import Work, work_of
from wavecast.analyzer.work.registry import registered_names
from wavecast.analyzer.work.traffic import distinct_count
from wavecast.formats.trace.signature import DTYPE_BYTES, UNKNOWN, Argument, Signature, TensorSpec


def known(name: str, signature: Signature) -> Work:
    work = work_of(name, signature)
    assert work is not None, (name, signature)
    return work


sizes = st.integers(0, 5)
dtypes = st.sampled_from([*DTYPE_BYTES, "unknown"])


@st.composite
def tensors(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(sizes, max_size=5)))
    strides = draw(st.none() | st.lists(st.integers(0, 30), min_size=len(shape), max_size=len(shape)).map(tuple))
    return TensorSpec(draw(dtypes), shape, strides)


scalars = (
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.sampled_from(["mean", "none", "float16", ""])
)
numbers = st.lists(st.integers(-3, 9) | st.floats() | st.booleans(), max_size=5).map(tuple)
arguments = tensors() | st.lists(tensors(), max_size=4).map(tuple) | numbers | scalars | st.just(UNKNOWN)
signatures = st.builds(
    Signature, st.lists(arguments, max_size=16).map(tuple), st.just(()) | st.lists(arguments, max_size=3).map(tuple)
)


@settings(max_examples=500, deadline=None)
@given(name=st.sampled_from(registered_names()), suffix=st.sampled_from(["", "_", ".out"]), signature=signatures)
def test_any_call_gives_work_or_none(name: str, suffix: str, signature: Signature) -> None:
    work = work_of(name + suffix, signature)
    assert work is None or isinstance(work, Work)
    if work is not None:
        assert all(math.isfinite(x) and x >= 0 for x in (work.flops, work.read_bytes, work.written_bytes))
        assert work.moved_bytes == work.read_bytes + work.written_bytes


matched = st.integers(1, 6)


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(registered_names()), data=st.data())
def test_plausible_calls_give_work_or_none(name: str, data: st.DataObject) -> None:
    """Tensors of one rank and size reach deeper into the formulas than arbitrary ones."""
    shape = tuple(data.draw(st.lists(matched, min_size=1, max_size=4)))
    tensor = TensorSpec(data.draw(st.sampled_from(["float32", "float16", "int64"])), shape)
    some = st.just(tensor) | st.just((tensor, tensor)) | st.integers(0, 3) | st.just((1, 1)) | st.booleans() | st.none()
    signature = Signature((tensor, *data.draw(st.lists(some | st.just((True, True, False)), max_size=12))))
    work = work_of(name, signature)
    assert work is None or min(work.flops, work.read_bytes, work.written_bytes) >= 0


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("aten::mm", lambda b: (TensorSpec("float16", (b, 3)), TensorSpec("float16", (3, 4)))),
        ("aten::bmm", lambda b: (TensorSpec("float16", (b, 2, 3)), TensorSpec("float16", (b, 3, 4)))),
        ("aten::linear", lambda b: (TensorSpec("float16", (b, 7, 3)), TensorSpec("float16", (4, 3)))),
        ("aten::conv2d", lambda b: (TensorSpec("float16", (b, 3, 9, 9)), TensorSpec("float16", (4, 3, 3, 3)))),
        ("aten::scaled_dot_product_attention", lambda b: (TensorSpec("float16", (b, 2, 5, 4)),) * 3),
        ("aten::_softmax", lambda b: (TensorSpec("float16", (b, 9)), -1, False)),
        ("aten::native_layer_norm", lambda b: (TensorSpec("float16", (b, 9)), (9,), None, None, 1e-5)),
        ("aten::add", lambda b: (TensorSpec("float16", (b, 9)), TensorSpec("float16", (b, 9)), 1)),
        ("aten::max_pool2d", lambda b: (TensorSpec("float16", (b, 3, 8, 8)), (2, 2))),
        ("aten::cross_entropy_loss", lambda b: (TensorSpec("float16", (b, 9)), TensorSpec("int64", (b,)))),
    ],
)
@given(batch=st.integers(1, 1000))
def test_twice_the_batch_is_twice_the_flops(
    name: str, build: Callable[[int], tuple[Argument, ...]], batch: int
) -> None:
    once, twice = (known(name, Signature(build(size))) for size in (batch, 2 * batch))
    assert twice.flops == 2 * once.flops > 0
    assert once.moved_bytes < twice.moved_bytes <= 2 * once.moved_bytes


@given(
    shape=st.lists(st.integers(1, 4), max_size=4).map(tuple),
    data=st.data(),
)
def test_distinct_elements_bound_the_addresses_touched(shape: tuple[int, ...], data: st.DataObject) -> None:
    """The count never exceeds the elements, and covers every address of a tensor that strides cannot make overlap."""
    strides = tuple(data.draw(st.sampled_from([0, math.prod(shape[i + 1 :])])) for i in range(len(shape)))
    addresses = {0}
    for size, stride in zip(shape, strides, strict=True):
        addresses = {address + step * stride for address in addresses for step in range(size)}
    assert distinct_count(TensorSpec("float32", shape, strides)) == len(addresses)
    assert distinct_count(TensorSpec("float32", shape)) == math.prod(shape)
