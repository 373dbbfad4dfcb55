"""How far our own measurements of single ops, and of real iterations, are predicted.

    python -m benchmarks.check.own_ops DATA

Rows of more than 5 us of `own/ops.parquet`, by group and by kind: by the shipped weights, on shapes that they did not
train on, and by weights that never saw an H100 or H200. Then the recordings of whole networks (`own/traces`), by both.
Errors are means of |ln(predicted / measured)|; `in` is the share inside the 90 % interval. Then of products and
convolutions left out whose longest kernel names its tile: how often that is the predicted one, has its area up to a
factor of 2, and how often a split of k is predicted where there is one and not elsewhere. Last, what of the time of
kernels without a formula follows the memory between an H100 and an H200 (`ratios.UNREAD_SHARE`, `UPDATE_SHARE`,
`STREAM_SHARE`), and how products go that run back to back for half a second and more, where the board's limit lowers
the clock (`own/power.parquet`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from wavecast.analyzer.measurements.own_convolution import DIRECTIONS, load_own as load_own_convolutions
from wavecast.analyzer.measurements.own_ops import COLUMNS, RATES, TABLE, read_own
from wavecast.analyzer.measurements.own_products import LAYOUTS, OUT_BYTES, load_own_products
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.measurements.samples import MeasurementTable, Samples, read_table
from wavecast.analyzer.models.convolution.clustered import TILES
from wavecast.analyzer.models.frame.problems import as_columns, problems_from, rate_codes, take_problems
from wavecast.analyzer.models.matmul.menus import launch_of
from wavecast.analyzer.models.matmul.problems import FORMATS, MatmulProblems
from wavecast.analyzer.questions.score.own_networks import score_own
from wavecast.analyzer.questions.score.page.own import summary
from wavecast.analyzer.questions.score.rows import predict_samples
from wavecast.analyzer.questions.score.weights import Weights, Withheld, choose_weights, trained_share
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.match import find_gpu

LEAST_NS = 5e3
TILE = re.compile(r"(?:nvjet_\w+?_|tilesize|gemm_|wgrad_\w*?_|fprop_\w*?_|dgrad_\w*?_)(\d+)x(\d+)[x_]")
"""Rows and columns in the names of cuBLAS's, cuDNN's and CUTLASS's kernels."""
PAIR = "H100 SXM5 80GB", "H200 SXM 141GB"
LAUNCH_US = 1.36
POWER_COLUMNS = "gpu", "name", "m", "n", "k", "ms", "sm_mhz"
UNREAD = {
    "layout changes of convolutions": ("nchwToNhwc", "nhwcToNchw"),
    "conversions of convolutions": ("tensorTransformGeneric", "convertTensor_kernel", "scalePackedTensor_kernel"),
    "updates of lists of tensors": ("multi_tensor_apply",),
    "pointwise kernels of contiguous tensors": ("vectorized_elementwise_kernel",),
}
"""Parts of kernels' names, by what such kernels do."""
TOGETHER = {
    "dense convolutions, 16-bit and TF32": "(dilated )?convolution, own, (bf16|fp16|tf32)",
    "dense convolutions, fp32": "(dilated )?convolution, own, fp32", "depthwise convolutions": "depthwise",
    "other convolutions": "grouped|transposed|convolution, 3-D|convolution of", "batch norms": "batch",
    "layer and RMS norms": "layer", "elementwise, copies, pooling": "elementwise, cold|copies|pooling",
    "operands in L2": "elementwise, in", "softmax": "softmax", "reductions": "reductions", "index ops": "index ops",
    "attention, forward": "attention forward", "attention, backward": "attention backward", "recurrent": "recurrent",
    "products, 16-bit": "product.*(bf16|fp16)", "products, TF32": "product.*tf32", "products, fp32": "product.*fp32",
    "embedding": "embedding", "topk": "topk", "sort": "sort", "scans": "scans", "group norm": "group norm",
}  # fmt: skip
"""Expressions of the groups' names that stand together."""


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(data: Path) -> None:
    """Print both tables for both kinds of weights."""
    for title, weights in (
        ("shapes left out", choose_weights()),
        ("GH100 left out", choose_weights(left_out=Withheld.CHIPS)),
    ):
        click.echo(f"{title}: {weights.description}")
        groups = list(_groups(data, weights, all_shapes=weights.left_out is not None))
        for found in groups:
            _print(*found)
        for kind, names in TOGETHER.items():
            parts = zip(*(group[1:] for group in groups if re.match(names, group[0])), strict=True)
            _print(f"together: {kind}", *map(np.concatenate, parts))
        families, networks = score_own(data, weights)
        for line in summary(networks):
            click.echo(f"  {line}".replace("\\", ""))
        for row in families:
            click.echo(
                f"  {row.family:20} {row.networks:4} networks {row.ops:7,} ops  sum "
                f"{100 * (row.predicted_ns / row.measured_ns - 1):+6.1f} %  op {100 * row.error:6.1f} %  "
                f"bias {100 * row.bias:+6.1f}  in {100 * row.coverage_90:4.0f}"
            )
    for name, right in named_tiles(data, choose_weights()):
        tile, near, split = 100 * right.mean(axis=0)
        known = "" if np.isnan(split) else f"  split {split:4.0f} %"
        click.echo(f"  {name:52} {len(right):6,} rows  tile {tile:4.0f} %  its area {near:4.0f} %{known}")
    for name, count, share in memory_shares(data):
        click.echo(f"  {name:52} {count:6,} kernels  {100 * share:4.0f} % of the time follows the memory")
    for name, errors, held in sustained(data, choose_weights()):
        _print(f"sustained {name}", errors, held)


