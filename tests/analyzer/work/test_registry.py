"""Names: overloads, in-place forms, nested forms of profiler files, and torch's own list of ops."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from wavecast.analyzer.work import Family, Work, canonical_name, family_of, has_formula, register, work_of
from wavecast.analyzer.work.registry import registered_names
from wavecast.formats.trace.signature import Signature, TensorSpec


def known(name: str, signature: Signature) -> Work:
    work = work_of(name, signature)
    assert work is not None, (name, signature)
    return work


def mm(signature: Signature) -> Work:
    return known("aten::mm", signature)


HISTORIC = {
    "aten::thnn_conv_depthwise2d",  # torch < 1.10
    "aten::cudnn_convolution_backward",  # torch < 1.11
    "aten::miopen_convolution_backward",
    "aten::cudnn_convolution_transpose_backward",
}
"""Ops of older torch versions, which public traces still hold."""


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("aten::add", "aten::add"),
        ("aten::add.Tensor", "aten::add"),
        ("aten::add_.Scalar", "aten::add"),
        ("aten::add_", "aten::add"),
        ("aten::add.out", "aten::add"),
        ("aten::relu_", "aten::relu"),
        ("aten::__and__", "aten::__and__"),
        ("aten::_index_put_impl_", "aten::_index_put_impl"),
        ("aten::bernoulli_", "aten::bernoulli_"),
        ("aten::_foreach_addcdiv_.ScalarList", "aten::_foreach_addcdiv"),
        ("c10d::allreduce_", "c10d::allreduce_"),
        ("nccl:all_reduce", "nccl:all_reduce"),
        ("aten::no_such_op.Tensor", "aten::no_such_op"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "autograd::engine::evaluate_function: AddmmBackward0"),
    ],
)
def test_variants_of_an_op_share_its_name(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


@pytest.mark.parametrize(
    ("chain", "family"),
    [
        ("convolution _convolution cudnn_convolution miopen_convolution", Family.CONVOLUTION),
        ("batch_norm _batch_norm_impl_index cudnn_batch_norm miopen_batch_norm", Family.NORMALIZATION),
        ("scaled_dot_product_attention _scaled_dot_product_flash_attention _flash_attention_forward", Family.ATTENTION),
        ("_scaled_dot_product_cudnn_attention_backward _efficient_attention_backward", Family.ATTENTION),
        ("linear addmm matmul mm bmm", Family.MATMUL),
        ("clone _to_copy copy_", Family.COPY),
        ("relu_ clamp_min_", Family.ELEMENTWISE),
        ("_foreach_add_ _fused_adamw_", Family.OPTIMIZER),
        ("layer_norm native_layer_norm", Family.NORMALIZATION),
        ("to contiguous reshape dropout", Family.VIEW),
    ],
)
def test_nested_forms_have_one_family(chain: str, family: Family) -> None:
    assert {family_of(f"aten::{name}") for name in chain.split()} == {family}


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="aten::mm has a formula already"):
        register("aten::mm", family=Family.MATMUL)(mm)


def test_registered_aten_ops_exist_in_torch() -> None:
    existing = {schema.name for schema in torch._C._jit_get_all_schemas()}
    ours = {name for name in registered_names() if name.startswith("aten::")}
    unknown = {name for name in ours if name not in existing and f"{name}_" not in existing}
    assert unknown == HISTORIC


def test_an_in_place_result_has_the_first_arguments_dtype() -> None:
    half, single = TensorSpec("float16", (4,)), TensorSpec("float32", (4,))
    assert known("aten::add_", Signature((half, single, 1))).written_bytes == 8
    assert known("aten::add", Signature((half, single, 1))).written_bytes == 16


def test_unknown_names_have_no_family() -> None:
    assert family_of("CompiledFunction") is None
    assert not has_formula("triton_mm_kernel")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("triton_poi_fused_add_mul_3", Family.ELEMENTWISE),
        ("triton_poi_fused_convolution_relu_0", Family.ELEMENTWISE),
        ("triton_red_fused__log_softmax_1", Family.REDUCTION),
        ("triton_per_fused_addmm_native_layer_norm_2", Family.REDUCTION),
    ],
)
def test_kernels_that_inductor_generated_move_each_tensor_of_their_call_once(name: str, family: Family) -> None:
    half, single = TensorSpec("float16", (64, 128)), TensorSpec("float32", (128,))
    work = known(name, Signature((half, single, half)))
    assert work.family is family
    assert (work.read_bytes, work.written_bytes) == (2 * 64 * 128 + 4 * 128, 2 * 64 * 128)
    assert work_of(name, None) is None


def test_importing_the_formulas_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'torch', 'msgspec', 'orjson'}"
    code = f"import sys, wavecast.analyzer.work; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("place", [0, 1])
def test_a_call_of_an_unknown_dtype_has_no_work(place: int) -> None:
    known, unknown = TensorSpec("float32", (8, 8)), TensorSpec("float99", (8, 8))
    assert work_of("aten::relu", Signature((known,), (known,))) is not None
    assert work_of("aten::relu", Signature(*(((unknown,), (known,)), ((known,), (unknown,)))[place])) is None
