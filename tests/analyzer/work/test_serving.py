"""Ops of serving libraries, by hand-written signatures after their public schemas, and the page that lists them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
from wavecast.analyzer.work import Family, family_of, has_formula, work_of
from wavecast.analyzer.work.serving import LIBRARY_OPS, LibraryOp
from wavecast.analyzer.work.work import (
    AttentionDims,
    ExpertsDims,
    ExpertsFormat,
    MatmulDims,
    RowDims,
    StateRule,
    StateSpaceDims,
    TokenKernel,
    Work,
)
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec("bfloat16", shape)


def fp8(*shape: int) -> TensorSpec:
    return TensorSpec("float8_e4m3fn", shape)


def of(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(dtype, shape)


def known(name: str, *arguments: Argument, results: tuple[Argument, ...] = ()) -> Work:
    work = work_of(name, Signature(arguments, results))
    assert work is not None, name
    return work


TOKENS, HIDDEN = 64, 1024
ROWS = bf16(TOKENS, HIDDEN)
ROW_CASES: list[tuple[str, tuple[Argument, ...], float, float]] = [
    ("_C::rms_norm", (ROWS, ROWS, bf16(HIDDEN), 1e-5), 2 * (65_536 + 1024), 131_072),
    ("sgl_kernel::rmsnorm", (ROWS, ROWS, bf16(HIDDEN), 1e-5, False), 2 * (65_536 + 1024), 131_072),
    ("aiter::rmsnorm", (ROWS, ROWS, bf16(HIDDEN), 1e-6), 2 * (65_536 + 1024), 131_072),
    ("_C::fused_add_rms_norm", (ROWS, ROWS, bf16(HIDDEN), 1e-5), 2 * (2 * 65_536 + 1024), 2 * 131_072),
    ("aiter::add_rmsnorm", (ROWS, ROWS, ROWS, ROWS, bf16(HIDDEN), 1e-6), 2 * (2 * 65_536 + 1024), 2 * 131_072),
    ("LigerRMSNormFunction", (ROWS, bf16(HIDDEN), 1e-6), 2 * (65_536 + 1024), 131_072),
    (
        "_C::rms_norm_dynamic_per_token_quant",
        (fp8(TOKENS, HIDDEN), ROWS, bf16(HIDDEN), of("float32", TOKENS, 1), 1e-5, None, None),
        2 * (65_536 + 1024),
        65_536 + 256,
    ),
    ("_C::silu_and_mul", (bf16(TOKENS, 512), ROWS), 131_072, 65_536),
    ("flashinfer::silu_and_mul", (bf16(TOKENS, 512), ROWS, False), 131_072, 65_536),
    ("LigerSiLUMulFunction", (ROWS, ROWS), 262_144, 131_072),
    ("_C::static_scaled_fp8_quant", (fp8(TOKENS, HIDDEN), ROWS, of("float32", 1)), 131_076, 65_536),
    (
        "sgl_kernel::sgl_per_token_group_quant_fp8",
        (ROWS, fp8(TOKENS, HIDDEN), of("float32", TOKENS, 8), 128, 1e-10, -448.0, 448.0, False),
        131_072,
        65_536 + 2048,
    ),
    ("bitsandbytes::quantize_4bit", (ROWS, 64, "nf4", "uint8"), 131_072, 32_768),
    (
        "_C_cache_ops::concat_and_cache_mla",
        (bf16(TOKENS, 512), bf16(TOKENS, 64), bf16(100, 16, 576), of("int64", TOKENS), "auto", of("float32", 1)),
        2 * TOKENS * 576 + 8 * TOKENS,
        2 * TOKENS * 576,
    ),
]


@pytest.mark.parametrize(("name", "arguments", "read", "written"), ROW_CASES, ids=[case[0] for case in ROW_CASES])
def test_row_ops_move_their_tensors_once(
    name: str, arguments: tuple[Argument, ...], read: float, written: float
) -> None:
    work = known(name, *arguments)
    assert (work.read_bytes, work.written_bytes) == (read, written)


def test_norms_name_their_rows() -> None:
    assert known("_C::rms_norm", ROWS, ROWS, bf16(HIDDEN), 1e-5).dims == RowDims(
        rows=TOKENS, columns=HIDDEN, token_kernel=TokenKernel.NORM
    )


M, N, K = 32, 512, 256
PRODUCTS: list[tuple[str, tuple[Argument, ...], str, float]] = [
    ("aiter::gemm_a16w16", (bf16(M, K), bf16(N, K), None, 15), "bfloat16", 2.0),
    ("vllm::rocm_unquantized_gemm", (bf16(M, K), bf16(N, K), None), "bfloat16", 2.0),
    ("_C::cutlass_scaled_mm", (bf16(M, N), fp8(M, K), fp8(K, N), of("float32", 1), of("float32", 1)),
     "float8_e4m3fn", 1.0),
    ("sgl_kernel::fp8_scaled_mm", (fp8(M, K), fp8(K, N), of("float32", M), of("float32", N), "bfloat16", None),
     "float8_e4m3fn", 1.0),
    ("trtllm::fp8_block_scaling_gemm", (fp8(M, K), fp8(N, K), of("float32", 2, M), of("float32", 4, 2)),
     "float8_e4m3fn", 1.0),
    ("_C::gptq_gemm", (bf16(M, K), of("int32", K // 8, N), of("int32", 2, N // 8), bf16(2, N), of("int32", K), True, 4),
     "bfloat16", 0.5),
    ("_C::awq_gemm", (bf16(M, K), of("int32", K, N // 8), bf16(2, N), of("int32", 2, N // 8), 8), "bfloat16", 0.5),
    ("_C::gptq_marlin_gemm",
     (bf16(M, K), None, of("int32", K // 16, N * 2), bf16(2, N), None, None, None, None, of("int32", 512), 256, M, N, K,
      True, False, True, False), "bfloat16", 0.5),
    ("_C::marlin_gemm",
     (bf16(M, K), None, of("int32", K // 16, N * 2), None, bf16(2, N), None, None, None, None, None, of("int32", 512),
      256, M, N, K, True, False, True, False), "bfloat16", 0.5),
    ("bitsandbytes::gemv_4bit",
     (bf16(M, K), of("uint8", N * K // 2, 1), (N, K), of("float32", N * K // 64), of("float32", 16), 64),
     "bfloat16", 0.5),
    ("bitsandbytes::int8_linear_matmul", (of("int8", M, K), of("int8", N, K)), "int8", 1.0),
    ("_Linear", (bf16(N, K), bf16(M, K), None, None, True), "float8_e4m3fn", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "dtype", "weight_bytes"), PRODUCTS, ids=[case[0] for case in PRODUCTS])
def test_products_tell_sizes_and_how_wide_weights_are(
    name: str, arguments: tuple[Argument, ...], dtype: str, weight_bytes: float
) -> None:
    work = known(name, *arguments)
    assert work.dims == MatmulDims(m=M, n=N, k=K, is_k_contiguous=True)
    assert (work.flops, work.dtype, work.is_matrix) == (2 * M * N * K, dtype, True)
    left = M * K * (2 if dtype == "bfloat16" else 1)
    assert (work.read_bytes - left) / (N * K) == pytest.approx(weight_bytes, abs=0.15)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_C::cutlass_scaled_fp4_mm", (bf16(M, N), of("uint8", M, K // 2), of("uint8", N, K // 2))),
        ("trtllm::nvfp4_gemm", (of("uint8", M, K // 2), of("uint8", N, K // 2), of("uint8", 512), of("uint8", 8192))),
        ("vllm::flashinfer_mm_fp4", (of("uint8", M, K // 2), of("uint8", K // 2, N))),
    ],
)
def test_two_numbers_per_byte_are_two(name: str, arguments: tuple[Argument, ...]) -> None:
    work = known(name, *arguments)
    assert work.dims == MatmulDims(m=M, n=N, k=K // 2, is_k_contiguous=True)
    assert (work.flops, work.dtype) == (2 * M * N * K, "float4_e2m1fn_x2")


def test_sizes_that_contradict_themselves_are_not_guessed() -> None:
    assert work_of("aiter::gemm_a16w16", Signature((bf16(M, K), bf16(N, K + 1)))) is None
    assert (
        work_of("_C::marlin_gemm", Signature((bf16(M, K), None, of("int32", 16, 1024), 1, M + 1, N, K, True))) is None
    )


QUERIES = bf16(300, 16, 128)
OFFSETS = of("int32", 4)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("flash_attn::_flash_attn_varlen_forward",
         (QUERIES, bf16(300, 4, 128), bf16(300, 4, 128), OFFSETS, OFFSETS, 100, 200, 0.0, 0.1, True, -1, -1)),
        ("xformers_flash::flash_fwd",
         (QUERIES, bf16(300, 4, 128), bf16(300, 4, 128), OFFSETS, OFFSETS, None, 100, 200, 0.0, 0.1, True, -1, -1,
          False, None)),
        ("_vllm_fa2_C::varlen_fwd",
         (QUERIES, bf16(50, 16, 4, 128), bf16(50, 16, 4, 128), None, OFFSETS, OFFSETS, of("int32", 3), None,
          of("int32", 3, 20), None, 100, 200, 0.0, 0.1, False, True, -1, -1)),
        ("_vllm_fa3_C::fwd",
         (QUERIES, bf16(50, 16, 4, 128), bf16(50, 16, 4, 128), None, None, None, None, OFFSETS, None, None, None,
          of("int32", 3), 100, 200, of("int32", 3, 20), *([None] * 8), 0.1, True, -1, -1)),
    ],
)  # fmt: skip
def test_packed_sequences_count_as_the_longest(name: str, arguments: tuple[Argument, ...]) -> None:
    work = known(name, *arguments)
    dims = work.dims
    assert isinstance(dims, AttentionDims)
    assert (dims.batch, dims.heads, dims.kv_heads, dims.queries, dims.keys) == (3, 16, 4, 100, 200)
    assert dims.is_causal
    assert not dims.is_chosen_by_torch
    assert work.flops == 4 * 3 * 16 * 100 * 200 * 128


def test_a_cache_is_read_as_far_as_its_sequences_go() -> None:
    cache = bf16(9000, 8, 128, 16)
    tables, lengths = of("int32", 4, 64), of("int32", 4)
    query = bf16(4, 32, 128)
    arguments = (query, query, cache, cache, 8, 0.1, tables, lengths, 16, 1000, None, "auto")
    work = known("_C::paged_attention_v1", *arguments)
    assert work.read_bytes == 2 * (4 * 32 * 128 + 2 * 4 * 1000 * 8 * 128)
    assert isinstance(work.dims, AttentionDims)
    assert (work.dims.queries, work.dims.keys) == (1, 1000)


EXPERTS, INTER, TOP = 16, 512, 4
WEIGHTS = bf16(EXPERTS, 2 * INTER, HIDDEN), bf16(EXPERTS, HIDDEN, INTER)
NARROW = fp8(EXPERTS, 2 * INTER, HIDDEN), fp8(EXPERTS, HIDDEN, INTER)
PACKED = of("uint8", EXPERTS, 2 * INTER, HIDDEN // 2), of("uint8", EXPERTS, HIDDEN, INTER // 2)
BLOCKS = of("float32", EXPERTS, 8, 8), of("float32", EXPERTS, 8, 4)
CHOICE = of("float32", TOKENS, TOP), of("int32", TOKENS, TOP)
LAYERS: list[tuple[str, tuple[Argument, ...], int, ExpertsFormat]] = [
    ("vllm::outplace_fused_experts",
     (ROWS, *WEIGHTS, *CHOICE, "silu", False, False, False, False, False, False, -1, None), EXPERTS,
     ExpertsFormat.PLAIN),
    ("vllm::inplace_fused_experts",
     (ROWS, *NARROW, *CHOICE, "silu", False, True, False, False, False, False, 64, None, *BLOCKS), 64,
     ExpertsFormat.FP8_BLOCK),
    ("vllm::outplace_fused_experts", (ROWS, *PACKED, *CHOICE, "silu", False, False, False, False, True, False, -1),
     EXPERTS, ExpertsFormat.W4A16),
    ("sglang::outplace_fused_experts", (ROWS, *WEIGHTS, *CHOICE, None, None, "silu"), EXPERTS, ExpertsFormat.PLAIN),
    ("vllm::rocm_aiter_fused_moe", (ROWS, *NARROW, *CHOICE), EXPERTS, ExpertsFormat.FP8),
    ("trtllm::fused_moe", (ROWS, CHOICE[1], CHOICE[0], WEIGHTS[0], None, WEIGHTS[1], None, "bfloat16", (), None, True,
                           None, None, None, 1, 0, 4, 0), 4 * EXPERTS, ExpertsFormat.PLAIN),
    ("trtllm::fp8_block_scale_moe_runner",
     (of("float32", TOKENS, 64), bf16(64), fp8(TOKENS, HIDDEN), of("float32", 8, TOKENS), NARROW[0], BLOCKS[0],
      NARROW[1], BLOCKS[1], 64, TOP, 8, 4, INTER, 0, EXPERTS, 2.5, 2), 64, ExpertsFormat.FP8_BLOCK),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "experts", "form"), LAYERS)
def test_layers_of_experts_tell_their_sizes(
    name: str, arguments: tuple[Argument, ...], experts: int, form: ExpertsFormat
) -> None:
    work = known(name, *arguments)
    dims = work.dims
    assert isinstance(dims, ExpertsDims)
    assert (dims.tokens, dims.hidden, dims.intermediate, dims.top_k) == (TOKENS, HIDDEN, INTER, TOP)
    assert (dims.experts, dims.local_experts, dims.is_gated, dims.weights) == (experts, EXPERTS, True, form)
    assert work.flops == 2 * TOKENS * TOP * EXPERTS / experts * 3 * HIDDEN * INTER


def test_a_layer_of_experts_without_its_weights_is_left_to_its_kernels() -> None:
    assert work_of("vllm::moe_forward", Signature((ROWS, bf16(TOKENS, EXPERTS), None))) is None
    assert family_of("vllm::moe_forward") is Family.EXPERTS


def test_states_tell_their_sizes() -> None:
    delta = known("ChunkGatedDeltaRuleFunction", bf16(2, 64, 8, 128), bf16(2, 64, 8, 128), bf16(2, 64, 16, 64))
    assert delta.dims == StateSpaceDims(
        rule=StateRule.GATED_DELTA, batch=2, steps=64, heads=16, head_dim=64, state_dim=128, groups=8
    )
    channels, heads = 1024 + 2 * 2 * 128, 16
    joined = known(
        "MambaSplitConv1dScanCombinedFn",
        bf16(2, 64, 1024 + channels + heads), bf16(channels, 4), bf16(channels), bf16(heads), of("float32", heads),
        bf16(heads), 256, None, None, None, False, "silu", None, 1e-5, None, None, 64, 2,
    )  # fmt: skip
    apart = known(
        "MambaChunkScanCombinedFn", bf16(2, 64, 16, 64), bf16(2, 64, 16), of("float32", 16), bf16(2, 64, 2, 128)
    )
    assert joined.dims == apart.dims
    scan = known("SelectiveScanFn", bf16(2, 512, 64), bf16(2, 512, 64), of("float32", 512, 16))
    assert isinstance(scan.dims, StateSpaceDims)
    assert (scan.dims.heads, scan.dims.state_dim) == (512, 16)
    window = known("causal_conv1d::causal_conv1d_fn", bf16(2, 512, 64), bf16(512, 4), bf16(512))
    assert isinstance(window.dims, StateSpaceDims)
    assert (window.dims.steps, window.dims.state_dim) == (64, 4)


def test_every_op_that_is_declared_has_a_family() -> None:
    for item in LIBRARY_OPS:
        assert item.names
        assert all(has_formula(name) and family_of(name) is item.family for name in item.names)


def test_what_a_call_lacks_is_not_guessed() -> None:
    for item in LIBRARY_OPS:
        assert all(work_of(name, Signature(())) is None for name in item.names)


HEAD = """# Ops of serving libraries

