"""Another batch size: what is rescaled is what a recording at that size shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional
from wavecast import load_trace
from wavecast.analyzer.whatif.axis.axis import batch_axis
from wavecast.analyzer.whatif.axis.carry import carry_from_strides
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.analyzer.whatif.axis.infer import infer_batch_size
from wavecast.analyzer.work import work_of
from wavecast.errors import InputError
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import OperandTable, OpTable, TensorTable, Trace
from wavecast.formats.trace.validate import validate
from wavecast.tracer import trace_iteration

WIDTH, HEADS, LENGTH, CLASSES = 48, 4, 12, 10


class Model(nn.Module):
    """Convolution, attention, normalisations, an embedding, and a recurrent layer with the time first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 4, 4), nn.BatchNorm2d(WIDTH), nn.GroupNorm(HEADS, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.kinds = nn.Embedding(CLASSES, WIDTH)
        self.parts = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.memory = nn.LSTM(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor, kinds: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2) + self.places + self.kinds(kinds)[:, None]
        parts = self.parts(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        remembered, _ = self.memory(x.transpose(0, 1))
        result: Tensor = self.head(functional.gelu(remembered[-1]))
        return result


def record(batch: int, mode: str) -> Trace:
    """Record the model on the meta device."""
    with torch.device("meta"):
        model = Model()
        images, kinds = torch.randn(batch, 3, 12, 16), torch.randint(CLASSES, (batch,))
    if mode == "inference":
        model.eval()

        def predict() -> object:
            with torch.inference_mode():
                return model(images, kinds)

        return trace_iteration(predict, device="meta", mode=mode, batch_size=batch)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images, kinds), kinds).backward()
        optimizer.step()

    return trace_iteration(train, device="meta", mode=mode, batch_size=batch, samples_per_iteration=2 * batch)


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
    # 3 is also the image's channels, 4 the heads, 12 the length, 48 the width: sizes that are no batch.
    [(2, 5), (3, 7), (4, 8), (12, 4), (48, 6)],
)
def test_a_rescaled_trace_equals_the_recorded_one(mode: str, before: int, after: int) -> None:
    got, wanted = with_batch(record(before, mode), after).trace, record(after, mode)
    assert signatures(got) == signatures(wanted)
    assert got.tensors.element_count.tolist() == wanted.tensors.element_count.tolist()
    assert got.meta.workload == wanted.meta.workload


