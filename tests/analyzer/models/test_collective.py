"""Collectives: what their model holds to, whatever was fitted, how a fabric is calibrated, and how tables are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet
from wavecast.analyzer.measurements.collective import load_samples
from wavecast.analyzer.measurements.fabric import calibrate_fabric, with_ratios
from wavecast.analyzer.measurements.readers import check_directory, load_tables
from wavecast.analyzer.models.collective.model import MODEL, simulate
from wavecast.analyzer.models.collective.problems import problems_of_dims
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.work.communication import CollectiveDims, CollectiveKind, Implementation
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.match import find_gpu

FLEET = build_fleet(load_catalog().gpus)
H100 = build_fleet([find_gpu(load_catalog(), "H100 SXM5 80GB")])
KINDS = list(CollectiveKind)
SIZES = 2.0 ** np.arange(6, 35)


def times(dims: list[CollectiveDims], fleet: Fleet = FLEET) -> Floats:
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(fleet))
    return np.asarray(simulate(as_columns(problems_of_dims(dims)), fleet, values, None).time_ns)


def dims(
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE, size: float = 64e6, ranks: int = 8, **more: Any
) -> CollectiveDims:
    return CollectiveDims(kind=kind, message_bytes=size, ranks=ranks, **{"run": ranks} | more)


@pytest.mark.parametrize("implementation", list(Implementation))
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(ranks=st.sampled_from([2, 3, 4, 8, 16, 72, 512]), run=st.sampled_from([1, 4, 512]))
def test_a_larger_message_is_never_faster(
    kind: CollectiveKind, implementation: Implementation, ranks: int, run: int
) -> None:
    more = {"run": min(run, ranks), "stride": 8, "implementation": implementation}
    found = times([dims(kind, size, ranks, **more) for size in SIZES])
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (np.diff(found, axis=0) >= -1e-6 * found[1:]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["link", "nic"])
def test_a_better_link_is_never_slower(kind: CollectiveKind, side: str) -> None:
    rows = [dims(kind, size, ranks) for size in SIZES for ranks in (2, 8, 64)]
    before = times(rows)
    for latency, bandwidth in ((1.0, 1.3), (0.7, 1.0)):
        better = with_ratios(FLEET, latency, bandwidth, between=side == "nic")
        assert (times(rows, better) <= before * (1 + 1e-9)).all()


def test_no_message_travels_faster_than_the_links() -> None:
    size, ranks = 8e9, 8
    linked = FLEET.fabric.domain_gpu_count >= ranks
    found = times([dims(CollectiveKind.ALL_GATHER, size, ranks)])[0] * 1e-9
    assert (found >= size * (ranks - 1) / ranks / FLEET.fabric.link_bytes_per_s)[linked].all()


def test_machines_apart_take_longer_than_one() -> None:
    far = dims(CollectiveKind.ALL_GATHER, 1e8, run=1, stride=8)
    assert times([far], H100)[0, 0] > 2 * times([dims(CollectiveKind.ALL_GATHER, 1e8)], H100)[0, 0]


def test_amd_before_cdna3_adds_up_by_the_library() -> None:
    fleet = build_fleet([find_gpu(load_catalog(), gpu) for gpu in ("MI250X", "MI300X")])
    library, own = times([dims(size=1e5, implementation=which) for which in list(Implementation)[:2]], fleet)
    assert (own < library).tolist() == [False, True]


def test_one_rank_moves_nothing() -> None:
    one, two = times([dims(size=1e9, ranks=1), dims(size=1e9, ranks=2)], H100)
    assert one[0] < 10e3 < two[0]


@pytest.fixture(scope="module")
def library() -> Library:
    found = load_library()
    if MODEL.name not in found.fitted:
        pytest.skip("no weights of this model are stored")
    return found


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize(("latency", "bandwidth"), [(1.5, 0.6), (0.7, 1.2), (1.0, 1.0)])
def test_two_points_calibrate_a_fabric(library: Library, latency: float, bandwidth: float, *, between: bool) -> None:
    run = 1 if between else 8
    problems = problems_of_dims([dims(CollectiveKind.ALL_GATHER, size, run=run, stride=8) for size in (1e4, 4e9)])
    known = take_gpus(with_ratios(H100, latency, bandwidth, between=between), np.zeros(2, dtype=np.int64))
    measured = library.predict(MODEL.name, problems, known).time_ns
    found = calibrate_fabric(problems, measured, H100, library)
    assert found == pytest.approx((latency, bandwidth), rel=0.03)


def test_nothing_measured_calibrates_nothing(library: Library) -> None:
    assert calibrate_fabric(problems_of_dims([]), np.zeros(0), H100, library) == (1.0, 1.0)


ROW = {
    "gpu": "H100 SXM5 80GB",
    "collective": "all_reduce",
    "n_gpus": 8,
    "devices_per_node": 8,
    "bytes": 1 << 20,
    "dtype": "fp16",
    "impl": "nccl",
    "latency_us": 27.0,
    "timing": "nccl_tests_mean",
    "source": "mine",
    "suspect": False,
    "tokens": None,
    "hidden": None,
    "top_k": None,
    "experts": None,
    "sms": None,
}


def write(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "distributed" / "collectives.parquet"
    path.parent.mkdir(exist_ok=True)
    columns = {name: [({**ROW, **row})[name] for row in rows] for name in ROW}
    numbers = {name: pa.array(columns[name], type=pa.float64()) for name in ("tokens", "hidden", "top_k", "sms")}
    parquet.write_table(pa.table({**columns, **numbers, "experts": pa.array(columns["experts"], pa.float64())}), path)
    return folder


def test_tables_leave_out_what_tells_nothing(tmp_path: Path) -> None:
    exchange = {"collective": "moe_combine", "impl": "deepep normal", "tokens": 64.0, "hidden": 4096.0, "top_k": 8.0}
    folder = write(
        tmp_path,
        {},
        {"suspect": True},
        {"timing": "profiler_median", "bytes": 2048},
        {"n_gpus": 16},
        {"impl": "custom_vllm"},
        {"impl": "custom_trtllm"},
        {**exchange, "sms": 20.0},
        {**exchange, "sms": 4.0},
        {**exchange, "sms": 20.0, "gpu": "H200 SXM 141GB"},
    )
    (samples,) = load_samples(folder)
    p = samples.problems
    assert len(samples.measured_ns) == 5
    assert (p.run[1], p.stride[1]) == (8, 8)
    assert p.implementation[2:4].tolist() == [Implementation.FRAMEWORK, Implementation.TENSORRT_LLM]
    assert p.kind[4] == CollectiveKind.COMBINE
    assert p.message_bytes[4] == pytest.approx(64 * 4096 * 2 * 8 * (1 - (7 / 8) ** 8))


def test_rows_of_unknown_gpus_and_kinds_are_left_out_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path, {}, {"gpu": "Voodoo 2"}, {"collective": "hypercube"}, {"collective": "hypercube"})
    (samples,) = load_tables(folder)
    assert len(samples.measured_ns) == 1
    assert samples.notes == (
        "2 rows of distributed/collectives.parquet left out: collective 'hypercube' is not known",
        "1 rows of distributed/collectives.parquet left out: gpu 'Voodoo 2' is not known",
    )
    check_directory(folder)


def test_few_multiprocessors_keep_no_faster_link_busy() -> None:
    fleet = build_fleet([find_gpu(load_catalog(), name) for name in ("H100 SXM5 80GB", "B300 SXM (HGX)")])
    kernels = (Implementation.NCCL, Implementation.LOW_LATENCY)
    whole, few = times([dims(CollectiveKind.DISPATCH, 1e9, implementation=one) for one in kernels], fleet)
    assert whole[1] == pytest.approx(whole[0], rel=0.1)
    assert few[1] < 0.8 * few[0]


def test_starts_are_counted_in_cycles() -> None:
    slower = replace(H100, clock_hz=H100.clock_hz / 1.5)
    rows = [dims(size=size, implementation=one) for one in Implementation for size in (1e3, 4e9)]
    ratio = (times(rows, slower) / times(rows, H100))[:, 0]
    small, large = ratio[::2], ratio[1::2]
    assert small[Implementation.NCCL] == pytest.approx(1.5, rel=0.03)
    assert (small[[Implementation.FRAMEWORK, Implementation.TENSORRT_LLM]] < 1.4).all()
    assert (large < 1.05).all()


def test_a_nic_alone_serves_a_rank_alone() -> None:
    node = replace(H100.fabric, nic_count=np.full(1, 2.0), nic_bytes_per_s=np.full(1, 5e9))
    shared = replace(H100, fabric=node)
    one, four = (dims(CollectiveKind.ALL_GATHER, 4e9, 2 * run, run=run, stride=8) for run in (1, 4))
    found = times([one, four], shared)[:, 0] * 1e-9
    assert found[0] == pytest.approx(4e9 / 2 / 20e9, rel=0.1)
    assert found[1] == pytest.approx(4e9 * 7 / 8 / 40e9, rel=0.1)


def test_racks_on_links_share_no_nic() -> None:
    rack = build_fleet([find_gpu(load_catalog(), "GB200 (per GPU)")])
    far = dims(CollectiveKind.ALL_GATHER, 4e9, 144)
    moved = 4e9 / 2 / (72 * rack.fabric.nic_bytes_per_s[0])
    assert times([far], rack)[0, 0] * 1e-9 < 3 * max(moved, 4e9 / rack.fabric.link_bytes_per_s[0])


def test_hosts_pass_on_no_more_where_machines_are_many() -> None:
    box = build_fleet([find_gpu(load_catalog(), "L40S")])
    near, far = times([dims(size=1e9, ranks=8), dims(size=1e9, ranks=64)], box)[:, 0]
    assert far > near


def host_box(**known: float) -> Fleet:
    return changed(build_fleet([find_gpu(load_catalog(), "L40S")]), **known)


def changed(fleet: Fleet, **known: float) -> Fleet:
    columns = {name: np.full(len(fleet.gpus), value) for name, value in known.items()}
    return replace(fleet, fabric=replace(fleet.fabric, **columns))


def bus_gb_per_s(fleet: Fleet, ranks: int) -> float:
    """Return nccl-tests' bus bandwidth of a large all-reduce."""
    size = 1e9
    return float(size * 2 * (ranks - 1) / ranks / times([dims(size=size, ranks=ranks)], fleet)[0, 0])


