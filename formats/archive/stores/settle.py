"""Waits until a folder's names are on their medium: a file that was renamed can otherwise vanish with the power."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def settle_folder(folder: Path) -> None:
    """Wait until the names in a folder are on its medium, where the system can say so (Windows cannot)."""
    with suppress(OSError):  # a file system that cannot settle folders settles them with their files
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
