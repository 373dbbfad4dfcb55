"""Our FLOPs against torch's own counter, on real calls recorded on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import flop_registry
from wavecast.analyzer.work import Work, has_formula, work_of
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec

META = torch.device("meta")
aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.empty(*shape, device=META, dtype=dtype, requires_grad=grad)


Shape = tuple[int, ...]
Convolve = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Recorder = Callable[[Callable[[], object]], list[Any]]

CONVOLUTIONS: dict[str, tuple[Convolve, Shape, Shape]] = {
    "1d": (lambda x, w: functional.conv1d(x, w, padding=1), (4, 6, 50), (8, 6, 3)),
    "2d": (functional.conv2d, (2, 3, 32, 32), (16, 3, 5, 5)),
    "2d strided, padded, dilated": (
        lambda x, w: functional.conv2d(x, w, stride=(2, 1), padding=(3, 2), dilation=(2, 3)),
        (3, 4, 29, 31),
        (8, 4, 3, 3),
    ),
    "2d same": (lambda x, w: functional.conv2d(x, w, padding="same"), (3, 4, 29, 31), (8, 4, 3, 3)),
    "2d without batch": (functional.conv2d, (3, 32, 32), (16, 3, 5, 5)),
    "3d": (lambda x, w: functional.conv3d(x, w, padding=1), (2, 3, 8, 9, 10), (5, 3, 3, 3, 3)),
    "transposed": (
        lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (2, 6, 9, 11),
        (6, 10, 4, 3),
    ),
    "transposed 1d": (lambda x, w: functional.conv_transpose1d(x, w, stride=3), (2, 6, 9), (6, 10, 4)),
}
GROUPED_CONVOLUTIONS: dict[str, tuple[Convolve, Shape, Shape, int]] = {
    "grouped": (lambda x, w: functional.conv2d(x, w, groups=4, padding=1), (2, 8, 16, 16), (12, 2, 3, 3), 4),
    "depthwise": (lambda x, w: functional.conv2d(x, w, groups=8, padding=1), (2, 8, 16, 16), (8, 1, 3, 3), 8),
    "transposed": (lambda x, w: functional.conv_transpose2d(x, w, groups=2, stride=2), (2, 6, 9, 9), (6, 5, 2, 2), 2),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("trainable", ["input and weight", "weight", "input"])
def test_convolutions_forward_and_backward_equal_torch(record_calls: Recorder, case: str, trainable: str) -> None:
    convolve, x_shape, w_shape = CONVOLUTIONS[case]
    x, w = meta(*x_shape, grad="input" in trainable), meta(*w_shape, grad="weight" in trainable)
    calls = record_calls(lambda: convolve(x, w).sum().backward())
    counted = [call for call in calls if call.torch_flops is not None]
    assert [call.name for call in counted] == ["aten::convolution", "aten::convolution_backward"]
    for call in counted:
        assert known(call.name, call.signature).flops == call.torch_flops > 0


@pytest.mark.parametrize("case", GROUPED_CONVOLUTIONS)
@pytest.mark.parametrize(("wants_input", "wants_weight"), [(True, True), (True, False), (False, True)])
def test_grouped_weight_gradient_needs_a_groups_th_of_torchs_count(
    record_calls: Recorder, case: str, wants_input: bool, wants_weight: bool
) -> None:
    """torch multiplies all input with all output channels there; the forward and the input gradient agree."""
    convolve, x_shape, w_shape, groups = GROUPED_CONVOLUTIONS[case]
    x, w = meta(*x_shape, grad=wants_input), meta(*w_shape, grad=wants_weight)
    calls = record_calls(lambda: convolve(x, w).sum().backward())
    forward, backward = (call for call in calls if call.torch_flops is not None)
    ours = known(forward.name, forward.signature).flops
    assert ours == forward.torch_flops > 0
    assert backward.torch_flops == ours * wants_input + groups * ours * wants_weight
    assert known(backward.name, backward.signature).flops == ours * (wants_input + wants_weight)


PRODUCTS: dict[str, Callable[[], object]] = {
    "mm": lambda: torch.mm(meta(7, 5), meta(5, 3)),
    "mm, empty": lambda: torch.mm(meta(7, 0), meta(0, 3)),
    "addmm": lambda: torch.addmm(meta(3), meta(7, 5), meta(5, 3)),
    "bmm": lambda: torch.bmm(meta(4, 7, 5), meta(4, 5, 3)),
    "baddbmm": lambda: torch.baddbmm(meta(4, 1, 3), meta(4, 7, 5), meta(4, 5, 3)),
    "linear": lambda: functional.linear(meta(2, 7, 5), meta(3, 5), meta(3)),
    "matmul": lambda: torch.matmul(meta(2, 4, 7, 5), meta(4, 5, 3)),
    "matmul of transposed": lambda: torch.matmul(meta(5, 7).T, meta(3, 5).T),
    "einsum": lambda: torch.einsum("bij,bkj->bik", meta(2, 3, 4), meta(2, 5, 4)),
    "backward": lambda: (meta(7, 5, grad=True) @ meta(5, 3, grad=True)).sum().backward(),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_matrix_products_equal_torch(record_calls: Recorder, case: str) -> None:
    counted = [call for call in record_calls(PRODUCTS[case]) if call.torch_flops is not None]
    assert counted
    for call in counted:
        assert known(call.name, call.signature).flops == call.torch_flops


def test_scaled_mm_equals_torch() -> None:
    a, b = meta(16, 32, dtype=torch.float8_e4m3fn), meta(64, 32, dtype=torch.float8_e4m3fn).T
    signature = Signature(tuple(spec(x) for x in (a, b, meta(1), meta(1))))
    expected = flop_registry[aten._scaled_mm](a, b, meta(1), meta(1), out_val=meta(16, 64))
    assert known("aten::_scaled_mm", signature).flops == expected == 2 * 16 * 32 * 64


def known(name: str, signature: Signature) -> Work:
    work = work_of(name, signature)
    assert work is not None, (name, signature)
    return work


def spec(value: Any) -> Argument:
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, bool | int | float | None) else str(value)
    return TensorSpec(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))


HEADS_FIRST = {
    "self-attention": ((2, 4, 10, 8), (2, 4, 10, 8), (2, 4, 10, 8)),
    "cross-attention": ((2, 4, 10, 8), (2, 4, 17, 8), (2, 4, 17, 8)),
    "grouped queries": ((2, 8, 10, 8), (2, 2, 17, 8), (2, 2, 17, 8)),
    "other value dim": ((1, 3, 5, 8), (1, 3, 7, 8), (1, 3, 7, 6)),
    "one query": ((3, 4, 1, 64), (3, 4, 33, 64), (3, 4, 33, 64)),
}
SDPA_TAILS = {
    "flash": ((), (None, None)),
    "efficient": ((None, True), (None, None)),
    "cudnn": ((None, True), (None, None)),
}


@pytest.mark.parametrize("case", HEADS_FIRST)
@pytest.mark.parametrize("kind", SDPA_TAILS)
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_equals_torch(kind: str, case: str, causal: bool) -> None:
    q, k, v = (meta(*shape, dtype=torch.float16) for shape in HEADS_FIRST[case])
    tail = (*SDPA_TAILS[kind][0], 0.0, causal)
    forward = getattr(aten, f"_scaled_dot_product_{kind}_attention")
    signature = Signature((*map(spec, (q, k, v)), *tail))
    expected = flop_registry[forward](q, k, v, *tail, out_val=None)
    assert known(f"aten::{forward.__name__}", signature).flops == expected > 0

    backward = getattr(aten, f"_scaled_dot_product_{kind}_attention_backward")
    grad = meta(*q.shape[:-1], v.shape[-1], dtype=torch.float16)
    expected = flop_registry[backward](grad, q, k, v, out_val=None)
    signature = Signature(tuple(map(spec, (grad, q, k, v))))
    assert known(f"aten::{backward.__name__}", signature).flops == expected > 0


FLASH_FORWARD_TAIL = (10, 17, 0.0, False, False)
EFFICIENT_FORWARD_TAIL = (None, None, 0.0, 0)


def test_packed_and_heads_last_attention_equals_torch() -> None:
    """torch's raw formulas read heads-last tensors as if heads came first; sizes that are equal make both right."""
    offsets = meta(4, dtype=torch.int32)
    q, k, v = meta(24, 4, 8), meta(30, 4, 8), meta(30, 4, 8)
    packed: tuple[object, ...] = (q, k, v, offsets, offsets, 10, 17, 0.0, False, False)
    expected = flop_registry[aten._flash_attention_forward](*packed, out_val=None)
    assert known("aten::_flash_attention_forward", Signature(tuple(map(spec, packed)))).flops == expected > 0
    backward: tuple[object, ...] = (
        meta(24, 4, 8),
        q,
        k,
        v,
        meta(24, 4, 8),
        meta(4, 24),
        offsets,
        offsets,
        10,
        17,
        0.0,
        False,
    )
    expected = flop_registry[aten._flash_attention_backward](*backward, out_val=None)
    assert known("aten::_flash_attention_backward", Signature(tuple(map(spec, backward)))).flops == expected > 0

    q, k, v = (x.unsqueeze(0) for x in (q, k, v))
    packed = (q, k, v, None, offsets, offsets, 10, 17, 0.0, 0)
    expected = flop_registry[aten._efficient_attention_forward](*packed, out_val=None)
    assert known("aten::_efficient_attention_forward", Signature(tuple(map(spec, packed)))).flops == expected > 0
    backward = (q, q, k, v, None, q, offsets, offsets, 10, 17, meta(1, 4, 24), 0.0)
    expected = flop_registry[aten._efficient_attention_backward](*backward, out_val=None)
    assert known("aten::_efficient_attention_backward", Signature(tuple(map(spec, backward)))).flops == expected > 0

    square = meta(2, 6, 6, 8)
    for name, tail in (("flash", FLASH_FORWARD_TAIL), ("efficient", (None, *EFFICIENT_FORWARD_TAIL))):
        op = getattr(aten, f"_{name}_attention_forward")
        head = (None, None) if name == "flash" else (None, None, None)
        call = (square, square, square, *head, *tail)
        expected = flop_registry[op](*call, out_val=None)
        assert known(f"aten::{op.__name__}", Signature(tuple(map(spec, call)))).flops == expected > 0


def test_every_op_that_torch_counts_has_a_formula() -> None:
    higher_order = {"flex_attention", "flex_attention_backward"}
    missing = {str(op) for op in flop_registry if not has_formula(str(op).replace(".", "::"))}
    assert missing <= higher_order
