"""What is asked of an engine: requests at all times, at a rate, or as a file has them."""

import csv
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....errors import InputError
from ....records import replace
from .schedule import RequestLoad

WAVES: Final = 4
"""Requests per place of a closed load, the first of which fills the engine and does not count."""
LEAST_REQUESTS: Final = 64
OPEN_REQUESTS: Final = 300
SPREAD: Final = 0.1
"""Lengths are drawn evenly between 1 - this and 1 + this times the given ones."""
SECOND: Final = 1e9
LAST_ARRIVAL_NS: Final = 1e18
"""Thirty years."""
MOST_TOKENS: Final = 10_000_000
"""No model's context is as long."""
ARRIVALS: Final[Mapping[str, float]] = {"arrival_s": 1e9, "queued_s": 1e9, "arrival": 1e9, "timestamp": 1e6}
"""Names of arrivals → ns of their unit; `timestamp` is in ms, as Mooncake's traces have it."""
PROMPTS: Final = ("prompt", "input_tokens", "prompt_tokens", "input_length")
OUTPUTS: Final = ("output", "output_tokens", "completion_tokens", "output_length")


@lru_cache(maxsize=1024)
def closed_load(concurrency: int, prompt: int, output: int, seed: int) -> RequestLoad:
    """Return so many requests at all times; the same object for the same ones.

    >>> closed_load(2, 100, 10, seed=0).concurrency
    2
    """
    count = max(WAVES * concurrency, LEAST_REQUESTS)
    prompts, outputs = _lengths(count, prompt, output, np.random.default_rng(seed))
    return RequestLoad(arrival_ns=np.zeros(count), prompts=prompts, outputs=outputs, concurrency=concurrency)


def open_load(rate_per_s: float, prompt: int, output: int, seed: int, count: int = OPEN_REQUESTS) -> RequestLoad:
    """Return requests that come at random (Poisson) at a rate.

    >>> open_load(2.0, 100, 10, seed=0).concurrency
    0
    """
    generator = np.random.default_rng(seed)
    arrival = np.cumsum(generator.exponential(SECOND / rate_per_s, count))
    prompts, outputs = _lengths(count, prompt, output, generator)
    return RequestLoad(arrival_ns=arrival, prompts=prompts, outputs=outputs)


def computed(load: RequestLoad, transfer_ns: float) -> RequestLoad:
    """Return requests whose prompts other GPUs computed, and sent in so long.

    >>> computed(open_load(2.0, 100, 10, seed=0), 1e6).first_ns is None
    False
    """
    return replace(load, arrival_ns=load.arrival_ns + transfer_ns, first_ns=load.arrival_ns)


def _lengths(count: int, prompt: int, output: int, generator: np.random.Generator) -> Any:
    drawn = generator.uniform(1.0 - SPREAD, 1.0 + SPREAD, (2, count))
    lengths = np.maximum(np.rint(drawn * np.array([[prompt], [output]])), 1.0)
    return lengths.astype(np.int64)


def read_requests(path: Path) -> RequestLoad:
    """Return the requests of a CSV file, or of one JSON object per line: arrival, prompt, output.

    Raises InputError for a file that lacks one of them, and for lengths that are no whole numbers above 0.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = path.suffix.casefold() in (".jsonl", ".json")
        lines = text.splitlines()
        rows = [json.loads(line) for line in lines if line.strip()] if is_json else list(csv.DictReader(lines))
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path.name}: expected requests, CSV or a JSON object per line: {error}") from error
    if not rows or not isinstance(rows[0], dict):
        raise InputError(f"{path.name}: holds no requests")
    found = [next((name for name in names if name in rows[0]), "") for names in (tuple(ARRIVALS), PROMPTS, OUTPUTS)]
    if "" in found:
        raise InputError(f"{path.name}: expected columns {next(iter(ARRIVALS))}, {PROMPTS[0]} and {OUTPUTS[0]}")
    values = np.array([[_number(row, name) for name in found] for row in rows])
    lengths = values[:, 1:]
    is_whole = (lengths >= 1) & (lengths < MOST_TOKENS) & (np.rint(lengths) == lengths)
    wrong = np.flatnonzero(
        ~is_whole.all(axis=1) | ~(values[:, 0] >= 0) | (values[:, 0] >= LAST_ARRIVAL_NS / ARRIVALS[found[0]])
    )
    if len(wrong):
        expected = f"an arrival from 0 on, and whole numbers of tokens from 1 to {MOST_TOKENS - 1:,}"
        raise InputError(f"{path.name}: request {wrong[0] + 1}: expected {expected}")
    values = values[np.argsort(values[:, 0], kind="stable")]
    arrival = (values[:, 0] - values[0, 0]) * ARRIVALS[found[0]]
    return RequestLoad(arrival_ns=arrival, prompts=values[:, 1].astype(np.int64), outputs=values[:, 2].astype(np.int64))


def _number(row: object, name: str) -> float:
    """Return a number of a request; NaN for what is none."""
    value = row.get(name) if isinstance(row, dict) else None
    try:
        return float("nan") if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return float("nan")
