"""Another precision: types, conversions and units as torch's autocast has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.memory.describe import describe_memory
from wavecast.analyzer.memory.use import MemoryCategory
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.analyzer.whatif.precision.mixed import outermost_casts
from wavecast.analyzer.whatif.precision.precision import explain_missing_units, with_precision
from wavecast.analyzer.whatif.scenario import Scenario, TargetPrecision
from wavecast.analyzer.work import Family, family_of
from wavecast.errors import InputError
from wavecast.formats.trace.autocast import CASTS, Cast
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec, flatten_tensors
from wavecast.formats.trace.tables import KernelTable, OperandTable, OpTable, Phase, TensorTable, Trace
from wavecast.formats.trace.validate import validate
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

BATCH, WIDTH = 16, 32


class Block(nn.Module):
    """A residual block with a normalisation that autocast keeps in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return result


@pytest.fixture(scope="module")
def recorded() -> Trace:
    with torch.device("meta"):
        model, data = Block(), torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.mse_loss(model(data), data).backward()
        optimizer.step()

    return trace_iteration(train, device="meta", mode="training", batch_size=BATCH)


def calls(trace: Trace) -> Iterator[tuple[str, int, list[str], list[str]]]:
    """Yield name, phase, and types of inputs and results of ops that are no views."""
    rows = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), trace.ops.phase.tolist(), strict=True)
    for name, number, phase in rows:
        signature = trace.signatures[number]
        if family_of(trace.strings[name]) is not Family.VIEW:
            inputs, results = (flatten_tensors(item) for item in (signature.arguments, signature.results))
            yield trace.strings[name], phase, [x.dtype for x in inputs], [x.dtype for x in results]


@pytest.mark.parametrize(
    ("name", "phase", "inputs", "results"),
    [
        ("aten::addmm", Phase.FORWARD, {"bfloat16"}, {"bfloat16"}),
        ("aten::gelu", Phase.FORWARD, {"bfloat16"}, {"bfloat16"}),
        ("aten::add", Phase.FORWARD, {"float32", "bfloat16"}, {"float32"}),
        ("aten::native_layer_norm", Phase.FORWARD, {"float32"}, {"float32"}),
        ("aten::mse_loss", Phase.FORWARD, {"float32"}, {"float32"}),
        ("aten::mm", Phase.BACKWARD, {"bfloat16"}, {"bfloat16"}),
        ("aten::gelu_backward", Phase.BACKWARD, {"bfloat16"}, {"bfloat16"}),
        ("aten::native_layer_norm_backward", Phase.BACKWARD, {"float32"}, {"float32"}),
        ("aten::_foreach_sqrt", Phase.OPTIMIZER, {"float32"}, {"float32"}),
    ],
)
def test_types_follow_autocast(recorded: Trace, name: str, phase: Phase, inputs: set[str], results: set[str]) -> None:
    found = [call for call in calls(with_precision(recorded, TargetPrecision.BF16).trace) if call[:2] == (name, phase)]
    assert found
    for _, _, taken, returned in found:
        assert set(taken) == inputs
        assert set(returned) == results


def test_reads_of_values_stay_as_they_are() -> None:
    with torch.device("meta"):
        model, data = Block(), torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters())

    def train() -> None:
        scaler = torch.amp.GradScaler("cpu")  # it reads whether a gradient was infinite
        scaler.scale(model(data).sum()).backward()
        scaler.step(optimizer)

    trace = with_precision(trace_iteration(train, device="meta"), TargetPrecision.BF16).trace
    reads = [call[2:] for call in calls(trace) if call[0] == "aten::_local_scalar_dense"]
    assert reads == [(["float32"], [])]


def test_conversions_are_those_of_autocast(recorded: Trace) -> None:
    # Two weights and biases, the normalised input; their gradients; the gradient that enters the residual branch.
    casts = with_precision(recorded, TargetPrecision.BF16).casts
    parameters, data, wide = 4 * WIDTH * WIDTH, BATCH * WIDTH, 4 * WIDTH
    expected = [(parameters, 4), (parameters, 4), (WIDTH, 4), (wide, 4), (data, 4), (data, 4)]
    expected += [(parameters, 2), (parameters, 2), (WIDTH, 2), (wide, 2), (data, 2)]
    found = zip(casts.element_count.tolist(), casts.read_bytes.tolist(), strict=True)
    assert sorted(found) == sorted(expected)
    assert casts.moved_bytes.sum() == 6 * casts.element_count.sum()


