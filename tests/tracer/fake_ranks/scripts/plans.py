# mypy: ignore-errors
"""Train small models under one kind of plan each: on GPUs by NCCL where torch sees some, else on the host by gloo."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

KIND = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 3


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, data):
        return data + self.down(nn.functional.gelu(self.up(self.norm(data))))


def train(model, shape):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(shape, device=KIND)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp():
    """Gradients of 1.3 MB: more than the first bucket holds."""
    model = nn.Sequential(*(Block(160, 320) for _ in range(3))).to(KIND)
    train(DistributedDataParallel(model), (4, 160))


def fsdp(tp=1):
    mesh = init_device_mesh(KIND, (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(Block(32, 64) for _ in range(2))).to(KIND)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        if tp > 1:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    train(model, (4, 32))


def fsdp_tp():
    fsdp(tp=2)


def fsdp1():
    """Shard flat parameters, as FullyShardedDataParallel does."""
    model = nn.Sequential(*(Block(32, 64) for _ in range(2))).to(KIND)
    device = torch.device(KIND, torch.cuda.current_device()) if KIND == "cuda" else torch.device("cpu")
    train(FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device), (4, 32))


def sequence():
    """Spread features over pairs of ranks by DTensor, and what lies between products along the sequence."""
    mesh = init_device_mesh(KIND, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(Block(32, 64) for _ in range(2))).to(KIND)
    for block in model:
        plan = {
            "norm": SequenceParallel(sequence_dim=0, use_local_output=False),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
        parallelize_module(block, mesh["tp"], plan)
    train(model, (4, 32))


def megatron():
    """Spread features by plain calls, gather along the sequence, and reduce gradients among replicas."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    replicas = [dist.new_group(list(range(first, world, 2))) for first in range(2)]
    group, replica = pairs[rank // 2], replicas[rank % 2]

    def gather(data):
        whole = data.new_empty((data.shape[0] * 2, *data.shape[1:]))
        dist.all_gather_into_tensor(whole, data.contiguous(), group=group)
        return whole

    def scatter(data):
        part = data.new_empty((data.shape[0] // 2, *data.shape[1:]))
        dist.reduce_scatter_tensor(part, data.contiguous(), group=group)
        return part

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(_context, data):
            return gather(data)

        @staticmethod
        def backward(_context, gradient):
            return scatter(gradient)

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(_context, data):
            return scatter(data)

        @staticmethod
        def backward(_context, gradient):
            return gather(gradient)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)

        def forward(self, data):
            return data + Scatter.apply(self.down(nn.functional.gelu(self.up(Gather.apply(data)))))

    model = nn.Sequential(Layer(), Layer()).to(KIND)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(8, 2, 32, device=KIND)).square().mean().backward()
        for work in [dist.all_reduce(item.grad, group=replica, async_op=True) for item in model.parameters()]:
            work.wait()
        gradients = [torch.zeros(1, device=KIND) for _ in range(2)]
        dist.all_gather(gradients, torch.ones(1, device=KIND), group=group)
        dist.broadcast(gradients[0], src=dist.get_global_rank(group, 0), group=group)
        optimizer.step()
        optimizer.zero_grad()


def pipeline():
    """Run two stages that differ, by 1F1B, in two replicas."""
    rank = dist.get_rank()
    groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    group, index = groups[rank // 2], rank % 2
    stage = PipelineStage(Block(32, 64 * (index + 1)).to(KIND), index, 2, torch.device(KIND), group=group)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.01)
    for _ in range(STEPS):
        data = torch.randn(8, 32, device=KIND)
        schedule.step(data) if index == 0 else schedule.step(target=data)
        optimizer.step()
        optimizer.zero_grad()


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(context, data, received, sent):
        context.splits = received, sent
        whole = data.new_empty((sum(received), *data.shape[1:]))
        dist.all_to_all_single(whole, data.contiguous(), received, sent)
        return whole

    @staticmethod
    def backward(context, gradient):
        received, sent = context.splits
        return AllToAll.apply(gradient, sent, received), None, None


class Experts(nn.Module):
    """Send tokens to experts on other ranks, as many to each: what the recorder takes a router to do."""

    def __init__(self, dim, hidden, count):
        super().__init__()
        self.count, self.router = count, nn.Linear(dim, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.Linear(hidden, dim)) for _ in range(count // dist.get_world_size())
        )

    def forward(self, data):
        weights = self.router(data).softmax(-1)
        chosen = torch.arange(data.shape[0], device=data.device) % self.count
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.count)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent = counts.view(dist.get_world_size(), -1).sum(1).tolist()
        received = theirs.view(dist.get_world_size(), -1).sum(1).tolist()
        tokens = AllToAll.apply(data[order], received, sent)
        sizes = theirs.view(dist.get_world_size(), -1).sum(0).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, tokens.split(sizes), strict=True)]
        back = AllToAll.apply(torch.cat(parts), sent, received)
        return data + torch.zeros_like(data).index_add(0, order, back) * weights.amax(-1, keepdim=True)


def experts():
    train(nn.Sequential(Experts(16, 32, 8), Experts(16, 32, 8)).to(KIND), (64, 16))


def main():
    dist.init_process_group("nccl" if KIND == "cuda" else "gloo")
    if KIND == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
