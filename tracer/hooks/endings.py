"""Says how code ended that should have run longer."""

from __future__ import annotations


def describe_end(raised: BaseException | None, iteration_count: int) -> str | None:
    """Say how a script ended before its time, None where it ran to its end or was interrupted."""
    if isinstance(raised, SystemExit) and raised.code not in (None, 0):
        status = raised.code if isinstance(raised.code, int) else 1
        return f"the script ended itself with exit status {status} after {iteration_count} iterations"
    if isinstance(raised, Exception):
        return f"the script failed after {iteration_count} iterations, as shown above"
    return None
