"""Tells what annotations and ranges (NVTX, rocTX) around work are: ops of torch, modules, marks of iterations."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...records import dataclass
from ..trace.column import MISSING, Column
from ..trace.tables import ServingKind
from .builder import RecordingBuilder
from .dtypes import SEPARATOR
from .nesting import enclosing_rows, nest, parent_rows
from .rows import ENGINE, Mark, MarkRows, ModuleRows, OpRows, SpanRows, join_rows, make_rows, take_as, take_rows

_OP, _MODULE, _NOTHING = range(3)
_SUFFIX_STARTS: Final = (", seq = ", ", stashed seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")
_SUFFIX: Final = re.compile(
    r"(?:, (?P<stashed>stashed )?seq = (?P<sequence>\d{1,15}))?(?:, op_id = \d{1,20})?"
    r"(?:, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?(?:, input_op_ids = \[[-(),\d \]]*)?"
)
"""What torch writes behind an op's name: the node's number, the call's, the sizes of its inputs, who made them."""
_TORCH: Final = re.compile(
    r"(?:aten|prims|autograd|torch|torchvision|torchaudio|c10d|c10d_functional|nccl|quantized)::"
)
_MODULE_PATH: Final = re.compile(r"\w+(?:\.\w+)*")
_LONGEST_TEXT: Final = 1 << 16
_NUMBERS: Final = re.compile(r"\d+")
_SERVING: Final = re.compile(
    r"execute_(?:\d+_)?context_(?P<context>\d+)\(.*?\)_generation_(?P<generation>\d+)\("  # vLLM
    r"|execute_new_(?P<new>\d+)_cached_(?P<cached>\d+)"  # vLLM before
    r"|\[Executor\] _forward_step \d+: (?P<requests>\d+) ctx reqs, (?P<generating>\d+) gen reqs"  # TensorRT-LLM
    r"|step\[(?P<mode>[A-Z_]+)\b"  # SGLang
    r"|(?P<word>prefill|decode)(?:[ _-](?:step|iter|iteration))?[ _#:=-]{0,3}\d*\Z"
)
_MODES: Final = {
    "EXTEND": ServingKind.PREFILL, "PREFILL": ServingKind.PREFILL, "SPLIT_PREFILL": ServingKind.PREFILL,
    "DECODE": ServingKind.DECODE, "TARGET_VERIFY": ServingKind.DECODE, "MIXED": ServingKind.MIXED,
    "prefill": ServingKind.PREFILL, "decode": ServingKind.DECODE,
}  # fmt: skip
_PLAIN: Final = re.compile(
    r"(?:[\W\d_]|execute|context|generation|new|cached|s[qk]|Executor|forward|step|ctx|gen|reqs|bs|toks"
    r"|SPLIT|PREFILL|EXTEND|DECODE|TARGET|VERIFY|MIXED|prefill|decode)+"
)
"""A server's step whose words are its own: with any other it may say whose it is, and is not kept."""
_NUMBERED: Final = re.compile(
    r"(?:(?:train|training|inference|decode|global)[ _-]?)?(?:iteration|iter|step)[ _#:=-]{0,3}\d+", re.IGNORECASE
)
"""`iter 12`, `step=3`, `iteration_5`, `train_step 7`."""
_DENOISING: Final = re.compile(r"(?:denois\w*?|diffusion)[ _-]?(?:step|iter|iteration)[ _#:=-]{0,3}\d*", re.IGNORECASE)
_PATTERNS: Final = (
    (_DENOISING, Mark.DENOISING),
    (_NUMBERED, Mark.NUMBERED),
    (re.compile(r".*\(dynamo_timed\)", re.DOTALL), Mark.COMPILATION),
)
_PREFIXES: Final[Mapping[str, int]] = {
    "ProfilerStep#": Mark.STEP,
    "Optimizer.step#": Mark.OPTIMIZER,
    "Optimizer.zero_grad#": Mark.ZERO_GRAD,
    "enumerate(DataLoader)#": Mark.LOADING,
}
_LIBRARIES: Final = re.compile(
    r"nccl:|gloo:|mpi:|ucc:|c10d::|##|torch\.|Torch-Compiled|DistributedD|(?i:micro[ _-]?(?:step|batch))"
)
"""What comes several times in an iteration by its name, as annotations of torch and its libraries do."""


