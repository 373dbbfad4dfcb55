"""The jobs that docs/reference/compare.md shows run as they stand, on a branch that changed nothing, or too much."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """\
import torch
model = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range(2)]).cuda()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.randn(64, {width}, device="cuda")).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""


def jobs(page: str) -> dict[str, list[tuple[str, bool]]]:
    """Return the command lines of each job, and whether one runs after a failure too."""
    github, gitlab = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    steps = re.findall(r"- (if: always\(\)\n +)?run: (.+)", github)
    return {
        "github": [(line, bool(condition)) for condition, line in steps],
        "gitlab": [(line, False) for line in re.findall(r"^    - ((?:pip|wavecast|git) .+)", gitlab, re.MULTILINE)],
    }


WAVECAST = """\
#!/bin/sh
kept={folder}/$(echo "$2 $3 $5" | cat - train.py | cksum | tr ' ' -)
if [ "$1" = record ] && [ -f "$kept" ]; then exec cp "$kept" "$4"; fi
{python} -m wavecast "$@" || exit
if [ "$1" = record ]; then cp "$4" "$kept"; fi
"""
"""Records a script once, as that takes the longest; another one, or with other options, anew."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture
def repository(tmp_path: Path, root_dir: Path, recordings: Path) -> Any:
    """A repository of two commits with `wavecast` on the path, and a `pip` that has installed all already."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "wavecast": WAVECAST.format(folder=recordings, python=sys.executable),
        "pip": '#!/bin/sh\ntest "$*" = "install wavecast torch"\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    folder = tmp_path / "project"
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(root_dir.parent), os.environ.get("PYTHONPATH", ""))),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    assert run("git init -q .").returncode == 0
    return folder, environment, run


@pytest.mark.parametrize(("job", "width", "status"), [("github", 8192, 1), ("gitlab", 256, 0)])
def test_a_job_passes_where_nothing_changed_and_fails_where_all_got_slower(
    job: str, width: int, status: int, repository: Any, root_dir: Path
) -> None:
    folder, environment, run = repository
    for size in (256, width):
        (folder / "train.py").write_text(SCRIPT.format(width=size))
        assert run("git add train.py; git commit -q --allow-empty -m one").returncode == 0
    base = run("git rev-parse HEAD~1").stdout.strip()
    environment["CI_MERGE_REQUEST_DIFF_BASE_SHA"] = base
    lines = jobs((root_dir / "docs" / "reference" / "compare.md").read_text(encoding="utf-8"))[job]
    assert [line.split()[0] for line, _ in lines][:5] == ["pip", "wavecast", "git", "wavecast", "wavecast"]
    failed = None
    for line, is_last in lines:
        if failed is not None and not is_last:
            continue
        done = run(line.replace("${{ github.event.pull_request.base.sha }}", base))
        if done.returncode:
            failed = line, done.returncode, done.stderr
    if status == 0:
        assert failed is None
    else:
        assert failed is not None
        assert failed[0].startswith("wavecast compare")
        assert failed[1] == status, failed[2]
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "H100 SXM5" in report
    if job == "github":
        assert (folder.parent / "summary.md").read_text(encoding="utf-8") == report
