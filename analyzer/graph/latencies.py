"""How long launches, gaps, waits and returns take by themselves: a table by GPU generation, refined on each trace."""

from enum import IntEnum
from typing import Final

import numpy as np

from ...arrays import Floats
from ...formats.files.constants import read_constants
from ...specs.generations import generation_of, is_of_amd


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
CONSTANTS: Final = "latencies"
DEFAULT: Final = "default"
"""The part of the file for generations of which no trace tells a term."""
AMD: Final = "AMD"
"""The same for AMD's, whose runtime launches otherwise."""


def generation_latencies(architecture: str | None) -> Floats:
    """Return the latency of each term on GPUs of an architecture, [terms]; its vendor's or the default where none was.

    Means over the traces of each generation, by mlp_weights/train/latencies.py; `wavecast replay` prints a trace's own.
    """
    table = read_constants(CONSTANTS)
    of_vendor = table.get(AMD, {}) if is_of_amd(architecture) else {}
    known = table[DEFAULT] | of_vendor | table.get(generation_of(architecture) or "", {})
    return np.array([0.0 if term is Term.NONE else known[term.name.lower()] for term in Term])
