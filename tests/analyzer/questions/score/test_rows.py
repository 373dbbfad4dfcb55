"""Forecasts of samples, their baselines, and the figures of groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from wavecast.analyzer.measurements.samples import Samples
from wavecast.analyzer.questions.score.ledger import forecast_entries, pooled_rows, score_rows
from wavecast.analyzer.questions.score.report import MEAN, Size, Split
from wavecast.analyzer.questions.score.rows import (
    anchored_ns,
    bandwidth_ratio_ns,
    fitted_roofline_ns,
    predict_samples,
    source_rows,
)
from wavecast.analyzer.questions.score.scoring import worst_rows
from wavecast.analyzer.questions.score.weights import Weights, Withheld

from .conftest import Copies, build_samples

ERRORS = {"A100 SXM4 80GB": 0.05, "A100 PCIe 80GB": 0.0, "L40S": -0.3}
Build = Callable[..., Weights]


@pytest.fixture
def samples() -> Samples[Copies]:
    return build_samples(ERRORS)


def test_each_gpu_is_scored_and_marked_by_what_its_weights_saw(samples: Samples[Copies], weights: Build) -> None:
    rows = score_rows(forecast_entries(predict_samples(samples, weights()), {}))
    by_gpu = {row.gpu: row for row in rows if row.size is Size.ALL}
    assert by_gpu["A100 SXM4 80GB"].split is by_gpu["A100 PCIe 80GB"].split is Split.SEEN
    assert by_gpu["L40S"].split is Split.UNSEEN
    for name, error in ERRORS.items():
        assert by_gpu[name].bias == pytest.approx(error)
        assert by_gpu[name].mape == pytest.approx(abs(error))
        assert by_gpu[name].coverage_90 == (abs(error) < 0.1)
    mean = by_gpu[MEAN]
    assert mean.split is Split.SEEN
    assert mean.mape == pytest.approx(0.025)


def test_leaving_one_out_leaves_nothing_seen(samples: Samples[Copies], weights: Build) -> None:
    assert not predict_samples(samples, weights(left_out=Withheld.CHIPS)).is_seen.any()


def test_leaving_a_gpu_out_leaves_its_twin_out(samples: Samples[Copies], weights: Build) -> None:
    made = predict_samples(samples, weights(excluded=(samples.gpus[0],)))
    assert not made.is_seen[samples.gpu == 1].any()


def test_sizes_part_the_rows(samples: Samples[Copies], weights: Build) -> None:
    rows = [row for row in score_rows(forecast_entries(predict_samples(samples, weights()), {})) if row.gpu == "L40S"]
    counts = {row.size: row.rows for row in rows}
    measured = samples.measured_ns[samples.gpu == 2]
    assert counts[Size.ALL] == counts[Size.UNDER_20_US] + counts[Size.OVER_20_US] == 4
    assert counts[Size.OVER_100_US] == (measured >= 1e5).sum()


def test_rows_pool_over_gpus_and_tables(samples: Samples[Copies], weights: Build) -> None:
    entries = forecast_entries(predict_samples(samples, weights(left_out=Withheld.CHIPS)), {})
    (pooled,) = [row for row in pooled_rows(entries) if row.gpu == "all" and row.size is Size.ALL]
    assert pooled.rows == 12
    assert pooled.mape == pytest.approx(0.35 / 3)
    assert (pooled.table, pooled.family, pooled.dtype) == ("all", "all", "all")


def test_the_roofline_of_a_copy_is_its_bytes_over_bandwidth(samples: Samples[Copies], weights: Build) -> None:
    made = predict_samples(samples, weights())
    long = made.roofline_ns > 1e3
    np.testing.assert_allclose(made.roofline_ns[long], made.predicted_ns[long])


def test_the_fitted_efficiency_is_that_of_the_other_chips(samples: Samples[Copies], weights: Build) -> None:
    made = predict_samples(samples, weights())
    ratio = fitted_roofline_ns(made) / made.roofline_ns
    np.testing.assert_allclose(ratio[samples.gpu == 0], 1 / 0.7)
    np.testing.assert_allclose(ratio[samples.gpu == 2], np.sqrt(1 / 1.05), rtol=0.03)


def test_one_chip_alone_fits_no_efficiency(weights: Build) -> None:
    made = predict_samples(build_samples({"L40S": 0.0}), weights())
    assert np.isnan(fitted_roofline_ns(made)).all()


def test_a_source_is_another_chip_with_the_same_problem(samples: Samples[Copies]) -> None:
    source = source_rows(samples)
    assert (source >= 0).all()
    np.testing.assert_array_equal(samples.problems.moved_bytes[source], samples.problems.moved_bytes)
    assert set(samples.gpu[source][samples.gpu < 2]) == {2}
    assert 2 not in set(samples.gpu[source][samples.gpu == 2])


def test_problems_that_only_differ_in_their_hosts_are_the_same() -> None:
    samples = build_samples({"A100 SXM4 80GB": 0.0, "L40S": 0.0})
    floors = np.where(samples.gpu == 0, np.nan, 1e4)
    problems = Copies(moved_bytes=samples.problems.moved_bytes, host_floor_ns=floors)
    assert (source_rows(build_samples({"A100 SXM4 80GB": 0.0, "L40S": 0.0}, problems=problems)) >= 0).all()


def test_other_dtypes_are_other_problems() -> None:
    dtype = np.array(["fp32"] * 4 + ["fp16"] * 4, dtype=object)
    assert (source_rows(build_samples({"A100 SXM4 80GB": 0.0, "L40S": 0.0}, dtype=dtype)) == -1).all()


def test_given_a_measurement_the_common_error_goes(weights: Build) -> None:
    samples = build_samples({"A100 SXM4 80GB": 0.25, "L40S": 0.25})
    made, source = predict_samples(samples, weights(left_out=Withheld.CHIPS)), source_rows(samples)
    np.testing.assert_allclose(anchored_ns(made, source, weights()), samples.measured_ns)
    np.testing.assert_allclose(bandwidth_ratio_ns(samples, source), samples.measured_ns)


def test_the_worst_row_of_each_group_is_named(samples: Samples[Copies], weights: Build) -> None:
    found = worst_rows([predict_samples(samples, weights())], limit=2)
    assert [row.gpu for row in found] == ["L40S", "A100 SXM4 80GB"]
    assert found[0].predicted_ns == pytest.approx(0.7 * found[0].measured_ns)
    assert all(row.measured_ns >= 20e3 for row in found)
