"""GPUs under a power cap, at a locked clock, and in slices: what is derived, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.models.frame.gpu_physics import capped_stretch
from wavecast.errors import InputError
from wavecast.specs.catalog import load_catalog
from wavecast.specs.documents import read_toml
from wavecast.specs.fabric import usual_node
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Catalog, Gpu, Rate, clock_headroom, listed_name
from wavecast.specs.match import describe_machines, find_gpu, find_gpus
from wavecast.specs.variants import LEAST_CAP_RATIO, find_slice

FAMILIES = read_toml(Path(__file__).parents[2] / "specs" / "slices.toml")["family"]
PROFILES = [(gpu, item) for family in FAMILIES for gpu in family["gpus"] for item in family["profiles"]]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("H100 SXM5@500W", ["H100 SXM5 80GB, 500 W"]),
        ("h100sxm @ 500 w", ["H100 SXM5 80GB, 500 W"]),
        ("a100 sxm4 80@1200MHz", ["A100 SXM4 80GB, 1200 MHz"]),
        ("a100 sxm4 80@1.2GHz", ["A100 SXM4 80GB, 1200 MHz"]),
        ("a100/3g.20gb", ["A100 SXM4 40GB, 3g.20gb", "A100 PCIe 40GB, 3g.20gb"]),
        ("H100 NVL/1g.12gb", ["H100 NVL 94GB, 1g.12gb"]),
        ("H100/MIG 1G.10GB", ["H100 SXM5 80GB, 1g.10gb", "H100 PCIe 80GB, 1g.10gb"]),
        ("H200 SXM/1g.18gb+me", ["H200 SXM 141GB, 1g.18gb"]),
        ("mi300x/cpx", ["Instinct MI300X, CPX"]),
        ("MI355X/DPX", ["Instinct MI355X, DPX"]),
        ("a100 sxm4 80gb/3g.40gb@1200MHz@300W", ["A100 SXM4 80GB, 3g.40gb, 300 W, 1200 MHz"]),
        # Of several that a name means, those are meant that can be run so.
        ("h100@600W", ["H100 SXM5 80GB, 600 W"]),
        ("p4d.24xlarge@300W", ["A100 SXM4 40GB, 300 W"]),
    ],
)
def test_what_follows_a_name_says_how_the_gpu_is_run(catalog: Catalog, typed: str, names: list[str]) -> None:
    assert [gpu.name for gpu in find_gpus(catalog, typed)] == names


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("H100 SXM5@", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@500", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@0W", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@-5W", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@nanW", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@infMHz", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@1e999W", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@5,00W", "expected a power or a clock above 0 after '@'"),
        ("H100 SXM5@800W", "a power cap of 800 W: expected 175 to 700 W"),
        ("H100 SXM5@100W", "a power cap of 100 W: expected 175 to 700 W"),
        ("A100 SXM4 80GB@5GHz", "a clock of 5000 MHz: expected 210 to 1410 MHz"),
        ("A100 SXM4 80GB@100MHz", "a clock of 100 MHz: expected 210 to 1410 MHz"),
        ("H100 SXM5@500W@400W", "says the same thing twice"),
        ("H100 SXM5/1g.5gb", "it has 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"),
        ("H100 SXM5/", "expected the name of a slice after '/'"),
        ("MI300X/NPS4", "it has DPX, QPX, CPX"),
        ("RTX 4090/1g.10gb", "has no slices that are known"),
        ("a100@900W", "none of the 4 GPUs that 'a100' means can be run so"),
        ("@500W", "names no GPU"),
        ("nothing@500W", "no GPU of the catalogue is called 'nothing'"),
    ],
)
def test_what_no_gpu_can_be_run_at_is_refused_in_one_line(catalog: Catalog, typed: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        find_gpus(catalog, typed)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "profile"), PROFILES, ids=lambda item: item if isinstance(item, str) else item["name"]
)
def test_a_slice_has_a_part_of_everything(catalog: Catalog, name: str, profile: dict[str, float]) -> None:
    whole, part = find_gpu(catalog, name), find_gpu(catalog, f"{name}/{profile['name']}")
    share = part.sm_count / whole.sm_count
    assert part.sm_count == profile["sm_count"]
    assert 0 < share <= 1
    assert part.sm_count % 2 == 0
    for small, large in (
        (part.memory_bandwidth_bytes_per_s, whole.memory_bandwidth_bytes_per_s),
        (part.memory_bytes, whole.memory_bytes),
        (part.l2_cache_bytes, whole.l2_cache_bytes),
    ):
        assert 0 < small <= large
    assert part.memory_bandwidth_bytes_per_s / part.memory_bytes == pytest.approx(
        whole.memory_bandwidth_bytes_per_s / whole.memory_bytes
    )
    assert part.peak_flops_per_s[Rate.FP32] == pytest.approx(whole.peak_flops_per_s[Rate.FP32] * share)
    assert part.tdp_w == pytest.approx(whole.tdp_w * share)
    assert part.link_bandwidth_bytes_per_s == 0.0
    assert listed_name(part) == part.name, "a slice has no price of its own"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["gpus"][0])
def test_profiles_are_named_after_the_memory_that_they_have(catalog: Catalog, family: dict[str, list[str]]) -> None:
    for name in family["gpus"]:
        whole = find_gpu(catalog, name)
        for profile in family["profiles"]:
            part = find_slice(whole, profile["name"])  # type: ignore[index]
            assert part.l2_share <= part.memory_share
            stated = part.name.partition(".")[2].removesuffix("gb")
            if stated:
                found = part.reported_bytes or whole.memory_bytes * part.memory_share
                assert found / 2**30 == pytest.approx(float(stated), rel=0.12, abs=0.5), (name, part.name)


def test_a_locked_clock_scales_what_runs_at_it(catalog: Catalog) -> None:
    whole, locked = find_gpu(catalog, "h100 sxm5"), find_gpu(catalog, "h100 sxm5@990MHz")
    assert locked.boost_clock_hz == 990e6
    assert locked.peak_flops_per_s[Rate.FP32] == pytest.approx(whole.peak_flops_per_s[Rate.FP32] / 2)
    bf16 = whole.peak_flops_per_s[Rate.MATRIX_BF16] * 990 / 1830
    assert locked.peak_flops_per_s[Rate.MATRIX_BF16] == pytest.approx(bf16)
    assert locked.memory_bandwidth_bytes_per_s == whole.memory_bandwidth_bytes_per_s
    between = find_gpu(catalog, "h100 sxm5@1900MHz")
    assert between.peak_flops_per_s[Rate.MATRIX_BF16] == whole.peak_flops_per_s[Rate.MATRIX_BF16]
    assert clock_headroom(find_gpu(catalog, "4090@2000MHz")) == 1.0, "a lock is exact"


def test_a_capped_card_keeps_its_place_and_its_price(catalog: Catalog) -> None:
    capped, whole = find_gpu(catalog, "h100 sxm5@500W"), find_gpu(catalog, "h100 sxm5")
    assert listed_name(capped) == whole.name
    assert usual_node(capped) == usual_node(whole)
    assert capped.peak_flops_per_s == whole.peak_flops_per_s
    assert describe_machines(catalog, ["p4d.24xlarge@300W"]) == describe_machines(catalog, ["p4d.24xlarge"])


@pytest.mark.parametrize("name", ["H100 SXM5 80GB", "GeForce RTX 3090", "Instinct MI300X", "Tesla T4", "Gaudi 3"])
def test_the_deeper_the_cap_the_slower(catalog: Catalog, name: str) -> None:
    whole = find_gpu(catalog, name)
    caps = np.linspace(LEAST_CAP_RATIO, 1.0, 16)[::-1] * whole.tdp_w
    slow = capped_stretch(build_fleet([find_gpu(catalog, f"{name}@{cap}W") for cap in caps]))
    assert slow[0] == 1.0
    assert (np.diff(slow) >= 0).all()
    assert 1.5 < slow[-1] < 12


@pytest.mark.parametrize(("cap_w", "kept"), [(280, (0.87, 0.97)), (230, (0.77, 0.87))])
def test_networks_on_a_capped_rtx_3090_keep_what_others_measured(
    catalog: Catalog, cap_w: int, kept: tuple[float, float]
) -> None:
    stretch = float(capped_stretch(build_fleet([find_gpu(catalog, f"rtx 3090@{cap_w}W")]))[0])
    assert kept[0] <= 1 / stretch <= kept[1]


def user_gpu(folder: Path, lines: str, name: str = "Mine") -> Gpu:
    file = folder / "gpus.toml"
    file.write_text(f'[[gpu]]\nname = "{name}"\nbased_on = "A100 SXM4 80GB"\n{lines}\n')
    return next(gpu for gpu in load_catalog(file).gpus if gpu.name == name)


@pytest.mark.parametrize(
    ("lines", "typed"),
    [
        ("power = { cap_w = 250 }", "@250W"),
        ("clocks = { lock_mhz = 1000 }", "@1000MHz"),
        ('slice = "2g.20gb"', "/2g.20gb"),
        ('slice = "2g.20gb"\nclocks = { lock_mhz = 1000 }\npower = { cap_w = 250 }', "/2g.20gb@1000MHz@250W"),
    ],
)
def test_a_file_says_the_same_in_keys(catalog: Catalog, tmp_path: Path, lines: str, typed: str) -> None:
    mine, same = user_gpu(tmp_path, lines), find_gpu(catalog, f"A100 SXM4 80GB{typed}")
    fleet = build_fleet([mine, same])
    for name in ("bandwidth_bytes_per_s", "l2_cache_bytes", "sm_count", "clock_hz", "tdp_w", "power_ratio"):
        first, second = getattr(fleet, name)
        assert first == second, name
    assert all(first == second for first, second in fleet.flops_per_s.values())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("power = { cap_w = 900 }", "Mine: a power cap of 900 W: expected 100 to 400 W"),
        ("power = { cap_w = 0 }", "Mine: power.cap_w: expected a number from 1e-06"),
        ("clocks = { lock_mhz = 1 }", "Mine: a clock of 1 MHz: expected 210 to 1410 MHz"),
        ('slice = "1g.5gb"', "Mine has no slice '1g.5gb'; it has 1g.10gb"),
        ("slice = 3", "Mine: slice: expected text in quotes"),
    ],
)
def test_a_file_that_asks_for_too_much_is_refused(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        user_gpu(tmp_path, lines)
    assert said in str(caught.value)
    assert "gpus.toml" in str(caught.value)


def test_an_entry_is_based_on_a_whole_gpu(tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text('[[gpu]]\nname = "Mine"\nbased_on = "H100 SXM5@500W"\n')
    with pytest.raises(InputError, match="Mine: based_on: H100 SXM5@500W: name the GPU alone"):
        load_catalog(file)


def test_a_part_of_an_entry_of_ones_own_has_the_slices_of_what_that_is_based_on(tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text(
        '[[gpu]]\nname = "Slow"\nbased_on = "A100 SXM4 80GB"\nclocks = { lock_mhz = 705 }\n'
        '[[gpu]]\nname = "Piece"\nbased_on = "Slow"\nslice = "3g.40gb"\n'
    )
    piece = next(gpu for gpu in load_catalog(file).gpus if gpu.name == "Piece")
    assert (piece.sm_count, piece.boost_clock_hz) == (42, 705e6)
    assert piece.peak_flops_per_s[Rate.MATRIX_BF16] == pytest.approx(312e12 * 42 / 108 / 2)
