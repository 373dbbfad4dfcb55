"""A served model: sizes, steps, the scheduler, and what is answered."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wavecast
from wavecast.analyzer.models.experts.problems import ANY_KERNEL
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.serve import page as serve_page
from wavecast.analyzer.questions.serve.engines import engine_on, read_engine, stack_of, weight_bytes
from wavecast.analyzer.questions.serve.kept import KeptTimes
from wavecast.analyzer.questions.serve.load import closed_load, computed, open_load, read_requests
from wavecast.analyzer.questions.serve.ops import PARTS, ServePlan, StepPart
from wavecast.analyzer.questions.serve.schedule import RequestLoad, Schedule, Served, serve_load
from wavecast.analyzer.questions.serve.sizes import read_model, sizes_of
from wavecast.analyzer.questions.serve.step import StepClock, StepColumns, StepTables, step_tables
from wavecast.analyzer.whatif.parallel.plan import slowest_share
from wavecast.errors import InputError
from wavecast.specs.catalog import load_catalog
from wavecast.specs.experts_kernels import ExpertsKernel
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

H100 = find_gpu(load_catalog(), "H100 SXM5 80GB")
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


@pytest.fixture(scope="module")
def clock() -> StepClock:
    sizes = read_model("llama-3-8b")
    tables = step_tables(sizes, ServePlan(), stack_of(H100, "bf16", "vllm"), [H100], load_library())
    return tables.clock(0)


def run(clock: StepClock, load: RequestLoad, capacity: int = 400_000) -> Served:
    engine = engine_on(read_engine("vllm==0.19"), H100, read_model("llama-3-8b"), "bf16")
    return serve_load(replace(engine, budget=2048), clock, capacity, load)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3-70b", 70.6), ("qwen3-30b-a3b", 30.5), ("deepseek-v3", 671.0), ("gpt-oss-120b", 116.8)],
)
def test_a_shipped_model_has_the_weights_that_its_makers_state(name: str, billions: float) -> None:
    assert read_model(name).parameters / 1e9 == pytest.approx(billions, abs=0.1)


def test_every_shipped_model_can_be_read(root_dir: Path) -> None:
    entries = tomllib.loads((root_dir / "analyzer/questions/serve/models.toml").read_text(encoding="utf-8"))["model"]
    assert all(read_model(name).layers for entry in entries for name in entry["names"])


def test_a_config_says_the_same_as_the_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_model(tmp_path).parameters == read_model("llama-3-8b").parameters


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mamba_d_state": 128}, "state-space"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"attn_type_list": [0, 1]}, "linear attention"),
        ({"ssm_state_size": 128}, "state-space"),
        ({"cross_attention_layers": [3]}, "cross attention"),
        ({"num_hidden_layers": "many"}, "whole number"),
        ({"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changed))
    with pytest.raises(InputError, match=said):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("to", "tp", "said"),
    [("2x7900xtx", 2, "It fits"), ("7900xtx", 1, "It may not fit")],
)
def test_a_cache_that_may_hold_no_sequence_is_said(to: str, tp: int, said: str) -> None:
    report = wavecast.serve("llama-3-8b", to=to, tp=tp, prompt_tokens=36_000).report
    lines = list(serve_page._headline(report))
    assert f"{tp} × Radeon RX 7900 XTX" in lines[1]
    assert lines[-1].startswith(f"{said}: weights")


def test_what_gemma_3_leaves_unsaid_is_transformers_default(tmp_path: Path) -> None:
    said = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34, "sliding_window": 1024}
    path = tmp_path / "gemma-3-4b.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"} | said}))
    found = read_model(path)
    assert (found.name, found.heads, found.kv_heads, found.head_dim) == ("gemma-3-4b", 8, 4, 256)
    assert found.parameters == pytest.approx(3.88e9, rel=0.005)


def test_steps_grow_with_sequences_contexts_and_prompts(clock: StepClock) -> None:
    assert clock.step_ns(1, 1000) < clock.step_ns(64, 1000) < clock.step_ns(64, 8000)
    short, long = (0, 0, 1, 512, 512.0), (0, 0, 1, 2048, 2048.0)
    assert clock.step_ns(*short) < clock.step_ns(*long) < clock.step_ns(64, 1000, *long[2:])


def test_ranks_agree_on_norms_over_all_heads() -> None:
    joint = read_model("minimax-m2.5")
    stack, plan = stack_of(H100, "fp8_block", "vllm"), ServePlan(tp=4)
    each = [
        step_tables(sizes, plan, stack, [H100], load_library()).parts(0, 8, 1000)[0]
        for sizes in (joint, replace(joint, has_joint_norms=False))
    ]
    assert (each[0] > each[1]).tolist() == [True, False, True, True]


def test_every_request_has_its_tokens_in_order(clock: StepClock) -> None:
    served = run(clock, open_load(5.0, 800, 100, seed=1))
    assert (served.arrival_ns < served.first_ns).all()
    assert (served.first_ns < served.last_ns).all()


def test_a_closed_load_never_runs_more_than_its_places(clock: StepClock) -> None:
    served = run(clock, closed_load(8, 500, 50, seed=0))
    at = np.sort(served.first_ns) + 1
    running = ((served.arrival_ns[:, None] <= at) & (served.last_ns[:, None] > at)).sum(axis=0)
    assert running.max() <= 8


@pytest.mark.parametrize("load", [closed_load(8, 800, 100, seed=1), open_load(5.0, 800, 100, seed=1)])
def test_an_engine_that_schedules_beside_the_gpu_shows_tokens_a_step_later(clock: StepClock, load: RequestLoad) -> None:
    engine = replace(read_engine("vllm"), budget=2048, max_sequences=256)
    late, soon = (serve_load(replace(engine, held_steps=count), clock, 400_000, load) for count in (1, 0))
    waits = [(found.first_ns - found.arrival_ns).mean() for found in (late, soon)]
    assert 1.0 < waits[0] / waits[1] < 2.0
    assert late.end_ns == pytest.approx(soon.end_ns, rel=0.05)
    many = serve_load(replace(engine, held_steps=9), clock, 400_000, load)
    assert (many.first_ns <= many.last_ns).all()
    assert many.last_ns.max() == pytest.approx(late.end_ns, rel=0.3)


def test_a_user_who_writes_again_joins_the_step_after_the_one_that_runs(clock: StepClock) -> None:
    prompts, outputs = np.full(4, 100), np.array([50, 100, 50, 100])
    served = run(clock, RequestLoad(arrival_ns=np.zeros(4), prompts=prompts, outputs=outputs, concurrency=2))
    assert served.arrival_ns[2] == served.last_ns[0]
    assert served.first_ns[2] - served.arrival_ns[2] > 1.3 * (served.first_ns[0] - served.arrival_ns[0])


def test_prompts_that_are_kept_whole_wait_for_a_step_with_room(clock: StepClock) -> None:
    engine = replace(read_engine("trtllm"), budget=2048, max_sequences=256)
    load, long = open_load(1e6, 1500, 20, seed=1, count=4), open_load(1.0, 5000, 20, seed=1, count=1)
    whole, cut = (
        serve_load(replace(engine, keeps_prompts_whole=keeps), clock, 400_000, load).first_ns for keeps in (True, False)
    )
    assert np.unique(whole).size == 4
    assert whole[3] == pytest.approx(cut[3], rel=0.1)
    assert serve_load(engine, clock, 400_000, long).first_ns[0] > 0


def test_ranks_that_wait_for_each_other_take_longer() -> None:
    sizes, stack = replace(read_model("llama-3-8b"), layers=1), stack_of(H100, "bf16", "vllm")
    plans = ServePlan(), ServePlan(pp=2)
    one, two = (step_tables(sizes, plan, stack, [H100], load_library()).time_ns for plan in plans)
    small = PARTS.index(StepPart.SMALL)
    assert two[small].sum() / one[small].sum() == pytest.approx(1.0 + slowest_share(2))


def test_a_full_cache_pushes_sequences_out_and_all_still_end(clock: StepClock) -> None:
    load = closed_load(16, 200, 400, seed=0)
    small, large = run(clock, load, capacity=4_000), run(clock, load)
    assert small.preempted > 0
    assert large.preempted == 0
    assert (small.last_ns > 0).all()
    assert small.end_ns > large.end_ns


def test_a_request_larger_than_the_cache_is_refused(clock: StepClock) -> None:
    with pytest.raises(InputError, match="larger than the cache"):
        run(clock, closed_load(1, 2000, 10, seed=0), capacity=1000)


def test_requests_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt,output\n1.5,100,20\n1.0,50,10\n")
    load = read_requests(path)
    assert load.arrival_ns.tolist() == [0.0, 0.5e9]
    assert load.prompts.tolist() == [50, 100]


def test_a_rate_takes_as_many_gpus_as_hold_the_limit() -> None:
    found = {
        rate: wavecast.serve("llama-3-8b", to="H100 SXM", rate=rate, tpot="50ms").report.rows[0] for rate in (2.0, 60.0)
    }
    assert found[2.0].holds
    assert found[60.0].holds
    assert found[2.0].gpus < found[60.0].gpus


def test_more_users_write_more_tokens_and_each_fewer() -> None:
    few, many = (wavecast.serve("llama-3-8b", to="H100 SXM", concurrency=count).to_records()[0] for count in (1, 32))
    assert many["output_tokens_per_s"] > few["output_tokens_per_s"]
    assert many["tpot_mean_ns"] > few["tpot_mean_ns"]


def test_several_numbers_of_users_make_a_curve_for_each_gpu() -> None:
    answer = wavecast.serve("llama-3-8b", to=["H100 SXM", "L40S"], concurrency=(1, 8, 64))
    rows = answer.to_records()
    assert [row["gpu"] for row in rows] == [rows[0]["gpu"]] * 3 + [rows[3]["gpu"]] * 3
    for gpu in {row["gpu"] for row in rows}:
        curve = sorted((row for row in rows if row["gpu"] == gpu), key=lambda row: row["concurrency"])
        assert [row["concurrency"] for row in curve] == [1, 8, 64]
        assert curve[0]["output_tokens_per_s_per_user"] > curve[2]["output_tokens_per_s_per_user"]
        assert curve[0]["output_tokens_per_s_per_gpu"] < curve[2]["output_tokens_per_s_per_gpu"]
    alone = wavecast.serve("llama-3-8b", to="H100 SXM", concurrency=8).to_records()[0]
    assert next(row for row in rows if row["gpu"] == alone["gpu"] and row["concurrency"] == 8) == alone


def test_a_user_is_served_by_one_instance_whatever_the_number_of_gpus() -> None:
    one, three = (
        wavecast.serve("llama-3-8b", to=f"{count}xH100 SXM", concurrency=1).to_records()[0] for count in (1, 3)
    )
    assert three["output_tokens_per_s"] == pytest.approx(one["output_tokens_per_s"])
    assert three["watts_per_gpu"] < one["watts_per_gpu"]
    assert three["joules_per_output_token"] > one["joules_per_output_token"]


def test_experts_are_also_searched_in_parts_and_with_replicas_of_attention() -> None:
    few, many = (
        wavecast.serve("deepseek-v3", to="8xH200 SXM", concurrency=count).to_records()[0] for count in (1, 1024)
    )
    assert few["dp"] == 1
    assert many["dp"] * many["tp"] == 8
    assert many["ep"] == 8
    shared = wavecast.serve("deepseek-v3", to="8xH200 SXM", concurrency=1024, tp=8).to_records()[0]
    assert many["output_tokens_per_s"] >= shared["output_tokens_per_s"]


def test_a_token_takes_fewer_joules_among_more_users_and_no_board_exceeds_its_limit() -> None:
    few, many = (
        wavecast.serve("llama-3-8b", to="H100 SXM", concurrency=count, electricity=0.1).to_records()[0]
        for count in (1, 64)
    )
    for row in (few, many):
        assert row["joules_per_output_token_low"] < row["joules_per_output_token"] < row["joules_per_output_token_high"]
        assert 100 < row["watts_per_gpu"] <= 700
        # One GPU: joules per token are watts over tokens per second, but for what fills and empties the engine.
        expected = row["watts_per_gpu"] / row["output_tokens_per_s"]
        assert row["joules_per_output_token"] == pytest.approx(expected, rel=0.2)
    assert many["joules_per_output_token"] < few["joules_per_output_token"] / 10


def test_hosts_and_site_are_billed_where_asked() -> None:
    billed: tuple[dict[str, Any], ...] = ({}, {"host_watts": 200.0, "pue": 1.5})
    alone, whole = (
        wavecast.serve("llama-3-8b", to="H100 SXM", concurrency=8, electricity=0.1, **more).to_records()[0]
        for more in billed
    )
    host_kwh = 200.0 / whole["output_tokens_per_s"] / 3.6
    expected = 1.5 * (alone["kwh_per_million_output_tokens"] + host_kwh)
    assert whole["kwh_per_million_output_tokens"] == pytest.approx(expected)
    name = "electricity_usd_per_million_output_tokens"
    assert whole[name] == pytest.approx(0.1 * whole["kwh_per_million_output_tokens"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"to": "MI300X", "engine": "trtllm"}, "NVIDIA"),
        ({"to": "Tesla T4"}, "does not fit"),
        ({"rate": 1.0, "concurrency": 2}, "2 loads: give one"),
        ({"tpot": "50"}, "expected a time such as"),
        ({"concurrency": (4, 0)}, "expected numbers from 1 to"),
        ({"engine": "llama.cpp"}, "expected vllm"),
        ({"precision": "fp8,fp9"}, "expected bf16"),
        ({"precision": ""}, "expected bf16"),
        ({"step_tokens": 10, "max_sequences": (12, 64)}, "as many as sequences at least"),
        ({"separate_prefill": True, "concurrency": 4}, "expected a rate"),
        ({"requests": "log.csv", "prompt_tokens": 64}, "goes without prompt_tokens, output_tokens, seed"),
        ({"requests": "log.csv", "seed": 3}, "goes without prompt_tokens"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(asked: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        wavecast.serve("llama-3.1-405b", **asked)  # type: ignore[arg-type]


def test_the_engine_of_a_version_is_the_newest_row_up_to_it() -> None:
    assert read_engine("vllm==0.12").sequence_ns > read_engine("vllm==0.14").sequence_ns
    assert read_engine("vllm==0.12").spread < read_engine("vllm").spread
    assert read_engine("vllm").first_per_token_ns == read_engine("trtllm").first_per_token_ns


@pytest.mark.parametrize(
    ("kind", "sizes", "billions"),
    [
        ("starcoder2", (30, 3_072, 24, 2, 12_288, 49_152), 3.03),
        ("gpt_neox", (44, 6_144, 64, 64, 24_576, 50_432), 20.55),
        ("cohere", (40, 8_192, 64, 64, 22_528, 256_000), 34.98),
    ],
)
def test_types_without_gates_or_with_one_table_have_the_weights_of_their_checkpoints(
    kind: str, sizes: tuple[int, ...], billions: float
) -> None:
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    named = dict(zip((*keys, "intermediate_size", "vocab_size"), sizes, strict=True))
    model = sizes_of({"model_type": kind, **named}, name=kind, source="")
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert sum(weight_bytes(model, "bf16")) == pytest.approx(2 * model.parameters)


def test_experts_are_read_by_the_names_of_ernie() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    experts = {"moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}
    found = sizes_of({**sizes, **experts, "moe_intermediate_size": 32, "vocab_size": 99}, name="e", source="here")
    assert (found.experts, found.top_k, found.shared_intermediate, found.dense_layers) == (8, 2, 64, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text_config": [1]},
        {"quantization_config": "fp8"},
        {"layer_types": 5},
        {"num_key_value_heads": 7},
        {"num_experts": 4, "num_experts_per_tok": 8},
        {"sliding_window": -1},
        {"rope_scaling": 4},
    ],
)
def test_a_config_that_contradicts_itself_is_refused_by_its_key(wrong: dict[str, object]) -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4, "num_attention_heads": 32}
    with pytest.raises(InputError, match=list(wrong)[-1]):
        sizes_of({**sizes, "vocab_size": 128256, **wrong}, name="wrong", source="here")


@pytest.mark.parametrize(("model", "most"), [("llama-2-7b", 4096), ("qwen3-32b", 40_960), ("gpt-oss-20b", 131_072)])
def test_longer_than_the_model_was_made_for_is_refused(model: str, most: int) -> None:
    assert wavecast.serve(model, to="H200 SXM", prompt_tokens=most - 1, output_tokens=1).to_records()
    with pytest.raises(InputError, match=rf"takes {most:,} tokens at most and engines refuse {most + 1:,}: ask for"):
        wavecast.serve(model, to="H200 SXM", prompt_tokens=most, output_tokens=1)


@pytest.mark.parametrize(("tokens", "why"), [(1, "no token comes after"), (2, "vllm shows a step's tokens after")])
def test_no_time_per_token_is_explained(tokens: int, why: str) -> None:
    answer = wavecast.serve("llama-3-8b", to="H100 SXM", concurrency=4, output_tokens=tokens)
    assert f"TPOT 0: {why}" in answer.draw()


@pytest.mark.parametrize("users", [1, 3])
def test_users_of_one_token_get_what_is_written_in_all(users: int) -> None:
    (row,) = wavecast.serve(
        "llama-3-8b", to="H100 SXM", concurrency=users, output_tokens=1, electricity=0.1
    ).to_records()
    assert row["output_tokens_per_s"] == pytest.approx(users * row["output_tokens_per_s_per_user"], rel=0.03)
    assert row["joules_per_output_token"] == pytest.approx(row["watts_per_gpu"] / row["output_tokens_per_s"], rel=0.03)


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32_768),
        ({"type": "linear", "factor": 2}, 65_536),
        ({"rope_type": "llama3", "factor": 8.0}, 32_768),
    ],
)
def test_a_stretched_rotation_takes_longer_requests(scaling: dict[str, object], positions: int) -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4, "num_attention_heads": 32}
    config = {**sizes, "vocab_size": 128256, "max_position_embeddings": 32_768, "rope_scaling": scaling}
    assert sizes_of(config, name="long", source="here").positions == positions


def test_what_hides_in_small_products_is_taken_off_them_alone() -> None:
    stack = stack_of(H100, "bf16", "vllm")
    tables = step_tables(read_model("llama-3-8b"), ServePlan(tp=2), stack, [H100], load_library())
    half = replace(read_engine("vllm"), ratio=0.5)
    whole, less = (tables.parts(0, 8, 1000, engine)[0] for engine in (None, half))
    assert (less / whole).tolist() == pytest.approx([0.5, 1, 1, 1], abs=0.05)
    assert tables.clock(0, half).step_ns(8, 1000) == pytest.approx(less.sum(), rel=0.02)
    assert tables.clock(0, half).step_ns(0, 0, 1, 4096, 4096) == tables.clock(0).step_ns(0, 0, 1, 4096, 4096)


@pytest.mark.parametrize("wrong", ["1,10.5,5", "1,10", "1,ten,5", "nan,10,5", "1e308,10,5", "-1,10,5", "1,0,5"])
def test_a_request_without_whole_tokens_is_named(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"\ufeffarrival_s,prompt,output\n0,10,5\n{wrong}\n")
    with pytest.raises(InputError, match=r"log\.csv: request 2: expected an arrival from 0 on, and whole numbers"):
        read_requests(path)


@pytest.mark.parametrize("wrong", ['{"arrival_s": 0, "prompt": true, "output": 5}', "[3]"])
def test_a_line_that_is_no_request_is_named(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"arrival_s": 0, "prompt": 10, "output": 5}}\n{wrong}\n')
    with pytest.raises(InputError, match=r"log\.jsonl: request 2: expected"):
        read_requests(path)


def test_an_empty_name_is_no_model() -> None:
    with pytest.raises(InputError, match="empty name"):
        read_model("")


def test_a_model_is_not_called_after_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "somebody"
    (home / "mine").mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    config = '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, '
    config += '"intermediate_size": 64, "vocab_size": 100}'
    for folder in (home, home / "mine"):
        (folder / "config.json").write_text(config)
    assert read_model(home / "config.json").name == "config"
    assert read_model(home / "mine").name == "mine"
    with pytest.raises(InputError, match=r"holds no config\.json"):
        read_model(tmp_path)


def test_steps_at_once_take_what_each_takes_alone(clock: StepClock) -> None:
    drafting = replace(clock, drafted=3, draft_share=1 / 32)
    columns = np.array(
        [[1, 900, 0, 0, 0, 0], [64, 3000.5, 2, 900, 451.0, 70.0], [0, 0, 3, 5000, 1700.0, 0.0]], dtype=float
    )
    steps = StepColumns(*np.column_stack([columns, np.ones(3)]).T)
    for each in (clock, drafting):
        alone = [each.step_ns(int(a), b, int(c), int(d), e, f) for a, b, c, d, e, f in columns.tolist()]
        assert each.steps_ns(steps).tolist() == pytest.approx(alone)


def test_a_closed_load_takes_the_same_steps_on_a_gpu_twice_as_fast(clock: StepClock) -> None:
    known: dict[tuple[object, ...], Schedule] = {}
    engine = replace(read_engine("vllm==0.19"), budget=2048, max_sequences=256, sequence_ns=0.0)
    load = closed_load(8, 500, 50, seed=0)
    fast = replace(clock, tok=[x - log(2) for x in clock.tok], dec=clock.dec - log(2), pre=clock.pre - log(2))
    fast = replace(fast, head=[x - log(2) for x in clock.head])
    slow, quick = (serve_load(engine, each, 400_000, load, known=known) for each in (clock, fast))
    alone = serve_load(engine, fast, 400_000, load)
    assert len(known) == 1
    assert quick.last_ns.tolist() == pytest.approx((slow.last_ns / 2).tolist())
    assert quick.last_ns.tolist() == alone.last_ns.tolist()


def test_a_small_cache_does_not_take_the_steps_of_a_large_one(clock: StepClock) -> None:
    known: dict[tuple[object, ...], Schedule] = {}
    engine, load = replace(read_engine("vllm"), budget=2048, max_sequences=256), closed_load(16, 200, 400, seed=0)
    large, small = (serve_load(engine, clock, room, load, known=known) for room in (400_000, 4_000))
    assert small.preempted > large.preempted == 0


@pytest.mark.parametrize(("drafts", "faster"), [("3:0.8", True), ("8:0", False)])
def test_drafts_pay_where_they_are_right(drafts: str, faster: bool) -> None:
    plain, drafted = (
        wavecast.serve("llama-3-70b", precision="fp8", to="2xH200", concurrency=1, speculate=asked).report.rows[0]
        for asked in (None, drafts)
    )
    assert (drafted.output_tokens_per_s > plain.output_tokens_per_s) is faster


def test_a_shared_beginning_is_neither_computed_nor_kept_for_each() -> None:
    rows = [
        wavecast.serve("llama-3-8b", to="L40S", concurrency=64, prompt_tokens=4000, shared_prompt=share).report.rows[0]
        for share in (0.0, 0.5, 0.9)
    ]
    first = [row.figures.latencies["ttft"].values["mean"] for row in rows]
    assert first[0] > first[1] > first[2]
    assert rows[0].output_tokens_per_s < rows[1].output_tokens_per_s < rows[2].output_tokens_per_s


def test_stages_take_as_long_for_one_user_and_share_out_many() -> None:
    one, two = (ServePlan(pp=stages) for stages in (1, 2))
    stack, sizes = stack_of(H100, "bf16", "vllm"), read_model("llama-3-8b")
    times = [step_tables(sizes, plan, stack, [H100], load_library()).clock(0).step_ns(8, 1000) for plan in (one, two)]
    assert 1.0 < times[1] / times[0] < 1.05
    asked: dict[str, Any] = {"to": "2xL40S", "concurrency": 64, "tp": 1}
    alone, staged = (wavecast.serve("llama-3-8b", **asked, pp=stages).report.rows[0] for stages in (1, 2))
    assert (alone.instances, staged.instances) == (2, 1)
    assert staged.capacity.weight_bytes == pytest.approx(alone.capacity.weight_bytes / 2)
    assert staged.capacity.tokens > alone.capacity.tokens
    assert staged.figures.step_half_width > alone.figures.step_half_width


def test_what_no_tensor_parallel_size_holds_is_put_in_stages() -> None:
    row = wavecast.serve("llama-3-70b", to="A100-PCIE-40GB", precision="bf16", tp=2).report.rows[0]
    assert row.plan.pp > 1


def test_an_unknown_quantisation_is_served_in_the_precision_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": {"quant_method": "hqq"}}))
    assert wavecast.serve(tmp_path, to="L4", precision="int8").report.rows[0].precision == "int8"


def test_the_best_of_several_precisions_is_named() -> None:
    answer = wavecast.serve("llama-3-70b", to=["2xH100-SXM", "2xA100-SXM-80GB"], precision="bf16,fp8", concurrency=8)
    assert {row["gpu"][:4]: row["precision"] for row in answer.to_records()}["H100"] == "fp8"
    assert "(fp8, tp=2" in str(answer.page())


def test_computed_prompts_are_waited_for_and_not_computed_again(clock: StepClock) -> None:
    load = open_load(4.0, 2000, 100, seed=0)
    whole, written = run(clock, load), run(clock, computed(load, 50e6))
    assert written.prompt_ns == 0 < whole.prompt_ns
    assert (written.last_ns >= load.arrival_ns + 50e6).all()
    assert written.busy_ns < whole.busy_ns


def test_prompts_on_gpus_of_their_own_leave_those_that_write_alone() -> None:
    asked: dict[str, Any] = {"to": "H100 SXM", "rate": 20.0, "prompt_tokens": 4000, "tp": 1}
    together, apart = (wavecast.serve("llama-3-8b", **asked, separate_prefill=is_apart) for is_apart in (False, True))
    one, other = together.report.rows[0], apart.report.rows[0]
    assert other.prefill is not None
    assert other.gpus == other.prefill.gpus + other.instances
    assert other.figures.latencies["tpot"].values["mean"] < one.figures.latencies["tpot"].values["mean"]
    assert apart.to_records()[0]["prefill_gpus"] == other.prefill.gpus
    assert "for prompts" in str(apart.page())


def test_an_engine_that_reserves_pushes_no_one_out(clock: StepClock) -> None:
    load = closed_load(32, 1000, 500, seed=0)
    pushed = []
    for reserves in (False, True):
        engine = replace(read_engine("vllm==0.19"), budget=2048, max_sequences=256, reserves=reserves)
        served = serve_load(engine, clock, 20_000, load)
        pushed.append(served.preempted)
        assert (served.last_ns >= served.first_ns).all()
    assert pushed[0] > 0 == pushed[1]


def test_engines_share_memory_out_by_rules_of_their_own() -> None:
    tokens = {
        engine: wavecast.serve("llama-3-8b", to="H100-SXM", engine=engine, tp=1).report.rows[0].capacity.tokens
        for engine in ("sglang", "vllm", "trtllm")
    }
    assert tokens["sglang"] < tokens["vllm"] < tokens["trtllm"]


def test_tensorrt_llm_runs_experts_by_kernels_of_its_own() -> None:
    kernels = [stack_of(H100, "fp8_block", engine).experts_kernel for engine in ("vllm", "trtllm")]
    assert kernels == [ANY_KERNEL, ExpertsKernel.TRTLLM_GEN]


def test_more_memory_for_the_engine_is_a_larger_cache() -> None:
    low, high = (
        wavecast.serve("llama-3-8b", to="L40S", memory_share=share).report.rows[0].capacity.tokens
        for share in (0.5, 0.95)
    )
    assert low < high


@pytest.mark.parametrize("text", ["3", "0:0.5", "3:1.5", "17:0.5", "a:b"])
def test_drafts_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"1 to 16 tokens and a chance"):
        wavecast.serve("llama-3-8b", to="H100", speculate=text)


def test_a_rate_above_what_is_served_does_not_hold_and_is_written_as_what_is() -> None:
    few = wavecast.serve("llama-3-8b", to="1xH100 PCIe", rate=14, ttft="2s", tpot="60ms").report.rows[0]
    assert few.holds is False
    assert few.figures.limit == "more requests than are served"
    assert few.output_tokens_per_s < 14 * 512
    enough = wavecast.serve("llama-3-8b", to="4xH100 PCIe", rate=14, ttft="2s", tpot="60ms").report.rows[0]
    assert enough.holds
    assert enough.output_tokens_per_s == pytest.approx(14 * 512, rel=0.02)


def test_instances_share_the_requests_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text("arrival_s,prompt,output\n" + "0,1000,50\n" * 80)
    one, four = (
        wavecast.serve("llama-3-8b", to=name, requests=path).report.rows[0] for name in ("H100 SXM", "4xH100 SXM")
    )
    assert four.figures.latencies["ttft"].values["mean"] < one.figures.latencies["ttft"].values["mean"]
    assert four.output_tokens_per_s < 4 * one.output_tokens_per_s


@pytest.mark.parametrize("asked", [{"memory_share": float("nan")}, {"shared_prompt": float("nan")}])
def test_a_share_is_a_number(asked: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected a share from 0 to 1"):
        wavecast.serve("llama-3-8b", to="H100 SXM", **asked)  # type: ignore[arg-type]


def test_a_request_that_no_cache_holds_is_named_as_that() -> None:
    with pytest.raises(InputError, match="fewer than a request has"):
        wavecast.serve("llama-3.1-70b", to="1xH100 SXM", precision="fp8", prompt_tokens=100_000)


def test_a_plan_takes_what_others_have_in_common_with_it_and_is_the_same() -> None:
    sizes, kept = read_model("mixtral-8x7b"), KeptTimes()
    a100 = find_gpu(load_catalog(), "A100 SXM4 80GB")

    def tables(plan: ServePlan, *gpus: Gpu, kept: KeptTimes | None = None) -> StepTables:
        return step_tables(sizes, plan, stack_of(H100, "bf16", "vllm"), gpus, load_library(), kept=kept)

    tables(ServePlan(tp=2), H100, kept=kept)
    count = sum(map(len, kept.values()))
    found = tables(ServePlan(tp=2, ep=2), a100, H100, kept=kept)
    np.testing.assert_allclose(found.time_ns, tables(ServePlan(tp=2, ep=2), a100, H100).time_ns, rtol=1e-12)
    assert sum(map(len, kept.values())) < 3 * count


@pytest.mark.parametrize("limits", [{"tpot": "11ms"}, {"ttft": "170ms"}])
def test_one_gpu_fewer_than_the_fewest_misses_the_limit(limits: dict[str, Any]) -> None:
    row = wavecast.serve("llama-3-8b", to=["H100-SXM"], rate=20.0, tp=1, **limits).to_records()[0]
    below = wavecast.serve("llama-3-8b", to=[f"{row['gpus'] - 1}xH100-SXM"], rate=20.0, tp=1, pp=1, **limits)
    assert row["holds_limits"]
    assert not below.to_records()[0]["holds_limits"]


@pytest.mark.parametrize(("limits", "said"), [({}, ""), ({"tpot": "1s"}, "hold"), ({"tpot": "1us"}, "broken")])
def test_what_was_not_asked_for_has_no_column(limits: dict[str, Any], said: str) -> None:
    report = wavecast.serve("llama-3-8b", to=["H100-SXM"], concurrency=1, **limits).report
    shown = {column.title: column for column in serve_page._sheet(report).columns}
    assert [*shown["limits"].cells] == [said] if said else "limits" not in shown


def test_a_long_context_is_decoded_by_many_units_on_amd() -> None:
    mi250 = find_gpu(load_catalog(), "Instinct MI250X (1 GCD)")
    stack = stack_of(mi250, "fp16", "vllm")
    clock = step_tables(read_model("llama-3-8b"), ServePlan(), stack, [mi250], load_library()).clock(0)
    read_ns = 2 * 32 * 1024 * 2 * 4096 / mi250.memory_bandwidth_bytes_per_s * 1e9
    assert clock.attention_ns(1, 8192) - clock.attention_ns(1, 4096) < 20 * read_ns


@pytest.mark.parametrize(("model", "share"), [("llama-3-8b", "FAMILY_SHARE"), ("mixtral-8x7b", "ROUTED_SHARE")])
def test_products_and_experts_of_a_step_err_together_in_part_and_attention_of_one_problem_wholly(
    monkeypatch: pytest.MonkeyPatch, model: str, share: str
) -> None:
    def widths() -> list[float]:
        tables = step_tables(read_model(model), ServePlan(), stack_of(H100, "bf16", "vllm"), [H100], load_library())
        return [float(width) for width in tables.parts(0, 8, 1000)[1]]

    found = widths()
    monkeypatch.setattr(f"wavecast.analyzer.questions.serve.ops.{share}", 1.0)
    together = widths()
    assert 0.5 * together[0] < found[0] < together[0]
    assert found[1] == pytest.approx(together[1])


def test_the_best_of_several_numbers_of_sequences_is_taken() -> None:
    asked: dict[str, Any] = {"to": "H200 SXM", "tpot": "100ms", "tp": 1}
    few, many, best = (
        wavecast.serve("llama-3-8b", max_sequences=most, **asked).to_records()[0] for most in (16, 512, (16, 512))
    )
    assert few["output_tokens_per_s"] < many["output_tokens_per_s"] == best["output_tokens_per_s"]
    assert best["max_sequences"] == 512


def test_numbers_of_sequences_beyond_a_steps_tokens_are_left_out_and_said() -> None:
    answer = wavecast.serve("llama-3-8b", to="H200 SXM", max_sequences=(64, 1024), step_tokens=128)
    assert answer.to_records()[0]["max_sequences"] == 64
    assert "max_sequences=1024 left out: more than the tokens of a step" in list(serve_page._warnings(answer.report))
    assert [item["max_sequences"] for item in json.loads(answer.to_json())["left_out"]] == [1024]


@pytest.mark.parametrize(
    ("gpu", "engine", "limits"),
    [
        ("H100 SXM5 80GB", "vllm", (8192, 1024)),
        ("H100 SXM5 80GB", "vllm==0.6", (8192, 256)),
        ("H100 SXM5 80GB", "sglang", (8192, 256)),
        ("A100 SXM4 80GB", "vllm", (2048, 256)),
        ("L40S", "vllm", (2048, 256)),
    ],
)
def test_an_engine_has_the_limits_of_its_server(gpu: str, engine: str, limits: tuple[int, int]) -> None:
    found = engine_on(read_engine(engine), find_gpu(load_catalog(), gpu), read_model("llama-3-8b"), "bf16")
    assert (found.budget, found.max_sequences) == limits
