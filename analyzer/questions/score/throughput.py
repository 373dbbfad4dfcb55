"""Whole networks predicted from shape-only traces, beside the throughput that others measured with timm.

Absolutely, with nothing measured, and moved: given what the other GPU of the table measured. The measurements are
inference under float16 autocast on a consumer's GPU, at batch sizes that hide the host.
"""

import lzma
import tarfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from ....errors import InputError, TraceError
from ....formats.trace.codec import decode
from ....formats.trace.tables import Trace
from ....records import dataclass, field
from ....specs.catalog import load_catalog
from ....specs.documents import read_table, read_toml
from ....specs.gpu import Gpu, Rate, peak_flops_per_s
from ....specs.match import find_gpu
from ...iteration.analyze import analyze_trace
from ...iteration.report import GpuPrediction
from ...measurements.samples import MeasurementTable, pick, read_table as read_columns
from ...models.library import Library
from ...whatif.scenario import Scenario
from ...work.kernel_names import torch_version
from .end_to_end import split_of
from .report import ThroughputRow
from .rows import ANCHORED, BANDWIDTH_RATIO, PEAK_RATIO, ROOFLINE, ROOFLINE_RATIO
from .weights import Weights

FOLDER: Final = Path(__file__).parents[3] / "samples"
"""Of a checkout; an installed package holds no samples."""
LIST: Final = "timm.toml"
ARCHIVE: Final = "timm.tar.xz"
EARLIER_ARCHIVE: Final = "timm-earlier.tar.xz"
"""Those networks once more whose ops torch before `HALF_ATTENTION_BEFORE` ran otherwise."""
HALF_ATTENTION_BEFORE: Final = (2, 5)
"""Version of torch from which on attention that no fused kernel takes computes in float32 what it is given in half
precision (`torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp` says whether it need not)."""
RecordingKey = tuple[str, str, int]
"""ListedNetwork, layout, batch size."""
MAX_TRACE_BYTES: Final = 1 << 26
"""The largest of the archive's traces has half a megabyte: what is larger is no trace of ours."""


class ListedNetwork(Struct, frozen=True, kw_only=True):
    """Name a network of the list."""

    name: str
    family: str
    """The source file of timm that defines it."""
    image_size: int
    params_m: float
    """Millions of parameters, as the table says of the measurements that it was drawn from, with two decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRecording:
    """Hold the ops of one network's inference."""

    network: ListedNetwork
    layout: str
    """`nchw`, or `nhwc` for channels-last tensors."""
    batch: int
    trace: Trace


def read_networks(folder: Path = FOLDER) -> dict[str, ListedNetwork]:
    """Return the networks of the list by name; none where there is no list."""
    path = folder / LIST
    if not path.exists():
        return {}
    networks = read_table(read_toml(path).get("model", []), list[ListedNetwork], f"{path}: model")
    return {item.name: item for item in networks}


def list_recordings(folder: Path = FOLDER, archive: str = ARCHIVE) -> tuple[RecordingKey, ...]:
    """Return which network, layout and batch size each trace of the archive is of."""
    with _open(folder / archive) as traces:
        return tuple(_key(entry) for entry in traces)


def earlier_networks(folder: Path = FOLDER) -> frozenset[str]:
    """Return the networks that earlier versions of torch ran otherwise; none where the folder has none of them."""
    if not (folder / EARLIER_ARCHIVE).exists():
        return frozenset()
    return frozenset(name for name, _, _ in list_recordings(folder, EARLIER_ARCHIVE))


def archive_for(network: str, version: tuple[int, ...], earlier: Container[str]) -> str:
    """Return the archive that holds a network as a version of torch ran it, given `earlier_networks`.

    >>> archive_for("nest_small", (2, 4), {"nest_small"}), archive_for("dla34", (2, 4), {"nest_small"})
    ('timm-earlier.tar.xz', 'timm.tar.xz')
    """
    return EARLIER_ARCHIVE if network in earlier and version < HALF_ATTENTION_BEFORE else ARCHIVE


def read_recordings(
    wanted: Container[RecordingKey], folder: Path = FOLDER, archive: str = ARCHIVE
) -> Iterator[NetworkRecording]:
    """Yield those traces of the list's networks that are wanted, in the archive's order.

    Raises InputError where the archive cannot be read.
    """
    networks = read_networks(folder)
    with _open(folder / archive) as traces:
        for entry in traces:
            name, layout, batch = key = _key(entry)
            file = traces.extractfile(entry) if name in networks and key in wanted else None
            if file is not None:
                trace = decode(file.read(MAX_TRACE_BYTES))
                yield NetworkRecording(network=networks[name], layout=layout, batch=batch, trace=trace)


