"""The accuracy page and the score that it is written from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.questions.score.report import Score
from wavecast.benchmarks.make.accuracy import describe_accuracy, read_score, write_page
from wavecast.errors import InputError


def test_a_page_of_nothing_still_says_what_is_not_modelled() -> None:
    text = draw_markdown(describe_accuracy(Score(weights="none", rows=(), notes=("12 rows left out",))))
    assert text.startswith("# Accuracy\n")
    assert "What is not modelled" in text
    assert "- 12 rows left out" in text


def test_the_kept_score_writes_the_same_page_again(tmp_path: Path) -> None:
    score, page, kept = Score(weights="none", rows=()), tmp_path / "page.md", tmp_path / "score.json.gz"
    write_page(score, page, kept)
    first = kept.read_bytes()
    assert read_score(kept) == score
    write_page(read_score(kept), page, kept)
    assert kept.read_bytes() == first


def test_what_is_no_score_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match="no readable score"):
        read_score(path)
    command = [
        sys.executable,
        "-m",
        "wavecast.benchmarks.make.accuracy",
        str(path),
        "-o",
        str(tmp_path / "page.md"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_the_page_is_what_its_score_says(root_dir: Path) -> None:
    score = root_dir / "docs" / "evidence" / "accuracy.json.gz"
    if not score.exists():
        pytest.skip("no score is kept beside the page")
    page = draw_markdown(describe_accuracy(read_score(score)))
    assert page == (root_dir / "docs" / "evidence" / "accuracy.md").read_text(encoding="utf-8")
