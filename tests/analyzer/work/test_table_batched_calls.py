"""FBGEMM's calls as profilers wrote them: of 2022's on GPUs, and of fbgemm_gpu 1.8's on a processor, whose wrappers take
the same arguments as on a GPU. Texts are as in the files; what was called is known."""

# ruff: noqa: E501

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
from wavecast import load_trace
from wavecast.analyzer.work import Family, Work, work_of
from wavecast.analyzer.work.embedding_dims import EmbeddingDims, EmbeddingStep
from wavecast.analyzer.work.lookup import WorkLookup
from wavecast.analyzer.work.table_batched_call import UNSTATED_SHARE, holds_host_tables
from wavecast.formats.kineto.signatures import read_signatures
from wavecast.formats.trace.signature import Signature, TensorSpec

TORCHREC = Path(__file__).parent / "recorded" / "torchrec-fused-sgd-cpu.json.gz"
BAGS, LOOKUPS = 256, 2560
TWO_FP16 = "80000 fp16 elements: 1,000 rows of 64 and 500 of 32, 2,560 lookups with weights in 256 bags"
# What was called, and how the profiler wrote its inputs: types, sizes and values.
RECORDED: dict[str, tuple[str, str, str]] = {
    "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function_pt2": (
        '["float","TensorList","int","Scalar","Scalar","long int","Scalar","long int","long int","Scalar","float","",'
        '"Scalar","","ScalarList","ScalarList","ScalarList","TensorList","float","ScalarList","ScalarList","Scalar",'
        '"Scalar","Scalar",""]',
        "[[0],[[80000],[2],[2]],[3],[],[],[3],[],[2560],[257],[],[2560],[],[],[],[],[],[],[[1500],[2],[2]],[],[],[],[],"
        "[],[],[]]",
        '["","","","96","64","","11","","","0","","","0","","[0, 30, 1073741823]","[0., 1.]","[False]","","","[0]",'
        '"[1e-08]","-1","-1","-1",""]',
    ),
    "fbgemm::split_embedding_codegen_forward_weighted_pt2_wrapper": (
        '["c10::Half","","","","int","long int","int","Scalar","Scalar","long int","long int","long int","Scalar","float",'
        '"int","int","Scalar","Scalar"]',
        "[[80000],[],[],[],[2],[2],[3],[],[],[3],[2560],[257],[],[2560],[0],[0],[],[]]",
        '["","","","","","","","96","64","","","","0","","","","False","0"]',
    ),
    "fbgemm::split_embedding_codegen_forward_cpu": (
        '["c10::Half","long int","int","Scalar","long int","long int","long int","Scalar","float","Scalar"]',
        "[[80000],[2],[3],[],[3],[2560],[257],[],[2560],[]]",
        '["","","","96","","","","0","","0"]',
    ),
    "fbgemm::split_embedding_codegen_grad_indice_weights_pt2_wrapper": (
        '["float","c10::Half","","","","int","long int","int","Scalar","long int","long int","int",""]',
        "[[128,96],[80000],[],[],[],[2],[2],[3],[],[2560],[257],[0],[]]",
        '["","","","","","","","","64","","","",""]',
    ),
    "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_weighted_pt2_wrapper": (
        '["float","c10::Half","","","","int","long int","int","Scalar","Scalar","long int","Scalar","long int","long int",'
        '"Scalar","float","int","Scalar","Scalar","Scalar","Scalar","Scalar","Scalar","Scalar","float","","","int",'
        '"long int","float","Scalar","Scalar","Scalar","Scalar","Scalar"]',
        "[[128,96],[80000],[],[],[],[2],[2],[3],[],[],[3],[],[2560],[257],[],[2560],[0],[],[],[],[],[],[],[],[1500],[],[],"
        "[2],[2],[],[],[],[],[],[]]",
        '["","","","","","","","","64","True","","11","","","0","","","32","32","True","30","1073741823","False","True","",'
        '"","","","","","1e-08","0.","0","0.","0"]',
    ),
    "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu": (
        '["float","c10::Half","int","long int","int","Scalar","long int","Scalar","long int","long int","Scalar","float",'
        '"Scalar","float","int","long int","float","Scalar","Scalar","Scalar","Scalar","Scalar"]',
        "[[128,96],[80000],[2],[2],[3],[],[3],[],[2560],[257],[],[2560],[],[1500],[2],[2],[],[],[],[],[],[]]",
        '["","","","","","64","","11","","","0","","True","","","","","1e-08","0.","0","0.","0"]',
    ),
    # Two tables of 1,000 and 500 rows of 64 that are not added up.
    "fbgemm::split_embedding_codegen_lookup_sgd_function_pt2": (
        '["float","TensorList","int","Scalar","Scalar","long int","Scalar","long int","long int","Scalar","","","Scalar","",'
        '"ScalarList","ScalarList","ScalarList","float","Scalar","Scalar","Scalar",""]',
        "[[0],[[96000],[2],[2]],[3],[],[],[3],[],[2560],[257],[],[],[],[],[],[],[],[],[],[],[],[],[]]",
        '["","","","128","64","","11","","","2","","","0","","[0]","[0., 1.]","[False]","","-1","-1","-1",""]',
    ),
    "fbgemm::split_embedding_nobag_codegen_forward_unweighted_pt2_wrapper": (
        '["float","","","","int","long int","Scalar","long int","long int","long int","int","int","Scalar","Scalar"]',
        "[[96000],[],[],[],[2],[2],[],[3],[2560],[257],[0],[0],[],[]]",
        '["","","","","","","64","","","","","","False","0"]',
    ),
    "fbgemm::split_embedding_nobag_backward_codegen_sgd_unweighted_pt2_wrapper": (
        '["float","float","","","","int","long int","Scalar","long int","Scalar","long int","long int","int","Scalar",'
        '"Scalar","Scalar","Scalar","Scalar","Scalar","Scalar","float"]',
        "[[2560,64],[96000],[],[],[],[2],[2],[],[3],[],[2560],[257],[0],[],[],[],[],[],[],[],[]]",
        '["","","","","","","","64","","11","","","","32","32","True","30","1073741823","False","True",""]',
    ),
    # 1,000 rows of 64 and 500 of 32 in int8, a scale and a bias each, tables aligned to 128 bytes.
    "fbgemm::int_nbit_split_embedding_codegen_lookup_function": (
        '["unsigned char","unsigned char","int","long int","unsigned char","int","Scalar","Scalar","Scalar","Scalar",'
        '"Scalar","Scalar","int","int","Scalar","","Scalar","unsigned char","int","Scalar","Scalar","Scalar","Scalar"]',
        "[[86144],[0],[2],[2],[2],[3],[],[],[],[],[],[],[2560],[257],[],[],[],[0,0],[0],[],[],[],[]]",
        '["","","","","","","96","0","0","64","0","0","","","0","","0","","","1","0","-1","-1"]',
    ),
}
# An A100's and a V100's of 2022, without values: six tables, 400,903 rows of 64; three tables, no number per row.
OLD_LOOKUP = (
    '["float","float","float","float","int","long","int","Scalar","Scalar","long","Scalar","long","long","Scalar","","",'
    '"int","Scalar","Scalar","Scalar","float","float","int","long","Scalar"]',
    "[[0],[25657792],[0],[0,0],[6],[6],[7],[],[],[7],[],[33398],[393217],[],[],[],[0],[],[],[],[400903],[0],[6],[6],[]]",
)
ROWWISE, ADAGRAD = (
    f"fbgemm::split_embedding_codegen_lookup_{name}_function" for name in ("rowwise_adagrad", "adagrad")
)