@contextmanager
def _open(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r|xz") as archive:
            yield archive
    except (OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError, TraceError) as error:
        raise InputError(f"{path}: no readable archive of traces ({error})") from error


def _key(entry: tarfile.TarInfo) -> RecordingKey:
    name, layout, batch = entry.name.removesuffix(".json").rsplit("-", 2)
    return name, layout, int(batch)


THROUGHPUT: Final = "models/throughput.parquet"
COLUMNS: Final = (
    *("gpu", "model", "mode", "precision", "compile", "channels_last", "batch_per_gpu", "image_size", "n_gpus"),
    *("samples_per_s", "software", "source", "params_m"),
)
PARAMS_WITHIN_M: Final = 0.006
"""Half of the last decimal that the table has. Where the count differs, another network ran: upstream's rows of torch
2.9.1 have the branches of reparametrized models merged."""
OLDEST_TORCH: Final = (2, 1)
"""Before it timm's attention did not run as the fused kernels that are recorded."""
NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredThroughput:
    """Hold one measured throughput of a network."""

    gpu: Gpu
    software: str
    """Version of the framework, e.g. `torch 2.4.0`."""
    is_compiled: bool
    batch: int
    sample_ns: float


Measured = dict[tuple[str, str], list[MeasuredThroughput]]
"""By network and layout."""


@dataclass(slots=True)
class Forecaster:
    """Predict one network in one layout as asked, each question once."""

    network: ListedNetwork
    layout: str
    traces: Mapping[int, Trace]
    """By batch size."""
    gpus: tuple[Gpu, ...]
    weights: Weights
    _known: dict[tuple[str | None, int, bool], dict[str, GpuPrediction]] = field(default_factory=dict)

    def predict(self, item: MeasuredThroughput, judge: Gpu | None) -> GpuPrediction:
        """Predict the GPU at the batch size measured there, by the models that may judge `judge`; None: rooflines."""
        key = judge.name if judge is not None else None, item.batch, item.is_compiled
        if key not in self._known:
            library = self.weights.library_for(judge) if judge is not None else Library(fitted={})
            report = analyze_trace(
                self.traces[item.batch],
                load_catalog(),
                targets=self.gpus,
                op_limit=0,
                library=library,
                scenario=Scenario(fuse_elementwise=item.is_compiled),
            )
            self._known[key] = {row.gpu: row for row in report.predictions}
        return self._known[key][item.gpu.name]


def score_throughput(
    data: Path, weights: Weights, folder: Path = FOLDER
) -> tuple[tuple[ThroughputRow, ...], tuple[str, ...]]:
    """Predict every measured throughput whose network is recorded; return that, and what was left out and why."""
    if not (data / THROUGHPUT).exists():
        return (), ()
    networks = read_networks(folder)
    if not networks:
        return (), (f"{THROUGHPUT} left out: its networks' traces are in a checkout of wavecast, not in the package",)
    measured = _read_rows(read_columns(data / THROUGHPUT, COLUMNS), networks, earlier_networks(folder))
    rows = [
        row
        for archive, chosen in measured.items()
        for recordings in _by_network(chosen, folder, archive)
        for row in _score_network(recordings, chosen, weights)
    ]
    left_out = sum(len(items) for chosen in measured.values() for items in chosen.values()) - len(rows)
    note = f"{left_out:,} rows of {THROUGHPUT} left out: no recording at their batch sizes"
    return tuple(rows), (note,) if left_out else ()


def _by_network(chosen: Measured, folder: Path, archive: str) -> Iterator[list[NetworkRecording]]:
    """Yield an archive's recordings that were measured, those of a network in a layout together."""
    wanted = {(*key, item.batch) for key, items in chosen.items() for item in items}
    found = read_recordings(wanted, folder, archive)
    yield from (list(items) for _, items in groupby(found, lambda item: (item.network.name, item.layout)))


def _score_network(
    recordings: Sequence[NetworkRecording], chosen: Measured, weights: Weights
) -> Iterator[ThroughputRow]:
    """Predict all that was measured of a network in a layout."""
    traces = {item.batch: item.trace for item in recordings}
    network, layout = recordings[0].network, recordings[0].layout
    items = [item for item in chosen[network.name, layout] if item.batch in traces]
    gpus = tuple({item.gpu.name: item.gpu for item in items}.values())
    forecaster = Forecaster(network=network, layout=layout, traces=traces, gpus=gpus, weights=weights)
    for item in sorted(items, key=lambda item: (item.gpu.name, item.software, item.is_compiled)):
        same = (other for other in items if (other.software, other.is_compiled) == (item.software, item.is_compiled))
        yield _row(forecaster, item, next((other for other in same if other.gpu.name != item.gpu.name), None))


def _read_rows(
    table: MeasurementTable, networks: Mapping[str, ListedNetwork], earlier: frozenset[str]
) -> dict[str, Measured]:
    """Return the measurements of the networks, by the archive that holds what ran."""
    modern = {name: torch_version(name) >= OLDEST_TORCH for name in set(table["software"].tolist())}
    keys = zip(table["model"].tolist(), table["image_size"].tolist(), table["params_m"].tolist(), strict=True)
    same = [(table[name] == value) for name, value in (("source", "timm"), ("mode", "infer"), ("precision", "amp"))]
    is_recorded = np.array([_is_same(networks.get(name), size, params) for name, size, params in keys])
    is_modern = np.array([modern[name] for name in table["software"].tolist()])
    kept = pick(table, np.asarray(np.logical_and.reduce([*same, is_recorded, is_modern]), dtype=np.bool_))
    found: dict[str, Measured] = {ARCHIVE: {}}
    for row in range(len(kept["gpu"])):
        layout = "nhwc" if kept["channels_last"][row] else "nchw"
        archive = archive_for(kept["model"][row], torch_version(kept["software"][row]), earlier)
        found.setdefault(archive, {}).setdefault((kept["model"][row], layout), []).append(
            MeasuredThroughput(
                gpu=find_gpu(load_catalog(), kept["gpu"][row]),
                software=kept["software"][row].split(";", 1)[0],
                is_compiled=bool(kept["compile"][row]),
                batch=int(kept["batch_per_gpu"][row]),
                sample_ns=NS_PER_S / float(kept["samples_per_s"][row]),
            )
        )
    return found


def _is_same(network: ListedNetwork | None, image_size: float, params_m: float) -> bool:
    if network is None or network.image_size != image_size:
        return False
    return abs(params_m - network.params_m) < PARAMS_WITHIN_M


def _row(forecaster: Forecaster, item: MeasuredThroughput, source: MeasuredThroughput | None) -> ThroughputRow:
    found = forecaster.predict(item, item.gpu)
    network = forecaster.network
    moved = {} if source is None else _moved_ns(forecaster, item, source)
    return ThroughputRow(
        table=THROUGHPUT,
        gpu=item.gpu.name,
        model=network.name,
        family=network.family,
        layout=forecaster.layout,
        software=item.software,
        is_compiled=item.is_compiled,
        batch=item.batch,
        image_size=network.image_size,
        source=None if source is None else source.gpu.name,
        split=split_of(item.gpu, forecaster.weights, found.methods),
        measured_ns=item.sample_ns * item.batch,
        predicted_ns=found.iteration_ns,
        low_ns=found.iteration_low_ns,
        high_ns=found.iteration_high_ns,
        baselines_ns={ROOFLINE: forecaster.predict(item, None).iteration_ns, **moved},
    )


def _moved_ns(forecaster: Forecaster, item: MeasuredThroughput, source: MeasuredThroughput) -> dict[str, float]:
    """Return the source's time per sample, carried over by wavecast's ratio and by plain ones."""
    given_ns = source.sample_ns * item.batch
    ratio = partial(_predicted_ratio, forecaster, item, source)
    peaks = [peak_flops_per_s(gpu, Rate.MATRIX_FP16) for gpu in (source.gpu, item.gpu)]
    widths = source.gpu.memory_bandwidth_bytes_per_s, item.gpu.memory_bandwidth_bytes_per_s
    return {
        ANCHORED: given_ns * ratio(item.gpu),
        BANDWIDTH_RATIO: given_ns * widths[0] / widths[1],
        **({PEAK_RATIO: given_ns * peaks[0] / peaks[1]} if peaks[0] and peaks[1] else {}),
        ROOFLINE_RATIO: given_ns * ratio(None),
    }


def _predicted_ratio(
    forecaster: Forecaster, item: MeasuredThroughput, source: MeasuredThroughput, judge: Gpu | None
) -> float:
    """Return predicted time per sample over the source's, both by models that may judge `judge`."""
    here, there = (forecaster.predict(each, judge).iteration_ns / each.batch for each in (item, source))
    return here / there
