"""Reads files of fitted constants: numbers that a program fitted, with what it fitted them to.

They lie beside the weights and are listed in the same manifest. A file is written by one of the programs of
mlp_weights/train, or by `energy_check`, never by hand: one that differs from its manifest is refused.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from ...errors import InputError

FOLDER: Final = Path(__file__).parents[2] / "mlp_weights"
MANIFEST: Final = "manifest.json"
ENTRIES: Final = "constants"
"""The part of the manifest that lists such files."""


@cache
def read_constants(name: str, folder: Path = FOLDER) -> Mapping[str, Any]:
    """Return the values of a file of constants.

    Raises InputError where it is missing, broken or not the file that the manifest describes.

    >>> round(read_constants("network_widths")["gpu_half_width"], 1)
    0.2
    """
    path = folder / f"{name}.json"
    try:
        data = path.read_bytes()
        values: Mapping[str, Any] = orjson.loads(data)["values"]
        expected = orjson.loads((folder / MANIFEST).read_bytes())[ENTRIES][name]["sha256"]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no readable constants ({error!r}); reinstall wavecast") from error
    if hashlib.sha256(data).hexdigest() != expected:
        raise InputError(f"{path}: not the file that {MANIFEST} describes (another SHA-256); reinstall wavecast")
    return values