def signature_of(types: str, dims: str, values: str = "") -> Signature:
    """Return the inputs of an op as the importer reads them."""
    (found,), _ = read_signatures([b"\0".join(text.encode() for text in (types, dims, "", values))], [1])
    return found


def recorded(name: str) -> Work:
    found = work_of(name, signature_of(*RECORDED[name]))
    assert found is not None
    assert found.family is Family.EMBEDDING
    return found


def dims_of(work: Work | None) -> EmbeddingDims:
    assert work is not None
    assert isinstance(work.dims, EmbeddingDims)
    return work.dims


@pytest.mark.parametrize("name", [name for name in RECORDED if "rowwise" in name or "forward_weighted" in name])
def test_every_form_of_a_call_says_the_same(name: str) -> None:
    dims = dims_of(recorded(name))
    element_bytes = 4 if "lookup" in name else 2  # a list's elements have no type in these files
    assert (dims.tables, dims.lookups, dims.row_bytes) == (2, LOOKUPS, 48 * element_bytes), TWO_FP16
    assert dims.rows == (750 if "rowwise" in name else 80_000 / 96)
    assert dims.state_bytes == (4.0 if "backward" in name else 0.0)
    assert dims.step is (EmbeddingStep.UPDATE if "backward" in name else EmbeddingStep.LOOKUP)
    assert dims.unstated == pytest.approx(UNSTATED_SHARE * log(64 / 48))
    """Widths differ, and which table is looked up how often is not recorded."""


