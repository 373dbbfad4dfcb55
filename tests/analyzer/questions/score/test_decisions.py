"""Which of two GPUs is better."""

from __future__ import annotations

from typing import Any

import pytest
from wavecast.analyzer.questions.score.decisions import score_decisions
from wavecast.analyzer.questions.score.report import NetworkRow, Split


def row(gpu: str, measured: float, predicted: float, **changes: Any) -> NetworkRow:
    values: dict[str, Any] = {
        "table": "models/t.parquet",
        "gpu": gpu,
        "model": "net",
        "mode": "inf",
        "sequence_length": 1,
        "batch": 1,
        "dtype": "fp32",
        "split": Split.UNSEEN,
        "is_suspect": False,
        "measured_ns": measured,
        "predicted_ns": predicted,
        "low_ns": None,
        "high_ns": None,
        "unmodelled_nodes": 0,
        "baselines_ns": {},
    }
    return NetworkRow(**(values | changes))


def test_pairs_within_a_workload_are_compared() -> None:
    rows = [
        row("H100 SXM5 80GB", 1.0, 2.0, baselines_ns={"peer": 5.0}),
        row("A100 SXM4 80GB", 2.0, 3.0, baselines_ns={"peer": 4.0}),
        row("L40S", 3.0, 1.0),
        row("L40S", 0.1, 0.1, batch=2),
    ]
    faster = next(item for item in score_decisions(rows) if item.criterion == "faster")
    assert (faster.workloads, faster.pairs) == (1, 3)
    assert faster.right == pytest.approx(1 / 3)
    assert faster.kendall_tau == pytest.approx(-1 / 3)
    assert faster.baselines == {"peer": 0.0}


def test_prices_decide_what_is_cheaper() -> None:
    rows = [row("H100 SXM5 80GB", 1.0, 1.0), row("Tesla T4", 2.0, 100.0), row("Instinct MI100", 1.0, 1.0)]
    cheaper = next(item for item in score_decisions(rows) if item.criterion == "cheaper")
    assert (cheaper.pairs, cheaper.right, cheaper.kendall_tau) == (1, 0.0, None)


def test_suspect_measurements_decide_nothing() -> None:
    assert score_decisions([row("L40S", 1.0, 1.0), row("Tesla T4", 1.0, 1.0, is_suspect=True)]) == ()
    assert score_decisions([]) == ()
