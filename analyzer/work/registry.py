"""Formulas by op name: what a call must compute and move, from its signature alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from ...formats.signature import Signature, TensorSpec
from .arguments import LackingArgumentError
from .work import Family, Work

Formula = Callable[[Signature], Work]
"""A pure function from a call's signature to its work; raises LackingArgumentError where it would have to guess."""

_FORMULAS: dict[str, tuple[Family, Formula]] = {}
_NO_ARGUMENTS = Signature(())
_OVERLOAD = re.compile(r"^(\w+::\w+)\.\w+$")


def register(*names: str, family: Family) -> Callable[[Formula], Formula]:
    """Register a formula for ops, by names without overload; an in-place op `x_` falls back to `x`.

    Raises ValueError where a name already has a formula.
    """

    def add(formula: Formula) -> Formula:
        for name in names:
            if name in _FORMULAS:
                raise ValueError(f"op {name} has a formula already; each name is registered once")
            _FORMULAS[name] = (family, formula)
        return formula

    return add


def names(text: str) -> tuple[str, ...]:
    """Split a space-separated list of op names, the compact form in which tables of ops are written."""
    return tuple(text.split())


def work_of(name: str, signature: Signature | None) -> Work | None:
    """Return the work of one call; None where no formula exists or the signature lacks what it needs.

    >>> from wavecast.formats.signature import TensorSpec
    >>> half = TensorSpec("float16", (1000, 1000))
    >>> work_of("aten::mm", Signature((half, half))).flops / 1e9
    2.0
    """
    resolved, is_in_place = _resolve(name)
    if resolved is None:
        return None
    call = _NO_ARGUMENTS if signature is None else signature
    if is_in_place and not call.results and call.arguments:
        call = _with_first_argument_as_result(call)
    try:
        return _FORMULAS[resolved][1](call)
    except LackingArgumentError:
        return None


def has_formula(name: str) -> bool:
    """Say whether the op, or the op that it is a variant of, has a formula."""
    return _resolve(name)[0] is not None


def family_of(name: str) -> Family | None:
    """Return the family of an op, known without shapes; None where no formula exists.

    >>> family_of("aten::mm.out")
    <Family.MATMUL: 'matmul'>
    """
    resolved = _resolve(name)[0]
    return None if resolved is None else _FORMULAS[resolved][0]


def canonical_name(name: str) -> str:
    """Return the name that the op's formula is registered under; the name without its overload where there is none.

    >>> canonical_name("aten::add_.Tensor")
    'aten::add'
    """
    return _resolve(name)[0] or _without_overload(name)


def registered_names() -> tuple[str, ...]:
    """Return every name that has a formula of its own, in order of registration."""
    return tuple(_FORMULAS)


@lru_cache(maxsize=8192)
def _resolve(name: str) -> tuple[str | None, bool]:
    """Return the registered name and whether it was reached by dropping the in-place underscore."""
    plain = _without_overload(name)
    if plain in _FORMULAS:
        return plain, False
    functional = plain.removesuffix("_")
    if functional != plain and functional in _FORMULAS:
        return functional, True
    return None, False


def _without_overload(name: str) -> str:
    match = _OVERLOAD.match(name)
    return name if match is None else match[1]


def _with_first_argument_as_result(call: Signature) -> Signature:
    """An in-place op returns its first argument, whose shape and dtype therefore win over inference."""
    first = call.arguments[0]
    return Signature(call.arguments, (first,)) if isinstance(first, TensorSpec | tuple) else call
