"""Gives the events of PyTorch 1.8 to 1.12 the names that later versions write: categories, threads, annotations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from .events import Event, LightEvent

MEMORY_NAME: Final = "[memory]"
"""Names the allocator's events, which had no category at first."""
_OPERATOR: Final = "Operator"
_CATEGORIES: Final = {
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "forward_backward": "fwdbwd",
}
_OP_NAME: Final = re.compile(
    r"\w+(?:::\w+)+|autograd::engine::evaluate_function: \w+(?:::\w+)*|detach_?|record_param_comms"
)
"""Ops are called so; `ProfilerStep#3`, `enumerate(DataLoader)#…` and what a script annotates itself shared their
category, and a script's words stay out of traces."""


def group_events(events: Sequence[Event]) -> tuple[Mapping[str | None, list[Event]], bool]:
    """Return the events by category, those of the old versions renamed in place, and whether there were any."""
    groups = _by_category(events)
    old = [event for event in groups.get(None, ()) if event.name == MEMORY_NAME]
    for category in (_OPERATOR, *_CATEGORIES):
        old += groups.get(category, ())
    for event in old:
        _rename(event)
    return (_by_category(events), True) if old else (groups, False)


def current_category(event: Event | LightEvent) -> str | None:
    """Return the category that an event has today."""
    if event.cat is None:
        return "cpu_instant_event" if event.name == MEMORY_NAME else None
    if event.cat == _OPERATOR:
        return "cpu_op" if _is_op(event) else "user_annotation"
    return _CATEGORIES.get(event.cat, event.cat)


def _by_category(events: Sequence[Event]) -> Mapping[str | None, list[Event]]:
    groups: defaultdict[str | None, list[Event]] = defaultdict(list)
    for event in events:
        groups[event.cat].append(event)
    return groups


def _rename(event: Event) -> None:
    if event.cat == _OPERATOR and event.args is not None and not bytes(event.args.input_dims):
        event.args.input_dims = event.args.first_input_dims
    event.cat = current_category(event)
    event.pid, event.tid = _plain_number(event.pid), _plain_number(event.tid)


def _is_op(event: Event | LightEvent) -> bool:
    """Say whether an operator event is an op: nodes of the autograd graph, whatever they are called, have a number."""
    has_number = event.args is not None and event.args.sequence is not None
    return has_number or _OP_NAME.fullmatch(event.name or "") is not None


def _plain_number(value: int | str | float | None) -> int | str | float | None:
    """Return the number that a text is: a thread was `"7"` on some events and `7` on others."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
