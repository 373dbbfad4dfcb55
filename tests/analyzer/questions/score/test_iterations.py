"""Iterations on many GPUs: models written from their sizes, plans of rows, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.questions.scale.parts import PlanPart
from wavecast.analyzer.questions.score.decisions import FASTER_PLAN, plan_decisions
from wavecast.analyzer.questions.score.distributed.forecast import RowForecast, forecast_row, piece_layers
from wavecast.analyzer.questions.score.distributed.machines import described_node, read_network
from wavecast.analyzer.questions.score.distributed.rows import (
    IterationRow,
    gpu_of,
    kernels_of,
    node_of,
    plan_of,
    routed,
    sizes_of,
)
from wavecast.analyzer.questions.score.distributed.scoring import (
    CARRIED_PLAN,
    FIXED_MFU,
    PERFECT_SCALING,
    SCALED,
    baselines_ns,
)
from wavecast.analyzer.questions.score.distributed.sizes import Activation, Kernels, ProductFormat, TransformerSizes
from wavecast.analyzer.questions.score.distributed.transformer import synthesise
from wavecast.analyzer.questions.score.page.iterations import guess_lines, iteration_sheet, worst_iteration_sheet
from wavecast.analyzer.questions.score.page.records import draw_score_json
from wavecast.analyzer.questions.score.report import IterationScore, Score, Split
from wavecast.analyzer.questions.score.rows import ANCHORED
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.parallel.derive import derive_ranks
from wavecast.analyzer.whatif.parallel.plan import ExpertDispatch, ParallelPlan
from wavecast.benchmarks.make.accuracy import read_score_json
from wavecast.errors import InputError
from wavecast.formats.trace.validate import validate
from wavecast.specs.attention_kernels import AttentionKernel
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fabric import usual_node
from wavecast.specs.match import find_gpu

H100 = find_gpu(load_catalog(), "H100 SXM5 80GB")
SMALL = TransformerSizes(
    name="small", layers=2, hidden=512, ffn=1408, heads=8, kv_heads=4, head_dim=64, vocab=1024
)  # fmt: skip


def make_row(**changes: Any) -> IterationRow:
    """A row of a small Llama on eight H100."""
    row = IterationRow(
        row=0, source="nemo", model="llama3-1b", task="pre-training", gpu=H100.name, gpus=8, nodes=1, gpus_per_node=8,
        intra_link="NVLink4 NVSwitch", inter_link="IB NDR 400 Gb/s per GPU", global_batch=16,
        micro_batch=1, microbatches=4, seq_len=1024, dp=4, tp=2, pp=1, vp=1, cp=1, ep=1,
        sharding="distributed optimizer (ZeRO-1)", fsdp_group=0, precision="bf16", recompute="none", framework="NeMo",
        step_time_ms=100.0, tokens_per_s_per_gpu=0.0, model_flops_per_step=1e15, peak_tflops=989.4, layers=2,
        hidden=512, ffn=1408, heads=8, kv_heads=4, head_dim=64, vocab=1024, experts=0, top_k=0, moe_ffn=0,
        note="",
    )  # fmt: skip
    return replace(row, **changes)


def flops_of(sizes: TransformerSizes, kernels: Kernels, tokens: int) -> float:
    """FLOPs of all products of a recording."""
    trace = synthesise(sizes, kernels, 1, tokens)
    workload = shape_workload(trace, select_window(trace))
    names = [trace.strings[trace.ops.name[op]] for op in workload.op.tolist()]
    counted = [name.endswith(("mm", "addmm")) for name in names]
    return float((workload.work.flops * workload.count)[counted].sum())


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("products", ProductFormat)
def test_products_are_three_times_two_per_weight_and_token(is_fused: bool, products: ProductFormat) -> None:
    weights = 2 * (512 * (8 + 8) * 64 + 512 * 512 + 3 * 512 * 1408) + 512 * 1024
    kernels = Kernels(is_fused=is_fused, products=products, accumulates=is_fused, gradient_dtype="float32")
    assert flops_of(SMALL, kernels, 256) == 6 * weights * 256


def test_a_model_that_predicts_ahead_has_one_layer_more_and_its_head_twice() -> None:
    ahead = flops_of(replace(SMALL, predicts_ahead=True), Kernels(), 256)
    assert ahead == flops_of(replace(SMALL, layers=3), Kernels(), 256) + 6 * 256 * 512 * (2 * 512 + 1024)


def test_queries_keys_and_values_are_drawn_again_where_recipes_recompute_them() -> None:
    latent = replace(SMALL, query_rank=96, key_rank=48, rotary_dim=32)
    again = flops_of(latent, Kernels(recomputes_latent=True), 256) - flops_of(latent, Kernels(), 256)
    assert again == SMALL.layers * 2 * 256 * 8 * (96 * (64 + 32) + 48 * (64 + 32) + 48 * 64)


@pytest.mark.parametrize(
    ("model", "source", "expected"),
    [("deepseek-v3", "megatron-bridge", True), ("kimi-k2", "megatron-bridge", False), ("deepseek-v3", "dgxc", False)],
)
def test_published_flops_say_which_model_predicts_ahead(model: str, source: str, expected: bool) -> None:
    assert sizes_of(make_row(model=model, source=source)).predicts_ahead is expected


@pytest.mark.parametrize(("count", "expected"), [(1, (61,)), (8, (8,) * 7 + (5,)), (16, (4,) * 15 + (1,))])
def test_the_stage_that_predicts_ahead_holds_fewer_layers(count: int, expected: tuple[int, ...]) -> None:
    sizes = replace(SMALL, layers=61)
    assert piece_layers(replace(sizes, predicts_ahead=True), count) == expected
    assert max(piece_layers(sizes, count)) - min(piece_layers(sizes, count)) <= 1


def test_rows_come_back_from_experts_after_their_bias_and_go_there_before_it() -> None:
    sizes = replace(SMALL, experts=4, top_k=2, moe_ffn=256, has_expert_bias=True)
    kernels = Kernels(is_routing_fused=True, sorts_rows=True)
    trace = derive_ranks(synthesise(sizes, kernels, 1, 64), ParallelPlan(dp=2, ep=2))[0].trace
    names = [trace.strings[name].rpartition("::")[2] for name in trace.ops.name.tolist()]
    assert names.count("_local_scalar_dense") == SMALL.layers  # the host waits for how many rows each expert gets
    after = [names[at + 2] for at, name in enumerate(names) if name == "all_to_all_single"]
    assert after == ["_grouped_mm", "index_copy"] * SMALL.layers + ["clone", "index_copy"] * SMALL.layers


def test_adapters_leave_the_weights_gradients_out() -> None:
    whole, adapted = flops_of(SMALL, Kernels(), 256), flops_of(SMALL, Kernels(lora_rank=8), 256)
    assert 0.6 * whole < adapted < 0.75 * whole


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": Activation.GELU, "has_rms_norm": False, "has_rotary": False, "learned_positions": 256},
        {"activation": Activation.SQUARED_RELU},
        {"experts": 4, "top_k": 2, "moe_ffn": 256},
        {"is_tied": True},
        {"predicts_ahead": True},
        {"has_bias": True},
    ],
)
@pytest.mark.parametrize(
    "kernels",
    [
        Kernels(),
        Kernels(products=ProductFormat.FP8),
        Kernels(products=ProductFormat.NVFP4, casts_turned=True),
        Kernels(is_fused=False, is_eager=True, is_rotation_fused=False),
        Kernels(attention=AttentionKernel.CUDNN),
        Kernels(attention=AttentionKernel.FLASH1, reported_losses=2, is_optimizer_fused=False),
    ],
)
def test_recordings_are_valid_and_every_op_is_known(changes: dict[str, Any], kernels: Kernels) -> None:
    trace = synthesise(replace(SMALL, **changes), kernels, 2, 256)
    validate(trace)
    workload = shape_workload(trace, select_window(trace))
    unknown = {trace.strings[trace.ops.name[op]] for op in workload.op[~workload.has_work].tolist()}
    assert not unknown
    backward = trace.ops.phase == 1
    assert (trace.ops.forward[backward] >= 0).all()


def moved_bytes(sizes: TransformerSizes, kernels: Kernels, name: str) -> float:
    """Bytes that all ops of a name move in an iteration of one sample of 256 tokens."""
    trace = synthesise(sizes, kernels, 1, 256)
    workload = shape_workload(trace, select_window(trace))
    chosen = [trace.strings[trace.ops.name[op]] == name for op in workload.op.tolist()]
    return float((workload.work.moved_bytes * workload.count)[chosen].sum())


def test_biases_gradients_read_every_output_of_a_layers_products_once() -> None:
    outputs = 2 * 256 * ((8 + 2 * 4) * 64 + 512 + 2 * 1408 + 512)
    assert moved_bytes(SMALL, Kernels(), "aten::sum") == 0.0
    assert moved_bytes(replace(SMALL, has_bias=True), Kernels(), "aten::sum") == pytest.approx(2 * outputs, rel=0.01)


def test_reported_losses_are_taken_in_float32_and_learned_from_by_nothing() -> None:
    plain, reporting = (Kernels(is_loss_fused=True, reported_losses=count) for count in (0, 2))
    for name in ("aten::_log_softmax_backward_data", "aten::nll_loss_backward"):
        assert moved_bytes(SMALL, plain, name) == moved_bytes(SMALL, reporting, name) > 0.0
    more = moved_bytes(SMALL, reporting, "aten::_log_softmax") - moved_bytes(SMALL, plain, "aten::_log_softmax")
    assert more == pytest.approx(2 * 2 * 4 * 256 * 1024, rel=0.01)


def test_a_lean_loss_reads_the_logits_once_each_way() -> None:
    kernels, logits = Kernels(is_loss_lean=True), 2 * 256 * 1024
    assert moved_bytes(SMALL, kernels, "aten::logsumexp") == pytest.approx(logits, rel=0.01)
    assert moved_bytes(SMALL, kernels, "aten::exp") == 2 * logits
    assert moved_bytes(SMALL, kernels, "aten::_log_softmax") == 0.0


def test_an_optimizer_in_steps_moves_more_than_a_fused_one() -> None:
    names = ("mul_", "add_", "addcmul_", "sqrt", "div_", "addcdiv_")
    steps = sum(moved_bytes(SMALL, Kernels(is_optimizer_fused=False), f"aten::_foreach_{name}") for name in names)
    assert 3.0 < steps / moved_bytes(SMALL, Kernels(), "aten::_fused_adamw_") < 5.0


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("IB NDR 400 Gb/s per GPU", 8, 50e9),
        ("RoCE 1600 Gb/s per node", 8, 25e9),
        ("2x ConnectX-6 IB HDR 200Gb/Sec", 4, 12.5e9),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", 8, 50e9),
        ("Management: 1x Ethernet 10GB/Sec", 8, 0.0),
        ("Storage&Compute: 4x ConnectX-7 IB NDR 400Gb/s, Management: 25Gb/s Ethernet NIC", 8, 25e9),
        ("2x Slingshot 11", 4, 12.5e9),
        ("Intel XXV710 25Gb/s Ethernet", 8, 25e9 / 64),
        ("", 8, 0.0),
    ],
)
def test_networks_are_read_from_a_systems_description(text: str, gpus: int, expected: float) -> None:
    found = read_network(text, gpus)
    assert (found[0] if found else 0.0) == pytest.approx(expected)


def test_a_network_that_nothing_tells_of_is_named_where_it_is_needed() -> None:
    assert described_node(H100, 8, 8, "NVLink4", "Ethernet, Infiniband").gpu_count == 8
    with pytest.raises(InputError, match="'Ethernet, Infiniband'"):
        described_node(H100, 8, 16, "NVLink4", "Ethernet, Infiniband")
    with pytest.raises(InputError, match="'Carrier pigeon'"):
        forecast_row(make_row(gpus=16, dp=8, inter_link="Carrier pigeon"), H100, load_library(), {})


@pytest.mark.parametrize(
    ("gpu", "count", "link", "domain"),
    [
        ("GB200 (per GPU)", 4, "NVLink5 NVSwitch rack-scale", 72),
        ("GB300 (per GPU)", 4, "", 72),
        ("H100 SXM5 80GB", 4, "NVLink4 NVSwitch", 4),
        ("H100 SXM5 80GB", 8, "PCIe Gen5", 1),
        ("H100 PCIe 80GB", 8, "NVLINK BRIDGE", usual_node(find_gpu(load_catalog(), "H100 PCIe 80GB")).domain_gpu_count),
    ],
)
def test_a_domain_is_as_wide_as_its_links(gpu: str, count: int, link: str, domain: int) -> None:
    node = described_node(find_gpu(load_catalog(), gpu), count, 64, link, "IB NDR 400 Gb/s per GPU")
    assert (node.gpu_count, node.domain_gpu_count) == (count, domain)


@pytest.mark.parametrize(
    ("source", "text", "products"),
    [
        ("nemo", "bf16", ProductFormat.HALF),
        ("nemo", "fp8 (assumed)", ProductFormat.FP8),
        ("megatron-bridge", "fp8", ProductFormat.FP8_CURRENT),
        ("torchtitan", "float8 rowwise", ProductFormat.FP8_CURRENT),
        ("megatron-bridge", "mxfp8", ProductFormat.MXFP8),
        ("megatron-bridge", "fp8-mx", ProductFormat.MXFP8),
        ("megatron-bridge", "nvfp4", ProductFormat.NVFP4),
    ],
)
def test_precisions_are_read_in_all_their_spellings(source: str, text: str, products: ProductFormat) -> None:
    assert make_row(source=source, precision=text).products is products


def test_an_unknown_precision_is_left_out_by_name() -> None:
    with pytest.raises(InputError, match="posit8"):
        forecast_row(make_row(precision="posit8"), H100, load_library(), {})


def test_fewer_bits_are_faster_and_casts_cost() -> None:
    gpu, library = find_gpu(load_catalog(), "GB200 (per GPU)"), load_library()
    known: dict[tuple[Any, ...], Any] = {}
    row = make_row(gpu=gpu.name, gpus=4, dp=4, tp=1, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128)
    row = replace(row, seq_len=4096)
    found = [
        forecast_row(replace(row, precision=text), gpu, library, known) for text in ("bf16", "fp8", "mxfp8", "nvfp4")
    ]
    half, fp8, mxfp8, fp4 = (item.step_ns for item in found)
    assert fp4 < mxfp8 < half
    assert fp8 < mxfp8


def test_plans_use_all_gpus() -> None:
    assert plan_of(make_row(), H100).ranks == 8
    sharded = make_row(dp=8, tp=1, sharding="fsdp full_shard", fsdp_group=4)
    plan = plan_of(sharded, H100)
    assert (plan.dp, plan.fsdp, plan.zero) == (2, 4, 0)
    assert node_of(make_row(gpus=4, dp=2), H100).gpu_count == 4


def test_a_forecast_has_an_interval_and_parts() -> None:
    library = load_library()
    known: dict[tuple[Any, ...], Any] = {}
    row = make_row(layers=4)
    shared = forecast_row(row, H100, library, known)
    assert shared.low_ns < shared.step_ns < shared.high_ns
    assert sum(shared.shares.values()) == pytest.approx(1.0)
    assert kernels_of(row, H100).accumulates
    assert sizes_of(row).has_rotary


@pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp8", "nvfp4"])
@pytest.mark.parametrize(
    "changes", [{}, {"cp": 2, "gpus": 16}, {"tp": 1, "pp": 2}, {"experts": 4, "top_k": 2, "moe_ffn": 256, "ep": 2}]
)
def test_ranks_of_every_kind_of_plan_are_derived(precision: str, changes: dict[str, Any]) -> None:
    found = forecast_row(make_row(precision=precision, **changes), H100, load_library(), {})
    assert 0 < found.step_ns < 1e9


def test_plain_torch_is_slower_until_it_is_compiled() -> None:
    row = make_row(source="torchtitan", framework="torchtitan", sharding="fsdp full_shard", dp=8, tp=1, seq_len=4096)
    row = replace(row, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128)
    changes: list[dict[str, Any]] = [
        {},
        {"framework": "torchtitan, torch.compile"},
        {"recompute": "selective"},
        {"recompute": "full"},
    ]
    found = [forecast_row(replace(row, **each), H100, load_library(), {}) for each in changes]
    eager, compiled, selective, whole = (item.step_ns for item in found)
    assert compiled < 0.95 * eager
    assert eager < selective < whole
    assert gpu_of(row).power_cap_w == 500.0
    assert gpu_of(row).memory_bandwidth_bytes_per_s == 2.4e12
    assert gpu_of(replace(row, source="nemo")) == H100


@pytest.mark.parametrize(
    ("source", "framework", "expected"),
    [
        ("torchtitan", "torchtitan", (True, True, False)),
        ("torchtitan", "torchtitan, torch.compile", (True, False, False)),
        ("nemo-automodel", "NeMo AutoModel, TE + DeepEP", (True, False, False)),
        ("nemo-automodel", "NeMo AutoModel", (True, True, False)),
        ("blog", "HF Trainer, DeepSpeed", (True, True, False)),
        ("nemo", "NeMo 24.07", (False, False, True)),
        ("megatron-bridge", "Megatron-FSDP", (False, False, True)),
        ("llm-foundry", "llm-foundry/Composer FSDP", (False, False, False)),
        ("fms-fsdp", "fms-fsdp, torch.compile", (False, False, False)),
    ],
)
def test_words_tell_the_program(source: str, framework: str, expected: tuple[bool, bool, bool]) -> None:
    found = make_row(source=source, framework=framework).program
    assert (found.is_plain, found.is_eager, found.is_megatron) == expected


def test_programs_run_kernels_of_their_own() -> None:
    titan = make_row(source="torchtitan", framework="torchtitan, torch.compile")
    model = make_row(source="nemo-automodel", framework="NeMo AutoModel, TE + DeepEP", experts=4, ep=2)
    assert not kernels_of(titan, H100).is_rotation_fused
    assert kernels_of(titan, H100).is_fused
    assert kernels_of(titan, H100).attention is AttentionKernel.FLASH2
    assert kernels_of(titan, find_gpu(load_catalog(), "B200")).attention is AttentionKernel.CUDNN
    assert kernels_of(model, H100).attention is AttentionKernel.CUDNN
    flex = replace(model, framework="NeMo AutoModel, TE + DeepEP + FlexAttn")
    assert (kernels_of(flex, H100).attention, kernels_of(flex, H100).is_eager) == (AttentionKernel.FLASH2, False)
    assert kernels_of(model, H100).is_routing_fused
    assert plan_of(routed(model, ("", False, False)), H100).dispatch is ExpertDispatch.ONCE
    lora = replace(model, task="lora", framework="NeMo AutoModel")
    assert (kernels_of(lora, H100).lora_rank, kernels_of(lora, H100).attention) == (16, AttentionKernel.FLASH2)


def test_plans_shard_and_pipeline_as_the_program_does() -> None:
    row = make_row(source="torchtitan", framework="torchtitan", sharding="fsdp", dp=4, tp=1, pp=2, micro_batch=4)
    plan = plan_of(row, H100)
    assert (plan.dp, plan.fsdp, plan.zero) == (4, 1, 1)  # parameters stay gathered between micro batches
    parted = routed(replace(row, microbatches=1, micro_batch=8), ("", False, False))
    assert (parted.micro_batch, parted.microbatches) == (4, 2)
    assert not plan_of(replace(row, tp=2, dp=2), H100).overlap_tensor
    assert plan_of(replace(row, tp=2, dp=2, framework="torchtitan, async TP"), H100).overlap_tensor
    assert plan_of(row, H100).sp is None
    assert plan_of(replace(row, source="nemo-automodel", framework="NeMo AutoModel"), H100).sp is False
    zero = make_row(source="blog", framework="DeepSpeed", sharding="ZeRO-3", dp=8, tp=1)
    assert plan_of(zero, H100).fsdp == 8
    assert plan_of(replace(zero, sharding="ZeRO-2"), H100).zero == 2


def test_larger_buckets_pay_for_fewer_rings() -> None:
    row = make_row(gpus=512, dp=512, tp=1, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128, layers=4)
    row = replace(row, microbatches=1)
    few, many = (forecast_row(replace(row, framework=name), H100, load_library(), {}) for name in ("NeMo", "MaxText"))
    assert "buckets=megatron" in few.plan
    assert few.shares[PlanPart.DATA] * few.step_ns < 0.7 * many.shares[PlanPart.DATA] * many.step_ns


def test_experts_are_reached_as_the_recipe_says() -> None:
    changes: dict[str, Any] = {"experts": 4, "top_k": 2, "moe_ffn": 256, "ep": 4, "dispatcher": "flex deepep"}
    plain, once = make_row(**(changes | {"dispatcher": "alltoall"})), make_row(**changes)
    hidden = make_row(**changes, overlaps_experts=True)
    assert plan_of(plain, H100).dispatch is ExpertDispatch.ALL_TO_ALL
    assert plan_of(once, H100).dispatch is ExpertDispatch.ONCE
    shown, less = (forecast_row(row, H100, load_library(), {}) for row in (once, hidden))
    assert less.shares[PlanPart.EXPERT] < shown.shares[PlanPart.EXPERT]
    assert less.step_ns <= shown.step_ns * (1 + 1e-4)  # a host that cannot keep up waits for counts of rows alone
    assert shown.plan.endswith("dispatch=deepep")


def test_hybridep_is_not_held_up_by_multiprocessors() -> None:
    gpu, library = find_gpu(load_catalog(), "GB200 (per GPU)"), load_library()
    row = make_row(gpu=gpu.name, gpus=4, dp=4, tp=1, ep=4, experts=8, top_k=4, moe_ffn=256, hidden=4096, seq_len=8192)
    ways = ("flex deepep", "flex hybridep")
    deep, hybrid = (forecast_row(replace(row, dispatcher=way), gpu, library, {}) for way in ways)
    sent, less = (item.shares[PlanPart.EXPERT] * item.step_ns for item in (deep, hybrid))
    assert less < 0.7 * sent
    assert hybrid.plan.endswith("dispatch=hybridep")


@pytest.mark.parametrize(
    ("model", "gpu", "release", "recipe", "expected"),
    [
        ("deepseek-v3", "H100 SXM5 80GB", "25.09", ("", False, False), ("flex deepep", True)),
        ("deepseek-v3", "B300 SXM (HGX)", "26.04", ("None", False, False), ("flex hybridep", False)),
        ("qwen3-235b-a22b", "H100 SXM5 80GB", "25.09", ("", False, False), ("", False)),
        ("qwen3-235b-a22b", "H100 SXM5 80GB", "25.11", ("", False, False), ("", True)),
        ("qwen3-30b-a3b", "B300 SXM (HGX)", "26.04.01", ("flex hybridep", True, True), ("flex hybridep", False)),
        ("qwen3-30b-a3b", "B300 SXM (HGX)", "26.06", ("flex hybridep", True, True), ("flex hybridep", True)),
        ("gpt-oss-120b", "GB200 (per GPU)", "26.02", ("", False, False), ("", False)),
    ],
)
def test_tokens_go_to_experts_as_each_release_sends_them(
    model: str, gpu: str, release: str, recipe: tuple[str, bool, bool], expected: tuple[str, bool]
) -> None:
    row = make_row(source="megatron-bridge", model=model, gpu=gpu, framework=f"Megatron-Bridge, NeMo {release}")
    found = routed(row, recipe)
    assert (found.dispatcher, found.overlaps_experts) == expected


def test_experts_run_as_their_framework_and_model_have_them() -> None:
    def ops_of(**changes: Any) -> set[str]:
        row = make_row(experts=4, top_k=2, moe_ffn=256, ep=2, **changes)
        trace = synthesise(sizes_of(row), kernels_of(row, H100), 1, row.seq_len)
        return {trace.strings[name].removeprefix("aten::") for name in trace.ops.name.tolist()}

    assert {"topk", "index_add"} <= ops_of(source="torchtitan", framework="torchtitan")
    fused = ops_of(source="megatron-bridge")
    assert "index_copy" in fused
    assert not {"topk", "index_add", "clamp"} & fused
    assert {"clamp", "add"} <= ops_of(source="megatron-bridge", model="gpt-oss-120b")


def make_forecast(step_ms: float) -> RowForecast:
    """A forecast, nine tenths of it computing."""
    shares = {str(PlanPart.COMPUTE): 0.9, str(PlanPart.DATA): 0.1}
    return RowForecast(plan="dp=8", step_ns=step_ms * 1e6, low_ns=1.0, high_ns=1e12, shares=shares)


def test_an_anchor_moves_what_computes_alone() -> None:
    small, large = make_forecast(80.0), make_forecast(90.0)
    # 100 of 80 ms: 8 ms are links, so kernels take 92 instead of 72.
    assert large.anchored_ns(100e6, small) == pytest.approx(9e6 + 81e6 * 92 / 72)


def test_baselines_are_given_other_rows_alone() -> None:
    first = make_row(), make_forecast(80.0)
    more = make_row(row=1, gpus=16, dp=8, global_batch=32, step_time_ms=104.0), make_forecast(84.0)
    found = baselines_ns([first, more], 1)
    assert found[PERFECT_SCALING] == pytest.approx(100e6)
    assert found[SCALED] == pytest.approx(105e6)
    assert found[FIXED_MFU] == pytest.approx(1e15 / (16 * 989.4e12) / 0.4 * 1e9)
    assert {ANCHORED, CARRIED_PLAN} <= set(found)


def make_score(plan: str, measured: float, predicted: float) -> IterationScore:
    return IterationScore(
        table="distributed/iterations.parquet", source="nemo", model="m", task="t", gpu=H100.name, gpus=8, plan=plan,
        precision="bf16", framework="", micro_batch=1, global_batch=16, seq_len=1024, has_experts=False,
        split=Split.UNSEEN, measured_ns=measured, predicted_ns=predicted, low_ns=0.5 * predicted, high_ns=2 * predicted,
        baselines_ns={FIXED_MFU: 2 * measured},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("predicted", "said"), [(1.1e9, "in: none."), (4e9, "in: nemo: MFU 40 % 100 % off, wavecast 300")]
)
def test_sources_are_named_in_which_a_guess_is_better(predicted: float, said: str) -> None:
    (line,) = guess_lines([make_score("tp=2", 1e9, predicted)] * 10)
    assert said in line
    assert not list(guess_lines([make_score("tp=2", 1e9, predicted)] * 9))


def test_plans_are_compared_and_shown() -> None:
    rows = (make_score("tp=2", 1e9, 1.1e9), make_score("tp=4", 2e9, 1.9e9), make_score("tp=8", 3e9, 1.8e9))
    decisions = plan_decisions(rows)
    assert next(row for row in decisions if row.criterion == FASTER_PLAN).right == pytest.approx(2 / 3)
    sheet = iteration_sheet(rows)
    assert sheet.columns[0].cells[0] == "all"
    assert worst_iteration_sheet(rows).row_count == 1
    score = Score(weights="w", rows=(), iterations=rows, decisions=decisions)
    assert read_score_json(orjson.loads(draw_score_json(score))).iterations == rows
