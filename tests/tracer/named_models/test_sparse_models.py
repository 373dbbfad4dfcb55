"""Models with experts, latent attention and states, by name: recorded with the ops of a GPU, each with its work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.work.lookup import WorkLookup, explained_ops
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer.commands.record import record

pytest.importorskip("transformers")

TEXT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "intermediate_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
DELTA = {
    "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16,
    "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
QWEN = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
GROUPED, DELTA_RULE, CONVOLUTION = "aten::_grouped_mm", "fla::chunk_gated_delta_rule", "causal_conv1d::causal_conv1d_fn"
MODELS: list[tuple[str, str, dict[str, Any], set[str]]] = [
    ("MixtralForCausalLM", "mixtral", TEXT | {"num_local_experts": 4}, {GROUPED}),
    ("Qwen2MoeForCausalLM", "qwen2_moe", TEXT | QWEN | {"shared_expert_intermediate_size": 32}, {GROUPED}),
    ("Qwen3MoeForCausalLM", "qwen3_moe", TEXT | QWEN, {GROUPED}),
    ("DeepseekV2ForCausalLM", "deepseek_v2", TEXT | LATENT | {"n_group": 1, "topk_group": 1}, {GROUPED}),
    ("DeepseekV3ForCausalLM", "deepseek_v3", TEXT | LATENT | {"n_group": 2, "topk_group": 1}, {GROUPED}),
    ("GptOssForCausalLM", "gpt_oss", TEXT | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
     {GROUPED}),
    ("MambaForCausalLM", "mamba", TEXT | {"state_size": 8}, {CONVOLUTION, "mamba_ssm::selective_scan_fn"}),
    ("Mamba2ForCausalLM", "mamba2", TEXT | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16},
     {CONVOLUTION, "mamba_ssm::mamba_chunk_scan_combined"}),
    ("Qwen3NextForCausalLM", "qwen3_next", TEXT | DELTA, {CONVOLUTION, DELTA_RULE, GROUPED}),
]  # fmt: skip


def recorded(folder: Path, model: tuple[str, str, dict[str, Any], set[str]], *options: str) -> tuple[Trace, str]:
    """Return the trace of a model, and what was said."""
    architecture, kind, sizes, _ = model
    config, output = folder / "config.json", folder / "trace.json.gz"
    config.write_text(json.dumps({"architectures": [architecture], "model_type": kind} | sizes), encoding="utf-8")
    given = ["--shapes-only", "--hf-config", str(config), "-o", str(output), "--precision", "bf16", "--batch-size", "2"]
    result = CliRunner().invoke(record, [*given, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return load_trace(output), result.stderr


def names_of(trace: Trace) -> set[str]:
    return {trace.strings[name] for name in trace.ops.name.tolist()}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("model", "mode"),
    [
        pytest.param(model, mode, id=f"{model[1]}-{mode}")
        for model in MODELS
        for mode in ("training", "inference")
        if mode == "training" or model[1] in {"mixtral", "deepseek_v3", "mamba2", "qwen3_next"}
    ],
)
def test_models_are_recorded_with_the_ops_of_a_gpu(
    tmp_path: Path, model: tuple[str, str, dict[str, Any], set[str]], mode: str
) -> None:
    trace, _ = recorded(tmp_path, model, "--sequence-length", "16", "--mode", mode)
    expected = model[3]
    backward = {f"{name}_backward" for name in expected - {GROUPED}} if mode == "training" else set()
    assert names_of(trace) >= expected | backward
    lookup = WorkLookup(trace)
    lacking = {trace.strings[trace.ops.name[row]] for row in explained_ops(trace).tolist() if lookup.work(row) is None}
    assert lacking == set()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("model", [MODELS[7], MODELS[8]], ids=["mamba2", "qwen3_next"])
def test_generated_tokens_update_states(tmp_path: Path, model: tuple[str, str, dict[str, Any], set[str]]) -> None:
    trace, _ = recorded(tmp_path, model, "--mode", "inference", "--cached-tokens", "20")
    updates = {"mamba_ssm::selective_state_update", "fla::fused_recurrent_gated_delta_rule"}
    assert names_of(trace) & updates
    assert "causal_conv1d::causal_conv1d_update" in names_of(trace)
    result = run_analysis(trace, load_catalog(), targets=[find_gpu(load_catalog(), "H100 SXM5 80GB")])
    assert result.forecast.iteration_ns[0] > 0


@pytest.mark.filterwarnings("default")
def test_whose_kernels_were_recorded_is_said_and_can_be_declined(tmp_path: Path) -> None:
    """The reference code runs token by token; nothing of the stand-ins is left behind."""
    length = ("--sequence-length", "8", "--mode", "inference")
    _, said = recorded(tmp_path, MODELS[6], *length)
    assert "kernels of causal_conv1d, mamba_ssm (without them: --reference-kernels)" in said
    trace, said = recorded(tmp_path, MODELS[6], *length, "--reference-kernels")
    assert "--reference-kernels" not in said.splitlines()[-1]
    assert not {name.partition("::")[0] for name in names_of(trace)} & {"causal_conv1d", "mamba_ssm"}
    assert not torch._C._dispatch_has_kernel("mamba_ssm::selective_scan_fn")
