"""What every simulator says of a spread of problems on made-up GPUs of each generation.

The times and features are those of `golden/*.json`: a change to a model's equations shows here as the ratios by which
its times move. `pytest tests/analyzer/models --rewrite-golden` accepts what the models say now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.models.attention.problems import AttentionProblems
from wavecast.analyzer.models.attention_backward.problems import BackwardProblems
from wavecast.analyzer.models.convolution.problems import problems_of_dims
from wavecast.analyzer.models.frame.model import Estimate, Model
from wavecast.analyzer.models.frame.parameters import prior_scale, resolve, theta_size
from wavecast.analyzer.models.frame.problems import RATES, as_columns, problem_columns
from wavecast.analyzer.models.matmul.problems import FORMATS, MatmulProblems
from wavecast.analyzer.models.matmul_simt.problems import MatmulSimtProblems
from wavecast.analyzer.models.recurrent.problems import RecurrentProblems
from wavecast.analyzer.models.registry import OP_MODELS, load_model
from wavecast.analyzer.models.vector.problems import VectorKernel, VectorProblems
from wavecast.analyzer.work.work import ConvolutionDims, Direction
from wavecast.arrays import Floats
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Gpu, Rate

from ..conftest import build_gpu

GOLDEN = Path(__file__).with_name("golden")
DIGITS = 7
TOLERANCE = 1e-5
"""Of what single precision and other mathematical libraries may change."""


def made_up(name: str, capability: str, memory: str, size: float, **rates: float) -> Gpu:
    """Return a GPU whose every figure is its own multiple of the builder's."""
    peaks = {Rate.FP32: 10e12 * size, Rate.FP64: 0.3e12 * size} | {
        Rate[unit.upper()]: tera * 1e12 for unit, tera in rates.items()
    }
    return build_gpu(
        name=name,
        vendor="AMD" if capability.startswith("gfx") else "NVIDIA",
        compute_capability=capability,
        memory_type=memory,
        sm_count=round(60 * size) + 7,
        fp32_lanes_per_sm=64 if capability in ("6.0", "7.0", "8.0") else 128,
        boost_clock_hz=(1.3 + 0.11 * size) * 1e9,
        base_clock_hz=(1.0 + 0.05 * size) * 1e9,
        matrix_clock_hz=(1.25 + 0.1 * size) * 1e9,
        memory_bandwidth_bytes_per_s=(0.35 + 0.6 * size) * (1e12 if memory.startswith("HBM") else 4e11),
        l2_cache_bytes=(3.0 + 17.0 * size) * (0.2 if memory in ("GDDR5X", "HBM2", "GDDR6") else 1.0) * 1e6,
        max_threads_per_sm=1536 if capability == "8.6" else 2048,
        warp_size=64 if capability.startswith("gfx") else 32,
        tdp_w=150.0 + 170.0 * size,
        peak_flops_per_s=peaks,
    )


FLEET = build_fleet(
    [
        made_up("GeForce of Pascal", "6.1", "GDDR5X", 0.9, fp16=0.14),
        made_up("Pascal with HBM", "6.0", "HBM2", 0.95, fp16=19),
        made_up("Volta", "7.0", "HBM2", 1.4, fp16=28, matrix_fp16=110),
        made_up("Turing", "7.5", "GDDR6", 0.8, fp16=16, matrix_fp16=64, matrix_int8=128),
        made_up("Ampere", "8.0", "HBM2e", 1.7, matrix_tf32=150, matrix_fp16=300, matrix_bf16=310, matrix_int8=600),
        made_up("Small RTX", "8.6", "GDDR6", 0.6, matrix_tf32=6, matrix_fp16=52, matrix_bf16=53, matrix_int8=104),
        made_up("Ada", "8.9", "GDDR6", 2.1, matrix_tf32=180, matrix_fp16=360, matrix_bf16=362, matrix_fp8=720),
        made_up("Hopper", "9.0", "HBM3", 2.2, matrix_tf32=450, matrix_fp16=950, matrix_bf16=960, matrix_fp8=1900),
        made_up(
            "Blackwell", "10.0", "HBM3e", 2.4, matrix_tf32=1100, matrix_bf16=2200, matrix_fp8=4400, matrix_fp4=8800
        ),
        made_up("GeForce RTX of Blackwell", "12.0", "GDDR7", 2.6, matrix_tf32=100, matrix_fp16=200, matrix_bf16=210),
        made_up("Instinct", "gfx942", "HBM3", 3.0, matrix_fp32=160, matrix_fp16=1300, matrix_bf16=1300),
    ]
)
COUNT = 48
OTHER_DIMS = (40.0, 72.0, 96.0, 112.0, 256.0)
"""Of heads, which no or few kernels are made for."""


