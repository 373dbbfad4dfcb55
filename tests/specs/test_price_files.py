"""Price lists that people keep are recognised by what they hold; what cannot be used is told in a line or counted."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from wavecast.errors import InputError, UnknownGpuError
from wavecast.specs.gpu import Catalog
from wavecast.specs.prices.book import PriceBook
from wavecast.specs.prices.files import read_price_file
from wavecast.specs.prices.listing import PriceKind, PriceOrigin
from wavecast.specs.prices.names import ListedNames

GPUHUNT = """instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags
p5.48xlarge,us-east-1,55.04,192,2048.0,8,H100,80.0,False,,nvidia,
p5.48xlarge,eu-west-1,71.552,192,2048.0,8,H100,80.0,False,,nvidia,
p5.48xlarge,us-east-1,22.0,192,2048.0,8,H100,80.0,True,,nvidia,
g6e.xlarge,us-east-1,1.861,4,32.0,1,L40S,44.0,False,,nvidia,
trn1.2xlarge,us-east-1,1.34375,8,32.0,1,Trainium,32.0,False,,aws,
m7i.large,us-east-1,0.1,2,8.0,0,,,False,,,
g4dn.xlarge,us-east-1,nan,4,16.0,1,T4,16.0,False,,nvidia,
g4dn.xlarge,us-east-1,-1,4,16.0,1,T4,16.0,False,,nvidia,
g4dn.xlarge,us-east-1,=1+1,4,16.0,1,T4,16.0,False,,nvidia,
g4dn.xlarge,us-east-1,1e308,4,16.0,0,T4,16.0,False,,nvidia,
"""
SKYPILOT = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region
g6e.xlarge,L40S,1.0,4,32.0,"{'Gpus': [{'Name': 'L40S', 'MemoryInfo': {'SizeInMiB': 45776}}]}",1.861,0.9,us-east-1
p4d.24xlarge,A100,8.0,96,1152.0,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 40960}}]}",21.96,,us-east-1
m5.large,,,2,8.0,,0.096,0.04,us-east-1
trn1.2xlarge,Trainium,1.0,8,32.0,,1.34375,,us-east-1
"""
GOOGLE = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,Zone,Price,SpotPrice
a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.73948,0.36975
a2-highgpu-8g,96.0,680.0,,,,us-central1,us-central1-a,5.91582,2.958
n1-standard-4,4.0,15.0,,,,us-central1,us-central1-a,0.19,0.04
,,,A100,8.0,"{'Gpus': [{'Name': 'A100', 'MemoryInfo': {'SizeInMiB': 40960}}]}",us-central1,us-central1-a,23.47,9.4
,,,T4,1.0,"{'Gpus': [{'Name': 'T4', 'MemoryInfo': {'SizeInMiB': 16384}}]}",us-central1,us-central1-a,0.35,0.14
"""


def read(path: Path, catalog: Catalog) -> PriceBook:
    listings, notes = read_price_file(path, catalog)
    return PriceBook().with_listings(PriceOrigin.FILE, listings, notes)


def price(book: PriceBook, gpu: str) -> Any:
    found = book.price(gpu)
    return None if found is None else (pytest.approx(found.usd_per_hour), found.kind.value, found.cloud)


def zip_of(path: Path, members: dict[str, str], day: tuple[int, int, int] = (2026, 11, 20)) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, (*day, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return path


def test_gpuhunts_catalogue_is_read_from_its_zip(tmp_path: Path, catalog: Catalog) -> None:
    book = read(zip_of(tmp_path / "catalog.zip", {"aws.csv": GPUHUNT, "version": "1"}), catalog)
    assert price(book, "H100 SXM5 80GB") == (6.88, "on-demand", "aws")
    assert book.price("H100 PCIe 80GB") is None  # the instance says that it is SXM
    assert price(book.restricted(PriceKind.SPOT, None), "H100 SXM5 80GB") == (2.75, "spot", "aws")
    found = book.price("L40S")
    assert found is not None
    assert (found.date, found.instance, found.source) == ("2026-11-20", "g6e.xlarge", "catalog.zip: aws")
    assert book.notes == (
        "catalog.zip: passed over 1 rows of what the catalogue does not hold (Trainium) and 4 rows without a usable "
        "price",
    )


def test_a_zip_that_kept_no_day_leaves_prices_undated(tmp_path: Path, catalog: Catalog) -> None:
    book = read(zip_of(tmp_path / "c.zip", {"aws.csv": GPUHUNT}, day=(1980, 1, 1)), catalog)
    found = book.price("L40S")
    assert found is not None
    assert found.date is None


def test_skypilots_catalogue_is_read_by_the_folder_of_its_cloud(tmp_path: Path, catalog: Catalog) -> None:
    for cloud, text in (("aws", SKYPILOT), ("gcp", GOOGLE)):
        (tmp_path / cloud).mkdir()
        (tmp_path / cloud / "vms.csv").write_text(text)
    one, folder = read(tmp_path / "aws" / "vms.csv", catalog), read(tmp_path, catalog)
    assert price(one, "L40S") == (1.861, "on-demand", "aws")
    assert price(one, "A100 SXM4 40GB") == (21.96 / 8, "on-demand", "aws")
    assert one.price("A100 PCIe 40GB") is None
    assert one.price("A100 SXM4 80GB") is None
    found = folder.price("A100 SXM4 40GB")
    assert found is not None
    assert found.cloud_count == 2


def test_what_google_asks_for_the_host_is_added_to_its_gpus(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "gcp.csv").write_text(GOOGLE)
    book = read(tmp_path / "gcp.csv", catalog)
    assert price(book, "A100 SXM4 40GB") == (23.47 / 8 + 0.73948, "on-demand", "gcp")
    assert price(book, "Tesla T4") == (0.35, "on-demand", "gcp")  # its host can be any


def test_a_snapshot_with_plainly_named_columns_is_read(tmp_path: Path, catalog: Catalog) -> None:
    rows = (
        "observation_day,gpu_model,provider,sku,price_type,currency,price_per_gpu_hour",
        "2026-11-18,A10 24GB,azure,Standard_NV36ads_A10_v5,spot,USD,0.5",
        "2026-11-18,MI300X 192GB,vultr,vbm-256c-2048gb-8-mi300x-gpu,on_demand,USD,1.85",
        "2026-11-18,Abacus,vultr,x,on_demand,USD,3.0",
    )
    (tmp_path / "day.csv").write_text("\n".join(rows))
    book = read(tmp_path / "day.csv", catalog)
    assert price(book, "A10") == (0.5, "spot", "azure")
    assert price(book, "Instinct MI300X") == (1.85, "on-demand", "vultr")
    assert book.notes == ("day.csv: passed over 1 rows of what the catalogue does not hold (Abacus)",)


def test_a_users_own_table_is_read_with_and_without_a_header(tmp_path: Path, catalog: Catalog) -> None:
    for text in ("gpu,usd_per_hour\nh100,2\nL40S,0.79\n", "h100,2\nL40S,0.79\n"):
        (tmp_path / "mine.csv").write_text(text)
        book = read(tmp_path / "mine.csv", catalog)
        assert price(book, "H100 NVL 94GB") == (2.0, "on-demand", None)
        assert price(book, "L40S") == (0.79, "on-demand", None)
    (tmp_path / "mine.csv").write_text("gpu,usd_per_hour,kind,date\nL40S,0.79,spot,2026-11-01\nL4,,,\n")
    found = read(tmp_path / "mine.csv", catalog).price("L40S")
    assert found is not None
    assert (found.kind.value, found.date) == ("spot", "2026-11-01")


def test_own_prices_in_toml(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "mine.toml").write_text(
        'listed_on = 2026-11-01\nusd_per_kwh = 0.3\n[usd_per_hour]\nh100 = 2\n"p4d.24xlarge" = 16.0\n'
        "[spot]\nL40S = 0.5\n"
        '[reserved]\nB200 = { usd_per_hour = 3.5, term = "1 year", cloud = "AWS" }\n'
        '[own]\n"RTX 4090" = { purchase_usd = 2191.5, years = 1, utilisation = 0.5, watts = 500, pue = 1.2 }\n'
        "L4 = { purchase_usd = 0, years = 1 }\n"
    )
    book = read(tmp_path / "mine.toml", catalog)
    assert price(book, "H100 PCIe 80GB") == (2.0, "on-demand", None)
    assert price(book, "A100 SXM4 40GB") == (2.0, "on-demand", None)
    assert price(book, "L40S") == (0.5, "spot", None)
    assert price(book, "B200 SXM (HGX, 180GB)") == (3.5, "reserved", "AWS")
    assert price(book, "GeForce RTX 4090") == (0.5 + 0.5 * 1.2 * 0.3, "own", None)
    assert price(book, "L4") == (0.072 * 0.3, "own", None)
    found = book.price("L40S")
    assert found is not None
    assert (found.date, found.source) == ("2026-11-01", "mine.toml")


@pytest.mark.parametrize(
    ("name", "memory", "gpus"),
    [
        ("A100-80GB-SXM", None, ["A100 SXM4 80GB"]),
        ("A100", 40, ["A100 SXM4 40GB", "A100 PCIe 40GB"]),
        ("H100-MEGA", 80, ["H100 SXM5 80GB", "H100 PCIe 80GB"]),
        ("H100", 94, ["H100 NVL 94GB"]),
        ("H100_PCIE_BAREMETAL", None, ["H100 PCIe 80GB"]),
        ("H100-80G-SXM5", None, ["H100 SXM5 80GB"]),
        ("RTX6000", None, ["Quadro RTX 6000"]),
        ("RTX6000-Ada", None, ["RTX 6000 Ada Generation"]),
        ("RTX_6000Ada", None, ["RTX 6000 Ada Generation"]),
        ("RTX4090", None, ["GeForce RTX 4090"]),
        ("RTX_4070S_Ti", None, ["GeForce RTX 4070 Ti SUPER"]),
        ("RTX_PRO_6000_S", None, ["RTX PRO 6000 Blackwell Server"]),
        ("Pro 6000 WE", 96, ["RTX PRO 6000 Blackwell Workstation"]),
        ("A4000", None, ["RTX A4000"]),
        ("A6000", None, ["RTX A6000"]),
        ("RTXA6000", None, ["RTX A6000"]),
        ("L40S_PCIE", None, ["L40S"]),
        ("MI300X", None, ["Instinct MI300X"]),
        ("Tesla_V100", 32, ["Tesla V100 PCIe 32GB", "Tesla V100 SXM2 32GB", "Tesla V100 SXM3 32GB"]),
        ("T4g", None, ["NVIDIA T4G"]),
        ("K80", None, []),
        ("Trainium", None, []),
        ("tpu-v5p-8", None, []),
        ("", None, []),
        ("x" * 5000, None, []),
    ],
)
def test_names_in_lists_mean_gpus(name: str, memory: float | None, gpus: list[str], catalog: Catalog) -> None:
    found = {gpu.name for gpu in ListedNames(catalog).find(name, memory)}
    assert set(gpus) <= found
    assert bool(gpus) == bool(found)
    if memory != 32:
        assert found == set(gpus)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.csv", b"", "it is empty"),
        ("a.csv", b"\x00\xff\xfe\x00", "expected a price list"),
        (
            "a.csv",
            b"colour,size\nred,3\n",
            "a.csv: line 1: expected usd_per_hour as 0 to 1,000 $ per hour, found 'size'",
        ),
        ("a.csv", b"colour,size,weight\nred,3,4\n", "its columns do not tell GPU and price"),
        ("a.csv", b"gpu,usd_per_hour\n", "no price of a known GPU in 0 rows"),
        ("a.csv", b"gpu,usd_per_hour\nH100,nan\n", "found 'nan'"),
        ("a.csv", b"gpu,usd_per_hour\nH100,-2\n", "line 2: expected usd_per_hour as 0 to 1,000 $ per hour, found '-2'"),
        ("a.csv", b"gpu,usd_per_hour\nH100,=2+2\n", "found '=2+2'"),
        ("a.csv", b"gpu,usd_per_hour,kind\nH100,2,stolen\n", "expected kind as own, on-demand, reserved, spot"),
        ("a.csv", b'gpu,usd_per_hour\nH100,"2\n', "expected a price list"),
        ("a.csv", b"gpu,usd_per_hour\n" + b"x" * 200_000 + b",1\n", "field larger"),
        ("a.zip", b"PK\x03\x04 and no more", "this zip cannot be read"),
        ("a.toml", b"price = 3\n", "unknown key price"),
        ("a.toml", b"[usd_per_hour]\n", "expected a table [usd_per_hour]"),
        ("a.toml", b"[usd_per_hour]\nH100 = true\n", "expected 0 to 1,000 $ per hour, found True"),
        ("a.toml", b"[usd_per_hour]\nH100 = nan\n", "found nan"),
        ("a.toml", b"usd_per_hour = 3\n", "expected a table, found 3"),
        ("a.toml", b"[own]\nH100 = { years = 1 }\n", "purchase_usd is missing"),
        (
            "a.toml",
            b"[own]\nH100 = { purchase_usd = 1, years = 0, usd_per_kwh = 1 }\n",
            "own, H100: years: expected a number from 0.01 to 30, found 0",
        ),
        ("a.toml", b"[spot]\nH100 = { cloud = 'x' }\n", "usd_per_hour is missing"),
        ("a.toml", b"listed_on = 3\n[spot]\nH100 = 3\n", "listed_on: expected a date"),
        ("a.toml", b"a = " + b"[" * 5000, "TOML"),
    ],
)
def test_hostile_files_are_refused_in_a_line(
    name: str, data: bytes, told: str, tmp_path: Path, catalog: Catalog
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_price_file(tmp_path / name, catalog)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_unknown_gpu_is_told(tmp_path: Path, catalog: Catalog) -> None:
    for name, text in (("a.csv", "gpu,usd_per_hour\nH1000,2\n"), ("a.toml", "[own]\nH1000 = 3\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UnknownGpuError, match="H1000"):
            read_price_file(tmp_path / name, catalog)


def test_a_zip_is_not_unpacked_beyond_its_limit(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.specs.prices.files.MOST_BYTES", 2**20)
    path = zip_of(tmp_path / "bomb.zip", {"aws.csv": GPUHUNT, "gcp.csv": " " * 2**24})
    with pytest.raises(InputError, match="more than 1 MiB when unpacked"):
        read_price_file(path, catalog)


def test_a_folder_without_a_list_or_a_missing_file_is_told(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(InputError, match="no price list in this folder"):
        read_price_file(tmp_path, catalog)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_price_file(tmp_path / "none.csv", catalog)


def test_many_unknown_names_cost_no_time_and_one_line(tmp_path: Path, catalog: Catalog) -> None:
    header, rows = GPUHUNT.splitlines()[0], GPUHUNT.splitlines()[1]
    junk = (f"x{n},moon,1.0,1,1,1,chip{n},8,False,,," for n in range(20_000))
    (tmp_path / "junk.csv").write_text("\n".join([header, rows, *junk]))
    book = read(tmp_path / "junk.csv", catalog)
    assert book.price("H100 SXM5 80GB") is not None
    assert book.notes[0].startswith("junk.csv: passed over 20,000 rows of what the catalogue does not hold (chip")
