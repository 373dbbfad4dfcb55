"""What GPUs send each other takes in energy: by links, distance and size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.prediction.energy import (
    LANE_PICOJOULE_PER_BIT,
    NETWORK_PICOJOULE_PER_BIT,
    SWITCHED_HOPS,
    network_w,
    sending_joules,
)
from wavecast.analyzer.work.communication import CollectiveDims, CollectiveKind
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fabric import LinkKind, build_fabric
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
FABRIC = build_fabric([find_gpu(CATALOG, name) for name in ("H100 SXM5", "L40S", "MI300X")])
NVLINK = LANE_PICOJOULE_PER_BIT[LinkKind.NVLINK] * 1e-12


def dims(kind: CollectiveKind, size: float, ranks: int, stride: int = 1, run: int | None = None) -> CollectiveDims:
    return CollectiveDims(kind=kind, message_bytes=size, ranks=ranks, run=ranks if run is None else run, stride=stride)


def test_an_all_reduce_in_a_machine_takes_its_bits_through_a_switch() -> None:
    found = sending_joules([dims(CollectiveKind.ALL_REDUCE, 1e9, 8)], FABRIC)
    assert found[0, 0] == pytest.approx(2 * 7 / 8 * 8e9 * NVLINK * SWITCHED_HOPS)
    assert found[0, 2] < found[0, 0]  # linked to each other without a switch


def test_the_network_counts_where_a_group_leaves_its_machine() -> None:
    within, beyond = (dims(CollectiveKind.ALL_REDUCE, 1e9, ranks) for ranks in (8, 16))
    assert network_w([within], FABRIC).tolist() == [0.0, 0.0, 0.0]
    expected = FABRIC.nic_bytes_per_s * 8 * NETWORK_PICOJOULE_PER_BIT * 1e-12
    assert network_w([within, beyond], FABRIC).tolist() == pytest.approx(expected.tolist())
    first_of_each = dims(CollectiveKind.ALL_REDUCE, 1e9, 2, stride=8, run=1)
    assert network_w([first_of_each], FABRIC)[0] > 0
    assert network_w([], FABRIC).sum() == 0


def test_an_all_to_all_leaves_the_machine_more_than_a_ring_does() -> None:
    ring, everyone = (dims(kind, 1e9, 16) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL))
    through_links = 15 / 16 * 8e9 * NVLINK * SWITCHED_HOPS
    kept = [1 - float(sending_joules([item], FABRIC)[0, 0]) / through_links for item in (ring, everyone)]
    assert 0 < kept[0] < kept[1]  # a bit to the NIC passes one lane of PCIe, one to a neighbour two of NVLink


@settings(max_examples=30)
@given(
    kind=st.sampled_from(list(CollectiveKind)),
    size=st.floats(min_value=1.0, max_value=1e12),
    ranks=st.integers(min_value=2, max_value=4096),
    more=st.floats(min_value=1.0, max_value=100.0),
)
def test_energy_is_positive_and_goes_with_size(kind: CollectiveKind, size: float, ranks: int, more: float) -> None:
    one, other = (sending_joules([dims(kind, item, ranks)], FABRIC) for item in (size, size * more))
    assert (one > 0).all()
    assert other.tolist() == [pytest.approx((one * more).tolist()[0])]
