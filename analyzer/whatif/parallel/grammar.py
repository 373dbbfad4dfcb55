"""A plan as one line of text, `fsdp=32,tp=2,pp=4,recompute=full`: read, checked and written."""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ....errors import InputError, parameter
from ....formats.trace.printable import clean_text
from .plan import MOST_RANKS, ExpertDispatch, GradientBuckets, ParallelPlan, PipelineSchedule, RecomputeMode, check_plan

REST: Final = ("*", "-1", "rest", "auto")
"""In place of a number: as many as the other axes leave of the GPUs."""


@lru_cache(maxsize=1)
def _rows() -> list[list[str]]:
    with Path(__file__).with_name("words.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _by_word(kind: str) -> dict[str, str]:
    """Return what each word stands for, of a kind of word in `words.csv`."""
    return {word: meaning for found, meaning, words in _rows() if found == kind for word in words.split()}


NUMBERS: Final = _by_word("number")
"""Word → field of the plan that takes a whole number."""
SWITCHES: Final = _by_word("switch")
"""Word → field of the plan that is on or off."""
CHOICES: Final = _by_word("choice")
"""Word → field of the plan that is one of several names."""
CHOICE_NAMES: Final = {field: _by_word(field) for field in dict.fromkeys(CHOICES.values())}
"""Field → what may stand there → what it is called here."""
_CHOSEN: Final[Mapping[str, type[StrEnum]]] = {
    "schedule": PipelineSchedule, "recompute": RecomputeMode, "dispatch": ExpertDispatch, "buckets": GradientBuckets,
}  # fmt: skip
FRAMEWORKS: Final = _by_word("framework")
"""Program → whose rules it follows."""
USUAL_FRAMEWORK: Final = "torch"
"""What records: its own rules hold where nobody says others."""
ON: Final = ("on", "true", "yes", "1")
OFF: Final = ("off", "false", "no", "0")

UNSUPPORTED: Final = _by_word("unsupported")
"""What users of other programs may ask for, and what to do instead."""
ELSEWHERE: Final = {
    word: (said, asked)
    for words, said, asked in (
        ("gpus world_size", "how many GPUs there are is asked with", "gpus"),
        ("global_batch global_batch_size gbs", "samples of an iteration are asked with", "global_batch"),
        ("node nodes", "machines are asked with", "node"),
        ("precision", "another precision is asked with", "precision"),
    )
    for word in words.split()
}
"""What is asked, but not in a plan: words, and the parameter."""
PLAN_WORDS: Final = (
    *("dp", "fsdp", "zero", "tp", "sp", "cp", "pp", "vp", "ep", "mb", "ga", "schedule", "recompute"),
    *("overlap", "buckets", "overlap_tensor", "overlap_context", "overlap_experts", "dispatch", "prefetch"),
)
"""What they are called here, in the order in which a plan is written."""


LONGEST_TEXT: Final = 1_000
_DEFAULT: Final = ParallelPlan()
_FIELDS: Final = {"mb": "micro_batch", "ga": "micro_batches", "overlap": "overlap_gradients"}
"""Fields whose word is another."""
_WRITTEN: Final = {_FIELDS.get(word, word): word for word in PLAN_WORDS}
_JOINED: Final = re.compile(r"([a-z_]*[a-z_])(\d+)")
"""A word with its number and nothing between, `tp2`."""
_HSDP: Final = re.compile(r"(\d+)x(\d+)")


def parse_plan(text: str, gpu_count: int | None = None, framework: str = USUAL_FRAMEWORK) -> ParallelPlan:
    """Read a plan. What it leaves of `gpu_count` GPUs goes to `dp`, where it says neither `dp` nor `fsdp`, or to `*`.

    `framework` is whose rules it follows where it names none itself.

    Raises InputError, in one line, for what is no plan, what is not modelled, and where the numbers do not fit.

    >>> parse_plan("fsdp=*,tp=2,recompute=full", 64).fsdp
    32
    >>> format_plan(parse_plan("tp=8 pp=4", 64))
    'dp=2,tp=8,pp=4'
    """
    if len(text) > LONGEST_TEXT:
        raise InputError(f"a plan of {len(text):,} characters: expected something like fsdp=8,tp=2")
    return build_plan(_pairs(text), gpu_count, where="plan", framework=framework)


def build_plan(
    pairs: Iterator[tuple[str, str | None]],
    gpu_count: int | None,
    *,
    where: str,
    framework: str = USUAL_FRAMEWORK,
) -> ParallelPlan:
    """Make a plan of words and their values; None stands for a word alone. See `parse_plan`."""
    asked: dict[str, Any] = {}
    framework = FRAMEWORKS[framework]
    for word, value in pairs:
        if word.strip().lower() == "framework":
            framework = _framework(value, where)
            continue
        for field, found in _read(word, value, where):
            if field in asked:
                raise InputError(f"{where}: {_WRITTEN[field]} is given twice; expected it once")
            asked[field] = found
    _give_rest(asked, gpu_count, where)
    if framework == "megatron":
        usual = {"buckets": GradientBuckets.MEGATRON, "overlap_context": asked.get("cp", 1) > 1}
        asked = usual | asked
    plan = ParallelPlan(**asked)
    check_plan(plan, where)
    return plan


def format_plan(plan: ParallelPlan) -> str:
    """Write a plan so that `parse_plan` returns the same; what is as usual is left out.

    >>> format_plan(ParallelPlan(fsdp=8, tp=2, sp=False))
    'fsdp=8,tp=2,sp=off'
    """
    changed = {
        item.name: getattr(plan, item.name)
        for item in fields(ParallelPlan)
        if getattr(plan, item.name) != getattr(_DEFAULT, item.name)
    }
    words = (f"{word}={_value(changed[field])}" for field, word in _WRITTEN.items() if field in changed)
    return ",".join(words) or "dp=1"


def _pairs(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the words of a line with their values."""
    words = [part for part in re.split(r"[,;\s]+", text.strip()) if part]
    if not words:
        raise InputError("an empty plan: expected something like fsdp=8,tp=2")
    for part in words:
        word, equals, value = part.partition("=")
        yield (word, value) if equals else (_parted(part))


def _parted(part: str) -> tuple[str, str | None]:
    """Return the word and the number of `tp2`; a word alone has none."""
    found = _JOINED.fullmatch(part.lower())
    if found and found[1] in {*NUMBERS, "zero"} and part.lower() not in NUMBERS:
        return found[1], found[2]
    return part, None


def _read(word: str, value: str | None, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields that a word sets."""
    name = word.strip().lower().removeprefix("--").replace("-", "_")
    shown = clean_text(word.strip())[:40]
    if name in UNSUPPORTED:
        raise InputError(f"{where}: {shown}: {UNSUPPORTED[name]}")
    if name in ELSEWHERE:
        said, asked = ELSEWHERE[name]
        raise InputError(f"{where}: {shown}: {said} {parameter(asked)}")
    if name == "hsdp":
        found = _HSDP.fullmatch((value or "").strip())
        if found is None:
            raise InputError(
                f"{where}: hsdp: expected replicas x shards, as in hsdp=4x8, found {clean_text(value or '')!r}"
            )
        yield "dp", _number("dp", found[1], f"{where}: hsdp")
        yield "fsdp", _number("fsdp", found[2], f"{where}: hsdp")
    elif name in NUMBERS:
        yield NUMBERS[name], _number(NUMBERS[name], value, f"{where}: {shown}")
    elif name in SWITCHES:
        yield SWITCHES[name], _switch(value, f"{where}: {shown}")
    elif name in CHOICES:
        yield CHOICES[name], _choice(CHOICES[name], value, f"{where}: {shown}")
    else:
        near = get_close_matches(name, [*NUMBERS, *SWITCHES, *CHOICES], n=1)
        hint = f"did you mean {near[0]}? Expected" if near else "expected"
        raise InputError(f"{where}: {shown!r} is no word of a plan; {hint} some of {', '.join(PLAN_WORDS)}")


def _number(field: str, value: str | None, where: str) -> int | None:
    """Return a whole number; None for the rest of the GPUs."""
    text = None if value is None else value.strip().lower()
    if field in ("dp", "fsdp") and (text is None or text in REST):
        return None
    least, most = (0, 3) if field == "zero" else (0 if field == "prefetch" else 1, MOST_RANKS)
    if text and text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most:
        return int(text)
    found = "nothing" if not text else repr(clean_text(text)[:40])
    raise InputError(f"{where}: expected a whole number from {least:,} to {most:,}, found {found}")


def _switch(value: str | None, where: str) -> bool:
    text = "on" if value is None else value.strip().lower()
    if text not in (*ON, *OFF):
        raise InputError(f"{where}: expected on or off, found {clean_text(text)[:40]!r}")
    return text in ON


def _choice(field: str, value: str | None, where: str) -> StrEnum:
    text = (value or "").strip().lower().replace("-", "_")
    if field == "recompute" and value is None:
        text = "full"
    if text in UNSUPPORTED:
        raise InputError(f"{where}={clean_text(text)}: {UNSUPPORTED[text]}")
    names: Mapping[str, str] = CHOICE_NAMES[field]
    if text not in names:
        expected = ", ".join(dict.fromkeys(names.values()))
        raise InputError(f"{where}: expected one of {expected}, found {clean_text(text)[:40]!r}")
    return _CHOSEN[field](names[text])


def _framework(value: str | None, where: str) -> str:
    """Return whose rules the plan follows where it says nothing itself."""
    text = (value or "").strip().lower().replace("-", "_")
    if text not in FRAMEWORKS:
        raise InputError(
            f"{where}: framework: expected one of {', '.join(FRAMEWORKS)}, found {clean_text(text)[:40]!r}"
        )
    return FRAMEWORKS[text]


def _give_rest(asked: dict[str, Any], gpu_count: int | None, where: str) -> None:
    """Put numbers in place of what takes the rest of the GPUs, and turn ZeRO-3 into what it is."""
    if asked.get("zero") == 3:
        if "fsdp" in asked:
            raise InputError(
                f"{where}: zero=3 shards among the dp ranks and fsdp is given as well; expected one of both"
            )
        asked["fsdp"], asked["zero"] = asked.pop("dp", None), 0
    open_axes = [axis for axis in ("dp", "fsdp") if axis in asked and asked[axis] is None]
    if len(open_axes) == 2:
        raise InputError(f"{where}: dp and fsdp both take the rest of the GPUs; expected a number for one of them")
    if not open_axes and "dp" not in asked and "fsdp" not in asked and gpu_count is not None:
        open_axes = ["dp"]
    known = 1
    for axis in ("dp", "fsdp", "tp", "cp", "pp"):
        known *= asked.get(axis) or 1
    if open_axes:
        if gpu_count is None:
            raise InputError(
                f"{where}: {open_axes[0]} takes the rest of the GPUs; expected a number, or {parameter('gpus')}"
            )
        if gpu_count % known:
            raise InputError(f"{where}: the other axes take {known:,} GPUs, which do not divide {gpu_count:,}")
        asked[open_axes[0]] = gpu_count // known
    elif gpu_count is not None and known != gpu_count:
        raise InputError(
            f"{where}: it takes {known:,} GPUs, not {gpu_count:,}; leave out dp, or write dp=* or fsdp=* for the rest"
        )


def _value(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
