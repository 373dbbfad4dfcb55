"""Ops of libraries beside PyTorch, serving libraries above all: what each is, and what its signature tells."""

from . import attention, cache, experts, products, quantization, rows, state_space  # noqa: F401
from .library_op import LIBRARY_OPS, LibraryOp

__all__ = ["LIBRARY_OPS", "LibraryOp"]
