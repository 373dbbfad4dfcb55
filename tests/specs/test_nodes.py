"""Nodes refer to catalogued GPUs, carry their sources, and are what their links say."""

from __future__ import annotations

import pytest
from wavecast.specs.catalog import load_catalog
from wavecast.specs.nodes import Node, load_nodes


@pytest.mark.parametrize("node", load_nodes(), ids=lambda node: node.name)
def test_a_node_fits_its_gpu(node: Node) -> None:
    gpus = {gpu.name: gpu for gpu in load_catalog().gpus}
    assert node.gpu in gpus
    assert node.gpu_count >= 1
    assert node.domain_gpu_count >= 1
    assert node.source.source
    assert 1e8 <= node.nic_bandwidth_bytes_per_s <= 2e11
    assert node.kind in {"system", "cloud", "generic"}
    assert (node.link_bandwidth_bytes_per_s > 0) == (node.gpu_count > 1)
    if node.link is not None and node.link.startswith("NVLink"):
        assert node.link_bandwidth_bytes_per_s == pytest.approx(gpus[node.gpu].link_bandwidth_bytes_per_s)


def test_node_names_are_unique() -> None:
    names = [node.name for node in load_nodes()]
    assert len(set(names)) == len(names) >= 50
