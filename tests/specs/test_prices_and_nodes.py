"""Prices and nodes refer to catalogued GPUs, carry their sources, and summarise as documented."""

from __future__ import annotations

from datetime import date
from statistics import median

import pytest
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Catalog
from wavecast.specs.nodes import Node, load_nodes
from wavecast.specs.prices import load_prices, price_usd_per_hour


def test_every_listing_names_catalogued_gpus_and_a_source(catalog: Catalog) -> None:
    names = {gpu.name for gpu in catalog.gpus}
    assert len(load_prices()) > 100
    for listing in load_prices():
        assert listing.gpus
        assert set(listing.gpus) <= names
        assert 0.05 < listing.usd_per_hour < 20
        assert listing.source in {"fsdl", "skypilot"}
        assert listing.cloud
        if listing.listed_on is not None:
            assert date(2023, 1, 1) <= date.fromisoformat(listing.listed_on) <= date(2026, 12, 31)


def test_price_is_the_median_over_clouds_of_dated_listings() -> None:
    price = price_usd_per_hour("Tesla T4")
    assert price is not None
    # AWS 1.2, Azure 0.9187, Dataoorts 0.34, GCP 0.8225
    assert price.usd_per_hour == pytest.approx((0.9187 + 0.8225) / 2)
    assert (price.cloud_count, price.oldest_date, price.date) == (4, "2023-08-16", "2024-02-27")
    assert not price.is_shared


def test_a_dated_listing_goes_before_the_same_clouds_undated_one() -> None:
    # Lambda lists the A10 twice: 0.6 in August 2023, and 1.29 without a date.
    price = price_usd_per_hour("A10")
    assert price is not None
    assert price.usd_per_hour == pytest.approx(median([0.35, 0.6, 2.0]))
    assert price.cloud_count == 3


def test_undated_listings_count_where_there_is_no_other() -> None:
    price = price_usd_per_hour("L40S")
    assert price is not None
    assert (price.date, price.oldest_date, price.cloud_count) == (None, None, 1)


def test_a_listing_that_does_not_tell_products_apart_counts_for_each_and_says_so() -> None:
    sxm, pcie = price_usd_per_hour("A100 SXM4 40GB"), price_usd_per_hour("A100 PCIe 40GB")
    assert sxm is not None
    assert sxm == pcie
    assert sxm.is_shared


def test_no_listing_is_no_price() -> None:
    assert price_usd_per_hour("GeForce RTX 4090") is None
    assert price_usd_per_hour("no such GPU") is None


def test_some_gpus_have_a_price(catalog: Catalog) -> None:
    priced = {gpu.name for gpu in catalog.gpus if price_usd_per_hour(gpu.name) is not None}
    assert priced >= {"H100 SXM5 80GB", "A100 SXM4 80GB", "B200 SXM (HGX, 180GB)", "Tesla T4", "L4"}


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
