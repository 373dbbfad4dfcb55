"""GPUs with varied figures: one of a catalogue's, and how far it is from the unvaried and from all that exist."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import hypot, log2
from pathlib import Path
from typing import Final

import numpy as np

from ....arrays import Floats
from ....errors import InputError, parameter
from ....records import dataclass, replace
from ....specs.catalog import imagine_gpus
from ....specs.cluster import Cluster
from ....specs.fleet import build_fleet
from ....specs.gpu import Catalog, Gpu
from ....specs.layout import MEGA
from ...models.frame.intervals import OCTAVES_PER_UNIT, separations
from .axes import AskedAxis
from .figures import DatasheetFigure, Groups, find_figure, merge_groups

ROUNDED: Final = 1.005
"""Datasheets round."""
_OF_EVERY_GPU: Final = ("memory.bandwidth", "matrix", "vector", "sms", "clock", "l2.size")
_OF_THE_CLOCK: Final = ("clock", "matrix", "vector")
_NO_TIME: Final = ("memory.size",)
"""Figures that no time depends on."""
BALANCE: Final = "matrix rate per memory bandwidth"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Imagined:
    """Hold the unvaried GPU, first, and its variants, [m] together."""

    gpus: tuple[Gpu, ...]
    column_of: Mapping[tuple[int, ...], int]
    """By the values' places on the axes that are figures, in order."""
    apart: Floats
    """Distance of each from the unvaried one; see `intervals`."""
    beyond: Floats
    """The part of it that lies past all GPUs of the catalogue."""
    ratios: tuple[Mapping[str, float], ...]
    """Varied figures of each over those of the unvaried one."""
    outside: tuple[tuple[str, ...], ...]
    """Figures past those of all GPUs of the vendor, for each."""


def imagine(base: Gpu, asked: Sequence[AskedAxis], catalog: Catalog, gpu_file: Path | None) -> Imagined:
    """Return the GPUs that have every combination of the values of the axes that are figures."""
    _check_variable(base, [item.figure for item in asked if item.figure is not None])
    axes = [(item.figure, item.axis.values) for item in asked if item.figure is not None]
    wanted = {
        place: tuple((figure, float(values[at])) for at, (figure, values) in zip(place, axes, strict=True))
        for place in product(*(range(len(values)) for _, values in axes))
    }
    changed = {place: varied_figures(base, figures) for place, figures in wanted.items()}
    named = {place: (variant_name(base, figures), figures) for place, figures in changed.items() if figures}
    gpus = [base, *vary_gpu(base, dict(named.values()), gpu_file)]
    columns = {place: at for at, place in enumerate(named, 1)}
    varied = [0.0, *(_distance(base, figures) for _, figures in named.values())]
    figures = [*(item for item, _ in axes), *(found for name in _OF_EVERY_GPU if (found := find_figure(name)))]
    spans = _catalogue_spans(base, figures, catalog)
    outside = [_outside(gpu, spans) for gpu in gpus]
    return Imagined(
        gpus=tuple(gpus),
        column_of={place: columns.get(place, 0) for place in wanted},
        apart=np.maximum(separations(build_fleet(gpus), build_fleet([base])), varied),
        beyond=np.array([hypot(*found.values()) if found else 0.0 for found in outside]),
        ratios=({}, *(_ratios(base, figures) for _, figures in named.values())),
        outside=tuple(tuple(found) for found in outside),
    )


Figures = tuple[tuple[DatasheetFigure, float], ...]


def varied_figures(base: Gpu, figures: Figures) -> Figures:
    """Return the figures that differ from the unvaried GPU's."""
    return tuple((figure, value) for figure, value in figures if not _is_same(figure.read(base), value))


def variant_name(base: Gpu, figures: Figures) -> str:
    """Return how a GPU with other figures is called: the unvaried one's name first, which tells its brand."""
    return ", ".join((base.name, *(f"{figure.name} {value:.9g}" for figure, value in figures)))


def vary_gpu(base: Gpu, variants: Mapping[str, Figures], gpu_file: Path | None) -> list[Gpu]:
    """Return GPUs with other figures, by name, each as an entry `based_on` the unvaried one would be."""
    run: Groups = {}
    if base.power_cap_w is not None:
        run["power"] = {"cap_w": base.power_cap_w}
    if base.clock_lock_hz is not None:
        run["clocks"] = {"lock_mhz": base.clock_lock_hz / MEGA}
    changes = {
        name: merge_groups([run, *(figure.change(base, value) for figure, value in figures)])
        for name, figures in variants.items()
    }
    built = imagine_gpus(base.base_name or base.name, changes, gpu_file)
    found = []
    for gpu, figures in zip(built, variants.values(), strict=True):
        for figure, value in figures:
            gpu = gpu if figure.adjust is None else figure.adjust(gpu, value)  # noqa: PLW2901 (step by step)
        found.append(gpu)
    return found


