"""A model small enough to know its true parameters: memory time at a fraction of bandwidth, plus a floor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from wavecast.analyzer.measurements.samples import Samples, shape_share
from wavecast.analyzer.models.frame.model import Estimate, Model
from wavecast.analyzer.models.frame.parameters import Parameter, Values
from wavecast.arrays import Codes, Floats
from wavecast.mlp_weights.train.recipe import Recipe
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

GPUS = ("A100 SXM4 80GB", "H100 SXM5 80GB", "L40S", "B200 SXM (HGX, 180GB)")
TRUE = {"efficiency": 0.8, "floor_us": 3.0}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToyProblems:
    moved_bytes: Floats


def simulate(problems: ToyProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    memory_ns = problems.moved_bytes / (values["efficiency"] * fleet.bandwidth_bytes_per_s) * 1e9
    floor_ns = values["floor_us"] * 1e3
    time_ns = memory_ns + floor_ns
    features = np.stack([np.log(memory_ns / floor_ns), memory_ns / time_ns], axis=-1)
    return Estimate(time_ns=time_ns, features=features, sizes=features, choice=choice)


MODEL: Model[ToyProblems] = Model(
    name="toy",
    parameters=(Parameter(name="efficiency", prior=0.5), Parameter(name="floor_us", prior=2.0, class_spread=0.05)),
    class_names=("hbm", "gddr"),
    gpu_class=lambda fleet: np.where(fleet.has_hbm, 0, 1).astype(np.int64),
    simulate=simulate,
    feature_names=("memory over floor", "memory share"),
    size_names=("memory over floor", "memory share"),
)


def gpus() -> tuple[Gpu, ...]:
    catalog = load_catalog()
    return tuple(find_gpu(catalog, name) for name in GPUS)


def samples(count: int = 400, noise: float = 0.05, seed: int = 0) -> Samples[ToyProblems]:
    """Return the same `count` shapes on every GPU, times from the true parameters with log-normal noise."""
    random = np.random.default_rng(seed)
    moved = np.exp(random.uniform(np.log(1e4), np.log(1e9), count)).round()
    known = gpus()
    gpu = np.repeat(np.arange(len(known)), count)
    problems = ToyProblems(moved_bytes=np.tile(moved, len(known)))
    fleet = take_gpus(build_fleet(known), gpu)
    values = {name: np.full(len(gpu), value) for name, value in TRUE.items()}
    time_ns = simulate(problems, fleet, values, None).time_ns
    return Samples(
        table="ops/toy.parquet",
        model="toy",
        problems=problems,
        gpus=known,
        gpu=gpu,
        measured_ns=time_ns * np.exp(random.normal(0.0, noise, len(gpu))),
        family=np.full(len(gpu), "toy", dtype=object),
        dtype=np.full(len(gpu), "fp32", dtype=object),
        share=shape_share(problems.moved_bytes),
    )


RECIPE: Recipe[ToyProblems] = Recipe(
    model=MODEL,
    load=lambda _: [samples()],
    shape_share=0.5,
    rows_per_gpu=200,
    points=800.0,
    hidden=(8,),
)
