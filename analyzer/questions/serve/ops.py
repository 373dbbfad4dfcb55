"""The ops of a layer as engines fuse them, as problems of the op models: what tables of step times are made of.

Of a replica of attention with T tokens in a step, B of which are decoded on contexts of K tokens, the others are chunks
of n prompts, q new tokens after p cached ones:

    tok(T): products (queries, keys and values in one; gate and up in one), norms with the residual, rotation, cache
            write, activation, experts, all-reduces
    dec(B, K), pre(n, q, p): attention
    head(S): the output product of S last tokens, three passes over the logits
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats
from ....records import dataclass, field
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ...models.attention.problems import ArithmeticFormat, AttentionProblems, Dispatch
from ...models.collective.problems import CollectiveProblems
from ...models.experts.problems import ExpertsProblems, load_columns
from ...models.experts.routing import UNKNOWN, rank_load
from ...models.frame.energy import BoardPower
from ...models.frame.problems import RATES, Problems, join_problems, problems_from
from ...models.latent_attention.problems import LatentAttentionProblems
from ...models.library import Library
from ...models.matmul.problems import FORMATS, MatmulKernel, MatmulProblems
from ...models.matmul_simt.problems import MatmulSimtProblems
from ...models.registry import OP_MODELS, least_work
from ...models.vector.problems import VectorKernel, VectorProblems
from ...prediction.energy import op_joules
from ...prediction.sum_interval import FAMILY_SHARE
from ...work.communication import CollectiveKind, Implementation
from ...work.work import ExpertsFormat, LatentKernel
from .engines import EngineStack, experts_bytes
from .kept import KeptTimes, predict_kept
from .sizes import ModelSizes

COLD_COPIES: Final = 6.0
"""Sets of operands between two uses of the same one: in a step the rest of the model lies between."""
HALF: Final = 2.0
LOGIT_BYTES: Final = 4.0
LOGIT_PASSES: Final = 3.0
"""Over the logits of a token: a cast, and what greedy or top-p sampling reads and writes."""

ROUTED_SHARE: Final = 0.55
"""The part of one problem's half-width by which experts are off over the layers and steps of a load, each of which is
routed by itself: what holds 90 % of served rows with experts is 0.57 on H100, 0.54 on B200, less on A100 and MI250."""


class StepPart(StrEnum):
    """Name what a step's time goes to."""

    PRODUCTS = "weights"
    ATTENTION = "attention"
    LINKS = "links"
    SMALL = "small kernels"