def _print(name: str, errors: np.ndarray, held: np.ndarray) -> None:
    error, bias, share = 100 * np.abs(errors).mean(), 100 * errors.mean(), 100 * held.mean()
    click.echo(f"  {name:52} {len(errors):6,} rows {error:6.1f} %  bias {bias:+6.1f}  in {share:4.0f}")


def sustained(data: Path, weights: Weights) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield per GPU and format the errors [n] of products back to back, and whether their intervals hold them [n]."""
    table = read_table(data / "own/power.parquet", POWER_COLUMNS, may_lack=POWER_COLUMNS[2:])
    kinds = np.array([str(name).removeprefix("mm_").replace("intensity", "bf16") for name in table["name"]])
    for gpu, kind in sorted(set(zip(table["gpu"].tolist(), kinds.tolist(), strict=True))):
        board = find_gpu(load_catalog(), gpu)
        has_slowed = table["sm_mhz"].astype(float) * 1e6 < board.boost_clock_hz
        rows = np.flatnonzero((table["gpu"] == gpu) & (kinds == kind) & has_slowed)
        if kind not in OUT_BYTES or not len(rows):
            continue
        unit = FORMATS[kind]
        sizes = {name: table[name][rows].astype(float) for name in ("m", "n", "k")}
        widths = {"left_bytes": unit.left_bytes, "right_bytes": unit.right_bytes, "out_bytes": OUT_BYTES[kind]}
        same = {"batch": 1.0, "copies": 1.0, "distinct": 1.0, "layout": LAYOUTS["nn"], "kind": unit.kind}
        rate = rate_codes([unit.rate])[0]
        problems = problems_from(MatmulProblems, len(rows), **sizes, **widths, **same, rate=rate)
        found = weights.library_for(board).predict("matmul", as_columns(problems), build_fleet([board]))
        measured = table["ms"][rows].astype(float) * 1e6
        held = (found.low_ns[:, 0] <= measured) & (measured <= found.high_ns[:, 0])
        yield f"{kind}, {gpu}", np.log(found.time_ns[:, 0] / measured), held.astype(float)


def named_tiles(data: Path, weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
    """Yield per family what of the rows [n, 3] is predicted as their kernels are named: tile, its area, split."""
    columns = (*COLUMNS, "kernel_us")
    products = read_own(data, "matmul", lambda row: row["op"] in LAYOUTS and row["dtype"] in OUT_BYTES, columns)
    layers = read_own(data, "conv", lambda row: row["dtype"] in RATES and row["direction"] in DIRECTIONS, columns)
    pairs: list[tuple[Samples[Any], MeasurementTable]] = [(found, products) for found in load_own_products(data)]
    pairs += [(found, layers) for found in load_own_convolutions(data)]
    for samples, table in pairs:
        found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for column, gpu in enumerate(samples.gpus):
            rows = np.flatnonzero((samples.gpu == column) & (samples.share >= trained_share(samples.model)))
            fleet, library = build_fleet([gpu] * len(rows)), weights.library_for(gpu)
            problems, fitted = take_problems(samples.problems, rows), library.fitted[samples.model]
            made = fitted.model.simulate(problems, fleet, library.values(samples.model, fleet), None)
            for row, tile, parts in zip(rows, *_tiles_of(samples.model, problems, made.choice, fleet), strict=True):
                kernels, times = table["kernels"][row], table["kernel_us"][row]
                named = TILE.search(kernels[int(np.argmax(times))])
                if named and "depthwise" not in samples.family[row]:
                    sides = sorted(float(side) for side in named.groups())
                    is_split = any("split" in kernel for kernel in kernels)
                    near = 0.5 <= np.prod(sides) / np.prod(tile) <= 2.0
                    split = np.nan if np.isnan(parts) else float((parts > 1.0) == is_split)
                    found[samples.family[row]].append((sides == sorted(tile), near, split))
        yield from ((name, np.array(right, dtype=float)) for name, right in sorted(found.items()))


def _tiles_of(model: str, p: Any, choice: Any, fleet: Fleet) -> tuple[np.ndarray, np.ndarray]:
    """Return the sides [n, 2] and the parts of k [n] of launches; of a convolution's parts the model says nothing."""
    if model == "convolution":
        return np.array(TILES)[choice], np.full(len(choice), np.nan)
    launch = launch_of(choice, p.batch, p.m, p.n, p.k, fleet.sm_count)
    return np.stack([launch.height, launch.width], axis=-1), launch.split


