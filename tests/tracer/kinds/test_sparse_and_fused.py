"""What scripts of these kinds do that torch has no shapes for: sparse tensors, fused optimizers, rarer losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wavecast import load_trace

SPARSE_GRADIENT = """
import torch
bags = torch.nn.EmbeddingBag(1000, 16, sparse=True, mode="{mode}").cuda()
head = torch.nn.Linear(16, 1).cuda()
optimizers = {optimizers}
for step in range(9):
    head(bags(torch.randint(1000, (8, 5)).cuda())).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
SPARSE_MATRIX = """
import torch
edges = torch.randint(50, (2, 200))
adjacency = torch.sparse_coo_tensor(edges, torch.rand(200), (50, 50)).coalesce(){layout}.cuda()
nodes, layer = torch.rand(50, 16).cuda(), torch.nn.Linear(16, 3).cuda()
optimizer = torch.optim.Adam(layer.parameters())
for step in range(9):
    torch.{product}(adjacency, layer(nodes)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FUSED = """
import torch
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.{}
for step in range(9):
    layer(torch.ones(2, 4).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOSSES = """
import torch
from torch import distributions, nn
layer = nn.Linear(4, 4).cuda()
optimizer = torch.optim.Adadelta(layer.parameters())
for step in range(9):
    outputs = layer(torch.randn(8, 4).cuda())
    loss = nn.MultiMarginLoss()(outputs, torch.randint(4, (8,)).cuda())
    loss = loss + nn.MultiLabelMarginLoss()(outputs, torch.randint(-1, 4, (8, 4)).cuda())
    loss = loss + outputs.logcumsumexp(1).sum() + outputs.cummax(1).values.sum()
    loss = loss + distributions.Gamma(outputs.exp(), 1.0).rsample().sum()
    loss = loss + distributions.Dirichlet(outputs.exp()).rsample().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ASSIGNED = """
import copy
import numpy
import torch
layer = torch.nn.Linear(4, 4)
layer.weight.data = torch.from_numpy(numpy.ones((4, 4), "float32"))
layer.bias.grad = torch.zeros(4)
layer.cuda()
for parameter in layer.parameters():
    parameter.data = parameter.data.cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(9):
    layer(torch.ones(2, 4).cuda()).sum().backward()
    optimizer.step()
"""
EVERY_PARAMETER = "[*bags.parameters(), *head.parameters()]"


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        pytest.param(
            SPARSE_GRADIENT.format(mode="sum", optimizers=f"[torch.optim.SGD({EVERY_PARAMETER}, lr=0.1)]"),
            {"aten::_embedding_bag_backward": 1, "aten::clone": 0, "aten::add_": 3},
            id="sparse gradients, kept as they come",
        ),
        pytest.param(
            SPARSE_GRADIENT.format(
                mode="mean", optimizers=f"[torch.optim.SGD({EVERY_PARAMETER}, lr=0.1, momentum=0.9)]"
            ),
            {"aten::_foreach_mul_": 1},
            id="sparse gradients with momentum",
        ),
        pytest.param(
            SPARSE_GRADIENT.format(mode="sum", optimizers=f"[torch.optim.Adagrad({EVERY_PARAMETER})]"),
            {"aten::_coalesce": 1, "aten::sparse_mask": 1},
            id="sparse gradients with Adagrad",
        ),
        pytest.param(
            SPARSE_GRADIENT.format(
                mode="sum",
                optimizers="[torch.optim.SparseAdam(bags.parameters()), torch.optim.Adam(head.parameters())]",
            ),
            {"aten::_coalesce": 1, "aten::sparse_mask": 2},
            id="sparse gradients with SparseAdam",
        ),
        pytest.param(
            SPARSE_MATRIX.format(layout="", product="spmm"), {"aten::mm": 3, "aten::addmm": 1}, id="a sparse matrix"
        ),
        pytest.param(
            SPARSE_MATRIX.format(layout=".to_sparse_csr()", product="matmul"), {"aten::addmm": 1}, id="a matrix by rows"
        ),
        *(
            pytest.param(
                FUSED.format(f"{name}(layer.parameters(), {options}, fused=True)"), {op: 1}, id=f"fused {name}"
            )
            for name, options, op in (
                ("SGD", "lr=0.1, momentum=0.9", "aten::_fused_sgd_"),
                ("Adagrad", "lr=0.1", "aten::_fused_adagrad_"),
                ("AdamW", "lr=torch.tensor(0.1)", "aten::_fused_adamw_"),
                ("Adam", "lr=torch.tensor(0.1)", "aten::_fused_adam_"),
            )
        ),
        pytest.param(LOSSES, {"aten::multi_margin_loss_backward": 1, "aten::_dirichlet_grad": 1}, id="losses"),
        pytest.param(ASSIGNED, {"aten::addmm": 1}, id="weights assigned from the host"),
    ],
)
def test_it_is_recorded(run: Callable[..., Any], tmp_path: Path, text: str, ops: dict[str, int]) -> None:
    (tmp_path / "script.py").write_text(text)
    done = run("--shapes-only", "script.py")
    assert done.code == 0, done.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    counts = Counter(trace.strings[row] for row in trace.ops.name)
    assert {name: counts[name] for name in ops} == ops
