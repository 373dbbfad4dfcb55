"""A user's own file adds and overrides GPUs, and says what is wrong with it in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wavecast.errors import InputError
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Catalog, Gpu, Rate, memory_kind
from wavecast.specs.match import find_gpu, match_device

ENTRY: dict[str, Any] = {
    "name": "Test T1",
    "compute_capability": "9.0",
    "source": "made up",
    "clocks": {"sm_count": 100, "boost_mhz": 1500},
    "memory": {"size_gib": 40, "type": "HBM3", "bandwidth_gb_per_s": 2000},
    "l2": {"size_mib": 50},
    "vector": {"fp32_tflops": 38.4},
    "matrix": {"fp16_flop_per_clock_per_sm": 4096, "fp16_tflops": 614.4},
    "links": {"pcie_generation": 5, "pcie_lanes": 16},
    "power": {"tdp_w": 500},
}
A_NUMBER = "expected a number from 1e-06 to 1e+13 in the unit that its key names"
Load = Callable[[str], Catalog]


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {toml_value(item)}' for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def toml_entry(**changes: Any) -> str:
    """ENTRY as TOML with `group__key` or `key` changed; None takes the key away."""
    entry = {key: dict(value) if isinstance(value, dict) else value for key, value in ENTRY.items()}
    for path, value in changes.items():
        *groups, key = path.split("__")
        table = entry
        for group in groups:
            table = table.setdefault(group, {})
        if value is None:
            del table[key]
        else:
            table[key] = value
    return "[[gpu]]\n" + "\n".join(f'"{key}" = {toml_value(value)}' for key, value in entry.items()) + "\n"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def write_and_load(text: str) -> Catalog:
        path = tmp_path / "my_gpu.toml"
        path.write_text(text, encoding="utf-8")
        return load_catalog(path)

    return write_and_load


def test_an_entry_is_added_in_si_units(load: Load, catalog: Catalog) -> None:
    extended = load(toml_entry(aliases=["NVIDIA Test T1"], links__name="NVLink 9", links__bandwidth_gb_per_s=100))
    assert extended.gpus[:-1] == catalog.gpus
    gpu = extended.gpus[-1]
    assert gpu == Gpu(
        name="Test T1",
        aliases=("NVIDIA Test T1",),
        vendor="NVIDIA",
        architecture="Hopper",
        compute_capability="9.0",
        sm_count=100,
        fp32_lanes_per_sm=128,
        boost_clock_hz=1.5e9,
        memory_bytes=40 * 1024**3,
        memory_type="HBM3",
        has_ecc=True,
        memory_bandwidth_bytes_per_s=2e12,
        l2_cache_bytes=50 * 1024**2,
        peak_flops_per_s={Rate.FP32: 38.4e12, Rate.MATRIX_FP16: 614.4e12},
        matrix_flops_per_clock_per_sm=4096,
        warp_size=32,
        max_threads_per_sm=2048,
        max_blocks_per_sm=32,
        registers_per_sm=65536,
        shared_memory_per_sm_bytes=228 * 1024,
        max_shared_memory_per_block_bytes=227 * 1024,
        link_name="NVLink 9",
        link_bandwidth_bytes_per_s=1e11,
        pcie_bandwidth_bytes_per_s=32e9 * 128 / 130 / 8 * 16,
        tdp_w=500.0,
        sources=gpu.sources,
    )
    assert {note.source for group, note in gpu.sources.items() if group != "occupancy"} == {"made up"}
    assert not gpu.sources["memory"].verified
    assert gpu.sources["occupancy"].verified


def test_a_gpu_of_the_file_is_found_by_name_and_by_device(load: Load) -> None:
    extended = load(toml_entry(aliases=["NVIDIA Test T1"]))
    assert find_gpu(extended, "test t1").name == "Test T1"
    found = match_device(extended, "NVIDIA Test T1", sm_count=100, memory_bytes=40 * 1024**3)
    assert found is not None
    assert found.name == "Test T1"


def test_without_a_source_the_file_is_the_source(load: Load) -> None:
    notes = load(toml_entry(source=None)).gpus[-1].sources
    assert notes["clocks"].source == "my_gpu.toml"
    assert not notes["clocks"].verified


def test_an_entry_of_the_same_name_replaces_the_old_one_in_its_place(load: Load, catalog: Catalog) -> None:
    names = [gpu.name for gpu in catalog.gpus]
    extended = load(toml_entry(name="L4"))
    assert [gpu.name for gpu in extended.gpus] == names
    replaced = extended.gpus[names.index("L4")]
    assert replaced.sm_count == 100
    assert find_gpu(catalog, "L4").sm_count == 58, "the built-in catalogue stays as it is"


def test_based_on_takes_over_what_is_not_given(load: Load, catalog: Catalog) -> None:
    base = find_gpu(catalog, "H100 SXM5 80GB")
    gpu = load('[[gpu]]\nname = "Wide"\nbased_on = "h100-sxm5-80gb"\nmemory = { bandwidth_gb_per_s = 9000 }').gpus[-1]
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(9e12)
    assert gpu.memory_bytes == base.memory_bytes
    assert gpu.peak_flops_per_s == base.peak_flops_per_s
    assert gpu.aliases == ()
    assert gpu.note == ""
    assert gpu.sources["memory"].source == "my_gpu.toml; rest as H100 SXM5 80GB"
    assert not gpu.sources["memory"].verified
    assert gpu.sources["clocks"] == base.sources["clocks"]


def test_an_override_keeps_its_aliases(load: Load, catalog: Catalog) -> None:
    extended = load('[[gpu]]\nname = "H100 SXM5 80GB"\nbased_on = "H100 SXM5 80GB"\npower = { tdp_w = 500 }')
    found = match_device(extended, "NVIDIA H100 80GB HBM3", sm_count=132, memory_bytes=85_018_279_936)
    assert found is not None
    assert found.tdp_w == 500
    assert len(extended.gpus) == len(catalog.gpus)


def test_inherited_rates_follow_sm_count_and_clock(load: Load, catalog: Catalog) -> None:
    base = find_gpu(catalog, "H100 SXM5 80GB")
    gpu = load(
        '[[gpu]]\nname = "Twice"\nbased_on = "H100 SXM5 80GB"\n'
        "clocks = { sm_count = 264, boost_mhz = 990 }\nmatrix = { fp8_tflops = 1 }"
    ).gpus[-1]
    # Vector: twice the SMs at half the boost clock. Matrix: its clock of 1830 MHz stays, so twice the rate.
    assert gpu.peak_flops_per_s[Rate.FP32] == pytest.approx(base.peak_flops_per_s[Rate.FP32])
    assert gpu.peak_flops_per_s[Rate.MATRIX_FP16] == pytest.approx(2 * base.peak_flops_per_s[Rate.MATRIX_FP16])
    assert gpu.peak_flops_per_s[Rate.MATRIX_FP8] == pytest.approx(1e12)
    assert gpu.matrix_flops_per_clock_per_sm == base.matrix_flops_per_clock_per_sm
    assert "scaled by SM count x clock from H100 SXM5 80GB" in gpu.sources["matrix"].source
    assert not gpu.sources["matrix"].verified


def test_one_entry_may_build_on_another_of_the_file(load: Load) -> None:
    text = toml_entry() + '[[gpu]]\nname = "Test T2"\nbased_on = "Test T1"\npower = { tdp_w = 1 }\n'
    assert [gpu.tdp_w for gpu in load(text).gpus[-2:]] == [500, 1]


@pytest.mark.parametrize("base", ["Test T1", "test-t1", "nvidia test t1", "T1 Second Name"])
def test_a_base_goes_by_any_name_that_it_has_in_this_file(load: Load, base: str) -> None:
    first = toml_entry(aliases=["T1 Second Name"], power__tdp_w=123)
    found = load(f'{first}[[gpu]]\nname = "Test T2"\nbased_on = "{base}"\n')
    assert found.gpus[-1].tdp_w == 123


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "at least one [[gpu]] table"),
        ("gpu = 3", "at least one [[gpu]] table"),
        ("gpu = [3]", "gpu[0]: expected a table, found 3"),
        ("[[gpu]]", "gpu[0]: name: expected text in quotes, found None"),
        ("[[gpus]]\nname = 'x'", "unknown key gpus; did you mean gpu?"),
        ("[[gpu]\n", "expected TOML"),
        (toml_entry() * 2, "Test T1 stands there twice"),
        (toml_entry(name="nvidia l-4"), "nvidia l-4 differs from L4 in spelling only; write L4 to replace it"),
        (toml_entry(memroy={"size_gib": 1}), "unknown key memroy; did you mean memory?"),
        (
            toml_entry(memory__bandwith_gb_per_s=1),
            "Test T1: memory: unknown key bandwith_gb_per_s; did you mean",
        ),
        (toml_entry(memory__size_gib=None), "Test T1: memory: size_gib is missing; docs/reference/gpus.md has"),
        (toml_entry(l2=None), "Test T1: l2 is missing; docs/reference/gpus.md has a complete example"),
        (toml_entry(l2=5), "l2: expected a table, found 5"),
        (
            toml_entry(memory__size_gib="80"),
            f"size_gib: {A_NUMBER}, found '80'",
        ),
        (
            toml_entry(memory__size_gib=-1),
            f"size_gib: {A_NUMBER}, found -1",
        ),
        (
            toml_entry(memory__size_gib=0),
            f"size_gib: {A_NUMBER}, found 0",
        ),
        (
            toml_entry(memory__size_gib=True),
            f"size_gib: {A_NUMBER}, found True",
        ),
        (
            toml_entry(power__tdp_w=float("nan")),
            f"tdp_w: {A_NUMBER}, found nan",
        ),
        (
            toml_entry(power__tdp_w=float("inf")),
            f"tdp_w: {A_NUMBER}, found inf",
        ),
        (
            toml_entry(memory__bandwidth_gb_per_s=1e308),
            f"{A_NUMBER}, found 1e+308",
        ),
        (
            toml_entry(clocks__boost_mhz=1e-300),
            f"{A_NUMBER}, found 1e-300",
        ),
        (toml_entry(based_on="L9"), "my_gpu.toml: Test T1: based_on: "),
        (
            toml_entry(clocks__sm_count=1.5),
            "clocks.sm_count: expected a whole number from 1, found 1.5",
        ),
        (toml_entry(memory__type=3), "type: expected text in quotes, found 3"),
        (toml_entry(aliases="x"), "aliases: expected a list of names in quotes, found 'x'"),
        (toml_entry(aliases=[1]), "aliases[0]: expected text in quotes, found 1"),
        (toml_entry(is_package="yes"), "is_package: expected true or false, found 'yes'"),
        (toml_entry(source=3), "source: expected text"),
        (toml_entry(l2__verified="yes"), "verified: expected true or false, found 'yes'"),
        (toml_entry(links__pcie_generation=9), "links.pcie_generation: expected 1 to 6, found 9"),
        (toml_entry(compute_capability=9.0), "compute_capability: expected text like '9.0'"),
        (toml_entry(compute_capability="sm_90"), "compute_capability: expected text like '9.0'"),
        (toml_entry(compute_capability="99.0", vendor="N", architecture="A"), "compute_capability 99.0 is not known"),
        (toml_entry(based_on="H1OO SXM"), "no GPU of the catalogue is called 'H1OO SXM'"),
        (toml_entry(based_on="h100"), "means 3 GPUs"),
        (toml_entry(based_on=3), "based_on: expected text in quotes, found 3"),
        ("compute_capability = 3\n" + toml_entry(), "compute_capability: expected a table, found 3"),
        ('[compute_capability]\n"9.9" = 3\n' + toml_entry(), "compute_capability 9.9: expected a table"),
        ('[compute_capability."9.9"]\nwarps = 3\n' + toml_entry(), "compute_capability 9.9: unknown key warps"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(load: Load, text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_errors_name_the_file_but_not_where_it_lies(tmp_path: Path) -> None:
    for name, content in (
        ("absent.toml", None),
        ("binary.toml", b"\xff\xfe\x00"),
        ("deep.toml", b"a=" + b"[" * 9999),
        ("long.toml", b"a=" + b"9" * 9999),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(name)) as caught:
            load_catalog(path)
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        load_catalog(tmp_path)


VALUES = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text("abc 9.", max_size=4), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["sm_count", "x", "source"]), st.integers(-1, 9), max_size=2),
)  # fmt: skip
PATHS = [
    *(key for key in ENTRY),
    *(f"{group}__{key}" for group, table in ENTRY.items() if isinstance(table, dict) for key in table),
    "based_on", "vendor", "note", "verified", "occupancy", "occupancy__warp_size", "clocks__matrix_mhz",
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.sampled_from(PATHS), VALUES, st.booleans())
def test_whatever_stands_in_a_value_it_loads_or_is_refused(load: Load, path: str, value: Any, derived: bool) -> None:
    text = toml_entry(**{path: value})
    if derived:
        text = toml_entry() + toml_entry(**{"name": "Test T2", "based_on": "Test T1", path: value})
    try:
        loaded, message = load(text), ""
    except InputError as error:
        loaded, message = None, str(error)
    assert "\n" not in message
    assert message or (loaded is not None and loaded.gpus[-1].sm_count > 0)


def examples_of(root: Path) -> list[str]:
    return re.findall(
        r"```toml\n(.*?)```", (root / "docs" / "reference" / "gpus.md").read_text(encoding="utf-8"), re.DOTALL
    )


def test_the_examples_of_the_documentation_load(load: Load, root_dir: Path, catalog: Catalog) -> None:
    as_run, first, second = examples_of(root_dir)
    quiet, slow, piece = load(as_run).gpus[len(catalog.gpus) :]
    assert (quiet.power_cap_w, slow.boost_clock_hz, piece.sm_count) == (500, 1.2e9, 42)
    extended = load(first)
    x1, wide, plain, many = extended.gpus[len(catalog.gpus) :]
    assert x1.vendor == "NVIDIA"
    assert match_device(extended, "NVIDIA Example X1", sm_count=160, memory_bytes=96 * 1024**3) == x1
    # The example keeps the catalogue's own rules.
    assert x1.peak_flops_per_s[Rate.FP32] == pytest.approx(160 * 128 * 2 * 2e9, rel=0.01)
    assert x1.peak_flops_per_s[Rate.MATRIX_FP16] == pytest.approx(160 * 8192 * 2e9, rel=0.01)
    assert x1.memory_bandwidth_bytes_per_s == pytest.approx(8192 * 8e9 / 8)
    h100 = find_gpu(catalog, "H100 SXM5 80GB")
    assert wide.memory_bandwidth_bytes_per_s == pytest.approx(2 * h100.memory_bandwidth_bytes_per_s, rel=0.01)
    assert not plain.has_ecc
    assert many.peak_flops_per_s[Rate.FP32] == pytest.approx(h100.peak_flops_per_s[Rate.FP32] * 160 / 132)
    n1 = load(second).gpus[-1]
    assert (n1.architecture, n1.shared_memory_per_sm_bytes) == ("Next", 256 * 1024)


@pytest.mark.parametrize(
    ("memory", "inline"),
    [
        ({"type": "GDDR6"}, False),
        ({"type": "GDDR6", "ecc": True}, True),
        ({"type": "gddr5x", "ecc": True}, True),
        ({"type": "GDDR7", "ecc": True}, False),
        ({"type": "HBM3"}, False),
        ({"type": "HBM3", "ecc": True}, False),
        ({"type": "LPDDR5X", "ecc": False}, False),
    ],
)
def test_error_correction_costs_bandwidth_where_its_bits_lie_among_the_data(
    load: Load, memory: dict[str, Any], inline: bool
) -> None:
    fleet = build_fleet(load(toml_entry(**{f"memory__{key}": value for key, value in memory.items()})).gpus[-1:])
    assert fleet.has_inline_ecc.tolist() == [inline]


def test_error_correction_of_a_known_card_can_be_switched(load: Load, catalog: Catalog) -> None:
    own = load(
        '[[gpu]]\nname = "L4"\nbased_on = "L4"\nmemory = { ecc = false }\n'
        '[[gpu]]\nname = "A6000 corrected"\nbased_on = "RTX A6000"\nmemory = { ecc = true }\n'
    )
    off, on = find_gpu(own, "L4"), find_gpu(own, "A6000 corrected")
    known = [find_gpu(catalog, "L4"), find_gpu(catalog, "RTX A6000")]
    assert build_fleet([*known, off, on]).has_inline_ecc.tolist() == [True, False, False, True]


def test_error_correction_is_true_or_false(load: Load) -> None:
    with pytest.raises(InputError, match=r"memory\.ecc: expected true or false, found 'on'"):
        load(toml_entry(memory__ecc="on"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("HBM2e", "HBM2E"),
        ("GDDR6X", "GDDR6X"),
        ("HBM", "HBM3E"),
        ("GDDR8", "GDDR7"),
        ("LPDDR5X", "LPDDR"),
        ("x", "OTHER"),
    ],
)
def test_a_memory_type_is_of_a_kind(name: str, kind: str) -> None:
    assert memory_kind(name).name == kind
