"""Networks predicted from shape-only traces beside measured throughputs."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.questions.score.ledger import score_rows, throughput_entries
from wavecast.analyzer.questions.score.page.iterations import WORST_MODELS, worst_model_sheet
from wavecast.analyzer.questions.score.page.page import describe_score
from wavecast.analyzer.questions.score.page.records import draw_score_json
from wavecast.analyzer.questions.score.report import Score, Size, Split, ThroughputRow
from wavecast.analyzer.questions.score.rows import ANCHORED, BANDWIDTH_RATIO, PEAK_RATIO, ROOFLINE, ROOFLINE_RATIO
from wavecast.analyzer.questions.score.throughput import (
    ARCHIVE,
    EARLIER_ARCHIVE,
    FOLDER,
    LIST,
    THROUGHPUT,
    earlier_networks,
    list_recordings,
    read_networks,
    read_recordings,
    score_throughput,
)
from wavecast.analyzer.questions.score.weights import Weights, Withheld, choose_weights
from wavecast.analyzer.work import work_of
from wavecast.analyzer.work.kernel_names import torch_version
from wavecast.benchmarks.make.accuracy import describe_accuracy, read_score_json, timm_sheet
from wavecast.errors import InputError
from wavecast.formats.trace.tables import Trace

from .conftest import gpu

pyarrow = pytest.importorskip("pyarrow")
RTX_3090, RTX_4090 = "GeForce RTX 3090", "GeForce RTX 4090"


def pack(folder: Path, files: dict[str, bytes], names: tuple[str, ...]) -> Path:
    """Write an archive and the list of its networks, all of 224 x 224 images."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / ARCHIVE, "w:xz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    entries = (
        f'[[model]]\nname = "{name}"\nfamily = "{name[:3]}"\nimage_size = 224\nparams_m = 15.74\n' for name in names
    )
    (folder / LIST).write_text("\n".join(entries), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def dla(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one small network of the archive, in both layouts and every batch size."""
    with tarfile.open(FOLDER / ARCHIVE, "r:xz") as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive if entry.name.startswith("dla34-")}
        files = {name: file.read() for name, file in found.items() if file is not None}
    return pack(tmp_path_factory.mktemp("dla"), files, ("dla34",))


def write_table(data: Path, *rows: dict[str, Any]) -> Path:
    from pyarrow import parquet

    usual = {
        "gpu": RTX_4090,
        "model": "dla34",
        "mode": "infer",
        "precision": "amp",
        "compile": False,
        "channels_last": False,
        "batch_per_gpu": 1024,
        "image_size": 224,
        "params_m": 15.74,
        "n_gpus": 1,
        "samples_per_s": 2000.0,
        "software": "torch 2.4.0; cuda 12.4",
        "source": "timm",
    }
    path = data / THROUGHPUT
    path.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist([usual | row for row in rows]), path)
    return data


def row(**changes: Any) -> ThroughputRow:
    values: dict[str, Any] = {
        "table": THROUGHPUT,
        "gpu": RTX_4090,
        "model": "resnet50",
        "family": "resnet",
        "layout": "nchw",
        "software": "torch 2.4.0",
        "is_compiled": False,
        "batch": 1024,
        "image_size": 224,
        "source": RTX_3090,
        "split": Split.UNSEEN,
        "measured_ns": 2e8,
        "predicted_ns": 2.2e8,
        "low_ns": None,
        "high_ns": None,
        "baselines_ns": {ROOFLINE: 1.5e8, ANCHORED: 2.1e8},
    }
    return ThroughputRow(**(values | changes))


def test_a_directory_without_the_table_scores_nothing(tmp_path: Path, weights: Callable[..., Weights]) -> None:
    assert score_throughput(tmp_path, weights()) == ((), ())


def test_without_recordings_the_table_is_left_out_and_named(tmp_path: Path, weights: Callable[..., Weights]) -> None:
    data = write_table(tmp_path / "data", {})
    rows, notes = score_throughput(data, weights(), tmp_path)
    assert rows == ()
    assert THROUGHPUT in notes[0]


def test_ratios_start_from_the_other_gpus_measurement(
    tmp_path: Path, dla: Path, weights: Callable[..., Weights]
) -> None:
    data = write_table(tmp_path, {}, {"gpu": RTX_3090, "samples_per_s": 1000.0})
    (there, here), notes = score_throughput(data, weights(), dla)
    assert notes == ()
    assert (there.gpu, there.source, here.gpu, here.source) == (RTX_3090, RTX_4090, RTX_4090, RTX_3090)
    assert here.measured_ns == pytest.approx(1024 / 2000 * 1e9)
    source, target = gpu(RTX_3090), gpu(RTX_4090)
    widths = source.memory_bandwidth_bytes_per_s / target.memory_bandwidth_bytes_per_s
    assert here.baselines_ns[BANDWIDTH_RATIO] == pytest.approx(there.measured_ns * widths)
    moved = there.measured_ns * here.predicted_ns / there.predicted_ns
    assert here.baselines_ns[ANCHORED] == pytest.approx(moved)
    roofs = here.baselines_ns[ROOFLINE] / there.baselines_ns[ROOFLINE]
    assert here.baselines_ns[ROOFLINE_RATIO] == pytest.approx(there.measured_ns * roofs)
    assert here.baselines_ns[ROOFLINE] < here.predicted_ns * 1.01
    assert here.baselines_ns[PEAK_RATIO] < there.measured_ns


def test_a_gpus_twin_measurement_in_other_software_is_no_source(
    tmp_path: Path, dla: Path, weights: Callable[..., Weights]
) -> None:
    other = {"gpu": RTX_3090, "software": "torch 2.1.0; cuda 12.1"}
    (there, here), _ = score_throughput(write_table(tmp_path, {}, other), weights(), dla)
    assert (there.source, here.source) == (None, None)
    assert set(here.baselines_ns) == {ROOFLINE}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "dla102"},
        {"mode": "train"},
        {"image_size": 288},
        {"params_m": 15.7},
        {"software": "torch 1.13; cuda 11.7"},
        {"software": "tensorflow 2.4"},
        {"source": "ryujaehun"},
        {"precision": "fp32"},
    ],
)
def test_what_was_not_recorded_is_not_scored(
    tmp_path: Path, dla: Path, weights: Callable[..., Weights], changes: dict[str, Any]
) -> None:
    rows, _ = score_throughput(write_table(tmp_path, {}, changes), weights(), dla)
    assert len(rows) == 1


def test_batch_sizes_that_were_not_recorded_are_counted(
    tmp_path: Path, dla: Path, weights: Callable[..., Weights]
) -> None:
    rows, notes = score_throughput(write_table(tmp_path, {"batch_per_gpu": 7}), weights(), dla)
    assert rows == ()
    assert notes == (f"1 rows of {THROUGHPUT} left out: no recording at their batch sizes",)


def test_compiled_rows_are_a_family_of_their_own(tmp_path: Path, dla: Path, weights: Callable[..., Weights]) -> None:
    rows, _ = score_throughput(write_table(tmp_path, {}, {"compile": True}), weights(), dla)
    eager, compiled = rows
    assert (eager.is_compiled, compiled.is_compiled) == (False, True)
    assert compiled.predicted_ns < eager.predicted_ns
    families = {item.family for item in score_rows(throughput_entries(rows))}
    assert families == {"timm inference, NCHW, torch 2.4.0", "timm inference, NCHW, torch 2.4.0, compiled"}


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    pack(tmp_path, {}, ("dla34",))
    (tmp_path / ARCHIVE).write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"timm\.tar\.xz: no readable archive of traces"):
        list(read_recordings({("dla34", "nchw", 8)}, tmp_path))
    pack(tmp_path, {"dla34-nchw-8.json": b"{}"}, ("dla34",))
    with pytest.raises(InputError, match=r"timm\.tar\.xz: no readable archive of traces"):
        list(read_recordings({("dla34", "nchw", 8)}, tmp_path))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("torch 2.4.0; cuda 12.4", (2, 4, 0)),
        ("torch 1.13", (1, 13)),
        ("mxnet 1.9", ()),
        ("torch nightly", ()),
        (None, ()),
    ],
)
def test_versions_of_torch(text: str | None, version: tuple[int, ...]) -> None:
    assert torch_version(text) == version


def test_the_list_is_broad_and_the_archive_holds_all_of_it() -> None:
    networks = read_networks()
    assert len(networks) >= 60
    assert len({item.family for item in networks.values()}) >= 40
    names = list_recordings()
    assert {(name, layout) for name, layout, _ in names} == {
        (name, layout) for name in networks for layout in ("nchw", "nhwc")
    }
    assert len(set(names)) == len(names)
    assert sum((FOLDER / name).stat().st_size for name in (LIST, ARCHIVE)) < 4 << 20


def test_earlier_versions_are_predicted_from_their_own_recordings(
    tmp_path: Path, weights: Callable[..., Weights]
) -> None:
    earlier = earlier_networks()
    assert earlier == {"hiera_large_224", "hiera_small_abswin_256", "nest_small", "samvit_base_patch16"}
    params_m = read_networks()["nest_small"].params_m
    version = {"model": "nest_small", "params_m": params_m, "batch_per_gpu": 1024, "software": "torch 2.9.1; cuda 12.8"}
    table = write_table(tmp_path, version | {"software": "torch 2.4.0; cuda 12.4"}, version)
    rows, left_out = score_throughput(table, weights())
    assert not left_out
    times = {row.software: row.predicted_ns for row in rows}
    assert times["torch 2.4.0"] < times["torch 2.9.1"]


def test_only_attention_differs_in_earlier_recordings() -> None:
    key = "nest_small", "nchw", 1024
    traces = [next(read_recordings({key}, archive=archive)).trace for archive in (ARCHIVE, EARLIER_ARCHIVE)]
    dtypes = [
        {
            spec.dtype
            for name, signature in zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)
            for spec in trace.signatures[signature].tensors()
            if trace.strings[name] in ("aten::bmm", "aten::_safe_softmax")
        }
        for trace in traces
    ]
    assert dtypes == [{"float32"}, {"float16"}]
    convolutions = [Counter(trace.strings[name] for name in trace.ops.name.tolist()) for trace in traces]
    assert convolutions[0]["aten::convolution"] == convolutions[1]["aten::convolution"] > 0
    assert convolutions[0]["aten::_to_copy"] > convolutions[1]["aten::_to_copy"]


def test_recordings_are_in_the_types_of_autocast(dla: Path) -> None:
    recordings = list(read_recordings(list_recordings(dla), dla))
    assert {(item.layout, item.batch == item.trace.meta.workload.batch_size) for item in recordings} == {
        ("nchw", True),
        ("nhwc", True),
    }
    for item in recordings:
        dtypes = {
            (item.trace.strings[name], spec.dtype)
            for name, signature in zip(item.trace.ops.name.tolist(), item.trace.ops.signature.tolist(), strict=True)
            for spec in item.trace.signatures[signature].tensors()
        }
        assert {dtype for name, dtype in dtypes if name in ("aten::convolution", "aten::addmm")} == {"float16"}
        assert ("aten::_to_copy", "float32") in dtypes, "weights are converted in every iteration"


def test_sheets_name_the_worst_model_once() -> None:
    rows = [row(model=f"m{at}", predicted_ns=2e8 + at * 1e7) for at in range(12)]
    rows += [row(model="m11", layout="nhwc", predicted_ns=2e7), row(model="m0", is_compiled=True, predicted_ns=9e9)]
    sheet = worst_model_sheet(rows)
    assert sheet.row_count == WORST_MODELS
    assert sheet.columns[0].cells[0] == "m11"
    assert Counter(sheet.columns[0].cells)["m11"] == 1
    assert "m0" not in sheet.columns[0].cells
    assert timm_sheet(rows).row_count == 1


def test_a_score_with_throughputs_in_every_format() -> None:
    rows = (row(), row(gpu=RTX_3090, source=None, baselines_ns={ROOFLINE: 1e8}))
    score = Score(weights="none", rows=score_rows(throughput_entries(rows)), throughput=rows)
    import orjson

    assert read_score_json(orjson.loads(draw_score_json(score))).throughput == rows
    assert "2 throughputs" in draw_terminal(describe_score(score), Screen())
    page = draw_markdown(describe_accuracy(score))
    assert "## Image models from their shapes alone" in page
    assert "1 timm model of 1 family" in page


def multiply_adds(trace: Trace) -> float:
    """Return those of convolutions and matrix products, attention's left out, per sample."""
    total = 0.0
    for name, signature in zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True):
        if trace.strings[name] in ("aten::convolution", "aten::addmm", "aten::mm", "aten::bmm"):
            work = work_of(trace.strings[name], trace.signatures[signature])
            total += 0.0 if work is None else work.flops / 2
    return total / (trace.meta.workload.batch_size or 1)


@pytest.mark.data
def test_recorded_networks_are_the_measured_ones(data_dir: Path) -> None:
    """Upstream counted multiply-adds of the same operators; attention alone is missing here."""
    from pyarrow import parquet

    table = parquet.read_table(data_dir / THROUGHPUT, columns=["model", "image_size", "gmacs"]).to_pylist()
    counted = {(item["model"], item["image_size"]): item["gmacs"] for item in table if item["gmacs"]}
    first = {name: (name, layout, batch) for name, layout, batch in reversed(list_recordings())}
    ratios = []
    for item in read_recordings(set(first.values())):
        key = item.network.name, item.network.image_size
        if counted.get(key, 0.0) >= 1.0:
            ratios.append(multiply_adds(item.trace) / 1e9 / counted[key])
    assert len(ratios) > 60
    assert sum(0.9 < ratio < 1.03 for ratio in ratios) > 0.9 * len(ratios)
    assert max(ratios) < 1.1


@pytest.mark.data
def test_a_few_networks_are_predicted_without_having_seen_the_chip(data_dir: Path, dla: Path) -> None:
    rows, _ = score_throughput(data_dir, choose_weights(left_out=Withheld.CHIPS), dla)
    eager = [item for item in rows if not item.is_compiled]
    assert {item.gpu for item in eager} == {RTX_3090, RTX_4090}
    assert {item.layout for item in eager} == {"nchw", "nhwc"}
    for item in eager:
        assert item.split is Split.UNSEEN
        assert 0.5 < item.predicted_ns / item.measured_ns < 2
        if ANCHORED in item.baselines_ns:
            assert item.baselines_ns[ANCHORED] / item.measured_ns == pytest.approx(1.0, abs=0.25)
    assert {item.size for item in score_rows(throughput_entries(rows))} == {Size.ALL, Size.OVER_20_US, Size.OVER_100_US}
