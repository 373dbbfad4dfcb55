"""What is asked of an engine: requests at all times, at a rate, or as a file has them."""

import csv
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats
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
LAST_ARRIVAL_NS: Final = 1e19
"""Three hundred years: some count from 1970."""
MOST_TOKENS: Final = 10_000_000
"""No model's context is as long."""
ARRIVALS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("arrival_s", "queued_s", "arrival", "arrival_time"), SECOND),
    "timestamp": 1e6,
}
"""Names of arrivals → ns of their unit; `timestamp` is in ms, as Mooncake's traces have it."""
PROMPTS: Final = ("prompt", "input_tokens", "prompt_tokens", "input_length", "input_toks")
OUTPUTS: Final = ("output", "output_tokens", "completion_tokens", "output_length", "output_toks")
FIRSTS: Final = ("first_token_s", "first_token_ts", "first_token_time")
LASTS: Final = ("last_token_s", "last_token_ts", "last_token_time")
_RESULT: Final = ("arrival_s", "prompt", "output", "last_token_s", "first_token_s")
"""What is kept of a benchmark's request; its last token's time counts from its first."""


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
    """Return the requests of a CSV file, of JSON lines, or of what vLLM's and GuideLLM's benchmarks write.

    Raises InputError for a file that lacks arrival, prompt or output, and for lengths that are no counts above 0.
    """
    return _read(path)[0]


def read_measured(path: Path) -> tuple[RequestLoad, Floats]:
    """Return the same, and the ns from each request's first token to its last, [r]; NaN where one is not given."""
    load, rows = _read(path)
    found = [next((name for name in names if name in rows[0]), "") for names in (FIRSTS, LASTS)]
    if "" in found:
        raise InputError(f"{path.name}: expected times {FIRSTS[0]} and {LASTS[0]} of each request, as measured")
    first, last = np.array([[_number(row, name) for name in found] for row in rows]).T
    return load, (last - first) * SECOND


def _read(path: Path) -> tuple[RequestLoad, list[Any]]:
    """Return the requests, and what the file says of each, in order of arrival."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = path.suffix.casefold() in (".jsonl", ".json")
        rows = _json_rows(text, path.name) if is_json else list(csv.DictReader(text.splitlines()))
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, csv.Error) as error:
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
    order = np.argsort(values[:, 0], kind="stable")
    values = values[order]
    arrival = (values[:, 0] - values[0, 0]) * ARRIVALS[found[0]]
    prompts, outputs = values[:, 1:].astype(np.int64).T
    return RequestLoad(arrival_ns=arrival, prompts=prompts, outputs=outputs), [rows[place] for place in order.tolist()]


def _json_rows(text: str, name: str) -> list[Any]:
    """Return what JSON says of each request: a line, or a row of a benchmark's result."""
    try:
        document = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    if not isinstance(document, dict) or not {"input_lens", "benchmarks"} & set(document):
        return document if isinstance(document, list) else [document]
    try:
        if "benchmarks" in document:
            (benchmark,) = document["benchmarks"]
            names = "request_start_time", "prompt_tokens", "output_tokens", "inter_token_latency_ms"
            found = [[row[name] for name in names] for row in benchmark["requests"]["successful"]]
            rows = [(*row, (gap_ms or 0.0) / 1e3 * (row[-1] - 1)) for *row, gap_ms in found]
        else:
            columns = [document[name] for name in ("start_times", "input_lens", "output_lens", "itls")]
            rows = [(*row, sum(gaps)) for *row, gaps in zip(*columns, strict=True) if row[-1]]  # Failed ones: 0 tokens.
        return [dict(zip(_RESULT, (*row, 0.0), strict=True)) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        expected = "a result of vllm bench serve --save-detailed, or one benchmark of GuideLLM"
        raise InputError(f"{name}: expected {expected}: {error!r}") from None


def _number(row: object, name: str) -> float:
    """Return a number of a request; NaN for what is none."""
    value = row.get(name) if isinstance(row, dict) else None
    try:
        return float("nan") if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return float("nan")
