"""What of the time of kernels without a formula follows the memory, by our own measurements on an H100 and an H200.

    python -m benchmarks.check.memory_shares DATA

Kernels of `own/ops.parquet` of more than 5 us that both GPUs ran; `ratios` holds it as `UNREAD_SHARE`, `UPDATE_SHARE`
and `STREAM_SHARE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from wavecast.analyzer.measurements.own_ops import TABLE
from wavecast.analyzer.measurements.samples import read_table
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
    """Print a line per kind of kernel."""
    for name, count, share in memory_shares(data):
        click.echo(f"{name:32} {count:6,} kernels  {100 * share:4.0f} % of the time follows the memory")


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


if __name__ == "__main__":
    main()
