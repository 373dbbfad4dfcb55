"""Builders and a recorder of real calls for the work formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from wavecast.formats.signature import UNKNOWN, Argument, Signature, TensorSpec

torch = pytest.importorskip("torch")


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded aten call and torch's own count of it (None where torch has no formula)."""

    name: str
    signature: Signature
    torch_flops: int | None


def argument_of(value: Any) -> Argument:
    """Return a call's argument as a signature holds it."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))
    if isinstance(value, list | tuple):
        return tuple(item for item in map(argument_of, value) if item is not None and item is not UNKNOWN)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, bool | int | float | str | None) else UNKNOWN


def signature_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Signature:
    """Return a call's arguments in the schema's positional order, defaults filled in, and its results."""
    values: list[Argument] = []
    for position, declared in enumerate(function._schema.arguments):
        if position < len(args):
            values.append(argument_of(args[position]))
        elif declared.name in kwargs:
            values.append(argument_of(kwargs[declared.name]))
        else:
            values.append(argument_of(declared.default_value))
    results = out if isinstance(out, tuple) else (out,)
    return Signature(tuple(values), tuple(argument_of(result) for result in results))


@pytest.fixture(scope="session")
def record_calls() -> Callable[[Callable[[], Any]], list[Call]]:
    """Return a function that runs a step under a dispatch mode and returns its aten calls."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Call] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            kwargs = kwargs or {}
            out = function(*args, **kwargs)
            formula = flop_registry.get(function._overloadpacket)
            count = None if formula is None else formula(*args, **kwargs, out_val=out)
            name = function._schema.name
            self.calls.append(Call(name, signature_of(function, args, kwargs, out), count))
            return out

    def record(step: Callable[[], Any]) -> list[Call]:
        with Recorder() as recorder:
            step()
        return recorder.calls

    return record
