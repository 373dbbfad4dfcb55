"""What timm's networks on an RTX 3090 say of convolutions in both layouts.

    python -m benchmarks.check.convolution_layouts DATA

Prints, per layout and version of torch (eager, half precision by autocast), the errors of the networks' busy time, and
by how much the predicted time of convolutions would have to be multiplied so that families add up to the measured
iterations. Then what NCHW costs over NHWC in the same network: measured, in conversions of operands and results (two
passes over x and y at DRAM's rate), by kind of convolution. Rows of other GPUs are not looked at.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.measurements.samples import pick, read_table
from wavecast.analyzer.questions.score.recordings import read_networks, read_recordings
from wavecast.analyzer.questions.score.throughput import COLUMNS, THROUGHPUT
from wavecast.analyzer.questions.score.weights import Withheld, choose_weights
from wavecast.analyzer.work import Family
from wavecast.analyzer.work.work import ConvolutionDims
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import find_gpu

GPU: Final = "GeForce RTX 3090"
ASKED: Final = ("timm", "infer", "amp", GPU)
CONVOLUTIONAL: Final = 0.35
"""Share of the predicted time that convolutions take in networks that count as convolutional."""
LEAST_ERROR: Final = 0.02
ROUNDS: Final = 30
DRAM_SHARE: Final = 0.94
HALF_BYTES: Final = 2
OUTGROWN: Final = ("vgg16",)
"""Left out of differences: at its batch NCHW's conversions need more memory than the board has."""
LOAD_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Hold one measured network with what its prediction is made of."""

    key: tuple[str, str, int]
    """Name, layout, batch size."""
    software: str
    measured_ns: float
    predicted_ns: float
    family_ns: Mapping[str, float]
    conversion_ns: Mapping[str, float]
    """By kind of convolution, of those in NCHW."""


def robust_fit(columns: Floats, wanted: Floats) -> Floats:
    """Return factors of at least 0 of the columns that add up to `wanted`: least absolute deviations."""
    from scipy.optimize import nnls

    weight = np.ones(len(wanted))
    found = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        found, _ = nnls(columns * weight[:, None], wanted * weight)
        weight = 1.0 / np.sqrt(np.maximum(np.abs(columns @ found - wanted), LEAST_ERROR))
    return np.asarray(found)


def kind_of(dims: ConvolutionDims) -> str:
    """Return which kind of convolution a conversion is of."""
    if dims.groups > 1:
        return "grouped"
    if prod(dims.kernel_size) > 1 or prod(dims.stride) > 1:
        return "few channels in" if dims.c_in * HALF_BYTES <= LOAD_BYTES // 2 else "larger filters"
    row_bytes = HALF_BYTES * prod(dims.output_size)
    for load in (LOAD_BYTES, LOAD_BYTES // 2):
        if row_bytes % load == 0:
            return f"single pixels, loads of {load}"
    return "single pixels, others"


def predict_networks(data: Path) -> list[Network]:
    """Predict the RTX 3090's networks in both layouts with weights that never saw its chip."""
    table = read_table(data / THROUGHPUT, COLUMNS)
    names = ("source", "mode", "precision", "gpu")
    is_asked = np.logical_and.reduce([table[name] == item for name, item in zip(names, ASKED, strict=True)])
    table = pick(table, is_asked & ~np.array([bool(item) for item in table["compile"].tolist()]))
    networks = read_networks()
    measured: dict[tuple[str, str, int], list[tuple[str, float]]] = defaultdict(list)
    for row in range(len(table["gpu"])):
        software, batch = str(table["software"][row]).split(";", 1)[0], int(table["batch_per_gpu"][row])
        network = networks.get(str(table["model"][row]))
        if network is not None and network.image_size == table["image_size"][row]:
            key = (str(table["model"][row]), "nhwc" if table["channels_last"][row] else "nchw", batch)
            measured[key].append((software, 1e9 * batch / float(table["samples_per_s"][row])))
    catalog = load_catalog()
    gpu = find_gpu(catalog, GPU)
    library = choose_weights((), left_out=Withheld.CHIPS).library_for(gpu)
    rate = DRAM_SHARE * float(build_fleet([gpu]).bandwidth_bytes_per_s[0])
    found = []
    for item in read_recordings(measured):
        result = run_analysis(item.trace, catalog, targets=[gpu], library=library)
        family_ns, conversion_ns = defaultdict[str, float](float), defaultdict[str, float](float)
        times = (result.prediction.time_ns[:, 0] * result.workload.count).tolist()
        counts = result.workload.count.tolist()
        for family, work, time_ns, count in zip(
            result.workload.family, result.workload.works, times, counts, strict=True
        ):
            family_ns[str(family)] += time_ns
            dims = None if work is None else work.dims
            if family is Family.CONVOLUTION and isinstance(dims, ConvolutionDims) and not dims.is_channels_last:
                elements = dims.c_in * prod(dims.input_size) + dims.c_out * prod(dims.output_size)
                conversion_ns[kind_of(dims)] += count * 2 * HALF_BYTES * dims.batch * elements / rate * 1e9
        busy_ns = float(result.prediction.total_busy_ns()[0])
        key = (item.network.name, item.layout, item.batch)
        found += [
            Network(
                key=key,
                software=software,
                measured_ns=measured_ns,
                predicted_ns=busy_ns,
                family_ns=family_ns,
                conversion_ns=conversion_ns,
            )
            for software, measured_ns in measured[key]
        ]
    return found


