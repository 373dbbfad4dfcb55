"""Shape-only recordings against public profiler traces of the same architectures on real GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from wavecast.formats.files import load_trace
from wavecast.formats.trace import Trace
from wavecast.tracer import trace_iteration

pytestmark = pytest.mark.data

OPS = {
    "aten::addmm",
    "aten::mm",
    "aten::bmm",
    "aten::convolution",
    "aten::native_layer_norm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::gelu",
    "aten::tanh",
}


def operands(trace: Trace) -> Any:
    """Count the ops that do arithmetic by name and the shapes, dtypes and strides of what they read."""
    rows = zip(trace.ops.name, trace.ops.signature, strict=True)
    named = ((trace.strings[name], signature) for name, signature in rows)
    return Counter((name, trace.signatures[signature].tensors()) for name, signature in named if name in OPS)


class VitSmall(nn.Module):
    """The encoder that the trace ran: twelve layers of width 768 with separate projections, and a pooler."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.layers = nn.ModuleList(transformer.PreNormBlock(
            768, 12, dropout=0.0, causal=False, epsilon=1e-12, approximate="none") for _ in range(12))  # fmt: skip
        for layer in self.layers:
            layer.attention = transformer.Attention(768, 12, dropout=0.0, joint=False)
        self.norm, self.pooler = nn.LayerNorm(768), nn.Linear(768, 768)

    def forward(self, images: Any) -> Any:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([torch.zeros(len(images), 1, 768, dtype=images.dtype), patches], dim=1)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.pooler(self.norm(tokens)[:, 0]).tanh()


@pytest.mark.parametrize("name", ["h100_vit_small_inference", "mi300x_vit_small_inference"])
def test_a_vision_transformer_does_the_same_work(load_model: Callable[[str], Any], data_dir: Path, name: str) -> None:
    with torch.device("meta"):
        model = VitSmall(load_model("transformer")).bfloat16().eval()
        images = torch.zeros(4, 3, 224, 224, dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            model(images)

    recorded = operands(load_trace(data_dir / "traces" / f"{name}.json.gz"))
    assert operands(trace_iteration(step, device="meta")) == recorded


@pytest.mark.parametrize("name", ["h100_bert_small_inference", "mi300x_bert_small_inference"])
def test_a_text_encoder_does_the_same_work(
    load_model: Callable[[str], Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bert = load_model("bert_base")
    for constant, value in {"WIDTH": 512, "LAYERS": 4, "HEADS": 8}.items():
        monkeypatch.setattr(bert, constant, value)
    with torch.device("meta"):
        encoder = bert.Bert()
        encoder.pooler = nn.Identity()
        head = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, bert.VOCABULARY))
        layers = nn.Sequential(encoder.norm, encoder.layers, head).bfloat16().eval()
        data = torch.zeros(1, 141, 512, dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            layers(data)

    recorded = operands(load_trace(data_dir / "traces" / f"{name}.json.gz"))
    assert operands(trace_iteration(step, device="meta")) == recorded
