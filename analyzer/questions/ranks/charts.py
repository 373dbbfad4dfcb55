"""The charts of several ranks of one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import BAD, GOOD, HEAT_INK, NEUTRAL
from ...page.quantity import format_time
from ...page.timeline.bars import lay_bars
from ...page.vega import INK, OLIVE, ORANGE, PINK
from .activity import RankActivity, RankState
from .report import RankRow, RanksReport

MOST_RANKS: Final = 32
NUMBERED_RANKS: Final = 10
"""Of so many, cells of a table of colours have room for numbers, and lanes are wide."""
WIDTH_PX: Final = 900
_UNSEEN: Final = "waits for unseen ranks"
_UNDIVIDED: Final = "sends or waits, unseen"
STATE_WORDS: Final = {
    RankState.COMPUTES: "computes",
    RankState.SENDS: "sends",
    RankState.WAITS: "waits for a rank",
    RankState.SENDS_UNSEEN: "sends to unseen ranks",
    RankState.WAITS_UNSEEN: _UNSEEN,
    RankState.UNDIVIDED: _UNDIVIDED,
}
_COLOURS: Final = {
    STATE_WORDS[RankState.COMPUTES]: GOOD,
    STATE_WORDS[RankState.SENDS]: PINK,
    STATE_WORDS[RankState.SENDS_UNSEEN]: NEUTRAL,
    STATE_WORDS[RankState.WAITS]: BAD,
    _UNSEEN: ORANGE,
    _UNDIVIDED: OLIVE,
}
SEVERAL: Final = 2


def illustrate_ranks(page: Page, report: RanksReport, activity: RankActivity | None = None) -> Page:
    """Return the page of compared ranks with charts; `activity` is what they do in the iteration."""
    drawn = [None, None] if activity is None else [_timeline_chart(activity, _device(report)), _waiting_chart(activity)]
    return plot.place_charts(page, lead=drawn, details=[_part_chart(report), _job_chart(report)])


def _device(report: RanksReport) -> str:
    return "CPU" if report.is_on_hosts else "GPU"


def _timeline_chart(activity: RankActivity, device: str) -> Chart | None:
    """Draw a lane per rank: what its GPU does, waits on top."""
    shown = _shown(activity)
    end_ns = float(activity.end_ns.max(initial=1.0))
    rows = [row for at in shown for row in _lane(activity, at, end_ns)]
    if not rows:
        return None
    told = (("rank", "rank"), ("state", f"the {device}"), ("whom", "waits for"), ("from", "from"), ("for", "for"))
    is_small = len(shown) <= NUMBERED_RANKS
    bar = {
        "x": plot.quantitative("start_ms", "ms since the first rank's start"),
        "x2": {"field": "end_ms"},
        "color": plot.coloured("state", None, _COLOURS, among=rows),
        "opacity": plot.quantitative("opacity", scale=None),
        "tooltip": plot.said(*told),
    }
    begin = {
        "x": plot.quantitative("begin_ms"),
        "tooltip": plot.said(("rank", "rank"), ("begins", "begins the iteration")),
    }
    spec = {
        "height": plot.bars_height(len(shown)) * (2 if is_small else 1),
        "encoding": {"y": plot.along("rank", "rank")},
        "layer": [
            plot.marks("bar", bar, stroke=None),
            plot.marks("tick", begin, where="datum.is_first", thickness=3, size=34 if is_small else 18, color=INK),
        ],
    }
    number = "" if activity.iteration is None else f" number {activity.iteration}"
    text = (
        f"What the {device} of each rank does in the iteration{number}, on one clock; marks show where a rank's host "
        f"begins it. {_worst(activity)}{_cut(len(shown), len(activity.ranks))}"
    )
    return plot.build_chart("The ranks' timelines", text, spec, rows, told)


def _cut(shown: int, total: int) -> str:
    """Say that a chart shows some of the ranks; nothing where it shows all."""
    return f" The {shown} of {total:,} ranks that wait or are waited for most are shown." if shown < total else ""


def _shown(activity: RankActivity) -> list[int]:
    """Return the ranks to draw: those that wait or are waited for most, in order."""
    weight = activity.waiting_ns.sum(axis=0) + activity.waiting_ns.sum(axis=1)
    return sorted(np.argsort(-weight, kind="stable")[:MOST_RANKS].tolist())


def _worst(activity: RankActivity) -> str:
    """Say who waits longest for whom."""
    if not activity.waiting_ns.any():
        return "No rank waits for another."
    who, whom = np.unravel_index(int(activity.waiting_ns.argmax()), activity.waiting_ns.shape)
    time = format_time(float(activity.waiting_ns[who, whom]))
    return f"Longest, {time} in all, rank {activity.ranks[who]} waits for rank {activity.ranks[whom]}."


def _lane(activity: RankActivity, at: int, end_ns: float) -> Iterator[dict[str, Any]]:
    """Yield the bars of a rank: the waits over the rest, since a wait runs beside kernels of other streams."""
    mine, scale = np.flatnonzero(activity.rank == at), WIDTH_PX / end_ns
    is_first = True
    for waits in (False, True):
        rows = mine[(activity.state[mine] == RankState.WAITS) == waits]
        bars = lay_bars(activity.start_ns[rows] * scale, activity.end_ns[rows] * scale, activity.state[rows], WIDTH_PX)
        for x, width, code, opacity, item in bars.each():
            whom = int(activity.waited_for[rows[item]]) if item >= 0 else -1
            yield {
                "rank": str(activity.ranks[at]),
                "state": STATE_WORDS[RankState(code)],
                "whom": f"rank {activity.ranks[whom]}" if whom >= 0 else "–",
                "start_ms": x / scale / 1e6,
                "end_ms": (x + width) / scale / 1e6,
                "begin_ms": float(activity.begin_ns[at]) / 1e6,
                "begins": format_time(float(activity.begin_ns[at])),
                "from": format_time(x / scale),
                "for": format_time(width / scale),
                "opacity": opacity,
                "is_first": is_first,
            }
            is_first = False


def _waiting_chart(activity: RankActivity) -> Chart | None:
    """Draw who waits for whom as a table of colours."""
    if not activity.waiting_ns.any():
        return None
    shown = _shown(activity)
    rows = [
        {
            "who": str(activity.ranks[who]),
            "whom": str(activity.ranks[whom]),
            "wait_ms": float(activity.waiting_ns[who, whom]) / 1e6,
            "wait": format_time(float(activity.waiting_ns[who, whom])),
        }
        for who in shown
        for whom in shown
        if who != whom
    ]
    told = (("who", "rank"), ("whom", "waits for rank"), ("wait", "in all"))
    names = {"scale": {"domain": [str(activity.ranks[at]) for at in shown]}}
    is_small = len(shown) <= NUMBERED_RANKS
    spec = {
        "height": plot.bars_height(len(shown)) * (2 if is_small else 1),
        "encoding": {
            "x": plot.along("whom", "is waited for", angle=0) | names,
            "y": plot.along("who", "waits") | names,
            "tooltip": plot.said(*told),
        },
        "layer": [
            plot.marks("rect", {"color": plot.heat("wait_ms", "ms")}),
            plot.marks("text", {"text": {"field": "wait"}}, color=HEAT_INK),
        ][: 2 if is_small else 1],
    }
    text = (
        f"How long each rank waits for each other in collectives of the iteration. {_worst(activity)}"
        f"{_cut(len(shown), len(activity.ranks))}"
    )
    return plot.build_chart("Who waits for whom", text, spec, rows, told)


def _part_chart(report: RanksReport) -> Chart:
    """Draw what the iteration of each rank divides into."""
    shown = report.ranks[:MOST_RANKS]
    names = ("computes", "sends", "waits for a rank", _UNSEEN, _UNDIVIDED, "idle")
    colours = {**{name: _COLOURS[name] for name in names[:-1]}, "idle": NEUTRAL}
    rows = [
        item
        for row in shown
        for item in plot.division_rows(dict(zip(names, _parts_of(row), strict=True)), rank=str(row.rank))
    ]
    told = (("rank", "rank"), ("part", f"the {_device(report)}"), ("spent", "for"))
    x = plot.amount("part_ms", "ms of the iteration; what overlaps counts twice")
    colour = plot.coloured("part", f"the {_device(report)}", colours, among=rows)
    spec = plot.bars(rows, told, y=plot.along("rank", "rank"), x=x, color=colour)
    most = max(report.ranks, key=lambda row: row.waiting_ns)
    text = (
        f"The iteration of each rank by what its {_device(report)} does. Rank {most.rank} waits longest, "
        f"{format_time(most.waiting_ns)}.{plot.cut_words(len(shown), len(report.ranks), 'ranks')}"
    )
    return plot.build_chart("What each rank's iteration goes to", text, spec, rows, told)


def _parts_of(row: RankRow) -> tuple[float, ...]:
    return row.compute_ns, row.transfer_ns, row.waiting_ns, row.unseen_ns, row.undivided_ns, row.idle_ns


def _job_chart(report: RanksReport) -> Chart | None:
    """Draw the job's iteration on each GPU with its interval."""
    if len(report.jobs) < SEVERAL:
        return None
    found = sorted(report.jobs, key=lambda row: row.iteration_ns)
    shown = found[:MOST_RANKS]
    rows = [
        {
            "gpu": row.place,
            "kind": "recorded" if row.is_source else "predicted",
            "time_ms": row.iteration_ns / 1e6,
            "low_ms": None if row.is_source else plot.scaled(row.low_ns),
            "high_ms": None if row.is_source else plot.scaled(row.high_ns),
            "time": format_time(row.iteration_ns),
        }
        for row in shown
    ]
    told = (("gpu", "GPU"), ("kind", "kind"), ("time", "iteration"))
    y, x = (
        plot.along("gpu") | {"sort": [row["gpu"] for row in rows]},
        plot.amount("time_ms", "ms of the job's iteration"),
    )
    colour = plot.coloured("kind", None, {"recorded": NEUTRAL, "predicted": GOOD})
    spec = plot.points(rows, told, y=y, x=x, ends=("low_ms", "high_ms"), color=colour)
    text = (
        "The job's iteration, as long as its slowest rank's, on each GPU with its 90 % interval, fastest first: "
        f"{shown[0].gpu} {format_time(shown[0].iteration_ns)}.{plot.cut_words(len(shown), len(found), 'GPUs')}"
    )
    return plot.build_chart("The job on other GPUs", text, spec, rows, told)
