"""The pages of recommenders: every drawing holds all that they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wavecast.analyzer.page.page import Page
from wavecast.analyzer.questions.recommender.command import recommender


def test_every_drawing_is_whole(root_dir: Path, assert_drawn_whole: Callable[[Page], None]) -> None:
    answer = recommender(root_dir / "samples" / "dlrm-dcnv2.toml", to=["h100sxm", "a100sxm80", "V100-SXM2-32GB"])
    assert_drawn_whole(answer.page())
    assert "H100 SXM5 80GB" in repr(answer)
