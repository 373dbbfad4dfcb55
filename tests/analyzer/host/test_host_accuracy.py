"""The shipped host costs against the traces that they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.host.costs import load_host_costs
from wavecast.analyzer.host.timeline import synthesize_timeline
from wavecast.formats.files.constants import read_constants


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
