"""ViT-B/16 at 224 × 224 (Dosovitskiy et al. 2020, arXiv:2010.11929), 86,567,656 parameters, no dropout."""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .transformer import PreNormBlock

IMAGE, PATCH, WIDTH, LAYERS, HEADS, CLASSES = 224, 16, 768, 12, 12, 1_000
_EPSILON = 1e-6


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        block: dict[str, Any] = {"dropout": 0.0, "causal": False, "epsilon": _EPSILON, "approximate": "none"}
        self.blocks = nn.Sequential(*(PreNormBlock(WIDTH, HEADS, **block) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, _EPSILON)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])


def build() -> nn.Module:
    return Vit()


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch_size, 3, IMAGE, IMAGE), torch.randint(CLASSES, (batch_size,))


def predict(model: nn.Module, images: Tensor, _labels: Tensor) -> Tensor:
    return model(images)


def compute_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(images), labels)