def is_variable(base: Gpu, figure: DatasheetFigure) -> bool:
    """Say whether a figure can be varied as the GPU is run: a slice's are another GPU's, a locked clock stays."""
    is_locked = base.clock_lock_hz is not None and figure.name.startswith(_OF_THE_CLOCK)
    return base.slice_name is None and not is_locked


def _check_variable(base: Gpu, figures: Sequence[DatasheetFigure]) -> None:
    """Raise InputError for a figure that cannot be varied as the GPU is run."""
    for figure in figures:
        if base.slice_name is not None:
            raise InputError(
                f"{parameter('vary')} {figure.name}: {base.name} is a slice: vary the GPU that it is cut out of"
            )
        if not is_variable(base, figure):
            raise InputError(
                f"{parameter('vary')} {figure.name}: the clock of {base.name} is locked: leave the lock out of "
                f"{parameter('on')}"
            )


def place_variants(cluster: Cluster, gpus: Sequence[Gpu]) -> Cluster:
    """Return the machines with variants in that of the first GPU, whose links they have, but for what differs."""
    base, *variants = gpus
    node = cluster.node_of(base)
    for gpu in variants:
        ratio = (
            gpu.link_bandwidth_bytes_per_s / base.link_bandwidth_bytes_per_s if base.link_bandwidth_bytes_per_s else 1
        )
        host = gpu.pcie_bandwidth_bytes_per_s / base.pcie_bandwidth_bytes_per_s
        own, pair = node.host_bandwidth_bytes_per_s, node.pair_bandwidth_bytes_per_s
        cluster = cluster.placed(
            replace(
                node,
                gpu=gpu.name,
                link_bandwidth_bytes_per_s=node.link_bandwidth_bytes_per_s * ratio,
                pair_bandwidth_bytes_per_s=None if pair is None else pair * ratio,
                host_bandwidth_bytes_per_s=None if own is None else own * host,
            )
        )
    return cluster


Spans = dict[str, tuple[DatasheetFigure | None, float, float]]


def _catalogue_spans(base: Gpu, figures: Sequence[DatasheetFigure], catalog: Catalog) -> Spans:
    """Return the least and the most of each figure among single GPUs of the vendor."""
    others = [gpu for gpu in catalog.gpus if gpu.vendor == base.vendor and not gpu.is_package]
    spans: Spans = {}
    for figure in figures:
        values = [value for gpu in others if (value := figure.read(gpu))]
        if values and figure.name not in _NO_TIME:
            spans[figure.name] = (figure, min(values), max(values))
    balances = [value for gpu in others if (value := _balance(gpu))]
    return {**spans, BALANCE: (None, min(balances), max(balances))} if balances else spans


def _outside(gpu: Gpu, spans: Spans) -> dict[str, float]:
    """Return the figures of a GPU that lie past their span, and how far, in factors of four."""
    found: dict[str, float] = {}
    for name, (figure, low, high) in spans.items():
        value = _balance(gpu) if figure is None else figure.read(gpu)
        if not value or low / ROUNDED <= value <= high * ROUNDED:
            continue
        found[name] = log2(max(value / high, low / value)) / OCTAVES_PER_UNIT
    return found


def _balance(gpu: Gpu) -> float | None:
    """Return how much arithmetic the matrix units do for each byte that the memory delivers."""
    rate = next(value for figure in [find_figure("matrix")] if figure is not None for value in [figure.read(gpu)])
    return rate / gpu.memory_bandwidth_bytes_per_s if rate else None


def _distance(base: Gpu, figures: Figures) -> float:
    """Return how far apart varied figures are, in factors of four; links are no part of a GPU's own distance."""
    return hypot(*(log2(ratio) / OCTAVES_PER_UNIT for ratio in _ratios(base, figures).values()))


def _ratios(base: Gpu, figures: Figures) -> dict[str, float]:
    """Return by how much the figures grew that times may depend on."""
    return {
        figure.name: value / own
        for figure, value in figures
        if (own := figure.read(base)) and figure.name not in _NO_TIME
    }


def _is_same(own: float | None, value: float) -> bool:
    return own is not None and abs(value - own) <= 1e-6 * own
