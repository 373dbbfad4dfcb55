"""The pieces of host work that are timed: one per kind of `HostTimes`, as short as they are, many to a batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from ...records import dataclass

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
    found = [_python(), _dispatch(), _autograd()]
    found += [_four_calls("module_ns", nn.Identity()), _four_calls("allocation_ns", torch.empty)]
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


def _four_calls(kind: str, call: Callable[[int], object]) -> HostPiece:
    def run(count: int) -> None:
        for _ in range(count):
            call(1)
            call(1)
            call(1)
            call(1)

    return HostPiece(kind=kind, unit_count=4, run=run)


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

    def add_to(tensor: torch.Tensor, count: int) -> None:
        with torch.no_grad(), torch.cuda.device(gpu):
            for _ in range(count):
                tensor.add_(1)

    run, without, wait = partial(add_to, there), partial(add_to, here), partial(torch.cuda.synchronize, gpu)
    return HostPiece(kind="launch_ns", unit_count=1, run=run, without=without, after=wait)


class PlainLayer:
    """Look up attributes, call methods with keywords, fill small containers; it computes nothing of use.

    Half of it is calls and attributes, which newer interpreters made cheap, half containers, strings and sorting, which
    they did not: an interpreter's gain differs by a factor between the two.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.is_training = True
        self.hooks: dict[str, object] = {}
        self.state: dict[str, int] = {}
        self.names = ("query", "key", "value")
        self.history: list[int] = []

    def call(self, position: int, *, scale: float = 1.0, mask: object = None) -> float:
        """Do one round of it: a few microseconds."""
        parts = [self.width * index + position for index in (1, 2, 3)] if self.is_training and not self.hooks else []
        for name, part in zip(self.names, parts, strict=False):
            self.state[name] = part if mask is None else 0
        with self._entered(position):
            return self._combine(parts, scale=scale, **{"offset": position}) + self.keep(position)

    def keep(self, position: int) -> float:
        """Keep a short history and a small table of it, sort it, and write a line about it."""
        self.history = [*self.history[-7:], position]
        table = {f"step{number}": {"value": value, "rank": -number} for number, value in enumerate(self.history[-4:])}
        rows = sorted(table.items(), key=lambda item: item[1]["rank"])
        line = " ".join(f"{name}={row['value']}" for name, row in rows)
        counts: dict[str, int] = {}
        for word in line.split():
            counts[word] = counts.get(word, 0) + 1
        return sum(row["value"] for _, row in rows) + max(counts.values())

    def _combine(self, parts: Sequence[int], scale: float, offset: int = 0) -> float:
        first, *others = parts
        if isinstance(first, int) and len(others) == len(self.names) - 1:
            return first * scale + offset
        return scale

    @contextmanager
    def _entered(self, position: int) -> Iterator[None]:
        before, self.width = self.width, 8 + position % 2
        try:
            yield
        finally:
            self.width = before
