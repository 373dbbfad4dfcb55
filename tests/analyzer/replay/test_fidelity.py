"""How well the rules explain a recording, on recordings whose delays are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wavecast.analyzer.graph.latencies import Term
from wavecast.analyzer.replay.causes import IdleCause
from wavecast.analyzer.replay.fidelity import NEAR_NS, ReplayedIteration, check_fidelity
from wavecast.errors import InputError
from wavecast.formats.trace.tables import Trace
from wavecast.specs.gpu import Gpu

from ...conftest import Recording


def late(recording: Recording) -> Trace:
    """A kernel as the rules have it (launch + 1.8 us), and others 1, 2, 5 and 100 us past them; Volta's gaps are
    1,150 ns."""
    at = 0
    for delay in (0, 1_000, 2_000, 5_000, 100_000):
        recording.launch(at, 5_000, at + 6_900 + delay, 10_000)
        at += 30_000
    recording.iteration(0, 236_900, 0, 236_000)
    return recording.trace()


def test_delays_are_counted_by_size_and_carried_over_in_steps(recording: Recording, gpu: Callable[..., Gpu]) -> None:
    found = check_fidelity(late(recording), gpu(name="One", architecture="Volta"))
    (iteration,) = found.iterations
    assert found.gpu == "One"
    assert (found.start_count, found.opaque_start_count) == (5, 1)
    assert found.starts_within_ratio == {1_000.0: 0.5, 2_000.0: 0.75, 5_000.0: 1.0}
    assert tuple(found.starts_within_ratio) == NEAR_NS
    assert (found.node_count, found.edge_count) == (5 + 2 + 5, 5)
    assert iteration.measured_ns == iteration.exact_ns == 236_900
    assert iteration.replayed_ns == 236_900
    assert iteration.rules_only_ns == 236_000  # its host's end: the last kernel ends at 136.9 us
    assert iteration.gpu_busy_ns == 50_000
    assert iteration.idle_ns[IdleCause.UNEXPLAINED] == 100_000
    assert iteration.opaque_ratio == pytest.approx(100_000 / 236_900)
    assert sum(iteration.idle_ns.values()) + iteration.gpu_busy_ns == 236_900
    assert found.latency_ns[Term.LAUNCH] == 1_900
    assert Term.NONE not in found.latency_ns


def test_small_delays_are_no_fact_of_the_recording(recording: Recording, gpu: Callable[..., Gpu]) -> None:
    """A kernel 15 us late counts in the exact replay alone, one 30 us late in both."""
    recording.launch(0, 5_000, 6_900, 10_000)
    recording.launch(30_000, 5_000, 36_900 + 30_000, 10_000)
    recording.launch(130_000, 5_000, 136_900 + 15_000, 10_000)
    recording.iteration(0, 161_900, 0, 136_000)
    (iteration,) = check_fidelity(recording.trace(), gpu(architecture="Volta")).iterations
    assert iteration.exact_ns == 161_900
    assert iteration.replayed_ns == iteration.rules_only_ns == 146_900
    recording.launch(140_000, 1_000, 163_050 + 40_000, 10_000)
    recording.iteration(0, 213_050, 0, 141_500)
    two = check_fidelity(recording.trace(), gpu(architecture="Volta")).iterations[-1]
    assert two.exact_ns - two.replayed_ns == 15_000
    assert two.replayed_ns - two.rules_only_ns == 40_000


def test_an_iteration_lasts_from_its_own_start(recording: Recording, gpu: Callable[..., Gpu]) -> None:
    for at in (0, 100_000):
        recording.launch(at, 5_000, at + 6_900, 10_000)
    recording.iteration(0, 16_900, 0, 50_000)
    recording.iteration(16_900, 116_900, 100_000, 110_000)
    first, second = check_fidelity(recording.trace(), gpu(architecture="Volta")).iterations
    assert (first.measured_ns, second.measured_ns) == (16_900, 100_000)
    for found in (first, second):
        assert found.exact_ns == found.replayed_ns == found.rules_only_ns == found.measured_ns


def test_a_start_20_us_late_is_far_from_its_rule_yet_not_without_one(
    recording: Recording, gpu: Callable[..., Gpu]
) -> None:
    recording.launch(0, 5_000, 6_900, 10_000)
    recording.launch(100_000, 5_000, 106_900 + 20_000, 10_000)
    found = check_fidelity(recording.trace(), gpu(architecture="Volta"))
    assert found.opaque_start_count == 0
    assert set(found.starts_within_ratio.values()) == {0.5}


def test_where_nothing_explains_no_start_the_ratio_is_whole(recording: Recording) -> None:
    recording.launch(0, 5_000, 90_000, 10_000)
    found = check_fidelity(recording.trace(), None)
    assert found.gpu is None
    assert found.opaque_start_count == 1
    assert set(found.starts_within_ratio.values()) == {1.0}


def test_an_iteration_without_length_is_not_opaque(recording: Recording) -> None:
    recording.launch(0, 5_000, 6_900, 10_000)
    recording.iteration(0, 0, 0, 0)
    (iteration,) = check_fidelity(recording.trace(), None).iterations
    assert (iteration.measured_ns, iteration.opaque_ratio) == (0.0, 0.0)


def test_a_trace_without_kernels_cannot_be_compared(recording: Recording) -> None:
    recording.op(0, 5_000)
    with pytest.raises(InputError, match="no kernels"):
        check_fidelity(recording.trace(), None)


def test_the_share_of_an_iteration_of_a_nanosecond_is_a_share() -> None:
    idle = dict.fromkeys(IdleCause, 0.0) | {IdleCause.UNEXPLAINED: 0.5}
    lengths = dict.fromkeys(("measured_ns", "rules_only_ns", "replayed_ns", "exact_ns"), 1.0)
    assert ReplayedIteration(index=0, **lengths, gpu_busy_ns=0.5, idle_ns=idle).opaque_ratio == 0.5
