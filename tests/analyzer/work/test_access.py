"""How elementwise ops and copies reach operands that do not lie as their result does."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.work import Work, work_of
from wavecast.analyzer.work.access import IN_TURN, SECTOR_BYTES, access_of, contiguous_copy
from wavecast.formats.trace.signature import Argument, Signature, TensorSpec


def laid(*shape: int, order: tuple[int, ...] = (), dtype: str = "float16") -> TensorSpec:
    """Return a tensor whose dims lie in this order, outermost first; default: as in its shape."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order or tuple(range(len(shape)))):
        strides[dim] = step
        step *= shape[dim]
    return TensorSpec(dtype, shape, tuple(strides))


def found(name: str, arguments: tuple[Argument, ...], result: TensorSpec) -> Work:
    work = work_of(name, Signature(arguments, (result,)))
    assert work is not None
    return work


WIDTHS = ("bfloat16", "float32", "int64")
FIRST, LAST = laid(64, 96, 56, 56), laid(64, 96, 56, 56, order=(0, 2, 3, 1))
COUNT = 64 * 96 * 56 * 56


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("aten::relu", (FIRST,), FIRST),
        ("aten::add", (LAST, LAST), LAST),
        ("aten::mul", (FIRST, TensorSpec("float16", (), ())), FIRST),
        ("aten::clone", (LAST,), LAST),
        ("aten::clone", (laid(8, 16),), laid(8, 16)),
        ("aten::clone", (TensorSpec("float16", (8, 16)),), laid(8, 16)),
    ],
)
def test_operands_that_lie_as_the_result_need_no_arithmetic(
    name: str, arguments: tuple[Argument, ...], result: TensorSpec
) -> None:
    assert found(name, arguments, result).access is None


def test_one_element_with_dims_is_broadcast() -> None:
    """Only a tensor without dims may be a number; torch 2.11 ran mul of [1, 1, 4096] and [1, 1, 1] without vectors."""
    access = found("aten::mul", (FIRST, laid(1)), FIRST).access
    assert access is not None
    assert access.operations > 0


def test_a_transposed_read_takes_whole_sectors() -> None:
    """Neighbours along channels lie an image of 3,136 elements apart in the result: no block uses a sector twice."""
    access = found("aten::clone", (LAST, "contiguous_format"), FIRST).access
    assert access is not None
    assert access.sector_bytes == COUNT * (SECTOR_BYTES - 2.0)
    assert access.operations > 0


def test_lanes_that_share_a_bank_take_turns() -> None:
    """Strides of whole lines have all lanes in one bank; 49 halves apart they lie in 25 lines, four a cycle."""
    whole, odd = (access_of((laid(8, size, 32, order=(0, 2, 1)),), laid(8, size, 32)) for size in (64, 49))
    assert whole is not None
    assert odd is not None
    assert whole.scattered == 1.0
    assert odd.scattered == pytest.approx(49 * 2 / 128 / 4)


def test_narrow_elements_are_taken_four_in_turn() -> None:
    counts = [access_of((laid(64, 96, order=(1, 0), dtype=dtype),), laid(64, 96, dtype=dtype)) for dtype in WIDTHS]
    assert [item.in_turn for item in counts if item is not None] == [4, 2, 2]


def test_a_block_uses_a_sector_again_where_the_other_dim_is_short() -> None:
    short, long = (access_of((laid(64, size, 32, order=(0, 2, 1)),), laid(64, size, 32)) for size in (16, 4096))
    assert short is not None
    assert long is not None
    assert short.sector_bytes == 0.0
    near, far = (access_of((laid(64, 96, size, order=(0, 2, 1)),), laid(64, 96, size)) for size in (128, 4096))
    assert near is not None
    assert far is not None
    assert 0.0 < near.sector_bytes / 128 < far.sector_bytes / 4096


def test_runs_are_read_whole_but_found_by_division() -> None:
    """Heads and tokens change places, what a head holds stays together."""
    heads = laid(64, 12, 197, 64, order=(0, 2, 1, 3))
    access = found("aten::clone", (heads, "contiguous_format"), laid(64, 12, 197, 64)).access
    assert access is not None
    assert access.sector_bytes == 0.0
    assert access.operations > found_operations(laid(64, 12, 197 * 64, order=(1, 0, 2)), laid(64, 12, 197 * 64))


