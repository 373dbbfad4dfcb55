"""Builders and a recorder of real calls for the work formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec

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
        return list_of([argument_of(item) for item in value])
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, bool | int | float | str | None) else UNKNOWN


def list_of(items: list[Argument]) -> Argument:
    """Return a list of tensors or of numbers; gaps (indices of `x[:, i]`) are left out."""
    tensors = tuple(item for item in items if isinstance(item, TensorSpec))
    return tensors or tuple(item for item in items if isinstance(item, bool | int | float))


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

    calls: list[Call] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            kwargs = kwargs or {}
            out = function(*args, **kwargs)
            formula = flop_registry.get(function._overloadpacket)
            count = None if formula is None else formula(*args, **kwargs, out_val=out)
            name = function._schema.name
            calls.append(Call(name, signature_of(function, args, kwargs, out), count))
            return out

    def record(step: Callable[[], Any]) -> list[Call]:
        calls.clear()
        with Recorder():  # type: ignore[no-untyped-call]
            step()
        return list(calls)

    return record
