"""The two changes of an archive's blobs, adding and sweeping, in an order of steps that needs no lock between them.

Adding: write the blob, append the record that names it, look whether the blob is (still) there, else write it again.

Sweeping: move aside what no record names, list what lies aside, read the journal anew, put back what it names by now,
remove the rest. A blob that is added meanwhile is named either before that reading, and put back, or after it; then
its writer looks after the move, and writes it again. It needs no clock either: the grace period only spares the work.
Sweeps may run beside each other, and one that was killed is ended by the next.

What remains: a writer that is killed between its record and its look, while a sweep runs, over a blob that lay there
unnamed for longer than the grace period. Its record is then left without a blob, which checking the archive says.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from ...errors import InputError
from .store import Store

ASIDE: Final = "removed/"
"""Below it lies what sweeps moved aside: `removed/<sweep>/<key>`."""
GRACE_S: Final = 86_400.0
"""Who adds a trace names it within minutes of writing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Count what a sweep removed, and what it or an earlier one had moved aside and put back."""

    removed_count: int
    removed_bytes: int
    restored_count: int


def publish(store: Store, blobs: dict[str, bytes], *records: bytes) -> int:
    """Add blobs and the records that name them; return how many blobs were not there before.

    >>> from .stores import open_store
    >>> store = open_store(folder)
    >>> publish(store, {"traces/ab.json.gz": b"packed"}, b'{"add": "ab"}')
    1
    """
    new_count = sum([store.write(key, data) for key, data in blobs.items()])
    store.append(*records)
    for key, data in blobs.items():
        if not store.exists(key):
            store.write(key, data)
    return new_count


def sweep(store: Store, read_names: Callable[[], Container[str]], *, prefix: str, grace_s: float = GRACE_S) -> Swept:
    """Remove blobs below a prefix that no record names and that were written longer ago than the grace period.

    `read_names` reads the journal anew each time and returns the keys that its records name. Raises InputError where
    the journal holds a damaged record: it may have named what would be removed.
    """
    damaged_count = store.health().damaged_count
    if damaged_count:
        raise InputError(
            f"{store.location}: {damaged_count} damaged records in the journal, which may name files that nothing "
            "else names; nothing was removed"
        )
    names, aside = read_names(), f"{ASIDE}{secrets.token_hex(8)}/"
    for key in [key for key, age_s in store.ages(prefix) if age_s >= grace_s and key not in names]:
        store.move(key, aside + key)
    return _end_sweeps(store, read_names)


def _end_sweeps(store: Store, read_names: Callable[[], Container[str]]) -> Swept:
    """Decide over all that lies aside, whoever moved it: listed first, then the journal is read."""
    found = list(store.sizes(ASIDE))
    names = read_names() if found else ()
    removed_count = removed_bytes = restored_count = 0
    for key, size_bytes in found:
        original = key.removeprefix(ASIDE).partition("/")[2]
        if original in names and not store.exists(original):
            restored_count += store.move(key, original)
            continue
        store.remove(key)
        if original not in names:
            removed_count += 1
            removed_bytes += size_bytes
    return Swept(removed_count=removed_count, removed_bytes=removed_bytes, restored_count=restored_count)
