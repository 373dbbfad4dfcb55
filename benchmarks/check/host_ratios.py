"""Whether `measure --host` tells how much faster one host is than another: whole networks in several environments.

Each environment is an interpreter with torch; the first is the reference. In the reference alone every workload is
taken apart: the optimizer's step, what gradients add, the calls of modules, the calls of torch (each run again by
itself) and the Python that is left. How long the workload takes elsewhere is then predicted from these shares and from
what `measure_host` says of both environments, and compared with how long it took. Nothing is fitted.

Run: python benchmarks/check/host_ratios.py PYTHON PYTHON [PYTHON ...] [--runs 6]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

KINDS = ("python_ns", "dispatch_ns", "autograd_ns", "module_ns", "optimizer_ns", "allocation_ns")
MEASURE_S = 0.8
ROUNDS = 15
CALL_ROUNDS = 8
BATCH_NS = 1_000_000
FACTORIES = ("empty", "zeros", "ones", "arange", "full", "tensor")


@dataclass
class Workload:
    """One iteration: the forward pass, and where there is one an optimizer that steps after the backward pass."""

    forward: Callable[[], Any]
    optimizer: torch.optim.Optimizer | None = None
    model: nn.Module | None = None

    def backward(self) -> None:
        self.forward().backward()

    def step(self) -> None:
        assert self.optimizer is not None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def forward_alone(self) -> None:
        with torch.no_grad():
            self.forward()

    def iterate(self) -> None:
        if self.optimizer is None:
            self.forward_alone()
        else:
            self.backward()
            self.step()


def elementwise_loop() -> Workload:
    x, y = torch.ones(4), torch.ones(4)

    def forward() -> torch.Tensor:
        z = x
        for _ in range(100):
            z = (z * 0.5 + y).relu_().sub_(y)
        return z

    return Workload(forward)


def indexing_loop() -> Workload:
    x = torch.arange(24.0).view(4, 6)

    def forward() -> torch.Tensor:
        rows = []
        for number in range(60):
            row = x[number % 4].view(2, 3).transpose(0, 1)
            rows.append(row.sum(dim=1))
        return torch.stack(rows)

    return Workload(forward)


def bookkeeping_loop() -> Workload:
    """Ops with as much Python between them: counts, names, dictionaries, as decoding loops have it."""
    x = torch.ones(8)

    def forward() -> dict[str, Any]:
        state: dict[str, Any] = {"length": 0, "scores": []}
        beams: list[dict[str, Any]] = [{"tokens": [1], "score": 0.0} for _ in range(4)]
        for number in range(25):
            scores = torch.softmax(x, 0)
            for beam in beams:
                beam["tokens"] = [*beam["tokens"][-8:], number]
                beam["score"] -= 0.1 * number
            beams.sort(key=lambda beam: beam["score"], reverse=True)
            state["scores"].append(scores.max())
            state["length"] += sum(len(beam["tokens"]) for beam in beams)
        return state

    return Workload(forward)


def mlp() -> Workload:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    x, labels, loss = torch.randn(4, 16), torch.tensor([0, 1, 2, 3]), nn.CrossEntropyLoss()
    adam = torch.optim.Adam(model.parameters())
    return Workload(lambda: loss(model(x), labels), adam, model)


def transformer(*, is_training: bool) -> Workload:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0 if not is_training else 0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    x = torch.randn(2, 6, 16)
    if not is_training:
        model.train(False)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return Workload(lambda: model(x), None, model)
    adamw = torch.optim.AdamW(model.parameters())
    return Workload(lambda: model(x).square().mean(), adamw, model)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        joined: torch.Tensor = self.relu(y + x)
        return joined


def resnet() -> Workload:
    blocks = [Block(4) for _ in range(4)]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    x, labels = torch.randn(2, 3, 6, 6), torch.tensor([0, 1])
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Workload(lambda: nn.functional.cross_entropy(model(x), labels), sgd, model)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "elementwise loop": elementwise_loop,
    "indexing loop": indexing_loop,
    "ops and bookkeeping": bookkeeping_loop,
    "MLP, Adam": mlp,
    "transformer, AdamW": lambda: transformer(is_training=True),
    "transformer, inference": lambda: transformer(is_training=False),
    "ResNet-like, SGD": resnet,
}


@dataclass
class Seen(TorchFunctionMode):
    """Collect the calls of torch that one forward pass makes, outermost ones alone."""

    calls: list[tuple[Callable[..., Any], Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "__get__" not in getattr(func, "__name__", ""):
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def take_apart(workload: Workload, host: dict[str, Any]) -> dict[str, float]:
    """Return how much of an iteration, ns, is of which kind."""
    shares = dict.fromkeys(KINDS, 0.0)
    for _ in range(3):
        workload.iterate()
    timed = {"forward": workload.forward_alone}
    if workload.optimizer is not None:
        timed |= {"both": workload.backward, "step": workload.step}
    times = time_all(timed, ROUNDS)
    if workload.optimizer is not None:
        shares["autograd_ns"] = times["both"] - times["forward"]
        shares["optimizer_ns"] = times["step"]
    seen = Seen()
    with torch.no_grad(), seen:
        workload.forward()
    called = 0

    def count(*_arguments: Any) -> None:
        nonlocal called
        called += 1

    hooks = [item.register_forward_pre_hook(count) for item in workload.model.modules()] if workload.model else []
    workload.forward_alone()
    for hook in hooks:
        hook.remove()
    shares["module_ns"] = called * host["module_ns"]
    calls: dict[Any, Callable[[], Any]] = {
        number: partial(item[0], *item[1], **item[2]) for number, item in enumerate(seen.calls)
    }
    with torch.no_grad():
        for number, taken in time_all(calls, CALL_ROUNDS).items():
            is_factory = getattr(seen.calls[number][0], "__name__", "") in FACTORIES
            shares["allocation_ns" if is_factory else "dispatch_ns"] += taken
    rest = times["forward"] - sum(shares[kind] for kind in ("module_ns", "dispatch_ns", "allocation_ns"))
    shares["python_ns"] = rest
    return shares


def time_all(runs: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, float]:
    """Return the lower decile of each, in interleaved rounds, in this thread's own time."""
    counts = {}
    for key, run in runs.items():
        for _ in range(3):
            run()
        start = time.thread_time_ns()
        for _ in range(5):
            run()
        counts[key] = max(1, min(1000, round(5 * BATCH_NS / max(1, time.thread_time_ns() - start))))
    found: dict[Any, list[float]] = {key: [] for key in runs}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for key, run in runs.items():
            start = time.thread_time_ns()
            for _ in range(counts[key]):
                run()
            found[key].append((time.thread_time_ns() - start) / counts[key])
    gc.enable()
    return {key: statistics.quantiles(times, n=10)[0] for key, times in found.items()}


