"""The rows of measured iterations, as records; which model, kernels, plan and machine each ran on."""

import json
import re
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any, Final

from .....errors import InputError
from .....records import dataclass, fields, replace
from .....specs.attention_kernels import AttentionKernel
from .....specs.catalog import load_catalog
from .....specs.fabric import usual_node
from .....specs.generation_rows import generation_at
from .....specs.gpu import Gpu
from .....specs.match import find_gpu
from .....specs.nodes import Node
from ....measurements.samples import read_table
from ....page.encoding import attributes
from ....whatif.parallel.plan import ExpertDispatch, GradientBuckets, ParallelPlan, RecomputeMode
from .machines import described_node
from .program import FMS_FSDP, LLM_FOUNDRY, MEGATRON_BRIDGE, TORCHTITAN, TrainingProgram, program_of
from .sizes import Activation, Kernels, ProductFormat, TransformerSizes

ITERATIONS: Final = "distributed/iterations.parquet"
RECIPES: Final = "distributed/recipes.parquet"
OVERLAPS: Final = "overlap_moe_expert_parallel_comm"
FUSES: Final = "model.use_transformer_engine_op_fuser"
"""Megatron-Core's switches."""
HYBRID: Final = "flex hybridep"
DEEPEP: Final = "flex deepep"
HYBRID_RELEASE: Final = "26"
FUSED_RELEASE: Final = "26.06"
BERT: Final = "bert-large"
_FP4_WORDS: Final = ("fp4",)
_FP8_WORDS: Final = ("fp8", "float8", "e4m3")
_BLOCK_WORDS: Final = ("block", "subchannel", "fp8sc", "fp8-sc", "fp8_sc")
_CURRENT_WORDS: Final = ("current", "fp8cs", "fp8-cs", "fp8_cs", "tensorwise", "rowwise", "dynamic", "float8")
_HALF_WORDS: Final = ("bf16", "fp16", "bfloat16", "float16", "16-bit", "half")
TORCHTITAN_BOARDS: Final = {"H100 SXM5 80GB": "H100 SXM5 80GB@500W"}
TORCHTITAN_MEMORY: Final[Mapping[str, Any]] = {"memory_bandwidth_bytes_per_s": 2.4e12, "memory_bytes": 96e9}
"""The H100 of torchtitan's pages is a board of 500 W with 96 GB of HBM2e at 2.4 TB/s (its page of
December 2024)."""
MPT: Final = "mpt"
GPT_OSS: Final = "gpt-oss"
QWEN3: Final = "qwen3"
"""Their reports: biases of every product (arXiv 2508.10925), norms of queries and keys (arXiv 2505.09388)."""
COMPOSER_METRICS: Final = 2
"""Cross entropy and perplexity, each taken from the logits of every micro batch."""
GELU_FAMILIES: Final = ("gpt3", MPT, "bert")
SQUARED_RELU_FAMILIES: Final = ("nemotron",)
"""Their papers: GPT-3 and MPT (Brown et al. 2020; MosaicML 2023), Nemotron-4 (Parmar et al. 2024)."""
MLPERF_GPT3: Final = "gpt3-175b"
MLPERF_PIECES: Final = 12
"""Pieces per stage where a configuration of NVIDIA's names none (`INTERLEAVED_PIPELINE` in its `conf/custom.yaml`)."""
DEEPSEEK: Final = "deepseek-v3"
LATENT_FAMILIES: Final = (DEEPSEEK, "kimi-k2")
LATENT_SIZES: Final[Mapping[str, Any]] = {"query_rank": 1536, "key_rank": 576, "rotary_dim": 64, "shared_experts": 1}
"""DeepSeek-V3's and Kimi K2's reports (arXiv 2412.19437, section 4.2; 2507.20534, table 2)."""
PAX: Final = "PaxML"
XLA: Final = ("MaxText", PAX)
LORA_RANK: Final = {"mlperf": 16, "automodel": 16, "": 32}
"""Of MLPerf's benchmark (its rules, `llama2_70b_lora`), AutoModel's (`custom_llama3_3_70b_instruct_peft_benchmark.yaml`
in its examples), and NeMo's default for LoRA."""
LORA_PRODUCTS: Final = {"mlperf": ("qkv_proj", "o_proj")}
OTHER_LORA_PRODUCTS: Final = ("qkv_proj",)
"""All of attention's in MLPerf's benchmark; in NeMo the first one (its default), in Megatron-Bridge's recipes as well
(`peft.target_modules` in the table of recipes)."""
PLAIN_LORA_PRODUCTS: Final = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRow:
    """Hold one measured iteration; numbers that the table lacks are 0 or, where 1 says as much, 1."""

    row: int
    source: str
    model: str
    task: str
    gpu: str
    gpus: int
    nodes: int
    gpus_per_node: int
    intra_link: str
    inter_link: str
    global_batch: int
    micro_batch: int
    microbatches: int
    seq_len: int
    dp: int
    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    sharding: str
    fsdp_group: int
    precision: str
    recompute: str
    framework: str
    step_time_ms: float
    tokens_per_s_per_gpu: float
    model_flops_per_step: float
    peak_tflops: float
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int
    top_k: int
    moe_ffn: int
    note: str
    recipe: str = ""
    """Of the table of recipes."""
    dispatcher: str = ""
    """By what tokens go to experts, as its recipe says: `alltoall`, `flex hybridep`."""
    overlaps_experts: bool = False
    """Whether its recipe sends them beside another micro batch."""

    @property
    def step_ns(self) -> float:
        """Return the measured time of an iteration.

        llm-foundry's pages round samples per second down to whole numbers, from which the table has its step times (up
        to 75 % too long where few samples pass); their tokens per second are whole numbers too, thousands of them.
        """
        if self.source == LLM_FOUNDRY and self.tokens_per_s_per_gpu > 0:
            return self.global_batch * self.seq_len / (self.tokens_per_s_per_gpu * self.gpus) * 1e9
        return self.step_time_ms * 1e6

    @property
    def has_plan(self) -> bool:
        """Say whether the parallel sizes are given and use all GPUs."""
        return self.dp > 0 and self.micro_batch > 0 and self.dp * self.tp * self.pp * self.cp == self.gpus

    @property
    def is_language_model(self) -> bool:
        """Say whether it is a causal transformer whose sizes are given."""
        return self.layers > 0 and self.seq_len > 0 and self.hidden > 0 and self.vocab > 0 and self.model != BERT

    @property
    def program(self) -> TrainingProgram:
        """Return what its program is."""
        return program_of(self.source, self.framework, f"{self.precision} {self.note}")

    @property
    def products(self) -> ProductFormat:
        """Return in what numbers the layers' products ran. Raises InputError where the precision is not known.

        Megatron-Bridge's fp8 scales by what it finds (all but one of its 106 recipes with a scale per tensor), others
        where they say so; the recipes of MLPerf and NeMo scale by what was found before.
        """
        words = self.precision.lower()
        if any(word in words for word in _FP4_WORDS):
            return ProductFormat.NVFP4
        if any(word in words for word in _FP8_WORDS):
            if "mx" in words:
                return ProductFormat.MXFP8
            if any(word in words for word in _BLOCK_WORDS):
                return ProductFormat.FP8_BLOCK
            is_current = self.source == MEGATRON_BRIDGE or any(word in words for word in _CURRENT_WORDS)
            return ProductFormat.FP8_CURRENT if is_current else ProductFormat.FP8
        if any(word in words for word in _HALF_WORDS):
            return ProductFormat.HALF
        raise InputError(f"how products run in precision {self.precision!r} is not known")


