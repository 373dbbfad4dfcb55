"""Reads the TOML files that hold what is known of GPUs, machines and prices."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ..errors import InputError
from .layout import Entry


def read_toml(path: Path) -> Entry:
    """Read a TOML file; raise InputError where it cannot be opened or is no TOML.

    >>> path = folder / "node.toml"
    >>> _ = path.write_text("gpu_count = 8")
    >>> read_toml(path)
    {'gpu_count': 8}
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}: expected TOML in UTF-8, found bytes that are not text") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name}: expected TOML: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path.name}: expected TOML, found tables nested too deeply") from error
