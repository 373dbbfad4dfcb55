"""Walks the calls of a trace with the tensors that they read and return, and writes their signatures anew."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ...arrays import Mask
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.signature import Argument, Signature, TensorSpec, flatten_tensors
from ...formats.trace.tables import Trace
from ...records import dataclass, field, replace

Tensors = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SignatureLayout:
    """Hold the tensors of a signature, lists flattened, each with the position of its argument or result."""

    inputs: tuple[TensorSpec, ...]
    input_positions: tuple[int, ...]
    outputs: tuple[TensorSpec, ...]
    output_positions: tuple[int, ...]


def layout_of(signature: Signature) -> SignatureLayout:
    """Return where the tensors of a signature stand."""
    return SignatureLayout(
        flatten_tensors(signature.arguments),
        _positions(signature.arguments),
        flatten_tensors(signature.results),
        _positions(signature.results),
    )


def _positions(arguments: Sequence[Argument]) -> tuple[int, ...]:
    return tuple(place for place, item in enumerate(arguments) for _ in flatten_tensors((item,)))


@dataclass(frozen=True, slots=True)
class ShapedCall:
    """Hold one call: its short name, signature, and where the tensors stand in it."""

    name: str
    signature: Signature
    layout: SignatureLayout

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors that it reads."""
        return self.layout.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return its results."""
        return self.layout.outputs

    def argument(self, position: int) -> object:
        """Return an argument; None where the call stops before it."""
        arguments = self.signature.arguments
        return arguments[position] if position < len(arguments) else None


def broadcasts(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    """Say whether a tensor broadcasts to a shape."""
    offset = len(shape) - len(spec.shape)
    return offset >= 0 and all(size in (1, shape[offset + dim]) for dim, size in enumerate(spec.shape))


def short_name(name: str) -> str:
    """Return an op's name without namespace, overload and the underscore of in-place variants."""
    return name.rpartition("::")[2].partition(".")[0].rstrip("_")


def replace_tensors(arguments: tuple[Argument, ...], tensors: Sequence[TensorSpec]) -> tuple[Argument, ...]:
    """Return the arguments with their tensors, lists flattened, replaced in order."""
    rest = iter(tensors)

    def swap(item: Argument) -> Argument:
        if isinstance(item, TensorSpec):
            return next(rest)
        if isinstance(item, tuple) and any(isinstance(part, TensorSpec) for part in item):
            return tuple(next(rest) for _ in item)
        return item

    return tuple(swap(item) for item in arguments)


def operands_of(trace: Trace) -> tuple[list[Tensors], list[Tensors]]:
    """Return the tensors that each op reads, and those that it returns; empty where they were not identified."""
    is_output = trace.operands.is_output.astype(bool)
    return _per_op(trace, ~is_output), _per_op(trace, is_output)


def are_operands_flat(trace: Trace) -> bool:
    """Say whether tensors are identified, and no op that uses some lies inside another: each use is listed once."""
    uses = np.zeros(row_count(trace.ops) + 1, dtype=bool)
    uses[trace.operands.op] = True
    return len(trace.operands.op) > 0 and not np.any(uses[:-1] & uses[trace.ops.parent])


def _per_op(trace: Trace, kept: Mask) -> list[Tensors]:
    ops, tensors = trace.operands.op[kept], trace.operands.tensor[kept].tolist()
    bounds = np.searchsorted(ops, np.arange(row_count(trace.ops) + 1)).tolist()
    return [tuple(tensors[begin:end]) for begin, end in pairwise(bounds)]


def made_storages(trace: Trace) -> set[int]:
    """Return the storages whose first use is as a result: made by the iteration, not given to it."""
    if not len(trace.operands.op):
        return set()
    storages = trace.tensors.storage[trace.operands.tensor]
    _, first = np.unique(storages, return_index=True)
    return set(storages[first[trace.operands.is_output[first].astype(bool)]].tolist())


@dataclass(slots=True)
class Rewriter:
    """Number the signatures of a changed trace in order of first use."""

    numbers: dict[Signature, int] = field(default_factory=dict)
    column: list[int] = field(default_factory=list)

    def add(self, signature: Signature | None) -> None:
        """Give the next op its signature."""
        self.column.append(MISSING if signature is None else self.numbers.setdefault(signature, len(self.numbers)))

    def apply(self, trace: Trace) -> Trace:
        """Return the trace with the collected signatures."""
        column = np.array(self.column, dtype=trace.ops.signature.dtype)
        return replace(trace, ops=replace(trace.ops, signature=column), signatures=tuple(self.numbers))


def rewrite_signatures(trace: Trace, change: Callable[[Signature], Signature]) -> Trace:
    """Return the trace with every signature changed alone."""
    return replace(trace, signatures=tuple(change(item) for item in trace.signatures))
