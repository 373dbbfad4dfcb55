"""Tables of latent attention, delta nets and causal convolutions: which rows are read, as what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.measurements import latent_attention, state_space
from wavecast.analyzer.work.work import LatentKernel, StateRule

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

ATTENTION: Mapping[str, object] = {
    "gpu": "H100 SXM5 80GB",
    "kernel_source": "default",
    "kv_cache_dtype": "bfloat16",
    "num_heads": 16,
    "batch_size": 4,
    "isl": 1,
    "step": 1023,
    "source": "aiconfigurator/trtllm/1.3.0rc20",
    "latency_us": 20.0,
}
STATE: Mapping[str, object] = {
    "gpu": "L40S",
    "kernel_source": "chunk_gated_delta_rule",
    "phase": "context",
    "batch_size": 4,
    "seq_len": 256,
    "d_conv": 4,
    "num_k_heads": 16,
    "head_k_dim": 128,
    "num_v_heads": 32,
    "head_v_dim": 64,
    "source": "aiconfigurator/vllm/0.24.0",
    "latency_us": 20.0,
}
OLD = "aiconfigurator/trtllm/1.0.0"


@pytest.fixture(autouse=True)
def all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent_attention, "KEPT_SHARE", 1.0)
    monkeypatch.setattr(state_space, "KEPT_SHARE", 1.0)


def write(folder: Path, table: str, *rows: Mapping[str, object]) -> Path:
    from pyarrow import parquet

    (folder / "ops").mkdir(exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), folder / table)
    return folder


def test_decode_reads_the_latent_and_prefill_keys_of_each_head(tmp_path: Path) -> None:
    write(tmp_path, latent_attention.DECODE_TABLE, dict(ATTENTION))
    prompt = {**ATTENTION, "isl": 512, "step": 0}
    write(tmp_path, latent_attention.TABLE, prompt, {**prompt, "kernel_source": "flash_attention"})
    prefill, decode = latent_attention.load_samples(tmp_path)
    assert decode.problems.keys.tolist() == [1024]
    assert decode.problems.query_dim.tolist() == [576]
    np.testing.assert_array_equal(prefill.problems.is_absorbed, [0, 1])
    np.testing.assert_array_equal(prefill.problems.queries, [512, 512])
    np.testing.assert_array_equal(prefill.problems.query_dim, [192, 576])
    assert set(prefill.family) == {"latent attention prefill (library)"}


@pytest.mark.parametrize(
    ("row", "kernel"),
    [
        ({}, LatentKernel.LIBRARY),
        ({"source": OLD}, LatentKernel.UNSPLIT),
        ({"kernel_source": "triton"}, LatentKernel.SPLIT_TRITON),
        ({"kernel_source": "vllm_triton_mla", "batch_size": 512}, LatentKernel.TRITON),
        ({"kernel_source": "vllm_triton_mla"}, None),
        ({"kernel_source": "vllm_flashmla", "batch_size": 512}, None),
        ({"kernel_source": "triton", "num_heads": 1}, None),
        ({"kernel_source": "flash_attention", "kv_cache_dtype": "fp8"}, None),
        ({"source": OLD, "kv_cache_dtype": "fp8"}, None),
    ],
)
def test_decode_is_read_as_the_kernel_that_ran_or_left_out(
    tmp_path: Path, row: Mapping[str, object], kernel: LatentKernel | None
) -> None:
    (found,) = latent_attention.load_samples(write(tmp_path, latent_attention.DECODE_TABLE, {**ATTENTION, **row}))
    assert found.problems.kernel.tolist() == ([] if kernel is None else [kernel])


def test_a_convolution_runs_over_the_channels_that_its_library_has(tmp_path: Path) -> None:
    convolution = {**STATE, "kernel_source": "causal_conv1d_fn"}
    old = {**convolution, "source": "aiconfigurator/trtllm/1.3.0rc20"}
    older = {**convolution, "source": "aiconfigurator/sglang/0.5.10"}
    (found,) = state_space.load_samples(write(tmp_path, state_space.TABLE, convolution, old, older))
    np.testing.assert_array_equal(found.problems.rule, StateRule.CAUSAL_CONVOLUTION)
    np.testing.assert_array_equal(found.problems.heads, [2 * 2048 + 2048, 2048, 2048])
    np.testing.assert_array_equal(found.problems.is_fused, [0, 1, 2])
    np.testing.assert_array_equal(found.problems.state_dim, 4)


def test_a_delta_rule_has_heads_of_values_and_groups_of_keys(tmp_path: Path) -> None:
    update = {**STATE, "kernel_source": "fused_recurrent_gated_delta_rule", "phase": "generation", "seq_len": 1}
    mamba = {**STATE, "d_state": 128, "nheads": 64, "head_dim": 64, "n_groups": 8, "kernel_source": "causal_conv1d_fn"}
    folder = write(tmp_path, state_space.TABLE, STATE, update)
    found, other = state_space.load_samples(write(folder, state_space.MAMBA_TABLE, mamba))
    np.testing.assert_array_equal(found.problems.rule, StateRule.GATED_DELTA)
    np.testing.assert_array_equal(found.problems.is_update, [0, 1])
    np.testing.assert_array_equal(found.problems.heads, [32, 32])
    np.testing.assert_array_equal(found.problems.groups, [16, 16])
    assert set(found.family) == {"delta rule", "delta rule, update"}
    assert other.problems.heads.tolist() == [64 * 64 + 2 * 8 * 128]
    assert other.family.tolist() == ["Mamba-2 convolution"]


def test_absorbed_products_are_products_of_every_head(tmp_path: Path) -> None:
    row = {"gpu": "L40S", "num_tokens": 4096, "num_heads": 16, "bmm_dtype": "bfloat16", "latency_us": 20.0}
    row |= {"kernel_source": "default", "source": OLD}
    write(tmp_path, latent_attention.TABLE, {**ATTENTION, "step": 0})
    others = {**row, "bmm_dtype": "fp8"}, {**row, "num_tokens": 64}, {**row, "num_tokens": 16384}, row
    (_, found) = latent_attention.load_scored(write(tmp_path, latent_attention.PRODUCTS_TABLE, row, *others))
    assert found.model == "matmul"
    assert (found.problems.batch.tolist(), found.problems.m.tolist()) == ([16] * 3, [4096, 16384, 4096])
    assert (found.problems.n.tolist(), found.problems.k.tolist()) == ([512, 128, 128], [128, 512, 512])
