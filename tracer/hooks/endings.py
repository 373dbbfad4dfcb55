"""Says how code ended that should have run longer."""

from __future__ import annotations


def describe_end(raised: BaseException | None) -> str | None:
    """Say how a script ended before its time, None where it ran to its end or was interrupted."""
    if isinstance(raised, SystemExit):
        status = raised.code if isinstance(raised.code, int) else 1
        return None if raised.code in (None, 0) else f"the script ended itself with exit status {status}"
    return "the script failed, as shown above," if isinstance(raised, Exception) else None
