"""What measured jobs teach of the error that all their kernels share."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.prediction.shared_error import IterationKind, job_half_widths, shared_half_widths
from wavecast.analyzer.work import Family
from wavecast.formats.files.constants import read_constants
from wavecast.mlp_weights.train.job_widths import NAME, JobError, by_publisher, half_width_of, widths_of
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

H100 = find_gpu(load_catalog(), "H100 SXM5 80GB")
TRAINING = IterationKind(is_half=True, is_training=True, is_compiled=False)


def jobs(publisher: str, spread: float, *, own: float = 0.0, share: float = 1.0) -> list[JobError]:
    random = np.random.default_rng(len(publisher))
    return [
        JobError(publisher=publisher, log_ratio=float(value), own_log_width=own, computing_share=share)
        for value in random.normal(0.0, spread, 400)
    ]


def test_the_shared_half_width_is_what_a_jobs_own_errors_leave() -> None:
    many = {"a" * count: jobs("a" * count, 0.1) for count in range(1, 7)}
    student = 2.015  # of five degrees of freedom, 95 %
    assert half_width_of(many) == pytest.approx(0.1 * student * (1 + 1 / 6) ** 0.5, rel=0.1)
    assert half_width_of({"a": jobs("a", 0.1, own=0.3)}) == 0.0
    whole, half = half_width_of({"a": jobs("a", 0.1)}), half_width_of({"a": jobs("a", 0.1, share=0.5)})
    assert half == pytest.approx(2.0 * whole, rel=0.1)


def test_a_publisher_is_judged_by_the_others() -> None:
    found = widths_of(by_publisher([*jobs("a", 0.1), *jobs("bb", 0.1), *jobs("ccc", 0.5)]))
    assert found["without"]["ccc"] < 0.5 * found["without"]["a"]
    assert found["every"] > found["without"]["ccc"]


def test_jobs_that_train_without_convolutions_have_the_half_width_of_jobs() -> None:
    products, convolutions = [Family.MATMUL], [Family.MATMUL, Family.CONVOLUTION]
    assert job_half_widths(TRAINING, products, [H100])[0] == read_constants(NAME)["every"]
    assert job_half_widths(TRAINING, products, [H100], without="mlperf")[0] == read_constants(NAME)["without"]["mlperf"]
    wide = IterationKind(is_half=False, is_training=True, is_compiled=False)
    for kind, families in ((TRAINING, convolutions), (wide, products)):
        assert job_half_widths(kind, families, [H100])[0] == shared_half_widths(kind, [H100])[0]
