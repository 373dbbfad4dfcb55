"""How far our own measurements of single ops, and of real iterations, are predicted.

    python -m benchmarks.check.own_ops DATA

Rows of more than 5 us of `own/ops.parquet`: by the shipped weights, on shapes that they did not train on, and by
weights that never saw an H100 or H200. Then the recordings of whole networks (`own/traces`), by both. Errors are means
of |ln(predicted / measured)|; `in` is the share inside the 90 % interval. Last, what of the time of kernels without a
formula follows the memory between an H100 and an H200 (`ratios.UNREAD_SHARE`, `UPDATE_SHARE`, `STREAM_SHARE`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from wavecast.analyzer.measurements.own_ops import TABLE
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.measurements.samples import read_table
from wavecast.analyzer.questions.score.own_networks import score_own
from wavecast.analyzer.questions.score.page.own import summary
from wavecast.analyzer.questions.score.rows import predict_samples
from wavecast.analyzer.questions.score.weights import Weights, Withheld, choose_weights, trained_share
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

LEAST_NS = 5e3
PAIR = "H100 SXM5 80GB", "H200 SXM 141GB"
LAUNCH_US = 1.36
UNREAD = {
    "layout changes of convolutions": ("nchwToNhwc", "nhwcToNchw"),
    "conversions of convolutions": ("tensorTransformGeneric", "convertTensor_kernel", "scalePackedTensor_kernel"),
    "updates of lists of tensors": ("multi_tensor_apply",),
    "pointwise kernels of contiguous tensors": ("vectorized_elementwise_kernel",),
}
"""Parts of kernels' names, by what such kernels do."""


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(data: Path) -> None:
    """Print both tables for both kinds of weights."""
    for title, weights in (
        ("shapes left out", choose_weights()),
        ("GH100 left out", choose_weights(left_out=Withheld.CHIPS)),
    ):
        click.echo(f"{title}: {weights.description}")
        for name, errors, held in _groups(data, weights, all_shapes=weights.left_out is not None):
            click.echo(
                f"  {name:52} {len(errors):6,} rows {100 * np.abs(errors).mean():6.1f} %  "
                f"bias {100 * errors.mean():+6.1f}  in {100 * held.mean():4.0f}"
            )
        families, networks = score_own(data, weights)
        for line in summary(networks):
            click.echo(f"  {line}".replace("\\", ""))
        for row in families:
            click.echo(
                f"  {row.family:20} {row.networks:4} networks {row.ops:7,} ops  sum "
                f"{100 * (row.predicted_ns / row.measured_ns - 1):+6.1f} %  op {100 * row.error:6.1f} %  "
                f"bias {100 * row.bias:+6.1f}  in {100 * row.coverage_90:4.0f}"
            )
    for name, count, share in memory_shares(data):
        click.echo(f"  {name:52} {count:6,} kernels  {100 * share:4.0f} % of the time follows the memory")


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
