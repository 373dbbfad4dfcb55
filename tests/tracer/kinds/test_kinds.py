"""Kinds of script that people run, recorded with `wavecast record --shapes-only` as they are.

Six of them run with all tests; the others are marked `kinds`, and `.ci/full` runs them with the libraries they need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from wavecast import Trace, load_trace
from wavecast.analyzer.questions.analyze.command import analyze_command as analyze
from wavecast.analyzer.work import work_of
from wavecast.formats.trace.tables import Phase

FOLDER = Path(__file__).parent
TRAINING = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER})
INFERENCE = frozenset({Phase.FORWARD})
COUNTED = frozenset(
    f"aten::{name}{suffix}"
    for suffix in ("", "_backward")
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "convolution", "_cudnn_rnn", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
    )
)  # fmt: skip
"""What ops are called that torch's own counter knows, whole or as the products that they are made of."""
TOLERANCE = 0.03
"""A fused attention's gradient repeats a product that the one in parts keeps."""
GPU = "H100 SXM5 80GB"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A script, and what its trace must hold."""

    script: str
    flops: float
    """Of the products, convolutions and attention of one iteration; see `count_flops.py`."""
    ops: Mapping[str, int]
    """Ops that there must be, and how many."""
    reads: tuple[str, str, tuple[int, ...]]
    """An op, and dtype and shape of a tensor that it reads: the batch, in the precision of the compute."""
    libraries: tuple[str, ...] = ()
    is_light: bool = False
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    phases: frozenset[Phase] = TRAINING
    autocast: str | None = None
    modules: frozenset[str] = frozenset()
    on_cpu: tuple[str, ...] = ()
    """Arguments with which the script runs on a CPU."""
    ends: tuple[str, int] = ("optimizer", 1)
    """What ends an iteration, and how many times."""

    @property
    def mode(self) -> str:
        return "inference" if self.phases == INFERENCE else "training"


KINDS = (
    Kind(
        script="nanogpt",
        is_light=True,
        flops=6_039_797_760,
        ops={
            "Torch-Compiled Region: 0/0": 2, "CompiledFunctionBackward": 2, "aten::_fused_adamw_": 2,
            "aten::_scaled_dot_product_flash_attention": 8, "aten::_scaled_dot_product_flash_attention_backward": 8,
            "aten::_amp_foreach_non_finite_check_and_unscale_": 1,
        },
        reads=("aten::mm", "float16", (4 * 128, 128)),
        autocast="float16",
        modules=frozenset({"GPT", "GPT.h.3.attn.c_proj", "GPT.lm_head"}),
        on_cpu=("--device=cpu",),
    ),
    Kind(
        script="cpu_only",
        is_light=True,
        flops=2_290_089_984,
        ops={"aten::convolution": 2, "aten::convolution_backward": 2, "aten::native_dropout": 2},
        reads=("aten::convolution", "float32", (32, 1, 28, 28)),
        modules=frozenset({"LeNet.conv1", "LeNet.fc2"}),
    ),
    Kind(
        script="gan",
        is_light=True,
        flops=10_194_386_944,
        ops={"aten::convolution": 20, "aten::convolution_backward": 20, "aten::binary_cross_entropy": 3},
        reads=("aten::convolution", "float32", (16, 3, 64, 64)),
        modules=frozenset({"Generator.main.0", "Discriminator.main.0", "BCELoss"}),
        ends=("optimizer", 2),
    ),
    Kind(
        script="item_every_step",
        is_light=True,
        flops=135_004_160,
        ops={"aten::_local_scalar_dense": 13, "aten::linalg_vector_norm": 8, "aten::addmm": 3},
        reads=("aten::addmm", "float32", (64, 256)),
        modules=frozenset({"Sequential.6", "CrossEntropyLoss"}),
    ),
    Kind(
        script="kv_cache",
        is_light=True,
        flops=4_718_592,
        ops={"aten::index_put_": 8, "aten::_scaled_dot_product_efficient_attention": 4, "aten::_fused_rms_norm": 9},
        reads=("aten::_scaled_dot_product_efficient_attention", "bfloat16", (2, 4, 64, 32)),
        phases=INFERENCE,
        modules=frozenset({"Transformer.layers.3.wqkv"}),
        ends=("forward", 1),
    ),
    Kind(
        script="dlrm",
        is_light=True,
        flops=37_363_712,
        ops={"aten::_embedding_bag": 4, "aten::_embedding_bag_backward": 4, "aten::add_": 16, "aten::bmm": 3},
        reads=("aten::addmm", "float32", (128, 13)),
        modules=frozenset({"DLRM_Net.emb_l.3", "DLRM_Net.bot_l.0", "DLRM_Net.top_l.2"}),
        on_cpu=("--no-use-gpu",),
    ),
    Kind(
        script="lstm_manual_sgd",
        options=("--iteration-ends", "backward"),
        flops=3_515_200_000,
        ops={"aten::_cudnn_rnn": 1, "aten::_cudnn_rnn_backward": 1, "aten::add_": 11},
        reads=("aten::_cudnn_rnn", "float32", (35, 20, 200)),
        modules=frozenset({"RNNModel.rnn", "RNNModel.decoder"}),
        phases=TRAINING - {Phase.OPTIMIZER},
        ends=("backward", 1),
    ),
    Kind(
        script="data_parallel",
        flops=9_374_515_200,
        ops={"aten::convolution": 9, "aten::convolution_backward": 9, "aten::native_batch_norm": 9},
        reads=("aten::convolution", "float32", (32, 3, 32, 32)),
        modules=frozenset({"DataParallel.module.layers.2.conv1"}),
    ),
    Kind(
        script="ddp",
        environment={
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29531",
        },
        flops=2_617_294_848,
        ops={"aten::_scaled_dot_product_flash_attention": 2, "aten::native_layer_norm": 4},
        reads=("aten::addmm", "bfloat16", (16 * 64, 128)),
        autocast="bfloat16",
        modules=frozenset({"DistributedDataParallel.module.encoder.layers.1.self_attn"}),
    ),
    Kind(
        script="trainer_workers",
        libraries=("transformers", "accelerate"),
        flops=2_618_044_416,
        ops={"aten::_fused_adamw_": 2, "aten::_scaled_dot_product_efficient_attention": 4},
        reads=("aten::addmm", "bfloat16", (8 * 64, 128)),
        autocast="bfloat16",
        modules=frozenset({"BertForSequenceClassification.bert.encoder.layer.3.output.dense"}),
    ),
    Kind(
        script="diffusers_unet",
        libraries=("diffusers", "accelerate"),
        flops=13_564_313_600,
        ops={"aten::convolution": 35, "aten::convolution_backward": 35, "aten::native_group_norm": 27},
        reads=("aten::convolution", "float16", (8, 3, 32, 32)),
        autocast="float16",
        modules=frozenset({"UNet2DModel.down_blocks.1.attentions.0.to_q"}),
    ),
    Kind(
        script="lightning_resnet",
        libraries=("lightning",),
        flops=2_875_318_272,
        ops={"aten::convolution": 7, "aten::convolution_backward": 7, "aten::native_batch_norm": 4},
        reads=("aten::convolution", "bfloat16", (16, 3, 32, 32)),
        autocast="bfloat16",
        modules=frozenset({"Classifier.model.1.body.0"}),
    ),
    Kind(
        script="timm_vit",
        libraries=("timm", "torchvision"),
        flops=59_706_077_184,
        ops={"aten::_scaled_dot_product_flash_attention": 12, "aten::convolution": 1},
        reads=("aten::convolution", "bfloat16", (8, 3, 224, 224)),
        autocast="bfloat16",
        modules=frozenset({"VisionTransformer.blocks.11.attn.qkv"}),
        on_cpu=("--no-compile",),
    ),
    Kind(
        script="gcn",
        libraries=("torch_geometric",),
        flops=529_641_472,
        ops={"aten::scatter_add_": 8, "aten::native_dropout": 2},
        reads=("aten::mm", "float32", (2708, 500)),
        modules=frozenset({"GCN.conv1.lin"}),
    ),
    Kind(
        script="lora",
        libraries=("peft", "transformers"),
        flops=2_835_349_504,
        ops={"aten::_scaled_dot_product_flash_attention": 8, "aten::native_dropout": 32},
        reads=("aten::mm", "bfloat16", (4 * 128, 128)),
        modules=frozenset({"PeftModelForCausalLM.base_model.model.model.layers.3.self_attn.q_proj.lora_A.default"}),
    ),
    Kind(
        script="generate",
        libraries=("transformers",),
        flops=3_301_376,
        ops={"aten::cat": 19, "aten::_scaled_dot_product_flash_attention": 4},
        reads=("aten::_scaled_dot_product_flash_attention", "float16", (2, 2, 34, 32)),
        phases=INFERENCE,
        modules=frozenset({"LlamaForCausalLM.model.layers.3.self_attn.k_proj"}),
        ends=("forward", 1),
    ),
    Kind(
        script="faster_rcnn",
        libraries=("torchvision",),
        flops=314_980_574_208,
        ops={"aten::convolution": 76, "torchvision::nms": 2, "torchvision::roi_align": 4},
        reads=("aten::convolution", "float32", (2, 3, 320, 320)),
        modules=frozenset({"FasterRCNN.roi_heads.box_head.fc6"}),
    ),
)  # fmt: skip


def each_kind() -> list[Any]:
    return [
        pytest.param(
            kind,
            id=kind.script,
            marks=() if kind.is_light else pytest.mark.kinds,
        )
        for kind in KINDS
    ]


@pytest.fixture(params=each_kind())
def kind(request: pytest.FixtureRequest) -> Kind:
    """A kind of script whose libraries are here."""
    found: Kind = request.param
    missing = [name for name in found.libraries if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    return found


def test_it_is_recorded_and_predicted(kind: Kind, run: Callable[..., Any], tmp_path: Path) -> None:
    path = FOLDER / "scripts" / f"{kind.script}.py"
    done = run("--shapes-only", *kind.options, path, environment=dict(kind.environment))
    assert done.code == 0, done.stderr
    assert "Error: " not in done.stderr
    assert f"one {kind.mode} iteration, from shapes alone" in done.stderr  # on a progress bar's line where one runs
    trace = load_trace(tmp_path / "trace.json.gz")
    check_workload(kind, trace)
    counts = Counter(trace.strings[name] for name in trace.ops.name)
    assert {name: counts[name] for name in kind.ops} == kind.ops
    assert kind.reads in set(read_tensors(trace))
    assert kind.modules <= {trace.strings[row] for row in set(trace.ops.module.tolist()) - {-1}}
    assert count_flops(trace) == pytest.approx(kind.flops, rel=TOLERANCE)
    check_prediction(tmp_path / "trace.json.gz")


def check_workload(kind: Kind, trace: Trace) -> None:
    assert (trace.meta.capture, trace.meta.world_size) == ("shapes", None)
    assert trace.meta.workload.mode == kind.mode
    assert trace.meta.precision.autocast_dtype == kind.autocast
    assert {Phase(phase) for phase in trace.ops.phase} - {Phase.OTHER} == kind.phases


def read_tensors(trace: Trace) -> Any:
    for name, signature in zip(trace.ops.name, trace.ops.signature, strict=True):
        yield from ((trace.strings[name], item.dtype, item.shape) for item in trace.signatures[signature].tensors())


def count_flops(trace: Trace) -> float:
    calls = zip((trace.strings[name] for name in trace.ops.name), trace.ops.signature, strict=True)
    counted = ((name, row) for name, row in calls if name in COUNTED)
    works = (work_of(name, trace.signatures[row]) for name, row in counted)
    return float(sum(work.flops for work in works if work is not None))


def check_prediction(path: Path) -> None:
    """The trace is predicted on a GPU, nearly all of its ops by a model, and takes some time."""
    done = CliRunner().invoke(analyze, [str(path), "--to", GPU, "--format", "json"], prog_name="analyze")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (prediction,) = report["predictions"]
    assert prediction["gpu"] == GPU
    assert prediction["methods"].get("unmodelled", 0) < 0.02
    assert 0 < prediction["gpu_busy_ns"] <= prediction["iteration_ns"]
    assert prediction["fits"]


@pytest.mark.kinds
def test_its_flops_are_those_of_a_run_on_the_cpu(kind: Kind, tmp_path: Path) -> None:
    ends, parts = kind.ends
    paths = str(FOLDER / "count_flops.py"), str(FOLDER / "scripts" / f"{kind.script}.py")
    command = [sys.executable, paths[0], ends, str(parts), paths[1], *kind.on_cpu]
    environment = os.environ | dict(kind.environment)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) == pytest.approx(kind.flops, rel=1e-6)


def test_the_script_for_a_cpu_is_recorded_as_it_runs_there(run: Callable[..., Any], tmp_path: Path) -> None:
    (kind,) = (kind for kind in KINDS if kind.script == "cpu_only")
    done = run("--iterations", "2:4", "--stop", FOLDER / "scripts" / "cpu_only.py")
    assert done.code == 0, done.stderr
    assert "Train Epoch: 1 [0/512]" in done.stdout
    trace = load_trace(tmp_path / "trace.json.gz")
    assert int(trace.iterations.profiled.sum()) == 2
    assert kind.modules <= {trace.strings[row] for row in set(trace.ops.module.tolist()) - {-1}}
    assert count_flops(trace) == pytest.approx(2 * kind.flops, rel=TOLERANCE)
