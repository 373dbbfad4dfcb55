"""Values of index tensors on the meta device: what follows from constants is known, the rest is assumed or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from wavecast.errors import CaptureError
from wavecast.tracer import trace_iteration
from wavecast.tracer.meta.host_values import HostReads, HostValues


@pytest.fixture
def run() -> Callable[[Callable[[], Any]], Any]:
    """Record a step that may look at values, and return what it returned in the recorded run."""

    def record(step: Callable[[], Any]) -> Any:
        values, seen = HostValues(), []

        def look() -> None:
            with HostReads(values):
                seen.append(step())

        with values:
            trace_iteration(look, device="meta")
        return seen[-1]

    return record


def activations(*shape: int) -> torch.Tensor:
    return torch.empty(shape).softmax(-1)


def overwrite_by_view() -> list[int]:
    numbers = torch.arange(6)
    numbers.view(2, 3)[1].fill_(9)
    return numbers.tolist()


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda: (torch.arange(5) > 2).sum().item(), 2),
        (lambda: [*(torch.tensor([[1, 2], [3, 4]])[:, [1, 0]]).tolist()], [[2, 1], [4, 3]]),
        (lambda: bool((torch.arange(4).diff() == 1).all()), True),
        (lambda: tuple((torch.arange(6).view(2, 3) % 2).nonzero().shape), (3, 2)),
        (lambda: tuple(activations(4, 3)[torch.arange(4) > 0].shape), (3, 3)),
        (lambda: activations(4).masked_select(torch.arange(4) > 2).numel(), 1),
        (lambda: len(torch.unique(torch.tensor([3, 1, 3]))), 2),
        (lambda: torch.arange(3).repeat_interleave(torch.tensor([2, 0, 1])).cpu().tolist(), [0, 0, 2]),
        (lambda: f"expert_{torch.arange(3)[2]}", "expert_2"),
        (overwrite_by_view, [0, 1, 2, 9, 9, 9]),
        (lambda: activations(8, 4).topk(2, dim=-1).indices.flatten().bincount(minlength=4).tolist(), [4] * 4),
        (lambda: activations(8, 4).argmax(-1).tolist(), [0, 1, 2, 3] * 2),
        (lambda: bool(activations(3).isfinite().all()), True),
        (lambda: bool(torch.rand([]) < 0.1), False),
        (lambda: activations(2).cpu().tolist(), [0.0, 0.0]),
    ],
)
def test_what_a_step_may_look_at(run: Callable[..., Any], step: Callable[[], Any], expected: Any) -> None:
    assert run(step) == expected


def look_after_overwriting() -> float:
    zeros = torch.zeros(3)
    kept = zeros.view(3, 1)
    zeros.copy_(activations(3))
    return kept.sum().item()


@pytest.mark.parametrize("step", [lambda: activations(3).sum().item(), look_after_overwriting])
def test_values_of_activations_are_not_made_up(run: Callable[..., Any], step: Callable[[], Any]) -> None:
    with pytest.raises((CaptureError, RuntimeError), match=r"needs the values|item\(\) cannot be called on meta"):
        run(step)


def test_the_ctc_loss_has_a_table_of_states_per_sample(run: Callable[..., Any]) -> None:
    def step() -> torch.Size:
        scores = torch.empty(20, 2, 5, requires_grad=True)
        targets, lengths = torch.ones(2, 4, dtype=torch.long), (torch.full((2,), 20), torch.tensor([4, 3]))
        loss = torch.nn.functional.ctc_loss(scores.log_softmax(-1), targets, *lengths)
        loss.backward()
        assert scores.grad is not None
        return scores.grad.shape

    assert run(step) == (20, 2, 5)
