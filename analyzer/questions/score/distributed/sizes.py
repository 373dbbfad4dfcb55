"""Sizes of a transformer and the kernels that its framework runs: what a synthesised recording is written from."""

from enum import StrEnum
from typing import Final

from .....records import dataclass
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


class ProductFormat(StrEnum):
    """Name the numbers that the products of layers take, and how they are scaled (Transformer Engine's recipes)."""

    HALF = "16 bits"
    FP8 = "fp8"
    """A scale per tensor, from what earlier iterations held (delayed scaling)."""
    FP8_CURRENT = "fp8, current scaling"
    """A scale per tensor, from its own largest element: a pass over it more."""
    FP8_BLOCK = "fp8, scales of blocks"
    MXFP8 = "mxfp8"
    """A scale per 32 elements along the side that products add up."""
    NVFP4 = "nvfp4"
    """A scale per 16 such elements, and one per tensor: a pass over it more."""

    @property
    def is_narrow(self) -> bool:
        """Say whether operands are cast to fewer than 16 bits."""
        return self is not ProductFormat.HALF

    @property
    def dtypes(self) -> tuple[str, str]:
        """Return torch's dtypes of activations and weights, and of gradients."""
        if self is ProductFormat.NVFP4:
            return FP4, FP4
        return FORWARD_FP8, BACKWARD_FP8 if self in (ProductFormat.FP8, ProductFormat.FP8_CURRENT) else FORWARD_FP8

    @property
    def reads_first(self) -> bool:
        """Say whether a tensor's largest element is looked for before it is cast."""
        return self in (ProductFormat.FP8_CURRENT, ProductFormat.NVFP4)

    @property
    def scales_one_way(self) -> bool:
        """Say whether scales lie along one side: products that add up the other take a cast of their own."""
        return self in (ProductFormat.FP8_BLOCK, ProductFormat.MXFP8, ProductFormat.NVFP4)


FORWARD_FP8: Final = "float8_e4m3fn"
BACKWARD_FP8: Final = "float8_e5m2"
"""Of gradients: Transformer Engine's hybrid recipe."""
FP4: Final = "float4_e2m1fn"


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
    shared_experts: int = 0
    """Of `moe_ffn` each, that every token passes beside those it chose."""
    query_rank: int = 0
    """Features that queries are drawn from (multi-head latent attention); 0: they are drawn from the layer's input."""
    key_rank: int = 0
    """The same of keys and values together, with the rotary part that heads share."""
    rotary_dim: int = 0
    """Of each head's queries and keys, beside `head_dim`."""
    activation: Activation = Activation.SWIGLU
    has_rms_norm: bool = True
    has_rotary: bool = True
    has_bias: bool = False
    """Of every product of a layer."""
    has_expert_bias: bool = False
    """Whether experts' products have one too, and what the gate reads is clamped (gpt-oss)."""
    has_head_norms: bool = False
    """Whether queries and keys of each head are normed (Qwen3)."""
    is_causal: bool = True
    learned_positions: int = 0
    """Rows of a table of learned positions."""
    predicts_ahead: bool = False
    """Whether one more layer, after the others, predicts the token after next, by the head once more (multi-token
    prediction; DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
    is_tied: bool = False
    """Whether the last product has the embedding's weights."""

    @property
    def layer_parameters(self) -> int:
        """Return the weights of a layer's products, without experts."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + (0 if self.experts else self.hidden * self.ffn * (3 if self.activation.is_gated else 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Say which kernels a framework runs for it."""

    dtype: str = "bfloat16"
    products: ProductFormat = ProductFormat.HALF
    """Of layers, attention's own left out; the head's are in `dtype`."""
    casts_turned: bool = False
    """Whether every cast operand is written a second time, turned round: fp8 products of Hopper and Ada add up along
    memory alone, and scales may lie one way."""
    attention: AttentionKernel = AttentionKernel.FLASH2
    is_fused: bool = True
    """Whether queries, keys and values are one product, and a gate is applied in one kernel (Megatron, MPT);
    else as transformers writes them."""
    is_eager: bool = False
    """Whether RMS norms run as the operations of their formula, not as a kernel."""
    is_rotation_fused: bool = True
    """Whether a rotary embedding is a kernel, not the operations of its formula."""
    is_routing_fused: bool = False
    """Whether tokens go to experts and back by Megatron's fused kernels, not by torch's ops."""
    sorts_rows: bool = False
    """Whether rows that an all-to-all brought are sorted by expert: of several ranks and experts."""
    is_loss_fused: bool = False
    """Whether the loss is taken from 16-bit logits in one kernel each way."""
    is_loss_lean: bool = False
    """Whether those read the logits alone and store no chances (flash-attn's)."""
    reported_losses: int = 0
    """Cross entropies of the logits that are taken beside the loss, to be reported (Composer's training metrics)."""
    is_optimizer_fused: bool = True
    """Whether AdamW is one kernel, else an operation of its own for each step of its formula (Composer's)."""
    gradient_dtype: str = "bfloat16"
    accumulates: bool = False
    """Whether a product adds a weight's gradient to that of earlier micro batches, in `gradient_dtype` (Megatron's
    fused accumulation into float32)."""
    recomputes_latent: bool = False
    """Whether backward multiplies queries, keys and values from their few features again (Megatron's `mla_up_proj`)."""
    lora_rank: int = 0
    """Of adapters beside products of a layer; with them the weights themselves are not trained. 0: none."""
    lora_products: tuple[str, ...] = ("qkv_proj", "o_proj")
    """Which products they stand beside."""
