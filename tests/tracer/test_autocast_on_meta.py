"""Autocast's conversions in a shape-only recording, by the mode that records timm's models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from wavecast.formats.signature import TensorSpec
from wavecast.formats.trace import Trace
from wavecast.tracer import trace_iteration

Record = Callable[[Callable[[], object]], Trace]


@pytest.fixture
def record(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Return a function that records a step under float16 autocast on the meta device."""
    monkeypatch.syspath_prepend(root_dir / "benchmarks")
    autocast: Any = import_module("autocast_on_meta").autocast_on_meta

    def run(step: Callable[[], object]) -> Trace:
        def wrapped() -> None:
            with torch.no_grad(), autocast(torch.float16):
                step()

        return trace_iteration(wrapped, device="meta", warmup=0)

    return run


def calls(trace: Trace, *names: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the ops of these names with the dtypes of their tensors."""
    rows = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)
    found = [(trace.strings[name].removeprefix("aten::"), trace.signatures[signature]) for name, signature in rows]
    return [(name, tuple(spec.dtype for spec in item.tensors())) for name, item in found if name in names]


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, device="meta")


@pytest.mark.parametrize(
    ("layer", "shape", "name"),
    [
        (lambda: nn.Conv2d(3, 8, 3), (2, 3, 8, 8), "convolution"),
        (lambda: nn.Linear(8, 4), (2, 5, 8), "addmm"),
        (lambda: nn.Linear(8, 4, bias=False), (2, 8), "mm"),
    ],
)
def test_products_run_in_half_precision_from_converted_parameters(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], name: str, record: Record
) -> None:
    with torch.device("meta"):
        module = layer()
    trace = record(lambda: module(images(*shape)))
    (product,) = calls(trace, name)
    assert set(product[1]) == {"float16"}
    assert len(calls(trace, "_to_copy")) == 1 + len(list(module.parameters()))


def test_a_parameter_is_converted_once(record: Record) -> None:
    layer = nn.Linear(8, 8, device="meta")
    trace = record(lambda: layer(layer(layer(images(2, 8)))))
    assert Counter(name for name, _ in calls(trace, "addmm", "_to_copy")) == {"addmm": 3, "_to_copy": 3}


def test_normalisation_is_wide_and_a_sum_of_both_types_follows_the_wider(record: Record) -> None:
    layer, norm = nn.Linear(8, 8, device="meta"), nn.LayerNorm(8, device="meta")
    trace = record(lambda: functional.gelu(layer(images(2, 8))) + norm(layer(images(2, 8))))
    assert {dtypes for _, dtypes in calls(trace, "native_layer_norm")} == {("float32",) * 3}
    assert calls(trace, "gelu") == [("gelu", ("float16",))]
    assert calls(trace, "add") == [("add", ("float16", "float32"))]


def test_softmax_and_sums_convert_on_the_way(record: Record) -> None:
    half = images(4, 8).half()
    trace = record(lambda: (half.softmax(-1), half.sum(0)))
    assert calls(trace, "_to_copy") == []
    results = {spec.dtype for item in trace.signatures for spec in item.results if isinstance(spec, TensorSpec)}
    assert results == {"float32"}


def test_attention_is_chosen_by_the_type_that_it_runs_in(record: Record) -> None:
    wide = images(2, 4, 16, 32)
    trace = record(lambda: functional.scaled_dot_product_attention(wide, wide, wide.half()))
    (call,) = calls(trace, "_scaled_dot_product_flash_attention")
    assert set(call[1]) == {"float16"}


def test_nothing_stays_behind(record: Record) -> None:
    layer = nn.Linear(8, 8, device="meta")
    with pytest.raises(ZeroDivisionError):
        record(lambda: layer(images(2, 8)) if 1 / 0 else None)
    assert layer(images(2, 8)).dtype is torch.float32