def read_mark(name: str) -> tuple[int, int, str] | None:
    """Return what an annotation marks, the kind of the iteration, and for others than known ones what it is called.

    >>> read_mark("step[DECODE bs=8]")
    (<Mark.SERVING: 4>, <ServingKind.DECODE: 2>, '')
    """
    for prefix, mark in _PREFIXES.items():
        if name.startswith(prefix):
            return mark, ServingKind.UNTOLD, ""
    if match := _SERVING.match(name):
        return Mark.SERVING, _serving_kind(match), ""
    for pattern, mark in _PATTERNS:
        if pattern.fullmatch(name):
            return mark, ServingKind.UNTOLD, ""
    if not name or _LIBRARIES.match(name):
        return None
    return Mark.RANGE, ServingKind.UNTOLD, _NUMBERS.sub("#", name[:200])


def mark_rows(builder: RecordingBuilder, names: Sequence[str], spans: Mapping[str, Column]) -> MarkRows:
    """Return the rows of annotations that mark something, by their names and their thread, start and duration."""
    found = [read_mark(name) or (Mark.RANGE, ServingKind.UNTOLD, name) for name in names]
    columns = {"name": [mark for mark, _, _ in found], "kind": [int(kind) for _, kind, _ in found]}
    label = [
        builder.labels[text] if mark != Mark.SERVING else builder.names[name] if _PLAIN.fullmatch(name) else MISSING
        for name, (mark, _, text) in zip(names, found, strict=True)
    ]
    return make_rows(MarkRows, len(found), **columns, label=label, **spans)


def _serving_kind(match: re.Match[str]) -> ServingKind:
    word = match["mode"] or match["word"]
    if word:
        return _MODES.get(word, ServingKind.UNTOLD)
    counts = (("context", "generation"), ("new", "cached"), ("requests", "generating"))
    first, later = next((match[a], match[b]) for a, b in counts if match[a])
    if int(first) and int(later):
        return ServingKind.MIXED
    return ServingKind.PREFILL if int(first) else ServingKind.DECODE if int(later) else ServingKind.UNTOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class _RangeRows(SpanRows):
    """Hold ranges; `name` numbers ops in the recording's names, modules in its modules."""

    kind: Column
    sequence: Column
    is_stashed: Column
    inputs: Column


