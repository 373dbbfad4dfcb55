"""What is known of clocks under a power limit, beside the law that power caps are predicted with.

    python -m benchmarks.check.power_caps DATA

Reads DATA/ops/clock_power.parquet: an L40's clock and power against arithmetic intensity, whose vector units its 300 W
hold below 2,490 MHz. Prints the exponent of clock over power that each share of idling power makes of them, what others
measured of networks on a capped RTX 3090 beside the law, and an H100 SXM5 held to 350 W beside the H100 PCIe.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import numpy as np
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.models.frame.gpu_physics import CAP_EXPONENT, capped_stretch
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import find_gpu

FULL_MHZ: Final = 2490
MOST_GB_PER_S: Final = 845.0
HELD_W: Final = 299.0
IDLE_W: Final = (70, 84, 100, 120)
"""Of 300 W: what of it idles is not known apart from what memory draws."""
KEPT: Final = (
    ("ViT-B/16 training, TF32 (blog.qwertyforce.dev)", 280, 0.93),
    ("ViT-B/16 training, TF32 (blog.qwertyforce.dev)", 230, 0.82),
    ("ViT-B/16 training, fp32 (blog.qwertyforce.dev)", 280, 0.87),
    ("ResNet-50 training, at least (pugetsystems.com)", 280, 0.95),
)
"""Of an RTX 3090's speed at 350 W, interpolated where others stand in the source."""
SAMPLES: Final = ("vit_b16-training-bf16-b32", "resnet50-training-bf16-b32", "vit_b16-training-fp32-b32")


def exponents(data: Path, idle_w: float) -> Floats:
    """Return the exponent of each throttled point of the L40, given what idles."""
    import pyarrow.parquet as pq

    table = pq.read_table(data / "ops" / "clock_power.parquet").to_pydict()
    rows = np.array([table["gpu"]]) == "L40"
    clock, watts, moved, flops, intensity = (
        np.array(table[name], dtype=np.float64)[rows[0]] for name in ("MHz", "W", "GBs", "GFs", "flop_per_byte")
    )
    free = clock >= FULL_MHZ - 10
    per_gb = (watts[free].min() - idle_w) / MOST_GB_PER_S
    per_gf = float(np.median((watts - idle_w - per_gb * moved)[free & (intensity > 5)] / flops[free & (intensity > 5)]))
    held = (watts >= HELD_W) & (clock < 0.93 * FULL_MHZ)
    faster = FULL_MHZ / clock[held]
    bytes_there = np.minimum(moved[held] * faster, MOST_GB_PER_S)
    flops_there = np.minimum(flops[held] * faster, MOST_GB_PER_S * intensity[held])
    demand = (per_gb * bytes_there + per_gf * flops_there) / (watts[held] - idle_w)
    return np.asarray(np.log(faster) / np.log(demand))


def main() -> None:
    """Print what is measured beside what the law says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    for idle_w in IDLE_W:
        found = np.quantile(exponents(data, idle_w), (0.25, 0.5, 0.75))
        print(f"L40, {idle_w} W idle: exponent {found[1]:.2f} ({found[0]:.2f}-{found[2]:.2f}); taken: {CAP_EXPONENT}")
    catalog = load_catalog()
    for what, watts, kept in KEPT:
        law = 1 / float(capped_stretch(build_fleet([find_gpu(catalog, f"rtx 3090@{watts}W")]))[0])
        print(f"RTX 3090, {watts} W, {what}: keeps {kept:.2f}, law {law:.2f}")
    gpus = [find_gpu(catalog, name) for name in ("H100 SXM5@350W", "H100 PCIe", "H100 SXM5")]
    for sample in SAMPLES:
        trace = load_trace(Path("samples") / f"{sample}-shapes.json.gz")
        capped, pcie, whole = run_analysis(trace, catalog, targets=gpus).prediction.total_busy_ns() / 1e6
        print(f"{sample}: H100 SXM5 {whole:.2f} ms, at 350 W {capped:.2f}, H100 PCIe {pcie:.2f} ({capped / pcie:.2f})")


if __name__ == "__main__":
    main()