def test_half_tables_give_results_of_single_precision() -> None:
    """`output_dtype` is fp32 unless said otherwise."""
    work = recorded("fbgemm::split_embedding_codegen_forward_weighted_pt2_wrapper")
    assert work.written_bytes == 128 * 96 * 4
    assert work.read_bytes == 1_000 * 0 + LOOKUPS * 8 + 257 * 8 + LOOKUPS * 4 + 80_000 * 2  # at most all of the tables
    assert work.flops == 2 * LOOKUPS * 48


def test_gradients_of_weights_read_rows_and_gradients() -> None:
    work = recorded("fbgemm::split_embedding_codegen_grad_indice_weights_pt2_wrapper")
    assert work.written_bytes == LOOKUPS * 4
    assert dims_of(work).step is EmbeddingStep.LOOKUP
    assert dims_of(work).streamed_bytes == 128 * 96 * 4 + LOOKUPS * 8 + 257 * 8 + LOOKUPS * 4


@pytest.mark.parametrize("name", [name for name in RECORDED if "nobag" in name or "lookup_sgd" in name])
def test_lookups_that_are_not_added_up_have_a_result_each(name: str) -> None:
    dims = dims_of(recorded(name))
    assert (dims.tables, dims.rows, dims.row_bytes, dims.lookups) == (2, 750, 64 * 4, LOOKUPS)
    assert dims.streamed_bytes == LOOKUPS * 64 * 4 + LOOKUPS * 8
    assert (dims.unstated, dims.blocks) == (0, 0)


