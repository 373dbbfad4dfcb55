"""Work of state spaces, by hand."""

from __future__ import annotations

from dataclasses import replace

from wavecast.analyzer.work.recurrent import state_space_work
from wavecast.analyzer.work.work import StateRule, StateSpaceDims

DELTA = StateSpaceDims(rule=StateRule.GATED_DELTA, batch=2, steps=10, heads=4, head_dim=8, state_dim=16, groups=2)


def test_a_delta_rule_reads_keys_per_group_and_keeps_a_state_per_head() -> None:
    work = state_space_work(DELTA, "bfloat16")
    values, keys, gates, state = 2 * 10 * 4 * 8 * 2, 2 * 2 * 10 * 2 * 16 * 2, 2 * 10 * 4 * 2 * 2, 2 * 4 * 8 * 16 * 4
    assert work.flops == 6 * 2 * 10 * 4 * 8 * 16
    assert (work.read_bytes, work.written_bytes) == (values + keys + gates, values + state)
    assert work.is_matrix
    update = state_space_work(replace(DELTA, is_update=True), "bfloat16")
    assert update.read_bytes == work.read_bytes + state
    assert not update.is_matrix


def test_a_causal_convolution_moves_its_channels() -> None:
    dims = StateSpaceDims(
        rule=StateRule.CAUSAL_CONVOLUTION, batch=2, steps=10, heads=6, head_dim=1, state_dim=4, state_bytes=2.0
    )
    work = state_space_work(dims, "bfloat16")
    assert work.flops == 2 * 4 * 2 * 10 * 6
    assert work.read_bytes == 2 * 10 * 6 * 2
    assert work.written_bytes == 2 * 10 * 6 * 2 + 2 * 6 * 4 * 2
