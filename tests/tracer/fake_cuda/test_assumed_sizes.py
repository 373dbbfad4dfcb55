"""Ops whose result's size depends on values that nobody knows, in scripts without a GPU: they keep everything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.fx.experimental._config as fx_config
from wavecast import load_trace

MASKS = pytest.mark.skipif(
    not hasattr(fx_config, "meta_nonzero_assume_all_nonzero"), reason="torch 2.5 cannot take a mask to keep everything"
)

SCRIPT = """
import torch
from torch.nn.functional import one_hot

layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters())
{before}
for step in range(4):
    x = layer(torch.ones(3, 4).cuda())
    rows = x[:, 0].detach().long()
    found = {call}
    if step == 0:
        print([tuple(item.shape) for item in (found if isinstance(found, (tuple, list)) else [found])])
    x.sum().backward()
    optimizer.step()
"""
NMS = """
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
kept = torch.zeros(3, dtype=torch.bool).cuda()
"""
PICK = """
library = torch.library.Library("mine", "DEF")
library.define("pick(float ratio, Tensor data) -> Tensor")

@torch.library.register_fake("mine::pick")
def pick(ratio, data):
    count = torch.library.get_ctx().new_dynamic_size({limits})
    return data.new_empty(count, data.shape[1])
"""


@pytest.fixture
def select(run: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[str, str, int]]:
    """Run a script that selects once per iteration; return what it printed, our line, and how much was assumed."""

    def select(call: str, before: str = "") -> tuple[str, str, int]:
        (tmp_path / "script.py").write_text(SCRIPT.format(call=call, before=before))
        done = run("--shapes-only", "script.py")
        assert done.code == 0, done.stderr
        return done.stdout.strip(), done.ours[0], load_trace(tmp_path / "trace.json.gz").quality.values_assumed

    return select


@MASKS
@pytest.mark.parametrize(
    ("call", "shapes", "op"),
    [
        ("torch.nonzero(x > 0)", "[(12, 2)]", "nonzero"),
        ("torch.where(x > 0)", "[(12,), (12,)]", "nonzero"),
        ("torch.argwhere(x[0] > 0)", "[(4, 1)]", "nonzero"),
        ("x[x[:, 0] > 0]", "[(3, 4)]", "index"),
        ("x.masked_select(x > 0)", "[(12,)]", "masked_select"),
        ("torch.unique(x.detach())", "[(12,)]", "_unique2"),
        ("torch.unique(x.detach(), return_inverse=True, return_counts=True)", "[(12,), (3, 4), (12,)]", "_unique2"),
        ("torch.unique(x.detach(), dim=1, return_inverse=True)", "[(3, 4), (4,)]", "unique_dim"),
        ("torch.unique_consecutive(rows, return_counts=True)", "[(3,), (3,)]", "unique_consecutive"),
        ("torch.repeat_interleave(x, rows, dim=0)", "[(3, 4)]", "repeat_interleave"),
        ("torch.repeat_interleave(x, rows, dim=0, output_size=7)", "[(7, 4)]", "repeat_interleave"),
        ("torch.bincount(rows)", "[(3,)]", "bincount"),
        ("torch.bincount(rows, x[:, 0].detach(), minlength=5)", "[(5,)]", "bincount"),
        ("x.split(torch.bincount(rows, minlength=2).tolist())", "[(2, 4), (1, 4)]", "bincount"),
    ],
)
def test_what_selects_by_unknown_values_keeps_everything(select: Any, call: str, shapes: str, op: str) -> None:
    printed, line, assumed = select(call)
    assert printed == shapes
    assert f"; 3 selections by unknown values were taken to keep everything ({op} 3)" in line
    assert assumed == 3


@pytest.mark.parametrize(
    "call", ["x[rows]", "x[torch.arange(3, device='cuda') > 0]", "one_hot(rows, 7)", "x.topk(2)[0]", "torch.isnan(x)"]
)
def test_what_shapes_and_known_values_say_is_not_counted(select: Any, call: str) -> None:
    _, line, assumed = select(call)
    assert assumed == 0
    assert "selections" not in line


@pytest.mark.parametrize("call", ["torch.equal(x, x + 1)", "torch.allclose(x, x + 1)"])
def test_comparisons_of_unknown_values_are_false_and_counted(select: Any, call: str) -> None:
    printed, line, assumed = select(f"x[:1 + {call}]")
    assert (printed, assumed) == ("[(1, 4)]", 3)
    assert "read 3 values from the GPU until then" in line


def test_boxes_do_not_overlap_and_what_they_select_is_known(select: Any) -> None:
    call = "(kept.index_fill_(0, torch.ops.torchvision.nms(x, x[:, 0], 0.5)[:2], True), x[kept])"
    printed, line, assumed = select(call, NMS)
    assert (printed, assumed) == ("[(3,), (2, 4)]", 3)
    assert "(nms 3)" in line


@pytest.mark.parametrize(("limits", "count"), [("", 3), ("max=2", 2), ("min=5", 5)])
def test_custom_ops_whose_shape_rule_asks_for_a_size_keep_all_rows(select: Any, limits: str, count: int) -> None:
    printed, line, assumed = select("torch.ops.mine.pick(0.5, x.detach())", PICK.format(limits=limits))
    assert (printed, assumed) == (f"[({count}, 4)]", 3)
    assert "(pick 3)" in line


SAMPLE = """
def sample(labels, count):
    masks = []
    for chosen in (labels >= 1, labels == 0):
        positions = torch.where(chosen)[0]
        order = torch.randperm(positions.numel(), device=positions.device)[:count]
        mask = torch.zeros_like(labels, dtype=torch.uint8)
        mask[positions[order]] = 1
        masks.append(mask)
    return torch.where(masks[0] | masks[1])[0]
"""


@MASKS
def test_a_sampler_of_both_kinds_of_boxes_takes_as_many_as_it_is_told(select: Any) -> None:
    printed, _, assumed = select("x.new_zeros(200, 4)[sample(x.detach().repeat(50, 1)[:200, 0].long(), 16)]", SAMPLE)
    assert (printed, assumed) == ("[(32, 4)]", 6)
