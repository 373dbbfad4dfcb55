"""What the wheel holds, what importing costs, and that the layers hold."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("formats", "specs", "tracer", "analyzer")


@pytest.fixture(scope="module")
def wheel_names(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel from a copy, so that no build folder is left behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files"], cwd=root_dir, check=True, capture_output=True, text=True).stdout
    for name in tracked.splitlines():
        if name.startswith((*PACKAGES, "mlp_weights")) or "/" not in name:
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((root_dir / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as archive:
        return set(archive.namelist())


def test_every_module_and_data_file_is_in_the_wheel(root_dir: Path, wheel_names: set[str]) -> None:
    expected = {f"wavecast/{path.name}" for path in root_dir.glob("*.py")}
    for package in (*PACKAGES, "mlp_weights"):
        for path in (root_dir / package).rglob("*"):
            if "__pycache__" not in path.parts and (
                path.suffix in {".py", ".toml", ".json", ".safetensors", ".css", ".js", ".j2"}
                or path.name == "accuracy.md"
            ):
                expected.add(f"wavecast/{path.relative_to(root_dir).as_posix()}")
    assert expected - wheel_names == set()


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    foreign = {name for name in wheel_names if not name.startswith(("wavecast/", "wavecast-"))}
    assert foreign == set()
    assert not any("/tests/" in name or "/samples/" in name for name in wheel_names)


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
