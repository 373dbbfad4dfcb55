"""Dirty, truncated, foreign and hostile files: one clear error, or a reading whose loss is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from wavecast.errors import TraceError
from wavecast.formats.kineto import import_kineto, read as kineto_read
from wavecast.formats.trace.tables import Trace
from wavecast.formats.trace.validate import validate

TRICKY = 'a "},\n  {" b \\" },{ ] ] "traceEvents": [ {'


def ops(count: int, name: str = "aten::mm", **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": at,
            "dur": 1,
            "args": {"x": [{}, {}]},
            **more,
        }
        for at in range(count)
    ]


def document(events: Any, indent: Any = None, **top: Any) -> bytes:
    return json.dumps(
        {"metadata": {"traceEvents": []}, **top, "traceEvents": events, "tail": [{}, {}]}, indent=indent
    ).encode()


def outcome(data: bytes, recover: bool = False) -> Trace | TraceError:
    """Return the trace, if it is a valid one, or the error; whatever else is raised fails the test."""
    try:
        trace = import_kineto(data, recover=recover)
    except TraceError as error:
        return error
    validate(trace)
    return trace


@pytest.fixture(params=[1, 40, 150, 1000])
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_read, "CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("indent", [None, 0, 3])
@pytest.mark.parametrize("as_list", [True, False])
def test_chunks_are_cut_between_events_whatever_strings_hold(indent: Any, as_list: Any) -> None:
    events = [*ops(9), *ops(5, note=TRICKY), *ops(3, cat="other", args={TRICKY: [{"a": TRICKY}, {"b": 1}]}), *ops(9)]
    events = [{**event, "ts": at * 5} for at, event in enumerate(events)]
    data = json.dumps(events, indent=indent).encode() if as_list else document(events, indent, note=TRICKY)
    trace = import_kineto(data)
    assert trace.ops.start_ns.tolist() == [event["ts"] * 1000 for event in events if event["cat"] == "cpu_op"]
    assert trace.quality.bytes_lost == trace.quality.characters_repaired == 0


@pytest.mark.usefixtures("small_chunks")
def test_progress_rises_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    data = document(ops(50))
    seen = []
    monkeypatch.setattr(kineto_read, "tell", lambda _what, done, total: seen.append((done, total)))
    import_kineto(data)
    assert seen == sorted(seen)
    assert seen[-1][0] > 0.5 * len(data)
    assert all(total == len(data) for _, total in seen)


@pytest.mark.usefixtures("small_chunks")
def test_control_characters_and_broken_text_are_mended_and_counted() -> None:
    data = document([*ops(4), *ops(1, note="NOTE"), *ops(3, name="na\\me"), *ops(2, note="\ud800")])
    data = data.replace(b"NOTE", b"a\nb\x00c\xff").replace(b"aten::mm", b"aten\t::mm", 1)
    trace = import_kineto(data)
    assert len(trace.ops.name) == 10
    assert trace.strings == ("aten ::mm", "aten::mm", "na\\me")
    assert trace.quality.characters_repaired == 5 + 1


def test_each_control_character_is_mended_and_counted() -> None:
    data = document(ops(1, name="NAME")).replace(b"NAME", bytes(range(32)) + b"\x7f")
    trace = import_kineto(data)
    assert trace.strings == (" " * 32 + "\x7f",)
    assert trace.quality.characters_repaired == 32


@pytest.mark.parametrize("lone", ["\\ud800", "\\uD800", "\\udc00", "\\uDFFF"])
def test_half_a_surrogate_pair_is_mended_however_it_is_written(lone: str) -> None:
    trace = import_kineto(document(ops(1, name="NAME")).replace(b"NAME", f"a{lone}b".encode()))
    assert trace.strings == ("a\ufffdb",)
    assert trace.quality.characters_repaired == 1


@pytest.mark.usefixtures("small_chunks")
def test_control_characters_before_the_events_are_mended_too() -> None:
    data = document(ops(30), note="NOTE").replace(b"NOTE", b"raw\nline")
    trace = import_kineto(data)
    assert len(trace.ops.name) == 30
    assert trace.quality.characters_repaired == 1


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "-inf"])
def test_bare_nan_drops_only_its_event(word: Any) -> None:
    data = document([*ops(2), *ops(1, name="nan inf", ts="@"), *ops(1, other="@")]).replace(b'"@"', word.encode())
    trace = import_kineto(data)
    assert len(trace.ops.name) == 3
    assert trace.quality.events_dropped == 1
    assert trace.quality.characters_repaired == 0


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("as_list", [True, False])
def test_a_truncated_file_says_so_and_can_be_recovered(as_list: Any) -> None:
    events = ops(12, note=TRICKY)
    whole = json.dumps(events).encode() if as_list else document(events)
    sixth = [at for at in range(len(whole)) if whole.startswith(b'{"ph"', at)][6]
    data = whole[: sixth + 50]
    with pytest.raises(
        TraceError, match=r"^\$.*\[6\]: .* ends early.* 6 events before it are readable: .*with recover"
    ) as caught:
        import_kineto(data)
    assert str(caught.value).startswith("$")
    assert "\n" not in str(caught.value)
    trace = import_kineto(data, recover=True)
    assert len(trace.ops.name) == 6
    assert trace.quality.bytes_lost in (50, 50 + len(", "))


def test_every_truncation_is_an_error_and_recovers_all_whole_events() -> None:
    events = [json.dumps(event) for event in ops(4, note=TRICKY)]
    head = '{"metadata": {"traceEvents": []}, "traceEvents": ['
    whole = (head + ", ".join(events) + '], "tail": [{}, {}]}').encode()
    ends = [len(head) + len(", ".join(events[: at + 1])) for at in range(4)]
    for size in range(len(whole)):
        with pytest.raises(TraceError):
            import_kineto(whole[:size])
        readable = sum(end <= size for end in ends)
        found = outcome(whole[:size], recover=True)
        assert (len(found.ops.name) if isinstance(found, Trace) else 0) == readable


@pytest.mark.usefixtures("small_chunks")
def test_a_dirty_and_truncated_file_is_located_in_the_file_itself() -> None:
    data = document([*ops(9), *ops(1, note="NOTE"), *ops(9)]).replace(b"NOTE", b"a\nb")[:-200]
    with pytest.raises(TraceError, match=f"ends early, at byte {len(data)};"):
        import_kineto(data)
    assert import_kineto(data, recover=True).quality.characters_repaired == 1


@pytest.mark.usefixtures("small_chunks")
def test_garbage_in_the_middle_can_be_recovered_up_to_it() -> None:
    head, tail = json.dumps(ops(8)).encode()[:-1], json.dumps(ops(8)).encode()[1:]
    data = head + b", %%%, " + tail
    with pytest.raises(TraceError, match=r"^\$\[8\]: .* malformed at about byte \d+; 8 events"):
        import_kineto(data)
    trace = import_kineto(data, recover=True)
    assert len(trace.ops.name) == 8
    assert trace.quality.bytes_lost in (len(data) - len(head), len(data) - len(head) - len(", "))


def test_whole_files_are_the_same_with_recovery() -> None:
    data = document(ops(5))
    assert import_kineto(data, recover=True) == import_kineto(data)


LEVELS = 5_000_000  # Python 3.14 reads as deeply as its stack allows
DEEP = b"[" * LEVELS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"^\$: found an empty file"),
        (b"   \n", r"^\$: found an empty file"),
        (b"\x1f\x8b\x08", r"^\$: found bytes that are not JSON"),
        (b"42", r"^\$: found a JSON value of another kind"),
        (b'"text"', r"^\$: found a JSON value of another kind"),
        (b"{}", r"without traceEvents"),
        (b'{"a": 1}', r"without traceEvents"),
        (b'{"x": {"traceEvents": [1]}}', r"without traceEvents"),
        (b'{"traceEvents": {}}', r"Expected `array`, got `object` - at `\$.traceEvents`"),
        (b'{"traceEvents": null}', r"Expected `array`"),
        (b'{"traceEvents": []}', r"found 0 events"),
        (b"[]", r"found 0 events"),
        (b"[1, 2]", r"Expected `object`, got `int` - at `\$\[0\]`"),
        (b'[{"cat": "other", "ph": "X"}]', r"found 1 events, none of them"),
        (b'{"traceEvents": [{}, {"ph": 5}]}', r"Expected `str`, got `int` - at `\$.traceEvents\[1\].ph`"),
        (b'{"traceEvents": [{"args": [1]}]}', r"got `array` - at `\$.traceEvents\[0\].args`"),
        (b'{"deviceProperties": 7, "traceEvents": []}', r"got `int` - at `\$.deviceProperties`"),
        (DEEP, r"Expected `object`, got `array` - at `\$\[0\]`"),
        (b'{"traceEvents": [{"args": {"x": ' + DEEP, r"nested too deeply"),
        (b'{"metadata": ' + DEEP, r"nested too deeply"),
        (b'{"traceEvents": [{"args": {"Input Dims": ' + DEEP + b"]" * LEVELS + b"}}]}", r"nested too deeply"),
        (b"[%s]" % (b'{"a":' * LEVELS), r"nested too deeply"),
        (b'{"traceEvents": [{"ph": "X"', r"ends early, at byte 27"),
        (b'{"metadata": {"a"', r"ends early"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("recover", [False, True])
def test_what_is_no_trace_gets_one_clear_line(data: bytes, message: str, recover: bool) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        import_kineto(data, recover=recover)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("category", "key", "value", "message"),
    [
        ("kernel", "correlation", "x", r"\$.traceEvents\[30\].args\['correlation'\]: found a `str`, expected"),
        ("kernel", "device", 1.5, r"\[30\].args\['device'\]: found a `float`, expected an integer"),
        ("kernel", "device", 99999, r"\[30\].args\['device'\]: found 99999, expected 0 to 32767"),
        ("kernel", "registers per thread", 2**40, r"registers per thread'\]: found 1099511627776, expected"),
        ("cpu_op", "Sequence number", [1], r"\[30\].args\['Sequence number'\]: found a `list`"),
        ("cuda_sync", "correlation", True, r"\[30\].args\['correlation'\]: found a `bool`"),
    ],
)  # fmt: skip
def test_wrong_types_name_the_event(category: Any, key: Any, value: Any, message: str) -> None:
    events = [
        *ops(30),
        {"ph": "X", "cat": category, "name": "Event Sync", "ts": 1, "dur": 1, "args": {key: value}},
        *ops(9),
    ]
    with pytest.raises(TraceError, match=message):
        import_kineto(document(events))


def test_wrong_types_of_fields_name_the_event_in_later_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_read, "CHUNK_BYTES", 200)
    events = ops(30)
    events[20]["name"] = 5
    with pytest.raises(TraceError, match=r"Expected `str \| null`, got `int` - at `\$.traceEvents\[20\].name`"):
        import_kineto(document(events))


def test_many_events_in_one_deep_or_crossing_chain_stay_cheap() -> None:
    count = 20_000
    deep = [{**event, "ts": at, "dur": 3 * count - 2 * at} for at, event in enumerate(ops(count))]
    late = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": 1,
        "args": {"correlation": 1},
    }
    calls = [{**late, "ts": count + at, "dur": count - 1} for at in range(0, count, 2)]
    modules = [{**event, "cat": "python_function", "name": "nn.Module: A_0"} for event in deep]
    trace = import_kineto(json.dumps([*deep, *calls, *modules]).encode())
    assert trace.ops.parent.tolist() == list(range(-1, count - 1))
    assert trace.calls.op.tolist() == [innermost_of(at, count) for at in range(0, count, 2)]
    assert max(map(len, trace.strings)) < 1000
    crossing = [{**event, "ts": at, "dur": count} for at, event in enumerate(ops(count))]
    assert import_kineto(json.dumps(crossing).encode()).quality.ops_with_crossed_nesting == count - 1


def innermost_of(at: int, count: int) -> int:
    """Return the last nested op [k, 3·count − k] that ends no earlier than the call [count + at, 2·count + at − 1]."""
    return min(count - 1, 3 * count - (2 * count + at - 1))


VALID = document(
    [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 9,
         "args": {"Input type": ["float", "Scalar"], "Input Dims": [[2, 3], []], "Sequence number": 1}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 3,
         "args": {"correlation": 4}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 5,
         "args": {"correlation": 4, "device": 0, "stream": 7, "grid": [1, 2, 3], "block": [4, 5, 6], "bytes": 1}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 3,
         "args": {"Addr": 5, "Bytes": 6, "Device Type": 1, "Device Id": 0}},
    ],
    deviceProperties=[{"id": 0, "name": "GPU"}],
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 12), st.binary(max_size=6)), min_size=1, max_size=4
    ),
    recover=st.booleans(),
)
def test_mutated_files_give_a_trace_or_a_trace_error(edits: Any, recover: bool) -> None:
    data = VALID
    for at, removed, inserted in edits:
        data = data[:at] + inserted + data[at + removed :]
    found = outcome(data, recover=recover)
    assert isinstance(found, Trace) or str(found).isprintable()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner), max_leaves=6
)
PLACES = [
    ("traceEvents", row, *where)
    for row, event in enumerate(json.loads(VALID)["traceEvents"])
    for where in [(key,) for key in event] + [("args", key) for key in event["args"]]
]


@settings(max_examples=120, deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_value_anywhere_gives_a_trace_or_a_trace_error(place: Any, value: Any) -> None:
    tree = json.loads(VALID)
    target = tree
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    found = outcome(json.dumps(tree).encode())
    assert isinstance(found, Trace) or str(found).isprintable()


@pytest.mark.parametrize("length", [3_000, 300_000])
def test_a_string_full_of_event_ends_does_not_keep_the_reader_from_cutting(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts within a string are tried further and further on, so that memory stays that of a chunk and the string."""
    monkeypatch.setattr(kineto_read, "CHUNK_BYTES", 2_000)
    events = [*ops(40), *ops(1, note="},{" * (length // 3)), *ops(2_000, args={})]
    chunks: list[int] = []
    read = kineto_read.read_document(
        json.dumps(events).encode(),
        lambda found, _path, _first: chunks.append(len(found)),
        recover=False,
    )
    assert sum(chunks) == read.event_count == len(events)
    # An event takes about 80 bytes: no chunk is large but the one with the string, which the widest step ends.
    assert len(chunks) > 30
    assert sorted(chunks)[-2] < 60


def test_numbers_that_no_device_and_no_group_has_are_left_out() -> None:
    document = {
        "deviceProperties": [
            {"id": -3, "name": "NVIDIA L4", "numSms": 2**64, "warpSize": -32, "totalGlobalMem": 2**34}
        ],
        "distributedInfo": {"backend": "nccl", "rank": -1, "world_size": 2**64},
        "cuda_driver_version": 2**80,
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"device": 0}}
        ],
    }
    trace = import_kineto(json.dumps(document).encode())
    assert (trace.meta.rank, trace.meta.world_size, trace.meta.driver_version) == (None, None, None)
    (device,) = trace.devices
    assert (device.index, device.sm_count, device.warp_size, device.memory_bytes) == (0, None, None, 2**34)
