"""The measured samples: what README's examples show, and that they are what was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.questions.validate.validation import validate_traces
from wavecast.analyzer.recorded.window import select_window
from wavecast.specs.catalog import load_catalog

NETWORKS = {"vit_small": 4, "bert_small": 1}
GPUS = ("h100", "mi300x")


def sample(root_dir: Path, network: str, gpu: str) -> Path:
    return root_dir / "samples" / f"{network}-inference-bf16-b{NETWORKS[network]}-{gpu}.json.gz"


@pytest.mark.parametrize("network", NETWORKS)
def test_each_predicts_the_other_within_its_interval(network: str, root_dir: Path) -> None:
    first, second = (load_trace(sample(root_dir, network, gpu)) for gpu in GPUS)
    for source, target in ((first, second), (second, first)):
        found = validate_traces(source, target, load_catalog())
        assert abs(found.iteration.predicted_ns / found.iteration.measured_ns - 1.0) < 0.12
        assert found.iteration.is_covered


@pytest.mark.data
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("gpu", GPUS)
def test_they_hold_what_was_recorded(network: str, gpu: str, root_dir: Path, data_dir: Path) -> None:
    ours = load_trace(sample(root_dir, network, gpu))
    theirs = load_trace(data_dir / "traces" / f"{gpu}_{network}_inference.json.gz")
    assert select_window(ours).duration_ns == select_window(theirs).duration_ns
    assert np.array_equal(ours.kernels.duration_ns, theirs.kernels.duration_ns)
    assert np.array_equal(ours.ops.start_ns, theirs.ops.start_ns)
    assert ours.meta.workload.batch_size == NETWORKS[network]
