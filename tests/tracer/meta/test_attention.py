"""Which attention op a shape-only recording shows: the one that CUDA would run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from wavecast.tracer import trace_iteration

FLASH = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
PLAIN = "aten::bmm"


def attend(
    dtype: torch.dtype,
    head_dim: Any = 64,
    *,
    heads: Any = (4, 4),
    lengths: Any = (16, 16),
    mask: Any = None,
    **options: Any,
) -> Any:
    query = torch.zeros(2, heads[0], lengths[0], head_dim, dtype=dtype, requires_grad=True)
    key, value = (torch.zeros(2, heads[1], lengths[1], head_dim, dtype=dtype, requires_grad=True) for _ in range(2))
    bias = None if mask is None else torch.zeros(lengths, dtype=mask)
    result = torch.nn.functional.scaled_dot_product_attention(query, key, value, bias, **options)
    assert result.shape == query.shape
    return result


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": torch.bfloat16}, FLASH),
        ({"dtype": torch.float16, "is_causal": True}, FLASH),
        ({"dtype": torch.float16, "dropout_p": 0.1}, FLASH),
        ({"dtype": torch.float16, "head_dim": 60, "scale": 0.5}, FLASH),  # padded to a multiple of 8
        ({"dtype": torch.bfloat16, "head_dim": 256}, FLASH),
        ({"dtype": torch.bfloat16, "heads": (8, 2), "enable_gqa": True}, FLASH),
        ({"dtype": torch.bfloat16, "lengths": (1, 100)}, FLASH),
        ({"dtype": torch.bfloat16, "head_dim": 320}, EFFICIENT),
        ({"dtype": torch.bfloat16, "mask": torch.bool}, EFFICIENT),
        ({"dtype": torch.bfloat16, "mask": torch.bfloat16, "lengths": (10, 21)}, EFFICIENT),
        ({"dtype": torch.float32}, EFFICIENT),
        ({"dtype": torch.float32, "is_causal": True}, EFFICIENT),
        ({"dtype": torch.float32, "head_dim": 30}, PLAIN),
        ({"dtype": torch.float32, "heads": (8, 2), "enable_gqa": True}, PLAIN),
        ({"dtype": torch.float64}, PLAIN),
    ],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_the_op_is_the_one_that_cuda_chooses(
    op_names: Callable[..., list[str]], options: dict[str, Any], expected: Any, mode: Any
) -> None:
    def step() -> None:
        with mode():
            attend(**options)

    names = set(op_names(trace_iteration(step, device="meta")))
    assert names & {FLASH, EFFICIENT, PLAIN} == {expected}


def test_a_backend_that_the_user_switched_off_is_not_chosen(op_names: Callable[..., list[str]]) -> None:
    def step() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            attend(torch.bfloat16)

    assert PLAIN in op_names(trace_iteration(step, device="meta"))


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("FLASH_ATTENTION", FLASH),
        ("EFFICIENT_ATTENTION", EFFICIENT),
        ("CUDNN_ATTENTION", "aten::_scaled_dot_product_cudnn_attention"),
    ],
)
def test_a_backend_that_is_forced_is_recorded(op_names: Callable[..., list[str]], backend: str, expected: str) -> None:
    def step() -> None:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            attend(torch.bfloat16).sum().backward()

    names = op_names(trace_iteration(step, device="meta"))
    assert [name for name in names if "attention" in name] == [expected, f"{expected}_backward"]


def test_a_forced_backend_that_cannot_is_refused_as_torch_does() -> None:
    def step() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            attend(torch.float32)

    with pytest.raises(RuntimeError, match="No available kernel"):
        trace_iteration(step, device="meta")


def test_backward_is_fused_too(op_names: Callable[..., list[str]]) -> None:
    names = op_names(trace_iteration(lambda: attend(torch.bfloat16).sum().backward(), device="meta"))
    assert f"{FLASH}_backward" in names


def test_multi_head_attention_modules_use_the_fused_op(op_names: Callable[..., list[str]]) -> None:
    with torch.device("meta"):
        layer, data = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True), torch.zeros(2, 8, 64)
    names = op_names(trace_iteration(lambda: layer(data).sum().backward(), device="meta"))
    assert EFFICIENT in names
