"""`wavecast record --as-engine`: a step with the fused ops of serving engines."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import wavecast
from click.testing import CliRunner
from wavecast import load_trace
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.serve.engines import stack_of
from wavecast.analyzer.questions.serve.ops import ServePlan
from wavecast.analyzer.questions.serve.sizes import read_model
from wavecast.analyzer.questions.serve.step import step_tables
from wavecast.analyzer.recorded.graphs import is_replayed
from wavecast.analyzer.whatif.axis.infer import infer_cached_tokens
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer.commands.record import record

pytest.importorskip("transformers")
BATCH, CACHED, LAYERS = 8, 1000, 4
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 1024, "head_dim": 128, "decoder_sparse_step": 1}
MOE = {
    **{**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
    **EXPERTS,
    "num_experts": 8,
    "mlp_only_layers": [],
}


def run(tmp_path: Path, config: dict[str, Any], *options: str) -> tuple[Path, Any]:
    path, out = tmp_path / "config.json", tmp_path / "trace.json.gz"
    path.write_text(json.dumps(config))
    arguments = ["--shapes-only", "--hf-config", str(path), "--mode", "inference", "--precision", "bf16"]
    arguments += ["--as-engine", "--batch-size", str(BATCH), "-o", str(out), *options]
    return out, CliRunner().invoke(record, arguments, catch_exceptions=False)


def ops_of(trace: Trace) -> Counter[str]:
    return Counter(trace.strings[name] for name in trace.ops.name)


def served_ns(config: Path, *step: Any, tp: int = 1) -> float:
    gpu = find_gpu(load_catalog(), "H100 SXM5 80GB")
    tables = step_tables(read_model(config), ServePlan(tp=tp), stack_of(gpu, "bf16", "vllm"), [gpu], load_library())
    return tables.clock(0).step_ns(*step)


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["llama", "experts"])
def test_a_decoding_step_is_an_engines(tmp_path: Path, config: dict[str, Any]) -> None:
    path, result = run(tmp_path, config, "--cached-tokens", str(CACHED))
    assert result.exit_code == 0, result.output
    trace = load_trace(path)
    ops = ops_of(trace)
    assert ops["vllm::unified_attention"] == ops["_C::rotary_embedding"] == LAYERS
    assert ops["_C::fused_add_rms_norm"] == 2 * LAYERS
    assert ops["_C_cache_ops::reshape_and_cache_flash"] == LAYERS
    assert ops["vllm::outplace_fused_experts" if config is MOE else "_C::silu_and_mul"] == LAYERS
    assert not ops.keys() & {"aten::cat", "aten::clone", "aten::add", "aten::add_"}  # no copy, no sum alone
    assert infer_cached_tokens(trace) == (CACHED, 1)
    assert is_replayed(trace)
    (found,) = wavecast.analyze(path, to="H100 SXM5 80GB").report.predictions
    expected = served_ns(tmp_path / "config.json", BATCH, CACHED + 1)
    assert found.iteration_ns == pytest.approx(expected, rel=0.1)  # of four layers, a launch of a graph counts


def test_a_prompts_step_is_an_engines_and_is_launched_kernel_by_kernel(tmp_path: Path) -> None:
    path, _ = run(tmp_path, LLAMA, "--sequence-length", "1024")
    assert not is_replayed(load_trace(path))
    (found,) = wavecast.analyze(path, to="H100 SXM5 80GB").report.predictions
    step = (0, 0, BATCH, BATCH * 1024, 1024.0, 0.0)
    assert found.iteration_ns == pytest.approx(served_ns(tmp_path / "config.json", *step), rel=0.1)


def test_a_windows_keys_alone_are_read(tmp_path: Path) -> None:
    windowed = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 1024}
    path, _ = run(tmp_path, {**windowed, "max_position_embeddings": 40_000}, "--cached-tokens", "32000")
    (found,) = wavecast.analyze(path, to="H100 SXM5 80GB").report.predictions
    expected = served_ns(tmp_path / "config.json", BATCH, 32_001)
    assert found.iteration_ns == pytest.approx(expected, rel=0.25)  # of all keys, 2.2 times it


def test_a_router_by_sigmoids_and_groups_is_one_op(tmp_path: Path) -> None:
    kind = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "first_k_dense_replace": 0}
    path, _ = run(tmp_path, {**MOE, **kind, "n_routed_experts": 8, "n_group": 1}, "--cached-tokens", str(CACHED))
    ops = ops_of(load_trace(path))
    assert ops["_moe_C::topk_softmax"] == LAYERS
    assert not ops.keys() & {"aten::topk", "aten::gather", "aten::sigmoid"}


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["llama", "experts"])
def test_ranks_share_heads_caches_and_experts(tmp_path: Path, config: dict[str, Any]) -> None:
    from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
    from wavecast.analyzer.whatif.parallel.shard.shard import shard_tensors

    path, _ = run(tmp_path, config, "--cached-tokens", str(CACHED))
    trace = shard_tensors(load_trace(path), ParallelPlan(tp=2)).trace
    calls = zip(trace.ops.name, trace.ops.signature, strict=True)
    found = {trace.strings[name]: trace.signatures[number].tensors() for name, number in calls if number >= 0}
    assert [item.shape[1] for item in found["vllm::unified_attention"][:3]] == [8, 2, 2]
    if config is MOE:
        assert [item.shape for item in found["vllm::outplace_fused_experts"][1:3]] == [(8, 1024, 2048), (8, 2048, 512)]
    reduces = sum(count for name, count in ops_of(trace).items() if "all_reduce" in name)
    assert reduces >= 2 * LAYERS


def test_another_batch_is_as_recorded_with_it(tmp_path: Path) -> None:
    path, _ = run(tmp_path, LLAMA, "--cached-tokens", str(CACHED))
    asked = wavecast.analyze(path, to="H100 SXM5 80GB", batch=2 * BATCH, cached_tokens=2 * CACHED)
    (found,) = asked.report.predictions
    path, _ = run(tmp_path, LLAMA, "--batch-size", str(2 * BATCH), "--cached-tokens", str(2 * CACHED))
    (recorded,) = wavecast.analyze(path, to="H100 SXM5 80GB").report.predictions
    assert found.iteration_ns == pytest.approx(recorded.iteration_ns, rel=1e-3)


LATENT = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "num_layers": 1}, "an encoder"),
        (LATENT, "latent attention"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"], "num_hidden_layers": 1}, "no keys and values"),
        (
            {"model_type": "mpt", "architectures": ["MptForCausalLM"], "n_layers": 1},
            "attention that transformers cannot",
        ),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 1}, "no next token"),
        ({**LLAMA, "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"]}, "experts that transformers"),
    ],
    ids=["encoder", "latent", "states", "own attention", "no head", "own experts"],
)
def test_what_engines_run_otherwise_is_refused_in_one_line(tmp_path: Path, config: dict[str, Any], why: str) -> None:
    path, result = run(tmp_path, config, "--cached-tokens", "16")
    assert result.exit_code == 2
    assert why in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not path.exists()


def test_training_is_no_step_of_an_engine(tmp_path: Path) -> None:
    _, result = run(tmp_path, LLAMA, "--mode", "training")
    assert result.exit_code == 2
    assert "--as-engine: only with --mode inference" in result.output