PARTS: Final = tuple(StepPart)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """Say how GPUs share a model: `tp` of one replica of attention, `dp` replicas, experts in `ep` parts; `pp` stages.

    Each stage has a part of the layers. While one works on a batch of requests the others work on batches of their
    own, so that a batch takes as long as it does without stages, and `pp` of them run at a time.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """Return the GPUs of a stage."""
        return self.tp * self.dp

    @property
    def gpus(self) -> int:
        """Return the GPUs of one instance."""
        return self.ranks * self.pp

    @property
    def batches(self) -> int:
        """Return how many batches an instance runs at a time, to which requests are shared out."""
        return self.dp * self.pp

    def __str__(self) -> str:
        """Return the plan as it is asked for."""
        words = {"tp": self.tp, "dp": self.dp, "ep": self.ep, "pp": self.pp}
        return ",".join(f"{name}={count}" for name, count in words.items() if count > 1) or "tp=1"


@dataclass(slots=True, kw_only=True)
class OpBook:
    """Gather problems with the row of a table that each counts for; one owner, one use."""

    sizes: ModelSizes
    plan: ServePlan
    stack: EngineStack
    cache_bytes: float
    kept: KeptTimes
    rows: dict[str, list[tuple[Problems, Any, StepPart, float]]] = field(default_factory=dict)

    def add(self, model: str, problems: Problems, at: Any, part: StepPart, times: float = 1.0) -> None:
        """Add problems of a model, which run so many times; `at`: the place in the tables of each."""
        if times:
            self.rows.setdefault(model, []).append((problems, at, part, times))

    def tables(self, library: Library, fleet: Fleet, power: BoardPower, count: int) -> tuple[Floats, Floats, Floats]:
        """Return time by part and place, and the same times the half-width of its interval, [parts, count, m] in ns.

        And what a GPU switches beside what idles, [count, m] in J. Ops of a part err together as `FAMILY_SHARE` says.
        """
        total, width, square, (joules, *_) = np.zeros((4, len(PARTS), count, len(fleet.gpus)))
        for model, entries in self.rows.items():
            joined = join_problems([problems for problems, *_ in entries])
            predicted_ns, half_width = predict_kept(library, model, joined, fleet, self.kept)
            half_width = half_width * (ROUTED_SHARE if model == "experts" else 1.0)
            times = np.concatenate([np.full(len(at), times) for _, at, _, times in entries])[:, None]
            time = times * predicted_ns
            part = np.concatenate([np.full(len(at), PARTS.index(name)) for _, at, name, _ in entries])
            place = np.concatenate([at for _, at, *_ in entries])
            np.add.at(total, (part, place), time)
            np.add.at(width, (part, place), time * half_width)
            np.add.at(square, (part, place), (time * half_width) ** 2)
            time_ns, work = predicted_ns * float(model != "collective"), least_work(OP_MODELS[model], joined)
            np.add.at(joules, place, times * op_joules(work, time_ns, fleet, power))
        return total, np.sqrt((FAMILY_SHARE * width) ** 2 + (1.0 - FAMILY_SHARE**2) * square), joules

    def product(
        self, at: Any, m: Floats, n: float, k: float, times: float, *, batch: float = 1.0, plain: bool = False
    ) -> None:
        """Add a product [m, k] @ [k, n], in the model's format or plain 16 bits; its inputs come converted."""
        found = FORMATS["bf16" if plain and self.stack.products != "fp16" else self.stack.products]
        if plain and found.kind != MatmulKernel.PLAIN:
            found = FORMATS["bf16"]
        problems = problems_from(
            MatmulProblems,
            len(m),
            batch=batch,
            m=m,
            n=n,
            k=k,
            left_bytes=found.left_bytes,
            right_bytes=found.right_bytes,
            out_bytes=HALF,
            rate=RATES.index(found.rate),
            kind=int(found.kind),
            copies=COLD_COPIES,
            distinct=1.0,
        )
        model = "matmul" if found.kind == MatmulKernel.PLAIN else "matmul_quantized"
        self.add(model, problems, at, StepPart.PRODUCTS, times)

    def wide_product(self, at: Any, m: Floats, n: float, k: float, times: float) -> None:
        """Add a product in 32 bits, without matrix units."""
        problems = problems_from(
            MatmulSimtProblems,
            len(m),
            batch=1.0,
            m=m,
            n=n,
            k=k,
            element_bytes=4.0,
            rate=RATES.index(Rate.FP32),
            contiguous=1,
            host_ratio=1.0,
            copies=COLD_COPIES,
        )
        self.add("matmul_simt", problems, at, StepPart.PRODUCTS, times)

    def vector(
        self, at: Any, kind: VectorKernel, rows: Floats, columns: float, moved: tuple[float, float], times: float
    ) -> None:
        """Add a kernel over tokens that reads and writes so many bytes per element."""
        read, written = moved
        elements = rows * columns
        problems = problems_from(
            VectorProblems,
            len(rows),
            kind=int(kind),
            read_bytes=elements * read,
            written_bytes=elements * written,
            elements=elements,
            rows=rows,
            columns=columns,
            flops=elements,
            launches=1.0,
            host_ratio=1.0,
            in_turn=1.0,
        )
        self.add("vector", problems, at, StepPart.SMALL, times)

    def collective(self, at: Any, kind: CollectiveKind, message_bytes: Floats, ranks: int, times: float) -> None:
        """Add a collective among neighbours; an all-reduce is the lesser of NCCL's and the engine's, if any."""
        if ranks < 2:
            return
        zeros = np.zeros(len(message_bytes))
        own = self.stack.all_reduce if kind is CollectiveKind.ALL_REDUCE else Implementation.NCCL
        problems = CollectiveProblems(
            kind=np.full(len(zeros), int(kind)),
            implementation=np.full(len(zeros), int(own)),
            message_bytes=message_bytes,
            ranks=zeros + ranks,
            run=zeros + ranks,
            stride=zeros + 1.0,
            element_bytes=zeros + HALF,
        )
        self.add("collective", problems, at, StepPart.LINKS, times)


