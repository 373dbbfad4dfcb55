"""Compare the predicted times of kernels that inductor generates with measured ones, each GPU's chip left out.

    python -m benchmarks.check.generated_prices DATA_DIR

Measured: single ops under torch.compile, fp32: KernelBench's (A100, H100, L40S; rows of 200 us and more, as shorter
ones time the host) and Liger's embedding lookup (A100). Predicted: the op as it is written, recorded on the meta device
inside a compiled region, lowered, scheduled and priced like any compiled model. Weights never saw the GPU's chip;
other GPUs' rows of KernelBench trained the models of reductions, but not of generated elementwise kernels. How
reductions are cut and what is read twice was written with these rows in sight.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from wavecast.analyzer.iteration.result import build_result
from wavecast.analyzer.measurements.reduction import DO_BENCH_US, KERNELBENCH, LEAST_EVENT_US, LIGER
from wavecast.analyzer.measurements.samples import MeasurementTable, read_table
from wavecast.analyzer.questions.score.weights import Withheld, choose_weights
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

Item = Mapping[str, Any]
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]

GELU_SCALE: Final = 0.7978845608
SMALLEST: Final = 1e-5

PLAIN: Final[Mapping[str, Function]] = {
    "ELU": functional.elu,
    "GELU": functional.gelu,
    "HardSigmoid": functional.hardsigmoid,
    "HardTanh": functional.hardtanh,
    "LeakyReLU": functional.leaky_relu,
    "LogSoftmax": lambda x: functional.log_softmax(x, 1),
    "Matrix_scalar_multiplication": lambda x: x * 3.14,
    "MinGPTNewGelu": lambda x: 0.5 * x * (1.0 + torch.tanh(GELU_SCALE * (x + 0.044715 * torch.pow(x, 3.0)))),
    "ReLU": torch.relu,
    "SELU": torch.selu,
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda x: torch.softmax(x, 1),
    "Softplus": functional.softplus,
    "Softsign": lambda x: x / (1 + torch.abs(x)),
    "Swish": lambda x: x * torch.sigmoid(x),
    "Tanh": torch.tanh,
    "FrobeniusNorm": lambda x: x / torch.norm(x),
    "L1Norm": lambda x: x / torch.mean(torch.abs(x), 1, keepdim=True),
    "L2Norm": lambda x: x / torch.norm(x, 2, 1, keepdim=True),
    "CrossEntropyLoss": functional.cross_entropy,
    "HingeLoss": lambda x, y: torch.mean(torch.clamp(1 - x * y, min=0)),
    "HuberLoss": functional.smooth_l1_loss,
    "KLDivLoss": lambda x, y: functional.kl_div(torch.log(x), y, reduction="batchmean"),
    "MSELoss": lambda x, y: torch.mean((x - y) ** 2),
    "TripletMarginLoss": functional.triplet_margin_loss,
    "RMSNorm": lambda x: x / torch.sqrt(torch.mean(x**2, 1, keepdim=True) + SMALLEST),
}
"""Ops without arguments that matter for their time."""
OVER_DIMENSION: Final[Mapping[str, Function]] = {
    "Argmax_over_a_dimension": torch.argmax,
    "Argmin_over_a_dimension": torch.argmin,
    "Max_reduction_over_a_dimension": torch.amax,
    "Mean_reduction_over_a_dimension": lambda x, dim: torch.mean(x, dim, keepdim=True),
    "Min_reduction_over_a_dimension": torch.amin,
    "Sum_reduction_over_a_dimension": lambda x, dim: torch.sum(x, dim, keepdim=True),
    "cumprod": torch.cumprod,
    "cumsum": torch.cumsum,
}
WINDOWED: Final[Mapping[str, Function]] = {
    "Average_Pooling_2D": functional.avg_pool2d,
    "Max_Pooling_2D": functional.max_pool2d,
}
MODULES: Final[Mapping[str, Callable[..., nn.Module]]] = {
    "BatchNorm": nn.BatchNorm2d,
    "GroupNorm": lambda channels, groups: nn.GroupNorm(groups, channels),
    "InstanceNorm": nn.InstanceNorm2d,
    "LayerNorm": nn.LayerNorm,
}


def function_of(item: Item) -> Function | None:
    """Return what KernelBench's op computes; None for those that libraries run."""
    op, arguments = str(item["op"]), json.loads(item["init"])
    if op in PLAIN:
        return PLAIN[op]
    if op in MODULES:
        return MODULES[op](*arguments).to("meta")
    for table in (OVER_DIMENSION, WINDOWED):
        if op in table:
            return lambda x: table[op](x, *arguments)
    return None


