"""DLRM for Criteo Kaggle (Naumov et al. 2019, arXiv:1906.00091): 540,201,232 parameters in 26 tables of width 16.

The bottom network is 13-512-256-64-16, the top one 512-256-1, features interact by dot products. One index per
table and sample. Gradients of the tables are dense here; the authors' code can keep them sparse.
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

TABLE_ROWS = (
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
WIDTH, DENSE = 16, 13
_BOTTOM, _TOP = (DENSE, 512, 256, 64, WIDTH), (512, 256)


class Dlrm(nn.Module):
    rows: Tensor
    columns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in TABLE_ROWS)
        self.bottom = _build_perceptron(_BOTTOM)
        vectors = len(TABLE_ROWS) + 1
        pairs = vectors * (vectors - 1) // 2
        self.top = nn.Sequential(_build_perceptron((WIDTH + pairs, *_TOP)), nn.Linear(_TOP[-1], 1))
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        looked_up = [table(indices[:, place : place + 1]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


def build() -> nn.Module:
    return Dlrm()


def make_batch(batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    columns = [torch.randint(rows, (batch_size,)) for rows in TABLE_ROWS]
    return torch.randn(batch_size, DENSE), torch.stack(columns, dim=1), torch.rand(batch_size)


def predict(model: nn.Module, dense: Tensor, indices: Tensor, _clicked: Tensor) -> Tensor:
    return model(dense, indices)


def compute_loss(model: nn.Module, dense: Tensor, indices: Tensor, clicked: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(dense, indices), clicked)


def _build_perceptron(widths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
