"""Names as people type them: they mean the product that they say, or are refused beside the near ones."""

from __future__ import annotations

import pytest
from wavecast.errors import UnknownGpuError
from wavecast.specs.gpu import Catalog
from wavecast.specs.match import find_gpu, find_gpus
from wavecast.specs.names import near_gpus

A100S = ["A100 SXM4 40GB", "A100 SXM4 80GB", "A100 PCIe 40GB", "A100 PCIe 80GB"]
H100S = ["H100 SXM5 80GB", "H100 PCIe 80GB", "H100 NVL 94GB"]
ORINS = ["AGX Orin 64GB", "AGX Orin 32GB", "Orin NX 16GB", "Orin Nano 8GB (Super)"]
PRO_6000S = ["RTX PRO 6000 Blackwell Workstation", "RTX PRO 6000 Blackwell Max-Q", "RTX PRO 6000 Blackwell Server"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        # Glued, spaced and abbreviated.
        ("h100sxm", "H100 SXM5 80GB"),
        ("H100SXM", "H100 SXM5 80GB"),
        ("h100sxm5", "H100 SXM5 80GB"),
        ("H100-SXM5-80GB", "H100 SXM5 80GB"),
        ("H100 PCI-E", "H100 PCIe 80GB"),
        ("h100nvl", "H100 NVL 94GB"),
        ("h100 94", "H100 NVL 94GB"),
        ("a100 sxm4 80", "A100 SXM4 80GB"),
        ("A100 SXM4 80G", "A100 SXM4 80GB"),
        ("a100sxm480gb", "A100 SXM4 80GB"),
        ("80gb a100 pcie", "A100 PCIe 80GB"),
        ("A100 40 GB SXM", "A100 SXM4 40GB"),
        ("l 40 s", "L40S"),
        ("MI 300 X", "Instinct MI300X"),
        ("rtx3080ti", "GeForce RTX 3080 Ti"),
        ("4060ti 16gb", "GeForce RTX 4060 Ti 16GB"),
        ("RTX6000Ada", "RTX 6000 Ada Generation"),
        ("rtx titan", "TITAN RTX"),
        ("2080 max-q", "GeForce RTX 2080 Max-Q"),
        ("gtx 4090", "GeForce RTX 4090"),
        ("4090 24GB", "GeForce RTX 4090"),
        # One digit or letter apart.
        ("A10", "A10"),
        ("A10G", "A10G"),
        ("A2", "A2"),
        ("A40", "A40"),
        ("RTX A2000", "RTX A2000"),
        ("RTX A4000", "RTX A4000"),
        ("A6000", "RTX A6000"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("RTX 6000 Ada", "RTX 6000 Ada Generation"),
        ("L4", "L4"),
        ("L40", "L40"),
        ("L40S", "L40S"),
        ("T4", "Tesla T4"),
        ("T4G", "NVIDIA T4G"),
        ("P4", "Tesla P4"),
        ("P40", "Tesla P40"),
        ("P4000", "Quadro P4000"),
        ("V100S", "Tesla V100S PCIe 32GB"),
        ("MI250", "Instinct MI250 (1 GCD)"),
        ("MI250X", "Instinct MI250X (1 GCD)"),
        ("H20", "H20 96GB"),
        ("H200", "H200 SXM 141GB"),
        ("H200 NVL", "H200 NVL 141GB"),
        ("H800", "H800 SXM5 80GB"),
        ("GH200", "GH200 96GB (480GB LPDDR5X)"),
        ("GB200", "GB200 (per GPU)"),
        ("RTX 4060", "GeForce RTX 4060"),
        ("RTX 4070 Ti", "GeForce RTX 4070 Ti"),
        ("RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
        ("RTX 3080", "GeForce RTX 3080"),
        ("RTX 3080 12GB", "GeForce RTX 3080 12GB"),
        ("RTX 2080 8GB", "GeForce RTX 2080"),
        ("titan x", "TITAN X (Pascal)"),
        ("RTX 4070 SUPER", "GeForce RTX 4070 SUPER"),
        ("RTX 4090D", "GeForce RTX 4090 D"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090 Laptop"),
        ("4090 laptop", "GeForce RTX 4090 Laptop"),
        ("rtx5060", "GeForce RTX 5060"),
        ("RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("7900xtx", "Radeon RX 7900 XTX"),
        ("AMD Radeon RX 7900 XT", "Radeon RX 7900 XT"),
        ("r9700", "Radeon AI PRO R9700"),
        ("9070 xt", "Radeon RX 9070 XT"),
        ("W7900", "Radeon PRO W7900"),
        ("8060S", "Radeon 8060S (Ryzen AI Max, 128GB)"),
        ("Strix Halo", "Radeon 8060S (Ryzen AI Max, 128GB)"),
        ("gb10", "GB10 (DGX Spark)"),
        ("dgx spark", "GB10 (DGX Spark)"),
        ("thor", "Jetson AGX Thor 128GB"),
        ("NVIDIA Thor", "Jetson AGX Thor 128GB"),
        ("agx orin 64gb", "Jetson AGX Orin 64GB"),
        ("Orin NX", "Jetson Orin NX 16GB"),
        ("orin nano", "Jetson Orin Nano 8GB (Super)"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770 16GB"),
        ("a770", "Arc A770 16GB"),
        ("Intel B580", "Arc B580"),
        ("max 1550", "Data Center GPU Max 1550 (1 stack)"),
        ("Intel(R) Data Center GPU Max 1100", "Data Center GPU Max 1100"),
        ("flex 170", "Data Center GPU Flex 170"),
        ("gaudi3", "Gaudi 3"),
        ("Intel Gaudi 2", "Gaudi 2"),
    ],
)
def test_a_spelling_means_one_product(catalog: Catalog, typed: str, expected: str) -> None:
    assert find_gpu(catalog, typed).name == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("a100", A100S),
        ("Tesla A100", A100S),
        ("a100 80gb", ["A100 SXM4 80GB", "A100 PCIe 80GB"]),
        ("a10080gb", ["A100 SXM4 80GB", "A100 PCIe 80GB"]),
        ("h100", H100S),
        ("V100-SXM2", ["Tesla V100 SXM2 16GB", "Tesla V100 SXM2 32GB"]),
        ("RTX 6000", ["Quadro RTX 6000", "RTX 6000 Ada Generation"]),
        ("RTX 4060 Ti", ["GeForce RTX 4060 Ti 8GB", "GeForce RTX 4060 Ti 16GB"]),
        ("RTX PRO 6000", PRO_6000S),
        ("6000 pro", PRO_6000S),
        ("orin", [f"Jetson {name}" for name in ORINS]),
        ("W7800", ["Radeon PRO W7800", "Radeon PRO W7800 48GB"]),
        ("titan", ["TITAN X (Pascal)", "TITAN Xp", "TITAN V", "TITAN RTX"]),
    ],
)
def test_a_spelling_means_all_variants_of_a_product(catalog: Catalog, typed: str, expected: list[str]) -> None:
    assert [gpu.name for gpu in find_gpus(catalog, typed)] == expected


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("RTX 5070 SUPER", ["GeForce RTX 5070", "GeForce RTX 5070 Ti"]),
        ("RX 7900", ["Radeon RX 7900 XTX", "Radeon RX 7900 XT", "Radeon RX 7900 GRE"]),
        ("RX 7900 XTX Laptop", ["Radeon RX 7900 XTX"]),
        ("AMD 4090", ["GeForce RTX 4090"]),
        ("Intel 7900 XTX", ["Radeon RX 7900 XTX"]),
        ("gaudi", ["Gaudi 2", "Gaudi 3"]),
        ("GTX 1660", ["GeForce GTX 1660 Ti"]),
        ("RTX 2080 SUPER", ["GeForce RTX 2080 SUPER Max-Q"]),
        ("RTX 3060 8GB", ["GeForce RTX 3060"]),
        ("RTX 3080 20GB", ["GeForce RTX 3080 12GB", "GeForce RTX 3080"]),
        ("RTX 3080 Laptop GPU", ["GeForce RTX 3080"]),
        ("RTX 4090 mobile", ["GeForce RTX 4090"]),
        ("5080 super", ["GeForce RTX 5080"]),
        ("A6000 Ada", ["RTX A6000"]),
        ("RTX 4000 SFF Ada", ["RTX 4000 Ada Generation"]),
        ("A1000", ["RTX A2000"]),
        ("a10080", []),
        ("mi300", ["Instinct MI300X"]),
        ("mi300a", ["Instinct MI300X"]),
        ("mi355", ["Instinct MI355X"]),
        ("h100 96gb", H100S),
        ("h100 sxm4", H100S),
        ("GH200 144GB", ["GH200 96GB (480GB LPDDR5X)"]),
        ("A100 MIG 3g.20gb", A100S),
        ("8xA100", A100S),
        ("GTX TITAN X", ["TITAN Xp"]),
        ("AMD H100", H100S),
        ("NVIDIA MI300X", ["Instinct MI300X"]),
        ("rtx 4o90", ["GeForce RTX 4090"]),
        ("radeon", []),
        ("K80", []),
    ],
)
def test_another_product_is_refused_beside_the_near_ones(catalog: Catalog, typed: str, suggested: list[str]) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpus(catalog, typed)
    assert repr(typed) in str(caught.value)
    assert set(suggested) <= {gpu.name for gpu in near_gpus(catalog, typed)}
    assert all(name in str(caught.value) for name in suggested)


@pytest.mark.parametrize("typed", ["x", "X", "v", "d", "ti", "super", "pcie", "sxm", "80gb", "80", "ada", "rtx", "gpu"])
def test_what_names_no_product_is_refused(catalog: Catalog, typed: str) -> None:
    with pytest.raises(UnknownGpuError):
        find_gpus(catalog, typed)


@pytest.mark.parametrize("typed", ["", " ", "\t", "-", "?!", "()", "é", "\u200b"])
def test_what_holds_no_word_is_refused(catalog: Catalog, typed: str) -> None:
    with pytest.raises(UnknownGpuError, match="names no GPU"):
        find_gpus(catalog, typed)


@pytest.mark.parametrize("typed", ["a" * 2_000, "4090 " * 1_000, "ti" * 40, "80gb" * 14])
def test_a_long_name_is_refused_at_once(catalog: Catalog, typed: str) -> None:
    with pytest.raises(UnknownGpuError):
        find_gpus(catalog, typed)
