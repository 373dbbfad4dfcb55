# mypy: ignore-errors
# ruff: noqa: T201
"""Classify batches with a pretrained-style model: no optimizer, no hooks, two nested modules."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(tokens).mean(1))


torch.manual_seed(0)
model = Encoder().eval()
with torch.inference_mode():
    total = sum(model(torch.randn(2, 5, 16)).sum().item() for _ in range(25))
print(f"{total:.9f}")
