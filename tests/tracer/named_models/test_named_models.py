"""`wavecast record --shapes-only`: models by name, without weights, downloads or a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from wavecast import load_trace
from wavecast.analyzer.whatif.axis.infer import infer_cached_tokens
from wavecast.analyzer.whatif.calls import layout_of
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer.commands.record import record

Record = Callable[..., Result]


@pytest.fixture
def record_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Run the command in `tmp_path`; what it raises, beyond its exit, is raised."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(record, ["--shapes-only", *arguments], catch_exceptions=False)


def names_of(trace: Trace, phase: Phase | None = None) -> list[str]:
    return [
        trace.strings[name]
        for name, own in zip(trace.ops.name, trace.ops.phase, strict=True)
        if phase is None or own == phase
    ]


def inputs_of(trace: Trace, op_name: str) -> list[tuple[Any, tuple[int, ...]]]:
    """Return dtype and shape of the first argument of each such op."""
    found = (
        trace.signatures[signature].arguments[0]
        for name, signature in zip(trace.ops.name, trace.ops.signature, strict=True)
        if trace.strings[name] == op_name
    )
    return [(item.dtype, tuple(item.shape)) for item in found]


class Classifier(torch.nn.Module):
    """A small convolution network; in training with a second head where `has_two_heads`, as Inception has."""

    def __init__(self, *, has_two_heads: bool = False, reads_values: bool = False) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 10) for _ in range(1 + has_two_heads))
        self.reads_values = reads_values
        self.pretrained_cfg = {"input_size": (3, 48, 32)}

    def forward(self, images: torch.Tensor) -> Any:
        features = self.convolution(images).mean((2, 3))
        if self.reads_values and features.sum() > 0:
            features = -features
        outputs = tuple(head(features) for head in self.heads)
        return outputs if self.training and len(outputs) > 1 else outputs[0]


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put a stand-in for timm in place; return what its last model was created with."""
    created: dict[str, Any] = {}
    known = {"tiny": {}, "tiny_fixed": {}, "two_heads": {"has_two_heads": True}, "values": {"reads_values": True}}

    def create_model(name: str, **options: Any) -> torch.nn.Module:
        created.update(options, name=name)
        return Classifier(**known[name])

    module: Any = ModuleType("timm")
    module.create_model = create_model
    module.is_model = known.__contains__
    module.list_models = lambda: list(known)
    module.get_pretrained_cfg = lambda name: SimpleNamespace(fixed_input_size=name == "tiny_fixed")
    monkeypatch.setitem(sys.modules, "timm", module)
    return created


@pytest.mark.usefixtures("timm")
def test_a_training_iteration_has_forward_backward_and_optimizer(record_shapes: Record, tmp_path: Path) -> None:
    result = record_shapes("--timm", "tiny", "--batch-size", "6", "--precision", "bf16")
    trace = load_trace(tmp_path / "trace.json.gz")
    assert result.exit_code == 0
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert (
        f"one training iteration of tiny, batch size 6, from shapes alone; {len(trace.ops.name)} ops" in result.stderr
    )
    assert trace.meta.capture == "shapes"
    workload = trace.meta.workload
    assert (workload.name, workload.mode, workload.batch_size, workload.samples_per_iteration) == (
        "tiny", "training", 6, 6,
    )  # fmt: skip
    assert inputs_of(trace, "aten::convolution") == [("bfloat16", (6, 3, 48, 32))]
    assert "aten::convolution_backward" in names_of(trace, Phase.BACKWARD)
    assert "aten::_foreach_addcdiv_" in names_of(trace, Phase.OPTIMIZER)
    assert "aten::zeros_like" not in names_of(trace), "the optimizer's state is not created in the recorded step"


@pytest.mark.usefixtures("timm")
def test_an_inference_iteration_is_forward_alone(record_shapes: Record, tmp_path: Path) -> None:
    result = record_shapes("--timm", "tiny", "--mode", "inference", "--name", "mine", "-o", "other.json")
    trace = load_trace(tmp_path / "other.json")
    assert result.exit_code == 0
    assert (trace.meta.workload.name, trace.meta.workload.mode) == ("mine", "inference")
    assert set(trace.ops.phase) == {Phase.FORWARD}
    assert inputs_of(trace, "aten::convolution") == [("float32", (8, 3, 48, 32))]


