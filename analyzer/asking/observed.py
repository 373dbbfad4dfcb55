"""Times of the iteration that users measured themselves, as they give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Final, SupportsFloat

from ...errors import InputError, parameter
from ...records import replace

if TYPE_CHECKING:
    from ..iteration.decision.observed import Observation
    from ..iteration.result import Analysis
    from .question import Gpus

_UNITS_NS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3, "μs": 1e3}
_TIME: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,2})?)\s*([a-zµμ]*)", re.IGNORECASE)
_LONGEST_NS: Final = 1e15
"""Eleven days: no iteration takes longer."""


def with_observed(
    gpus: Gpus, observed: Mapping[str, str | float] | Sequence[str], *, largest_batch: bool
) -> tuple[Gpus, tuple[Observation, ...]]:
    """Return the GPUs that were named with those that were observed, where not all are meant, and what was observed.

    Raises InputError for what is no time, and for a GPU that stands twice.
    """
    from ...specs.match import find_gpu
    from ..iteration.decision.observed import Observation

    if observed and largest_batch:
        raise InputError(
            f"an observed time is of one batch: leave {parameter('observed')} out beside {parameter('largest_batch')}"
        )
    if isinstance(observed, list | tuple):
        observed = split_observed(observed)
    if not isinstance(observed, Mapping):
        raise InputError(f"observed: expected times by GPU, e.g. {{'L40S': '212 ms'}}, got {type(observed).__name__}")
    targets, found = {gpu.name: gpu for gpu in gpus.targets}, dict[str, Observation]()
    for name, time in observed.items():
        gpu = find_gpu(gpus.catalog, name)
        if gpu.name in found:
            raise InputError(f"{gpu.name} was observed twice: give one time per GPU, e.g. the median")
        found[gpu.name] = Observation(gpu=gpu.name, time_ns=read_observed_ns(name, time))
        targets[gpu.name] = gpu
    return replace(gpus, targets=tuple(targets.values())) if gpus.targets else gpus, tuple(found.values())


def check_observed(observations: Iterable[Observation], result: Analysis) -> None:
    """Raise InputError for what was observed on the recorded GPU, and on those that are not predicted."""
    known = {gpu.name for gpu in result.prediction.fleet.gpus}
    for item in observations:
        if item.gpu not in known:
            raise InputError(
                f"{item.gpu} was observed, but is none of the GPUs predicted: name it with {parameter('to')}"
            )
        if result.origin is not None and item.gpu == result.origin.name and not result.scenario.changes_anything:
            raise InputError(f"{item.gpu} is the GPU that was recorded: its time is known; observe another")


def read_observed_ns(name: str, time: str | float) -> float:
    """Return a time in ns: `212ms`, `0.2 s`, `850 µs`; a number counts seconds. Raises InputError for anything else."""
    if isinstance(time, str):
        found = _TIME.fullmatch(time.strip())
        unit = found[2].lower() if found else ""
        if found is None or (unit and unit not in _UNITS_NS):
            raise InputError(f"observed on {name}: {time!r} is no time; expected one such as 212ms, 0.2s or 850us")
        if not unit:
            raise InputError(f"observed on {name}: {time!r} has no unit; expected s, ms or us, e.g. {time.strip()}ms")
        value = float(found[1]) * _UNITS_NS[unit]
    else:
        value = float(time) * 1e9 if isinstance(time, SupportsFloat) else float("nan")
    if not (isfinite(value) and 0 < value <= _LONGEST_NS):
        raise InputError(f"observed on {name}: {time!r} is no time that an iteration takes; expected e.g. 212ms")
    return value


def split_observed(options: Iterable[str]) -> dict[str, str]:
    """Return the times by GPU of options like `L40S=212ms`. Raises InputError for one without `=`, or a GPU twice."""
    found: dict[str, str] = {}
    for text in options:
        name, equals, time = str(text).rpartition("=")
        if not equals or not name.strip():
            raise InputError(
                f"{parameter('observed')} {text!r}: expected a GPU and its time, e.g. {parameter('observed')} "
                "'L40S=212ms'"
            )
        if name.strip() in found:
            raise InputError(f"{name.strip()} was observed twice: give one time per GPU, e.g. the median")
        found[name.strip()] = time
    return found