def work(*, is_reference: bool) -> None:
    """Measure this environment and the workloads, once more for each line that is read, and print what was found."""
    from wavecast.tracer.host_times.measure import measure_host

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # a fused kernel of the CPU, which the shares would not see
    workloads = {name: make() for name, make in WORKLOADS.items()}
    for _ in sys.stdin:
        host = asdict(measure_host(MEASURE_S))
        times = time_all({name: item.iterate for name, item in workloads.items()}, ROUNDS)
        shares = {name: take_apart(item, host) for name, item in workloads.items()} if is_reference else {}
        found = {"python": sys.version.split()[0], "torch": torch.__version__}
        print(json.dumps(found | {"host": host, "times": times, "shares": shares}), flush=True)


def start(python: str, *, is_reference: bool) -> subprocess.Popen[str]:
    import wavecast

    place = str(Path(wavecast.__file__).parent.parent)
    command = [python, str(Path(__file__).resolve()), "--work", "reference" if is_reference else "other"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": place}, stdin=pipe, stdout=pipe, text=True)


def ask(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Let one environment measure itself once more."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        sys.exit(f"{worker.args!r}: failed; see above")
    found: dict[str, Any] = json.loads(line)
    return found


def least(runs: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """Return the least over runs, figure by figure: other people's jobs only ever add."""
    keys = [key for key, value in runs[0][part].items() if isinstance(value, float)]
    return {key: min(run[part][key] for run in runs) for key in keys}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", help="interpreters with torch; the first is the reference")
    parser.add_argument("--runs", type=int, default=6, help="turns of each environment, one after the other")
    parser.add_argument("--json", help="also write what was measured to this file")
    parser.add_argument("--work", choices=["reference", "other"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(is_reference=options.work == "reference")
        return
    workers = [start(python, is_reference=number == 0) for number, python in enumerate(options.pythons)]
    runs: list[list[dict[str, Any]]] = [[] for _ in workers]
    for _ in range(options.runs):
        for number, worker in enumerate(workers):
            runs[number].append(ask(worker))
    for worker in workers:
        worker.communicate()
    if options.json:
        Path(options.json).write_text(json.dumps(runs), encoding="utf-8")
    report(runs)


def report(runs: list[list[dict[str, Any]]]) -> None:
    hosts, times = [least(item, "host") for item in runs], [least(item, "times") for item in runs]
    first = runs[0]
    shares = {name: {kind: min(run["shares"][name][kind] for run in first) for kind in KINDS} for name in WORKLOADS}
    print(f"reference: Python {first[0]['python']}, torch {first[0]['torch']}; shares of an iteration, %")
    for name, parts in shares.items():
        whole = sum(parts.values())
        texts = [f"{kind.removesuffix('_ns')} {100 * part / whole:.0f}" for kind, part in parts.items()]
        print(f"  {name:24s} {times[0][name] / 1e3:8.1f} us; taken apart {whole / 1e3:8.1f}: {', '.join(texts)}")
    errors = []
    for number in range(1, len(runs)):
        one = runs[number][0]
        print(f"Python {one['python']}, torch {one['torch']}: time over the reference's, by kind")
        ratio = {kind: hosts[number][kind] / hosts[0][kind] for kind in KINDS}
        print("  " + ", ".join(f"{kind.removesuffix('_ns')} {value:.3f}" for kind, value in ratio.items()))
        for name, parts in shares.items():
            whole = sum(parts.values())
            predicted = sum(part * ratio[kind] for kind, part in parts.items()) / whole
            taken = times[number][name] / times[0][name]
            errors.append(abs(predicted / taken - 1))
            print(f"  {name:24s} took {taken:.3f}, predicted {predicted:.3f}: {100 * (predicted / taken - 1):+.1f} %")
    if errors:
        mean = 100 * statistics.mean(errors)
        print(f"{len(errors)} ratios: mean error {mean:.1f} %, largest {100 * max(errors):.1f} %")


if __name__ == "__main__":
    main()
