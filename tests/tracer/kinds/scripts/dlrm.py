# mypy: ignore-errors
# ruff: noqa: T201
"""Train a recommendation model: sparse embedding bags with an optimizer of their own, dense layers, interactions."""

import argparse
import itertools
import os
import sys
import tempfile

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser(description="Train Deep Learning Recommendation Model (DLRM)")
parser.add_argument("--arch-sparse-feature-size", type=int, default=32)
parser.add_argument("--arch-embedding-size", type=str, default="100000-40000-20000-1000")
parser.add_argument("--arch-mlp-bot", type=str, default="13-256-64-32")
parser.add_argument("--arch-mlp-top", type=str, default="256-64-1")
parser.add_argument("--mini-batch-size", type=int, default=128)
parser.add_argument("--num-batches", type=int, default=20)
parser.add_argument("--num-indices-per-lookup", type=int, default=10)
parser.add_argument("--learning-rate", type=float, default=0.01)
parser.add_argument("--use-gpu", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()
np.random.seed(123)  # noqa: NPY002
device = torch.device("cuda", 0) if args.use_gpu else torch.device("cpu")


class DLRM_Net(nn.Module):  # noqa: N801
    def create_mlp(self, sizes, sigmoid_layer=-1):
        layers = nn.ModuleList()
        for i, (n, m) in enumerate(itertools.pairwise(sizes)):
            linear = nn.Linear(n, m, bias=True)
            weight = np.random.normal(0.0, np.sqrt(2 / (m + n)), size=(m, n)).astype(np.float32)  # noqa: NPY002
            linear.weight.data = torch.tensor(weight, requires_grad=True)
            layers.append(linear)
            layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        return nn.Sequential(*layers)

    def create_emb(self, m, sizes):
        tables = nn.ModuleList()
        for n in sizes:
            table = nn.EmbeddingBag(n, m, mode="sum", sparse=True)
            weight = np.random.uniform(-np.sqrt(1 / n), np.sqrt(1 / n), size=(n, m)).astype(np.float32)  # noqa: NPY002
            table.weight.data = torch.tensor(weight, requires_grad=True)
            tables.append(table)
        return tables

    def __init__(self, m, tables, bottom, top):
        super().__init__()
        self.emb_l = self.create_emb(m, tables)
        self.bot_l = self.create_mlp(bottom)
        self.top_l = self.create_mlp(top, sigmoid_layer=len(top) - 2)

    def forward(self, dense_x, lS_o, lS_i):  # noqa: N803
        x = self.bot_l(dense_x)
        ly = [table(lS_i[k], lS_o[k]) for k, table in enumerate(self.emb_l)]
        batch_size, d = x.shape
        T = torch.cat([x, *ly], dim=1).view((batch_size, -1, d))  # noqa: N806
        Z = torch.bmm(T, torch.transpose(T, 1, 2))  # noqa: N806
        _, ni, nj = Z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return self.top_l(torch.cat([x, Z[:, li, lj]], dim=1))


def make_batch(sizes, n):
    lookups = args.num_indices_per_lookup
    indices = [torch.from_numpy(np.random.randint(0, size, n * lookups)) for size in sizes]  # noqa: NPY002
    offsets = torch.stack([torch.arange(0, n * lookups, lookups) for _ in sizes])
    return torch.rand(n, 13), offsets, indices, torch.randint(2, (n, 1)).float()


ln_emb = [int(n) for n in args.arch_embedding_size.split("-")]
ln_bot = [int(n) for n in args.arch_mlp_bot.split("-")]
num_fea = len(ln_emb) + 1
num_int = num_fea * (num_fea - 1) // 2 + ln_bot[-1]
ln_top = [num_int, *(int(n) for n in args.arch_mlp_top.split("-"))]
if ln_bot[-1] != args.arch_sparse_feature_size:
    sys.exit("arch-sparse-feature-size does not match last dim of bottom mlp")
dlrm = DLRM_Net(args.arch_sparse_feature_size, ln_emb, ln_bot, ln_top).to(device)
loss_fn = nn.BCELoss(reduction="mean")
optimizer = torch.optim.SGD(dlrm.parameters(), lr=args.learning_rate)
for j in range(args.num_batches):
    X, lS_o, lS_i, T = make_batch(ln_emb, args.mini_batch_size)  # noqa: N816
    Z = dlrm(X.to(device), [o.to(device) for o in lS_o], [i.to(device) for i in lS_i])
    E = loss_fn(Z, T.to(device))
    L, S = E.detach().cpu().numpy(), Z.detach().cpu().numpy()
    A = np.sum((np.round(S, 0) == T.numpy()).astype(np.uint8)) / args.mini_batch_size
    optimizer.zero_grad()
    E.backward()
    optimizer.step()
    print(f"Finished training it {j}/{args.num_batches}, loss {L:.6f}, accuracy {A * 100:3.3f} %")
torch.save(dlrm.state_dict(), os.path.join(tempfile.mkdtemp(), "dlrm.pt"))  # noqa: PTH118
