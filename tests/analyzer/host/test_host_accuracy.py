"""The shipped host costs against the traces that they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.host.costs import load_host_costs
from wavecast.analyzer.host.timeline import synthesize_timeline
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.recorded.recording import choose_recording, untimed
from wavecast.formats.files.constants import read_constants
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu


@pytest.fixture(scope="module")
def table() -> Mapping[str, Any]:
    return read_constants("host_costs")


def test_every_named_trace_is_public_and_counted(table: Mapping[str, Any], data_dir: Path) -> None:
    for entry in table["hosts"].values():
        assert entry["ops"] > 0
        for name in entry["traces"]:
            assert (data_dir / "traces" / f"{name}.json.gz").is_file()


@pytest.mark.data
@pytest.mark.parametrize(
    "name", ["h100_bert_small_inference", "h100_vit_small_inference", "mi300x_vit_small_inference"]
)
def test_the_host_time_of_a_measured_step_comes_back(name: str, table: Mapping[str, Any], data_dir: Path) -> None:
    """In-sample, so a guard and no accuracy figure: `host_costs --check` of mlp_weights/train leaves the trace out."""
    pytest.importorskip("torch")
    from wavecast.mlp_weights.train.host_samples import HOSTS, load_sample

    sample = load_sample(data_dir / "traces" / f"{name}.json.gz", HOSTS[name])
    timed = synthesize_timeline(sample.trace, load_host_costs().at_speed(table["hosts"][sample.host]["speed_ratio"]))
    recorded = sample.op_times_ns().sum() * table["unprofiled_over_profiled"][sample.mode.value]["whole"]
    assert timed.iterations.cpu_end_ns[0] == pytest.approx(recorded, rel=0.35)
    launched = np.bincount(timed.kernels.op, minlength=len(sample.launch_count))
    assert launched.sum() == pytest.approx(sample.launch_count.sum(), rel=0.1)


@pytest.mark.data
@pytest.mark.parametrize(
    "workload", ["bert_base-inference-bf16-b16", "mlp_policy-train-fp32-b256", "llama8b-decode-bf16-b1-s2048"]
)
def test_shapes_alone_hold_what_scripts_took_on_an_h100s_host(workload: str, data_dir: Path) -> None:
    """Iterations that wait for their host; of all fourteen such recordings eleven are held, those of loops in Python
    (seq2seq) are not: their own time is in no measured recording's shapes."""
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = parquet.read_table(data_dir / "own" / "iterations.parquet").to_pylist()
    (line,) = (line for line in lines if line["workload"] == workload and line["gpu"] == "H100 SXM5 80GB")
    shapes = untimed(choose_recording(load_trace(data_dir / "own" / "traces" / line["trace"])))
    catalog = load_catalog()
    found = run_analysis(shapes.trace, catalog, targets=[find_gpu(catalog, line["gpu"])]).forecast
    assert found.low_ns[0] <= line["ms"] * 1e6 <= found.high_ns[0]
    assert found.iteration_ns[0] == pytest.approx(line["ms"] * 1e6, rel=0.55)
