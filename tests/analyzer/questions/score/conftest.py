"""A toy op model and measurement tables for the score's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.measurements.samples import Samples
from wavecast.analyzer.models.frame.intervals import IntervalTable, gpu_positions
from wavecast.analyzer.models.frame.model import Estimate, Model
from wavecast.analyzer.models.frame.parameters import Parameter, Values
from wavecast.analyzer.models.library import Fitted, Library
from wavecast.analyzer.questions.score.weights import Weights, choose_weights
from wavecast.analyzer.work.table import WorkTable
from wavecast.arrays import Codes, Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Gpu, Rate, chip_of
from wavecast.specs.match import find_gpu

TRAINED = ("A100 SXM4 80GB", "H100 SXM5 80GB")
BYTES = (1e6, 1e7, 1e8, 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Bytes to be moved."""

    moved_bytes: Floats
    host_floor_ns: Floats


def gpu(name: str) -> Gpu:
    return find_gpu(load_catalog(), name)


def simulate(problems: Copies, fleet: Fleet, values: Values, choice: Codes | None = None) -> Estimate:
    time_ns = values["factor"] * problems.moved_bytes * 1e9 / fleet.bandwidth_bytes_per_s
    return Estimate(time_ns=time_ns, features=np.empty((*time_ns.shape, 0)), choice=choice)


COPY_MODEL: Model[Copies] = Model(
    name="copy",
    parameters=(Parameter(name="factor", prior=1.0),),
    class_names=("all",),
    gpu_class=lambda fleet: np.zeros(len(fleet.gpus), dtype=np.int64),
    simulate=simulate,
)


def build_library(excluded: frozenset[str] = frozenset(), *, half_width: float = 0.1) -> Library:
    """A library whose one model takes bytes over bandwidth; trained on two chips."""
    trained = [gpu(name) for name in TRAINED]
    fitted = Fitted(
        model=COPY_MODEL,
        theta=np.zeros(1),
        network=None,
        interval=IntervalTable(
            half_width=np.full((1, 5), half_width),
            class_factor=np.ones((3, 1)),
            seen_ratio=np.full((1, len(trained)), 0.5),
            reference=1.0,
            positions=gpu_positions(build_fleet(trained)),
            is_declared=np.zeros(1, dtype=bool),
        ),
        anchor=np.array([1.0]),
        anchored_half_width=np.array([0.05]),
        foreign_half_width=np.array([np.nan]),
        trained_chips=frozenset(map(chip_of, trained)) - excluded,
    )
    return Library(fitted={"copy": fitted})


def build_samples(error: dict[str, float], **changes: Any) -> Samples[Copies]:
    """Copies of four sizes on each GPU, measured as the model says over 1 + the GPU's error."""
    gpus = tuple(gpu(name) for name in error)
    sizes = np.tile(np.array(BYTES), len(gpus))
    index = np.repeat(np.arange(len(gpus)), len(BYTES))
    bandwidth = np.array([item.memory_bandwidth_bytes_per_s for item in gpus])[index]
    factor = 1 + np.array(list(error.values()))[index]
    count = len(sizes)
    values: dict[str, Any] = {
        "table": "ops/copy.parquet",
        "model": "copy",
        "problems": Copies(moved_bytes=sizes, host_floor_ns=np.full(count, np.nan)),
        "gpus": gpus,
        "gpu": index,
        "measured_ns": sizes * 1e9 / bandwidth / factor,
        "family": np.full(count, "copy", dtype=object),
        "dtype": np.full(count, "fp32", dtype=object),
        "share": np.zeros(count),
        "work": WorkTable(flops=np.zeros(count), moved_bytes=sizes, rate=np.array([Rate.FP32] * count, dtype=object)),
    }
    return Samples(**(values | changes))


@pytest.fixture
def weights() -> Callable[..., Weights]:
    """Return weights of the toy library: `weights(left_out=Withheld.CHIPS)`."""

    def build(**options: Any) -> Weights:
        return choose_weights(load=build_library, **options)

    return build
