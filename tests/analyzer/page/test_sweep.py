"""Sweeps as pages and charts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wavecast
from wavecast import SweepAnswer
from wavecast.analyzer.page.page import Chart, Page
from wavecast.analyzer.questions.sweep.page.charts import sweep_charts


@pytest.fixture(scope="module")
def sample(root_dir: Path) -> Path:
    return root_dir / "samples" / "resnet50-training-bf16-b32-shapes.json.gz"


def test_pages_are_drawn_whole(sample: Path, assert_drawn_whole: Callable[[Page], None]) -> None:
    asked: tuple[dict[str, Any] | None, ...] = (
        {"clock": "1x..2x:3"},
        {"clock": [2520.0, "2x"], "sms": "1x,2x"},
        None,
    )
    for vary in asked:
        answer = wavecast.sweep(sample, on="l40s", vary=vary)
        assert_drawn_whole(answer.page())
        assert "L40S" in repr(answer)


def test_charts_name_fields_of_their_rows(sample: Path) -> None:
    line = wavecast.sweep(sample, on="l40s", vary={"clock": "1x..2x:4"})
    grid = wavecast.sweep(sample, on="l40s", vary={"clock": "1x..2x:7", "sms": "1x..2x:7"})
    lines = wavecast.sweep(sample, on="l40s", vary={"clock": "1x..2x:7", "precision": "recorded,fp16"})
    bars = wavecast.sweep(sample, on="l40s", vary={"precision": "recorded,fp16"})
    charts: list[Chart] = []
    for answer in (line, grid, lines, bars):
        assert isinstance(answer, SweepAnswer)
        charts += sweep_charts(answer.report)
    for chart in charts:
        known = {name for row in chart.rows for name in row}
        assert set(fields_of(chart.spec)) - {"words"} <= known
        assert set(chart.labels) <= known
        assert chart.description.endswith(".")


def fields_of(item: object) -> list[str]:
    """Return the fields that a specification names."""
    if isinstance(item, dict):
        own = [item["field"]] if isinstance(item.get("field"), str) else []
        return own + [name for value in item.values() for name in fields_of(value)]
    return [name for value in item for name in fields_of(value)] if isinstance(item, list) else []
