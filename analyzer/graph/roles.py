"""What a CUDA, HIP or SYCL runtime call does to the timeline, by its name."""

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import distinct


class Role(IntEnum):
    """Say what a call does besides taking the host's time."""

    NONE = 0
    SYNC_DEVICE = 1
    SYNC_STREAM = 2
    SYNC_EVENT = 3
    WAIT_EVENT = 4
    GRAPH_LAUNCH = 5


_PREFIX: Final = r"(cuda|hip|cu)"
_RULES: Final = (
    (re.compile(_PREFIX + r"(Device|Ctx|Thread)Synchronize"), Role.SYNC_DEVICE),
    (re.compile(_PREFIX + r"StreamSynchronize"), Role.SYNC_STREAM),
    (re.compile(_PREFIX + r"EventSynchronize"), Role.SYNC_EVENT),
    (re.compile(_PREFIX + r"StreamWaitEvent"), Role.WAIT_EVENT),
    (re.compile(_PREFIX + r"GraphLaunch"), Role.GRAPH_LAUNCH),
    (re.compile(r"(ur|pi)QueueFinish|ze(CommandQueue|CommandListHost|FenceHost)Synchronize"), Role.SYNC_STREAM),
    (re.compile(r"urEventWait$|piEventsWait$|zeEventHostSynchronize"), Role.SYNC_EVENT),
)


def call_roles(strings: Sequence[str], names: npt.NDArray[np.int32]) -> npt.NDArray[np.int8]:
    """Return the role of each call, given the name table and each call's index into it.

    >>> call_roles(("cudaLaunchKernel", "cudaGraphLaunch"), np.array([0, 1, 0])).tolist()
    [0, 5, 0]
    """
    known = distinct(names)
    of_name = np.zeros(len(strings) + 1, dtype=np.int8)
    for name in known.tolist():
        of_name[name] = next((role for rule, role in _RULES if rule.match(strings[name])), Role.NONE)
    return np.asarray(of_name[names])