def read_iterations(data: Path) -> tuple[IterationRow, ...]:
    """Return the usable rows."""
    recipes = _expert_settings(data)
    names = [item.name for item in fields(IterationRow) if item.name not in ("row", "dispatcher", "overlaps_experts")]
    table = read_table(data / ITERATIONS, ("usable", *names), may_lack=names)
    kept = [index for index, usable in enumerate(table["usable"].tolist()) if usable]
    lists = {name: table[name].tolist() for name in names}
    found = []
    for index in kept:
        row = IterationRow(row=index, **{name: clean_value(IterationRow, name, lists[name][index]) for name in names})
        found.append(routed(row, recipes.get(row.recipe, ("", False, False))))
    return tuple(found)


def _expert_settings(data: Path) -> dict[str, tuple[str, bool, bool]]:
    """Return by recipe how tokens go to experts, whether beside another micro batch, whether in fused experts."""
    found: dict[str, tuple[str, bool, bool]] = {}
    if not (data / RECIPES).exists():
        return found
    table = read_table(data / RECIPES, ("recipe", "moe_dispatcher", "all_settings"))
    for recipe, dispatcher, settings in zip(*(table[name].tolist() for name in table), strict=True):
        known = json.loads(settings) if settings else {}
        named = any(key.endswith(OVERLAPS) and value is True for key, value in known.items())
        overlaps = named or f"{OVERLAPS}=True" in str(known.get("comm_overlap", ""))
        found[str(recipe)] = str(dispatcher or "").strip(), overlaps, bool(known.get(FUSES))
    return found


