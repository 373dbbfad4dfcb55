"""Gradient scalers in a shape-only recording: no gradient is taken to overflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from wavecast.errors import CaptureError
from wavecast.formats.trace.signature import TensorSpec
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer import trace_iteration


def make_step(make_scaler: Callable[[], Any], *, clips: bool = False, peek: Callable[[Any], object] = id) -> Any:
    """Return a training step with a gradient scaler, which is made in the first run."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("meta")
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.empty(2, 8, device="meta")
    held: list[Any] = []

    def step() -> None:
        if not held:
            held.append(make_scaler())
        (scaler,) = held
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(data).float().pow(2).mean()
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        peek(scaler)

    return step


def record(step: Callable[[], object]) -> Trace:
    return trace_iteration(step, device="meta")


SCALERS = [lambda: torch.amp.GradScaler("cuda"), torch.GradScaler, lambda: torch.amp.GradScaler("cpu")]


@pytest.mark.parametrize("make_scaler", SCALERS)
@pytest.mark.parametrize("clips", [False, True])
def test_the_ops_are_those_of_a_scaler_on_cuda(
    make_scaler: Callable[[], Any],
    clips: bool,
    op_counts: Callable[[Trace], Counter[str]],
    op_names: Callable[..., Any],
) -> None:
    trace = record(make_step(make_scaler, clips=clips))
    found = op_counts(trace)
    assert found["aten::_amp_foreach_non_finite_check_and_unscale_"] == 1
    assert found["aten::_amp_update_scale_"] == 1
    assert found["aten::_local_scalar_dense"] == 1
    names = op_names(trace)
    read, update = names.index("aten::_local_scalar_dense"), names.index("aten::_amp_update_scale_")
    assert names.index("aten::_amp_foreach_non_finite_check_and_unscale_") < read < update
    assert Phase.OPTIMIZER in trace.ops.phase[read:update]  # the step was not skipped


def test_the_check_reads_all_gradients_and_the_read_one_number(op_names: Callable[..., Any]) -> None:
    trace = record(make_step(SCALERS[0]))
    names = op_names(trace)
    check = trace.signatures[trace.ops.signature[names.index("aten::_amp_foreach_non_finite_check_and_unscale_")]]
    assert [item.shape for item in check.tensors()] == [(16, 8), (16,), (4, 16), (4,), (), ()]
    assert {item.dtype for item in check.tensors()} == {"float32"}
    read = trace.signatures[trace.ops.signature[names.index("aten::_local_scalar_dense")]]
    assert read.arguments == (TensorSpec(dtype="float32", shape=(), strides=()),)


def test_the_deprecated_spelling() -> None:
    with pytest.warns(FutureWarning, match="deprecated"):
        trace = record(make_step(torch.cuda.amp.GradScaler))
    assert "aten::_amp_update_scale_" in trace.strings


def test_the_scale_may_be_asked_for() -> None:
    scales: list[float] = []
    step = make_step(
        lambda: torch.amp.GradScaler("cuda", init_scale=1024.0), peek=lambda it: scales.append(it.get_scale())
    )
    trace = record(step)
    assert scales == [1024.0, 1024.0]
    assert trace.strings.count("aten::_local_scalar_dense") == 1


def test_no_other_value_is_known() -> None:
    with pytest.raises(CaptureError, match="needs the values of a tensor"):
        record(make_step(SCALERS[0], peek=lambda scaler: (scaler._scale * 2).item()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, scalers are not disabled")
def test_a_scaler_that_was_disabled_before_the_recording_is_told() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = torch.amp.GradScaler("cuda")
    with pytest.warns(RuntimeWarning, match=r"GradScaler that was made before.*GradScaler\('cpu'\)"):
        trace = record(make_step(lambda: scaler))
    assert "aten::_amp_update_scale_" not in trace.strings


def test_a_scaler_that_the_user_disabled_is_not() -> None:
    record(make_step(lambda: torch.amp.GradScaler("cuda", enabled=False)))


def test_another_librarys_rule_for_reading_values_is_put_back() -> None:
    other = torch.library.Library("aten", "IMPL")
    try:
        other.m.impl("_local_scalar_dense", "Meta", lambda _: 7.0, False)  # type: ignore[union-attr]
        assert record(make_step(torch.GradScaler)).ops.name.size
        assert torch.empty((), device="meta").item() == 7.0
    finally:
        other._destroy()
