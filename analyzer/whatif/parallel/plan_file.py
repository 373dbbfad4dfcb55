"""A plan as a TOML file: `[mesh] [shard] [schedule] [overlap] [recompute]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ....errors import InputError
from ....formats.trace.printable import clean_text
from ....specs.documents import read_toml
from .grammar import build_plan, format_plan, parse_plan
from .plan import ParallelPlan

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "mesh": {name: name for name in ("dp", "fsdp", "hsdp", "zero", "tp", "sp", "cp", "pp", "ep")},
    "schedule": {
        "pipeline": "schedule",
        "vp": "vp",
        "micro_batch": "micro_batch",
        "micro_batches": "micro_batches",
    },
    "overlap": {
        "gradients": "overlap_gradients",
        "tensor": "overlap_tensor",
        "experts": "overlap_experts",
        "prefetch": "prefetch",
    },
    "experts": {"dispatch": "dispatch"},
    "recompute": {"mode": "recompute"},
}
"""Table → key → word of a plan; `[shard]` has module paths for keys."""
_SHARD: Final = "shard"


class ShardKind(StrEnum):
    """Name how the parameters of a module are shared among tensor-parallel, or expert-parallel, ranks."""

    COLUMN = "column"
    """By output features."""
    ROW = "row"
    """By input features."""
    VOCABULARY = "vocab"
    REPLICATE = "replicate"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """Hold what a file says, with what is asked of the sharding of single modules."""

    plan: ParallelPlan
    shard: Mapping[str, ShardKind] = field(default_factory=dict)
    """Pattern of module paths (`*.q_proj`) → how they are shared; what no pattern names goes by the usual rules."""


def read_plan(text: str, gpu_count: int | None = None) -> PlanDocument:
    """Read a plan: a line of text, or the name of a TOML file. See `parse_plan`, `load_plan`.

    >>> read_plan("tp=2", 8).plan.dp
    4
    """
    if text.strip().lower().endswith(".toml"):
        return load_plan(Path(text.strip()), gpu_count)
    return PlanDocument(plan=parse_plan(text, gpu_count))


def load_plan(path: Path, gpu_count: int | None = None) -> PlanDocument:
    """Read a plan from a TOML file. Raises InputError, in one line, that names table and key.

    >>> path = folder / "plan.toml"
    >>> _ = path.write_text('[mesh]\\ntp = 2\\n[shard]\\n"*.head" = "vocab"\\n[recompute]\\nmode = "full"\\n')
    >>> found = load_plan(path, 8)
    >>> format_plan(found.plan), found.shard["*.head"].value
    ('dp=4,tp=2,recompute=full', 'vocab')
    """
    document = read_toml(path)
    expected = (*SECTIONS, _SHARD)
    for name, table in document.items():
        if name not in expected:
            raise InputError(f"{path.name}: [{clean_text(name)}]: expected {', '.join(f'[{key}]' for key in expected)}")
        if not isinstance(table, dict):
            raise InputError(f"{path.name}: {name}: expected a table [{name}], found {_kind(table)}")
    plan = build_plan(_pairs(document, path.name), gpu_count, where=path.name)
    return PlanDocument(plan=plan, shard=dict(_rules(document.get(_SHARD, {}), path.name)))


def save_plan(document: PlanDocument, path: Path) -> None:
    """Write a plan as the TOML that `load_plan` reads."""
    from ....formats.files.open import write_atomic

    words = dict(pair.split("=") for pair in format_plan(document.plan).split(","))
    lines = []
    for name, keys in SECTIONS.items():
        own = {key: words[word] for key, word in _written(keys).items() if word in words}
        if own:
            lines += [f"[{name}]", *(f"{key} = {_toml(text)}" for key, text in own.items()), ""]
    if document.shard:
        lines += ["[shard]", *(f"{_quoted(pattern)} = {_quoted(kind)}" for pattern, kind in document.shard.items()), ""]
    write_atomic(path, "\n".join(lines).encode())


def _pairs(document: Mapping[str, Any], file: str) -> Iterator[tuple[str, str | None]]:
    """Yield the words of a plan that the tables hold."""
    for name, keys in SECTIONS.items():
        for key, value in document.get(name, {}).items():
            where = f"{file}: [{name}] {clean_text(key)}"
            if key not in keys:
                raise InputError(f"{where}: expected one of {', '.join(keys)}")
            if isinstance(value, bool):
                yield keys[key], "on" if value else "off"
            elif isinstance(value, int | str):
                yield keys[key], str(value)
            else:
                raise InputError(f"{where}: expected a number, true, false or text, found {_kind(value)}")


def _rules(table: Mapping[str, Any], file: str) -> Iterator[tuple[str, ShardKind]]:
    names = [kind.value for kind in ShardKind]
    for pattern, value in table.items():
        if value not in names:
            found = repr(clean_text(value)) if isinstance(value, str) else _kind(value)
            where = f"{file}: [shard] {clean_text(pattern)!r}"
            raise InputError(f"{where}: expected one of {', '.join(names)}, found {found}")
        yield pattern, ShardKind(value)


def _written(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the word that `format_plan` writes for each key."""
    short = {"micro_batch": "mb", "micro_batches": "ga", "overlap_gradients": "overlap"}
    return {key: short.get(word, word) for key, word in keys.items()}


def _toml(text: str) -> str:
    return {"on": "true", "off": "false"}.get(text) or (text if text.isdigit() else f'"{text}"')


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a fraction", str: "text", list: "a list", dict: "a table"}
    return names.get(type(value), "something else")