def record_cast(batch: int) -> Trace:
    """Record two layers under autocast, which casts their weights in every iteration."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        rows = torch.randn(batch, 4, 8)
    optimizer = torch.optim.SGD(model.parameters())

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(rows).sum()
        loss.backward()
        optimizer.step()

    return trace_iteration(train, device="meta", mode="training", batch_size=batch)


def test_a_cast_weight_of_as_many_rows_as_the_data_stays() -> None:
    assert signatures(with_batch(record_cast(8), 16).trace) == signatures(record_cast(16))


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return record(8, "training")


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 300))
def test_every_batch_size_gives_a_valid_trace_of_the_same_rows(recorded: Trace, size: int) -> None:
    changed = with_batch(recorded, size).trace
    validate(changed)
    assert changed.ops.name.tolist() == recorded.ops.name.tolist()
    if size not in (1, CLASSES):  # a batch of as many samples as there are classes is not told from these everywhere
        assert signatures(with_batch(changed, 8).trace) == signatures(recorded)


def test_the_recorded_batch_size_changes_nothing(recorded: Trace) -> None:
    whatif = with_batch(recorded, 8)
    assert whatif.trace is recorded
    assert whatif.warnings == ()


def test_a_product_lays_out_operands_as_it_reads_them_where_tensors_are_not_identified() -> None:
    def spec(*shape: int, strides: tuple[int, ...] | None = None) -> TensorSpec:
        return TensorSpec("float32", shape, strides)

    gradient = spec(40, 32, strides=(0, 0))  # of a sum: one number, expanded and turned
    names = ("aten::addmm", "aten::mm", "aten::clone", "aten::copy_")
    recorded = (
        Signature((spec(40), spec(32, 96), spec(96, 40)), ()),
        Signature((gradient, spec(32, 96)), ()),
        Signature((gradient, 0), ()),
        Signature((spec(40, 32), gradient, False), ()),
    )
    rows = list(range(len(names)))
    ops = build_table(OpTable, 4, name=rows, signature=rows, parent=[-1, -1, 1, 2], phase=[0, 1, 1, 1])
    trace = Trace(strings=names, signatures=recorded, ops=ops)
    changed = signatures(with_batch(trace, 64, from_batch=32).trace)
    assert [next(iter(item.tensors())).shape for _, item in changed[1:]] == [(40, 64)] * 3


def test_floating_point_work_grows_with_the_batch_where_tensors_are_not_identified(recorded: Trace) -> None:
    def product_flops(trace: Trace) -> float:
        works = [work_of(name, item) for name, item in signatures(trace) if name in ("aten::mm", "aten::addmm")]
        return sum(work.flops for work in works if work is not None)

    bare = without_ids(recorded)
    changed = with_batch(bare, 24)
    assert product_flops(changed.trace) == pytest.approx(3 * product_flops(bare))
    assert any("does not identify tensors" in item for item in changed.warnings)


def test_batches_of_heads_are_rescaled_where_tensors_are_not_identified() -> None:
    scores, values = (TensorSpec("float32", (8 * HEADS, LENGTH, size)) for size in (LENGTH, WIDTH))
    trace = Trace(
        strings=("aten::bmm", "aten::_softmax"),
        signatures=(Signature((scores, values)), Signature((scores, -1, False))),
        ops=build_table(OpTable, 2, name=[1, 0], signature=[1, 0], phase=[0, 0]),
    )
    changed = with_batch(trace, 16, from_batch=8).trace
    shapes = {spec.shape for item in changed.signatures for spec in item.tensors()}
    assert shapes == {(16 * HEADS, LENGTH, LENGTH), (16 * HEADS, LENGTH, WIDTH)}


@pytest.mark.parametrize(("size", "warns"), [(16, False), (32, False), (33, True), (1, True)])
def test_going_far_is_warned_of(recorded: Trace, size: int, warns: bool) -> None:
    assert any("far from the recorded 8" in item for item in with_batch(recorded, size).warnings) is warns


def test_an_unknown_batch_size_is_inferred_and_said(recorded: Trace) -> None:
    workload = replace(recorded.meta.workload, batch_size=None)
    unnamed = replace(recorded, meta=replace(recorded.meta, workload=workload))
    assert infer_batch_size(unnamed) == 8
    changed = with_batch(unnamed, 4)
    assert any("inferred" in item for item in changed.warnings)
    assert signatures(changed.trace) == signatures(with_batch(recorded, 4).trace)


@pytest.mark.parametrize(
    ("size", "given", "message"), [(0, None, "expected 1 or more"), (4, 1, "batch size 1 leaves no mark")]
)
def test_bad_sizes_are_refused(recorded: Trace, size: int, given: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_batch(recorded, size, from_batch=given)


def test_a_trace_that_tells_no_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"from_batch$"):
        with_batch(Trace(), 4)


@pytest.mark.parametrize(
    ("shape", "strides", "carry"),
    [
        ((8, 12, 48), (576, 48, 1), (1, 0, 0)),
        ((96, 48), (48, 1), (12, 0)),
        ((48, 96), (1, 48), (0, 12)),
        ((12, 48), (48, 1), (0, 0)),
        ((1, 8, 576), (4608, 576, 1), (0, 1, 0)),
    ],
)
def test_views_show_the_batch_by_their_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], carry: tuple[int, ...]
) -> None:
    assert carry_from_strides(TensorSpec("float32", shape, strides), (576,), batch_axis(8, 4)) == carry


def test_real_traces_keep_their_rows(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "a100_80gb_training.json.gz")
    changed = with_batch(trace, 8, from_batch=4).trace
    validate(changed)
    assert np.array_equal(changed.ops.name, trace.ops.name)
    assert np.array_equal(changed.kernels.duration_ns, trace.kernels.duration_ns)


def test_products_of_tensors_that_are_no_matrices_are_rescaled_by_no_guess(recorded: Trace) -> None:
    def flat(item: object) -> object:
        return TensorSpec(item.dtype, item.shape[:1]) if isinstance(item, TensorSpec) else item

    plain = without_ids(recorded)
    is_product = np.array([name == "aten::mm" for name in plain.strings])[plain.ops.name]
    products = set(plain.ops.signature[is_product].tolist())
    signatures = [
        Signature(tuple(map(flat, item.arguments)), item.results) if number in products else item  # type: ignore[arg-type]
        for number, item in enumerate(plain.signatures)
    ]
    validate(with_batch(replace(plain, signatures=tuple(signatures)), 16).trace)
