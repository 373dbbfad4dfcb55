"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def root_dir() -> Path:
    """The checkout root."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public measurements and traces; set WAVECAST_DATA where they lie elsewhere."""
    path = Path(os.environ.get("WAVECAST_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("the public data is not here; set WAVECAST_DATA to its directory")
    return path
