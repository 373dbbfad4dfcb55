# mypy: ignore-errors
# ruff: noqa: T201
"""Train with DistributedDataParallel as torchrun starts it: ranks from the environment, a sampler, reduced metrics."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    use_cuda = torch.cuda.is_available()
    dist.init_process_group(backend="nccl" if use_cuda else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if not use_cuda:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embedding = nn.Embedding(1000, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 4)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int, nargs="?", default=2)
    parser.add_argument("--batch_size", type=int, default=16)
    args = parser.parse_args()
    device = setup()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    dataset = TensorDataset(torch.randint(1000, (512, 64)), torch.randint(4, (512,)))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, pin_memory=device.type == "cuda")
    model = Encoder().to(device)
    model = DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.total_epochs):
        sampler.set_epoch(epoch)
        for step, (tokens, labels) in enumerate(loader):
            tokens, labels = tokens.to(device, non_blocking=True), labels.to(device, non_blocking=True)  # noqa: PLW2901
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"[GPU{rank}] epoch {epoch} step {step} loss {mean.item() / world_size:.4f}")
        dist.barrier()
        if rank == 0:
            torch.save(model.module.state_dict(), os.path.join(tempfile.mkdtemp(), "checkpoint.pt"))  # noqa: PTH118
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
