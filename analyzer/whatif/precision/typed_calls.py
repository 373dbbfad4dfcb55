"""What deciding the types of a call needs to know, and remembers."""

from typing import Final

import numpy as np

from ....formats.trace.autocast import Cast
from ....formats.trace.signature import DTYPE_BYTES
from ....records import dataclass, field
from ..calls import SignatureLayout
from ..change import Casts

WIDE: Final = "float32"
_WIDE_BYTES = DTYPE_BYTES[WIDE]
Lowered = tuple[bool, ...]
"""Per tensor: whether it is in the lower precision."""


@dataclass(slots=True)
class Done:
    """Remember of an op what its backward ops need."""

    cast: Cast
    layout: SignatureLayout
    name: str
    came_low: Lowered
    """The inputs as they came, before autocast converted them."""
    ran_low: Lowered
    """The inputs as the op took them."""
    result_low: bool


@dataclass(slots=True)
class CastLog:
    """Collect conversions row by row."""

    low_bytes: float
    rows: list[tuple[int, int, bool]] = field(default_factory=list)

    def add(self, op: int, element_count: int, *, to_low: bool) -> None:
        """Note a conversion of so many elements at an op."""
        self.rows.append((op, element_count, to_low))

    def table(self) -> Casts:
        """Return the conversions as columns."""
        to_low = np.array([row[2] for row in self.rows], dtype=bool)
        return Casts(
            op=np.array([row[0] for row in self.rows], dtype=np.int64),
            element_count=np.array([row[1] for row in self.rows], dtype=np.int64),
            read_bytes=np.where(to_low, _WIDE_BYTES, self.low_bytes).astype(np.float64),
            written_bytes=np.where(to_low, self.low_bytes, _WIDE_BYTES).astype(np.float64),
        )


@dataclass(frozen=True, slots=True)
class TypedCall:
    """Hold one call while types are decided."""

    op: int
    name: str
    layout: SignatureLayout
    is_backward: bool
    cast: Cast
    linked: Done | None
