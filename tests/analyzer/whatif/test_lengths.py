"""Other sequence lengths and fuller caches: what is rescaled is what a recording of that length shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from wavecast.analyzer.whatif.axis.axis import cache_axis, sequence_axis
from wavecast.analyzer.whatif.axis.carry import carry_from_strides
from wavecast.analyzer.whatif.axis.change import with_cached_tokens, with_sequence_length
from wavecast.analyzer.whatif.axis.infer import infer_cached_tokens, infer_sequence_length
from wavecast.analyzer.whatif.axis.rules import AxisCall, result_carry
from wavecast.analyzer.whatif.axis.sizes import scale_spec
from wavecast.analyzer.whatif.calls import layout_of
from wavecast.analyzer.work import work_of
from wavecast.errors import InputError
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec
from wavecast.formats.trace.tables import OperandTable, TensorTable, Trace
from wavecast.formats.trace.validate import validate
from wavecast.tracer import trace_iteration

WIDTH, HEADS, VOCABULARY, POSITIONS, BATCH, EXPERTS = 48, 4, 100, 128, 3, 2


class Decoder(nn.Module):
    """Tables of tokens and positions, attention with a mask and without, shifted labels, rows spread over experts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.register_buffer("turns", torch.zeros(POSITIONS, WIDTH // HEADS))
        self.parts = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(places))
        query, key, value = self.parts(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query = query * self.get_buffer("turns")[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        scores = (query @ key.transpose(-1, -2)).masked_fill(~mask, -1e9).softmax(-1)
        x = x + (scores @ value).transpose(1, 2).flatten(2)
        x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        rows = x.flatten(0, 1)
        order = self.gate(rows).topk(1).indices.flatten().argsort()
        result: Tensor = self.head(rows[order].view_as(x))
        return result


def record(length: int, mode: str = "training", module: Callable[[], nn.Module] = Decoder) -> Trace:
    """Record the model on the meta device."""
    with torch.device("meta"):
        model, tokens = module(), torch.randint(VOCABULARY, (BATCH, length))
    if mode == "inference":

        def predict() -> object:
            with torch.inference_mode():
                return model(tokens)

        return trace_iteration(predict, device="meta", mode=mode, batch_size=BATCH)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        labels = functional.pad(tokens, (0, 1))[:, 1:]
        functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()).backward()
        optimizer.step()

    return trace_iteration(train, device="meta", mode=mode, batch_size=BATCH)


def record_step(cached: int, query_count: int = 1) -> Trace:
    """Record new tokens that see a cache of keys and values, which grows by them."""
    with torch.device("meta"):
        parts = nn.Linear(WIDTH, 3 * WIDTH)
        x = torch.randn(BATCH, query_count, WIDTH)
        keys, values = (torch.randn(BATCH, HEADS, cached, WIDTH // HEADS) for _ in range(2))

    def step() -> Tensor:
        with torch.inference_mode():
            query, key, value = parts(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            all_keys, all_values = torch.cat((keys, key), 2), torch.cat((values, value), 2)
            eager = (query @ all_keys.transpose(-1, -2)).softmax(-1) @ all_values
            result: Tensor = eager + functional.scaled_dot_product_attention(query, all_keys, all_values)
            return result

    return trace_iteration(step, device="meta", mode="inference", batch_size=BATCH)


def signatures(trace: Trace) -> list[tuple[str, Signature]]:
    pairs = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)
    return [(trace.strings[name], trace.signatures[number]) for name, number in pairs]


def without_ids(trace: Trace) -> Trace:
    """Return the trace as a profiler would have recorded it: no tensors, no results."""
    return replace(
        trace,
        operands=build_table(OperandTable, 0),
        tensors=build_table(TensorTable, 0),
        signatures=tuple(Signature(item.arguments) for item in trace.signatures),
    )


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize(
    ("before", "after"),
    # 3 is the batch, 4 the heads, 12 the features of a head, 48 the width: sizes that are no length.
    # Statistics of attention that is trained are kept in steps of 32.
    [(32, 64), (96, 32), (12, 24), (20, 31), (48, 64)],
)
def test_a_rescaled_trace_equals_the_recorded_one(mode: str, before: int, after: int) -> None:
    changed, wanted = with_sequence_length(record(before, mode), after), record(after, mode)
    assert signatures(changed.trace) == signatures(wanted)
    assert changed.trace.tensors.element_count.tolist() == wanted.tensors.element_count.tolist()
    assert changed.warnings == ()
    validate(changed.trace)


@pytest.mark.parametrize("query_count", [1, 5])
@pytest.mark.parametrize(("before", "after"), [(30, 70), (70, 30), (12, 13), (48, 100)])
def test_a_fuller_cache_equals_the_recorded_one(before: int, after: int, query_count: int) -> None:
    changed, wanted = with_cached_tokens(record_step(before, query_count), after), record_step(after, query_count)
    assert signatures(changed.trace) == signatures(wanted)
    assert changed.trace.tensors.element_count.tolist() == wanted.tensors.element_count.tolist()


def record_next(length: int) -> Trace:
    """Record training on tokens that hold their labels: one more than are read."""
    with torch.device("meta"):
        model, tokens = Decoder(), torch.randint(VOCABULARY, (BATCH, length + 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        given = tokens.to(torch.int32).long()
        functional.cross_entropy(model(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten()).backward()
        optimizer.step()

    return trace_iteration(train, device="meta", mode="training", batch_size=BATCH)


def test_tokens_that_hold_their_labels_are_one_longer() -> None:
    got, wanted = with_sequence_length(record_next(16), 32).trace, record_next(32)
    assert signatures(got) == signatures(wanted)
    assert got.tensors.element_count.tolist() == wanted.tensors.element_count.tolist()


@pytest.mark.parametrize(("places", "carry"), [((0, 1), (0, 1)), ((-1, -2), (0, 1)), ((UNKNOWN, UNKNOWN), (0, 0))])
def test_a_transpose_whose_dims_were_not_recorded_keeps_no_axis_in_place(
    places: tuple[Argument, Argument], carry: tuple[int, int]
) -> None:
    turned = TensorSpec("float32", (48, 16))
    signature = Signature((TensorSpec("float32", (16, 48)), *places), (turned,))
    call = AxisCall("transpose", signature, layout_of(signature), ((1, 0),), sequence_axis(16, 32))
    assert result_carry(call, 0, turned) == carry


def test_lengths_are_inferred() -> None:
    assert infer_sequence_length(record(20)) == 20
    assert infer_cached_tokens(record_step(30, 5)) == (30, 5)


def test_the_recorded_lengths_change_nothing() -> None:
    trace, step = record(20), record_step(30)
    assert with_sequence_length(trace, 20).trace is trace
    assert with_cached_tokens(step, 30).trace is step


def test_work_of_products_follows_where_tensors_are_not_identified() -> None:
    def product_flops(trace: Trace) -> float:
        works = [work_of(name, item) for name, item in signatures(trace) if name in ("aten::mm", "aten::addmm")]
        return sum(work.flops for work in works if work is not None)

    bare = without_ids(record(20))
    changed = with_sequence_length(bare, 60)
    assert product_flops(changed.trace) == pytest.approx(3 * product_flops(bare))
    assert any("does not identify tensors" in item for item in changed.warnings)


class Table(nn.Module):
    """Adds a parameter that has a row per token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.zeros(1, 20, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.tokens(tokens) + self.places
        return result


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (lambda: (record(20), POSITIONS + 1), "sequence length 129: the model's table of positions has 128 rows"),
        (lambda: (record(20, module=Table), 10), r"takes a tensor of \[1, 20, 48\] that the model holds"),
        (lambda: (record(1), 10), "a length of 1 leaves no mark"),
        (lambda: (record_step(9), 10), "pass it with from_sequence_length"),
        (lambda: (record(20), 0), "expected 1 or more, got 0"),
    ],
)
def test_lengths_that_cannot_be_are_refused(trace: Callable[[], tuple[Trace, int]], message: str) -> None:
    recorded, length = trace()
    with pytest.raises(InputError, match=message):
        with_sequence_length(recorded, length)


def test_an_iteration_without_cache_is_refused() -> None:
    with pytest.raises(InputError, match="no cache"):
        with_cached_tokens(record(20, "inference"), 10)


def test_a_tensor_that_holds_the_length_twice_is_rescaled_twice() -> None:
    axis = sequence_axis(8, 16, BATCH)
    scores = TensorSpec("float32", (BATCH, HEADS, 8, 8), (256, 64, 8, 1))
    carry = carry_from_strides(scores, (8, 1), axis)
    assert carry == (0, 0, 1, 1)
    assert scale_spec(scores, carry, axis) == TensorSpec("float32", (BATCH, HEADS, 16, 16), (1024, 256, 16, 1))


@pytest.mark.parametrize(("size", "after"), [(30, 70), (31, 71), (62, 142), (60, 140)])
def test_keys_are_cached_and_new_ones(size: int, after: int) -> None:
    assert cache_axis(30, 70, 1, BATCH).scale(size) == after