def test_boards_on_pcie_share_their_host_but_not_a_switch() -> None:
    alone, behind_switch = host_box(), host_box(has_host_switch=True)
    assert 5.0 < bus_gb_per_s(alone, 8) < 12.0
    assert 15.0 < bus_gb_per_s(behind_switch, 8) < 22.0
    assert bus_gb_per_s(alone, 2) == pytest.approx(bus_gb_per_s(behind_switch, 2))


def test_messages_that_a_host_forwards_in_part_are_nearly_as_unsure_as_long_ones(library: Library) -> None:
    problems = problems_of_dims([dims(size=size) for size in (1e5, 1e9)])
    short, long = library.predict(MODEL.name, problems, take_gpus(host_box(), np.zeros(2, np.int64))).half_width
    assert 0.7 * long < short < long


def test_a_bridged_pair_sends_one_flow_to_the_host() -> None:
    bridged = host_box(domain_gpu_count=2.0, link_bytes_per_s=300e9)
    assert bus_gb_per_s(bridged, 4) == pytest.approx(bus_gb_per_s(host_box(), 2), rel=0.02)
    assert bus_gb_per_s(bridged, 2) > 5 * bus_gb_per_s(host_box(), 2)


def test_the_link_between_sockets_bounds_what_crosses_it() -> None:
    narrow = host_box(socket_bytes_per_s=4e9)
    assert bus_gb_per_s(narrow, 8) == pytest.approx(4.0, rel=0.05)
    assert bus_gb_per_s(narrow, 4) == bus_gb_per_s(host_box(), 4)


def test_what_a_host_forwards_is_left_open_until_it_is_measured() -> None:
    def unstated(fleet: Fleet, size: float, ranks: int) -> float:
        theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
        values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(fleet))
        problems = as_columns(problems_of_dims([dims(size=size, ranks=ranks)]))
        found = simulate(problems, fleet, values, None).unstated
        assert found is not None
        return float(found[0, 0])

    assert unstated(host_box(), 1e9, 8) > unstated(host_box(), 1e9, 2) > 0.5
    assert unstated(host_box(), 1e3, 8) < 0.2
    assert unstated(host_box(link_bandwidth_ratio=0.7), 1e9, 8) == 0.0
    assert unstated(H100, 1e9, 8) == 0.0
