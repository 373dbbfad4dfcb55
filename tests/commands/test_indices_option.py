"""`--indices`: how embedding lookups are spread over rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wavecast.analyzer.questions.analyze.command import analyze
from wavecast.analyzer.questions.scale.command import scale
from wavecast.errors import InputError

SAMPLES = Path(__file__).parents[2] / "samples"
DLRM = SAMPLES / "dlrm-training-fp32-b2048-shapes.json.gz"
BERT = SAMPLES / "bert_base-inference-bf16-b16-shapes.json.gz"


def bags_ns(indices: str | None) -> float:
    report = analyze(DLRM, to="Tesla T4", indices=indices, ops=True).report
    return sum(op.predicted_ns for op in report.ops if op.op == "aten::_embedding_bag")


def test_hot_rows_take_less_time_and_the_default_is_said() -> None:
    uniform, usual, hot = bags_ns("uniform"), bags_ns(None), bags_ns("zipf:3")
    assert uniform > usual > hot > 0
    assert usual == bags_ns("zipf:1.05")
    notes = [text for text in analyze(DLRM, to="Tesla T4").report.warnings if "zipf:1.05" in text]
    assert len(notes) == 1
    assert "53,248 embedding lookups" in notes[0]
    assert not [text for text in analyze(DLRM, to="Tesla T4", indices="uniform").report.warnings if "spread" in text]


def test_a_histogram_of_one_bin_is_uniform(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"bins": [[1000, 5]]}))
    assert bags_ns(str(path)) == pytest.approx(bags_ns("uniform"))


def test_single_rows_are_a_gather_until_a_spread_is_said() -> None:
    def found(indices: str | None) -> float:
        report = analyze(BERT, to="Tesla T4", indices=indices, ops=True).report
        return sum(op.predicted_ns for op in report.ops if op.op == "aten::embedding")

    assert found(None) != found("uniform")
    assert not [text for text in analyze(BERT, to="Tesla T4").report.warnings if "zipf" in text]


def test_plans_are_predicted_with_it() -> None:
    steps = [
        scale(DLRM, to="Tesla T4", gpus=2, plan="dp=2", indices=indices).report.predictions[0].iteration_ns
        for indices in ("uniform", "zipf:3")
    ]
    assert steps[0] >= steps[1]


def test_where_there_is_nothing_to_spread_it_is_said() -> None:
    path = SAMPLES / "resnet50-inference-bf16-b32-shapes.json.gz"
    path = path if path.exists() else next(SAMPLES.glob("resnet*-shapes.json.gz"))
    warnings = analyze(path, to="Tesla T4", indices="uniform").report.warnings
    assert [text for text in warnings if "indices='uniform' changes nothing" in text]


@pytest.mark.parametrize("indices", ["zipf:x", "", "missing.json"])
def test_what_names_no_spread_is_refused(indices: str) -> None:
    with pytest.raises(InputError):
        analyze(DLRM, to="Tesla T4", indices=indices)
