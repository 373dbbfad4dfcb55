"""Sizes of a transformer and the kernels that its framework runs: what a synthesised recording is written from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .....specs.attention_kernels import AttentionKernel


class Activation(StrEnum):
    """Name what stands between the products of a feed-forward block."""

    SWIGLU = "swiglu"
    """Gated: two products in, one out."""
    GELU = "gelu"
    SQUARED_RELU = "squared relu"

    @property
    def is_gated(self) -> bool:
        """Say whether the first product is twice as wide."""
        return self is Activation.SWIGLU


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSizes:
    """Hold a transformer's sizes, of one replica without any sharding."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    activation: Activation = Activation.SWIGLU
    has_rms_norm: bool = True
    has_rotary: bool = True
    has_bias: bool = False
    """Of every product of a layer."""
    is_causal: bool = True
    learned_positions: int = 0
    """Rows of a table of learned positions."""
    is_tied: bool = False
    """Whether the last product has the embedding's weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Say which kernels a framework runs for it."""

    dtype: str = "bfloat16"
    is_fp8: bool = False
    """Products of layers on operands cast to fp8, the head's in `dtype` (Transformer Engine's recipes)."""
    attention: AttentionKernel = AttentionKernel.FLASH2
    is_fused: bool = True
    """Whether queries, keys and values are one product, and a gate is applied in one kernel (Megatron, MPT);
    else as transformers writes them."""
    is_loss_fused: bool = False
    """Whether the loss is taken from 16-bit logits in one kernel each way."""
    reported_losses: int = 0
    """Cross entropies of the logits that are taken beside the loss, to be reported (Composer's training metrics)."""
    is_optimizer_fused: bool = True
    """Whether AdamW is one kernel, else an operation of its own for each step of its formula (Composer's)."""
    gradient_dtype: str = "bfloat16"
    accumulates: bool = False
    """Whether a product adds a weight's gradient to that of earlier micro batches, in `gradient_dtype` (Megatron's
    fused accumulation into float32)."""
    lora_rank: int = 0
    """Of adapters beside products of a layer; with them the weights themselves are not trained. 0: none."""
    lora_products: tuple[str, ...] = ("qkv_proj", "o_proj")
    """Which products they stand beside."""
