"""The house: rooms one above the other, nouns that mean one thing, and a page that names every room."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

MOST_ROOMS = 25
LONGEST_CHAIN = 13
LONGEST_FUNCTION = 60
LONGEST_MODULE = 400


@pytest.fixture(scope="module")
def structure(root_dir: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root_dir))
        yield import_module("benchmarks.check.structure")


@pytest.fixture(scope="module")
def modules(structure: Any, root_dir: Path) -> Sequence[Any]:
    found: Sequence[Any] = structure.read_modules(root_dir)
    return found


@pytest.fixture(scope="module")
def arrows(structure: Any, modules: Sequence[Any]) -> Mapping[str, frozenset[str]]:
    found: Mapping[str, frozenset[str]] = structure.room_arrows(modules)
    return found


def test_rooms_are_few_and_stand_one_above_the_other(structure: Any, arrows: Mapping[str, frozenset[str]]) -> None:
    assert structure.circles(arrows) == []
    floors = structure.floors_of(arrows)
    assert len(floors) <= MOST_ROOMS
    assert max(floors.values()) <= LONGEST_CHAIN


def test_no_file_is_in_a_circle_of_imports(structure: Any, modules: Sequence[Any]) -> None:
    assert [circle for circle in structure.file_circles(modules) if not any("archive" in name for name in circle)] == []


def test_only_the_tracer_and_training_import_torch(structure: Any, modules: Sequence[Any]) -> None:
    importers = structure.importers_of(modules, "torch")
    assert {structure.room_of(name) for name in importers} == {"tracer", "mlp_weights"}


def test_nothing_that_runs_at_a_users_imports_the_training_code(structure: Any, modules: Sequence[Any]) -> None:
    users = [module.name for module in modules if module.room != "mlp_weights"]
    trained = [name for name in structure.reachable(modules, users) if name.startswith("mlp_weights.train")]
    assert trained == []


def test_no_module_of_the_analyzer_stands_outside_a_room(root_dir: Path) -> None:
    assert [path.name for path in (root_dir / "analyzer").glob("*.py")] == ["__init__.py"]


def test_the_analyzers_page_names_every_room(root_dir: Path) -> None:
    page = (root_dir / "analyzer" / "README.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (root_dir / "analyzer").glob("*/__init__.py")}
    assert set(re.findall(r"^\|.*\| \[(\w+)/\]", page, re.MULTILINE)) == rooms


def test_no_name_stands_for_two_types(structure: Any, modules: Sequence[Any]) -> None:
    assert {name: places for name, places in structure.public_types(modules).items() if len(places) > 1} == {}


def test_functions_and_modules_can_be_read_at_one_sitting(structure: Any, modules: Sequence[Any]) -> None:
    assert max(structure.function_lengths(modules).values()) <= LONGEST_FUNCTION
    assert [module.name for module in modules if module.line_count > LONGEST_MODULE] == []
