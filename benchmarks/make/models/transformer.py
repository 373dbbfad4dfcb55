"""Blocks that BERT, GPT-2 and ViT share: multi-head attention through torch's fused op, and the feed-forward part."""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head attention; one joint projection to queries, keys and values, or three of equal size."""

    def __init__(self, width: int, heads: int, *, dropout: float, causal: bool = False, joint: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout_p, self.causal = heads, dropout, causal
        self.projections = nn.ModuleList(
            [nn.Linear(width, 3 * width)] if joint else [nn.Linear(width, width) for _ in range(3)]
        )
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        if len(self.projections) == 1:
            parts = self.projections[0](x).split(width, dim=-1)
        else:
            parts = [projection(x) for projection in self.projections]
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        dropout = self.dropout_p if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, *, approximate: str = "none") -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.activation = nn.GELU(approximate)
        self.shrink = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.shrink(self.activation(self.expand(x)))


class PreNormBlock(nn.Module):
    """Transformer block with normalisation before each part, as in GPT-2 and ViT."""

    def __init__(
        self, width: int, heads: int, *, dropout: float, causal: bool, epsilon: float, approximate: str
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, epsilon)
        self.attention = Attention(width, heads, dropout=dropout, causal=causal)
        self.feed_forward_norm = nn.LayerNorm(width, epsilon)
        self.feed_forward = FeedForward(width, 4 * width, approximate=approximate)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
