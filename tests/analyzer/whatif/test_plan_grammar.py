"""Plans as text and as files: read, checked, written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.whatif.parallel.grammar import format_plan, parse_plan
from wavecast.analyzer.whatif.parallel.plan import (
    ExpertDispatch,
    GradientBuckets,
    ParallelPlan,
    PipelineSchedule,
    RecomputeMode,
)
from wavecast.analyzer.whatif.parallel.plan_file import ShardKind, load_plan, read_plan
from wavecast.errors import InputError

SIZES = st.integers(1, 16)


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    """Plans whose numbers do not contradict each other."""
    tp, pp = draw(SIZES), draw(SIZES)
    dp, fsdp, cp = draw(SIZES), draw(SIZES), draw(SIZES)
    vp = draw(SIZES) if pp > 1 else 1
    fitting = [PipelineSchedule.INTERLEAVED] if vp > 1 else [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE]
    sp = draw(st.sampled_from([None, False, True] if tp > 1 else [None, False]))
    shared = dp * fsdp * cp * (1 if sp is False else tp)
    return ParallelPlan(
        dp=dp,
        fsdp=fsdp,
        zero=draw(st.integers(0, 2)) if fsdp == 1 else 0,
        tp=tp,
        sp=sp,
        cp=cp,
        pp=pp,
        vp=vp,
        ep=draw(st.sampled_from([n for n in range(1, shared + 1) if shared % n == 0][:20])),
        micro_batch=draw(st.none() | SIZES),
        micro_batches=draw(st.none() | SIZES.map(lambda count: count * pp if vp > 1 else count)),
        schedule=draw(st.sampled_from([None, *fitting])),
        recompute=draw(st.sampled_from(RecomputeMode)),
        overlap_gradients=draw(st.booleans()),
        overlap_tensor=draw(st.booleans()),
        overlap_context=draw(st.booleans()),
        buckets=draw(st.sampled_from(GradientBuckets)),
        overlap_experts=draw(st.booleans()),
        dispatch=draw(st.sampled_from(ExpertDispatch)),
        prefetch=draw(st.integers(0, 4)),
    )


@given(plan=plans())
def test_a_written_plan_reads_the_same(plan: ParallelPlan) -> None:
    assert parse_plan(format_plan(plan)) == plan
    assert parse_plan(format_plan(plan), plan.ranks) == plan


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("fsdp=32,tp=2", None, ParallelPlan(fsdp=32, tp=2)),
        ("tp=2,pp=4", 64, ParallelPlan(dp=8, tp=2, pp=4)),
        ("fsdp,tp=8", 64, ParallelPlan(fsdp=8, tp=8)),
        ("dp=2,fsdp=*", 64, ParallelPlan(dp=2, fsdp=32)),
        ("fsdp=-1", 8, ParallelPlan(fsdp=8)),
        ("hsdp=4x8", None, ParallelPlan(dp=4, fsdp=8)),
        ("zero=3,tp=2", 64, ParallelPlan(fsdp=32, tp=2)),
        ("zero=3,dp=8", None, ParallelPlan(fsdp=8)),
        ("zero1 tp4", 64, ParallelPlan(dp=16, zero=1, tp=4)),
        ("--tensor-model-parallel-size=8,--sequence-parallel", 8, ParallelPlan(tp=8, sp=True)),
        ("data_parallel_shard_degree=4,tensor_parallel_degree=2", None, ParallelPlan(fsdp=4, tp=2)),
        ("data=4,expert=2", None, ParallelPlan(dp=4, ep=2)),
        ("dp=2,tp=2,ep=4,dispatch=hybridep", None, ParallelPlan(dp=2, tp=2, ep=4, dispatch=ExpertDispatch.HYBRID)),
        (
            "pp=2,schedule=GPipe,recompute,overlap=off,mb=1,ga=8",
            2,
            ParallelPlan(
                pp=2,
                schedule=PipelineSchedule.GPIPE,
                recompute=RecomputeMode.FULL,
                overlap_gradients=False,
                micro_batch=1,
                micro_batches=8,
            ),
        ),
    ],
)
def test_words_of_other_programs_mean_the_same(text: str, gpus: int | None, expected: ParallelPlan) -> None:
    assert parse_plan(text, gpus) == expected


@pytest.mark.parametrize(
    ("text", "gpus", "parts"),
    [
        ("", None, ("empty plan", "fsdp=8,tp=2")),
        ("tpp=2", None, ("'tpp'", "did you mean tp?")),
        ("tp=0", None, ("tp: expected a whole number from 1", "'0'")),
        ("tp=two", None, ("expected a whole number", "'two'")),
        ("tp", None, ("expected a whole number", "nothing")),
        ("tp=2,tp=4", None, ("tp is given twice",)),
        ("zero=4", None, ("from 0 to 3",)),
        ("zero=3,dp=4,fsdp=2", None, ("zero=3", "expected one of both")),
        ("dp=3", 8, ("takes 3 GPUs, not 8", "dp=*")),
        ("tp=3", 8, ("do not divide 8",)),
        ("fsdp=*", None, ("expected a number, or gpus",)),
        ("dp=*,fsdp=*", 8, ("both take the rest",)),
        ("ep=3,dp=4", None, ("ep=3", "a divisor of that")),
        ("vp=2", None, ("expected pp=2 or more",)),
        ("pp=2,schedule=interleaved", None, ("vp=2 or more",)),
        ("pp=2,vp=2,schedule=gpipe", None, ("expected vp=1",)),
        ("fsdp=8,zero=1", None, ("zero=1 beside fsdp=8",)),
        ("sp=on", None, ("expected tp=2 or more",)),
        ("sp=perhaps,tp=2", None, ("expected on or off",)),
        ("schedule=backwards,pp=2", None, ("expected one of 1f1b",)),
        ("schedule=dualpipe", None, ("DualPipe is not modelled",)),
        ("schedule=ZBVZeroBubble,pp=2", None, ("zero-bubble schedules are not modelled",)),
        ("cpu-offload=on", None, ("is not modelled", "leave it out")),
        ("diloco", None, ("not modelled",)),
        ("gbs=512", None, ("global_batch",)),
        ("hsdp=8", None, ("hsdp=4x8",)),
        ("tp=99999999999999999999", None, ("expected a whole number",)),
        ("dp=1000000,tp=1000000", None, ("at most",)),
        ("tp=\x1b[2J", None, ("expected a whole number",)),
    ],
)
def test_what_is_no_plan_is_said_in_one_line(text: str, gpus: int | None, parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as found:
        parse_plan(text, gpus)
    message = str(found.value)
    assert "\n" not in message
    assert message.isprintable()
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[meshes]\ntp=2", "unknown key meshes; did you mean mesh?"),
        ("mesh = 2", "mesh: expected a table, found 2"),
        ("[mesh]\ntpp=2", "mesh: unknown key tpp; did you mean tp?"),
        ("[mesh]\ntp=1.5", "mesh.tp: expected a whole number, true, false or text, found 1.5"),
        ('[shard]\n"*.q" = "columns"', "expected one of column, row, vocab, replicate, expert, found 'columns'"),
        ('[schedule]\npipeline = "zero-bubble"', "zero-bubble schedules are not modelled"),
        ("[mesh", "expected TOML"),
    ],
)
def test_a_plan_file_that_cannot_be_used_names_the_place(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as found:
        read_plan(str(path), 8)
    assert "plan.toml" in str(found.value)
    assert part in str(found.value)


def test_a_plan_file_has_every_word(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[mesh]\nfsdp = 4\ntp = 2\npp = 2\nsp = false\n[schedule]\npipeline = "gpipe"\nmicro_batch = 1\n'
        '[overlap]\ngradients = false\ntensor = true\nprefetch = 2\n[recompute]\nmode = "selective"\n'
        '[shard]\n"*.embed" = "vocab"\n',
        encoding="utf-8",
    )
    found = load_plan(path, 16)
    expected = (
        "fsdp=4,tp=2,sp=off,pp=2,mb=1,schedule=gpipe,recompute=selective,overlap=off,overlap_tensor=on,prefetch=2"
    )
    assert format_plan(found.plan) == expected
    assert found.shard == {"*.embed": ShardKind.VOCABULARY}


def test_a_framework_sets_what_a_plan_leaves_open() -> None:
    assert format_plan(parse_plan("dp=4,cp=2,framework=nemo")) == "dp=4,cp=2,buckets=megatron,overlap_context=on"
    assert format_plan(parse_plan("framework=megatron,dp=4,cp=2,buckets=torch")) == "dp=4,cp=2,overlap_context=on"
    assert parse_plan("dp=8,framework=torchtitan") == ParallelPlan(dp=8)
    assert format_plan(parse_plan("dp=8", framework="nemo")) == "dp=8,buckets=megatron"
    assert parse_plan("dp=8,framework=fsdp", framework="nemo") == ParallelPlan(dp=8)
    with pytest.raises(InputError, match="framework: expected one of megatron"):
        parse_plan("dp=8,framework=jax")