def test_nothing_is_downloaded_and_models_of_one_size_are_built_for_the_asked_one(
    record_shapes: Record, tmp_path: Path, timm: dict[str, Any]
) -> None:
    record_shapes("--timm", "tiny", "--image-size", "64")
    assert timm == {"name": "tiny", "pretrained": False}
    assert inputs_of(load_trace(tmp_path / "trace.json.gz"), "aten::convolution")[0][1] == (8, 3, 64, 64)
    record_shapes("--timm", "tiny_fixed", "--image-size", "64")
    assert timm == {"name": "tiny_fixed", "pretrained": False, "img_size": 64}


@pytest.mark.usefixtures("timm")
def test_every_head_is_trained(record_shapes: Record, tmp_path: Path) -> None:
    record_shapes("--timm", "two_heads")
    trace = load_trace(tmp_path / "trace.json.gz")
    assert names_of(trace, Phase.BACKWARD).count("aten::nll_loss_backward") == 2


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--shapes-only: expected a SCRIPT, --hf-config, --timm or --torchvision, got none"),
        (["--timm", "tiny", "--torchvision", "x"], 2, "got --timm and --torchvision"),
        (["--timm", "tiny", "train.py"], 2, "train.py: --timm takes no script and none of its options"),
        (["--timm", "tiny", "--stop"], 2, "--stop: --timm takes no script"),
        (["--timm", "tiny", "--iterations", "2:3"], 2, "--iterations: --timm takes no script"),
        (["--timm", "tinny"], 2, "timm has no model 'tinny': did you mean tiny"),
        (["--timm", "tiny", "--sequence-length", "9"], 2, "--sequence-length: tiny reads images: use --image-size"),
        (["--timm", "tiny", "--batch-size", "0"], 2, "--batch-size: expected 1 or more, got 0"),
        (["--timm", "tiny", "--image-size", "-1"], 2, "--image-size: expected 1 or more, got -1"),
        (["--timm", "tiny", "-o", "trace.txt"], 2, "expected a name that ends in .json or .json.gz"),
        (["--timm", "tiny", "--image-size", "2"], 1, "tiny cannot run on the meta device: RuntimeError: "),
        (["--timm", "values"], 1, "needs the values of a tensor, and a shape-only recording has none"),
    ],
)
def test_what_cannot_be_recorded_is_said_in_one_line(
    record_shapes: Record, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    result = record_shapes(*arguments)
    assert result.exit_code == code
    assert message in result.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--hf-config=config.json", "--timm=x", "--image-size=8", "--precision=fp32"])
def test_options_of_models_need_shapes_only(option: str) -> None:
    result = CliRunner().invoke(record, [option, "train.py"])
    assert result.exit_code == 2
    assert f"{option.partition('=')[0]} needs --shapes-only" in result.stderr


def test_a_script_is_needed_otherwise() -> None:
    result = CliRunner().invoke(record, [])
    assert result.exit_code == 2
    assert "Missing argument 'SCRIPT'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "library"),
    [
        (["--hf-config", "config.json"], "transformers"),
        (["--timm", "resnet50"], "timm"),
        (["--torchvision", "resnet50"], "torchvision"),
    ],
)
def test_a_missing_library_is_named(
    record_shapes: Record, monkeypatch: pytest.MonkeyPatch, arguments: list[str], library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    result = record_shapes(*arguments)
    assert (result.exit_code, result.stderr) == (
        2, f"Error: {library} is not installed: pip install {library}\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_part", "timm needs no_such_part, which is not installed: pip install no_such_part"),
        ("raise RuntimeError('operator nms does not exist')", "RuntimeError: operator nms does not exist"),
    ],
)
def test_a_library_that_does_not_load_says_why(
    record_shapes: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "timm.py").write_text(source)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    result = record_shapes("--timm", "resnet50")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr


def test_torchvision_models_are_built_without_weights(
    record_shapes: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = []

    def get_model(name: str, **options: Any) -> torch.nn.Module:
        created.append((name, options))
        return Classifier()

    names = ["resnet18", "vit_b_16", "inception_v3"]
    models = SimpleNamespace(get_model=get_model, list_models=lambda module: module and names)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    sizes = []
    for name in names:
        assert record_shapes("--torchvision", name, "--mode", "inference").exit_code == 0
        sizes.append(inputs_of(load_trace(tmp_path / "trace.json.gz"), "aten::convolution")[0][1][2:])
    assert sizes == [(224, 224), (224, 224), (299, 299)]
    assert created == [
        ("resnet18", {"weights": None}),
        ("vit_b_16", {"weights": None, "image_size": 224}),
        ("inception_v3", {"weights": None, "init_weights": False}),
    ]
    assert "has no model 'resnet'" in record_shapes("--torchvision", "resnet").stderr


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., str]:
    """Write a transformers configuration; skip where transformers or one of its parts is missing."""
    pytest.importorskip("transformers")
    try:
        import_module("transformers.models.auto")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"transformers does not load here: {error}")

    def write(architecture: str | None, model_type: str, **sizes: Any) -> str:
        config = {"model_type": model_type, "architectures": architecture and [architecture]} | sizes
        (tmp_path / "config.json").write_text(json.dumps(config))
        return "config.json"

    return write


SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 128, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.filterwarnings("default")
def test_a_transformers_config_is_trained_with_its_own_loss(
    record_shapes: Record, tmp_path: Path, write_config: Callable[..., str]
) -> None:
    path = write_config("LlamaForCausalLM", "llama", **SMALL, num_key_value_heads=2)
    result = record_shapes("--hf-config", path, "--precision", "bf16", "--sequence-length", "32", "--batch-size", "2")
    assert result.exit_code == 0, result.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    attention = "aten::_scaled_dot_product_flash_attention"
    assert inputs_of(trace, attention) == [("bfloat16", (2, 2, 32, 32))] * 2
    assert names_of(trace, Phase.BACKWARD).count(f"{attention}_backward") == 2
    assert trace.meta.workload.name == "LlamaForCausalLM"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("architecture", "model_type", "arguments", "message"),
    [
        ("BertModel", "bert", [], "BertModel computes no loss"),
        (None, "bert", [], "architectures: expected the model's class"),
        ("NoSuchModel", "bert", [], "has no NoSuchModel"),
        ("BertForMaskedLM", "no-such-type", [], "not a configuration that transformers can read"),
        ("BertForMaskedLM", "bert", ["--sequence-length", "999"], "has at most 128 positions here, got 999"),
        ("BertForMaskedLM", "bert", ["--image-size", "99"], "BertForMaskedLM reads no images"),
    ],
)
def test_configs_that_cannot_be_recorded(
    record_shapes: Record,
    write_config: Callable[..., str],
    architecture: str | None,
    model_type: str,
    arguments: list[str],
    message: str,
) -> None:
    result = record_shapes("--hf-config", write_config(architecture, model_type, **SMALL), *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr


TINY = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
TINY_TEXT = TINY | {"vocab_size": 100, "max_position_embeddings": 64}
TINY_IMAGE = TINY | {"image_size": 32, "patch_size": 8}
LLAMA = ("LlamaForCausalLM", "llama", TINY_TEXT | {"num_key_value_heads": 2})
MIXTRAL = (
    "MixtralForCausalLM", "mixtral",
    TINY_TEXT | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
)  # fmt: skip
WHISPER = (
    "WhisperForConditionalGeneration", "whisper",
    {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100,
        "max_source_positions": 20, "max_target_positions": 30, "num_mel_bins": 8, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    },
)  # fmt: skip
T5 = (
    "T5ForConditionalGeneration",
    "t5",
    {"num_layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 2, "vocab_size": 99},
)
LLAVA = (
    "LlavaForConditionalGeneration", "llava",
    {
        "image_token_index": 99, "vision_feature_select_strategy": "full",
        "vision_config": TINY_IMAGE | {"model_type": "clip_vision_model"},
        "text_config": LLAMA[2] | {"model_type": "llama"},
    },
)  # fmt: skip


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("model", "op", "shape"),
    [
        (LLAMA, "aten::embedding", (100, 32)),
        (
            ("GPT2LMHeadModel", "gpt2", {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100}),
            "aten::addmm",
            (96,),
        ),
        (("BertForMaskedLM", "bert", TINY_TEXT), "aten::native_layer_norm", (2, 16, 32)),
        (T5, "aten::mm", (32, 32)),
        (("ViTForImageClassification", "vit", TINY_IMAGE), "aten::convolution", (2, 3, 32, 32)),
        (
            ("CLIPModel", "clip", {"text_config": TINY_TEXT, "vision_config": TINY_IMAGE, "projection_dim": 24}),
            "aten::convolution",
            (2, 3, 32, 32),
        ),
        (WHISPER, "aten::convolution", (2, 8, 40)),
        (MIXTRAL, "aten::_grouped_mm", (64, 32)),
        (LLAVA, "aten::masked_scatter", (2, 33, 32)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and isinstance(value[0], str) else "",
)
def test_models_of_all_kinds_are_trained_and_run(
    record_shapes: Record, tmp_path: Path, write_config: Callable[..., str], model: Any, op: str, shape: tuple[int, ...]
) -> None:
    architecture, model_type, sizes = model
    path = write_config(architecture, model_type, **sizes)
    length = () if model_type == "vit" else ("--sequence-length", "16")
    for mode in ("training", "inference"):
        result = record_shapes("--hf-config", path, "--batch-size", "2", "--mode", mode, *length)
        assert result.exit_code == 0, result.stderr
        trace = load_trace(tmp_path / "trace.json.gz")
        assert shape in [item for _, item in inputs_of(trace, op)]
        assert ("aten::_foreach_addcdiv_" in names_of(trace, Phase.OPTIMIZER)) == (mode == "training")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_experts_get_equal_numbers_of_tokens(
    record_shapes: Record, tmp_path: Path, write_config: Callable[..., str], precision: str
) -> None:
    options = ("--batch-size", "2", "--sequence-length", "16", "--precision", precision)
    result = record_shapes("--hf-config", write_config(MIXTRAL[0], MIXTRAL[1], **MIXTRAL[2]), *options)
    assert result.exit_code == 0, result.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    assert names_of(trace, Phase.FORWARD).count("aten::_grouped_mm") == 4
    assert names_of(trace, Phase.BACKWARD).count("aten::_grouped_mm") == 8
    name = {"bf16": "bfloat16", "fp32": "float32"}[precision]
    assert set(inputs_of(trace, "aten::_grouped_mm")) >= {(name, (64, 32)), (name, (64, 64))}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("model", "key"), [(LLAMA, (2, 2, 21, 16)), (WHISPER, (2, 2, 21, 16))], ids=["causal", "encoder and decoder"]
)
def test_a_generated_token_attends_to_the_cached_ones(
    record_shapes: Record, tmp_path: Path, write_config: Callable[..., str], model: Any, key: tuple[int, ...]
) -> None:
    architecture, model_type, sizes = model
    path = write_config(architecture, model_type, **sizes)
    result = record_shapes("--hf-config", path, "--mode", "inference", "--cached-tokens", "20", "--batch-size", "2")
    assert result.exit_code == 0, result.stderr
    assert "a serving engine runs it otherwise: wavecast serve MODEL" in result.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    attended = [
        tuple(tuple(item.shape) for item in trace.signatures[signature].arguments[:2])
        for name, signature in zip(trace.ops.name, trace.ops.signature, strict=True)
        if trace.strings[name] == "aten::_scaled_dot_product_efficient_attention"
    ]
    assert attended.count(((2, 2, 1, 16), key)) == 2
    written = [shapes for _, shapes in inputs_of(trace, "aten::index_copy_")]
    assert written.count(key) == 4, "keys and values of two layers are written in place"
    joined = [
        tuple(item.shape)
        for name, signature in zip(trace.ops.name, trace.ops.signature, strict=True)
        if trace.strings[name] == "aten::cat"
        for item in layout_of(trace.signatures[signature]).inputs
    ]
    assert (2, 2, 20, 16) not in joined, "the cache is not copied"
    assert infer_cached_tokens(trace) == (20, 1)


@pytest.mark.filterwarnings("default")
def test_autocast_attention_optimizer_and_checkpoints_are_as_asked(
    record_shapes: Record, tmp_path: Path, write_config: Callable[..., str]
) -> None:
    path = write_config(LLAMA[0], LLAMA[1], **LLAMA[2])
    small = ("--hf-config", path, "--batch-size", "2", "--sequence-length", "16")
    plain = record_shapes(*small, "--autocast", "bf16", "--attention", "eager", "--optimizer", "sgd")
    assert plain.exit_code == 0, plain.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    assert ("bfloat16", (32, 32)) in inputs_of(trace, "aten::mm")
    assert "aten::_softmax" in names_of(trace)
    assert "aten::_foreach_addcdiv_" not in names_of(trace)
    again = record_shapes(*small, "--gradient-checkpointing", "--optimizer", "adamw-fused")
    assert again.exit_code == 0, again.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    assert "aten::_fused_adamw_" in names_of(trace, Phase.OPTIMIZER)
    assert names_of(trace, Phase.BACKWARD).count("aten::_scaled_dot_product_efficient_attention") == 2
