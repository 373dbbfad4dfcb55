"""What FBGEMM does around lookups, by hand: two lists of four, eight values."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import Family, work_of
from wavecast.analyzer.work.work import RowDims
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec

LENGTHS, VALUES = TensorSpec("int32", (2, 4)), TensorSpec("int64", (8,))
ORDER, TWICE = TensorSpec("int32", (2,)), TensorSpec("int32", (3,))
WEIGHTS, OFFSETS = TensorSpec("float32", (8,)), TensorSpec("int64", (5,))
ROWS = TensorSpec("float32", (8, 16))
PADDED = TensorSpec("float32", (4, 3, 16))
NUMBERS, PACKED = TensorSpec("float32", (10, 64)), TensorSpec("uint8", (10, 72))


@pytest.mark.parametrize(
    ("name", "arguments", "read_bytes", "written_bytes"),
    [
        ("permute_2D_sparse_data", (ORDER, LENGTHS, VALUES, None, None), 8 + 32 + 64, 32 + 64),
        ("permute_2D_sparse_data", (ORDER, LENGTHS, VALUES, WEIGHTS, 8), 8 + 32 + 64 + 32, 32 + 64 + 32),
        # one list twice: how many values there are then is an argument, else as many more
        ("permute_2D_sparse_data", (TWICE, LENGTHS, VALUES, None, 12), 12 + 32 + 64, 48 + 96),
        ("permute_2D_sparse_data", (TWICE, LENGTHS, VALUES, None, UNKNOWN), 12 + 32 + 64, 48 + 96),
        ("permute_2D_sparse_data_input1D", (ORDER, LENGTHS, VALUES, 4, WEIGHTS, 8), 8 + 32 + 64 + 32, 32 + 64 + 32),
        ("asynchronous_complete_cumsum", (LENGTHS,), 32, 32),
        ("bounds_check_indices", (TensorSpec("int64", (2,)), VALUES, OFFSETS, 1), 16 + 64 + 40, 0),
        # for two ranks: lengths of each, values once, with the place that each came from
        (
            "block_bucketize_sparse_features",
            (LENGTHS, VALUES, False, True, ORDER, 2, None),
            32 + 64,
            2 * 32 + 64 + 64,
        ),
        (
            "block_bucketize_sparse_features",
            (LENGTHS, VALUES, UNKNOWN, UNKNOWN, ORDER, UNKNOWN, None),
            32 + 64,
            32 + 64,
        ),
        ("bucketize_sparse_features", (LENGTHS, VALUES, False, 2, WEIGHTS), 32 + 64 + 32, 2 * 32 + 64 + 32),
        ("jagged_to_padded_dense", (ROWS, (OFFSETS,), (3,), 0.0), 512 + 40, 4 * 3 * 16 * 4),
        ("jagged_2d_to_dense", (ROWS, OFFSETS, 3), 512 + 40, 4 * 3 * 16 * 4),
        ("dense_to_jagged", (PADDED, (OFFSETS,), 8), 512 + 40, 512),
        ("jagged_dense_elementwise_add", (ROWS, (OFFSETS,), PADDED), 512 + 40 + 768, 768),
        ("jagged_dense_bmm", (ROWS, OFFSETS, TensorSpec("float32", (4, 16, 2)), 3), 512 + 40 + 512, 8 * 2 * 4),
        ("permute_pooled_embs_auto_grad", (NUMBERS, ORDER, ORDER, ORDER, ORDER), 2560, 2560),
        ("regroup_keyed_tensor", ((NUMBERS, NUMBERS),), 5120, 5120),
        ("group_index_select_dim0", ((NUMBERS,), (TensorSpec("int64", (5,)),)), 5 * 256 + 40, 5 * 256),
        # quantised communication: shapes as fbgemm_gpu 1.8 gives them
        ("FloatToFused8BitRowwiseQuantized", (NUMBERS,), 2560, 10 * 72),
        ("Fused8BitRowwiseQuantizedToFloat", (PACKED,), 720, 2560),
        ("Fused8BitRowwiseQuantizedToFloatOrHalf", (PACKED, 1), 720, 1280),
        ("FloatToFusedNBitRowwiseQuantizedSBHalf", (NUMBERS, 4), 2560, 10 * 36),
        ("FloatToFusedNBitRowwiseQuantizedSBHalf", (NUMBERS, 2), 2560, 10 * 20),
        ("FusedNBitRowwiseQuantizedSBHalfToFloat", (TensorSpec("uint8", (10, 36)), 4), 360, 2560),
        ("FloatToHFP8Quantized", (NUMBERS, 4, 14, 61440.0), 2560, 640),
        ("FloatToBfloat16Quantized", (NUMBERS,), 2560, 1280),
        ("Bfloat16QuantizedToFloat", (TensorSpec("bfloat16", (10, 64)),), 1280, 2560),
    ],
)
def test_each_tensor_is_moved_once(
    name: str, arguments: tuple[Argument, ...], read_bytes: float, written_bytes: float
) -> None:
    found = work_of(f"fbgemm::{name}", Signature(arguments))
    assert found is not None
    assert (found.read_bytes, found.written_bytes) == (read_bytes, written_bytes)


def test_distinct_indices_are_found_by_sorting() -> None:
    """TorchRec's deduplication of a batch; how many there are is recorded or not."""
    kept = TensorSpec("int64", (5,))
    call = Signature((OFFSETS, OFFSETS, OFFSETS, VALUES), (OFFSETS, OFFSETS, kept, VALUES))
    found = work_of("fbgemm::jagged_unique_indices", call)
    assert found is not None
    assert found.family is Family.SORT
    assert (found.read_bytes, found.written_bytes) == (64, 40 + 40 + 40 + 64)


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("permute_2D_sparse_data", True),
        ("bounds_check_indices", True),
        ("asynchronous_complete_cumsum", False),
    ],
)
def test_what_walks_over_lists_is_not_counted_by_bytes_alone(name: str, waits: bool) -> None:
    found = work_of(f"fbgemm::{name}", Signature((LENGTHS, LENGTHS, VALUES)))
    assert found is not None
    assert isinstance(found.dims, RowDims)
    assert found.dims.is_by_list is waits


@pytest.mark.parametrize("name", ["merge_pooled_embeddings", "all_to_one_device"])
def test_copies_from_other_gpus_are_not_guessed(name: str) -> None:
    assert work_of(f"fbgemm::{name}", Signature(((NUMBERS, NUMBERS), 10, "cuda"))) is None


@pytest.mark.parametrize("bits", [0, 3, -1, UNKNOWN, 1 << 62])
def test_rows_of_unknown_bits_are_not_guessed(bits: Argument) -> None:
    assert work_of("fbgemm::FloatToFusedNBitRowwiseQuantizedSBHalf", Signature((NUMBERS, bits))) is None
