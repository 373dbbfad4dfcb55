"""An engine's times from a recording of its steps, and from a log of requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wavecast
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.serve.engines import engine_on, read_engine, stack_of
from wavecast.analyzer.questions.serve.load import open_load, read_measured
from wavecast.analyzer.questions.serve.measured import read_step
from wavecast.analyzer.questions.serve.ops import ServePlan
from wavecast.analyzer.questions.serve.schedule import serve_load
from wavecast.analyzer.questions.serve.sizes import read_model
from wavecast.analyzer.questions.serve.step import step_tables
from wavecast.errors import InputError, WavecastError
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

H100 = find_gpu(load_catalog(), "H100 SXM5 80GB")
MODEL = "llama-3-8b"


@pytest.mark.parametrize(
    ("said", "step"),
    [
        (
            "execute_130_context_2(sq128sk228sqsq8192sqsk14592)_generation_2(sq2sk50sqsq2sqsk50)",
            (2, 25.0, 2, 128, 64.0, 50.0),
        ),
        ("execute_context_2(128)_generation_0(0)", (0, 900.0, 2, 128, 64.0, 0.0)),
        ("step[EXTEND bs=1 toks=512]", (0, 900.0, 1, 512, 512.0, 0.0)),
        ("[Executor] _forward_step 7: 0 ctx reqs, 3 gen reqs", (3, 900.0, 0, 0, 0.0, 0.0)),
        ("[Executor] _forward_step 7: 2 ctx reqs, 3 gen reqs", None),
        ("execute_new_2_cached_3", None),
        ("decode_step 3", None),
    ],
)
def test_a_step_is_what_the_server_says_ran(said: str, step: tuple[float, ...] | None) -> None:
    assert read_step(said, 900.0) == step


def write_trace(path: Path, *, steps: int, decode_us: float, gpu: str = "NVIDIA H100 80GB HBM3") -> Path:
    """Write steps of 8 sequences, each one kernel, 100 us apart."""
    events: list[dict[str, Any]] = []
    name = "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk8000sqsq8sqsk8000)"
    for number in range(steps):
        at, link = 1000 + number * (decode_us + 100), {"correlation": number + 1, "External id": number + 1}
        span = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**span, "cat": "user_annotation", "name": name, "ts": at, "dur": 90},
            {**span, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 40, "dur": 10, "args": link},
            {**span, "cat": "kernel", "name": "k", "ts": at + 100, "dur": decode_us, "pid": 0, "tid": 7}
            | {"args": {**link, "device": 0, "stream": 7}},
        ]
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": gpu}], "traceEvents": events}
    path.write_text(json.dumps(document))
    return path


def decode_ns() -> float:
    tables = step_tables(read_model(MODEL), ServePlan(), stack_of(H100, "bf16", "vllm"), [H100], load_library())
    return tables.clock(0).step_ns(8, 1000.0)


def test_a_recording_says_the_kernels_ratio_and_the_hosts_time(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "steps.json", steps=4, decode_us=1.2 * decode_ns() / 1e3)
    answer = wavecast.serve(MODEL, to=["H100 SXM", "A100 SXM4 80GB"], concurrency=8, trace=path)
    engine, page = answer.report.question.engine, str(answer.page())
    assert engine.decode_ratio == pytest.approx(1.2, rel=1e-3)
    assert engine.prefill_ratio == 1.0
    assert engine.step_ns + 8 * engine.sequence_ns == pytest.approx(100e3, rel=1e-3)
    assert "steps.json, H100 SXM5 80GB: 0 steps with prompts, 4 decode steps with kernels of 1.20 x" in page
    own = wavecast.serve(MODEL, to=["H100 SXM", "A100 SXM4 80GB"], concurrency=8)
    for name in ("H100 SXM5 80GB", "A100 SXM4 80GB"):
        (now, then) = (next(row for row in found.report.rows if row.gpu == name).figures for found in (answer, own))
        assert 1.1 < now.latencies["tpot"].values["mean"] / then.latencies["tpot"].values["mean"] < 1.3
        assert (now.step_half_width > then.step_half_width) is (name != "H100 SXM5 80GB")


def test_an_engine_file_is_what_was_printed(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "steps.json", steps=4, decode_us=1.2 * decode_ns() / 1e3)
    found = wavecast.serve(MODEL, to="H100 SXM", concurrency=8, trace=path).report.question.engine
    (tmp_path / "mine.toml").write_text(found.as_file())
    again = read_engine(str(tmp_path / "mine.toml"))
    assert again.measured_on == "H100 SXM5 80GB"
    assert again.decode_ratio == pytest.approx(found.decode_ratio, rel=1e-4)
    assert again.step_ns == pytest.approx(found.step_ns, rel=1e-4)


@pytest.mark.parametrize(
    ("steps", "decode_us", "gpu", "asked", "said"),
    [
        (0, 10.0, "NVIDIA H100 80GB HBM3", {}, "none of them a usable op"),
        (2, 10.0, "NVIDIA H100 80GB HBM3", {}, "expected this model, precision and tp"),
        (2, 5e3, "", {}, "does not say its GPU: add source"),
        (2, 5e3, "NVIDIA H100 80GB HBM3", {"precision": "bf16,fp8"}, "expected the one that was measured"),
        (2, 5e3, "NVIDIA H100 80GB HBM3", {"calibrate": "log.csv"}, "give one"),
    ],
)
def test_a_recording_that_does_not_tell_is_refused(
    steps: int, decode_us: float, gpu: str, asked: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write_trace(tmp_path / "steps.json", steps=steps, decode_us=decode_us, gpu=gpu)
    with pytest.raises(WavecastError, match=said):
        wavecast.serve(MODEL, to="H100 SXM", trace=path, **asked)


def test_a_recording_without_a_servers_steps_is_refused(root_dir: Path) -> None:
    with pytest.raises(InputError, match="expected kernels in steps of a server"):
        wavecast.serve(MODEL, to="H100 SXM", trace=root_dir / "samples" / "bert_small-inference-bf16-b1-h100.json.gz")


@pytest.mark.parametrize("form", ["csv", "vllm", "guidellm"])
def test_a_log_says_the_engines_two_numbers(form: str, tmp_path: Path) -> None:
    sizes, load = read_model(MODEL), open_load(8.0, 500, 80, seed=1, count=120)
    engine = replace(engine_on(read_engine("vllm==0.19"), H100, sizes, "bf16"), step_ns=2e6, sequence_ns=0.1e6)
    tables = step_tables(sizes, ServePlan(), stack_of(H100, "bf16", "vllm"), [H100], load_library())
    served = serve_load(engine, tables.clock(0), 400_000, load)
    columns = np.stack(
        [served.arrival_ns / 1e9, load.prompts, load.outputs, served.first_ns / 1e9, served.last_ns / 1e9]
    )
    rows = [(start, int(prompt), int(output), first, last) for start, prompt, output, first, last in columns.T.tolist()]
    if form == "csv":
        lines = ["arrival_s,prompt,output,first_token_s,last_token_s", *(",".join(map(str, row)) for row in rows)]
        text = "\n".join(lines)
    elif form == "vllm":
        lists = dict(
            zip(("start_times", "input_lens", "output_lens"), map(list, zip(*rows, strict=True)), strict=False)
        )
        gaps = [[(last - first) / (output - 1)] * (output - 1) for *_, output, first, last in rows]
        text = json.dumps({**lists, "ttfts": [0.1] * len(rows), "itls": gaps})
    else:
        kept = [
            {"request_start_time": start + 1.7e9, "prompt_tokens": prompt, "output_tokens": output, "output": "text"}
            | {"inter_token_latency_ms": (last - first) / (output - 1) * 1e3}
            for start, prompt, output, first, last in rows
        ]
        text = json.dumps({"benchmarks": [{"requests": {"successful": kept}}]})
    path = tmp_path / ("log.csv" if form == "csv" else "log.json")
    path.write_text(text)
    answer = wavecast.serve(MODEL, to="H100 SXM", engine="vllm==0.19", calibrate=path)
    found = answer.report.question.engine
    assert found.step_ns == pytest.approx(2e6, rel=0.05)
    assert found.sequence_ns == pytest.approx(0.1e6, rel=0.1)
    assert "Fitted to 120 of 120 requests of log" in str(answer.page())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("log.csv", "arrival_s,prompt,output\n0,10,5\n", "expected times first_token_s and last_token_s"),
        ("log.csv", "arrival_s,prompt,output,first_token_s,last_token_s\n0,10,5,1,2\n", "1 requests of several tokens"),
        ("log.json", '{"input_lens": [3]}', "expected a result of vllm bench serve --save-detailed"),
        ("log.json", '{"benchmarks": []}', "expected a result of vllm bench serve"),
        ("log.json", '{"input_lens": 3, "start_times": 1}', "expected a result of vllm bench serve"),
        ("log.json", "[]", "holds no requests"),
    ],
)
def test_a_log_that_does_not_tell_is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        wavecast.serve(MODEL, to="H100 SXM", calibrate=tmp_path / name)


def test_a_request_without_a_last_token_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,prompt,output,first_token_s,last_token_s\n1,9,5,1.5,2.5\n0,10,5,1,\n")
    load, decoded_ns = read_measured(path)
    assert load.prompts.tolist() == [10, 9]
    assert decoded_ns.tolist()[1] == 1e9
    assert np.isnan(decoded_ns[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected engine = "),
        ('engine = "vllm"\nstep_ms = 1\n', "expected engine = "),
        ('engine = "mine"\nstep_ms = 1\nsequence_ms = 0\nprefill_ratio = 1\ndecode_ratio = 1', "expected engine = "),
        ('engine = "vllm"\nstep_ms = nan\nsequence_ms = 0\nprefill_ratio = 1\ndecode_ratio = 1', "step_ms: expected"),
        (
            'engine = "vllm"\nstep_ms = 1\nsequence_ms = 0\nprefill_ratio = 1\ndecode_ratio = 0',
            "decode_ratio: expected",
        ),
        ('engine = "vllm"\nstep = 1\n', "step_ms"),
        ("engine = 3", "expected text"),
        ("engine", "expected TOML"),
    ],
)
def test_an_engine_file_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_engine(str(tmp_path / "mine.toml"))