def memory_shares(data: Path) -> Iterator[tuple[str, int, float]]:
    """Yield for each kind of kernel how many both GPUs ran, and w of t' = t (1 - w + w bandwidth here / there)."""
    columns = ("family", "op", "dims", "dtype", "layout", "direction", "operands", "gpu", "kernels", "kernel_us")
    table = read_table(data / TABLE, columns, may_lack=("dtype", "layout"))
    rows = {row[:8]: row[8:] for row in zip(*(table[name].tolist() for name in columns), strict=True)}
    rates = [find_gpu(load_catalog(), name).memory_bandwidth_bytes_per_s for name in PAIR]
    for kind, parts in UNREAD.items():
        times = np.array(
            [
                both
                for key, (names, here) in rows.items()
                if key[-1] == PAIR[0] and (*key[:-1], PAIR[1]) in rows
                for other, there in (rows[*key[:-1], PAIR[1]],)
                if list(names) == list(other)
                for name, *both in zip(names, here, there, strict=True)
                if any(part in name for part in parts) and both[0] * 1e3 > LEAST_NS
            ]
        )
        here_us, there_us = (times - LAUNCH_US).sum(axis=0)
        yield kind, len(times), float((1.0 - there_us / here_us) / (1.0 - rates[0] / rates[1]))


def _groups(data: Path, weights: Weights, *, all_shapes: bool) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for samples in load_tables(data):
        if samples.table != TABLE:
            continue
        made = predict_samples(samples, weights)
        untrained = samples.share >= trained_share(samples.model)
        keep = (samples.measured_ns > LEAST_NS) & (all_shapes | untrained)
        errors = np.log(made.predicted_ns / samples.measured_ns)
        held = (made.low_ns <= samples.measured_ns) & (samples.measured_ns <= made.high_ns)
        names = np.array([f"{family}, {dtype}" for family, dtype in zip(samples.family, samples.dtype, strict=True)])
        for name in np.unique(names[keep]).tolist():
            mine = keep & (names == name)
            found[name].append((errors[mine], held[mine].astype(float)))
    for name, parts in sorted(found.items()):
        errors, held = (np.concatenate(column) for column in zip(*parts, strict=True))
        yield name, errors, held


if __name__ == "__main__":
    main()
