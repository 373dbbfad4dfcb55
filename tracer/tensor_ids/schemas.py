"""Says how ops treat their arguments, from torch's registry of schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

_RESHAPERS: Final = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_", "aten::as_strided_"})
"""Ops that return what they were given in another form, which their inputs do not show."""
_SILENT_VIEWS: Final = frozenset({"aten::_unsafe_view"})
"""Views whose schema does not say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returns:
    """Say what an op returns: how many tensors, and for each the argument that it is, written in place, or views."""

    count: int
    """Tensors returned; -1 where the schema leaves it open (a list)."""
    written: tuple[int, ...] = ()
    """The arguments that the op writes and returns, in order of the results."""
    viewed: int = -1
    """The argument that the results are views of; -1 for none."""
    schema: Any = None
    """Of torch's registry."""


class OpSchemas:
    """Look up how ops return tensors, once for each form in which one is called."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[bool, ...]], Returns | None] = {}

    def find(self, name: str, holds_tensors: tuple[bool, ...]) -> Returns | None:
        """Return what an op with such arguments returns; None for what is no op of torch's registry.

        `holds_tensors` says of each argument whether it was a tensor, or a list of some.
        """
        key = (name, holds_tensors)
        if key not in self._known:
            self._known[key] = _find(name, holds_tensors)
        return self._known[key]


def _find(name: str, holds_tensors: Sequence[bool]) -> Returns | None:
    if "::" not in name or name in _RESHAPERS:
        return None
    fitting = [item for item in torch._C._jit_get_schemas_for_operator(name) if _fits(item, holds_tensors)]
    return _describe(fitting[0]) if fitting else None


def _fits(schema: Any, holds_tensors: Sequence[bool]) -> bool:
    if len(schema.arguments) != len(holds_tensors):
        return False
    pairs = zip(schema.arguments, holds_tensors, strict=True)
    return all("Tensor" in str(argument.type) for argument, holds in pairs if holds)


def _describe(schema: Any) -> Returns:
    kinds = [str(item.type) for item in schema.returns]
    is_open = any(kind.startswith("List") for kind in kinds)
    count = -1 if is_open else sum(kind == "Tensor" for kind in kinds)
    written = tuple(_source(schema, item) for item in schema.returns if item.alias_info and item.alias_info.is_write)
    viewed = next((_source(schema, item) for item in schema.returns if _is_view(item)), -1)
    if is_open and viewed < 0:
        viewed = next((at for at, item in enumerate(schema.arguments) if _is_view(item)), -1)
    if schema.name in _SILENT_VIEWS:
        viewed = 0
    return Returns(count=count, written=() if -1 in written else written, viewed=viewed, schema=schema)


def _is_view(item: Any) -> bool:
    return item.alias_info is not None and not item.alias_info.is_write


def _source(schema: Any, returned: Any) -> int:
    """Return the argument that shares its memory with a result."""
    names = returned.alias_info.before_set
    return next(
        (
            at
            for at, item in enumerate(schema.arguments)
            if item.alias_info is not None and item.alias_info.before_set & names
        ),
        -1,
    )
