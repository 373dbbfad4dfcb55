"""How fast a host is: by a ratio, a name, a file, and by the CPU ops of recordings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
import wavecast
from click.testing import CliRunner
from wavecast.__main__ import wavecast as program
from wavecast.analyzer.asking.what_ifs import complete_hosts
from wavecast.analyzer.host.costs import known_host_half_width, load_host_costs, unknown_host_half_width
from wavecast.analyzer.host.named import HostBasis, find_host, host_list, load_anchor, usual_mix
from wavecast.analyzer.host.recorded_speed import (
    OTHER_NETWORK_EXPONENT,
    SAME_OPS_HALF_WIDTH,
    host_speed_of,
    relative_host_speed,
)
from wavecast.analyzer.host.speed import (
    KINDS,
    MEASURED_HALF_WIDTH,
    KindSpeeds,
    check_host,
    kind_times_ns,
    read_host,
    speeds_between,
    told_between,
)
from wavecast.analyzer.host.timeline import synthesize_timeline
from wavecast.errors import InputError
from wavecast.formats.measured.host_file import HostFile, save_host
from wavecast.formats.trace.column import take_rows
from wavecast.formats.trace.meta import HostTimes
from wavecast.formats.trace.tables import Trace
from wavecast.specs.hosts import find_processor, load_processors
from wavecast.specs.instances import load_families

SAMPLES = Path(__file__).parents[3] / "samples"
SHAPES = SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"
PAIR = tuple(SAMPLES / f"bert_small-inference-bf16-b1-{gpu}.json.gz" for gpu in ("h100", "mi300x"))
TIMES = HostTimes(python_ns=1000.0, dispatch_ns=2000.0, module_ns=800.0, launch_ns=4000.0, spread=0.03)


@pytest.fixture(scope="module")
def shapes() -> Trace:
    return wavecast.load_trace(SHAPES)


@pytest.fixture(scope="module")
def pair() -> tuple[Trace, Trace]:
    first, second = (wavecast.load_trace(path) for path in PAIR)
    return first, second


def slowed(trace: Trace, ratio: float) -> Trace:
    """The same recording on a host `ratio` times as slow."""
    tables = {}
    for name in ("ops", "calls"):
        table = getattr(trace, name)
        start, length = table.start_ns * ratio, table.duration_ns * ratio
        tables[name] = replace(
            table, start_ns=start.astype(np.int64), duration_ns=length.astype(table.duration_ns.dtype)
        )
    return replace(trace, **tables)


def faster(times: HostTimes, ratio: float) -> HostTimes:
    return replace(times, **{f"{kind}_ns": value / ratio for kind in KINDS if (value := getattr(times, f"{kind}_ns"))})


def test_a_slower_host_is_told_by_its_ops(pair: tuple[Trace, Trace]) -> None:
    whole, half = host_speed_of(pair[0]), host_speed_of(slowed(pair[0], 2.0))
    assert whole is not None
    assert half is not None
    assert half.ratio == pytest.approx(whole.ratio / 2.0, rel=0.02)
    assert whole.half_width == known_host_half_width() < unknown_host_half_width() / 2


def test_the_length_of_the_iteration_plays_no_part(pair: tuple[Trace, Trace]) -> None:
    """Gaps between ops grow, the ops stay: the host is as fast."""
    trace = pair[0]
    told = host_speed_of(trace)
    top = np.flatnonzero(trace.ops.parent < 0)
    delay = 10_000 * np.arange(len(top))

    def moved(start: np.ndarray) -> np.ndarray:
        at = np.searchsorted(trace.ops.start_ns[top], start, side="right") - 1
        return np.asarray(start + np.append(delay, 0)[at])

    stretched = replace(
        trace,
        ops=replace(trace.ops, start_ns=moved(trace.ops.start_ns)),
        calls=replace(trace.calls, start_ns=moved(trace.calls.start_ns)),
    )
    again = host_speed_of(stretched)
    assert told is not None
    assert again is not None
    assert again.ratio == pytest.approx(told.ratio, rel=0.01)


def test_two_recordings_of_the_same_ops_are_compared_with_each_other(pair: tuple[Trace, Trace]) -> None:
    there, back = relative_host_speed(*pair), relative_host_speed(*pair[::-1])
    assert there is not None
    assert back is not None
    assert there.ratio == pytest.approx(1 / back.ratio, rel=0.02)
    assert there.half_width == SAME_OPS_HALF_WIDTH
    itself = relative_host_speed(pair[0], slowed(pair[0], 3.0))
    assert itself is not None
    assert itself.ratio == pytest.approx(1 / 3.0, rel=0.02)


def timed(trace: Trace, ratio: float) -> Trace:
    """The same recording with an iteration beside it that took `ratio` of its length without the profiler."""
    rows = take_rows(trace.iterations, np.array([0, 0]))
    length = rows.end_ns[0] - rows.start_ns[0]
    ends = rows.start_ns + (length * np.array([1.0, ratio])).astype(np.int64)
    return replace(trace, iterations=replace(rows, end_ns=ends, profiled=np.array([1, 0], dtype=rows.profiled.dtype)))


def test_what_the_profiler_added_to_a_recording_is_no_slower_host(pair: tuple[Trace, Trace]) -> None:
    """One was slowed twice as much, yet without the profiler both took as long."""
    told = relative_host_speed(timed(pair[0], 0.7), timed(slowed(pair[0], 2.0), 0.35))
    assert told is not None
    assert told.ratio == pytest.approx(1.0, rel=0.02)


def test_iterations_that_wait_for_their_kernels_tell_nothing_of_the_profiler(pair: tuple[Trace, Trace]) -> None:
    usual, bound = host_speed_of(pair[0]), host_speed_of(timed(pair[0], 0.05))
    assert bound == usual
    assert host_speed_of(timed(pair[0], 0.4)) != usual


def test_of_what_another_network_tells_a_part_is_carried(pair: tuple[Trace, Trace]) -> None:
    both = [replace(pair[0], ops=take_rows(pair[0].ops, np.arange(count))) for count in (400, 200)]
    ratios = []
    for ratio in (1.0, 3.0):
        told = relative_host_speed(slowed(both[0], ratio), both[1])
        assert told is not None
        ratios.append(told.ratio)
    assert ratios[1] / ratios[0] == pytest.approx(3.0**OTHER_NETWORK_EXPONENT, rel=0.02)


def test_ops_place_the_pair_of_recordings_within_four_per_cent() -> None:
    """The iteration on the other machine, the target's host told by its CPU ops: 10.8 % off without."""
    usual = wavecast.validate(*PAIR).report.iteration
    told = wavecast.validate(*PAIR, host=PAIR[1]).report.iteration
    assert abs(usual.error_ratio) > 0.1
    assert abs(told.error_ratio) < 0.04
    assert told.host_speed_by_ops == pytest.approx(usual.host_speed_by_ops)
    assert told.is_covered


