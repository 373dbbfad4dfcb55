"""What devices said about themselves in real traces agrees with the catalogue."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import pytest
from wavecast.analyzer.measurements.readers import MODEL_TABLES, TABLES
from wavecast.specs import catalog
from wavecast.specs.gpu import Catalog
from wavecast.specs.match import match_device

REPORTED = {
    "maxThreadsPerMultiprocessor": "max_threads_per_sm",
    "regsPerMultiprocessor": "registers_per_sm",
    "warpSize": "warp_size",
    "sharedMemPerMultiprocessor": "shared_memory_per_sm_bytes",
    "maxSharedMemoryPerMultiProcessor": "shared_memory_per_sm_bytes",
    "sharedMemPerBlockOptin": "max_shared_memory_per_block_bytes",
}


@pytest.mark.data
def test_every_device_record_agrees_with_its_entry(catalog: Catalog, data_dir: Path) -> None:
    seen = set()
    for path in sorted((data_dir / "traces").glob("*.json.gz")):
        for device in orjson.loads(gzip.decompress(path.read_bytes())).get("deviceProperties", []):
            gpu = match_device(
                catalog, device["name"], sm_count=device["numSms"], memory_bytes=device["totalGlobalMem"]
            )
            assert gpu is not None, device["name"]
            seen.add(gpu.name)
            assert device["numSms"] == gpu.sm_count
            assert device["totalGlobalMem"] == pytest.approx(gpu.memory_bytes, rel=0.1)
            if gpu.reported_memory_bytes is not None:
                assert device["totalGlobalMem"] == pytest.approx(gpu.reported_memory_bytes, rel=0.01)
            for key, field in REPORTED.items():
                assert device.get(key, getattr(gpu, field)) == getattr(gpu, field), (gpu.name, key)
            if gpu.vendor == "NVIDIA":
                assert f"{device['computeMajor']}.{device['computeMinor']}" == gpu.compute_capability
                assert device["regsPerBlock"] == gpu.registers_per_sm
            else:
                # Older ROCm builds of torch report half of the register file.
                assert device["regsPerBlock"] in (gpu.registers_per_sm // 2, gpu.registers_per_sm)
    assert seen == {
        "A100 SXM4 40GB", "A100 SXM4 80GB", "B200 SXM (HGX, 180GB)", "GeForce RTX 2080 Ti", "H100 SXM5 80GB",
        "Instinct MI300X", "Tesla V100 SXM2 32GB",
    }  # fmt: skip


@pytest.mark.data
def test_every_gpu_of_the_tables_that_are_read_is_in_the_catalogue(catalog: Catalog, data_dir: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    names = {gpu.name for gpu in catalog.gpus}
    tables = [path for name in (*TABLES, *MODEL_TABLES) if (path := data_dir / name).exists()]
    assert tables
    for path in tables:
        measured = set(parquet.read_table(path, columns=["gpu"]).column("gpu").unique().to_pylist())
        assert measured <= names, path.name


@pytest.mark.parametrize(
    ("name", "sm_count", "found"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42, "A100 SXM4 80GB, 3g.40gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, "H100 SXM5 80GB, 1g.10gb"),
        ("NVIDIA A100-SXM4-40GB MIG 2g.10gb", None, "A100 SXM4 40GB, 2g.10gb"),
        ("NVIDIA A100-SXM4-80GB MIG 9g.99gb", None, None),
        ("NVIDIA T9000 MIG 1g.10gb", None, None),
    ],
)
def test_a_slice_is_known_by_the_name_that_drivers_give_it(name: str, sm_count: int | None, found: str | None) -> None:
    gpu = match_device(catalog.load_catalog(), name, sm_count=sm_count, memory_bytes=None)
    assert (gpu and gpu.name) == found