class RangeCollector:
    """Own the ranges of a file until all calls are known, which tell the ranges that launch kernels themselves."""

    def __init__(self, builder: RecordingBuilder) -> None:
        self._builder = builder
        self._parts: list[_RangeRows] = []

    def add(self, texts: Sequence[str], thread: Rows, start_ns: Rows, duration_ns: Rows) -> None:
        """Take ranges with what is written on them; those that are nothing known are left out."""
        read = [self._read(text) for text in texts]
        columns = np.array(read, dtype=np.int64).reshape(-1, 5).T
        told = dict(zip(("kind", "name", "sequence", "is_stashed", "inputs"), columns, strict=True))
        rows = _RangeRows(**told, thread=thread, start_ns=start_ns, duration_ns=duration_ns)
        marks = [row for row, text in enumerate(texts) if rows.kind[row] != _OP and read_mark(text)]
        spans = {name: getattr(rows, name)[marks] for name in ("thread", "start_ns", "duration_ns")}
        self._builder.add(mark_rows(self._builder, [texts[row] for row in marks], spans))
        self._parts.append(take_rows(rows, np.flatnonzero(rows.kind < _NOTHING)))

    def _read(self, text: str) -> tuple[int, int, int, int, int]:
        """Return kind, name, number of the autograd node, whether a node was stashed with it, and sizes of a range."""
        builder = self._builder
        if len(text) > _LONGEST_TEXT:
            text = text[: max(text.find(","), 0)]
        cut = min((at for at in map(text.find, _SUFFIX_STARTS) if at > 0), default=len(text))
        name, suffix = text[:cut], _SUFFIX.fullmatch(text, cut)
        is_numbered = suffix is not None and (suffix["sequence"] is not None or suffix["sizes"] is not None)
        if suffix is not None and (is_numbered or (_TORCH.match(name) and len(name) < _LONGEST_TEXT)):
            sizes = builder.inputs[SEPARATOR.join((name.encode(), (suffix["sizes"] or "").encode()))]
            sequence = MISSING if suffix["sequence"] is None else int(suffix["sequence"])
            return _OP, builder.names[name], sequence, int(suffix["stashed"] is not None), sizes
        if (read_mark(name) or (Mark.RANGE,))[0] != Mark.RANGE:
            return _NOTHING, 0, MISSING, 0, 0
        if suffix is not None and _MODULE_PATH.fullmatch(name):
            return _MODULE, builder.modules[name], MISSING, 0, 0
        return _NOTHING, 0, MISSING, 0, 0

    def finish(self, launches: SpanRows) -> None:
        """Give the builder all ops and modules.

        A module whose range is the innermost around some of the `launches` is an op of its name, too: there is no other
        one that could tell where those kernels belong.
        """
        if not self._parts:
            return
        rows = join_rows(self._parts)
        rows = take_rows(rows, np.lexsort((np.arange(len(rows.name)), -rows.duration_ns, rows.start_ns)))
        nesting = nest(rows)
        parent = parent_rows(nesting)
        innermost = enclosing_rows(nesting, launches.thread, launches.start_ns, launches.end_ns)
        launching = np.zeros(len(rows.name) + 1, dtype=bool)
        launching[innermost] = True
        is_op = rows.kind == _OP
        self._builder.add(take_as(ModuleRows, rows, ~is_op))
        self._add_ops(rows, is_op, parent)
        self._add_launching(rows, ~is_op & launching[:-1])

    def _add_launching(self, rows: _RangeRows, chosen: Mask) -> None:
        found = take_rows(rows, np.flatnonzero(chosen))
        texts = tuple(self._builder.modules)
        names = np.array([self._builder.names[texts[number]] for number in found.name.tolist()], dtype=np.int64)
        inputs = np.full(len(names), self._builder.inputs[SEPARATOR], dtype=np.int64)
        spans = {"thread": found.thread, "start_ns": found.start_ns, "duration_ns": found.duration_ns}
        self._builder.add(make_rows(OpRows, len(names), name=names, signature=inputs, **spans))

    def _add_ops(self, rows: _RangeRows, is_op: Mask, parent: Rows) -> None:
        """Add the ops; those right below a call of autograd's engine tell which forward op they differentiate."""
        texts = self._builder.names.texts
        is_engine = np.array([text.startswith(ENGINE) for text in texts], dtype=bool)
        engines = is_op & is_engine[np.where(is_op, rows.name, 0)] if len(texts) else is_op
        below = at_rows(engines, parent, False)
        is_node = is_op & (rows.sequence >= 0) & (below | (rows.is_stashed > 0))
        forward_thread = np.where(is_node, 1, MISSING)
        sequence = rows.sequence.copy()
        nodes = np.flatnonzero(is_node & below)
        sequence[parent[nodes]], forward_thread[parent[nodes]] = rows.sequence[nodes], 1
        chosen = np.flatnonzero(is_op)
        found = take_rows(rows, chosen)
        spans = {name: getattr(found, name) for name in ("name", "thread", "start_ns", "duration_ns")}
        told = {"sequence": sequence[chosen], "forward_thread": forward_thread[chosen], "signature": found.inputs}
        self._builder.add(make_rows(OpRows, len(chosen), **spans, **told))
