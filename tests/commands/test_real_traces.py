"""The commands on public traces: they work, they fit, and they agree with each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
NAMES = ("h100_vit_small_inference", "v100_dlrm_training_rank0", "mi300x_torch_compile_triton", "a100_event_sync")

pytestmark = pytest.mark.data


@pytest.fixture(params=NAMES)
def real_trace(request: pytest.FixtureRequest, data_dir: Path) -> Path:
    return data_dir / "traces" / f"{request.param}.json.gz"


def test_everything_fits(real_trace: Path, run: Run) -> None:
    for width, *arguments in (
        (80, "analyze", real_trace),
        (80, "analyze", real_trace, "--ops", "--to", "mi300x"),
        (80, "show", real_trace),
        (200, "analyze", real_trace, "--ops", "--to", "mi300x"),
    ):
        result = run(*arguments, COLUMNS=width)
        assert result.exit_code == 0, result.output
        assert max(len(line) for line in result.stdout.splitlines()) <= width


def test_the_source_row_is_the_measurement(real_trace: Path, run: Run) -> None:
    document = json.loads(run("analyze", real_trace, "--format", "json").stdout)
    (row,) = [row for row in document["predictions"] if row["is_source"]]
    assert row["gpu"] == document["source"]["gpu"]
    assert row["iteration_ns"] == pytest.approx(document["source"]["iteration_ns"])
    assert row["gpu_busy_ns"] == pytest.approx(document["source"]["gpu_busy_ns"])
    overview = json.loads(run("show", real_trace, "--format", "json").stdout)
    assert overview["gpu_busy_ns"] == pytest.approx(document["source"]["gpu_busy_ns"])
    assert overview["kernel_count"] == document["trace"]["kernel_count"]


def test_a_converted_trace_predicts_the_same(real_trace: Path, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "converted.json.gz"
    assert run("convert", real_trace, target).exit_code == 0
    expected = run("analyze", real_trace, "--ops", "--format", "json").stdout
    assert run("analyze", target, "--ops", "--format", "json").stdout == expected


def test_show_counts_compiled_regions_and_launches_of_graphs(data_dir: Path, run: Run) -> None:
    path = data_dir / "traces" / "a100_80gb_training.json.gz"
    overview = json.loads(run("show", path, "--format", "json").stdout)
    assert (overview["compiled_region_count"], overview["graph_launch_count"]) == (14, 14)
    assert "14 compiled regions, forward or backward; 14 launches of CUDA graphs" in run("show", path).stdout
