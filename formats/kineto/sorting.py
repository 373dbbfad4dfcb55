"""Sorts the events of a chunk by what they tell of time: for choosing a part of a file, and for keeping it."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Raw

from ...arrays import Mask
from ...records import dataclass, field
from ..recording.ranges import read_mark
from .collect import MODULE_SPAN_PREFIX
from .events import MEMORY_NAME, Event, LightEvent, current_category
from .values import Integers, read_microseconds

_NO_TIME: Final = Raw(b"0")
_PLACES: Final = {
    "cuda_runtime": "calls", "cuda_driver": "calls", "hip_runtime": "calls", "hip_driver": "calls",
    "xpu_runtime": "calls", "xpu_driver": "calls", "kernel": "kernels", "gpu_memcpy": "kernels",
    "gpu_memset": "kernels", "cuda_sync": "syncs", "xpu_sync": "syncs", "python_function": "around",
    "fwdbwd": "around",
}  # fmt: skip
"""Where events of a category go, whatever their name; `around` is read, but not what a recording begins with."""


@dataclass(slots=True, kw_only=True)
class EventPlaces:
    """Hold where in a chunk the events of each kind are."""

    ops: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    syncs: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    around: list[int] = field(default_factory=list)
    counts: dict[str | None, int] = field(default_factory=dict)
    """Events of each category, those too that are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Hold when events ran, and which of them can be read; those of a moment last no time."""

    start_ns: Integers
    duration_ns: Integers
    is_valid: Mask

    @property
    def end_ns(self) -> Integers:
        """Return the end of each."""
        return self.start_ns + self.duration_ns


def sort_events(events: Sequence[Event | LightEvent]) -> EventPlaces:
    """Return where the events of each kind are."""
    places = EventPlaces()
    for place, event in enumerate(events):
        category = current_category(event)
        places.counts[category] = places.counts.get(category, 0) + 1
        if category == "cpu_op":
            is_module = event.name is not None and event.name.startswith(MODULE_SPAN_PREFIX)
            (places.around if is_module else places.ops).append(place)
        elif category in _PLACES:
            getattr(places, _PLACES[category]).append(place)
        elif category == "user_annotation":
            (places.marks if read_mark(event.name or "") else places.around).append(place)
        elif category == "cpu_instant_event" and event.name == MEMORY_NAME:
            places.memory.append(place)
    return places


def read_spans(events: Sequence[Event | LightEvent], *, lasting: bool = True) -> Spans:
    """Return when events ran; `lasting` ones are complete or not readable."""
    start = read_microseconds([event.ts for event in events])
    duration = read_microseconds([event.dur if event.ph == "X" else _NO_TIME for event in events])
    is_valid = start.is_valid & duration.is_valid & (duration.ns >= 0)
    if lasting:
        is_valid = is_valid & np.array([event.ph == "X" for event in events], dtype=bool)
    return Spans(start_ns=start.ns, duration_ns=duration.ns, is_valid=is_valid)
