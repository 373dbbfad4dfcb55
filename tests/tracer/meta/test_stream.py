"""The ops of shape-only recordings against those of the same step run on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.tracer import trace_iteration

from . import streams
from .op_streams import dispatched

BAR = 0.98
"""Of the time that a GPU is predicted to need."""


SMALLER = {
    "dcgan": {"CHANNELS": 8},
    "vit_b16": {"LAYERS": 1},
    "gpt2_small": {"LAYERS": 1, "LENGTH": 64, "VOCABULARY": 1_024},
}
"""Constants that make a model smaller still than the benchmark does."""


@pytest.mark.parametrize(
    "sample",
    [
        ("dcgan", "training", "fp32"),
        ("dlrm", "training", "fp32"),
        ("dlrm", "inference", "bf16"),
        ("gpt2_small", "inference", "fp32"),
    ],
    ids="-".join,
)
def test_a_sample_model_issues_the_ops_that_run(monkeypatch: pytest.MonkeyPatch, sample: tuple[str, str, str]) -> None:
    size = streams.SIZES[sample[0]]
    constants = {**size.constants, **SMALLER.get(sample[0], {})}
    monkeypatch.setitem(streams.SIZES, sample[0], replace(size, constants=constants))
    match = streams.match_on_h100(*streams.record_pair(*sample))
    assert match.least_share >= BAR, match.lone[:5]


@pytest.mark.parametrize("what", ["shape", "dtype"])
def test_other_shapes_or_types_are_no_match(training_step: Any, what: str) -> None:
    changed = {"shape": _wider, "dtype": _halved}[what]
    step = training_step()
    first = trace_iteration(lambda: step.model(step.images), device="meta")
    signatures = tuple(Signature(tuple(changed(item) for item in found.arguments)) for found in first.signatures)
    match = streams.match_on_h100(first, replace(first, signatures=signatures))
    assert match.least_share < 0.2  # single numbers have no shape


def _wider(argument: Any) -> Any:
    """Return a tensor with twice as many rows, and lists of tensors so; others as they are."""
    if isinstance(argument, TensorSpec) and argument.shape:
        return TensorSpec(argument.dtype, (2 * argument.shape[0], *argument.shape[1:]))
    return tuple(_wider(item) for item in argument) if isinstance(argument, tuple) else argument


def _halved(argument: Any) -> Any:
    """Return a tensor of half the width."""
    return TensorSpec("bfloat16", argument.shape) if isinstance(argument, TensorSpec) else argument


def test_an_op_that_only_one_side_has_is_named(training_step: Any) -> None:
    plain = training_step()

    def with_cosine() -> None:
        plain()
        torch.empty(64, 64, device="meta").cos()

    pair = trace_iteration(plain, device="meta"), trace_iteration(with_cosine, device="meta")
    match = streams.match_on_h100(*pair)
    lone = [item for item in match.lone if item.share > 0]
    assert [(item.is_second, item.op, item.count) for item in lone] == [(True, "aten::cos", 1)]
    assert match.sides[0].share == 1
    assert match.sides[1].share == pytest.approx(1 - lone[0].share)


def test_what_runs_inside_an_op_counts_as_that_op() -> None:
    data = torch.randn(8, 8)
    measured = trace_iteration(lambda: torch.relu_(data), device="cpu", warmup=0, repeats=0)
    inner = {measured.strings[name] for name in measured.ops.name.tolist()}
    calls = dispatched(measured)
    outer = {calls.strings[name] for name in calls.ops.name.tolist()}
    assert "aten::relu_" in outer
    assert len(inner) > len(outer)


def test_optimizers_are_left_as_they_were(training_step: Any) -> None:
    step = training_step(device="cpu")
    with streams.short_lists():
        pass
    step()
    assert step.optimizer.param_groups[0]["foreach"] is None


def test_the_gradient_of_indexing_is_written_in_place(op_names: Any) -> None:
    data = torch.zeros(8, 4, device="meta", requires_grad=True)
    rows = torch.zeros(3, dtype=torch.long, device="meta")
    names = op_names(trace_iteration(lambda: data[rows].sum().backward(), device="meta", warmup=0))
    assert "aten::_index_put_impl_" in names
    assert "aten::index_put" not in names
    forward = op_names(trace_iteration(lambda: data.detach().index_put((rows,), data[rows]), device="meta", warmup=0))
    assert "aten::index_put" in forward


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_gradient_of_a_bias_is_summed_by_itself(op_names: Any, has_bias: bool) -> None:
    layer = torch.nn.Conv2d(3, 8, 3, bias=has_bias, device="meta")
    image = torch.zeros(2, 3, 16, 16, device="meta")
    trace = trace_iteration(lambda: layer(image).mean().backward(), device="meta", warmup=0)
    names = op_names(trace)
    assert ("aten::sum" in names) == has_bias
    gradient = trace.signatures[trace.ops.signature[names.index("aten::convolution_backward")]]
    assert gradient.arguments[-1] == (False, True, False)
    assert not has_bias or [item.shape for item in layer.parameters()][1] == (8,)