@pytest.mark.parametrize("loss", ["cross_entropy", "log_softmax"])
def test_the_types_are_those_of_a_recording_under_autocast(loss: str) -> None:
    with torch.device("meta"):
        model, head, data = Block(), nn.Linear(WIDTH, 100), torch.randn(BATCH, WIDTH)
        labels = torch.zeros(BATCH, dtype=torch.long)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])

    def record(*, autocasts: bool) -> Trace:
        def train() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocasts):
                logits = head(model(data))
                if loss == "cross_entropy":
                    result = functional.cross_entropy(logits, labels)
                else:  # a loss of one's own
                    result = -logits.log_softmax(-1).mean()
            result.backward()
            optimizer.step()

        return trace_iteration(train, device="meta", mode="training", batch_size=BATCH)

    def types(trace: Trace) -> list[tuple[str, int, list[str], list[str]]]:
        return sorted(call for call in calls(trace) if call[0] not in ("aten::_to_copy", "aten::detach"))

    moved, wanted = with_precision(record(autocasts=False), TargetPrecision.BF16), record(autocasts=True)
    assert types(moved.trace) == types(wanted)
    (softmax,) = [call for call in calls(wanted) if call[0] == "aten::_log_softmax"]
    expected = "bfloat16" if loss == "cross_entropy" else "float32"
    assert softmax[2:] == ([expected], [expected])


@pytest.mark.parametrize(
    ("outer", "expected"), [("cross_entropy_loss", Cast.FOLLOW), ("nll_loss", Cast.WIDE), ("mine", Cast.WIDE)]
)
def test_where_outer_ops_are_recorded_they_say_whether_a_log_softmax_is_a_cross_entropys(
    outer: str, expected: Cast
) -> None:
    names = [outer, "log_softmax", "_log_softmax", "nll_loss_forward", "cross_entropy_loss"]
    trace = Trace(strings=tuple(names), ops=build_table(OpTable, 5, name=range(5), parent=[-1, 0, 1, 0, -1]))
    assert outermost_casts(trace, names)[1:4] == [expected, expected, Cast.WIDE]


def test_the_lists_are_those_of_the_installed_torch() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.is_file():
        pytest.skip("torch was installed without headers")
    sections = re.split(r"#define AT_FORALL_", header.read_text())[1:]
    wanted = {"LOWER_PRECISION_FP": Cast.LOWER, "FP32": Cast.WIDE, "FP32_SET_OPT_DTYPE": Cast.WIDE}
    listed = {
        name: wanted[section.split("(", 1)[0]]
        for section in sections
        if section.split("(", 1)[0] in wanted
        for name in re.findall(r"_\((\w+)", section.split("\n\n")[0])
    }
    assert len(listed) > 70
    # Norms of matrices are composed of ops that are listed themselves.
    missing = {name for name, cast in listed.items() if CASTS.get(name) is not cast}
    assert missing <= {"frobenius_norm", "nuclear_norm"}


@pytest.mark.parametrize("precision", [item for item in TargetPrecision if "weights" not in item])
def test_rows_stay_and_the_trace_stays_valid(recorded: Trace, precision: TargetPrecision) -> None:
    changed = with_precision(recorded, precision).trace
    validate(changed)
    assert changed.ops.name.tolist() == recorded.ops.name.tolist()
    assert changed.ops.parent.tolist() == recorded.ops.parent.tolist()


def test_texts_that_stand_twice_change_nothing(recorded: Trace) -> None:
    """A legal trace may repeat its strings: what refers to them keeps its row."""
    more = 3
    repeated = replace(
        recorded,
        strings=(*[recorded.strings[0]] * more, *recorded.strings),
        ops=replace(
            recorded.ops,
            name=recorded.ops.name + more,
            module=np.where(recorded.ops.module >= 0, recorded.ops.module + more, recorded.ops.module),
        ),
        tensors=replace(recorded.tensors, dtype=recorded.tensors.dtype + more),
    )
    changed, plain = (with_precision(trace, TargetPrecision.BF16).trace for trace in (repeated, recorded))
    validate(changed)
    assert list(calls(changed)) == list(calls(plain))


def test_batch_and_precision_commute(recorded: Trace) -> None:
    first = with_batch(with_precision(recorded, TargetPrecision.BF16).trace, 64).trace
    second = with_precision(with_batch(recorded, 64).trace, TargetPrecision.BF16).trace
    assert list(calls(first)) == list(calls(second))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_half_precision_trace_changes_its_half_type(root_dir: Path, precision: str) -> None:
    trace = load_trace(root_dir / "samples" / "bert_base-training-bf16-b16-shapes.json.gz")
    changed = with_precision(trace, TargetPrecision(precision))
    if precision == "bf16":
        assert changed.trace is trace
        return
    types = {spec.dtype for item in changed.trace.signatures for spec in item.tensors()}
    assert "float16" in types
    assert "bfloat16" not in types
    assert with_precision(changed.trace, TargetPrecision.BF16).trace.signatures == trace.signatures