def print_errors(networks: Sequence[Network]) -> None:
    """Print the errors of whole networks and the factor of convolutions, by layout and version."""
    groups: dict[tuple[str, str], list[Network]] = defaultdict(list)
    for item in networks:
        groups[item.key[1], item.software].append(item)
    for (layout, software), items in sorted(groups.items()):
        names = sorted({name for item in items for name in item.family_ns})
        measured = np.array([item.measured_ns for item in items])
        columns = np.array([[item.family_ns.get(name, 0.0) for name in names] for item in items])
        error = np.array([item.predicted_ns for item in items]) / measured - 1.0
        at = names.index(str(Family.CONVOLUTION))
        mine = columns[:, at] / columns.sum(axis=1) > CONVOLUTIONAL
        factor = robust_fit(columns / measured[:, None], np.ones(len(items)))[at]
        print(
            f"{layout} {software}: {len(items)} networks, bias {error.mean():+.1%}, MAPE {np.abs(error).mean():.1%}; "
            f"{mine.sum()} convolutional: bias {error[mine].mean():+.1%}, MAPE {np.abs(error[mine]).mean():.1%}; "
            f"factor of convolutions {factor:.2f}"
        )


def print_differences(networks: Sequence[Network]) -> None:
    """Print how many conversions the measured difference of the layouts holds, by kind of convolution."""
    last = {(item.key[0], item.software, item.key[2]): item for item in networks if item.key[1] == "nhwc"}
    pairs: dict[str, list[tuple[Network, Network]]] = defaultdict(list)
    for item in networks:
        other = last.get((item.key[0], item.software, item.key[2]))
        if item.key[1] == "nchw" and other is not None and item.key[0] not in OUTGROWN:
            pairs[item.software].append((item, other))
    for software, found in sorted(pairs.items()):
        names = sorted({name for item, _ in found for name in item.conversion_ns})
        base = np.array([other.measured_ns for _, other in found])
        columns = np.array([[item.conversion_ns.get(name, 0.0) for name in names] for item, _ in found])
        wanted = np.array([item.measured_ns for item, _ in found]) / base - 1.0
        factors = robust_fit(columns / base[:, None], wanted)
        text = "; ".join(f"{name} {factor:.2f}" for name, factor in zip(names, factors, strict=True))
        print(f"{software}, {len(found)} pairs, conversions in NCHW over NHWC: {text}")


def main() -> None:
    """Print what the networks say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    networks = predict_networks(parser.parse_args().data)
    print_errors(networks)
    print_differences(networks)


if __name__ == "__main__":
    main()