def found_operations(operand: TensorSpec, result: TensorSpec) -> float:
    access = access_of((operand,), result)
    assert access is not None
    return access.operations


def test_a_bias_is_found_by_division() -> None:
    assert found("aten::add", (laid(64, 197, 384), laid(384)), laid(64, 197, 384)).access is not None


def test_padding_fills_its_result_before() -> None:
    result = laid(64, 96, 58, 58)
    access = found("aten::constant_pad_nd", (FIRST, (1, 1, 1, 1), 0.0), result).access
    assert access is not None
    assert access.before_bytes == result.size_bytes
    assert found("aten::constant_pad_nd", (FIRST, (0, 0), 0.0), FIRST).access is None
    assert found("aten::reflection_pad2d", (FIRST, (1, 1, 1, 1)), result).access is None


def test_a_layer_norm_makes_its_input_contiguous_before() -> None:
    x = TensorSpec("float32", (64, 56, 56, 96), (301056, 56, 1, 3136))
    arguments = (x, (96,), None, None, 1e-5)
    access = found("aten::native_layer_norm", arguments, x).access
    assert access is not None
    assert access == contiguous_copy(x)
    assert access.before_bytes == 2.0 * x.size_bytes
    assert 0.0 < access.before_sector_bytes < x.size_bytes
    plain = laid(64, 56, 56, 96, dtype="float32")
    assert found("aten::native_layer_norm", (plain, *arguments[1:]), plain).access is None


def test_parts_of_whole_vectors_are_joined_sixteen_bytes_at_a_time() -> None:
    whole, torn, cut = (
        found("aten::cat", ((part, part), 1), laid(8, 2 * part.shape[1])).access
        for part in (laid(8, 64), laid(8, 63), laid(8, 64, order=(1, 0)))
    )
    assert whole is not None
    assert torn is not None
    assert cut is not None
    assert whole.operations < torn.operations == cut.operations


def test_what_is_widened_is_loaded_one_by_one() -> None:
    half, full = laid(8, 64, dtype="float16"), laid(8, 64, dtype="float32")
    widening, narrowing = access_of((half,), full), access_of((full,), half)
    assert widening is not None
    assert widening.operations > 0
    assert widening.in_turn == IN_TURN
    assert narrowing is None


def test_elements_at_indices_are_taken_in_turn() -> None:
    rows, places = laid(8, 64), laid(4, dtype="int64")
    found = work_of("aten::index_copy", Signature((rows, 0, places, laid(4, 64)), (rows,)))
    assert found is not None
    assert found.access is not None
    assert found.access.in_turn == IN_TURN


def test_an_interpolation_by_a_tensor_divides_by_nothing() -> None:
    divided, mixed = (found(f"aten::{name}", (laid(8, 64),) * 3, laid(8, 64)) for name in ("addcdiv", "lerp"))
    assert divided.access is not None
    assert divided.access.functions == 1
    assert mixed.access is None


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    data=st.data(),
    dtype=st.sampled_from(["float32", "float16", "int64", "bool"]),
)
def test_no_read_moves_more_than_a_sector_per_element(shape: list[int], data: st.DataObject, dtype: str) -> None:
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    operand = laid(*shape, order=order, dtype=dtype)
    access = access_of((operand,), laid(*shape, dtype=dtype))
    if access is not None:
        assert 0.0 <= access.sector_bytes <= operand.element_count * SECTOR_BYTES
        assert access.operations > 0


def test_a_copy_takes_the_strides_of_its_result_where_its_target_has_none() -> None:
    known, expanded = laid(1, 8, 4, 64, 32), TensorSpec("float16", (1, 8, 4, 64, 32), (16_384, 2_048, 0, 32, 1))
    unsaid = TensorSpec("float16", known.shape)
    assert (
        found("aten::copy_", (unsaid, expanded), known).access == found("aten::copy_", (known, expanded), known).access
    )
