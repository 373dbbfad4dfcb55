"""Writes a recording of shapes op by op, forward, then backward in the reverse order, as autograd would."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Final

from ...formats.trace.column import MISSING, Interner, table_of_rows
from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...formats.trace.tables import (
    CollectiveTable,
    GroupTable,
    MemberTable,
    Meta,
    OperandTable,
    OpTable,
    Phase,
    TensorTable,
    Trace,
)
from ...records import dataclass, field

FLOAT: Final = "float32"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variable:
    """Hold a tensor of the recording: what it looks like, and its row."""

    spec: TensorSpec
    row: int
    storage: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its sizes."""
        return self.spec.shape


Operand = (
    Variable
    | Sequence[Variable]
    | int
    | float
    | bool
    | str
    | None
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[bool, ...]
)


@dataclass(slots=True)
class Tape:
    """Collect ops and tensors; `gradient` holds the gradient of each tensor's row while the backward pass is written.

    One owner, one use: layers are written to it in order, then `backward`, then `finish`.
    """

    gradient: dict[int, Variable] = field(default_factory=dict)
    _strings: Interner[str] = field(default_factory=Interner)
    _signatures: Interner[Signature] = field(default_factory=Interner)
    _ops: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    """Name, signature, phase, sequence, forward, module."""
    _tensors: list[tuple[int, int, int]] = field(default_factory=list)
    _operands: list[tuple[int, int, bool]] = field(default_factory=list)
    _collectives: list[tuple[int, int, int, int, int, int, int, bool]] = field(default_factory=list)
    """Columns of `CollectiveTable`, as `collective` fills them."""
    _groups: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Name and ranks of each process group."""
    _storages: int = 0
    _path: list[str] = field(default_factory=list)
    _phase: Phase = Phase.FORWARD
    _forward: int = MISSING
    _undo: list[tuple[int, tuple[str, ...], Callable[[], None]]] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Return the row of the op that was written last."""
        return len(self._ops) - 1

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Write the ops within as those of a module called so."""
        self._path.append(name)
        yield
        self._path.pop()

    def tensor(
        self, dtype: str, *shape: int, strides: tuple[int, ...] | None = None, view_of: Variable | None = None
    ) -> Variable:
        """Return a new tensor, with storage of its own unless it is a view; contiguous where no strides are given."""
        if strides is None:
            strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        storage = self._storages if view_of is None else view_of.storage
        self._storages += view_of is None
        count = prod(shape)
        self._tensors.append((storage, self._strings[dtype], count))
        return Variable(spec=TensorSpec(dtype, shape, strides), row=len(self._tensors) - 1, storage=storage)

    def op(self, name: str, inputs: Sequence[Operand], *outputs: Variable) -> int:
        """Write an op with its arguments in the schema's order; return its row."""
        signature = Signature(tuple(map(_argument, inputs)), tuple(item.spec for item in outputs))
        row = len(self._ops)
        is_forward = self._phase is Phase.FORWARD
        sequence = row if is_forward else self._forward
        path = self._strings[".".join(self._path)] if self._path else MISSING
        self._ops.append(
            (self._strings[name], self._signatures[signature], int(self._phase), sequence, self._forward, path)
        )
        for item in inputs:
            several = item if isinstance(item, list | tuple) else (item,)
            self._operands += [(row, each.row, False) for each in several if isinstance(each, Variable)]
        self._operands += [(row, each.row, True) for each in outputs]
        return row

    def group(self, name: str, ranks: Sequence[int]) -> int:
        """Return the number of a new process group."""
        self._groups.append((self._strings[name], tuple(ranks)))
        return len(self._groups) - 1

    def collective(self, name: str, kind: str, inputs: Sequence[Operand], result: Variable, group: int) -> int:
        """Write what a group's ranks send each other, the first input being what this one gives; return its row.

        It runs on until an op that reads its result, or waits for it.
        """
        row, sent = self.op(name, inputs, result), inputs[0]
        if not isinstance(sent, Variable):
            raise TypeError(f"{name} sends {type(sent).__name__}, a tensor expected")
        counts = sent.spec.element_count, result.spec.element_count
        dtype, size = self._strings[sent.spec.dtype], len(self._groups[group][1])
        self._collectives.append((row, self._strings[kind], dtype, *counts, size, group, True))
        return row

    def enter(self, phase: Phase) -> None:
        """Write what follows as ops of a phase."""
        self._phase = phase

    def differentiate(self, row: int, undo: Callable[[], None]) -> None:
        """Remember what the backward pass of a forward op does."""
        self._undo.append((row, tuple(self._path), undo))

    def undoes(self, result: Variable, row: int | None = None) -> Callable[[Callable[[Variable], None]], None]:
        """Let a function write an op's backward pass, given its result's gradient where it has one.

        The op is the one that was written last, unless its row is given.
        """

        def remember(undo: Callable[[Variable], None]) -> None:
            def run() -> None:
                if result.row in self.gradient:
                    undo(self.gradient[result.row])

            self.differentiate(self.last if row is None else row, run)

        return remember

    def add_gradient(self, of: Variable, value: Variable) -> None:
        """Give a tensor a gradient; a second one is added to the first."""
        known = self.gradient.get(of.row)
        if known is not None:
            total = self.tensor(known.spec.dtype, *known.shape)
            self.op("aten::add", (known, value, 1), total)
            value = total
        self.gradient[of.row] = value

    def backward(self) -> None:
        """Write the backward pass of all that was written."""
        self._phase = Phase.BACKWARD
        for row, path, undo in reversed(self._undo):
            self._forward, self._path = row, list(path)
            undo()
        self._phase, self._forward, self._path = Phase.OPTIMIZER, MISSING, []

    def finish(self, meta: Meta) -> Trace:
        """Return the recording."""
        members = [(group, rank) for group, (_, ranks) in enumerate(self._groups) for rank in ranks]
        sent = ("op", "name", "dtype", "in_element_count", "out_element_count", "group_size", "group", "is_async")
        return Trace(
            meta=meta,
            strings=tuple(self._strings),
            signatures=tuple(self._signatures),
            ops=table_of_rows(OpTable, ("name", "signature", "phase", "sequence", "forward", "module"), self._ops),
            tensors=table_of_rows(TensorTable, ("storage", "dtype", "element_count"), self._tensors),
            operands=table_of_rows(OperandTable, ("op", "tensor", "is_output"), self._operands),
            collectives=table_of_rows(CollectiveTable, sent, self._collectives),
            groups=table_of_rows(GroupTable, ("name", "size"), [(name, len(ranks)) for name, ranks in self._groups]),
            members=table_of_rows(MemberTable, ("group", "rank"), members),
        )


def _argument(item: Operand) -> Argument:
    if isinstance(item, Variable):
        return item.spec
    if isinstance(item, list | tuple):
        return tuple(each.spec if isinstance(each, Variable) else each for each in item)  # type: ignore[return-value]
    return item  # type: ignore[return-value]
