"""MLCommons Chakra execution traces: read as traces, and written for simulators. See docs/reference/files.md."""

from .importer import read_chakra, read_chakra_json

__all__ = ["read_chakra", "read_chakra_json"]