def test_raising_the_precision_is_refused(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "dcgan-inference-bf16-b64-shapes.json.gz")
    with pytest.raises(InputError, match="multiplies in bfloat16; moving it to tf32 is not offered"):
        with_precision(trace, TargetPrecision.TF32)


def test_a_trace_without_shapes_is_refused() -> None:
    with pytest.raises(InputError, match="record_shapes=True"):
        with_precision(Trace(), TargetPrecision.BF16)


def test_fp8_takes_linear_layers_whose_sizes_fit(recorded: Trace) -> None:
    changed = with_precision(recorded, TargetPrecision.FP8)
    products = [call for call in calls(changed.trace) if call[0] in ("aten::addmm", "aten::mm")]
    assert all(taken[-2:] == ["float8_e4m3fn"] * 2 and returned == ["bfloat16"] for _, _, taken, returned in products)
    assert not any("do not fit" in item for item in changed.warnings)
    odd = with_precision(with_batch(recorded, 15).trace, TargetPrecision.FP8)
    assert any("do not fit fp8" in item for item in odd.warnings)


def test_attention_stays_in_half_precision_under_fp8(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "gpt2_small-inference-fp32-b4-shapes.json.gz")
    changed = with_precision(trace, TargetPrecision.FP8).trace
    found = [taken[:3] for name, _, taken, _ in calls(changed) if "attention" in name]
    assert found
    assert all(taken == ["bfloat16"] * 3 for taken in found)


def test_tf32_changes_switches_and_the_names_of_float32_kernels() -> None:
    trace = measured_product("ampere_sgemm_128x64_nn")
    changed = with_precision(trace, TargetPrecision.TF32).trace
    assert changed.signatures == trace.signatures
    assert changed.meta.precision.matmul_tf32
    names = [changed.strings[name] for name in changed.kernels.name.tolist()]
    assert names == ["tf32:ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel"]
    assert with_precision(changed, TargetPrecision.TF32).trace is changed


def measured_product(kernel: str) -> Trace:
    wide = TensorSpec("float32", (512, 512))
    return Trace(
        strings=("aten::mm", "aten::relu", kernel, "vectorized_elementwise_kernel"),
        signatures=(Signature((wide, wide)), Signature((wide,))),
        ops=build_table(OpTable, 2, name=[0, 1], signature=[0, 1], start_ns=[0, 10], duration_ns=[5, 5]),
        kernels=build_table(
            KernelTable, 2, name=[2, 3], start_ns=[10, 100_010], duration_ns=[100_000, 10_000], op=[0, 1]
        ),
    )


def test_types_are_judged_by_order_where_tensors_are_not_identified(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "resnet50-training-fp32-b32-shapes.json.gz")
    bare = replace(trace, operands=build_table(OperandTable, 0), tensors=build_table(TensorTable, 0))
    known, judged = (with_precision(item, TargetPrecision.BF16) for item in (trace, bare))
    pairs = zip(calls(known.trace), calls(judged.trace), strict=True)
    same = np.mean([left[2] == right[2] for left, right in pairs])
    assert same > 0.99
    assert judged.casts.moved_bytes.sum() == pytest.approx(known.casts.moved_bytes.sum(), rel=0.1)
    assert any("does not identify tensors" in item for item in judged.warnings)


def test_products_of_one_operand_or_of_vectors_are_answered() -> None:
    """No torch runs them, but a damaged file may hold them."""
    matrix, vector = TensorSpec("float32", (8, 16)), TensorSpec("float32", (16,))
    forward = Signature((matrix, TensorSpec("float32", (16, 8))))
    for operands in ((matrix,), (vector, vector), (matrix, vector)):
        trace = Trace(
            strings=("aten::mm",),
            signatures=(forward, Signature(operands)),
            ops=build_table(
                OpTable,
                2,
                name=[0, 0],
                signature=[0, 1],
                phase=[Phase.FORWARD, Phase.BACKWARD],
                sequence=[1, 1],
                forward=[-1, 0],
            ),
        )
        validate(with_precision(trace, TargetPrecision.FP16).trace)


def weights_of(trace: Trace) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of the second operands of linear layers by type."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for name, number in zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True):
        if trace.strings[name] == "aten::addmm":
            spec = trace.signatures[number].arguments[2]
            assert isinstance(spec, TensorSpec)
            found.setdefault(spec.dtype, []).append(spec.shape)
    return found


