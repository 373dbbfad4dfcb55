"""The charts of a finished batch."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from ....arrays import Floats, Mask
from ....formats.trace.printable import clean_text
from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import HEAT_INK
from ...page.quantity import format_factor, format_time
from .fleet import FleetTimes

MOST_TRACES: Final = 60
"""Lines of a table of colours: those that take longest on their best GPU."""
MOST_GPUS: Final = 40
"""Its columns: the GPUs that are fastest on the geometric mean."""
MOST_WHAT_IFS: Final = 4
"""What-ifs that are drawn; the tables and the table's file hold all."""
MOST_TIMES: Final = 4.0
"""Times the best one from which on cells have one colour."""
SEVERAL: Final = 2


def illustrate_batch(page: Page, times: Sequence[FleetTimes]) -> Page:
    """Return the page of a batch with charts; `times` are those of each trace on each GPU, by what-if."""
    drawn = times[:MOST_WHAT_IFS]
    cut = plot.cut_words(len(drawn), len(times), "what-ifs")
    charts = [_heat_chart(item, "" if len(times) == 1 else f" ({clean_text(item.what_if)})", cut) for item in drawn]
    return plot.place_charts(page, details=charts)


def _heat_chart(times: FleetTimes, ending: str, cut: str) -> Chart | None:
    """Draw a table of colours: the time of each trace on each GPU relative to the best one that it fits."""
    usable = np.where(times.fits, times.time_ns, np.nan)
    some = np.asarray(np.isfinite(usable).any(axis=1))
    if not some.any() or len(times.gpus) < SEVERAL:
        return None
    best = np.full(len(usable), np.nan)
    best[some] = np.nanmin(usable[some], axis=1)
    ratio = times.time_ns / best[:, None]
    lines = [at for at in np.argsort(-np.nan_to_num(best), kind="stable").tolist() if some[at]][:MOST_TRACES]
    columns = _fastest(ratio[some])[:MOST_GPUS]
    names = plot.labels(times.traces[at].name.removesuffix(".gz").removesuffix(".json") for at in lines)
    rows = [row for at, name in zip(lines, names, strict=True) for row in _cells(times, ratio, at, name, columns)]
    told = (("trace", "trace"), ("gpu", "GPU"), ("time", "time"), ("slower", "of the best"), ("fits", "memory"))
    colour = plot.heat("ratio", "times the best", (1.0, SEVERAL, MOST_TIMES), clamp=True)
    spec = {
        "height": plot.bars_height(len(lines)),
        "encoding": {
            "x": plot.along("gpu", angle=-60) | {"scale": {"domain": [times.gpus[at] for at in columns]}},
            "y": plot.along("trace") | {"scale": {"domain": names}},
            "tooltip": plot.said(*told),
        },
        "layer": [
            plot.marks("rect", {"color": colour}),
            plot.marks("text", {}, where="datum.fits == 'does not fit'", color=HEAT_INK, text="×", fontSize=12),
        ],
    }
    first = int(columns[0])
    text = (
        "The time of each trace on each GPU relative to the best that it fits; × marks what does not fit. On the "
        f"geometric mean {times.gpus[first]} is fastest."
        f"{plot.cut_words(len(lines), int(some.sum()), 'traces, those that take longest,')}"
        f"{plot.cut_words(len(columns), len(times.gpus), 'GPUs')}{cut}"
    )
    return plot.build_chart(f"Traces on GPUs{ending}", text, spec, rows, told)


def _fastest(ratio: Floats) -> list[int]:
    """Return the GPUs that have a time of any trace, those of the least geometric mean first."""
    known: Mask = np.asarray(np.isfinite(ratio), dtype=bool)
    logs = np.where(known, np.log(np.where(known & (ratio > 0), ratio, 1.0)), 0.0).sum(axis=0)
    mean = logs / np.maximum(known.sum(axis=0), 1)
    return [at for at in np.argsort(mean, kind="stable").tolist() if np.any(known[:, at])]


def _cells(times: FleetTimes, ratio: Floats, at: int, name: str, columns: Sequence[int]) -> Iterator[dict[str, Any]]:
    for column in columns:
        if np.isfinite(ratio[at, column]):
            yield {
                "trace": name,
                "gpu": times.gpus[column],
                "ratio": float(ratio[at, column]),
                "time": format_time(float(times.time_ns[at, column])),
                "slower": format_factor(float(ratio[at, column])),
                "fits": "fits" if times.fits[at, column] else "does not fit",
            }
