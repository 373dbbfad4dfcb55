"""Predicts one GPU of a pair of traces from the other and prints it beside what was measured there.

Usage: python benchmarks/trace_pairs.py DATA_DIR

The pairs are the same model with the same shapes, recorded on an H100 and on an MI300X (DATA_DIR/traces). Busy is the
union of the GPU's kernels. The hosts differ, so the iteration also holds another machine's CPU.
"""

from __future__ import annotations

import argparse
from itertools import permutations
from pathlib import Path

from wavecast.analyzer.analysis import analyze_trace
from wavecast.analyzer.report import Report
from wavecast.formats.files import load_trace
from wavecast.specs.catalog import load_catalog

PAIRS = (
    ("h100_bert_small_inference", "mi300x_bert_small_inference"),
    ("h100_vit_small_inference", "mi300x_vit_small_inference"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir", type=Path)
    catalog = load_catalog()
    traces = parser.parse_args().data_dir / "traces"
    print("| from | to | predicted busy, µs | measured, µs | error | predicted iteration, ms | measured, ms | error |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for pair in PAIRS:
        reports = {name: analyze_trace(load_trace(traces / f"{name}.json.gz"), catalog) for name in pair}
        for source, target in permutations(pair):
            print(row(source, reports[source], target, reports[target]))


def row(source_name: str, source: Report, target_name: str, target: Report) -> str:
    predicted = next(item for item in source.predictions if item.gpu == target.source.gpu)
    busy_ns, iteration_ns = target.source.gpu_busy_ns, target.source.iteration_ns
    assert busy_ns is not None
    assert iteration_ns is not None
    return (
        f"| {source_name} | {target_name} | {predicted.gpu_busy_ns / 1e3:.0f} | {busy_ns / 1e3:.0f} "
        f"| {predicted.gpu_busy_ns / busy_ns - 1:+.0%} "
        f"| {predicted.iteration_ns / 1e6:.2f} | {iteration_ns / 1e6:.2f} "
        f"| {predicted.iteration_ns / iteration_ns - 1:+.0%} |"
    )


if __name__ == "__main__":
    main()
