"""How long launches, gaps, waits and returns take by themselves: a table by GPU generation, refined on each trace."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np

from ...arrays import Floats


class Term(IntEnum):
    """Name the latencies of the replay's rules."""

    NONE = 0
    LAUNCH = 1
    """From the end of a launch call to the earliest start of its kernel."""
    GAP = 2
    """From the end of a kernel to the earliest start of the next on its stream."""
    COPY_GAP = 3
    """The same where one of the two is a copy or a fill."""
    EVENT = 4
    """From the end of a kernel to the earliest start of one on another stream that waits for its event."""
    STREAM_RETURN = 5
    """From the end of the last kernel to the return of a stream's synchronisation."""
    EVENT_RETURN = 6
    DEVICE_RETURN = 7
    COPY_RETURN = 8
    """From the end of a blocking copy to the return of its call."""
    QUEUE = 9
    """From the start of the kernel `QUEUE_DEPTH` launches earlier to the return of a launch that found no room."""


QUEUE_DEPTH: Final = 1021
"""Launches that CUDA holds before the host blocks: on the V100 convnet trace 1,065 blocked calls end 4.1-6 us after
the start of the kernel this many launches earlier, 97 % of them within 2 us; no other count fits. HIP ran 1,848
ahead without blocking."""
SYNC_COST_NS: Final = 3000.0
"""Host time of a synchronisation that need not wait."""

_DEFAULT: Final = {
    Term.NONE: 0.0,
    Term.LAUNCH: 1800.0,
    Term.GAP: 1300.0,
    Term.COPY_GAP: 1300.0,
    Term.EVENT: 3000.0,
    Term.STREAM_RETURN: 5000.0,
    Term.EVENT_RETURN: 8000.0,
    Term.DEVICE_RETURN: 9000.0,
    Term.COPY_RETURN: 9000.0,
    Term.QUEUE: 5200.0,
}
_OF_GENERATION: Final[Mapping[str, Mapping[Term, float]]] = {
    "Volta": {Term.LAUNCH: 1900.0, Term.GAP: 1150.0, Term.EVENT: 2500.0, Term.STREAM_RETURN: 4000.0},
    "Turing": {Term.LAUNCH: 200.0, Term.STREAM_RETURN: 6500.0},
    "Ampere": {Term.LAUNCH: 2000.0, Term.GAP: 1700.0, Term.EVENT: 4000.0, Term.STREAM_RETURN: 6000.0},
    "Hopper": {Term.LAUNCH: 1550.0, Term.GAP: 1450.0, Term.STREAM_RETURN: 4000.0},
    "Blackwell": {Term.LAUNCH: 2900.0, Term.GAP: 2000.0, Term.DEVICE_RETURN: 6800.0},
    "CDNA": {Term.LAUNCH: 15500.0, Term.GAP: 800.0, Term.EVENT: 14500.0, Term.DEVICE_RETURN: 6500.0},
}
"""Means over the traces of each generation; `wavecast replay` prints a trace's own."""


def generation_latencies(architecture: str | None) -> Floats:
    """Return the latency of each term on GPUs of an architecture, [terms]; defaults where none was measured."""
    known = next((values for name, values in _OF_GENERATION.items() if (architecture or "").startswith(name)), {})
    return np.array([known.get(term, _DEFAULT[term]) for term in Term])