@pytest.mark.parametrize(
    ("place", "bits", "scale_bytes"), [(7, 2, 4), (8, 4, 4), (9, 8, 4), (10, 16, 0), (11, 32, 0), (20, 8, 0)]
)
@pytest.mark.parametrize("alignment", [1, 16, None])
def test_quantised_rows_hold_a_scale_and_a_bias(place: int, bits: int, scale_bytes: int, alignment: int | None) -> None:
    types, dims, values = RECORDED["fbgemm::int_nbit_split_embedding_codegen_lookup_function"]
    given = json.loads(values)
    given[9], given[19] = "0", "" if alignment is None else str(alignment)
    given[6], given[place] = "128", "64"
    found = dims_of(work_of(list(RECORDED)[-1], signature_of(types, dims, json.dumps(given))))
    row, step = 64 * bits / 8 + scale_bytes, alignment or 16
    assert found.row_bytes == -(-row // step) * step
    assert found.rows == 86_144 / 2 / found.row_bytes
    assert found.unstated == 0


def test_an_int8_table_as_it_was_recorded() -> None:
    work = recorded("fbgemm::int_nbit_split_embedding_codegen_lookup_function")
    dims = dims_of(work)
    assert dims.row_bytes == 48 + 4
    assert work.written_bytes == BAGS * 48 * 4
    assert dims.rows == pytest.approx(750, rel=0.11)  # 68 and 36 bytes in 1,000 and 500 rows
    assert dims.unstated == pytest.approx(UNSTATED_SHARE * log(64 / 48))


def test_rows_of_an_optimizer_tell_widths_that_no_value_tells() -> None:
    work = work_of(ROWWISE, signature_of(*OLD_LOOKUP))
    dims = dims_of(work)
    assert (dims.tables, dims.row_bytes, dims.rows * 6) == (6, 256, 400_903)
    assert dims.unstated == 0  # 64 columns exactly, by rows
    assert dims.blocks == 12_288  # as its kernel was launched, [16, 32] threads each
    assert work_of(ADAGRAD, signature_of(*OLD_LOOKUP)) is None
    """Its state is as large as the tables: nothing tells their width."""


def test_the_gradient_of_results_tells_it_too() -> None:
    lookup = signature_of(*OLD_LOOKUP).arguments
    grad = TensorSpec("float32", (65_536, 384))
    node = dims_of(work_of("torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>", Signature((grad, *lookup))))
    assert (node.step, node.row_bytes, node.state_bytes) == (EmbeddingStep.UPDATE, 256, 256)
    forward = dims_of(work_of(ADAGRAD, Signature(lookup, (grad,))))
    assert (forward.row_bytes, forward.rows) == (256, node.rows)
    assert work_of("torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>", Signature((grad,))) is None


def test_empty_bags_write_zeros() -> None:
    dims = OLD_LOOKUP[1].replace("33398", "0")
    work = work_of(ROWWISE, signature_of(OLD_LOOKUP[0], dims))
    assert work is not None
    assert work.written_bytes == 393_216 * 256
    assert dims_of(work).lookups == 0


def test_tables_in_host_memory_are_told() -> None:
    given = list(signature_of(*OLD_LOOKUP).arguments)
    assert not holds_host_tables(Signature(tuple(given)))
    given[2] = TensorSpec("float32", (4096,))
    assert holds_host_tables(Signature(tuple(given)))
    assert work_of(ROWWISE, Signature(tuple(given))) is None


def test_a_step_of_torchrec_is_read_whole() -> None:
    """Five tables of 64, 32, 16, 64 and 16 columns, 512 bags each."""
    trace = load_trace(TORCHREC)
    found: dict[str, Any] = {}
    lookup = WorkLookup(trace)
    for row, name in enumerate(trace.strings[number] for number in trace.ops.name.tolist()):
        if "embedding_codegen" in name or "backward_codegen" in name or "LookupFunction" in name:
            found[name] = lookup.work(row)
    assert sum(work is not None for work in found.values()) >= 6
    read = {name: dims_of(work) for name, work in found.items() if work is not None}
    for name, dims in read.items():
        assert (dims.tables, dims.row_bytes) == (5, 4 * (64 + 32 + 16 + 64 + 16) / 5), name
        assert dims.streamed_bytes == 512 * 192 * 4 + dims.lookups * 4 + (5 * 512 + 1) * 4
    assert {dims.step for dims in read.values()} == {EmbeddingStep.LOOKUP, EmbeddingStep.UPDATE}


@pytest.mark.data
def test_a_lookup_and_its_node_are_joined_in_old_files(data_dir: Path) -> None:
    """A V100's Adagrad: only its gradient, in a node that names no lookup, tells that three tables have 16 columns."""
    trace = load_trace(data_dir / "traces" / "v100_dlrm_training_rank0.json.gz")
    lookup, found = WorkLookup(trace), {}
    for row, name in enumerate(trace.strings[number] for number in trace.ops.name.tolist()):
        work = lookup.work(row) if "LookupFunction" in name or "codegen_lookup" in name else None
        if work is not None:
            found[name] = dims_of(work)
    assert {name: (dims.step.name, dims.tables, dims.row_bytes, dims.lookups) for name, dims in found.items()} == {
        ADAGRAD: ("LOOKUP", 3, 64, 768),
        "fbgemm::dense_embedding_codegen_lookup_function": ("LOOKUP", 2, 64, 32),
        "torch::autograd::CppNode<SplitLookupFunction_Dense_Op>": ("DENSE_GRADIENT", 2, 64, 32),
        "torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>": ("UPDATE", 3, 64, 768),
    }


def test_a_call_of_few_arguments_has_no_tables() -> None:
    offsets = TensorSpec(dtype="int64", shape=(2,))
    assert work_of("fbgemm::split_embedding_codegen_lookup_none_function", Signature((offsets, offsets, 0))) is None
