"""Iterations whose joules a meter told, beside what is predicted of them; see `energy_check`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
import wavecast
from scipy.optimize import least_squares
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.decision.electricity import PowerDraw
from wavecast.analyzer.iteration.energy import workload_power
from wavecast.analyzer.iteration.gpu_rows import rank_gpus
from wavecast.analyzer.models.frame.energy import FITTED, PowerConstants
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.prediction.predict import predict_shapes
from wavecast.analyzer.prediction.prediction import Prediction
from wavecast.analyzer.prediction.workload import GpuWorkload, shape_workload
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

NAMES: Final = PowerConstants.__slots__
NOTHING: Final = PowerConstants(**dict.fromkeys(NAMES, 0.0))
RUN_SPREAD: Final = 0.1
"""Of a run's power about the form, natural log."""
CARD_RUNS: Final = 14.0
"""What the runs on one of other people's cards count for together; our recordings count for one each."""
CACHED_TOKENS: Final = 140
"""Of which the middle of what was generated."""
_SIZES: Final = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
)  # fmt: skip
MODELS: Final = {
    "TinyLlama-1.1B": ("llama", "LlamaForCausalLM", (2048, 5632, 22, 32, 4, 32000)),
    "Qwen2-1.5B": ("qwen2", "Qwen2ForCausalLM", (1536, 8960, 28, 12, 2, 151936)),
    "Qwen2.5-3B": ("qwen2", "Qwen2ForCausalLM", (2048, 11008, 36, 16, 2, 151936)),
    "Qwen2-7B": ("qwen2", "Qwen2ForCausalLM", (3584, 18944, 28, 28, 4, 152064)),
    "Qwen2.5-7B": ("qwen2", "Qwen2ForCausalLM", (3584, 18944, 28, 28, 4, 152064)),
    "Yi-1.5-6B": ("llama", "LlamaForCausalLM", (4096, 11008, 32, 32, 4, 64000)),
    "Mistral-7B": ("mistral", "MistralForCausalLM", (4096, 14336, 32, 32, 8, 32768)),
    "Phi-3-mini": ("phi3", "Phi3ForCausalLM", (3072, 8192, 32, 32, 32, 32064)),
}
"""Type, class, and `_SIZES`."""
TIED: Final = ("Qwen2-1.5B", "Qwen2.5-3B")
"""Models whose head is their embedding."""
SAMPLES: Final = {"resnet50": ("resnet50-training-fp32-b32", 32), "bert_base": ("bert_base-training-fp32-b16", 16)}
WITH_TF32: Final = ("A40",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Hold a metered iteration and what is predicted of it, whatever the constants."""

    kind: str
    """Where the prediction comes from: `source`, `moved`, `shapes`, or `public`."""
    group: str
    """What is left out together: the network, of public runs the card."""
    gpu: str
    name: str
    """The network and its batch."""
    measured_ns: float
    measured_j: float
    predicted_ns: float
    low_ns: float | None
    high_ns: float | None
    busy_share: float
    """Of the measured time, what kernels are predicted to take."""
    draw: PowerDraw
    """By `NOTHING`: what idles, and what no constant is on."""
    unit_j: Floats
    """What a constant of 1 adds to what switches, of each of `NAMES`."""

    def power(self, constants: PowerConstants) -> PowerDraw:
        """Return what the iteration draws with these constants."""
        return replace(self.draw, work_j=self.draw.work_j + float(self.unit_j @ np.array(astuple(constants))))

    @property
    def fitted_ns(self) -> float:
        """Return the time at which power is compared: the measured one, but of kernels that are predicted, theirs."""
        return self.predicted_ns if self.kind == "public" else self.measured_ns

    def error(self, constants: PowerConstants, *, at_time: bool) -> float:
        """Return predicted over measured joules less 1; `at_time`: of the mean power, each at its own time."""
        time_ns = self.fitted_ns if at_time else self.predicted_ns
        measured_j = self.measured_j * (time_ns / self.measured_ns if at_time else 1.0)
        return self.power(constants).joule(time_ns) / measured_j - 1.0

    def is_inside(self, constants: PowerConstants, *, at_time: bool) -> bool:
        """Say whether the measured joules lie in their interval, predicted time and all or at the measured one."""
        ends = (self.predicted_ns, self.low_ns, self.high_ns)
        low, high = self.power(constants).interval_j(*((self.measured_ns, None, None) if at_time else ends))
        return low <= self.measured_j <= high


def _drawn(workload: GpuWorkload, prediction: Prediction, library: Library, column: int) -> dict[str, Any]:
    base = workload_power(workload, prediction, library, NOTHING)[column]
    ones = (replace(NOTHING, **{name: 1.0}) for name in NAMES)
    units = [workload_power(workload, prediction, library, one)[column].work_j - base.work_j for one in ones]
    return {"draw": base, "unit_j": np.array(units)}


def own_runs(data: Path) -> Iterator[Run]:
    """Yield each recording on its GPU, moved to the other one, and from its shapes at the measured time."""
    catalog, library = load_catalog(), load_library()
    rows = [row for row in pq.read_table(data / "own/iterations.parquet").to_pylist() if not row["compiled"]]
    metered = {(row["workload"], row["gpu"]): row for row in rows}
    gpus = [find_gpu(catalog, name) for name in dict.fromkeys(row["gpu"] for row in rows)]
    for row in rows:
        result = run_analysis(wavecast.load_trace(data / "own/traces" / row["trace"]), catalog, targets=gpus)
        ranked = {item.gpu: item for item in rank_gpus(result)}
        shapes = shape_workload(result.trace, result.window)
        for column, gpu in enumerate(result.prediction.fleet.gpus):
            meter, found, is_source = metered.get((row["workload"], gpu.name)), ranked[gpu.name], gpu.name == row["gpu"]
            if meter is None:
                continue
            time_ns = meter["ms"] * 1e6
            same = {
                "group": row["workload"].split("-")[0],
                "name": row["workload"],
                "gpu": gpu.name,
                "measured_ns": time_ns,
                "measured_j": meter["joules"],
                "busy_share": found.gpu_busy_ns / time_ns,
            }
            yield Run(
                kind="source" if is_source else "moved",
                predicted_ns=found.iteration_ns,
                low_ns=found.iteration_low_ns,
                high_ns=found.iteration_high_ns,
                **same,
                **_drawn(result.run.workload, result.run.prediction, library, column),
            )
            if is_source:
                drawn = _drawn(shapes, predict_shapes(shapes, [gpu], library), library, 0)
                yield Run(kind="shapes", predicted_ns=time_ns, low_ns=None, high_ns=None, **same, **drawn)


def public_runs() -> Iterator[Run]:
    """Yield each run of `board_power.csv` but those that wait."""
    library = load_library()
    with TemporaryDirectory() as folder:
        for row in metered_rows():
            if row["network"] == "waiting":
                continue
            report = _trained(row) if row["network"] in SAMPLES else _generated(row, Path(folder))
            found, result, time_ns = report.report.predictions[0], report.analysis, float(row["iteration_ms"]) * 1e6
            yield Run(
                kind="public",
                group=row["gpu"],
                gpu=row["gpu"],
                name=f"{row['network']}, batch {row['batch']}",
                measured_ns=time_ns,
                measured_j=float(row["mean_w"]) * time_ns * 1e-9,
                predicted_ns=found.iteration_ns,
                low_ns=found.iteration_low_ns,
                high_ns=found.iteration_high_ns,
                busy_share=found.gpu_busy_ns / time_ns,
                **_drawn(result.run.workload, result.run.prediction, library, 0),
            )


def metered_rows() -> list[dict[str, str]]:
    """Return the rows of `board_power.csv`."""
    with Path(__file__).with_name("board_power.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _trained(row: dict[str, str]) -> wavecast.IterationReport:
    """Predict a network of the samples at the batch and the power limit of a row."""
    sample, recorded = SAMPLES[row["network"]]
    batch, gpu = int(row["batch"]), find_gpu(load_catalog(), row["gpu"])
    limit = "" if float(row["limit_w"]) >= gpu.tdp_w else f"@{row['limit_w']}W"
    return wavecast.analyze(
        Path("samples") / f"{sample}-shapes.json.gz",
        to=[f"{gpu.name}{limit}"],
        batch=None if batch == recorded else batch,
        sequence_length=384 if row["network"] == "bert_base" else None,
        precision="tf32" if row["gpu"] in WITH_TF32 else None,
    )


def _generated(row: dict[str, str], folder: Path) -> wavecast.IterationReport:
    """Predict one token of a model at the measured time; records the model's shapes, which needs transformers."""
    trace = folder / f"{row['network']}-{row['batch']}.json.gz"
    if not trace.exists():
        kind, name, sizes = MODELS[row["network"]]
        config = {"model_type": kind, "architectures": [name], **dict(zip(_SIZES, sizes, strict=True))}
        config |= {"tie_word_embeddings": row["network"] in TIED, "max_position_embeddings": 4096, "pad_token_id": 0}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        words = ["--hf-config", str(folder / "config.json"), "--batch-size", row["batch"], "-o", str(trace)]
        fixed = ["--mode", "inference", "--precision", "fp16", "--cached-tokens", str(CACHED_TOKENS)]
        command = [sys.executable, "-m", "wavecast", "record", "--shapes-only", *fixed, *words]
        subprocess.run(command, check=True, capture_output=True)
    return wavecast.analyze(trace, to=[row["gpu"]], observed={row["gpu"]: f"{row['iteration_ms']} ms"})


def fit_constants(runs: Sequence[Run]) -> PowerConstants:
    """Return the constants by which the power of source and public runs comes out best, robustly, at `fitted_ns`."""
    kept = [run for run in runs if run.kind in ("source", "public")]
    count = Counter(run.gpu for run in kept)
    weight = np.array([(CARD_RUNS / count[run.gpu]) ** 0.5 if run.kind == "public" else 1.0 for run in kept])

    def residuals(values: Floats) -> Floats:
        constants = _constants(values)
        errors = [np.log1p(run.error(constants, at_time=True)) for run in kept]
        return np.asarray(weight * errors / RUN_SPREAD)

    start = np.array(astuple(FITTED))
    found = least_squares(residuals, start, bounds=(0.0, np.inf), x_scale=start, loss="soft_l1", diff_step=1e-3)
    return _constants(found.x)


def _constants(values: Floats) -> PowerConstants:
    return PowerConstants(**dict(zip(NAMES, values.tolist(), strict=True)))
