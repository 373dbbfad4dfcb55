"""Reads what an annotation marks off its name: a step, an optimizer's, a server's, compilation, or a range."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ..trace.column import MISSING, Column
from ..trace.tables import ServingKind
from .builder import RecordingBuilder
from .rows import (
    MARK_COMPILATION,
    MARK_DENOISING,
    MARK_LOADING,
    MARK_NUMBERED,
    MARK_OPTIMIZER,
    MARK_RANGE,
    MARK_SERVING,
    MARK_STEP,
    MARK_ZERO_GRAD,
    MarkRows,
    make_rows,
)

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
    (_DENOISING, MARK_DENOISING),
    (_NUMBERED, MARK_NUMBERED),
    (re.compile(r".*\(dynamo_timed\)", re.DOTALL), MARK_COMPILATION),
)
_PREFIXES: Final[Mapping[str, int]] = {
    "ProfilerStep#": MARK_STEP,
    "Optimizer.step#": MARK_OPTIMIZER,
    "Optimizer.zero_grad#": MARK_ZERO_GRAD,
    "enumerate(DataLoader)#": MARK_LOADING,
}
_LIBRARIES: Final = re.compile(
    r"nccl:|gloo:|mpi:|ucc:|c10d::|##|torch\.|Torch-Compiled|DistributedD|(?i:micro[ _-]?(?:step|batch))"
)
"""What comes several times in an iteration by its name, as annotations of torch and its libraries do."""


def read_mark(name: str) -> tuple[int, int, str] | None:
    """Return what an annotation marks, the kind of the iteration, and for others than known ones what it is called.

    >>> read_mark("step[DECODE bs=8]")
    (4, <ServingKind.DECODE: 2>, '')
    """
    for prefix, mark in _PREFIXES.items():
        if name.startswith(prefix):
            return mark, ServingKind.UNTOLD, ""
    if match := _SERVING.match(name):
        return MARK_SERVING, _serving_kind(match), ""
    for pattern, mark in _PATTERNS:
        if pattern.fullmatch(name):
            return mark, ServingKind.UNTOLD, ""
    if not name or _LIBRARIES.match(name):
        return None
    return MARK_RANGE, ServingKind.UNTOLD, _NUMBERS.sub("#", name[:200])


def mark_rows(builder: RecordingBuilder, names: Sequence[str], spans: Mapping[str, Column]) -> MarkRows:
    """Return the rows of annotations that mark something, by their names and their thread, start and duration."""
    found = [read_mark(name) or (MARK_RANGE, ServingKind.UNTOLD, name) for name in names]
    columns = {"name": [mark for mark, _, _ in found], "kind": [int(kind) for _, kind, _ in found]}
    label = [
        builder.labels[text] if mark != MARK_SERVING else builder.names[name] if _PLAIN.fullmatch(name) else MISSING
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
