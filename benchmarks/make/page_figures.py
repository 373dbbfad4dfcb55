"""The numbers that the pages state: errors from the kept score, and what the catalogue holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import log
from pathlib import Path
from statistics import fmean

from wavecast.analyzer.questions.score.page.own import GPU_BOUND_RATIO
from wavecast.analyzer.questions.score.report import IterationScore, OwnNetworkRow, Score, ScoreRow, ServingRow, Size
from wavecast.specs.catalog import load_catalog
from wavecast.specs.prices.book import shipped_prices

from .accuracy import read_score

SCORE = Path(__file__).parents[2] / "docs/evidence/accuracy.json.gz"
ALL = "all"


def figures() -> Mapping[str, Callable[[], str]]:
    """Return what writes each number, by its name in the pages."""
    return {
        "accuracy table": accuracy_table,
        "gpus": lambda: str(len(load_catalog().gpus)),
        "priced gpus": lambda: str(len(_prices())),
        "price month": _price_month,
        "op error": lambda: _percent(_ops().mape),
        "op coverage": lambda: _percent(_ops().coverage_90),
        "shapes error": lambda: _percent(_log_error((row.predicted_ns, row.measured_ns) for row in _own())),
        "serving error": lambda: _percent(_serving("tpot").mape),
        "ttft error": lambda: _percent(_serving("ttft").mape),
        "ttft coverage": lambda: _percent(_serving("ttft").covered),
        "many gpus error": lambda: _percent(_error(_many())),
    }


def accuracy_table() -> str:
    """Return the table of errors, what the intervals held, and a simpler prediction beside them."""
    rows = [
        "| predicted | rows | off by | in its 90 % interval | a simpler prediction |",
        "|---|---:|---:|---:|---|",
        *(f"| {' | '.join(cells)} |" for cells in _table_rows()),
    ]
    return "\n".join(rows) + "\n"


def _table_rows() -> Iterator[tuple[str, ...]]:
    ops = _ops()
    yield (
        "ops over 20 µs, on chips that no weight saw",
        f"{ops.rows:,}",
        _percent(ops.mape),
        _percent(ops.coverage_90),
        _roofline(ops.baselines["roofline"]),
    )
    own = [(row.predicted_ns, row.measured_ns) for row in _own()]
    held = [row.low_ns <= row.measured_ns <= row.high_ns for row in _own() if row.low_ns and row.high_ns]
    bare = [(row.roofline_ns, row.measured_ns) for row in _own() if row.roofline_ns]
    yield (
        "GPU time of real iterations on H100 and H200, from shapes alone",
        f"{len(own)}",
        _percent(_log_error(own)),
        _percent(fmean(held)),
        _roofline(_log_error(bare) if bare else None),
    )
    for name, is_bound in (("the GPU limits", True), ("the host limits", False)):
        yield _moved_row(f"those iterations moved from one to the other, {name}", is_bound)
    many = _many()
    known = [row for row in many if row.low_ns and row.high_ns]
    yield (
        f"iterations on up to {max(row.gpus for row in many):,} GPUs, from sizes",
        f"{len(many)}",
        _percent(_error(many)),
        _percent(fmean((row.low_ns or 0) <= row.measured_ns <= (row.high_ns or 0) for row in known)),
        f"40 % of the peak {_percent(_error(many, 'fixed_mfu'))}",
    )
    for measure, name in (("tpot", "time per token"), ("ttft", "time to first token")):
        served = _serving(measure)
        yield (
            f"serving under load: {name}",
            f"{served.rows:,}",
            _percent(served.mape),
            _percent(served.covered),
            _roofline(served.roofline),
        )


def _moved_row(name: str, is_bound: bool) -> tuple[str, ...]:
    """Return the row of iterations predicted from the recording on the other GPU, beside its time as it is."""
    recorded = {(row.network, row.gpu): row.loop_ns for row in _own() if row.loop_ns}
    rows = [row for row in _own() if row.moved_iteration_ns and _is_gpu_bound(row) == is_bound]
    other = [
        (ns, row.iteration_ns)
        for row in rows
        for (network, gpu), ns in recorded.items()
        if network == row.network and gpu != row.gpu
    ]
    held = [
        row.moved_low_ns <= row.iteration_ns <= row.moved_high_ns
        for row in rows
        if row.moved_low_ns is not None and row.moved_high_ns is not None
    ]
    return (
        name,
        f"{len(rows)}",
        _percent(_log_error((row.moved_iteration_ns or 0.0, row.iteration_ns) for row in rows)),
        _percent(fmean(held)),
        f"the recorded time as it is {_percent(_log_error(other))}",
    )


def _is_gpu_bound(row: OwnNetworkRow) -> bool:
    return (row.busy_ns or row.measured_ns) >= GPU_BOUND_RATIO * row.iteration_ns


def _log_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the mean of |ln(predicted / measured)|."""
    return fmean(abs(log(predicted / measured)) for predicted, measured in pairs if predicted > 0 and measured > 0)


def _error(rows: Sequence[IterationScore], baseline: str | None = None) -> float:
    """Return the mean of |predicted / measured - 1|, or that of a baseline where it says something."""
    found = [row.predicted_ns if baseline is None else row.baselines_ns.get(baseline) for row in rows]
    return fmean(abs(ns / row.measured_ns - 1) for ns, row in zip(found, rows, strict=True) if ns is not None)


def _ops() -> ScoreRow:
    return next(
        row for row in _score().rows if (row.table, row.family, row.gpu, row.size) == (ALL, ALL, ALL, Size.OVER_20_US)
    )


def _own() -> Sequence[OwnNetworkRow]:
    return _score().own_networks


def _many() -> list[IterationScore]:
    return [row for row in _score().iterations if not row.given_gpus]


def _serving(measure: str) -> ServingRow:
    """Return the errors of the largest set of served models."""
    return max((row for row in _score().serving if row.measure == measure), key=lambda row: row.rows)


def _roofline(error: float | None) -> str:
    return "none scored" if error is None else f"roofline {_percent(error)}"


@cache
def _score() -> Score:
    return read_score(SCORE)


@cache
def _prices() -> Mapping[str, str]:
    """Return the middle date of the listings that each GPU's price is of, by the GPU's name."""
    book = shipped_prices()
    found = {gpu.name: book.price_of(gpu) for gpu in load_catalog().gpus}
    return {name: price.middle_date or "" for name, price in found.items() if price is not None}


def _price_month() -> str:
    """Return the month of the middle one of the prices that are dated."""
    return sorted(date for date in _prices().values() if date)[sum(map(bool, _prices().values())) // 2][:7]


def _percent(ratio: float) -> str:
    return f"{ratio:.1%}".replace("%", " %")
