"""The importer of Nsight Systems' SQLite exports. See docs/reference/files.md."""

from .importer import read_sqlite

__all__ = ["read_sqlite"]
