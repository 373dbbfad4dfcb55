"""Prints how often the tile rule of fp32 products names the tile that cuBLAS launched, by GPU.

Usage: python -m benchmarks.check.tile_choice DATA

DATA is a directory with ops/matmul.parquet, whose fp32 rows carry kernel names. The rule's constants were fitted to
these very names, so this is a fit, not a forecast.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from wavecast.analyzer.measurements.matmul_simt import load_samples
from wavecast.analyzer.measurements.samples import pick, read_table
from wavecast.analyzer.models.frame.problems import take_problems
from wavecast.analyzer.models.matmul_simt.tiles import HEIGHT, SLICES, WIDTH, choose_tile
from wavecast.specs.fleet import build_fleet, take_gpus

TILE = re.compile(r"sgemm_(\d+)x(\d+)(_sliced1x4)?")


def tile_of(kernel: str) -> int:
    """Return the row of the tile table that a kernel's name says; -1 where it names none."""
    found = TILE.search(kernel)
    sizes = (int(found[1]), int(found[2]), 4 if found[3] else 1) if found else (0, 0, 0)
    tiles = list(zip(WIDTH.tolist(), HEIGHT.tolist(), SLICES.tolist(), strict=True))
    return tiles.index(sizes) if sizes in tiles else -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    (samples,) = load_samples(data)
    table = read_table(data / "ops/matmul.parquet", ["dtype", "suspect", "kernel"])
    rows = pick(table, (table["dtype"].astype(str) == "fp32") & ~table["suspect"].astype(bool))
    names, index = np.unique(rows["kernel"].astype(str), return_inverse=True)
    launched = np.array([tile_of(name) for name in names])[index]
    shares = []
    for column, gpu in enumerate(samples.gpus):
        mine = np.flatnonzero((samples.gpu == column) & (launched >= 0))
        if not len(mine):
            continue
        p = take_problems(samples.problems, mine)
        fleet = take_gpus(build_fleet(samples.gpus), samples.gpu[mine])
        chosen = choose_tile(p.batch, p.m, p.n, p.k, p.contiguous, fleet)
        shares.append(float(np.mean(chosen == launched[mine])))
        print(f"{gpu.name:24}{len(mine):>8}{shares[-1]:>8.1%}")
    print(f"{'mean':32}{np.mean(shares):>8.1%}")


if __name__ == "__main__":
    main()
