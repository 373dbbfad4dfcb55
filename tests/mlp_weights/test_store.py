"""Weights come back as they were written, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from wavecast.analyzer.models.store import MANIFEST, load_stored, read_manifest, save_model, variant_name
from wavecast.errors import InputError

ALL = {"theta": np.array([1.0, 2.0]), "network.mean": np.array([0.5], dtype=np.float32)}
WITHOUT = {"theta": np.array([3.0, 4.0])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    variants = {"all": ALL, "without AD102": WITHOUT}
    save_model("toy", variants, {"trained_chips": ["AD102", "GH100"]}, tmp_path)
    return tmp_path


def test_arrays_come_back_with_their_dtypes(folder: Path) -> None:
    found = load_stored("toy", folder=folder)
    assert found.variant == "all"
    assert found.trained_chips == {"AD102", "GH100"}
    assert sorted(found.arrays) == sorted(ALL)
    for name, array in ALL.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)


def test_excluding_a_chip_selects_weights_trained_without_it(folder: Path) -> None:
    found = load_stored("toy", frozenset({"AD102"}), folder)
    assert found.arrays["theta"].tolist() == [3.0, 4.0]
    assert found.trained_chips == {"GH100"}


def test_excluding_a_chip_that_was_never_seen_changes_nothing(folder: Path) -> None:
    assert load_stored("toy", frozenset({"GP104"}), folder).variant == "all"


def test_two_chips_left_out_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(InputError, match=r"toy has no weights trained without AD102\+GH100"):
        load_stored("toy", frozenset({"AD102", "GH100"}), folder)


def test_a_changed_file_is_refused(folder: Path) -> None:
    path = folder / "toy.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="another SHA-256"):
        load_stored("toy", folder=folder)


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "toy.safetensors").unlink()
    with pytest.raises(InputError, match="reinstall wavecast"):
        load_stored("toy", folder=folder)


def test_a_second_model_keeps_the_first(folder: Path) -> None:
    save_model("other", {"all": WITHOUT}, {"trained_chips": ["GA100"]}, folder)
    assert sorted(read_manifest(folder)["models"]) == ["other", "toy"]
    assert load_stored("toy", folder=folder).arrays["theta"].tolist() == [1.0, 2.0]


def test_a_model_keeps_what_others_wrote_since_the_manifest_was_read(folder: Path) -> None:
    """As where one process reads weights and trains for hours, while another writes its own."""
    found = orjson.loads((folder / MANIFEST).read_bytes())
    assert list(read_manifest(folder)["models"]) == ["toy"]
    found["models"]["toy"]["trained_chips"] = ["GH100"]
    (folder / MANIFEST).write_bytes(orjson.dumps(found))
    save_model("other", {"all": WITHOUT}, {"trained_chips": ["GA100"]}, folder)
    assert read_manifest(folder)["models"]["toy"]["trained_chips"] == ["GH100"]


def test_writing_the_same_arrays_gives_the_same_bytes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = tmp_path_factory.mktemp("again")
    save_model("toy", {"without AD102": WITHOUT, "all": ALL}, {"trained_chips": ["AD102", "GH100"]}, again)
    for name in ("toy.safetensors", MANIFEST):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_a_broken_manifest_is_one_clear_error(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b"{")
    with pytest.raises(InputError, match="no readable weights manifest"):
        read_manifest(folder)


def test_manifest_is_plain_json(folder: Path) -> None:
    entry = orjson.loads((folder / MANIFEST).read_bytes())["models"]["toy"]
    assert entry["variants"] == ["all", "without AD102"]
    assert len(entry["sha256"]) == 64


def test_variant_names_do_not_depend_on_order() -> None:
    assert variant_name(frozenset({"B", "A"})) == variant_name(frozenset({"A", "B"})) == "without A+B"