def test_kinds_add_up_to_the_synthetic_host(shapes: Trace) -> None:
    times = kind_times_ns(shapes)
    assert set(times) == set(KINDS)
    assert min(times.values()) > 0
    costs = load_host_costs()
    whole = float(synthesize_timeline(shapes, costs).iterations.cpu_end_ns[0])
    assert sum(times.values()) == pytest.approx(whole, rel=0.01)


def test_a_host_fast_at_one_kind_gains_what_the_iteration_has_of_it() -> None:
    speeds = KindSpeeds(ratios={"python": 2.0, "launch": 1.0}, spread=0.0)
    assert speeds.over({"python": 3.0, "launch": 1.0}) == pytest.approx(4.0 / 2.5)
    assert speeds.over({"python": 0.0, "launch": 1.0}) == 1.0
    assert speeds.over({"autograd": 1.0}) == pytest.approx(2.0**0.5), "no kind of it was measured"
    assert speeds_between(HostTimes(python_ns=1.0), HostTimes(launch_ns=1.0)) is None


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_two_measured_hosts_need_no_table(pair: tuple[Trace, Trace], tmp_path: Path, ratio: float) -> None:
    path = tmp_path / "host.json"
    save_host(path, HostFile(host=faster(TIMES, ratio)))
    known = replace(pair[0], meta=replace(pair[0].meta, host=TIMES))
    found = read_host(str(path), known)
    assert found.ratio == pytest.approx(ratio)
    unknown = read_host(str(path), pair[0])
    assert found.half_width < unknown.half_width


