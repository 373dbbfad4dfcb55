"""Formulas by op name: what a call must compute and move, from its signature alone."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...formats.trace.signature import DTYPE_BYTES, Argument, Signature, TensorSpec, flatten_tensors
from .arguments import LackingArgumentError
from .work import Family, Work

if TYPE_CHECKING:
    from ...arrays import Mask

Formula = Callable[[Signature], Work]
"""A pure function from a call's signature to its work; raises LackingArgumentError where it would have to guess."""
F = TypeVar("F", bound=Formula | str)

_FORMULAS: dict[str, tuple[Family, Formula | str]] = {}
"""By name of op; a text is a row's of `formulas.csv`, read when an op of it is first met (`read_call`)."""
_SPARSE_FORMULAS: dict[str, Formula] = {}
_NO_ARGUMENTS = Signature(())
GENERATED_POINTWISE, GENERATED_REDUCTION = "triton_poi", "triton_red"
"""What names of inductor's kernels stand for, whatever ops follow in them; `triton_per` reduces too."""
_GENERATED = re.compile(r"triton_(poi|red|per)_fused_\w+$")
_OVERLOAD = re.compile(r"^(\w+::\w+)\.\w+$")


def register(*names: str, family: Family) -> Callable[[F], F]:
    """Register a formula for ops, by names without overload; an in-place op `x_` falls back to `x`.

    Raises ValueError where a name already has a formula.
    """

    def add(formula: F) -> F:
        for name in names:
            if name in _FORMULAS:
                raise ValueError(f"op {name} has a formula already; each name is registered once")
            _FORMULAS[name] = (family, formula)
        return formula

    return add


def register_sparse(*names: str) -> Callable[[Formula], Formula]:
    """Register a formula for calls with sparse arguments, under names with a formula of dense ones.

    An in-place op `x_` falls back to `x`. What has none costs what it would on the stored values alone.
    """

    def add(formula: Formula) -> Formula:
        _SPARSE_FORMULAS.update(dict.fromkeys(names, formula))
        return formula

    return add


def register_table(path: Path) -> None:
    """Register the formulas of a table with the columns family, formula, prefix and names.

    A formula is a function of a module here, perhaps with options (`read_call`); its module is imported when an op of
    it is first met.
    """
    with path.open(encoding="utf-8", newline="") as file:
        for family, formula, prefix, names in islice(csv.reader(file), 1, None):
            register(*(prefix + name for name in names.split()), family=Family(family))(formula)


@lru_cache(maxsize=512)
def read_call(text: str, package: str) -> Callable[..., Any]:
    """Return the function that a row of a table writes, with its options: `copy.clone(dtype=1)`, a module of `package`.

    What it names is looked up in that module.
    """
    module = text.partition("(")[0].rpartition(".")[0]
    known, call = vars(import_module(f".{module}", package)), text.removeprefix(f"{module}.")

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return known[name]
            case ast.Attribute(value=owner, attr=name):
                return getattr(value(owner), name)
            case ast.Call(func=function, keywords=options):
                return value(function)(**{option.arg: value(option.value) for option in options if option.arg})
        return ast.literal_eval(node)

    match ast.parse(call, mode="eval").body:
        case ast.Call(func=function, keywords=options):
            return partial(value(function), **{option.arg: value(option.value) for option in options if option.arg})
        case function:
            found: Callable[..., Any] = value(function)
            return found


def names(text: str) -> tuple[str, ...]:
    """Split a space-separated list of op names, the compact form in which tables of ops are written.

    >>> names("aten::mm aten::bmm")
    ('aten::mm', 'aten::bmm')
    """
    return tuple(text.split())


def work_of(name: str, signature: Signature | None) -> Work | None:
    """Return the work of one call; None where no formula exists, or none knows a tensor's dtype or what is lacking.

    >>> from wavecast.formats.trace.signature import TensorSpec
    >>> half = TensorSpec("float16", (1000, 1000))
    >>> work_of("aten::mm", Signature((half, half))).flops / 1e9
    2.0
    """
    resolved, is_in_place = _resolve(name)
    if resolved is None:
        return None
    call = _NO_ARGUMENTS if signature is None else signature
    if is_in_place and not call.results and call.arguments:
        first = call.arguments[0]
        call = Signature(call.arguments, (first,)) if isinstance(first, TensorSpec | tuple) else call
    if any(tensor.dtype not in DTYPE_BYTES for tensor in (*call.tensors(), *flatten_tensors(call.results))):
        return None
    found = _FORMULAS[resolved][1]
    formula = read_call(found, __package__) if isinstance(found, str) else found
    try:
        if all(tensor.stored is None for tensor in call.tensors()):
            return formula(call)
        sparse = _SPARSE_FORMULAS.get(_without_overload(name)) or _SPARSE_FORMULAS.get(resolved)
        return formula(_values_of(call)) if sparse is None else sparse(call)
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


def are_of_family(names: Sequence[str], family: Family) -> Mask:
    """Say which names are of ops of a family.

    >>> are_of_family(["aten::mm", "aten::view", "none"], Family.MATMUL)
    array([ True, False, False])
    """
    import numpy as np

    return np.array([family_of(name) is family for name in names], dtype=bool)


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
    if (generated := _GENERATED.match(plain)) is not None:
        return (GENERATED_POINTWISE if generated[1] == "poi" else GENERATED_REDUCTION), False
    functional = plain.removesuffix("_")
    if functional != plain and functional in _FORMULAS:
        return functional, True
    return None, False


def _without_overload(name: str) -> str:
    match = _OVERLOAD.match(name)
    return name if match is None else match[1]


def _values_of(call: Signature) -> Signature:
    """Return the call on the values that its sparse tensors store; refuse one that mixes them with dense tensors.

    Of a result that is said to be dense only one part was seen, the indices or the values.
    """
    if _holds_dense(call.arguments):
        raise LackingArgumentError("a formula for sparse and dense tensors together")
    results = () if _holds_dense(call.results) else call.results
    return Signature(tuple(map(_stored_in, call.arguments)), tuple(map(_stored_in, results)))


def _holds_dense(arguments: tuple[Argument, ...]) -> bool:
    return any(tensor.stored is None and tensor.shape for tensor in flatten_tensors(arguments))


def _stored_in(argument: Argument) -> Argument:
    if isinstance(argument, TensorSpec):
        return argument if argument.stored is None else TensorSpec(argument.dtype, argument.stored)
    if isinstance(argument, tuple):
        return tuple(_stored_in(item) if isinstance(item, TensorSpec) else item for item in argument)  # type: ignore[return-value]
    return argument