def record(function: Function, inputs: Tensors) -> Trace:
    """Record a function's forward pass as compiled, on the meta device."""
    torch._dynamo.reset()
    compiled = torch.compile(function)
    with torch.no_grad():
        return trace_iteration(lambda: compiled(*inputs), device="meta")


def kernelbench(data: Path) -> Iterator[tuple[str, str, str, float, Trace]]:
    """Yield kind, op, GPU, measured time in microseconds, and the recorded op."""
    table = read_table(data / KERNELBENCH, ("gpu", "op", "mode", "kind", "inputs", "init", "latency_us"))
    found: dict[tuple[str, str, str], Trace] = {}
    for item in records(table):
        if item["mode"] != "inductor" or item["latency_us"] < LEAST_EVENT_US:
            continue
        key = item["op"], item["inputs"], item["init"]
        if key not in found:
            function = function_of(item)
            if function is None:
                continue
            shapes = [each for each in json.loads(item["inputs"]) if isinstance(each, list)]
            inputs = tuple(torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in shapes)
            found[key] = record(function, inputs)
        yield item["kind"], item["op"], item["gpu"], float(item["latency_us"]), found[key]


def lookups(data: Path) -> Iterator[tuple[str, str, str, float, Trace]]:
    """Yield the same of Liger's embedding lookups."""
    table = read_table(data / LIGER, ("gpu", "op", "backend", "direction", "x_value", "config", "latency_us"))
    for item in records(table):
        if (item["op"], item["backend"], item["direction"]) != ("embedding", "torch_compile", "forward"):
            continue
        config = json.loads(item["config"])
        weight = torch.empty(int(item["x_value"]), config["D"], device="meta")
        ids = torch.zeros(config["B"], config["T"], dtype=torch.int64, device="meta")
        yield (
            "embedding",
            "embedding",
            item["gpu"],
            float(item["latency_us"]) - DO_BENCH_US,
            record(functional.embedding, (ids, weight)),
        )


def records(table: MeasurementTable) -> Iterator[Item]:
    """Yield the rows of a table."""
    columns = {name: values.tolist() for name, values in table.items()}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def main(data: Path) -> None:
    """Print one line per measurement, and the mean of each kind."""
    catalog, weights = load_catalog(), choose_weights((), left_out=Withheld.CHIPS)
    errors: dict[str, list[float]] = {}
    print(f"{'op':32} {'GPU':18} {'measured us':>11} {'predicted':>9} {'error':>7}")
    for kind, op, name, measured_us, trace in (*kernelbench(data), *lookups(data)):
        gpu = find_gpu(catalog, name)
        result = build_result(trace, None, [gpu], weights.library_for(gpu), Scenario())
        predicted_us = float(result.forecast.busy_ns[0]) / 1e3
        error = predicted_us / measured_us - 1.0
        errors.setdefault(kind, []).append(error)
        print(f"{op:32} {gpu.name:18} {measured_us:11.0f} {predicted_us:9.0f} {error:+7.1%}")
    print(f"\n{'kind':12} {'rows':>4} {'mean |error|':>12} {'median error':>12}")
    for kind, found in (*sorted(errors.items()), ("all", [item for each in errors.values() for item in each])):
        print(f"{kind:12} {len(found):4d} {np.abs(found).mean():12.1%} {np.median(found):+12.1%}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
