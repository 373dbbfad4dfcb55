"""Chrome trace events: what the viewers' rules demand of the file, read back from its text."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.errors import OutputError
from wavecast.formats.perfetto.timeline import (
    EventArrows,
    EventFile,
    EventSlices,
    EventTrack,
    crossing_levels,
    encode_events,
    save_events,
)

Interval = tuple[int, int, int]
"""Track, start and duration."""

INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=25)


def slices(rows: list[Interval], **changes: Any) -> EventSlices:
    track, start, duration = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    values: dict[str, Any] = {
        "track": track,
        "start_ns": start,
        "duration_ns": duration,
        "name": np.arange(len(rows)) % 2,
        "category": "op",
    }
    return EventSlices(**(values | changes))


def event_file(*tables: EventSlices, tracks: int = 3, **changes: Any) -> EventFile:
    values: dict[str, Any] = {
        "processes": ("measured on A", "predicted on B"),
        "tracks": tuple(EventTrack(process=number % 2, name=f"track {number}") for number in range(tracks)),
        "names": ("one", 'two "quoted" ü'),
        "slices": tables,
    }
    return EventFile(**(values | changes))


def read(file: EventFile) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(encode_events(file), parse_float=Decimal)["traceEvents"]
    return events


def of_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def nested(intervals: list[tuple[int, int]]) -> bool:
    """Whether of any two half-open intervals one lies in the other or they do not touch."""

    def agree(one: tuple[int, int], two: tuple[int, int]) -> bool:
        return one[1] <= two[0] or two[1] <= one[1]

    return all(agree(*sorted(pair, key=lambda item: (item[0], -item[1]))) for pair in combinations(intervals, 2))


def test_every_thread_and_process_is_named_and_ordered() -> None:
    events = read(event_file(slices([(0, 0, 5), (1, 0, 5)])))
    named = {(event["pid"], event.get("tid"), event["name"]): event["args"] for event in of_phase(events, "M")}
    assert named[1, None, "process_name"] == {"name": "measured on A"}
    assert named[1, None, "process_sort_index"]["sort_index"] < named[2, None, "process_sort_index"]["sort_index"]
    for event in of_phase(events, "X"):
        assert named[event["pid"], event["tid"], "thread_name"]["name"].startswith("track")
        assert (event["pid"], event["tid"], "thread_sort_index") in named


def test_no_thread_has_its_processs_number() -> None:
    assert all(
        event["pid"] != event["tid"] for event in of_phase(read(event_file(slices([(0, 0, 1), (1, 0, 1)]))), "X")
    )


@given(st.integers(0, 10**13), st.integers(0, 10**12))
def test_nanoseconds_survive_as_decimals(start: int, duration: int) -> None:
    (event,) = of_phase(read(event_file(slices([(0, start, duration)]))), "X")
    assert event["ts"] * 1000 == start
    assert event["dur"] * 1000 == duration


def test_an_outer_slice_stands_before_an_inner_one_of_the_same_start() -> None:
    events = of_phase(read(event_file(slices([(0, 5, 1), (0, 5, 9), (0, 5, 4)]))), "X")
    assert [event["dur"] * 1000 for event in events] == [9, 4, 1]


def test_arrow_ends_lie_in_their_slices_and_follow_them_at_once() -> None:
    arrows = EventArrows(source=np.array([0, 0]), target=np.array([2, 3]), category="launch")
    events = read(event_file(slices([(0, 5, 10), (0, 6, 1)]), slices([(1, 40, 2), (1, 50, 2)]), arrows=(arrows,)))
    timed = [event for event in events if event["ph"] != "M"]
    ends: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for before, event in pairwise(timed):
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
            owner = before if before["ph"] == "X" else timed[timed.index(before) - 1]
            assert (owner["pid"], owner["tid"], owner["ts"]) == (event["pid"], event["tid"], event["ts"])
    assert [[end["ph"] for end in pair] for pair in ends.values()] == [["s", "f"], ["s", "f"]]
    assert [pair[1]["ts"] * 1000 for pair in ends.values()] == [40, 50]
    assert all(pair[1]["bp"] == "e" for pair in ends.values())


def test_absent_arguments_are_left_out() -> None:
    table = slices([(0, 0, 1), (0, 2, 1), (0, 4, 1)], args={"op": ["mm", None, None], "low_us": [1.5, 2.0, None]})
    found = [event.get("args") for event in of_phase(read(event_file(table)), "X")]
    assert found == [{"op": "mm", "low_us": Decimal("1.5")}, {"low_us": Decimal("2.0")}, None]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(0, -1, 5)], "at least 0 ns"),
        ([(0, 1, -5)], "at least 0 ns"),
        ([(0, 0, 10), (0, 5, 10)], "1 slices cross"),
    ],
)
def test_what_perfetto_would_drop_is_refused(rows: list[Interval], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        encode_events(event_file(slices(rows)))


@given(INTERVALS, st.booleans())
def test_levels_separate_what_cannot_share_a_track(rows: list[Interval], may_nest: bool) -> None:
    table = slices(rows)
    level = crossing_levels(table.track, table.start_ns, table.duration_ns, np.full(len(rows), may_nest))
    by_track: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (track, start, duration), at in zip(rows, level.tolist(), strict=True):
        by_track[track, at].append((start, start + duration))
    assert all(nested(intervals) for intervals in by_track.values())
    if not may_nest:
        for intervals in by_track.values():
            longer = sorted(interval for interval in intervals if interval[1] > interval[0])
            assert all(one[1] <= two[0] for one, two in pairwise(longer))
    for track in {row[0] for row in rows}:
        used = {at for (found, at) in by_track if found == track}
        assert used == set(range(len(used)))


@given(INTERVALS)
def test_slices_that_nest_stay_on_their_track(rows: list[Interval]) -> None:
    by_track: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for track, start, duration in rows:
        by_track[track].append((start, start + duration))
    table = slices(rows)
    level = crossing_levels(table.track, table.start_ns, table.duration_ns, np.ones(len(rows), dtype=bool))
    assert (level.max(initial=0) == 0) == all(nested(intervals) for intervals in by_track.values())


def test_a_file_is_written_whole_gzipped_by_name_and_the_same_each_time(tmp_path: Path) -> None:
    file = event_file(slices([(0, 0, 5)]), about={"producer": "wavecast"})
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        save_events(file, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    text = (tmp_path / "a.json").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == text
    head = json.loads(text)
    assert head["displayTimeUnit"] == "ns"
    assert head["otherData"] == {"producer": "wavecast"}


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="directory does not exist"):
        save_events(event_file(slices([(0, 0, 5)])), tmp_path / "missing" / "a.json")


def test_an_empty_file_is_still_a_trace() -> None:
    assert of_phase(read(event_file()), "X") == []
