"""Gives kernels of XLA the op, inputs and module that their HLO instruction and JAX's named scopes tell."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...records import dataclass, replace
from ..recording.assemble import add_ops
from ..recording.builder import Names
from ..trace.column import MISSING, Interner, build_table, row_count
from ..trace.privacy import PATH
from ..trace.signature import Signature
from ..trace.tables import OpTable, Phase, Trace
from .profile import XlaEvent, XlaProfile
from .work import read_call

_LONGEST_TEXT: Final = 1 << 16
_SUFFIX: Final = re.compile(r"(?:\.\d+)+$")
_WRAPPED: Final = re.compile(r"[\w.]+\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
"""A scope inside a transformation: `transpose(jvp(Net))`."""
_DEEPEST_WRAPPING: Final = 8
_LONGEST_SCOPE: Final = 500
_PROGRAMS: Final = ("jit(", "pjit(", "pmap(", "xla_")
_PLAIN: Final = re.compile(r"\w+")
_FILE: Final = re.compile(r"\.(?:py|ipynb|cc?|cpp|h|cu)(?::\d+)*\Z")
_ROOT: Final = re.compile(r"|~\w*|[A-Za-z]:.*|.*\\.*")
"""Of a path: nothing before a slash, somebody's home, a drive, or what holds backslashes."""
_BACKWARD: Final = "transpose("
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instruction:
    """Say what an instruction is: the op, what it is called with where that is clear, where it is, in which pass."""

    op: str
    signature: Signature | None
    module: str
    is_backward: bool


class Instructions:
    """Own which instruction each kernel belongs to."""

    def __init__(self, names: Names, profile: XlaProfile) -> None:
        self._names = names
        self._profile = profile
        self._keys = Interner[Key]()
        self._rows: list[int] = []
        self._numbers: list[int] = []

    def note(self, events: Sequence[XlaEvent], first: int) -> None:
        """Keep the instructions of kernels, of which `first` came before these."""
        for row, event in enumerate(events):
            told = event.told
            if told.get("hlo_op") or told.get("tf_op"):
                module, op, scope = (told.get(name, "")[:_LONGEST_TEXT] for name in ("hlo_module", "hlo_op", "tf_op"))
                text = self._profile.text_of(told)[:_LONGEST_TEXT]
                self._rows.append(row + first)
                self._numbers.append(self._keys[module, op, scope, text])

    def explain(self, trace: Trace, kernel_row_of: Rows) -> Trace:
        """Return the trace with an op for each run of kernels of one instruction on a stream.

        They take no time on the host, at the instant of their launch, or at the kernel's start where none is known.
        """
        key = np.full(row_count(trace.kernels), MISSING, dtype=np.int64)
        rows = kernel_row_of[np.array(self._rows, dtype=np.int64)]
        key[rows[rows != MISSING]] = np.array(self._numbers, dtype=np.int64)[rows != MISSING]
        known = np.flatnonzero(key != MISSING)
        if not len(known):
            return trace
        found = [_read(*item) for item in self._keys]
        signatures = list(dict.fromkeys(item.signature for item in found if item.signature is not None))
        kernels = trace.kernels
        order = known[np.lexsort((kernels.start_ns[known], kernels.stream[known], kernels.device[known]))]
        begins = _begins(trace, order, key)
        op = kernels.op.astype(np.int64)
        op[order] = row_count(trace.ops) + np.cumsum(begins) - 1
        first = order[begins]
        table = self._table(trace, first, [found[number] for number in key[first].tolist()], signatures)
        return add_ops(replace(trace, signatures=tuple(signatures)), [table], op)

    def _table(
        self, trace: Trace, first: Rows, found: Sequence[_Instruction], signatures: Sequence[Signature]
    ) -> OpTable:
        call = trace.kernels.call[first]
        number = {signature: at for at, signature in enumerate(signatures)}
        launch = at_rows(trace.calls.start_ns, call, 0)
        return build_table(
            OpTable,
            len(first),
            name=[self._names[item.op] for item in found],
            signature=[MISSING if item.signature is None else number[item.signature] for item in found],
            thread=at_rows(trace.calls.thread, call, 0),
            start_ns=np.where(call == MISSING, trace.kernels.start_ns[first], launch),
            duration_ns=np.zeros(len(first)),
            phase=[Phase.BACKWARD if item.is_backward else Phase.FORWARD for item in found],
            module=[self._names[item.module] if item.module else MISSING for item in found],
        )


def _begins(trace: Trace, order: Rows, key: Rows) -> Mask:
    """Say which kernels, ordered by stream and start, begin an instruction: it runs each of its kernels once."""
    kernels = trace.kernels
    begins = np.zeros(len(order), dtype=bool)
    seen: set[tuple[int, int]] = set()
    previous = None
    for at, row in enumerate(order.tolist()):
        place = (int(kernels.device[row]), int(kernels.stream[row]), int(key[row]), int(kernels.call[row]) >= 0)
        kernel = (int(kernels.name[row]), int(kernels.grid[row, 0]))
        if place != previous or kernel in seen:
            begins[at], seen, previous = True, set(), place
        seen.add(kernel)
    return begins


def _read(module: str, op: str, scope: str, text: str) -> _Instruction:
    call = read_call(text) if text else None
    scopes, primitive = _scopes(scope)
    plain = _SUFFIX.sub("", op.removeprefix("%")) or primitive or "unknown"
    return _Instruction(
        op=call[0] if call else plain,
        signature=call[1] if call else None,
        module=".".join(scopes) or (module if _PLAIN.fullmatch(module) else ""),
        is_backward=_BACKWARD in scope,
    )


def _scopes(scope: str) -> tuple[list[str], str]:
    """Return the named scopes around an op of JAX, outermost first, and the primitive that it is."""
    parts = _without_paths(scope.removesuffix(":").split("/"))
    inside = []
    for part in parts[:-1]:
        if part.startswith(_PROGRAMS):
            continue
        name = part[:_LONGEST_SCOPE]
        for _ in range(_DEEPEST_WRAPPING):
            match = _WRAPPED.fullmatch(name)
            name = match[1] if match else name
        if name == PATH or _PLAIN.fullmatch(name):
            inside.append(name)
    primitive = parts[-1].partition("[")[0]
    return inside[:100], primitive if _PLAIN.fullmatch(primitive) else ""


def _without_paths(parts: list[str]) -> list[str]:
    """Return the parts of a scope with one in place of those of a path, which begins with a slash or ends in a file."""
    files = [at for at, part in enumerate(parts[:-1]) if _FILE.search(part)]
    absolute = [at for at, part in enumerate(parts[:-1]) if _ROOT.fullmatch(part)]
    if not files and not absolute:
        return parts
    own = max((at for at, part in enumerate(parts) if part.startswith(_PROGRAMS)), default=-1) + 1
    begin = min(absolute, default=own)
    last = max(files, default=len(parts) - 2)
    return [*parts[:begin], PATH, *parts[max(last, begin) + 1 :]]
