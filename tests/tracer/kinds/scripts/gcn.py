# mypy: ignore-errors
# ruff: noqa: T201
"""Train a graph convolutional network on one graph with PyTorch Geometric, a step per epoch, testing in between."""

import argparse
import time

import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

parser = argparse.ArgumentParser()
parser.add_argument("--hidden_channels", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--nodes", type=int, default=2708)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"


def make_graph():
    """A random graph of the size of Cora."""
    generator = torch.Generator().manual_seed(0)
    edges = to_undirected(torch.randint(args.nodes, (2, 2 * args.nodes), generator=generator))
    graph = Data(x=torch.rand(args.nodes, 500), edge_index=edges, y=torch.randint(7, (args.nodes,)))
    order = torch.randperm(args.nodes, generator=generator)
    for name, part in zip(("train_mask", "val_mask", "test_mask"), order.split([140, 500, args.nodes - 640])):  # noqa: B905
        mask = torch.zeros(args.nodes, dtype=torch.bool)
        mask[part] = True
        graph[name] = mask
    return graph


class GCN(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, out_channels)

    def forward(self, x, edge_index, edge_weight=None):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edge_index, edge_weight).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index, edge_weight)


data = make_graph().to(device)
model = GCN(data.num_features, args.hidden_channels, 7).to(device)
optimizer = torch.optim.Adam(
    [dict(params=model.conv1.parameters(), weight_decay=5e-4), dict(params=model.conv2.parameters(), weight_decay=0)],  # noqa: C408
    lr=args.lr,
)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index, data.edge_attr)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index, data.edge_attr).argmax(dim=-1)
    masks = data.train_mask, data.val_mask, data.test_mask
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


best_val_acc = test_acc = 0
for epoch in range(1, args.epochs + 1):
    start = time.time()
    loss = train()
    train_acc, val_acc, tmp_test_acc = test()
    if val_acc > best_val_acc:
        best_val_acc, test_acc = val_acc, tmp_test_acc
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}, {time.time() - start:.4f}s")
