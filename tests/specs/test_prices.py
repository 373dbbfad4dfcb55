"""Prices are listed with cloud, day and source, and the book answers by who is nearest to the user."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from statistics import median

import pytest
from wavecast.errors import InputError, UnknownGpuError
from wavecast.specs.gpu import Catalog
from wavecast.specs.instances import find_machines
from wavecast.specs.nodes import Node, load_nodes
from wavecast.specs.prices import book as books
from wavecast.specs.prices.book import PriceBook, load_listings, plain_cloud, prices_of, shipped_prices
from wavecast.specs.prices.given import read_given
from wavecast.specs.prices.listing import Listing, PriceKind, PriceOrigin
from wavecast.specs.prices.machines import price_of_node

SOURCES = {
    "cliffcenter", "factualminds", "fsdl", "gemma-dev", "intel", "lantern", "pages", "privum", "receipts",
    "runpod-august", "runpod-january", "runpod-query", "screener", "silybench", "skypilot", "spheron", "tanod",
    "tokenwatt", "vantage",
}  # fmt: skip


def book(*listings: Listing, origin: PriceOrigin = PriceOrigin.CATALOGUE) -> PriceBook:
    return PriceBook().with_listings(origin, listings)


def listing(price: float, cloud: str | None = "A", day: str | None = "2026-01-01", **rest: object) -> Listing:
    fields = {"gpus": ("L4",), "usd_per_hour": price, "cloud": cloud, "listed_on": day, **rest}
    return Listing(**fields)  # type: ignore[arg-type]


def test_every_listing_names_catalogued_gpus_a_cloud_and_a_source(catalog: Catalog) -> None:
    names = {gpu.name for gpu in catalog.gpus}
    assert len(load_listings()) > 300
    for item in load_listings():
        assert item.gpus
        assert set(item.gpus) <= names
        assert 0.02 < item.usd_per_hour < 20
        assert item.source in SOURCES
        assert item.cloud
        assert (item.term is not None) == (item.kind is PriceKind.RESERVED)
        if item.listed_on is not None:
            assert date(2023, 1, 1) <= date.fromisoformat(item.listed_on) <= date(2026, 12, 31)


def test_a_price_of_a_known_instance_is_of_its_gpu() -> None:
    seen = 0
    for item in load_listings():
        for machine in find_machines(item.instance) if item.instance else ():
            assert machine.gpu in item.gpus, item.instance
            seen += 1
    assert seen > 60


def test_an_instances_price_is_shared_by_its_gpus() -> None:
    found = next(item for item in load_listings() if item.instance == "p5en.48xlarge")
    assert found.usd_per_hour == pytest.approx(63.296 / 8)


def test_most_gpus_have_a_price(catalog: Catalog) -> None:
    priced = {gpu.name for gpu in catalog.gpus if shipped_prices().price(gpu.name) is not None}
    assert len(priced) >= 60
    assert priced >= {"H100 SXM5 80GB", "GeForce RTX 4090", "Instinct MI300X", "GB200 (per GPU)", "Tesla T4", "L4"}


def test_the_price_is_the_median_over_clouds_of_each_ones_newest_cheapest() -> None:
    found = book(
        listing(9.0, "A", "2026-01-01"), listing(3.0, "A", "2026-02-01"), listing(2.0, "A", "2026-02-01"),
        listing(4.0, "B"), listing(1.0, "C"),
    ).price("L4")  # fmt: skip
    assert found is not None
    assert found.usd_per_hour == median([2.0, 4.0, 1.0])
    assert found.cloud_count == 3
    assert (found.oldest_date, found.middle_date, found.date) == ("2026-01-01", "2026-01-01", "2026-02-01")


def test_what_names_fewer_gpus_goes_before_what_names_more_of_the_same_day() -> None:
    found = book(listing(1.0, gpus=("L4", "L40")), listing(2.0)).price("L4")
    assert found is not None
    assert (found.usd_per_hour, found.is_shared) == (2.0, False)


def test_undated_listings_count_where_no_dated_one_is_there() -> None:
    undated = listing(1.0, "B", None)
    found, alone = book(listing(2.0), undated).price("L4"), book(undated).price("L4")
    assert found is not None
    assert alone is not None
    assert (found.usd_per_hour, found.cloud_count) == (2.0, 1)
    assert (alone.usd_per_hour, alone.date) == (1.0, None)


def test_a_listing_a_year_older_than_the_newest_does_not_count() -> None:
    found = book(listing(9.0, "A", "2024-12-31"), listing(2.0, "B", "2026-01-01")).price("L4")
    assert found is not None
    assert found.usd_per_hour == 2.0


def test_clouds_are_one_whatever_lists_call_them() -> None:
    assert plain_cloud("Google Cloud") == plain_cloud("gcp") == plain_cloud("GCP")
    found = book(listing(9.0, "DataCrunch", "2026-01-01"), listing(2.0, "Verda", "2026-01-02")).price("L4")
    assert found is not None
    assert (found.usd_per_hour, found.cloud_count) == (2.0, 1)


def test_who_is_nearer_to_the_user_goes_first() -> None:
    every = PriceBook()
    expected = []
    for price, origin in enumerate(reversed(PriceOrigin), 1):
        every = every.with_listings(origin, [listing(float(price), None)])
        found = every.price("L4")
        assert found is not None
        expected.append((found.usd_per_hour, found.origin, found.is_given))
    assert expected == [
        (1.0, PriceOrigin.CATALOGUE, False), (2.0, PriceOrigin.FILE, True), (3.0, PriceOrigin.GPU_FILE, True),
        (4.0, PriceOrigin.GIVEN, True),
    ]  # fmt: skip


def test_of_several_kinds_the_surest_counts_unless_one_is_asked_for() -> None:
    kinds = book(listing(1.0, kind=PriceKind.SPOT), listing(2.0, kind=PriceKind.RESERVED), listing(3.0))
    found = {kind: kinds.restricted(kind, None).price("L4") for kind in (None, *PriceKind)}
    assert {kind: price.usd_per_hour if price else None for kind, price in found.items()} == {
        None: 3.0, PriceKind.OWN: None, PriceKind.ON_DEMAND: 3.0, PriceKind.RESERVED: 2.0, PriceKind.SPOT: 1.0,
    }  # fmt: skip


def test_a_cloud_can_be_asked_for_and_an_unknown_one_is_told() -> None:
    two = book(listing(1.0, "AWS"), listing(2.0, "GCP"))
    found = two.restricted(None, "google cloud").price("L4")
    assert found is not None
    assert (found.usd_per_hour, found.cloud) == (2.0, "GCP")
    with pytest.raises(InputError, match=r"cloud 'moon': no price is of it; expected one of AWS, GCP"):
        two.restricted(None, "moon")
    given = two.with_listings(PriceOrigin.GIVEN, [listing(5.0, None, source="given")]).restricted(None, "aws")
    price = given.price("L4")
    assert price is not None
    assert price.usd_per_hour == 5.0


def node(**rest: object) -> Node:
    known = next(item for item in load_nodes() if item.name == "AWS g6.48xlarge")
    return replace(known, **rest)  # type: ignore[arg-type]


def test_a_machine_costs_what_is_nearest_to_the_user() -> None:
    gpu, instance = listing(1.0), listing(2.0, "AWS", instance="g6.48xlarge")
    shipped = book(gpu, instance)
    file = shipped.with_listings(PriceOrigin.FILE, [listing(3.0, None)])
    given = file.with_listings(PriceOrigin.GIVEN, [listing(4.0, None)])
    whole = file.with_listings(PriceOrigin.FILE, [listing(5.0, "AWS", instance="ml.g6.48xlarge")])
    own = node(usd_per_hour=80.0)
    asked = [(shipped, node()), (shipped, own), (file, node()), (file, own), (given, own), (whole, own)]
    asked.append((book(gpu), node()))
    found = [price_of_node(prices, machine) for prices, machine in asked]
    assert [item and (item.price.usd_per_hour, item.is_whole) for item in found] == [
        (2.0, True), (10.0, True), (3.0, False), (3.0, False), (4.0, False), (5.0, True), (1.0, False),
    ]  # fmt: skip
    assert price_of_node(PriceBook(), node()) is None


def test_machines_priced_as_a_whole_are_paid_whole() -> None:
    found = price_of_node(book(listing(2.0, "AWS", instance="g6.48xlarge")), node())
    assert found is not None
    assert [found.usd_per_hour(count) for count in (1, 8, 9)] == [16.0, 16.0, 32.0]
    alone = price_of_node(book(listing(2.0)), node())
    assert alone is not None
    assert alone.usd_per_hour(9) == 18.0


def test_no_listing_is_no_price() -> None:
    assert shipped_prices().price("TITAN V") is None
    assert shipped_prices().price("no such GPU") is None


def test_a_gpu_file_states_its_price(catalog: Catalog) -> None:
    mine = replace(catalog.gpus[0], name="Mine", price_usd_per_hour=0.5)
    found = prices_of(Catalog(gpus=(*catalog.gpus, mine))).price("Mine")
    assert found is not None
    assert (found.usd_per_hour, found.kind, found.source) == (0.5, PriceKind.OWN, "GPU file")


@pytest.mark.parametrize(
    ("text", "gpu", "price", "kind"),
    [
        ("H100=1.99", "H100 PCIe 80GB", 1.99, "on-demand"),
        ("H100=1.99", "H100 SXM5 80GB", 1.99, "on-demand"),
        (" l40s = $0.79/h spot", "L40S", 0.79, "spot"),
        ("RTX 4090=0.31/hour own", "GeForce RTX 4090", 0.31, "own"),
        ("b200=4 on demand", "B200 SXM (HGX, 180GB)", 4.0, "on-demand"),
        ("p5.48xlarge=55.04", "H100 SXM5 80GB", 6.88, "on-demand"),
        ("T4=0", "Tesla T4", 0.0, "on-demand"),
    ],
)
def test_a_given_price_is_read(text: str, gpu: str, price: float, kind: str, catalog: Catalog) -> None:
    found = [item for item in read_given([text], catalog) if gpu in item.gpus]
    assert [item.kind.value for item in found] == [kind]
    assert found[0].usd_per_hour == pytest.approx(price)


@pytest.mark.parametrize(
    "text",
    ["", "H100", "=2", "H100=", "H100=two", "H100=nan", "H100=inf", "H100=-1", "H100=1e9", "H100=1,99", "H100=1 rent"],
)
def test_what_is_no_price_is_refused(text: str, catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"^price '"):
        read_given([text], catalog)


def test_a_price_of_no_gpu_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UnknownGpuError, match="H1000"):
        read_given(["H1000=1"], catalog)
    with pytest.raises(InputError, match="H100 is given twice"):
        read_given(["H100=1", "H100=2"], catalog)


def test_the_narrower_name_wins_whatever_stands_first(catalog: Catalog) -> None:
    for texts in (["H100=2", "H100 PCIe=1.5"], ["H100 PCIe=1.5", "H100=2"]):
        prices = PriceBook().with_listings(PriceOrigin.GIVEN, read_given(texts, catalog))
        found = [prices.price(name) for name in ("H100 SXM5 80GB", "H100 PCIe 80GB")]
        assert [price.usd_per_hour if price else None for price in found] == [2.0, 1.5]


def test_old_prices_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "today", lambda: date(2026, 11, 23))
    assert books.median_age_days(["2026-11-13", "2026-10-24", None]) == 20
    assert books.warn_of_age(["2026-08-25"]) == ()
    assert books.warn_of_age(["2026-08-24"]) == (
        "prices are 91 days old on the median: give today's with price or prices",
    )
    assert books.warn_of_age([None]) == ()
    assert books.describe_dates(["2026-11-13", None]) == "2026-11-13, 10 days old on the median; undated"
    assert books.describe_dates(["2027-01-01"]) == "2027-01-01, 0 days old on the median"
