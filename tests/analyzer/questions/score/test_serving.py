"""Measured serving beside its prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wavecast.analyzer.questions.score.serving import score_serving
from wavecast.analyzer.questions.score.weights import choose_weights

COLUMNS = (
    "source,gpu,gpus,engine,version,model,precision,products,experts_format,tp,dp,ep,load,concurrency,isl,osl,"
    "length_spread,ttft_ms,tpot_ms,latency_s,flags"
)
ROW = (
    "here,H100 SXM5 80GB,1,vllm,0.19,meta-llama/Llama-3.1-8B,bf16,bf16,bf16,1,1,1,closed,{users},512,64,fixed,"
    "{ttft},{tpot},,{flags}"
)
RAN = {
    "engine": "vllm",
    "version": "0.19.0",
    "model": "meta-llama/Llama-3.1-8B",
    "tensor_parallel": 1,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "dtype": "bfloat16",
    "kv_tokens": 41408,
    "gpu": "NVIDIA GeForce RTX 4090",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "points.csv").write_text(COLUMNS + "\n")
    return tmp_path


def write_points(data: Path, *rows: str) -> None:
    (data / "serving" / "points.csv").write_text("\n".join((COLUMNS, *rows)))


def test_rows_that_do_not_say_what_ran_are_left_out_with_the_reason(data: Path) -> None:
    write_points(data, ROW.format(users=4, ttft=30, tpot=7, flags="speculation_unknown"))
    rows, _, notes = score_serving(data, choose_weights())
    assert rows == ()
    assert "speculation_unknown" in notes[0]


def test_a_measured_load_is_judged_by_its_means(data: Path) -> None:
    write_points(data, *(ROW.format(users=users, ttft=30, tpot=0.1, flags="") for users in (4, 256)))
    rows, _, _ = score_serving(data, choose_weights())
    tpot = next(row for row in rows if row.measure == "tpot" and row.group == "here")
    assert (tpot.rows, tpot.covered) == (2, 0.0)
    assert tpot.bias > 10


@pytest.mark.parametrize(
    ("source", "engine"), [("silicon_sample/gap", "vllm,0.12"), ("silicon_sample/inferencex", "sglang,0.5")]
)
def test_a_row_ran_within_the_limits_that_its_source_sets(data: Path, source: str, engine: str) -> None:
    """AIConfigurator lets few prompts into a step; InferenceX's SGLang looks for them after many."""
    row = ROW.format(users=16, ttft=100, tpot=9, flags="").replace("vllm,0.19", engine)
    write_points(data, row, source + row[row.index(",") :])
    found, _, _ = score_serving(data, choose_weights())
    bias = {item.group: item.bias for item in found if item.measure == "ttft"}
    here, there = bias["here"], bias["silicon_sample"]
    assert there < here if "gap" in source else there > here


def test_replicas_of_attention_that_launch_scripts_do_not_have_are_not_read(data: Path) -> None:
    what = "H100 SXM5 80GB,4,vllm,0.18,MiniMaxAI/MiniMax-M2.5,fp8,fp8_block,fp8_block"
    rows = [f"{name},{what},{plan},closed,8,1024,64,fixed,90,12,," for name, plan in (("a", "4,1,4"), ("b", "1,4,4"))]
    write_points(data, *rows)
    found, _, _ = score_serving(data, choose_weights())
    assert len({row.bias for row in found if row.measure == "tpot"}) == 1


def test_the_roofline_of_a_step_reads_the_weights_once(data: Path) -> None:
    weights_ms = 2 * 8.03e9 / 3.352e12 * 1e3
    write_points(data, ROW.format(users=1, ttft=weights_ms, tpot=weights_ms, flags=""))
    rows, _, _ = score_serving(data, choose_weights())
    roofline = {row.measure: row.roofline for row in rows if row.group == "here"}
    assert roofline == {"tpot": pytest.approx(0.0, abs=0.03), "ttft": pytest.approx(0.7, abs=0.05)}


def test_a_log_of_requests_is_replayed_with_its_cache(data: Path) -> None:
    lines = ["input_tokens,output_tokens,arrival_s,queued_s,first_token_s,last_token_s"]
    lines += [f"1000,100,{at},{at},{at + 0.15},{at + 2.0}" for at in range(5)]
    (data / "serving" / "requests_x.csv").write_text("\n".join(lines))
    (data / "serving" / "requests_x.json").write_text(json.dumps(RAN))
    rows, _, _ = score_serving(data, choose_weights())
    found = {row.measure: row.bias for row in rows if row.group == "request log"}
    assert found.keys() == {"tpot", "ttft", "e2e", "cached tokens"}
    assert abs(found["tpot"]) < 0.2


def test_the_better_of_two_loads_and_a_limit_that_is_kept_are_counted(data: Path) -> None:
    rows = [ROW.format(users=users, ttft=30, tpot=tpot, flags="") for users, tpot in ((4, 7), (64, 12), (128, 14))]
    write_points(data, *rows)
    _, decisions, _ = score_serving(data, choose_weights())
    found = {row.criterion: (row.pairs, row.right) for row in decisions}
    assert found["more tokens/s per GPU"] == (3, 1.0)
    assert found["the most within a limit of TPOT keeps it"][1] == 1.0
    write_points(
        data, ROW.format(users=4, ttft=30, tpot=900, flags=""), ROW.format(users=64, ttft=30, tpot=901, flags="")
    )
    _, decisions, _ = score_serving(data, choose_weights())
    assert [row.right for row in decisions if "limit" in row.criterion] == [0.0]


def test_a_batch_is_taken_apart_where_its_first_tokens_were_timed(data: Path) -> None:
    row = ROW.format(users=16, ttft="", tpot="", flags="").replace("closed", "offline").replace("512,64", "1024,1024")
    write_points(data, row.replace(",,,,", ",,,8.123456789,"))
    heading = "Hardware,Framework,Model,TTFT Latency,end_latency \n"
    times = "Nvidia H100 GPU,vLLM,meta-llama/Llama-3.1-8B,0.35,8.123456712\n"
    (data / "serving" / "llm_inference_bench_ttft_itl.csv").write_text(heading + times)
    rows, _, _ = score_serving(data, choose_weights())
    bias = {row.measure: row.bias for row in rows if row.group == "here"}
    assert bias.keys() == {"latency", "prefill", "decode step"}
    assert abs(bias["prefill"]) < 0.3
    assert min(bias["prefill"], bias["decode step"]) < bias["latency"] < max(bias["prefill"], bias["decode step"])


def test_offline_batches_are_predicted_with_what_the_engine_adds_elsewhere(data: Path) -> None:
    row = ROW.format(users=16, ttft="", tpot="", flags="").replace("closed", "offline").replace("512,64", "128,256")
    times = {"H100 SXM5 80GB": (2.6, 2.61), "A100 SXM4 80GB": (9.0, 9.01)}
    rows = [
        row.replace("H100 SXM5 80GB", gpu).replace(",,,,", f",,,{time},").replace(",256,fixed", f",{length},fixed")
        for gpu, found in times.items()
        for time, length in zip(found, (256, 255), strict=True)
    ]
    write_points(data, *rows)
    found, _, _ = score_serving(data, choose_weights())
    bias = {(item.group, item.measure): item.bias for item in found}
    moved = "latency, engine from other GPUs"
    assert bias["here, H100 SXM5 80GB, vllm", moved] > 0.5 + bias["here, H100 SXM5 80GB, vllm", "latency"]
    assert bias["here, A100 SXM4 80GB, vllm", moved] < 0.0
