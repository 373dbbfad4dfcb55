"""Names, as people type them and as frameworks print them, lead to one GPU or to an error that helps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from wavecast.errors import UnknownGpuError
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Catalog
from wavecast.specs.match import NameIndex, find_fitting, find_gpu, find_gpus, is_generic_name, match_device
from wavecast.specs.names import can_mean, words_of

GIB = 1024**3
CATALOG = load_catalog()
INDEX = NameIndex(CATALOG.gpus)
WORDS = sorted({word for gpu in CATALOG.gpus for name in (gpu.name, *gpu.aliases) for word in words_of(name)})


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), st.sampled_from(["", " ", "-"]))
def test_the_index_leaves_out_no_gpu_that_a_name_can_mean(words: list[str], glue: str) -> None:
    name = glue.join(words)
    meant = {gpu.name for gpu in CATALOG.gpus if can_mean(gpu, name)}
    assert meant <= {gpu.name for gpu in INDEX.narrow(name).gpus}


def test_names_are_unique_without_case_and_punctuation(catalog: Catalog) -> None:
    plain = ["".join(filter(str.isalnum, gpu.name.casefold())) for gpu in catalog.gpus]
    assert len(set(plain)) == len(plain)


def test_a_name_resolves_to_itself_however_it_is_written(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        spellings = (gpu.name, gpu.name.upper(), gpu.name.lower().replace(" ", "-"), f" {gpu.vendor} {gpu.name}")
        assert {find_gpu(catalog, spelling).name for spelling in spellings} == {gpu.name}


def test_an_alias_with_its_size_resolves_to_its_gpu(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        for alias in gpu.aliases:
            found = match_device(catalog, alias, sm_count=gpu.sm_count, memory_bytes=int(gpu.memory_bytes))
            assert found is not None
            assert found.name == gpu.name


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("4090", "GeForce RTX 4090"),
        ("rtx4090", "GeForce RTX 4090"),
        ("RTX 3080 Ti", "GeForce RTX 3080 Ti"),
        ("3080", "GeForce RTX 3080"),
        ("mi300x", "Instinct MI300X"),
        ("AMD MI250", "Instinct MI250 (1 GCD)"),
        ("t4", "Tesla T4"),
        ("a100-sxm4-80gb", "A100 SXM4 80GB"),
        ("a100 sxm 40gb", "A100 SXM4 40GB"),
        ("h100 sxm", "H100 SXM5 80GB"),
        ("H100_PCIe", "H100 PCIe 80GB"),
        ("b200", "B200 SXM (HGX, 180GB)"),
        ("gb200", "GB200 (per GPU)"),
        ("h200", "H200 SXM 141GB"),
        ("v100 sxm2 32gb", "Tesla V100 SXM2 32GB"),
        ("a6000", "RTX A6000"),
        ("6000 ada", "RTX 6000 Ada Generation"),
        ("2080ti", "GeForce RTX 2080 Ti"),
    ],
)
def test_short_names(catalog: Catalog, typed: str, expected: str) -> None:
    assert find_gpu(catalog, typed).name == expected


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("h100", ["H100 SXM5 80GB", "H100 PCIe 80GB", "H100 NVL 94GB"]),
        ("a100-80gb", ["A100 SXM4 80GB", "A100 PCIe 80GB"]),
        ("NVIDIA GeForce RTX 4060 Ti", ["GeForce RTX 4060 Ti 8GB", "GeForce RTX 4060 Ti 16GB"]),
        ("titan", ["TITAN RTX", "TITAN V", "TITAN Xp"]),
        ("rtx 6000", ["Quadro RTX 6000", "RTX 6000 Ada Generation"]),
    ],
)
def test_ambiguous_names_list_the_candidates(catalog: Catalog, typed: str, candidates: list[str]) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(catalog, typed)
    message = str(caught.value)
    assert "\n" not in message
    assert all(candidate in message for candidate in candidates)


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [("RTX 4900", "GeForce RTX 4090"), ("mi300", "Instinct MI300X"), ("A100 SXM4 60G", "A100 SXM4 80GB")],
)
def test_unknown_names_suggest_near_ones(catalog: Catalog, typed: str, suggestion: str) -> None:
    with pytest.raises(UnknownGpuError, match="did you mean") as caught:
        find_gpu(catalog, typed)
    assert suggestion in str(caught.value)


@pytest.mark.parametrize("typed", ["", "   ", "nvidia", "?!", "xyzzy", "\u0000", "Grün"])
def test_hopeless_names_say_where_to_look(catalog: Catalog, typed: str) -> None:
    with pytest.raises(UnknownGpuError, match="wavecast catalog"):
        find_gpu(catalog, typed)


@pytest.mark.parametrize(
    ("printed", "sm_count", "memory_bytes", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 108, 84_990_623_744, "A100 SXM4 80GB"),
        ("NVIDIA A100-PG509-200", 108, 42_297_524_224, "A100 SXM4 40GB"),
        ("Tesla V100-SXM2-32GB", 80, 34_079_637_504, "Tesla V100 SXM2 32GB"),
        ("NVIDIA H100 80GB HBM3", 132, 85_018_279_936, "H100 SXM5 80GB"),
        ("NVIDIA B200", 148, 191_503_138_816, "B200 SXM (HGX, 180GB)"),
        ("AMD Instinct MI300X VF", 304, 205_571_227_648, "Instinct MI300X"),
        ("NVIDIA GeForce RTX 3080", 68, 10 * GIB, "GeForce RTX 3080"),
        ("NVIDIA GeForce RTX 3080", 70, 12 * GIB, "GeForce RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 34, 8 * GIB, "GeForce RTX 4060 Ti 8GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 34, 16 * GIB, "GeForce RTX 4060 Ti 16GB"),
        ("Tesla T4", None, 15_828_320_256, "Tesla T4"),
        ("NVIDIA H100 80GB HBM3", None, None, "H100 SXM5 80GB"),
    ],
)
def test_devices_as_frameworks_print_them(
    catalog: Catalog, printed: str, sm_count: int | None, memory_bytes: int | None, expected: str
) -> None:
    found = match_device(catalog, printed, sm_count=sm_count, memory_bytes=memory_bytes)
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize(
    ("printed", "sm_count", "memory_bytes"),
    [
        pytest.param("NVIDIA GeForce RTX 4060 Ti", 34, None, id="two cards fit"),
        pytest.param("NVIDIA GeForce RTX 3080", None, None, id="two cards of one printed name"),
        pytest.param("NVIDIA A100-SXM4-40GB", 42, 20 * GIB, id="a slice of a GPU"),
        pytest.param("NVIDIA A100-SXM4-80GB", 108, 40 * GIB, id="half the memory"),
        pytest.param("NVIDIA GeForce RTX 3080 Laptop GPU", 48, 16 * GIB, id="a laptop part"),
        pytest.param("Some accelerator", 108, 80 * GIB, id="unknown"),
    ],
)
def test_devices_that_no_single_entry_fits_are_not_guessed(
    catalog: Catalog, printed: str, sm_count: int | None, memory_bytes: int | None
) -> None:
    assert match_device(catalog, printed, sm_count=sm_count, memory_bytes=memory_bytes) is None


NAMELESS = ["", "unknown", "NVIDIA Graphics Device", "AMD Radeon Graphics", "AMD Radeon(TM) Graphics", "gfx942"]


@pytest.mark.parametrize("name", [*NAMELESS, "gfx90a:sramecc+:xnack-"])
def test_a_name_that_tells_no_product_is_generic(name: str) -> None:
    assert is_generic_name(name)


def test_names_of_products_are_not_generic(catalog: Catalog) -> None:
    for gpu in catalog.gpus:
        assert not any(is_generic_name(name) for name in (gpu.name, *gpu.aliases))


@pytest.mark.parametrize("name", NAMELESS)
def test_a_gpu_without_a_name_is_known_by_its_size(catalog: Catalog, name: str) -> None:
    size: dict[str, Any] = {"sm_count": 304, "memory_bytes": 206141652992}
    for capability in ("9.4", "gfx942", "gfx942:sramecc+", None):
        found = match_device(catalog, name, **size, compute_capability=capability)
        assert found is not None
        assert found.name == "Instinct MI300X"
    others: tuple[dict[str, Any], ...] = (
        {"compute_capability": "9.0"},
        {"sm_count": 303},
        {"memory_bytes": 64 * GIB},
        {"sm_count": None},
        {"memory_bytes": None},
    )
    for other in others:
        assert match_device(catalog, name, **(size | {"compute_capability": "9.4"} | other)) is None


def test_where_several_fit_none_is_taken(catalog: Catalog) -> None:
    size: dict[str, Any] = {"sm_count": 104, "memory_bytes": 68702699520, "compute_capability": "9.0"}
    assert match_device(catalog, "AMD Radeon Graphics", **size) is None
    found = find_fitting(catalog, **size)
    assert [gpu.name for gpu in found] == ["Instinct MI210", "Instinct MI250 (1 GCD)"]


def test_a_name_that_tells_a_product_is_not_overruled_by_its_size(catalog: Catalog) -> None:
    size: dict[str, Any] = {"sm_count": 304, "memory_bytes": 206141652992, "compute_capability": "9.4"}
    assert match_device(catalog, "AMD Instinct MI399X", **size) is None


def test_a_generic_name_that_an_entry_has_is_that_entrys(catalog: Catalog) -> None:
    size: dict[str, Any] = {"sm_count": 304, "memory_bytes": 206141652992, "compute_capability": "9.4"}
    twin = replace(next(gpu for gpu in catalog.gpus if gpu.name == "Instinct MI300X"), name="Ours", aliases=("gfx942",))
    own = Catalog(gpus=(*catalog.gpus, twin))
    assert match_device(own, "", **size) is None
    found = match_device(own, "gfx942", **size)
    assert found is not None
    assert found.name == "Ours"


@pytest.mark.parametrize(
    ("typed", "meant"), [("H10", "H100"), ("L4OS", "L40S"), ("H1OO", "H100"), ("MI30", "MI300X"), ("A10O", "A100")]
)
def test_lookalikes_and_zeros_left_out_are_suggested(typed: str, meant: str) -> None:
    with pytest.raises(UnknownGpuError, match=rf"did you mean (?:Instinct )?{meant}"):
        find_gpus(load_catalog(), typed)
