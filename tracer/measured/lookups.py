"""Counts how often embedding ops look up the rows of their tables, in an iteration that is not timed.

The profiler is warmed up for one iteration whose events it throws away. In that iteration a dispatch mode looks at the
calls of embedding ops, copies their indices to the host, counts them and keeps the histogram alone. What is timed, and
what is captured, runs without it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ...formats.trace.column import build_table
from ...formats.trace.signature import TensorSpec, flatten_tensors
from ...formats.trace.tables import LookupTable, Trace
from ...records import dataclass, replace

LEAST_LOOKUPS: Final = 32
"""Of a table in one call: a histogram of fewer says little of how they are spread, and much of the few samples."""
MOST_LOOKUPS: Final = 1 << 22
"""Of a call that are counted, the first ones: a fraction of a second."""
MOST_COUNTED: Final = 1 << 24
"""Of an iteration."""
MOST_CALLS: Final = 65_536
ROWS: Final = frozenset({"aten::embedding"})
BAGS: Final = frozenset({"aten::_embedding_bag", "aten::_embedding_bag_forward_only"})
_WHOLE_BAGS: Final = frozenset({"aten::embedding_bag"})
_TABLES_OF: Final = "weights_offsets"
"""Argument of FBGEMM's lookups, one element for each table (or feature of a table)."""
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
"""Other kinds of tensor hold no numbers of their own: fake ones, parts of distributed ones."""

Histogram = tuple[tuple[int, int, int], ...]
"""Least count of a class, its distinct rows, their lookups."""


@dataclass(frozen=True, slots=True)
class LookupKind:
    """Tell calls apart that cannot be the same: what the op is, and its table's shape (none of several at once)."""

    op: str
    table: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCall:
    """Hold what was counted of one call of an embedding op: a histogram of each of its tables."""

    kind: LookupKind
    tables: tuple[Histogram, ...]


def kind_of_op(name: str) -> str | None:
    """Return what an op's calls are counted as, None for what looks nothing up."""
    if name in ROWS:
        return "rows"
    if name in BAGS:
        return "bags"
    is_batched = name.startswith("fbgemm::") and "embedding" in name and "codegen_forward" in name
    return name if is_batched and "_vbe" not in name and "ssd_" not in name else None


@contextmanager
def count_lookups() -> Iterator[list[CountedCall]]:
    """Collect what embedding ops of this thread look up inside, call by call; nothing where that could disturb.

    That is where the code has a dispatch mode of its own around it, and where code was compiled that would run
    uncompiled beneath a mode, as before torch 2.8.
    """
    mode = _LookupCounter()
    if not _may_watch():
        yield mode.calls
        return
    mode.__enter__()  # type: ignore[no-untyped-call]
    try:
        yield mode.calls
    finally:
        _leave(mode)


def count_rows(indices: npt.NDArray[np.int64]) -> Histogram:
    """Return how many rows were looked up once, two or three times, four to seven times, and so on.

    >>> count_rows(np.array([7, 7, 7, 3, 5]))
    ((1, 2, 2), (2, 1, 3))
    """
    _, counts = np.unique(indices, return_counts=True)
    power = np.frexp(counts.astype(np.float64))[1] - 1
    distinct = np.bincount(power)
    lookups = np.bincount(power, weights=counts)
    return tuple((1 << at, int(distinct[at]), int(lookups[at])) for at in np.flatnonzero(distinct).tolist())


class _LookupCounter(TorchDispatchMode):
    """Look at each op's name, and at the indices of those that look rows up."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[CountedCall] = []
        self._counted = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run as compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "embedding" in func._schema.name and len(self.calls) < MOST_CALLS:
            try:
                self._look(func, args, kwargs or {})
            except Exception:  # noqa: BLE001 - whatever is odd about a call, the user's step goes on
                self._counted = MOST_COUNTED
        return func(*args, **(kwargs or {}))

    def _look(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        name = func._schema.name
        kind = "bags" if name in _WHOLE_BAGS else kind_of_op(name)
        if kind is None:
            return
        given = dict(zip((item.name for item in func._schema.arguments), args, strict=False)) | dict(kwargs)
        indices, offsets = given.get("indices"), given.get("offsets")
        if kind == name:
            self._count_batched(kind, indices, offsets, given.get(_TABLES_OF))
            return
        table = given.get("weight")
        if not isinstance(table, torch.Tensor):
            return
        shape = tuple(table.shape)
        found = self._host(indices)
        if found is None:
            histograms: tuple[Histogram, ...] = ()
        else:
            left_out = given.get("padding_idx", -1) if kind == "bags" else -1
            histograms = (_told(found[(found >= 0) & (found < shape[0]) & (found != left_out)]),)
        self.calls.append(CountedCall(kind=LookupKind(kind, shape), tables=histograms))

    def _count_batched(self, kind: str, indices: Any, offsets: Any, starts: Any) -> None:
        """Count a lookup in several tables: indices of one table after the other, offsets of bags into them."""
        if not isinstance(starts, torch.Tensor):
            return
        histograms: tuple[Histogram, ...] = ()
        found, bounds, tables = self._host(indices), self._host(offsets, is_counted=False), starts.numel()
        if found is not None and bounds is not None and tables and len(bounds) % tables == 1 % tables:
            edges = bounds[:: max((len(bounds) - 1) // tables, 1)]
            parts = [found[max(start, 0) : max(end, 0)] for start, end in pairwise(edges.tolist())]
            histograms = tuple(_told(part[part >= 0]) for part in parts)
        self.calls.append(CountedCall(kind=LookupKind(kind), tables=histograms))

    def _host(self, tensor: Any, *, is_counted: bool = True) -> npt.NDArray[np.int64] | None:
        """Return a tensor's numbers on the host, the first of very many; None where it has none that can be read."""
        if type(tensor) not in _PLAIN or tensor.device.type not in ("cpu", "cuda") or tensor.is_floating_point():
            return None
        if self._counted >= MOST_COUNTED or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        flat = tensor.detach().reshape(-1)[:MOST_LOOKUPS]
        self._counted += flat.numel() if is_counted else 0
        return np.asarray(flat.to("cpu", torch.int64).numpy())


