"""LSTM encoder-decoder with global dot-product attention (after Luong et al. 2015, arXiv:1508.04025).

Our configuration: 32,000 word pieces, embeddings and states of 1,024, two layers in a bidirectional encoder (512 each
way) and two in the decoder, dropout 0.2; sentences of 50 tokens; the decoder is fed the reference translation.
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS, LENGTH = 32_000, 1_024, 2, 50
_DROPOUT = 0.2


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source_words = nn.Embedding(VOCABULARY, WIDTH)
        self.target_words = nn.Embedding(VOCABULARY, WIDTH)
        shared = {"num_layers": LAYERS, "dropout": _DROPOUT, "batch_first": True}
        self.encoder = nn.LSTM(WIDTH, WIDTH // 2, bidirectional=True, **shared)
        self.decoder = nn.LSTM(WIDTH, WIDTH, **shared)
        self.mix = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (hidden, cell) = self.encoder(self.source_words(source))
        state = tuple(_join_directions(item) for item in (hidden, cell))
        decoded, _ = self.decoder(self.target_words(target), state)
        weights = torch.bmm(decoded, memory.transpose(1, 2)).softmax(-1)
        mixed = self.mix(torch.cat([torch.bmm(weights, memory), decoded], dim=-1)).tanh()
        return self.head(mixed)


def build() -> nn.Module:
    return Seq2Seq()


def make_batch(batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    source, target, following = (torch.randint(VOCABULARY, (batch_size, LENGTH)) for _ in range(3))
    return source, target, following


def predict(model: nn.Module, source: Tensor, target: Tensor, _following: Tensor) -> Tensor:
    return model(source, target)


def compute_loss(model: nn.Module, source: Tensor, target: Tensor, following: Tensor) -> Tensor:
    return functional.cross_entropy(model(source, target).view(-1, VOCABULARY), following.view(-1))


def _join_directions(state: Tensor) -> Tensor:
    """Turn [layers × 2, batch, half] into [layers, batch, whole]."""
    layers, batch, half = state.shape
    pairs = state.view(layers // 2, 2, batch, half).transpose(1, 2)
    return pairs.reshape(layers // 2, batch, 2 * half).contiguous()