def routed(row: IterationRow, recipe: tuple[str, bool, bool]) -> IterationRow:
    """Return a row with how its tokens go to experts, by its recipe and its release.

    Recipes are those of the last release: experts fused into one kernel, and exchanges beside another micro batch
    there, are taken to have come with it. Where a recipe does not say, versions of Megatron-Bridge's `configs` do:
    DeepSeek's models take DeepEP with such an overlap on Hopper and all-to-all on Blackwell at first, later HybridEP,
    as Qwen3 on racks of 72; Qwen3-235B overlaps on Hopper. A batch that torchtitan's pipeline is given whole it parts
    among its stages (its default of `pipeline_parallel_microbatches` in 2024). Since which release was told with the
    errors in sight.
    """
    dispatcher, overlaps, is_fused = recipe
    release, is_hopper = row.framework.rpartition(" ")[2], row.gpu.startswith("H")
    is_latent = row.model.startswith(LATENT_FAMILIES)
    if row.source == MEGATRON_BRIDGE and dispatcher in ("", "None"):
        if release >= HYBRID_RELEASE and (is_latent or (row.model.startswith("qwen3") and row.gpu.startswith("GB"))):
            dispatcher = HYBRID
        elif release < HYBRID_RELEASE and is_hopper:
            dispatcher = DEEPEP if is_latent else dispatcher
            overlaps |= is_latent or (row.model.startswith("qwen3-235b") and release >= "25.11")
    if row.program.has_deepep:
        dispatcher = DEEPEP
    stages = row.pp * row.vp
    if row.program.is_torchtitan and row.microbatches == 1 < row.pp and row.micro_batch % stages == 0:
        row = replace(row, micro_batch=row.micro_batch // stages, microbatches=stages)
    overlaps = overlaps and (not is_fused or release >= FUSED_RELEASE)
    return replace(row, dispatcher=dispatcher, overlaps_experts=overlaps)


def clean_value(record: type, name: str, value: Any) -> Any:
    """Return a table's value of a record's field, or what stands for its absence."""
    is_missing = value is None or (isinstance(value, float) and isnan(value))
    kind = record.__annotations__[name]
    if kind is str:
        return "" if is_missing else str(value)
    if kind is float:
        return 0.0 if is_missing else float(value)
    if is_missing:
        return 1 if name in ("vp", "cp", "ep", "tp", "pp", "microbatches") else 0
    return int(value)


def gpu_of(row: IterationRow) -> Gpu:
    """Return the GPU, with its board's power limit and memory. Raises InputError where the catalogue lacks it."""
    board = TORCHTITAN_BOARDS.get(row.gpu) if TORCHTITAN in row.source else None
    gpu = find_gpu(load_catalog(), board or row.gpu)
    return replace(gpu, **TORCHTITAN_MEMORY) if board else gpu


def publisher_of(source: str) -> str:
    """Return who published the rows of a source: one name for all rounds of MLPerf, one for all pages of NeMo.

    >>> publisher_of("mlperf-training-v4.0")
    'mlperf'
    """
    return next((name for name in ("mlperf", "nemo") if source.startswith(name)), source)


def sizes_of(row: IterationRow) -> TransformerSizes:
    """Return the transformer that a row trained; what the table does not say by its family's paper.

    MPT's numbers of parameters in llm-foundry's tables say that products have biases and positions are learned:
    1,315,950,592 of `mpt-1b` for 2,048 tokens, 33,554,432 more for 16,384 more. Megatron-Bridge's TFLOP/s of
    DeepSeek-V3 say that it predicts ahead: per token 9.6 GFLOP more than 61 layers and a head, those of one more each.
    """
    is_old, is_squared = row.model.startswith(GELU_FAMILIES), row.model.startswith(SQUARED_RELU_FAMILIES)
    activation = Activation.GELU if is_old else Activation.SQUARED_RELU if is_squared else Activation.SWIGLU
    is_latent = row.model.startswith(LATENT_FAMILIES)
    return TransformerSizes(
        **LATENT_SIZES if is_latent else {},
        name=row.model,
        kv_heads=row.kv_heads or row.heads,
        head_dim=row.head_dim or row.hidden // row.heads,
        **attributes(row, ("layers", "hidden", "ffn", "heads", "vocab", "experts", "top_k", "moe_ffn")),
        activation=activation,
        has_rms_norm=activation is Activation.SWIGLU,
        has_rotary=not is_old,
        learned_positions=row.seq_len if row.model.startswith(("gpt3", MPT)) else 0,
        has_bias=row.model.startswith((MPT, GPT_OSS)),
        has_expert_bias=row.model.startswith(GPT_OSS),
        has_head_norms=row.model.startswith(QWEN3),
        predicts_ahead=row.model.startswith(DEEPSEEK) and row.source == MEGATRON_BRIDGE,
        is_tied=row.model.startswith(MPT),
    )


def kernels_of(row: IterationRow, gpu: Gpu) -> Kernels:
    """Return the kernels that the row's framework runs.

    Attention: Transformer Engine takes cuDNN's on Hopper and FlashAttention-2 before it (its documentation of backend
    selection), MaxText and PaxML cuDNN's through XLA; fms-fsdp is of early 2024, before FlashAttention-3 and PyTorch's
    cuDNN. llm-foundry's benchmarks (2023) run MPT's own Triton kernel (`--attn_impl`), the first FlashAttention. Their
    loss is flash-attn's, their optimizer `decoupled_adamw`; gradients are reduced in float32 (`DEFAULT` in the tables'
    column of mixed precision), on the A100 40GB in bfloat16 (`PURE`).
    Megatron-Bridge's recipes add them up in bfloat16 (`grad_reduce_in_fp32`) and route by fused kernels
    (`moe_router_fusion`, `moe_permute_fusion`); of latent attention nearly all recompute the products that widen it
    (`mla_up_proj`). torchtitan, AutoModel and their like run models of plain modules: three
    products for queries, keys and values, without a compiler single operations and the loss in float32; their FSDP
    reduces in float32, and adapters stand beside every product. torchtitan rotates complex numbers, which torch's
    compiler leaves as they are (its issue 15), and takes cuDNN's attention first from Blackwell on.
    Before Blackwell fp8 operands lie along what a product adds up.
    """
    program, is_foundry, is_megatron = row.program, row.source == LLM_FOUNDRY, row.program.is_megatron
    is_plain, is_torch = program.is_plain, is_foundry or program.is_plain or row.source == FMS_FSDP
    is_wide = is_plain or (is_megatron and row.source != MEGATRON_BRIDGE)
    is_wide |= is_foundry and not row.gpu.endswith("40GB")
    products, is_blackwell = row.products, generation_at(gpu.compute_capability).has_tensor_memory
    takes_flash = is_torch and not program.has_engine_attention and not (program.is_torchtitan and is_blackwell)
    attention = AttentionKernel.FLASH2 if takes_flash else AttentionKernel.CUDNN
    is_lora = row.task.endswith("lora")
    benchmark = next((name for name in LORA_RANK if name in f"{row.source} {row.framework}".lower()), "")
    return Kernels(
        products=products,
        casts_turned=products.is_narrow and (products.scales_one_way or not is_blackwell),
        attention=AttentionKernel.FLASH1 if is_foundry else attention,
        is_fused=not program.is_eager,
        is_eager=program.is_eager,
        is_rotation_fused=not program.is_eager and not program.is_torchtitan,
        is_routing_fused=is_megatron or program.has_deepep,
        sorts_rows=is_megatron and row.ep > 1 and row.dispatcher not in _DISPATCHES and row.experts > row.ep,
        is_loss_fused=not is_torch or (is_plain and not program.is_eager),
        is_loss_lean=is_foundry,
        reported_losses=COMPOSER_METRICS if is_foundry else 0,
        is_optimizer_fused=not is_foundry,
        gradient_dtype="float32" if is_wide else "bfloat16",
        accumulates=is_megatron and not row.framework.startswith(XLA) and not is_lora,
        recomputes_latent=row.source == MEGATRON_BRIDGE,
        lora_products=PLAIN_LORA_PRODUCTS if is_plain else LORA_PRODUCTS.get(benchmark, OTHER_LORA_PRODUCTS),
        lora_rank=LORA_RANK[benchmark] if is_lora else 0,
    )


_DISPATCHES: Final = {HYBRID: ExpertDispatch.HYBRID, DEEPEP: ExpertDispatch.ONCE}
_SHARDED: Final = re.compile(r"fsdp|hsdp|zero.?3")
_ZERO_2: Final = re.compile(r"zero.?2")
ACTIVATION_BYTES: Final = 34.0
"""Per token, layer and hidden feature, in 16 bits and with fused attention (Korthikanti et al. 2022, section 4.1)."""


def plan_of(row: IterationRow, gpu: Gpu) -> ParallelPlan:
    """Return the plan. Megatron's distributed optimizer shards it among replicas; groups of FSDP ranks are replicated.

    Megatron's tensor-parallel collectives run beside products (user buffers) where its recipes say so: on H100 all of
    them with tensor parallelism but the adapters'. `none/selective` recomputes nothing with fused attention;
    keys and values go round a ring beside attention (`cp_comm_type`, `p2p` by default);
    experts are reached as the row's recipe says, by all-to-all without one (Megatron-Core's default);
    what XLA recomputes the pages do not say: all, where the activations of a micro batch would not fit. PaxML's own
    configuration of such models (`GPT5BSynthetic` in paxml) saves nothing in fp8, and products' results in 16 bits.
    torchtitan's FSDP gathers parameters once for all micro batches of a pipeline (`reshard_after_forward`); models of
    transformers and AutoModel do not split tokens under tensor parallel (its configurations' `sequence_parallel`).
    """
    is_fsdp = bool(_SHARDED.search(row.sharding.lower()))
    group = min(row.fsdp_group or row.dp, row.dp) if is_fsdp else 1
    is_kept = row.program.is_torchtitan and row.pp > 1
    zero = 2 if row.sharding.endswith("shard_grad_op") or _ZERO_2.search(row.sharding.lower()) else 1
    shards = is_fsdp and zero == 1 and not is_kept
    activation_bytes = ACTIVATION_BYTES * row.hidden * row.layers * row.micro_batch * row.seq_len
    is_pax, is_xla = row.framework.startswith(PAX), row.framework.startswith(XLA)
    recomputes = (
        row.recompute == "full"
        or (is_xla and activation_bytes > gpu.memory_bytes)
        or (is_pax and row.products.is_narrow)
    )
    kept = RecomputeMode.SELECTIVE if is_pax else RecomputeMode.NONE
    is_megatron, is_lora = row.program.is_megatron and not is_xla, row.task.endswith("lora")
    if row.program.is_plain and "selective" in row.recompute:
        kept = RecomputeMode.OPS
    is_unsaid = row.source.startswith("mlperf") and row.model == MLPERF_GPT3 and row.pp > 1 == row.vp
    return ParallelPlan(
        dp=row.dp // group if shards else row.dp,
        fsdp=group if shards else 1,
        zero=0 if shards else zero,
        tp=row.tp,
        sp=None if row.program.is_torchtitan or not row.program.is_plain else False,
        cp=row.cp,
        pp=row.pp,
        vp=MLPERF_PIECES if is_unsaid and row.layers % (row.pp * MLPERF_PIECES) == 0 else row.vp,
        ep=min(row.ep, row.dp * row.cp * row.tp),
        micro_batch=row.micro_batch,
        micro_batches=row.microbatches,
        recompute=(RecomputeMode.EARLY if row.program.stops_early else RecomputeMode.FULL) if recomputes else kept,
        dispatch=_DISPATCHES.get(row.dispatcher, ExpertDispatch.ALL_TO_ALL),
        buckets=GradientBuckets.MEGATRON if is_megatron else GradientBuckets.TORCH,
        overlap_experts=row.overlaps_experts,
        overlap_context=row.cp > 1 and is_megatron,
        overlap_tensor=row.tp > 1 and (row.program.has_async_tensor if row.program.is_plain else not is_lora),
    )


def node_of(row: IterationRow, gpu: Gpu) -> Node:
    """Return the machine: the GPU's usual one, with as many GPUs and the network that the row names.

    Raises InputError where that network's rate is not known and the row's GPUs need it.
    """
    count = min(row.gpus_per_node or usual_node(gpu).gpu_count, row.gpus)
    return described_node(gpu, count, row.gpus, row.intra_link, row.inter_link)
