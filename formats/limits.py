"""The range of integers that a trace may hold."""

from __future__ import annotations

from typing import Final

MAX_INTEGER: Final = 2**53
"""Largest magnitude in columns and records: every JSON reader holds it exactly, and sums of two cannot wrap in int64.

As a time it is 104 days.
"""

MIN_SCALAR: Final = -(2**63)
MAX_SCALAR: Final = 2**63 - 1
"""Range of integers in signatures: what torch itself passes (an open slice ends at 2**63 - 1)."""