def add_token_ops(book: OpBook, at: Any, tokens: Floats) -> None:
    """Add what all layers do to T tokens of a replica, whatever their contexts."""
    sizes, plan = book.sizes, book.plan
    hidden, layers, tp = float(sizes.hidden), float(sizes.layers), plan.tp
    book.vector(at, VectorKernel.TOKEN_NORM, tokens, hidden, (4.0, 4.0), sizes.norms * layers)
    if plan.pp > 1:
        book.collective(at, CollectiveKind.SEND_RECEIVE, tokens * hidden * HALF, 2, plan.pp - 1.0)
    if sizes.is_latent:
        _add_latent_tokens(book, at, tokens)
    else:
        _add_heads(book, at, tokens)
    book.collective(at, CollectiveKind.ALL_REDUCE, tokens * hidden * HALF, tp, layers)
    dense = layers - sizes.expert_layers
    if dense:
        _add_block(book, at, tokens, sizes.intermediate / tp, dense)
        book.collective(at, CollectiveKind.ALL_REDUCE, tokens * hidden * HALF, tp, dense)
    if sizes.expert_layers:
        _add_experts(book, at, tokens)


def _add_heads(book: OpBook, at: Any, tokens: Floats) -> None:
    sizes, tp = book.sizes, book.plan.tp
    layers, heads, kv_heads = float(sizes.layers), sizes.heads / tp, max(sizes.kv_heads / tp, 1.0)
    book.product(at, tokens, (heads + 2 * kv_heads) * sizes.head_dim, sizes.hidden, layers)
    if sizes.has_head_norms:
        rows = tokens * (heads + kv_heads)
        book.vector(at, VectorKernel.TOKEN_NORM, rows, sizes.head_dim, (HALF, HALF), layers)
    rotated = (heads + kv_heads) * sizes.head_dim
    if sizes.has_joint_norms:  # One sum of squares each of queries and keys; what they scale is a second pass.
        book.collective(at, CollectiveKind.ALL_REDUCE, tokens * 2 * 4.0, tp, layers)
        book.vector(at, VectorKernel.ELEMENTWISE, tokens, rotated, (HALF, HALF), layers)
    book.vector(at, VectorKernel.TOKEN_ROPE, tokens, rotated, (HALF, HALF), layers)
    cached = 2 * kv_heads * sizes.head_dim
    book.vector(at, VectorKernel.ELEMENTWISE, tokens, cached, (HALF, book.cache_bytes), layers)
    book.product(at, tokens, sizes.hidden, heads * sizes.head_dim, layers)


def _add_latent_tokens(book: OpBook, at: Any, tokens: Floats) -> None:
    sizes, layers = book.sizes, float(book.sizes.layers)
    heads, latent = sizes.heads / book.plan.tp, sizes.kv_lora + sizes.rope_dim
    queries = heads * (sizes.nope_dim + sizes.rope_dim)
    book.product(at, tokens, sizes.q_lora + latent + (0 if sizes.q_lora else queries), sizes.hidden, layers)
    book.vector(at, VectorKernel.TOKEN_NORM, tokens, sizes.q_lora + sizes.kv_lora, (HALF, HALF), layers)
    if sizes.q_lora:
        book.product(at, tokens, queries, sizes.q_lora, layers)
    rotated = (heads + 1) * sizes.rope_dim
    book.vector(at, VectorKernel.TOKEN_ROPE, tokens, rotated, (HALF, HALF), layers)
    book.vector(at, VectorKernel.ELEMENTWISE, tokens, latent, (HALF, book.cache_bytes), layers)
    book.product(at, tokens, sizes.hidden, heads * sizes.value_dim, layers)


