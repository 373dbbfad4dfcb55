"""Networks on other people's cards: what their boards drew, beside what is predicted; see `energy_check`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import wavecast
from wavecast.analyzer.iteration.decision.electricity import PowerDraw
from wavecast.analyzer.iteration.energy import draw_power
from wavecast.analyzer.iteration.report import GpuPrediction
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.frame.energy import PowerConstants, waiting_w
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import find_gpu

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
SAMPLES: Final = {"resnet50": ("resnet50-training-fp32-b32", 32), "bert_base": ("bert_base-training-fp32-b16", 16)}
WITH_TF32: Final = ("A40",)
TIED: Final = ("Qwen2-1.5B", "Qwen2.5-3B")
"""Models whose head is their embedding."""
PRIOR: Final = PowerConstants(
    stalled_picojoule=500.0, flop_overhead=1.2, byte_overhead=1.2, gddr_idle_share=0.14, gddr_idle_w_per_gb=1.0
)
"""What a fit starts from: overheads as ViT-B/16's speed under power caps says (`USUAL_DRAW` in gpu_physics.py), idling
as the meters of waiting cards do, the energy of stalled clocks assumed: a third of what fused multiply-adds take."""
SPREAD: Final = PowerConstants(
    stalled_picojoule=300.0, flop_overhead=0.3, byte_overhead=0.3, gddr_idle_share=0.03, gddr_idle_w_per_gb=0.4
)
"""How far from it each is taken to be."""
RUN_SPREAD: Final = 0.1
"""Of a run's power about the form, natural log."""
RUNS_OF_A_CARD: Final = 3.0
"""As many as a card's runs count together: they share most of their error."""
_LEAST: Final = (0.0, 0.3, 0.3, 0.03, 0.0)
_MOST: Final = (3000.0, 3.0, 3.0, 0.4, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Hold a measured run and what is predicted of it."""

    gpu: str
    network: str
    batch: int
    limit_w: float
    measured_ns: float
    measured_j: float
    found: GpuPrediction
    analysis: Analysis
    power: PowerDraw
    """As shipped, or with constants from runs on other cards."""

    @property
    def watts(self) -> float:
        """Return predicted over measured power, each with its own time."""
        return self.power.joule(self.found.iteration_ns) / self.found.iteration_ns * self.measured_ns / self.measured_j

    @property
    def watts_at_time(self) -> float:
        """Return predicted over measured power with the measured time of an iteration."""
        return self.power.joule(self.measured_ns) / self.measured_j

    @property
    def energy(self) -> float:
        """Return predicted over measured energy."""
        return self.power.joule(self.found.iteration_ns) / self.measured_j

    def is_inside(self, half_width: float, *, at_time: bool) -> bool:
        """Say whether the measured energy lies in its interval, predicted time and all or at the measured one."""
        power, row = replace(self.power, half_width=half_width), self.found
        ends = (row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns)
        low, high = power.interval_j(*((self.measured_ns, None, None) if at_time else ends))
        return low <= self.measured_j <= high


def check_networks(folder: Path) -> Iterator[Outcome]:
    """Yield each measured run beside its prediction; `folder` holds traces that are recorded on the way."""
    with (Path(__file__).with_name("board_power.csv")).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["network"] == "waiting":
            idle = float(waiting_w(build_fleet([find_gpu(load_catalog(), row["gpu"])]))[0])
            print(f"{row['gpu']}, waiting for its host: {float(row['mean_w']):.0f} W measured, {idle:.0f} W idle")
        else:
            found = _trained(row) if row["network"] in SAMPLES else _generated(row, folder)
            yield _compare(row, found)


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
    """Predict one token of a model at the measured time."""
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


def _compare(row: dict[str, str], report: wavecast.IterationReport) -> Outcome:
    """Print a prediction beside what was measured, and return both."""
    found = report.report.predictions[0]
    power, watts, time_ns = found.power, float(row["mean_w"]), float(row["iteration_ms"]) * 1e6
    assert power is not None
    assert found.mean_power_w is not None
    energy = watts * time_ns * 1e-9
    print(
        f"{found.gpu}, {row['network']} batch {row['batch']}: {watts:.0f} W measured, {found.mean_power_w:.0f} "
        f"predicted; {time_ns / 1e6:.1f} ms, {found.iteration_ns / 1e6:.1f}; {energy:.1f} J, {found.energy_j:.1f} "
        f"({found.energy_low_j:.1f}-{found.energy_high_j:.1f})"
    )
    return Outcome(
        gpu=row["gpu"],
        network=row["network"],
        batch=int(row["batch"]),
        limit_w=float(row["limit_w"]),
        measured_ns=time_ns,
        measured_j=energy,
        found=found,
        analysis=report.analysis,
        power=power,
    )


def fit_constants(outcomes: Sequence[Outcome]) -> PowerConstants:
    """Return the constants by which the runs' power comes out best, each card counted alike.

    Least squares of ln(predicted / measured power) at the predicted time of each, with priors (`PRIOR`, `SPREAD`).
    """
    from scipy.optimize import least_squares

    prior, spread = np.array(astuple(PRIOR)), np.array(astuple(SPREAD))
    runs = Counter(item.gpu for item in outcomes)

    def residuals(values: Floats) -> Floats:
        constants = PowerConstants(**dict(zip(PowerConstants.__slots__, values.tolist(), strict=True)))
        errors = [
            np.log(with_constants(item, constants).watts) / RUN_SPREAD * np.sqrt(RUNS_OF_A_CARD / runs[item.gpu])
            for item in outcomes
        ]
        return np.array([*errors, *((values - prior) / spread)])

    found = least_squares(residuals, prior, bounds=(_LEAST, _MOST), diff_step=1e-3, xtol=1e-3, ftol=1e-3)
    return PowerConstants(**dict(zip(PowerConstants.__slots__, found.x.tolist(), strict=True)))


def with_constants(outcome: Outcome, constants: PowerConstants) -> Outcome:
    """Return a run as predicted with other constants."""
    return replace(outcome, power=draw_power(outcome.analysis, constants)[0])


def left_out(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Print what the runs on all cards say of the constants, and return each run by those of the other cards."""
    print(f"All cards: {_words(fit_constants(outcomes))}")
    found = []
    for gpu in dict.fromkeys(item.gpu for item in outcomes):
        constants = fit_constants([item for item in outcomes if item.gpu != gpu])
        print(f"Without {gpu}: {_words(constants)}")
        found += [with_constants(item, constants) for item in outcomes if item.gpu == gpu]
    return found


def _words(constants: PowerConstants) -> str:
    return ", ".join(f"{name} {getattr(constants, name):.2f}" for name in PowerConstants.__slots__)
