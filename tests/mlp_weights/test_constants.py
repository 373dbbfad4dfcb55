"""Constants are read as their programs wrote them, and no program's numbers are changed by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from wavecast import load_trace
from wavecast.errors import InputError
from wavecast.formats.files.constants import ENTRIES, FOLDER, MANIFEST, read_constants
from wavecast.mlp_weights.train.constants import FittedConstants, difference, hash_files, render, save_constants

NAMES = sorted(path.stem for path in FOLDER.glob("*.json") if path.name != MANIFEST)


def fitted(values: Mapping[str, Any], inputs: Mapping[str, str] | None = None) -> FittedConstants:
    return FittedConstants(values=values, counts={"rows": 3}, inputs=inputs or {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / MANIFEST).write_bytes(b'{"models": {"matmul": {}}}')
    save_constants("toy", "Toys.", fitted({"a": 1.5, "b": {"c": 2, "d": [3]}}), folder=tmp_path)
    return tmp_path


def test_the_manifest_lists_every_file_of_constants() -> None:
    assert sorted(orjson.loads((FOLDER / MANIFEST).read_bytes())[ENTRIES]) == NAMES
    assert len(NAMES) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_as_its_program_wrote_it(name: str) -> None:
    content = orjson.loads((FOLDER / f"{name}.json").read_bytes())
    assert content["values"] == read_constants(name)
    programs = (f"wavecast.mlp_weights.train.{name}", "benchmarks.check.energy_check")
    assert content["command"].startswith(tuple(f"python -m {program} " for program in programs))
    assert content["about"]
    assert content["counts"]
    assert ("fitted_instead" in content) == ("kept" in content)


def test_values_come_back(folder: Path) -> None:
    assert read_constants("toy", folder) == {"a": 1.5, "b": {"c": 2, "d": [3]}}
    assert orjson.loads((folder / MANIFEST).read_bytes())["models"] == {"matmul": {}}


def test_the_same_values_are_written_as_the_same_bytes(folder: Path) -> None:
    before = [(folder / name).read_bytes() for name in ("toy.json", MANIFEST)]
    save_constants("toy", "Toys.", fitted({"a": 1.5, "b": {"c": 2, "d": [3]}}), folder=folder)
    assert [(folder / name).read_bytes() for name in ("toy.json", MANIFEST)] == before


def test_kept_values_stay_and_the_file_says_what_was_fitted(folder: Path) -> None:
    save_constants("toy", "Toys.", fitted({"a": 1.5, "b": {"c": 7}}), keep="older", folder=folder)
    assert read_constants("toy", folder) == {"a": 1.5, "b": {"c": 2, "d": [3]}}
    content = orjson.loads((folder / "toy.json").read_bytes())
    assert (content["kept"], content["fitted_instead"]) == ("older", {"b": {"c": 7, "d": None}})


def test_nothing_can_be_kept_where_nothing_is(folder: Path) -> None:
    with pytest.raises(InputError, match=r"other\.json: no readable constants"):
        save_constants("other", "", fitted({}), keep="older", folder=folder)


def test_a_file_changed_by_hand_is_refused(folder: Path) -> None:
    path = folder / "toy.json"
    path.write_bytes(path.read_bytes().replace(b"1.5", b"1.6"))
    with pytest.raises(InputError, match=r"toy\.json: not the file that manifest\.json describes.*reinstall wavecast"):
        read_constants("toy", folder)


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"a": 1}'])
def test_a_broken_file_is_one_clear_error(folder: Path, broken: bytes) -> None:
    (folder / "toy.json").write_bytes(broken)
    with pytest.raises(InputError, match=r"toy\.json: no readable constants .*; reinstall wavecast"):
        read_constants("toy", folder)


def test_a_missing_file_is_one_clear_error(folder: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: no readable constants .*; reinstall wavecast"):
        read_constants("none", folder)


def test_differences_are_nested() -> None:
    assert difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}}) == {}
    assert difference({"a": 1, "b": {"c": 2}}, {"b": {"c": 3}, "d": 4}) == {"a": None, "b": {"c": 3}, "d": 4}


def test_what_fits_on_a_line_takes_one() -> None:
    value = {"a": {"b": [1, 2], "c": "×"}, "d": {f"key {row}": row for row in range(20)}}
    lines = render(value).splitlines()
    assert orjson.loads(render(value)) == value
    assert lines[1] == '  "a": {"b": [1, 2], "c": "×"},'
    assert len(lines) == 5 + 20


def test_inputs_are_named_by_their_place_in_the_data(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "x.parquet").write_bytes(b"x")
    found = hash_files(tmp_path, [tmp_path / "ops" / "x.parquet"])
    assert found == {"ops/x.parquet": hashlib.sha256(b"x").hexdigest()}


def given(name: str, data: Path, *inputs: str) -> Mapping[str, Any]:
    """Return what the program gave on these inputs; skip where they are others today."""
    content = orjson.loads((FOLDER / f"{name}.json").read_bytes())
    if hash_files(data, [data / item for item in inputs]).items() - content["inputs"].items():
        pytest.skip("the data is not what the constants were fitted to")
    return overlay(content["values"], content.get("fitted_instead", {}))


def overlay(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(values)
    for key, item in others.items():
        result[key] = overlay(values[key], item) if isinstance(item, Mapping) and key in values else item
    return result


@pytest.mark.data
def test_latencies_of_a_generation_come_back(data_dir: Path) -> None:
    from wavecast.mlp_weights.train.latencies import latencies_of, measure

    names = [f"traces/h100_{model}_small_inference.json.gz" for model in ("bert", "vit")]
    expected = given("latencies", data_dir, *names)
    found = [measure(load_trace(data_dir / name)) for name in names]
    assert [generation for generation, _ in found] == ["Hopper", "Hopper"]
    launches = [latencies["launch"] for _, latencies in found]
    assert latencies_of({"Hopper": {"launch": launches}})["Hopper"]["launch"] == expected["Hopper"]["launch"]
    assert read_constants("latencies")["Hopper"]["launch"] == pytest.approx(np.mean(launches), rel=0.1)


@pytest.mark.data
def test_the_width_of_links_comes_back(data_dir: Path) -> None:
    pytest.importorskip("pyarrow")
    from wavecast.mlp_weights.train.ratio_blocks import COLLECTIVES, link_blocks
    from wavecast.mlp_weights.train.ratio_widths import widened

    expected = given("ratio_widths", data_dir, COLLECTIVES)["by_rule"]["link"]
    assert widened(list(link_blocks(data_dir))) == pytest.approx(expected, abs=0.005)