def _add_block(book: OpBook, at: Any, tokens: Floats, intermediate: float, times: float) -> None:
    """Add a block: gate (if there is one) and up in one product, the activation, down."""
    wide, is_gated = book.sizes.block_weights - 1, book.sizes.block_weights == 3
    book.product(at, tokens, wide * intermediate, book.sizes.hidden, times)
    kernel = VectorKernel.TOKEN_GATED if is_gated else VectorKernel.ELEMENTWISE
    book.vector(at, kernel, tokens, intermediate, (2.0 * wide, HALF), times)
    book.product(at, tokens, book.sizes.hidden, intermediate, times)


def _add_experts(book: OpBook, at: Any, tokens: Floats) -> None:
    """Add router, experts and shared experts; experts see the tokens of all replicas of attention."""
    sizes, plan, layers = book.sizes, book.plan, float(book.sizes.expert_layers)
    everyone, hidden = tokens * plan.dp, float(sizes.hidden)
    if sizes.has_joint_norms:
        book.vector(at, VectorKernel.ELEMENTWISE, tokens, hidden, (HALF, 4.0), layers)
        book.wide_product(at, tokens, sizes.experts, hidden, layers)
    else:
        book.product(at, tokens, sizes.experts, hidden, layers, plain=True)
    book.vector(at, VectorKernel.SOFTMAX, tokens, sizes.experts, (4.0, 4.0), layers)
    loads = [rank_load(int(count), sizes.top_k, sizes.experts, plan.ep, UNKNOWN) for count in everyone.tolist()]
    inputs, weights = experts_bytes(book.stack.experts)
    intermediate, zeros = sizes.expert_intermediate * plan.ep / plan.ranks, np.zeros(len(tokens), dtype=np.int64)
    one: Floats = np.ones(len(tokens))
    wide = Rate.MATRIX_FP16 if book.stack.products == "fp16" else Rate.MATRIX_BF16
    named: Mapping[ExpertsFormat, Rate] = {
        **dict.fromkeys((ExpertsFormat.FP8, ExpertsFormat.FP8_BLOCK, ExpertsFormat.W4A8), Rate.MATRIX_FP8),
        ExpertsFormat.FP4: Rate.MATRIX_FP4,
    }
    problems = ExpertsProblems(
        tokens=everyone,
        choices=everyone * sizes.top_k,
        **load_columns(loads),
        hidden=one * hidden,
        columns=one * 2.0 * intermediate,
        intermediate=one * intermediate,
        experts=one * float(sizes.experts),
        local_experts=one * float(sizes.experts // plan.ep),
        input_bytes=one * inputs,
        weight_bytes=one * weights,
        rate=zeros + RATES.index(named.get(book.stack.experts, wide)),
        format=zeros + int(book.stack.experts),
        kernel=zeros + int(book.stack.experts_kernel),
        quantized=zeros,
        copies=np.full(len(tokens), COLD_COPIES),
    )
    book.add("experts", problems, at, StepPart.PRODUCTS, layers)
    if sizes.shared_intermediate:
        _add_block(book, at, tokens, sizes.shared_intermediate / plan.tp, layers)
    message = everyone * hidden * HALF
    if plan.dp > 1:
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
            book.collective(at, kind, message, plan.ranks, layers)
    else:
        book.collective(at, CollectiveKind.ALL_REDUCE, message, plan.tp, layers)


def add_attention(book: OpBook, at: Any, sequences: Floats, queries: Floats, keys: Floats) -> None:
    """Add all layers' attention of `sequences` alike, each of q queries that see `keys`, their own included."""
    sizes, tp = book.sizes, book.plan.tp
    if sizes.is_latent:
        _add_latent(book, at, sequences, queries, keys)
        return
    is_decode = bool(queries.max() <= 1)
    one, zeros = np.ones(len(keys)), np.zeros(len(keys), dtype=np.int64)
    windows = ((0.0, 1.0 - sizes.window_share), (float(sizes.window), sizes.window_share))
    for window, share in windows:
        problems = AttentionProblems(
            batch=sequences,
            heads=one * sizes.heads / tp,
            kv_heads=one * max(sizes.kv_heads / tp, 1.0),
            queries=queries,
            keys=keys,
            query_dim=one * sizes.head_dim,
            value_dim=one * sizes.head_dim,
            window=one * window,
            is_causal=zeros + (0 if is_decode else 1),
            has_dropout=zeros,
            kernel=zeros + int(book.stack.decode_attention if is_decode else book.stack.attention),
            dispatch=zeros + int(Dispatch.FIXED),
            arithmetic=zeros + int(ArithmeticFormat.FP16 if book.stack.products == "fp16" else ArithmeticFormat.BF16),
            kv_bytes=one * book.cache_bytes,
            planned_kv_heads=one * 0.0,
            copies=one * COLD_COPIES,
        )
        name = "attention_decode" if is_decode else "attention_prefill"
        book.add(name, problems, at, StepPart.ATTENTION, sizes.layers * share)


def _add_latent(book: OpBook, at: Any, sequences: Floats, queries: Floats, keys: Floats) -> None:
    """Add latent attention: absorbed with its two products per head for decodes, else widened keys and values."""
    sizes, layers = book.sizes, float(book.sizes.layers)
    heads, is_decode = sizes.heads / book.plan.tp, bool(queries.max() <= 1)
    query_dim = sizes.kv_lora + sizes.rope_dim if is_decode else sizes.nope_dim + sizes.rope_dim
    one, zeros = np.ones(len(keys)), np.zeros(len(keys), dtype=np.int64)
    problems = LatentAttentionProblems(
        batch=sequences,
        heads=one * heads,
        queries=queries,
        keys=keys,
        query_dim=one * query_dim,
        value_dim=one * (sizes.kv_lora if is_decode else sizes.value_dim),
        is_absorbed=zeros + int(is_decode),
        is_causal=zeros + int(not is_decode),
        kernel=zeros + int(LatentKernel.LIBRARY),
        rate=zeros + RATES.index(Rate.MATRIX_BF16),
        element_bytes=one * HALF,
        cache_bytes=one * (book.cache_bytes if is_decode else HALF),
        copies=one * COLD_COPIES,
    )
    book.add("latent_attention", problems, at, StepPart.ATTENTION, layers)
    if is_decode:
        book.product(at, sequences, sizes.kv_lora, sizes.nope_dim, layers, batch=heads, plain=True)
        book.product(at, sequences, sizes.value_dim, sizes.kv_lora, layers, batch=heads, plain=True)
    else:
        widened = heads * (sizes.nope_dim + sizes.value_dim)
        book.product(at, sequences * keys, widened, sizes.kv_lora, layers, plain=True)


def add_head(book: OpBook, at: Any, rows: Floats) -> None:
    """Add what the last tokens of S sequences take: the output product and the passes over their logits."""
    sizes, tp = book.sizes, book.plan.tp
    book.vector(at, VectorKernel.TOKEN_NORM, rows, sizes.hidden, (4.0, 4.0), 1.0)
    book.product(at, rows, sizes.vocab / tp, sizes.hidden, 1.0, plain=True)
    book.collective(at, CollectiveKind.ALL_GATHER, rows * sizes.vocab * HALF, tp, 1.0)
    book.vector(at, VectorKernel.ELEMENTWISE, rows, sizes.vocab, (LOGIT_BYTES, LOGIT_BYTES), LOGIT_PASSES)


def places(start: int, count: int) -> npt.NDArray[np.int64]:
    """Return consecutive places of a table."""
    return np.arange(start, start + count)
