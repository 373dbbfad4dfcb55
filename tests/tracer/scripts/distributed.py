# mypy: ignore-errors
"""Train with DistributedDataParallel over gloo, as torchrun starts it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(16):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
