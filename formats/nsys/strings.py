"""Looks up the texts that other tables number: those alone, for the table holds paths and command lines, too."""

from __future__ import annotations

import numpy as np

from ...arrays import Rows
from ..files.database import Database

TABLE = "StringIds"


class Strings:
    """Own the texts of some ids."""

    def __init__(self, database: Database, *wanted: Rows) -> None:
        self._texts = database.read_texts(TABLE, "id", "value", np.concatenate(wanted)) if wanted else {}

    def get(self, number: int) -> str:
        """Return the text of an id, an empty one where there is none."""
        return self._texts.get(number, "")
