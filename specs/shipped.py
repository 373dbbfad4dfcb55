"""Reads the TOML files of this package; what they hold is kept beside the bytecode, as they take long to parse."""

import os
import sys
from contextlib import suppress
from hashlib import blake2b
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import orjson

from .documents import Entry, read_toml

__all__ = ["read_shipped"]


def read_shipped(path: Path) -> Entry:
    """Read a TOML file of this package; its dates are text, as in `2026-11-23`.

    Python parses the catalogue for longer than a sample is predicted. So the same tables are kept as JSON where Python
    keeps the bytecode of the package's modules, with a digest of the text that they are of: a file that was changed is
    parsed again. Nothing is written where Python writes no bytecode.
    """
    text = path.read_bytes()
    digest = _digest(text)
    kept = Path(cache_from_source(f"{path}.py")).with_name(f"{path.name}.json")
    with suppress(OSError, orjson.JSONDecodeError):
        found: Any = orjson.loads(kept.read_bytes())
        if isinstance(found, dict) and found.get("text") == digest:
            document = found.get("document")
            if isinstance(document, dict) and found.get("digest") == _digest(orjson.dumps(document)):
                return document
    document = orjson.loads(orjson.dumps(read_toml(path)))
    if not sys.dont_write_bytecode:
        own = kept.with_name(f"{kept.name}.{os.getpid()}")
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            digests = {"text": digest, "digest": _digest(orjson.dumps(document))}
            own.write_bytes(orjson.dumps({**digests, "document": document}))
            try:
                own.replace(kept)
            except OSError:
                own.unlink()
    return dict(document)


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=16).hexdigest()
