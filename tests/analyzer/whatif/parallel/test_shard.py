"""Tensor, sequence, context and expert parallelism: what a rank runs, derived from a recording of one GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from wavecast.analyzer.whatif.parallel.plan import ExpertDispatch, ParallelPlan
from wavecast.analyzer.whatif.parallel.plan_file import ShardKind
from wavecast.analyzer.whatif.parallel.shard.placement import Share, State, local_spec, place_of
from wavecast.analyzer.whatif.parallel.shard.shard import sent_ratio, shard_tensors
from wavecast.analyzer.work import work_of
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.signature import TensorSpec, flatten_tensors
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.formats.trace.validate import validate
from wavecast.tracer import trace_iteration

SAMPLES = Path(__file__).parents[4] / "samples"
WIDTH, HEADS, KEY_HEADS, INNER, VOCABULARY = 64, 8, 4, 128, 256
BATCH, TOKENS, LAYERS, EXPERTS = 2, 32, 2, 4
SIZE = BATCH * TOKENS * WIDTH


class Norm(nn.Module):
    """Root mean square, spelled out as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return x at unit size."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Causal attention with fewer heads of keys than of queries."""

    def __init__(self) -> None:
        super().__init__()
        inner = WIDTH // HEADS * KEY_HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = nn.Linear(WIDTH, inner, bias=False), nn.Linear(WIDTH, inner, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the tokens see."""
        query, key, value = (
            part(x).view(BATCH, TOKENS, -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        found: Tensor = self.out(seen.transpose(1, 2).reshape(BATCH, TOKENS, -1))
        return found


class Cached(Attention):
    """The same of one token, after those of a static cache; keys repeated and products spelled out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, BATCH, KEY_HEADS, TOKENS, WIDTH // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the token sees."""
        query, *new = (
            part(x).view(BATCH, 1, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        repeats, kept = HEADS // KEY_HEADS, (BATCH, HEADS, TOKENS, WIDTH // HEADS)
        key, value = (
            held.index_copy_(2, torch.tensor([TOKENS - 1]), row)[:, :, None].expand(-1, -1, repeats, -1, -1)
            for held, row in zip(self.get_buffer("cache"), new, strict=True)
        )
        seen = (query @ key.reshape(kept).transpose(2, 3)).softmax(-1) @ value.reshape(kept)
        found: Tensor = self.out(seen.transpose(1, 2).reshape(BATCH, 1, -1))
        return found


class Joined(Attention):
    """The same of one token, after those of a cache that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [torch.zeros(BATCH, KEY_HEADS, TOKENS, WIDTH // HEADS) for _ in "kv"]

    def forward(self, x: Tensor) -> Tensor:
        """Return what the token sees."""
        query, *new = (
            part(x).view(BATCH, 1, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        key, value = (torch.cat(both, 2) for both in zip(self.held, new, strict=True))
        seen = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        found: Tensor = self.out(seen.transpose(1, 2).reshape(BATCH, 1, -1))
        return found


class Gated(nn.Module):
    """Two columns and a row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product of both, narrowed."""
        found: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return found


class Experts(nn.Module):
    """Tokens sorted by the expert that a router chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER, dtype=torch.bfloat16))
        self.down = nn.Parameter(torch.zeros(EXPERTS, INNER, WIDTH, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        """Return each token's expert's answer."""
        rows = x.reshape(-1, WIDTH)
        weights, chosen = self.router(rows).softmax(-1).topk(1, dim=-1)
        order = chosen.view(-1).argsort()
        ends = torch.histc(chosen.view(-1).int(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        inner = functional.relu(torch._grouped_mm(rows[order].bfloat16(), self.up, offs=ends))
        answers = torch._grouped_mm(inner, self.down, offs=ends).float() * weights.view(-1)[order].unsqueeze(-1)
        return torch.zeros_like(rows).index_add(0, order, answers.to(x.dtype)).view(x.shape)


class Block(nn.Module):
    """Attention and what follows it."""

    def __init__(self, inner: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([Norm(), Norm()])
        self.attention, self.inner = Attention(), inner()

    def forward(self, x: Tensor) -> Tensor:
        """Return x and both answers."""
        x = x + self.attention(self.norms[0](x))
        found: Tensor = x + self.inner(self.norms[1](x))
        return found


class Decoder(nn.Module):
    """A small language model."""

    def __init__(self, inner: Callable[[], nn.Module] = Gated) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Block(inner) for _ in range(LAYERS)))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next tokens."""
        found: Tensor = self.head(self.norm(self.layers(self.table(tokens))))
        return found


def record(inner: Callable[[], nn.Module] = Gated, dtype: torch.dtype = torch.bfloat16, device: str = "meta") -> Trace:
    """Return one training iteration's shapes; on a CPU as a profiler records them, ops inside ops."""
    with torch.device(device):
        model, tokens = Decoder(inner).to(dtype), torch.zeros(BATCH, TOKENS, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return trace_iteration(step, warmup=1, device=device, mode="training", batch_size=BATCH)


@pytest.fixture(scope="module")
def dense() -> Trace:
    return record()


@pytest.fixture(scope="module")
def routed() -> Trace:
    return record(Experts)


def exchanges(trace: Trace) -> Counter[tuple[str, int, int]]:
    """Count collectives by name and elements."""
    table = trace.collectives
    rows = zip(table.name.tolist(), table.in_element_count.tolist(), table.out_element_count.tolist(), strict=True)
    return Counter((trace.strings[name], read, made) for name, read, made in rows)


def product_flops(trace: Trace, phases: Sequence[Phase] = tuple(Phase)) -> float:
    """Return the FLOPs of matrix products and attention."""
    rows = np.isin(trace.ops.phase, phases) & (trace.ops.signature >= 0)
    works = [
        work_of(trace.strings[name], trace.signatures[number])
        for name, number in zip(trace.ops.name[rows].tolist(), trace.ops.signature[rows].tolist(), strict=True)
    ]
    return sum(work.flops for work in works if work is not None and work.is_matrix)


def called(trace: Trace, name: str) -> list[tuple[tuple[int, ...], ...]]:
    """Return the shapes that ops of a name read."""
    rows = [row for row, item in enumerate(trace.ops.name.tolist()) if trace.strings[item] == name]
    return [tuple(spec.shape for spec in trace.signatures[trace.ops.signature[row]].tensors()) for row in rows]


@pytest.mark.parametrize("degree", [2, 4])
def test_tensors_and_tokens_are_exchanged_as_torch_does(dense: Trace, degree: int) -> None:
    found = exchanges(shard_tensors(dense, ParallelPlan(tp=degree)).trace)
    # Per layer two of each, forward and backward, as torch's parallelize_module with SequenceParallel; table and head.
    assert found == {
        ("all_gather", SIZE // degree, SIZE): 4 * LAYERS + 2,
        ("reduce_scatter", SIZE, SIZE // degree): 4 * LAYERS + 2,
        ("all_reduce", BATCH * TOKENS, BATCH * TOKENS): 3,
        ("all_reduce", WIDTH * (2 * LAYERS + 1), WIDTH * (2 * LAYERS + 1)): 1,
    }


def test_without_split_tokens_sums_go_to_all(dense: Trace) -> None:
    found = exchanges(shard_tensors(dense, ParallelPlan(tp=4, sp=False)).trace)
    assert found == {("all_reduce", SIZE, SIZE): 4 * LAYERS + 2, ("all_reduce", BATCH * TOKENS, BATCH * TOKENS): 3}


@pytest.mark.parametrize("plan", [ParallelPlan(tp=2), ParallelPlan(tp=4), ParallelPlan(tp=4, sp=False)])
def test_products_are_divided_evenly(dense: Trace, plan: ParallelPlan) -> None:
    assert product_flops(shard_tensors(dense, plan).trace) == product_flops(dense) / plan.tp


@pytest.mark.parametrize(
    "plan",
    [
        ParallelPlan(tp=4),
        ParallelPlan(tp=2, sp=False),
        ParallelPlan(cp=4),
        ParallelPlan(ep=2, dp=2),
        ParallelPlan(tp=2, cp=2, ep=4, dp=2),
    ],
)
def test_what_is_derived_is_a_trace(routed: Trace, plan: ParallelPlan) -> None:
    found = shard_tensors(routed, plan)
    validate(found.trace)
    kept = found.source_op[found.source_op >= 0]
    assert kept.tolist() == list(range(len(routed.ops.name)))
    assert len(found.trace.operands.op) >= len(routed.operands.op)
    counts = np.bincount(found.trace.operands.op, minlength=len(found.trace.ops.name))
    before = np.bincount(routed.operands.op, minlength=len(routed.ops.name))
    assert counts[found.source_op >= 0].tolist() == before.tolist()
    assert (found.trace.tensors.element_count[: len(routed.tensors.storage)] <= routed.tensors.element_count).all()


def test_a_profilers_forward_pass_is_shared_as_one_of_shapes(dense: Trace) -> None:
    profiled, shapes = (shard_tensors(item, ParallelPlan(tp=4)).trace for item in (record(device="cpu"), dense))
    products = [forward_products(item) for item in (profiled, shapes)]
    assert products[0] == products[1]
    assert sum(products[0].values()) == 7 * LAYERS + 1


def forward_products(trace: Trace) -> Counter[tuple[tuple[int, ...], ...]]:
    """Count the products of the forward pass by their shapes."""
    rows = [
        row
        for row, (name, phase) in enumerate(zip(trace.ops.name.tolist(), trace.ops.phase.tolist(), strict=True))
        if trace.strings[name] == "aten::mm" and phase == Phase.FORWARD
    ]
    return Counter(tuple(spec.shape for spec in trace.signatures[trace.ops.signature[row]].tensors()) for row in rows)


def test_gradients_of_attention_are_shared_where_their_shapes_are_not_told(dense: Trace) -> None:
    mute = {
        int(number)
        for name, number in zip(dense.ops.name.tolist(), dense.ops.signature.tolist(), strict=True)
        if "attention" in dense.strings[name] and "backward" in dense.strings[name]
    }
    signatures = tuple(
        replace(item, results=()) if number in mute else item for number, item in enumerate(dense.signatures)
    )
    plan = ParallelPlan(tp=4)
    told, untold = (shard_tensors(item, plan).trace for item in (dense, replace(dense, signatures=signatures)))
    assert mute
    assert called(untold, "aten::mm") == called(told, "aten::mm")


@torch.no_grad()
def test_a_decoding_step_is_shared_as_a_profiler_records_it() -> None:
    model, degree = Decoder(), 4
    for block in model.layers:
        block.attention = Cached()
    tokens = torch.zeros(BATCH, 1, dtype=torch.long)
    recorded = trace_iteration(lambda: model(tokens), device="cpu", mode="inference", batch_size=BATCH)
    assert {"aten::linear", "aten::matmul", "aten::reshape"} <= {recorded.strings[row] for row in recorded.ops.name}
    trace = shard_tensors(recorded, ParallelPlan(tp=degree)).trace
    for whole, part in zip(called(recorded, "aten::mm"), called(trace, "aten::mm"), strict=True):
        assert np.prod(part[1]) * degree == np.prod(whole[1])
    assert {shapes[0] for shapes in called(trace, "aten::bmm")} == {
        (BATCH * HEADS // degree, 1, WIDTH // HEADS),
        (BATCH * HEADS // degree, 1, TOKENS),
    }
    assert called(trace, "aten::index_copy_")[0][0] == (BATCH, KEY_HEADS // degree, TOKENS, WIDTH // HEADS)
    assert exchanges(trace) == {("all_reduce", BATCH * WIDTH, BATCH * WIDTH): 2 * LAYERS + 1}


@torch.no_grad()
def test_a_rank_holds_its_heads_of_the_cache_alone() -> None:
    with torch.device("meta"):
        model, tokens = Decoder(), torch.zeros(BATCH, 1, dtype=torch.long)
        for block in model.layers:
            block.attention = Joined()
    recorded = trace_iteration(lambda: model(tokens), device="meta", mode="inference", batch_size=BATCH)
    trace = shard_tensors(recorded, ParallelPlan(tp=4)).trace
    cached = BATCH * KEY_HEADS * TOKENS * WIDTH // HEADS
    for found, count in ((recorded, cached), (trace, cached // 4)):
        joins = np.flatnonzero(found.ops.name == found.strings.index("aten::cat"))
        held = found.operands.tensor[np.searchsorted(found.operands.op, joins)]
        assert found.tensors.element_count[held].tolist() == [count] * 2 * LAYERS


def test_the_optimizer_holds_parts_of_parameters(dense: Trace) -> None:
    trace = shard_tensors(dense, ParallelPlan(tp=4)).trace
    for name in ("aten::_foreach_lerp_", "aten::_foreach_addcdiv_"):
        whole, part = called(dense, name)[0], called(trace, name)[0]
        sizes = {(before, after) for before, after in zip(whole, part, strict=True) if before}
        assert ((WIDTH,), (WIDTH,)) in sizes
        assert ((INNER, WIDTH), (INNER // 4, WIDTH)) in sizes
        assert ((WIDTH, INNER), (WIDTH, INNER // 4)) in sizes
        assert ((VOCABULARY, WIDTH), (VOCABULARY // 4, WIDTH)) in sizes


def test_readers_of_converted_tensors_read_what_the_collective_made(dense: Trace) -> None:
    trace = shard_tensors(dense, ParallelPlan(tp=2)).trace
    for op in trace.collectives.op.tolist():
        uses = trace.operands.op == op
        if trace.strings[trace.ops.name[op]].endswith("coalesced_"):
            continue
        (made,) = trace.operands.tensor[uses & trace.operands.is_output.astype(bool)].tolist()
        readers = trace.operands.op[(trace.operands.tensor == made) & ~trace.operands.is_output.astype(bool)]
        assert (readers > op).all()
        assert len(readers) >= 1


def test_tokens_are_divided_but_for_the_keys_that_attention_reads(dense: Trace) -> None:
    degree = 4
    found = shard_tensors(dense, ParallelPlan(cp=degree)).trace
    keys = BATCH * TOKENS * KEY_HEADS * (WIDTH // HEADS)
    assert exchanges(found) == {
        ("all_gather", keys // degree, keys): 4 * LAYERS,
        ("reduce_scatter", keys, keys // degree): 2 * LAYERS,
    }
    attention = next(name for name in found.strings if name.startswith("aten::_scaled") and "backward" not in name)
    query, key, value = called(found, attention)[0][:3]
    head = WIDTH // HEADS
    seen = (TOKENS + TOKENS // degree) // 2  # of a causal mask what ranks see on average
    assert query == (BATCH, HEADS, TOKENS // degree, head)
    assert key == value == (BATCH, KEY_HEADS, seen, head)


def test_keys_are_gathered_where_attention_is_spelled_out() -> None:
    degree, seen = 4, BATCH * TOKENS * WIDTH  # keys and values, repeated for all heads
    found = exchanges(shard_tensors(record(dtype=torch.float32), ParallelPlan(cp=degree)).trace)
    assert found == {
        ("all_gather", seen // degree, seen): 4 * LAYERS,
        ("reduce_scatter", seen, seen // degree): 2 * LAYERS,
    }


def test_experts_are_divided_and_their_rows_exchanged(routed: Trace) -> None:
    found = shard_tensors(routed, ParallelPlan(ep=2, dp=2))
    rows = BATCH * TOKENS
    names = [name for name, _, _ in exchanges(found.trace).elements()]
    assert names == ["all_to_all"] * 4 * LAYERS
    assert (rows, WIDTH) in {shapes[0] for shapes in called(found.trace, "aten::_grouped_mm")}
    assert (EXPERTS // 2, WIDTH, INNER) in {shapes[1] for shapes in called(found.trace, "aten::_grouped_mm")}
    assert product_flops(found.trace) == product_flops(routed)
    assert len(found.expert_storages) >= 2 * LAYERS


def test_tensor_ranks_send_their_own_tokens_to_whole_experts(routed: Trace) -> None:
    found = shard_tensors(routed, ParallelPlan(tp=2, dp=2, ep=4))
    rows = BATCH * TOKENS // 2
    sent = Counter({key: count for key, count in exchanges(found.trace).items() if key[0] == "all_to_all"})
    assert sent == {("all_to_all", rows * WIDTH, rows * WIDTH): 4 * LAYERS}
    assert set(called(found.trace, "aten::_grouped_mm")[0][:2]) == {(rows, WIDTH), (EXPERTS // 4, WIDTH, INNER)}
    assert (EXPERTS // 4, WIDTH, INNER) in called(found.trace, "aten::_foreach_addcdiv_")[0]
    assert product_flops(found.trace) == pytest.approx(product_flops(routed) / 2, rel=0.02)  # the router is whole
    (row,) = [row for row, name in enumerate(found.trace.groups.name.tolist()) if found.trace.strings[name] == "ep"]
    assert found.trace.members.rank[found.trace.members.group == row].tolist() == [0, 1, 2, 3]


def test_a_copy_serves_all_experts_of_a_rank(routed: Trace) -> None:
    found = shard_tensors(routed, ParallelPlan(dp=2, ep=2, dispatch=ExpertDispatch.ONCE)).trace
    names = Counter(name for name, _, _ in exchanges(found).elements())
    assert names == {"dispatch": 2 * LAYERS, "combine": 2 * LAYERS}
    assert sent_ratio(1, 2) == 1.0
    assert sent_ratio(2, 2) == 0.75  # of four equal choices two send both copies to one rank
    assert sent_ratio(8, 10**9) == pytest.approx(1.0)


def test_routers_and_norms_stay_whole(routed: Trace) -> None:
    trace = shard_tensors(routed, ParallelPlan(tp=2)).trace
    parameters = called(trace, "aten::_foreach_addcdiv_")[0]
    assert (EXPERTS, WIDTH) in parameters
    assert (WIDTH,) in parameters
    assert (EXPERTS, WIDTH, INNER // 2) in parameters


def test_modules_may_be_left_whole(dense: Trace) -> None:
    rules = {"layers.*.inner.*": ShardKind.REPLICATE}
    found = shard_tensors(dense, ParallelPlan(tp=2), rules).trace
    parameters = called(found, "aten::_foreach_addcdiv_")[0]
    assert (INNER, WIDTH) in parameters
    assert (WIDTH, WIDTH // 2) in parameters


@pytest.mark.parametrize(
    ("plan", "rules", "message"),
    [
        (ParallelPlan(tp=3), {}, "heads or features cannot be shared by 3 ranks"),
        (ParallelPlan(tp=64, sp=True), {}, "32 tokens cannot be shared by 64 ranks"),
        (ParallelPlan(cp=5), {}, "cp=5: 32 tokens"),
        (ParallelPlan(ep=2), {}, "there are no experts to share"),
        (ParallelPlan(tp=2), {"tail": ShardKind.ROW}, "no module of the trace"),
    ],
)
def test_what_cannot_be_divided_is_said(
    dense: Trace, plan: ParallelPlan, rules: dict[str, ShardKind], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        shard_tensors(dense, plan, rules)


@pytest.mark.parametrize("op", ["vllm::unified_attention", "aten::mm"])
def test_what_an_engine_runs_is_added_up_by_its_own_kernel(op: str) -> None:
    trace = load_trace(SAMPLES / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    found = shard_tensors(replace(trace, strings=(*trace.strings, op)), ParallelPlan(tp=2, sp=False)).trace
    names = {found.strings[name] for name in found.ops.name[found.collectives.op].tolist()}
    assert ("vllm::all_reduce" in names) == op.startswith("vllm")
    assert ("_c10d_functional::all_reduce" in names) == op.startswith("aten")


def test_experts_that_cannot_be_divided_are_said(routed: Trace) -> None:
    with pytest.raises(InputError, match="ep=3: 4 experts"):
        shard_tensors(routed, ParallelPlan(ep=3))


def test_networks_without_pairs_of_products_are_refused() -> None:
    trace = load_trace(SAMPLES / "resnet50-training-bf16-b32-shapes.json.gz")
    with pytest.raises(InputError, match="ranks cannot share this model's tensors"):
        shard_tensors(trace, ParallelPlan(tp=2))


@pytest.mark.parametrize(("name", "layers"), [("gpt2_small-training-bf16-b4", 12), ("bert_base-training-bf16-b16", 12)])
def test_fused_and_biased_layers_of_libraries_are_shared(name: str, layers: int) -> None:
    trace = load_trace(SAMPLES / f"{name}-shapes.json.gz")
    found = exchanges(shard_tensors(trace, ParallelPlan(tp=2)).trace)
    gathered = sum(count for (kind, _, _), count in found.items() if kind == "all_gather")
    scattered = sum(count for (kind, _, _), count in found.items() if kind == "reduce_scatter")
    assert 4 * layers <= gathered <= 4 * layers + 2
    assert 4 * layers <= scattered <= 4 * layers + 2


@pytest.mark.parametrize(
    ("shape", "strides", "extent", "local"),
    [
        ((2, 8, 64), (512, 64, 1), 512, (2, 8, 64)),
        ((2, 8, 64), (512, 64, 1), 64, (2, 8, 16)),
        ((2, 8, 4, 16), (512, 64, 16, 1), 64, (2, 8, 1, 16)),
        ((2, 4, 8, 16), (512, 16, 64, 1), 64, (2, 1, 8, 16)),
        ((16, 64), (64, 1), 512, (4, 64)),
        ((64, 16), (1, 64), 64, (16, 16)),
        ((2, 8, 32), (512, 64, 1), 64, (2, 8, 8)),
    ],
)
def test_views_agree_on_what_is_shared(
    shape: tuple[int, ...], strides: tuple[int, ...], extent: int, local: tuple[int, ...]
) -> None:
    spec, state = TensorSpec("float32", shape, strides), State(Share.FEATURES, extent, 4)
    if extent == 512 and len(shape) == 3:
        local = (2, 2, 64)
    assert local_spec(spec, place_of(spec, state)).shape == local


def test_results_keep_their_sizes_in_step(dense: Trace) -> None:
    trace = shard_tensors(dense, ParallelPlan(tp=2)).trace
    for row in np.flatnonzero(trace.ops.phase == Phase.FORWARD).tolist():
        signature = trace.signatures[trace.ops.signature[row]]
        if trace.strings[trace.ops.name[row]] == "aten::view":
            (read,), (made,) = flatten_tensors(signature.arguments), flatten_tensors(signature.results)
            assert read.element_count == made.element_count
