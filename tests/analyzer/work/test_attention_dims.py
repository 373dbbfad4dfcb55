"""Sizes of attention ops, as the op models take them from a call's arguments."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import work_of
from wavecast.analyzer.work.kernel_names import prefers_cudnn, with_kernel
from wavecast.analyzer.work.work import AttentionDims, Direction
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec
from wavecast.specs.attention_kernels import AttentionKernel

QUERY, KEY = (2, 4, 10, 8), (2, 2, 17, 8)
"""Batch 2, 4 query heads on 2 KV heads, 10 queries, 17 keys, dim 8: heads before the sequence."""


def spec(*shape: int) -> TensorSpec:
    """Return a half tensor."""
    return TensorSpec("float16", shape)


def heads_last(shape: tuple[int, ...]) -> TensorSpec:
    """Return the tensor with its heads after the sequence."""
    batch, heads, tokens, dim = shape
    return spec(batch, tokens, heads, dim)


def dims_of(name: str, *arguments: Argument) -> AttentionDims:
    """Return the dims of a call."""
    work = work_of(name, Signature(arguments))
    assert work is not None
    assert isinstance(work.dims, AttentionDims)
    return work.dims


FIRST = (spec(*QUERY), spec(*KEY), spec(*KEY))
LAST = (heads_last(QUERY), heads_last(KEY), heads_last(KEY))
FORWARD: dict[str, tuple[Argument, ...]] = {
    "aten::scaled_dot_product_attention": (*FIRST, None, 0.0, True),
    "aten::_scaled_dot_product_attention_math": (*FIRST, None, 0.0, True),
    "aten::_scaled_dot_product_flash_attention": (*FIRST, 0.0, True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (*FIRST, 0.0, True),
    "aten::_scaled_dot_product_efficient_attention": (*FIRST, None, False, 0.0, True),
    "aten::_scaled_dot_product_cudnn_attention": (*FIRST, None, False, 0.0, True),
    "aten::_scaled_dot_product_fused_attention_overrideable": (*FIRST, None, 0.0, True),
    "aten::_cudnn_attention_forward": (*FIRST, None, None, None, 10, 17, False, 0.0, True),
    "aten::_flash_attention_forward": (*LAST, None, None, 10, 17, 0.0, True),
    "aten::_efficient_attention_forward": (*LAST, None, None, None, 10, 17, 0.0, 1),
    "flash_attn::_flash_attn_forward": (*LAST, 0.0, 1.0, True),
    "flash_attn_3::fwd": (*LAST, *(None,) * 9, 10, 17, *(None,) * 10, True),
    "FlashAttnFunc": (*LAST, 0.0, 1.0, True),
}
KERNELS = {
    "efficient": AttentionKernel.EFFICIENT,
    "cudnn": AttentionKernel.CUDNN,
    "attention_math": AttentionKernel.MATH,
    "attn_3": AttentionKernel.FLASH3,
}
UNDROPPED = frozenset(
    {
        "aten::_scaled_dot_product_attention_math",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::_scaled_dot_product_fused_attention_overrideable",
    }
)
"""Ops of which it does not matter, or whose kernel nobody knows."""
GRAD_FIRST, GRAD_LAST = spec(*QUERY), heads_last(QUERY)
STATISTICS = TensorSpec("float32", (2, 4, 10))
BACKWARD: dict[str, tuple[Argument, ...]] = {
    "aten::_scaled_dot_product_flash_attention_backward": (
        *(GRAD_FIRST, *FIRST, GRAD_FIRST, STATISTICS, None, None, 10, 17, 0.0, True),
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (
        *(GRAD_FIRST, *FIRST, GRAD_FIRST, STATISTICS, 0.0, True),
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": (
        *(GRAD_FIRST, *FIRST, None, GRAD_FIRST, STATISTICS, None, None, 0.0, (True, True, True), True),
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": (
        *(GRAD_FIRST, *FIRST, GRAD_FIRST, STATISTICS, None, None, None, None, None, 10, 17, 0.0, True),
    ),
    "aten::_flash_attention_backward": (*(GRAD_LAST, *LAST, GRAD_LAST, STATISTICS, None, None, 10, 17, 0.0, True),),
    "aten::_cudnn_attention_backward": (
        *(GRAD_FIRST, *FIRST, GRAD_FIRST, STATISTICS, None, None, None, None, None, 10, 17, 0.0, True),
    ),
    "aten::_efficient_attention_backward": (
        *(GRAD_LAST, *LAST, None, GRAD_LAST, None, None, 10, 17, STATISTICS, 0.0, None, None, 1, False),
    ),
    "flash_attn::_flash_attn_backward": (*(GRAD_LAST, *LAST, GRAD_LAST, STATISTICS, *LAST, 0.0, 1.0, True),),
    "flash_attn_3::bwd": (*(GRAD_LAST, *LAST, GRAD_LAST, STATISTICS, *LAST, *(None,) * 4, 10, 17, 1.0, True),),
}


@pytest.mark.parametrize("name", [*FORWARD, *BACKWARD])
def test_sizes_causality_and_direction(name: str) -> None:
    found = dims_of(name, *(FORWARD | BACKWARD)[name])
    direction = Direction.BOTH_GRADIENTS if name in BACKWARD else Direction.FORWARD
    assert found == AttentionDims(
        batch=2,
        heads=4,
        kv_heads=2,
        queries=10,
        keys=17,
        query_dim=8,
        value_dim=8,
        is_causal=True,
        direction=direction,
        kernel=KERNELS.get(next((word for word in KERNELS if word in name), ""), AttentionKernel.FLASH2),
        is_chosen_by_torch="FlashAttnFunc" not in name and not name.startswith("flash_attn"),
    )


def test_packed_sequences_window_and_mask() -> None:
    offsets = TensorSpec("int32", (6,))
    packed = (spec(50, 4, 8), spec(80, 2, 8), spec(80, 2, 8))
    found = dims_of("aten::_flash_attention_forward", *packed, offsets, offsets, 10, 17, 0.0, False, False, None, 4)
    assert (found.batch, found.heads, found.kv_heads, found.queries, found.keys) == (5, 4, 2, 10, 17)
    assert found.window == 5
    assert not found.is_causal
    counted = work_of(
        "aten::_flash_attention_forward", Signature((*packed, offsets, offsets, 10, 17, 0.0, *(False,) * 2, None, 4))
    )
    assert counted is not None
    assert counted.flops == 2 * 5 * 4 * 10 * 5 * (8 + 8)
    masked = dims_of("aten::scaled_dot_product_attention", *FIRST, spec(2, 4, 10, 17), 0.0, False)
    assert masked.has_mask
    assert masked.window == 0


OFFSETS = TensorSpec("int32", (6,))
PACKED = (spec(50, 4, 8), spec(80, 2, 8), spec(80, 2, 8))


def test_packed_sequences_of_flash_attention() -> None:
    forward = dims_of("flash_attn::_flash_attn_varlen_forward", *PACKED, OFFSETS, OFFSETS, 10, 17, 0.0, 1.0, True, 4, 0)
    newer = dims_of("flash_attn_3::fwd", *PACKED, *(None,) * 4, OFFSETS, OFFSETS, *(None,) * 3, 10, 17)
    grad = (PACKED[0], *PACKED, PACKED[0], STATISTICS, *PACKED)
    tail = (0.0, 1.0, True, 4, 0, 0.0, None, True)
    backward = dims_of("flash_attn::_flash_attn_varlen_backward", *grad, OFFSETS, OFFSETS, 10, 17, *tail)
    for found in (forward, newer, backward):
        assert (found.batch, found.heads, found.kv_heads, found.queries, found.keys) == (5, 4, 2, 10, 17)
    assert forward.window == backward.window == 5
    assert backward.direction is Direction.BOTH_GRADIENTS


@pytest.mark.parametrize("flag", [True, False])
def test_deterministic_gradients_where_the_signature_tells(flag: bool) -> None:
    head = BACKWARD["flash_attn::_flash_attn_backward"]
    assert dims_of("flash_attn::_flash_attn_backward", *head, -1, -1, 0.0, None, flag).is_deterministic is flag
    assert not dims_of("flash_attn::_flash_attn_backward", *head).is_deterministic


@pytest.mark.parametrize(("queries", "share"), [(1, 1.0), (8, 36 / 64), (4, 10 / 32)])
def test_least_flops_leave_out_what_a_causal_mask_hides(queries: int, share: float) -> None:
    keys = 1 if queries == 1 else 8
    arguments = (spec(1, 1, queries, 4), spec(1, 1, keys, 4), spec(1, 1, keys, 4), None, 0.0)
    causal = work_of("aten::scaled_dot_product_attention", Signature((*arguments, True)))
    full = work_of("aten::scaled_dot_product_attention", Signature((*arguments, False)))
    assert causal is not None
    assert full is not None
    assert full.least_flops == full.flops == causal.flops
    assert causal.least_flops == pytest.approx(share * full.flops)


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        (None, False),
        ("torch 2.4.1", False),
        ("torch 2.5.0", True),
        ("torch 2.5.1+cu124", False),
        ("torch 2.5", False),
        ("torch 2.11", True),
        ("torch 2.9.1", True),
        ("torch 2.10.0", False),
        ("torch 2.11.0", True),
        ("torch 2.13.0+cpu", True),
        ("tensorflow 2.16.1", False),
    ],
)
def test_versions_that_put_cudnn_first(framework: str | None, expected: bool) -> None:
    assert prefers_cudnn(framework) is expected


def test_the_recorded_kernel_decides_over_the_op() -> None:
    work = work_of("aten::_scaled_dot_product_flash_attention", Signature((*FIRST, 0.0, True)))
    assert work is not None
    found = with_kernel(work, "void flash::FlashAttnFwdSm90<...>", "torch 2.9.0").dims
    assert isinstance(found, AttentionDims)
    assert (found.kernel, found.prefers_cudnn) == (AttentionKernel.FLASH3, True)
    assert with_kernel(work, "", None) == work


@pytest.mark.parametrize("name", sorted({*FORWARD, *BACKWARD} - UNDROPPED))
def test_dropped_scores_are_told(name: str) -> None:
    arguments = (FORWARD | BACKWARD)[name]
    dropping = tuple(0.1 if isinstance(item, float) and item == 0.0 else item for item in arguments)
    assert not dims_of(name, *arguments).has_dropout
    assert dims_of(name, *dropping).has_dropout is (0.1 in dropping)
