"""Record a training step of TorchRec on this machine's processor: tables of several widths with fused optimizers.

FBGEMM's operators for processors take the same arguments as those for GPUs and nest the same way, so that the trace
holds what a recording of TorchRec holds: lists of indices, a fused lookup in five tables of three widths, and the
optimizer inside the backward pass. Indices are drawn by Zipf's law, lists are of one to five.

Run: python benchmarks/make/torchrec_step.py tests/analyzer/work/recorded/torchrec-fused-sgd-cpu.json.gz
Needs torchrec and fbgemm-gpu-cpu (recorded with 1.9 and 1.8, PyTorch 2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from wavecast import save_trace
from wavecast.tracer import trace_iteration

ROWS = (40_000, 3_000, 200, 5_000, 100)
WIDTHS = (64, 32, 16, 64, 16)
BATCH = 512
LONGEST_LIST = 5
EXPONENT = 1.05


def draw(rows: int, count: int) -> Tensor:
    """Return indices drawn by Zipf's law."""
    share = torch.arange(1, rows + 1, dtype=torch.float64) ** -EXPONENT
    return torch.multinomial(share / share.sum(), count, replacement=True)


def draw_lists() -> KeyedJaggedTensor:
    """Return a batch of lists of indices for every table."""
    lengths = torch.randint(1, LONGEST_LIST + 1, (len(ROWS), BATCH))
    values = torch.cat([draw(rows, int(own.sum())) for rows, own in zip(ROWS, lengths, strict=True)])
    return KeyedJaggedTensor(keys=[f"feature{at}" for at in range(len(ROWS))], values=values, lengths=lengths.flatten())


def build_step() -> Callable[[], None]:
    """Return a training step."""
    tables = [
        EmbeddingBagConfig(name=f"table{at}", embedding_dim=width, num_embeddings=rows, feature_names=[f"feature{at}"])
        for at, (rows, width) in enumerate(zip(ROWS, WIDTHS, strict=True))
    ]
    bags = FusedEmbeddingBagCollection(
        tables, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": 0.02}, device=torch.device("cpu")
    )
    bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32))
    top = nn.Sequential(nn.Linear(32 + sum(WIDTHS), 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD([*bottom.parameters(), *top.parameters()], lr=0.02)
    lists, numbers = draw_lists(), torch.randn(BATCH, 13)

    def step() -> None:
        pooled = bags(KeyedJaggedTensor(lists.keys(), lists.values(), lengths=lists.lengths())).values()
        loss = top(torch.cat([bottom(numbers), pooled], 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    torch.manual_seed(1)
    save_trace(trace_iteration(build_step(), device="cpu", repeats=0), Path(sys.argv[1]))
