"""The notebook runs, and shows what its words say. It is kept without outputs: they follow models and catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path("docs") / "notebooks" / "first_look.ipynb"
LIMIT_S = 120


@pytest.fixture(scope="module")
def notebook(root_dir: Path) -> Any:
    """As it is kept."""
    return json.loads((root_dir / NOTEBOOK).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def outputs(root_dir: Path) -> dict[str, dict[str, str]]:
    """What each cell of code shows, by its first line, as text by type of content."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("vl_convert")
    pytest.importorskip("pandas")
    found = nbformat.read(root_dir / NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        found, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(root_dir / NOTEBOOK.parent)}}
    ).execute()
    return {
        cell.source.splitlines()[0]: {kind: str(text) for item in cell.outputs for kind, text in _content(item).items()}
        for cell in found.cells
        if cell.cell_type == "code"
    }


def _content(output: Any) -> dict[str, Any]:
    """Return what is displayed; what is written to stderr is a warning, which would be shown to readers, too."""
    assert output.output_type in ("execute_result", "display_data"), output
    return dict(output.data)


def test_it_is_kept_without_outputs(notebook: Any, root_dir: Path) -> None:
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []
    assert (root_dir / NOTEBOOK).stat().st_size < 20_000
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}


def test_it_runs_and_shows_reports(outputs: dict[str, dict[str, str]]) -> None:
    reports = [shown for shown in outputs.values() if "wavecast-report" in shown.get("text/html", "")]
    assert [shown["text/plain"].split()[0] for shown in reports] == [
        "<OverviewReport", "<IterationReport", "<ReplayReport",
    ]  # fmt: skip
    assert not any("<script" in shown["text/html"] for shown in reports)


def test_its_frames_pictures_and_files(outputs: dict[str, dict[str, str]]) -> None:
    frame = outputs['frame = report.to_frame().set_index("gpu")']["text/html"]
    assert all(name in frame for name in ("B200", "Instinct MI300X", "usd_per_million_samples"))
    assert sum("<svg" in shown.get("image/svg+xml", "") for shown in outputs.values()) == 3
    assert "['plans.csv', 'report.md']" in outputs["folder = Path(mkdtemp())"]["text/plain"]
    assert (
        "measured"
        in outputs['measured = root / "samples" / "vit_small-inference-bf16-b4-mi300x.json.gz"']["text/plain"]
    )
