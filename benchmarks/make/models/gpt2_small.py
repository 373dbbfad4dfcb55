"""GPT-2 small (Radford et al. 2019): 124,439,808 parameters, output weights tied to the token embedding.

The step models language on full contexts of 1,024 tokens; inference is one such pass (a prefill).
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .transformer import PreNormBlock

VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS, LENGTH = 50_257, 768, 12, 12, 1_024, 1_024
_DROPOUT, _EPSILON = 0.1, 1e-5


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.dropout = nn.Dropout(_DROPOUT)
        block: dict[str, Any] = {"dropout": _DROPOUT, "causal": True, "epsilon": _EPSILON, "approximate": "tanh"}
        self.blocks = nn.Sequential(*(PreNormBlock(WIDTH, HEADS, **block) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, _EPSILON)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.dropout(self.words(tokens) + self.positions(places))
        return self.head(self.norm(self.blocks(embedded)))


def build() -> nn.Module:
    return Gpt2()


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randint(VOCABULARY, (batch_size, LENGTH)), torch.randint(VOCABULARY, (batch_size, LENGTH))


def predict(model: nn.Module, tokens: Tensor, _next_tokens: Tensor) -> Tensor:
    return model(tokens)


def compute_loss(model: nn.Module, tokens: Tensor, next_tokens: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens).view(-1, VOCABULARY), next_tokens.view(-1))