def _told(indices: npt.NDArray[np.int64]) -> Histogram:
    """Return the histogram of what is enough to be told, else an empty one."""
    return count_rows(indices) if len(indices) >= LEAST_LOOKUPS else ()


def _may_watch() -> bool:
    if _python_dispatch._get_current_dispatch_mode_stack():
        return False
    if hasattr(TorchDispatchMode, "ignore_compile_internals"):
        return True
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is None or not dynamo.counters["frames"]["total"]


def _leave(mode: TorchDispatchMode) -> None:
    """Take the mode off the stack, from beneath whatever the code has put on it since."""
    stack = list(_python_dispatch._get_current_dispatch_mode_stack())
    if mode not in stack:
        return
    above = stack[stack.index(mode) + 1 :]
    for _ in above:
        _python_dispatch._pop_mode()
    mode.__exit__(None, None, None)
    for item in above:
        _python_dispatch._push_mode(item)


def add_lookups(trace: Trace, counted: Sequence[CountedCall]) -> Trace:
    """Return the trace with how often its embedding ops looked up rows, in every captured iteration alike.

    A call is known by its place among those of the same op on tables of the same shape. Where an iteration has more
    or fewer of them than were counted, nothing is said of these.
    """
    given: dict[LookupKind, list[tuple[Histogram, ...]]] = {}
    for call in counted:
        given.setdefault(call.kind, []).append(call.tables)
    rows = [
        (op, number, *part)
        for ops in _calls_by_iteration(trace)
        for kind, numbers in ops.items()
        if len(given.get(kind, ())) == len(numbers)
        for op, tables in zip(numbers, given[kind], strict=True)
        for number, histogram in enumerate(tables)
        for part in histogram
    ]
    if not rows:
        return trace
    names = ("op", "table_index", "least_count", "distinct_rows", "lookup_count")
    columns = dict(zip(names, np.array(sorted(rows), dtype=np.int64).T, strict=True))
    return replace(trace, lookups=build_table(LookupTable, len(rows), **columns))


def _calls_by_iteration(trace: Trace) -> Iterator[dict[LookupKind, list[int]]]:
    """Yield the rows of embedding ops in order of start, of each captured iteration (of all, where none is marked)."""
    kinds = [kind_of_op(name) for name in trace.strings]
    is_lookup = np.array([kind is not None for kind in kinds], dtype=bool)
    ops = np.flatnonzero(is_lookup[trace.ops.name])
    captured = np.flatnonzero(trace.iterations.profiled)
    starts = trace.ops.start_ns[ops]
    spans = [
        (starts >= trace.iterations.start_ns[at]) & (starts < trace.iterations.end_ns[at]) for at in captured.tolist()
    ] or [np.ones(len(ops), dtype=bool)]
    for inside in spans:
        found: dict[LookupKind, list[int]] = {}
        for op in ops[inside].tolist():
            kind = _kind(trace, op, kinds[trace.ops.name[op]])
            if kind is not None:
                found.setdefault(kind, []).append(op)
        yield found


def _kind(trace: Trace, op: int, name: str | None) -> LookupKind | None:
    number = int(trace.ops.signature[op])
    if name not in ("rows", "bags"):
        return None if name is None else LookupKind(name)
    if number < 0:
        return None
    table = next(iter(flatten_tensors(trace.signatures[number].arguments)), None)
    if not isinstance(table, TensorSpec):
        return None
    return LookupKind(name, table.shape)
