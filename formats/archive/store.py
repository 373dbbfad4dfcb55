"""Where an archive's files lie: a folder, or a bucket of an object store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Store(Protocol):
    """Hold blobs by key (relative, parts joined by `/`) and a journal that only grows; safe with several writers.

    Blobs are named by their content, so that writing one again changes nothing. All methods raise InputError where
    nothing is there, OutputError or WriteError where something cannot be written.
    """

    @property
    def location(self) -> str:
        """Return what a user calls it: a folder's path, or a URL such as `s3://bucket/traces`."""

    def read(self, key: str) -> bytes:
        """Return a blob."""

    def write(self, key: str, data: bytes) -> bool:
        """Write a blob whole or not at all; False where it was there already."""

    def remove(self, key: str) -> None:
        """Remove a blob, if it is there."""

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield key and bytes of every blob below a prefix, in order of key."""

    def append(self, record: bytes) -> None:
        """Add a record (one line of JSON) to the journal, whole or not at all, and safely on its medium."""

    def records(self, after: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the journal's records after a position in an order that all readers see, each with its position."""
