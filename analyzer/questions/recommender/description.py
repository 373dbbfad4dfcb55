"""A recommender and its training as a TOML file: what is read, and what is refused in a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from ....errors import InputError
from ....formats.trace.printable import clean_text
from ....specs.documents import read_toml
from .sizes import USUAL_PART_COST, USUAL_TABLE_GB, HostWork, Interaction, RecommenderSizes, TableLayout, Training

MOST_TABLES: Final = 1024
MOST_LAYERS: Final = 64
MOST_ROWS: Final = 10**12
MOST_FEATURES: Final = 10**6
MOST_SAMPLES: Final = 10**9
MOST_GPUS: Final = 1024
MOST_POOLING: Final = 10**5
OPTIMIZERS: Final = ("sgd", "adagrad")
PRECISIONS: Final = ("float16", "float32")
DEALT_TO: Final = ("gpus", "machines")
_KindT = TypeVar("_KindT", bound=StrEnum)


def read_recommender(path: Path) -> tuple[RecommenderSizes, Training]:
    """Return the recommender that a file describes, and its training on machines of as many GPUs as it has.

    Raises InputError, in one line, that names table and key.

    >>> path = folder / "job.toml"
    >>> _ = path.write_text('''
    ... [model]
    ... table_rows = [1000, 50]
    ... width = 64
    ... dense_features = 4
    ... bottom = [32, 64]
    ... top = [32, 1]
    ... [training]
    ... global_batch = 4096
    ... gpus = 8
    ... ''')
    >>> sizes, training = read_recommender(path)
    >>> sizes.pooling, training.layout.value, training.batch
    ((1, 1), 'hybrid', 512)
    """
    document = read_toml(path)
    for name in document:
        if name not in ("model", "training"):
            raise InputError(f"{path.name}: {clean_text(name)}: expected the tables [model] and [training] alone")
    return _model(_Reader(path.name, "model", document)), _training(_Reader(path.name, "training", document))


def on_machines(training: Training, gpus_per_node: int) -> Training:
    """Return the training on machines of so many GPUs. Raises InputError where parts cannot be shared among these."""
    beside = min(gpus_per_node, training.gpus)
    if training.plans_nodes and training.gpus % beside:
        raise InputError(
            f"tables are dealt to machines of {beside} GPUs, of which {training.gpus} GPUs are no whole number: "
            "expected a multiple, or deal_to = 'gpus'"
        )
    return replace(training, gpus_per_node=beside)


def _model(reader: _Reader) -> RecommenderSizes:
    rows = reader.numbers("table_rows", most=MOST_ROWS, length=MOST_TABLES)
    pooling = reader.numbers("pooling", (1,), most=MOST_POOLING, length=MOST_TABLES)
    if len(pooling) == 1:
        pooling *= len(rows)
    if len(pooling) != len(rows):
        raise reader.error("pooling", f"{len(rows)} numbers, one per table, found {len(pooling)}")
    width = reader.number("width", most=MOST_FEATURES)
    found = RecommenderSizes(
        name=reader.text("name", "recommender"),
        table_rows=rows,
        pooling=pooling,
        width=width,
        dense_features=reader.number("dense_features", most=MOST_FEATURES),
        bottom=reader.numbers("bottom", most=MOST_FEATURES, length=MOST_LAYERS),
        top=reader.numbers("top", most=MOST_FEATURES, length=MOST_LAYERS),
        interaction=reader.choice("interaction", Interaction, Interaction.DOT),
        cross_layers=reader.number("cross_layers", 3, most=MOST_LAYERS),
        cross_rank=reader.number("cross_rank", 512, most=MOST_FEATURES),
    )
    if found.bottom[-1] != width:
        raise reader.error("bottom", f"the last layer to have the tables' width {width}, found {found.bottom[-1]}")
    reader.finish()
    return found


def _training(reader: _Reader) -> Training:
    gpus = reader.number("gpus", most=MOST_GPUS)
    batch = reader.number("global_batch", most=MOST_SAMPLES)
    if batch < gpus:
        raise reader.error("global_batch", f"at least a sample for each of {gpus} GPUs, found {batch}")
    found = Training(
        global_batch=batch,
        gpus=gpus,
        gpus_per_node=gpus,
        layout=reader.choice("layout", TableLayout, TableLayout.HYBRID),
        host=reader.choice("host", HostWork, HostWork.GRAPH),
        is_half=reader.word("precision", PRECISIONS) == "float16",
        optimizer=reader.word("optimizer", OPTIMIZERS),
        overlaps=reader.flag("overlap", default=True),
        sums_in_network=reader.flag("sums_in_network", default=False),
        fuses_casts=reader.flag("fused_casts", default=True),
        replicated_rows=reader.number("replicate_below", 0, least=0, most=MOST_ROWS),
        plans_nodes=reader.word("deal_to", DEALT_TO) == "machines",
        shard_cost=reader.amount("part_cost", USUAL_PART_COST),
        table_gigabytes=reader.amount("table_memory_gb", USUAL_TABLE_GB),
        has_fixed_bags=reader.flag("fixed_bags", default=False),
    )
    reader.finish()
    return found


class _Reader:
    """Take the keys of a table one by one; what is left over is nothing that is known."""

    def __init__(self, file: str, name: str, document: Mapping[str, Any]) -> None:
        found = document.get(name)
        if not isinstance(found, dict):
            raise InputError(f"{file}: expected a table [{name}]")
        self._where, self._left, self._known = f"{file}: [{name}]", dict(found), list[str]()

    def error(self, key: str, expected: str) -> InputError:
        """Return the error of a key."""
        return InputError(f"{self._where} {key}: expected {expected}")

    def finish(self) -> None:
        """Refuse keys that nobody took."""
        for key in self._left:
            raise InputError(f"{self._where} {clean_text(key)}: expected one of {', '.join(self._known)}")

    def number(self, key: str, default: int | None = None, *, least: int = 1, most: int) -> int:
        """Return a whole number."""
        found = self._take(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            raise self.error(key, f"a whole number from {least:,} to {most:,}")
        return found

    def numbers(self, key: str, default: tuple[int, ...] | None = None, *, most: int, length: int) -> tuple[int, ...]:
        """Return whole numbers, of one alone a list of it."""
        found = self._take(key, default)
        several = list(found) if isinstance(found, list | tuple) else [found]
        is_whole = all(isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= most for item in several)
        if not 1 <= len(several) <= length or not is_whole:
            raise self.error(key, f"up to {length:,} whole numbers from 1 to {most:,}")
        return tuple(several)

    def amount(self, key: str, default: float) -> float:
        """Return a number that need not be whole."""
        found = self._take(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= MOST_FEATURES:
            raise self.error(key, f"a number from 0 to {MOST_FEATURES:,}")
        return float(found)

    def text(self, key: str, default: str) -> str:
        """Return a name, without what a terminal would obey."""
        found = self._take(key, default)
        if not isinstance(found, str):
            raise self.error(key, "text")
        return clean_text(found)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        found = self._take(key, default)
        if not isinstance(found, bool):
            raise self.error(key, "true or false")
        return found

    def word(self, key: str, words: tuple[str, ...]) -> str:
        """Return one of some words, by default the first."""
        found = self._take(key, words[0])
        if found not in words:
            raise self.error(key, f"one of {', '.join(words)}")
        return str(found)

    def choice(self, key: str, kind: Callable[[str], _KindT], default: _KindT) -> _KindT:
        """Return a member of an enumeration."""
        return kind(self.word(key, (default.value, *(item.value for item in type(default) if item is not default))))

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        if key not in self._left and default is None:
            raise self.error(key, "it to be given")
        return self._left.pop(key, default)
