"""How embedding lookups are spread over rows, as a user says it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError

if TYPE_CHECKING:
    from ..models.library import Library


def with_spread(library: Library | None, indices: str | Path | None) -> Library | None:
    """Return the models with how lookups are spread; the models as they are (None: the shipped ones) where none says.

    Raises InputError for what names no spread.

    >>> str(with_spread(None, "zipf:1.2").indices)
    'zipf:1.2'
    """
    if indices is None:
        return library
    if not isinstance(indices, str | Path):
        raise InputError(f"indices={indices!r}: expected text, as in 'zipf:1.05', or a histogram file")
    from ..models.library import load_library
    from ..work.indices import read_indices

    return replace(library or load_library(), indices=read_indices(str(indices)))