This page is generated: `pytest tests/analyzer/work/test_serving.py --rewrite-golden` writes it from the declarations
in `analyzer/work/serving/`. It lists ops of libraries beside PyTorch by the names that profilers record.

Where the last but one column says what is read of the signature, the op has a [work formula](method.md#2-work). Where
it says *kernels*, the arguments do not tell the sizes: lengths are values on the GPU, or weights belong to a module.
Then only the family is known, and each kernel is moved by its name and launch. Names of classes are
`autograd.Function`s. The last column names the public source of each schema; some were read there, others written from
memory and not compared with a release. A call that does not fit its schema has no work rather than a wrong one. Names
of `fla::`, `causal_conv1d::` and `mamba_ssm::` are those that [recordings of
shapes](../reference/recording.md#a-model-by-name) give them.
"""


def page() -> Iterator[str]:
    yield HEAD
    ordered = sorted(LIBRARY_OPS, key=lambda item: item.library.lower())
    for library, items in groupby(ordered, key=lambda item: item.library):
        yield f"\n## {library}\n\n| ops | what | family | taken from the signature | schema in |\n"
        yield "|---|---|---|---|---|\n"
        yield from map(row, items)


def row(item: LibraryOp) -> str:
    names = " ".join(f"`{name}`" for name in item.names)
    return f"| {names} | {item.what} | {item.family} | {item.taken or '*kernels*'} | {item.source} |\n"


def test_the_page_lists_what_is_declared(request: pytest.FixtureRequest) -> None:
    path = request.config.rootpath / "docs" / "evidence" / "serving-ops.md"
    text = "".join(page())
    if request.config.getoption("--rewrite-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