def test_a_measured_host_narrows_what_shapes_leave_open(shapes: Trace, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    anchor = load_anchor()
    ratios = []
    for ratio in (1.0, 2.0):
        save_host(path, HostFile(host=faster(anchor.times, ratio)))
        found = read_host(str(path), shapes)
        assert known_host_half_width() < found.half_width < unknown_host_half_width()
        ratios.append(found.ratio)
    assert ratios[1] / ratios[0] == pytest.approx(2.0)
    assert ratios[0] == pytest.approx(
        KindSpeeds(ratios=usual_mix(anchor.ops_ratio), spread=0.0).over(
            {kind: time for kind, time in kind_times_ns(shapes).items() if getattr(anchor.times, f"{kind}_ns")}
        )
    )


def test_names_place_shapes_and_recordings(shapes: Trace, pair: tuple[Trace, Trace]) -> None:
    assert read_host("h100-node", shapes).ratio == 1.0
    assert read_host("B200-Node", shapes).ratio == find_host("b200-node").speed_ratio < 1.0  # type: ignore[union-attr]
    own = read_host("h100-node", pair[0])
    assert own.ratio == pytest.approx(1.0, abs=0.15), "the recording is one of those that the host is known by"
    assert own.half_width > 0
    with pytest.raises(InputError, match="too few CPU ops to tell how fast its own host was; give a ratio"):
        read_host("h100-node", without_ops(pair[0]))


def without_ops(trace: Trace) -> Trace:
    return replace(trace, strings=tuple(f"x{name}" for name in trace.strings))


def test_every_named_host_says_how_it_is_known() -> None:
    names = [item.name for item in host_list()]
    assert len(set(names)) == len(names)
    for item in host_list():
        assert find_host(item.name) == item
        assert item.source
        assert 0.1 < item.speed_ratio < 10
        by_recordings = item.basis is HostBasis.RECORDINGS
        assert item.half_width < 0.5 if by_recordings else item.half_width == unknown_host_half_width()


def test_processors_stand_in_machines_that_are_listed() -> None:
    families = {family.name for family in load_families()}
    machines = [name for item in load_processors() for name in item.machines]
    assert {name for name in machines if "{size}" in name} <= families
    assert len(set(machines)) == len(machines)
    for name, expected in {
        "p5.48xlarge": "epyc-7r13",
        "AWS p4d.24xlarge": "xeon-8275cl",
        "Standard_ND96isr_H100_v5": "xeon-8480c",
        "DGX A100": "epyc-7742",
        "AMD EPYC 7V13": "epyc-7v13",
    }.items():
        found = find_processor(name)
        assert found is not None
        assert found.name == expected
    assert find_processor("p9.24xlarge") is None


def test_a_trace_tells_the_host_of_shapes(shapes: Trace, pair: tuple[Trace, Trace]) -> None:
    whole, half = told_between(shapes, pair[0]), told_between(shapes, slowed(pair[0], 2.0))
    assert whole is not None
    assert half is not None
    assert half.ratio == pytest.approx(whole.ratio / 2.0, rel=0.02)
    assert read_host(str(PAIR[0]), shapes) == whole
    assert told_between(shapes, shapes) is None


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("empty.json", b"", "empty"),
        ("cut.json", b'{"format": "wavecast.host", "version": "1.0", "host": {', "not JSON"),
        ("none.json", b'{"format": "wavecast.host", "version": "1.0", "host": {}}', "expected one of python_ns"),
        ("nan.json", b'{"format": "wavecast.host", "version": "1.0", "host": {"python_ns": NaN}}', "not JSON"),
        ("minus.json", b'{"format": "wavecast.host", "version": "1.0", "host": {"python_ns": -1.0}}', "python_ns"),
        ("text.json", b'{"format": "wavecast.host", "version": "1.0", "host": {"python_ns": "fast"}}', "python_ns"),
        ("noise.bin", bytes(range(256)), "noise.bin"),
        ("other.json", b'{"format": "x"}', "other.json"),
    ],
)
def test_files_that_tell_no_host(tmp_path: Path, shapes: Trace, name: str, content: bytes, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_host(str(path), shapes)
    assert text in str(caught.value)
    assert str(caught.value).startswith("host")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", " ", "0", "-1", "nan", "inf", "1e9", "h100-nod", "x" * 5000, str(SHAPES), "."])
def test_words_that_are_no_host(text: str, pair: tuple[Trace, Trace]) -> None:
    with pytest.raises(InputError) as caught:
        read_host(text, pair[0])
    assert str(caught.value).startswith("host=")
    assert len(str(caught.value)) < 400
    with pytest.raises(InputError):
        check_host(text)


def test_a_known_host_narrows_the_interval(shapes: Trace) -> None:
    def width(host: str | None) -> float:
        row = wavecast.analyze(shapes, to="b200", host=host, top=0).report.predictions[0]
        assert row.iteration_low_ns is not None
        assert row.iteration_high_ns is not None
        return float(np.log(row.iteration_high_ns / row.iteration_low_ns))

    assert width("1.0") < width("h100-node") < 0.6 * width(None)
    assert width("xeon-8480c") == pytest.approx(width(None), rel=0.01)


def test_plans_take_a_host(shapes: Trace) -> None:
    def step(host: str | None) -> float:
        report = wavecast.scale(shapes, to="b200", gpus=8, plan="dp=8", host=host).report
        return report.predictions[0].iteration_ns

    assert step("0.25") > 1.5 * step(None)
    assert step("h100-node") == pytest.approx(step(None))


def test_the_list_of_hosts() -> None:
    runner = CliRunner()
    assert "h100-node" in runner.invoke(program, ["catalog", "hosts"]).stdout
    one = json.loads(runner.invoke(program, ["catalog", "hosts", "p4d.24xlarge", "--format", "json"]).stdout)
    assert (one["format"], [item["name"] for item in one["hosts"]]) == ("wavecast.hosts", ["xeon-8275cl"])
    rows = runner.invoke(program, ["catalog", "hosts", "--format", "csv"]).stdout.splitlines()
    assert len(rows) == len(host_list()) + 1
    none = runner.invoke(program, ["catalog", "hosts", "nobody\x1b[31m"])
    assert none.exit_code == 2
    assert none.stderr == "Error: 'nobody\\x1b[31m': no host is called so; 'wavecast catalog hosts' lists them\n"


@pytest.mark.parametrize("wrong", [0.0, 5e-324, 1e-300, 1e300])
def test_times_that_no_host_takes_count_as_not_measured(wrong: float) -> None:
    found = speeds_between(replace(TIMES, python_ns=wrong), faster(TIMES, 2.0))
    assert found is not None
    assert found.ratios == {kind: pytest.approx(2.0) for kind in ("module", "dispatch", "launch")}
    assert speeds_between(HostTimes(python_ns=wrong), TIMES) is None


@pytest.mark.parametrize("spread", [50.0, 1e300])
def test_a_spread_that_measures_nothing_leaves_finite_intervals(
    spread: float, pair: tuple[Trace, Trace], tmp_path: Path
) -> None:
    before, after = (replace(trace, meta=replace(trace.meta, host=TIMES)) for trace in pair)
    after = replace(after, meta=replace(after.meta, host=replace(TIMES, spread=spread)))
    wavecast.save_trace(after, tmp_path / "after.json")
    found = wavecast.analyze(before, to="L4", host=str(tmp_path / "after.json"))
    row = found.report.predictions[0]
    low, high = row.iteration_low_ns, row.iteration_high_ns
    assert low is not None
    assert high is not None
    assert 0 < low < high < 1e12


def test_a_packed_file_of_a_host_is_one(shapes: Trace, tmp_path: Path) -> None:
    for name in ("host.json", "host.json.gz"):
        save_host(tmp_path / name, HostFile(host=TIMES))
    assert read_host(str(tmp_path / "host.json.gz"), shapes) == read_host(str(tmp_path / "host.json"), shapes)
    (tmp_path / "cut.gz").write_bytes((tmp_path / "host.json.gz").read_bytes()[:12])
    with pytest.raises(InputError, match=r"host.*truncated gzip"):
        read_host(str(tmp_path / "cut.gz"), shapes)


def test_calls_in_any_order_tell_the_same(pair: tuple[Trace, Trace]) -> None:
    trace = pair[0]
    order = np.random.default_rng(7).permutation(len(trace.calls.start_ns))
    shuffled = replace(trace, calls=take_rows(trace.calls, order))
    assert host_speed_of(shuffled) == host_speed_of(trace)


def test_the_shell_completes_hosts() -> None:
    context, parameter = click.Context(program), click.Option(["--host"])
    assert [item.value for item in complete_hosts(context, parameter, "mi300")] == ["mi300x-vm", "mi300x-node"]
    assert [item.type for item in complete_hosts(context, parameter, "./ho")] == ["file"]


def test_the_page_tells_the_widths_in_use(pair: tuple[Trace, Trace]) -> None:
    page = (SAMPLES.parent / "docs" / "reference" / "host.md").read_text(encoding="utf-8")
    named, known = host_list()[0].half_width, known_host_half_width()
    by_name, unknown = read_host("b200-node", pair[0]).half_width, unknown_host_half_width()
    for width in (named, known, by_name, np.hypot(known, known), unknown):
        assert f"× {np.exp(width):.2f}" in page
    assert f"a factor of {np.exp(load_anchor().half_width):.1f}" in page
    assert f"the machine is {load_anchor().ops_ratio:.1f} times" in page


def test_a_named_host_stands_beside_the_speed_that_the_recording_has(pair: tuple[Trace, Trace]) -> None:
    named, fast, slow = find_host("h100-node"), *(read_host("h100-node", slowed(pair[0], by)) for by in (1.0, 2.0))
    own = host_speed_of(pair[0])
    assert named is not None
    assert own is not None
    assert fast.ratio == pytest.approx(named.ops_ratio / own.ratio)
    assert slow.ratio == pytest.approx(2.0 * fast.ratio, rel=0.02)  # a slower recording gains more
    assert fast.half_width == pytest.approx(np.hypot(named.half_width, own.half_width))


def test_doubts_of_a_file_add_up_as_independent_ones(shapes: Trace, tmp_path: Path) -> None:
    save_host(tmp_path / "host.json", HostFile(host=TIMES))
    anchor = load_anchor()
    spread = np.hypot(anchor.times.spread or 0.0, TIMES.spread or 0.0)
    parts = (MEASURED_HALF_WIDTH, spread, anchor.half_width, known_host_half_width())
    found = read_host(str(tmp_path / "host.json"), shapes)
    assert found.half_width == pytest.approx(np.linalg.norm(parts))
