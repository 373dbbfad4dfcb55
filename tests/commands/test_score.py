"""What the score command refuses, and that its help is quick."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


def test_a_directory_without_tables_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("score", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "nothing to score; expected at least one of ops/matmul.parquet" in result.stderr
    assert run("score", tmp_path / "none").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--exclude-gpu", "Voodoo"], "no GPU of the catalogue is called 'Voodoo'"),
        (["--exclude-gpu", "L40S", "--leave-out", "chips"], "goes without --exclude-gpu"),
        (["--exclude-gpu", "L40S", "--leave-out", "shapes"], "goes without --exclude-gpu"),
    ],
)
def test_bad_options_are_one_line(options: list[str], message: str, run: Run, tmp_path: Path) -> None:
    result = run("score", tmp_path, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_broken_table_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "vector.parquet").write_bytes(b"PAR1")
    result = run("score", tmp_path)
    assert result.exit_code == 2
    assert "vector.parquet: no readable parquet table" in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_loads_no_tables() -> None:
    code = (
        "import sys; sys.argv = ['wavecast', 'score', '--help']\n"
        "from wavecast.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "--leave-out" in result.stdout
    assert {"pyarrow", "numpy", "rich", "torch", "safetensors"} & set(result.stderr.split()) == set()
