"""What wheel and source archive hold, what importing costs, and that what the package says of itself agrees."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from wavecast import __version__

PACKAGES = ("formats", "specs", "tracer", "analyzer", "mlp_weights")
PAGES = (".md",)
"""Of the package's folders, what is read by people alone stays out; the score's page is filled by a command."""
ABOUT = {"LICENSE", "README.md", "pyproject.toml", "setup.cfg"}


@pytest.fixture(scope="module")
def held(root_dir: Path) -> set[str]:
    """The files that are installed, as the repository has them."""
    tracked = subprocess.run(["git", "ls-files"], cwd=root_dir, check=True, capture_output=True, text=True).stdout
    names = {name for name in tracked.splitlines() if name.startswith(tuple(f"{room}/" for room in PACKAGES))}
    kept = {name for name in names if not name.endswith(PAGES)}
    return kept | {name for name in tracked.splitlines() if "/" not in name and name.endswith(".py")} | {"py.typed"}


@pytest.fixture(scope="module")
def built(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of a clean copy, and the wheel that is built from it, as a release does; no network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    tracked = subprocess.run(["git", "ls-files"], cwd=root_dir, check=True, capture_output=True, text=True).stdout
    for name in tracked.splitlines():
        if (root_dir / name).is_file() and not name.startswith(("samples/", "tests/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((root_dir / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return out


def test_the_wheel_holds_the_package_and_nothing_else(built: Path, held: set[str]) -> None:
    with zipfile.ZipFile(built / f"wavecast-{__version__}-py3-none-any.whl") as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {Path(name).name for name in archive.namelist() if ".dist-info/" in name}
    assert names == {f"wavecast/{name}" for name in held}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "LICENSE"}


def test_the_source_archive_holds_what_builds_the_wheel_and_nothing_else(built: Path, held: set[str]) -> None:
    with tarfile.open(built / f"wavecast-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {name for name in names if name == "PKG-INFO" or name.startswith("wavecast.egg-info/")}
    assert names - made == held | ABOUT


@pytest.fixture(scope="module")
def project(root_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((root_dir / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_the_classifiers_are_the_pythons_that_are_tested(root_dir: Path, project: dict[str, Any]) -> None:
    claimed = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert project["requires-python"] == f">={claimed[0]}"
    for workflow in ("tests.yml", "package.yml"):
        text = (root_dir / ".github" / "workflows" / workflow).read_text(encoding="utf-8")
        assert [re.findall(r'"([\d.]+)"', line) for line in re.findall(r"python: (\[.*\])", text)] == [claimed]


def test_workflows_may_read_alone_and_pin_their_actions(root_dir: Path) -> None:
    for path in (root_dir / ".github" / "workflows").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        assert "\npermissions:\n  contents: read\n" in text
        assert re.findall(r"^ +(\S+): write$", text, re.MULTILINE) == ["id-token"] * (path.name == "publish.yml")
        used = re.findall(r"uses: (\S+)", text)
        assert [name for name in used if not re.fullmatch(r"\./\S+|[\w-]+/[\w-]+@(release/)?v\d+", name)] == []


def test_the_changelog_begins_with_this_version(root_dir: Path) -> None:
    text = (root_dir / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == __version__


def test_news_are_of_known_kinds(root_dir: Path) -> None:
    tool = tomllib.loads((root_dir / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in tool["type"]}
    news = [path.name.split(".") for path in (root_dir / tool["directory"]).glob("*") if path.name != "README.md"]
    assert [name for name in news if len(name) != 3 or name[1] not in kinds or name[2] != "md"] == []


def test_importing_wavecast_loads_nothing_slow() -> None:
    code = "import sys, wavecast; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"torch", "networkx", "numpy", "rich", "click", "orjson", "msgspec"} & set(loaded) == set()


def test_a_checkout_may_lie_in_a_folder_that_is_no_python_name(root_dir: Path) -> None:
    """pytest imports the root's `__init__.py` by the folder's name, without a package around it."""
    spec = importlib.util.spec_from_file_location("__init__", root_dir / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
