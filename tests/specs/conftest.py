"""The catalogue, once."""

from __future__ import annotations

import pytest
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Catalog


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The built-in catalogue."""
    return load_catalog()
