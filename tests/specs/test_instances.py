"""Cloud instances and servers mean one of their GPUs, and say so."""

from __future__ import annotations

import pytest
from wavecast.errors import UnknownGpuError
from wavecast.specs.gpu import Catalog
from wavecast.specs.instances import InstanceFamily, find_machines, load_families
from wavecast.specs.match import describe_machines, find_gpus
from wavecast.specs.nodes import Node, load_nodes

NOT_CATALOGUED = {"Tesla K80", "Tesla M60", "Radeon Pro V520"}


@pytest.mark.parametrize(
    ("typed", "gpu", "count"),
    [
        ("p3.2xlarge", "Tesla V100 SXM2 16GB", 1),
        ("p3dn.24xlarge", "Tesla V100 SXM2 32GB", 8),
        ("p4d.24xlarge", "A100 SXM4 40GB", 8),
        ("P4DE.24XLARGE", "A100 SXM4 80GB", 8),
        ("p5.48xlarge", "H100 SXM5 80GB", 8),
        ("p5.4xlarge", "H100 SXM5 80GB", 1),
        ("p5e.48xlarge", "H200 SXM 141GB", 8),
        ("p5en.48xlarge", "H200 SXM 141GB", 8),
        ("p6-b200.48xlarge", "B200 SXM (HGX, 180GB)", 8),
        ("p6e-gb200.36xlarge", "GB200 (per GPU)", 4),
        ("g4dn.xlarge", "Tesla T4", 1),
        ("g5.xlarge", "A10G", 1),
        ("ml.g5.12xlarge", "A10G", 4),
        ("g5g.16xlarge", "NVIDIA T4G", 2),
        ("g6.48xlarge", "L4", 8),
        ("g6e.12xlarge", "L40S", 4),
        ("a2-highgpu-1g", "A100 SXM4 40GB", 1),
        ("a2-ultragpu-8g", "A100 SXM4 80GB", 8),
        ("a3-highgpu-8g", "H100 SXM5 80GB", 8),
        ("a3-ultragpu-8g", "H200 SXM 141GB", 8),
        ("a4x-highgpu-4g", "GB200 (per GPU)", 4),
        ("g2-standard-24", "L4", 2),
        ("Standard_NC24ads_A100_v4", "A100 PCIe 80GB", 1),
        ("NC6s_v3", "Tesla V100 PCIe 16GB", 1),
        ("NC64as_T4_v3", "Tesla T4", 4),
        ("NC40ads_H100_v5", "H100 NVL 94GB", 1),
        ("ND96asr_v4", "A100 SXM4 40GB", 8),
        ("Standard_ND96amsr_A100_v4", "A100 SXM4 80GB", 8),
        ("ND96isr_H100_v5", "H100 SXM5 80GB", 8),
        ("ND96isr_MI300X_v5", "Instinct MI300X", 8),
        ("NV36ads_A10_v5", "A10", 1),
        ("gpu_8x_h100_sxm5", "H100 SXM5 80GB", 8),
        ("gpu_1x_a100", "A100 PCIe 40GB", 1),
        ("gpu_8x_a100", "A100 SXM4 40GB", 8),
        ("BM.GPU.H100.8", "H100 SXM5 80GB", 8),
        ("VM.GPU.A10.1", "A10", 1),
        ("HGX H100", "H100 SXM5 80GB", 8),
        ("GB200 NVL72", "GB200 (per GPU)", 4),
    ],
)
def test_an_instance_means_one_of_its_gpus(catalog: Catalog, typed: str, gpu: str, count: int) -> None:
    assert [item.name for item in find_gpus(catalog, typed)] == [gpu]
    (sentence,) = describe_machines(catalog, [typed])
    assert f"has {count if count > 1 else 'one'} {gpu}" in sentence
    assert ("one of them" in sentence) == (count > 1)


@pytest.mark.parametrize("node", [node for node in load_nodes() if node.kind == "cloud"], ids=lambda node: node.name)
def test_every_instance_of_the_node_table_is_known_with_its_entry(node: Node) -> None:
    (machine,) = find_machines(node.name)
    assert (machine.node, machine.gpu, machine.gpu_count) == (node, node.gpu, node.gpu_count)


@pytest.mark.parametrize("family", load_families(), ids=lambda family: family.name)
def test_a_family_names_its_gpu_its_sizes_and_a_source(catalog: Catalog, family: InstanceFamily) -> None:
    assert family.gpu in {gpu.name for gpu in catalog.gpus} | NOT_CATALOGUED
    assert family.name.count("{size}") == 1
    assert family.source.source
    assert family.gpu_counts
    assert all(0 < count < 1 or count in {1, 2, 4, 8, 10, 16, 36, 72} for count in family.gpu_counts.values())


def test_a_server_of_several_models_means_them_all(catalog: Catalog) -> None:
    assert [gpu.name for gpu in find_gpus(catalog, "DGX A100")] == ["A100 SXM4 40GB", "A100 SXM4 80GB"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("g5.3xlarge", "not a known size of AWS g5"),
        ("a2-highgpu-3g", "those are 1g, 2g, 4g, 8g"),
        ("g6f.xlarge", "1/8 of one L4"),
        ("NV12ads_A10_v5", "1/3 of one A10"),
        ("p2.xlarge", "Tesla K80, which the catalogue does not hold"),
        ("m5.large", "see `wavecast catalog`"),
        ("dgx", "see `wavecast catalog`"),
    ],
)
def test_an_instance_without_a_whole_known_gpu_is_refused(catalog: Catalog, typed: str, said: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpus(catalog, typed)
    assert said in str(caught.value)


def test_gpus_are_no_machines(catalog: Catalog) -> None:
    assert describe_machines(catalog, [gpu.name for gpu in catalog.gpus]) == ()
    assert describe_machines(catalog, ["h100", "titan", "nonsense"]) == ()
