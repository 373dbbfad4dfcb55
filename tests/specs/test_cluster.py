"""Machines are found by name, read from files, and turned into columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast.errors import InputError
from wavecast.specs.catalog import find_gpu
from wavecast.specs.cluster import Cluster, find_node, load_cluster
from wavecast.specs.fabric import LinkKind, NicKind, build_fabric, usual_node
from wavecast.specs.fleet import build_fleet, take_gpus
from wavecast.specs.gpu import Catalog

OURS = """
[[node]]
name = "our cluster"
based_on = "DGX/HGX H100"
nic = "2 x 200 Gbit/s InfiniBand for eight GPUs"
nic_gbit_per_s = 50
usd_per_hour = 17.6
link_latency_ratio = 1.25
"""


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("DGX/HGX H100", "DGX/HGX H100"),
        ("p4d.24xlarge", "AWS p4d.24xlarge"),
        ("dgx-2", "DGX-2"),
        ("H100 SXM5 80GB", "DGX/HGX H100"),
        ("GB200 NVL72 tray", "GB200 NVL72 tray"),
    ],
)
def test_a_node_is_found_by_its_name_an_instance_or_its_gpu(catalog: Catalog, name: str, node: str) -> None:
    assert find_node(name, catalog).name == node


@pytest.mark.parametrize(("name", "said"), [("DGX", "several nodes"), ("no such machine", "wavecast catalog nodes")])
def test_what_names_no_single_node_is_refused(catalog: Catalog, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_node(name, catalog)


def test_a_file_takes_over_what_it_leaves_out(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(OURS)
    h100, a100 = find_gpu(catalog, "H100 SXM5 80GB"), find_gpu(catalog, "A100 SXM4 80GB")
    cluster = load_cluster(path, catalog)
    node = cluster.node_of(h100)
    assert (node.gpu_count, node.domain_gpu_count, node.usd_per_hour) == (8, 8, 17.6)
    assert node.nic_bandwidth_bytes_per_s == 6.25e9
    assert node.link_bandwidth_bytes_per_s == 900e9
    assert cluster.node_of(a100) == usual_node(a100)
    fleet = build_fleet([h100, a100], cluster.nodes_of([h100, a100]))
    assert fleet.fabric.link_latency_ratio.tolist() == [1.25, 1.0]
    assert take_gpus(fleet, np.array([1])).fabric.nic_bytes_per_s.tolist() == [25e9]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one"),
        ("[[node]]\nname = 3", "expected text"),
        ('[[node]]\nname = "a"', "gpu is missing"),
        ('[[node]]\nname = "a"\ngpu = "H100 SXM5"\ngpu_count = 8', "link_gb_per_s is missing"),
        ('[[node]]\nname = "a"\ngpu = "H100 SXM5"\ngpu_count = 0', "gpu_count: expected a whole number from 1"),
        ('[[node]]\nname = "a"\nbased_on = "nothing like it"', "based_on"),
        ('[[node]]\nname = "a"\nbased_on = "DGX/HGX H100"\nnics = 3', "unknown key nics"),
        (OURS + OURS.replace("our cluster", "another"), "stands in our cluster already"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(
    catalog: Catalog, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        load_cluster(path, catalog)
    assert str(caught.value).startswith("cluster.toml: ")


def test_every_gpu_has_a_machine(catalog: Catalog) -> None:
    fabric = build_fabric(catalog.gpus)
    assert np.all(fabric.node_gpu_count >= 1)
    assert np.all(fabric.pair_bytes_per_s > 0)
    assert np.all(fabric.nic_bytes_per_s > 0)
    assert len(build_fabric([]).nic_kind) == 0


def test_links_are_told_apart(catalog: Catalog) -> None:
    names = ("H100 SXM5 80GB", "Instinct MI300X", "L40S", "GB200 (per GPU)")
    fabric = build_fabric([find_gpu(catalog, name) for name in names])
    assert fabric.link_kind.tolist() == [LinkKind.NVLINK, LinkKind.XGMI, LinkKind.PCIE, LinkKind.NVLINK]
    assert fabric.link_generation.tolist() == [4, 0, 0, 5]
    assert fabric.has_switch.tolist() == [True, False, False, True]
    assert fabric.nic_kind[0] == NicKind.INFINIBAND
    assert fabric.domain_gpu_count.tolist()[2:] == [1, 72]


def test_a_cluster_holds_one_machine_per_gpu(catalog: Catalog) -> None:
    h100 = find_gpu(catalog, "H100 SXM5 80GB")
    placed = Cluster().placed(find_node("AWS p5.48xlarge", catalog))
    assert placed.node_of(h100).name == "AWS p5.48xlarge"
