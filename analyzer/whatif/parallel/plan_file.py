"""A plan as a TOML file: `[mesh] [shard] [schedule] [overlap] [recompute]`."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ....formats.trace.printable import clean_text
from ....records import dataclass, field
from ....specs.documents import Entry, read_table, read_toml
from .grammar import USUAL_FRAMEWORK, build_plan, parse_plan
from .plan import ParallelPlan

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "mesh": {name: name for name in ("dp", "fsdp", "hsdp", "zero", "tp", "sp", "cp", "pp", "ep")},
    "schedule": {"pipeline": "schedule", "vp": "vp", "micro_batch": "micro_batch", "micro_batches": "micro_batches"},
    "overlap": {
        "gradients": "overlap_gradients",
        "buckets": "buckets",
        "tensor": "overlap_tensor",
        "context": "overlap_context",
        "experts": "overlap_experts",
        "prefetch": "prefetch",
    },
    "experts": {"dispatch": "dispatch"},
    "recompute": {"mode": "recompute"},
}
"""Table → key → word of a plan; `[shard]` has module paths for keys."""
_Value = Annotated[
    bool | Annotated[int, Meta(ge=-1, le=10**18)] | str, Meta(description="a whole number, true, false or text")
]


def _table(name: str, keys: Mapping[str, Any]) -> type[Struct]:
    fields = [(key, kind | UnsetType, UNSET) for key, kind in keys.items()]
    return defstruct(name, fields, forbid_unknown_fields=True)


_TABLES: Final = _table(
    "Plan", {**{name: _table(name, dict.fromkeys(keys, _Value)) for name, keys in SECTIONS.items()}, "shard": Entry}
)


class ShardKind(StrEnum):
    """Name how the parameters of a module are shared among tensor-parallel, or expert-parallel, ranks."""

    COLUMN = "column"
    """By the output features of a product."""
    ROW = "row"
    """By its input features: results are summands."""
    VOCABULARY = "vocab"
    """By the rows of a table, or the classes of scores."""
    REPLICATE = "replicate"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """Hold what a file says, with what is asked of the sharding of single modules."""

    plan: ParallelPlan
    shard: Mapping[str, ShardKind] = field(default_factory=dict)
    """Pattern of module paths (`*.q_proj`) → how they are shared; what no pattern names goes by the usual rules."""


def read_plan(text: str, gpu_count: int | None = None, framework: str = USUAL_FRAMEWORK) -> PlanDocument:
    """Read a plan: a line of text, or the name of a TOML file. See `parse_plan`, `load_plan`.

    >>> read_plan("tp=2", 8).plan.dp
    4
    """
    if text.strip().lower().endswith(".toml"):
        return load_plan(Path(text.strip()), gpu_count, framework)
    return PlanDocument(plan=parse_plan(text, gpu_count, framework))


def load_plan(path: Path, gpu_count: int | None = None, framework: str = USUAL_FRAMEWORK) -> PlanDocument:
    """Read a plan from a TOML file. Raises InputError, in one line, that names table and key.

    >>> path = folder / "plan.toml"
    >>> _ = path.write_text('[mesh]\\ntp = 2\\n[shard]\\n"*.head" = "vocab"\\n[recompute]\\nmode = "full"\\n')
    >>> found = load_plan(path, 8)
    >>> found.plan.dp, found.shard["*.head"].value
    (4, 'vocab')
    """
    document = read_toml(path)
    read_table(document, _TABLES, path.name)
    plan = build_plan(_pairs(document), gpu_count, where=path.name, framework=framework)
    rules = {
        pattern: read_table(kind, ShardKind, f"{path.name}: shard, {clean_text(pattern)}")
        for pattern, kind in document.get("shard", {}).items()
    }
    return PlanDocument(plan=plan, shard=rules)


def _pairs(document: Entry) -> Iterator[tuple[str, str]]:
    """Yield the words of a plan that the tables hold."""
    for name, keys in SECTIONS.items():
        for key, value in document.get(name, {}).items():
            yield keys[key], {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