def sweep(low: float, high: float, step: float) -> Floats:
    """Return whole sizes from low to high, evenly in logarithms, in an order of their own."""
    return np.round(low * (high / low) ** (np.arange(1, COUNT + 1) * step % 1.0))


def turns(*values: float, of: int = 1) -> Any:
    """Return the values one after the other, again and again, each `of` times."""
    return np.array(values)[np.arange(COUNT) // of % len(values)]


def products(names: tuple[str, ...]) -> MatmulProblems:
    kinds = [FORMATS[names[at % len(names)]] for at in range(COUNT)]
    sizes = (sweep(1, 9000, 0.618), sweep(8, 9000, 0.414), sweep(16, 17000, 0.732))
    m, n, k = (np.where(turns(1, 1, 0) > 0, -(-size // 16) * 16, size) for size in sizes)
    return MatmulProblems(
        batch=turns(1, 1, 1, 12, of=2),
        m=m,
        n=n,
        k=k,
        left_bytes=np.array([kind.left_bytes for kind in kinds]),
        right_bytes=np.array([kind.right_bytes for kind in kinds]),
        out_bytes=turns(2.0, 4.0, of=3),
        rate=np.array([RATES.index(kind.rate) for kind in kinds]),
        kind=np.array([int(kind.kind) for kind in kinds]),
        quantized=np.array([int(kind.is_quantized) for kind in kinds]),
        copies=turns(6.0, 1.0, of=5),
        distinct=np.ones(COUNT),
        layout=np.zeros(COUNT, dtype=np.int64),
        grouped=np.zeros(COUNT, dtype=np.int64),
        lone=np.zeros(COUNT, dtype=np.int64),
    )


def simt_products() -> MatmulSimtProblems:
    return MatmulSimtProblems(
        batch=turns(1, 1, 8),
        m=sweep(1, 6000, 0.618),
        n=sweep(4, 9000, 0.414),
        k=sweep(16, 9000, 0.732),
        element_bytes=turns(4.0, 4.0, 4.0, 8.0),
        rate=turns(*([RATES.index(Rate.MATRIX_FP32)] * 3), RATES.index(Rate.FP64)).astype(np.int64),
        contiguous=turns(1, 0, of=2),
        turned=turns(0, 0, of=2).astype(np.int64),
        host_floor_ns=turns(0.0, 0.0, 25e3, np.nan),
        host_ratio=turns(1.0, 1.2, of=3),
        paused=turns(0, 0, of=2).astype(np.int64),
        has_bias=turns(0, 1, of=2).astype(np.int64),
        before_bytes=np.zeros(COUNT),
        copies=turns(6.0, 1.0, of=5),
    )


def attentions(*, is_decode: bool, dims: tuple[float, ...] = (64.0, 128.0, 192.0)) -> AttentionProblems:
    queries = np.ones(COUNT) if is_decode else sweep(2, 9000, 0.618)
    kv_heads = turns(1.0, 8.0, 4.0)
    return AttentionProblems(
        batch=sweep(1, 300 if is_decode else 20, 0.414),
        heads=kv_heads * turns(1.0, 4.0, 1.0, 48.0, 12.0),
        kv_heads=kv_heads,
        queries=queries,
        keys=np.maximum(sweep(20, 30_000, 0.732), queries),
        query_dim=turns(*dims, of=3),
        value_dim=np.minimum(turns(*dims, of=3), 128.0),
        window=turns(0.0, 0.0, 0.0, 700.0),
        is_causal=turns(1, 0, 1),
        has_dropout=turns(0, 0, 1, of=3),
        kernel=turns(0, 1, 2, 2),
        arithmetic=turns(0, 3, 1, 0, 2, of=2),
        kv_bytes=turns(2.0, 1.0, 2.0, of=2),
        dispatch=turns(0, 1, 0, of=2),
        planned_kv_heads=np.zeros(COUNT),
        copies=turns(1.0, 6.0, of=4),
    )


def gradients() -> BackwardProblems:
    forward = attentions(is_decode=False)
    return BackwardProblems(
        **problem_columns(replace(forward, kernel=turns(0, 4, 3, 5), kv_bytes=turns(2.0, 2.0, 1.0, of=2))),
        is_deterministic=turns(0, 1, of=5),
        is_block_scaled=turns(0, 0, 1, of=7),
        lacks_clearing=turns(0, 1, of=3),
    )


def moves() -> VectorProblems:
    rows, columns = sweep(1, 60_000, 0.618), sweep(16, 40_000, 0.414)
    read = rows * columns * turns(2.0, 4.0, 8.0, of=2)
    return VectorProblems(
        kind=np.arange(COUNT) % len(VectorKernel),
        read_bytes=read,
        written_bytes=read * turns(1.0, 0.5, of=5),
        elements=rows * columns,
        rows=rows,
        columns=columns,
        flops=rows * columns * turns(1.0, 40.0, of=7),
        launches=turns(1.0, 1.0, 2.0),
        moved_since_bytes=turns(0.0, 30e6, np.inf),
        host_floor_ns=turns(0.0, 0.0, 0.0, 30e3, np.nan),
        host_ratio=turns(1.0, 1.4, of=4),
        index_operations=turns(0.0, 0.0, 18.0),
        sector_bytes=read * turns(0.0, 0.0, 3.0, of=3),
        scattered=turns(0.0, 0.0, 1.0, of=4),
        in_turn=turns(1.0, 1.0, 4.0),
        before_bytes=read * turns(0.0, 0.0, 0.0, 1.0, of=2),
        before_sector_bytes=np.zeros(COUNT),
        is_by_profiler=np.zeros(COUNT),
        is_stand_in=turns(0.0, 0.0, 1.0),
        loads=turns(1.0, 1.0, 2.0, of=2),
        functions=turns(0.0, 0.0, 1.0, 2.0, of=4),
        link_us=turns(0.0, 0.0, 0.0, 0.4, of=3),
    )


def convolutions() -> Any:
    batch, inner, outer = (
        size.astype(int).tolist() for size in (sweep(1, 200, 0.618), sweep(3, 600, 0.414), sweep(5, 900, 0.732))
    )
    rates = (Rate.MATRIX_FP32, Rate.MATRIX_FP32, Rate.MATRIX_TF32, Rate.MATRIX_FP16, Rate.MATRIX_FP32, Rate.MATRIX_BF16)
    dims = []
    for at in range(COUNT):
        kernel, stride = ((3, 1), (1, 1), (3, 1), (7, 2), (3, 1))[at % 5]
        groups = inner[at] if at % 8 == 7 else 1
        size = (7, 14, 28, 56, 57, 112, 224)[at % 7]
        dims.append(
            ConvolutionDims(
                batch=batch[at],
                c_in=inner[at],
                c_out=inner[at] if groups > 1 else outer[at],
                groups=groups,
                input_size=(size, size),
                output_size=(-(-size // stride),) * 2,
                kernel_size=(kernel,) * 2,
                stride=(stride,) * 2,
                direction=tuple(Direction)[at // 6 % len(Direction)],
            )
        )
    return problems_of_dims(dims, [rates[at % 6] for at in range(COUNT)])


def layers() -> RecurrentProblems:
    return RecurrentProblems(
        gates=turns(4.0, 3.0, 1.0),
        layers=turns(1.0, 2.0, 3.0, of=2),
        directions=turns(1.0, 2.0, of=3),
        steps=sweep(1, 600, 0.618),
        batch=sweep(1, 300, 0.414),
        input_size=sweep(8, 2000, 0.732),
        hidden_size=sweep(32, 2500, 0.545),
        element_bytes=turns(4.0, 4.0, 2.0, 8.0),
        rate=np.array(
            [RATES.index(rate) for rate in (Rate.FP32, Rate.MATRIX_TF32, Rate.MATRIX_FP16, Rate.FP64)] * (COUNT // 4)
        ),
        walks=turns(1.0, 1.0, 0.0, of=4),
        weight_gradients=turns(0.0, 0.0, 1.0, of=4),
        is_backward=turns(0.0, 1.0, 1.0, of=4),
        is_host_timed=turns(0.0, 0.0, 1.0, of=5),
    )


PROBLEMS: Mapping[str, Callable[[], Any]] = {
    "matmul": lambda: products(("bf16", "fp16", "tf32")),
    "matmul_quantized": lambda: products(tuple(FORMATS)),
    "matmul_simt": simt_products,
    "attention_prefill": lambda: attentions(is_decode=False),
    "attention_decode": lambda: attentions(is_decode=True),
    "attention_prefill of other dims": lambda: attentions(is_decode=False, dims=OTHER_DIMS),
    "attention_decode of other dims": lambda: attentions(is_decode=True, dims=OTHER_DIMS),
    "attention_backward": gradients,
    "vector": moves,
    "convolution": convolutions,
    "convolution_miopen": convolutions,
    "recurrent": layers,
}
"""By name of the model, and what else tells them apart."""


def simulated(model: Model[Any], problems: Any, fleet: Fleet) -> Estimate:
    """Simulate every problem on every GPU, with parameters a little off their priors, each by its own share."""
    classes = len(model.class_names)
    away = 0.3 * np.sin(1.0 + np.arange(theta_size(model.parameters, classes)))
    values = resolve(model.parameters, prior_scale(model.parameters, classes) * away, classes, model.gpu_class(fleet))
    return model.simulate(as_columns(problems), fleet, values, None)


def found(name: str) -> dict[str, Any]:
    """Return times [problems, GPUs], and features of each problem on one GPU, a different one for each."""
    model = load_model(OP_MODELS[name.split(maxsplit=1)[0]])
    estimate = simulated(model, PROBLEMS[name](), FLEET)
    rows = np.arange(COUNT)
    return {"time_ns": estimate.time_ns, "features": estimate.described()[rows, rows * 3 % len(FLEET.gpus)]}


def rounded(values: Floats) -> str:
    rows = [", ".join(f"{value:.{DIGITS}g}" for value in row) for row in np.atleast_2d(values).tolist()]
    return "[\n" + ",\n".join(f"  [{row}]" for row in rows) + "\n ]"


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_times_and_features_are_what_they_were(name: str, request: pytest.FixtureRequest) -> None:
    now, path = found(name), GOLDEN / f"{name.replace(' ', '_')}.json"
    if request.config.getoption("--rewrite-golden", default=False):
        path.parent.mkdir(exist_ok=True)
        parts = ",\n".join(f' "{part}": {rounded(values)}' for part, values in now.items())
        path.write_text(f"{{\n{parts}\n}}\n", encoding="utf-8")
    before = {part: np.array(values) for part, values in json.loads(path.read_text(encoding="utf-8")).items()}
    np.testing.assert_allclose(now["time_ns"], before["time_ns"], rtol=TOLERANCE)
    np.testing.assert_allclose(
        now["features"], before["features"].reshape(now["features"].shape), rtol=TOLERANCE, atol=TOLERANCE
    )


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_problems_reach_every_gpu_and_range(name: str) -> None:
    """The golden times say nothing of what they do not vary."""
    time_ns = found(name)["time_ns"]
    assert np.isfinite(time_ns).all()
    assert (time_ns > 0).all()
    assert time_ns.max() > 100 * time_ns.min()
    assert (np.ptp(time_ns, axis=1) > 0).all()
