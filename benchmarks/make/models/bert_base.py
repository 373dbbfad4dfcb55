"""BERT-base, uncased (Devlin et al. 2018, arXiv:1810.04805): 109,482,240 parameters with pooler.

The step fine-tunes for two-class sentence classification (1,538 parameters more) on sequences of 128 tokens
without padding, hence without an attention mask.
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .transformer import Attention, FeedForward

VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS, LENGTH = 30_522, 768, 12, 12, 512, 128
_DROPOUT, _EPSILON = 0.1, 1e-12


class Layer(nn.Module):
    """Transformer block with normalisation after each part."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(WIDTH, HEADS, dropout=_DROPOUT, joint=False)
        self.attention_norm = nn.LayerNorm(WIDTH, _EPSILON)
        self.feed_forward = FeedForward(WIDTH, 4 * WIDTH)
        self.feed_forward_norm = nn.LayerNorm(WIDTH, _EPSILON)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.segments = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, _EPSILON)
        self.dropout = nn.Dropout(_DROPOUT)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.pooler = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.words(tokens) + self.segments(torch.zeros_like(tokens)) + self.positions(places)
        return self.pooler(self.layers(self.dropout(self.norm(embedded)))[:, 0])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = Bert()
        self.dropout = nn.Dropout(_DROPOUT)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.dropout(self.bert(tokens)))


def build() -> nn.Module:
    return Classifier()


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randint(VOCABULARY, (batch_size, LENGTH)), torch.randint(2, (batch_size,))


def predict(model: nn.Module, tokens: Tensor, _labels: Tensor) -> Tensor:
    return model(tokens)


def compute_loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens), labels)
