"""Tests of records: what `wavecast.records.dataclass` makes behaves as what the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import wavecast
from wavecast.records import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span."""

    start_ns: int
    duration_ns: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Span):
    """A span with a name, of fields that it inherits."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a kernel has a name")


Maker = Callable[..., Callable[[type[Any]], type[Any]]]
OPTIONS = [
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "kw_only": True, "eq": False},
    {"slots": True},
    {"repr": False},
]


def classes(options: dict[str, bool]) -> list[type[Any]]:
    """The same class by the standard library and by us."""
    return [maker(**options)(template()) for maker in (dataclasses.dataclass, dataclass)]


def template() -> type[Any]:
    class Item:
        """An item."""

        size: int
        name: str = "a"
        parts: list[int] = dataclasses.field(default_factory=list)
        total: int = dataclasses.field(init=False, default=3)

    return Item


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_records_behave_as_the_standard_librarys(options: dict[str, bool]) -> None:
    theirs, ours = classes(options)
    for kind in (theirs, ours):
        item = kind(size=1)
        assert (item.size, item.name, item.parts, item.total) == (1, "a", [], 3)
        assert item.parts is not kind(size=1).parts
        assert dataclasses.asdict(dataclasses.replace(item, size=2)) == {
            "size": 2,
            "name": "a",
            "parts": [],
            "total": 3,
        }
        assert (item == kind(size=1)) is options.get("eq", True)
        assert item != kind(size=2)
        assert item != dataclasses.asdict(item)
        assert hasattr(item, "__dict__") is not options.get("slots", False)
        with pytest.raises(TypeError, match="size"):
            kind()
        if options.get("frozen"):
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'size'"):
                item.size = 2
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'size'"):
                del item.size
    if options.get("repr", True):
        assert repr(theirs(size=1)) == repr(ours(size=1))
    assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
    assert [item.kind for item in inspect.signature(theirs).parameters.values()] == [
        item.kind for item in inspect.signature(ours).parameters.values()
    ]
    assert (theirs.__hash__ is None) is (ours.__hash__ is None)
    assert theirs.__match_args__ == ours.__match_args__


def test_instances_are_hashed_by_their_fields() -> None:
    @dataclass(frozen=True, slots=True)
    class Pair:
        left: int
        right: int

    assert {Pair(1, 2): "found"}[Pair(1, 2)] == "found"
    assert Pair.__doc__ == "Pair"


def test_what_a_class_writes_itself_stays() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        def __hash__(self) -> int:
            return 7

    assert (repr(Named("a")), Named("a") == Named("b"), hash(Named("a"))) == ("a", True, 7)


def test_fields_are_inherited_and_checked_after_init() -> None:
    kernel = Kernel(start_ns=1, name="gemm")
    assert repr(kernel) == "Kernel(start_ns=1, duration_ns=0, tags=[], name='gemm')"
    with pytest.raises(ValueError, match="has a name"):
        Kernel(start_ns=1, name="")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])  # noqa: S301
def test_instances_are_copied_and_pickled(again: Callable[[Kernel], Kernel]) -> None:
    kernel = Kernel(start_ns=1, name="gemm", tags=["x"])
    assert again(kernel) == kernel
    assert again(kernel) is not kernel


def test_methods_are_compiled_when_they_are_used() -> None:
    """A class that is never made compiles nothing: a start imports 240 of them."""
    code = """
import builtins
from wavecast.records import dataclass, field
compiled, execute = [], builtins.exec
builtins.exec = lambda text, *known: (compiled.append(text) if "__init__" in text else 0, execute(text, *known))
class Item: size: int
Item.__annotations__ = {"size": int}
Item = dataclass(frozen=True, slots=True, kw_only=True)(Item)
print(len(compiled), Item(size=1).size, Item(size=2).size, len(compiled))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", "1", "2", "1"]


def test_classes_of_users_may_add_fields_to_ours() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Noted(wavecast.Trace):
        note: str = ""

    assert {field.name for field in dataclasses.fields(Noted)} > {"note", "meta"}
    assert "<factory>" in str(inspect.signature(Noted))


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match="not known here"):

        @dataclass(frozen=True)
        class Hashed:
            names: list[str] = field(hash=False, default_factory=list)
