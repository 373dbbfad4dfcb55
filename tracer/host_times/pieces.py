"""The pieces of host work that are timed: one per kind of `HostTimes`, as short as they are, many to a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from .plain_python import PlainLayer

_CHAIN: Final = 8
"""Links of the chain that is differentiated, of four ops each: long enough to hide what one call of backward costs."""
_PARAMETER_COUNT: Final = 16

Run = Callable[[int], None]
"""Does a piece of work so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPiece:
    """Hold the work of one kind, and what it is made of."""

    kind: str
    """The field of `HostTimes`."""
    unit_count: int
    """Units in one turn: ops, calls, parameters."""
    run: Run
    without: Run | None = None
    """The same work without what is to be timed, whose time is subtracted."""
    after: Callable[[], None] | None = None
    """What is to be waited for after a batch, untimed."""


def pieces_here(*, has_optimizer: bool, gpu: int | None) -> tuple[HostPiece, ...]:
    """Return the pieces that can be timed here, launches on the GPU of that index; all else is on the CPU."""
    found = [_python(), _dispatch(), _autograd(), _modules(), _allocation()]
    if has_optimizer:
        found.append(_optimizer())
    if gpu is not None:
        found.append(_launch(gpu))
    return tuple(found)


def _ones(*shape: int, **options: Any) -> torch.Tensor:
    """Return a small tensor on the CPU, whatever a script has made the default."""
    return torch.ones(*shape, dtype=torch.float32, **({"device": "cpu"} | options))


def _python() -> HostPiece:
    call = PlainLayer(8).call

    def run(count: int) -> None:
        for number in range(count):
            call(number, scale=0.5)

    return HostPiece(kind="python_ns", unit_count=1, run=run)


def _dispatch() -> HostPiece:
    """Views, elementwise ops in place and not, reductions, a product: what eager models dispatch most."""
    one, other, matrix, rows = _ones(1), _ones(1), _ones(1, 1), _ones(2, 2)

    def run(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                one.add_(other)
                one * 0.5
                one + other
                torch.relu(one)
                matrix.t()
                one.view(1, 1)
                rows[1]
                rows.transpose(0, 1)
                rows.sum(dim=1)
                torch.softmax(matrix, -1)
                torch.addmm(other, matrix, matrix)
                torch.cat((one, other))

    return HostPiece(kind="dispatch_ns", unit_count=12, run=run)


def _autograd() -> HostPiece:
    weight, other = _ones(1, requires_grad=True), _ones(1)

    def chain() -> torch.Tensor:
        result: torch.Tensor = weight
        for _ in range(_CHAIN):
            result = torch.relu((result * other).view(1) + other)
        return result

    def run(count: int) -> None:
        for _ in range(count):
            torch.autograd.grad(chain(), weight)

    def without(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                chain()

    return HostPiece(kind="autograd_ns", unit_count=4 * _CHAIN, run=run, without=without)


def _modules() -> HostPiece:
    module = nn.Identity()

    def run(count: int) -> None:
        for _ in range(count):
            module(1)
            module(1)
            module(1)
            module(1)

    return HostPiece(kind="module_ns", unit_count=4, run=run)


def _allocation() -> HostPiece:
    make = torch.empty

    def run(count: int) -> None:
        for _ in range(count):
            make(1)
            make(1)
            make(1)
            make(1)

    return HostPiece(kind="allocation_ns", unit_count=4, run=run)


def _optimizer() -> HostPiece:
    """One step of Adam, parameter by parameter, and setting the gradients back."""
    parameters = [nn.Parameter(_ones(1)) for _ in range(_PARAMETER_COUNT)]
    for item in parameters:
        item.grad = _ones(1)
    adam = torch.optim.Adam(parameters, foreach=False)

    def run(count: int) -> None:
        for _ in range(count):
            adam.step()
            adam.zero_grad(set_to_none=False)

    return HostPiece(kind="optimizer_ns", unit_count=_PARAMETER_COUNT, run=run)


def _launch(gpu: int) -> HostPiece:
    """Adding to one element on the GPU, less what the same op costs on the host without a launch."""
    there, here = _ones(1, device=torch.device("cuda", gpu)), _ones(1)

    def run(count: int) -> None:
        with torch.no_grad(), torch.cuda.device(gpu):
            for _ in range(count):
                there.add_(1)

    def without(count: int) -> None:
        with torch.no_grad(), torch.cuda.device(gpu):
            for _ in range(count):
                here.add_(1)

    def wait() -> None:
        torch.cuda.synchronize(gpu)

    return HostPiece(kind="launch_ns", unit_count=1, run=run, without=without, after=wait)
