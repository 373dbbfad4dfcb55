"""Ops of libraries beside PyTorch, serving libraries above all: what each is, and what its signature tells."""

from typing import Final

from .library_op import LibraryOp, read_library_ops

LIBRARY_OPS: Final = read_library_ops()
"""In the order of the page that lists them within a library."""
__all__ = ["LIBRARY_OPS", "LibraryOp"]