def held_bytes(trace: Trace) -> Mapping[MemoryCategory, int]:
    """Return what is in memory at the peak."""
    use = describe_memory(trace, select_window(trace))
    assert use is not None
    return use.held


@pytest.fixture(scope="module")
def served(root_dir: Path) -> Trace:
    return load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")


@pytest.mark.parametrize(
    ("precision", "dtype", "bits"),
    [("int8-weights", "int8", 8.0), ("int4-weights", "int4", 4.25), ("nvfp4", "float4_e2m1fn_x2", 4.5)],
)
def test_narrow_weights_take_less_memory_and_tied_ones_stay(
    served: Trace, precision: str, dtype: str, bits: float
) -> None:
    changed = with_precision(served, TargetPrecision(precision))
    assert set(weights_of(changed.trace)) == {dtype}
    before, after = held_bytes(served), held_bytes(changed.trace)
    embeddings = 2 * (50_257 + 1_024) * 768
    layers = before[MemoryCategory.PARAMETERS] - embeddings
    expected = embeddings + layers * bits / 16
    assert after[MemoryCategory.PARAMETERS] == pytest.approx(expected, rel=0.01)
    assert after.keys() == before.keys()
    assert any("share their weights with an embedding" in item for item in changed.warnings)
    validate(changed.trace)


def test_products_of_a_number_have_no_narrow_weights() -> None:
    """No torch runs them, but a damaged file may hold them."""
    number, matrix = TensorSpec("bfloat16", ()), TensorSpec("bfloat16", (16, 16))
    trace = Trace(
        strings=("aten::linear",),
        signatures=(Signature((number, matrix)), Signature((matrix, matrix))),
        ops=build_table(OpTable, 2, name=[0, 0], signature=[0, 1], phase=[Phase.FORWARD] * 2),
    )
    changed = with_precision(trace, TargetPrecision.NVFP4).trace
    assert changed.signatures[changed.ops.signature[0]] == Signature((number, matrix))


def test_weights_alone_convert_nothing_and_nvfp4_the_activations(served: Trace) -> None:
    assert not len(with_precision(served, TargetPrecision.INT4_WEIGHTS).casts.op)
    casts = with_precision(served, TargetPrecision.NVFP4).casts
    assert len(casts.op) == 48
    assert set(casts.written_bytes.tolist()) == {0.5}


def test_weights_of_whole_numbers_are_refused_in_training(recorded: Trace) -> None:
    with pytest.raises(InputError, match="is for inference"):
        with_precision(recorded, TargetPrecision.INT8_WEIGHTS)


def test_a_float32_trace_converts_no_weights_that_are_narrow(root_dir: Path) -> None:
    wide = load_trace(root_dir / "samples" / "gpt2_small-inference-fp32-b4-shapes.json.gz")
    half, narrow = (with_precision(wide, item).casts for item in (TargetPrecision.BF16, TargetPrecision.INT4_WEIGHTS))
    assert narrow.moved_bytes.sum() < half.moved_bytes.sum()


def test_decoding_with_narrow_weights_is_predicted_faster(decoding: Trace) -> None:
    """One row per product: what counts is how many bytes of weights are read."""
    gpus = [find_gpu(load_catalog(), "A100 SXM4 80GB")]
    scenarios = (
        Scenario(precision=item) for item in (None, TargetPrecision.INT8_WEIGHTS, TargetPrecision.INT4_WEIGHTS)
    )
    results = [run_analysis(decoding, load_catalog(), targets=gpus, scenario=item) for item in scenarios]
    times = [float((item.prediction.time_ns[:, 0] * item.workload.count).sum()) for item in results]
    assert times[0] > times[1] > times[2]


@pytest.fixture(scope="module")
def decoding() -> Trace:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(4))).bfloat16()
        data = torch.randn(1, 4096, dtype=torch.bfloat16)

    def step() -> None:
        with torch.inference_mode():
            model(data)

    return trace_iteration(step, device="meta", mode="inference", batch_size=1)


def test_gpus_without_the_units_are_named() -> None:
    catalog = load_catalog()
    gpus = [find_gpu(catalog, name) for name in ("A100 SXM4 80GB", "H100 SXM5 80GB", "B200 SXM")]
    (warning,) = explain_missing_units(TargetPrecision.NVFP4, gpus)
    assert warning.startswith("A100 SXM4 80GB, H100 SXM5 80GB have no nvfp4 matrix units")
    assert explain_missing_units(TargetPrecision.INT4_WEIGHTS, gpus) == ()
