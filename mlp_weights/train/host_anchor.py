"""Measure the machine that measured hosts are compared with: how fast it is by CPU ops; a minute, there alone.

    python -m wavecast.mlp_weights.train.host_anchor [--write]

The times of `REFERENCE_HOST` in formats/host_speed.py were measured on this machine; the host of host_costs is known by
recordings of GPU work alone. What ties the two together are CPU ops that are the same code with and without a GPU:
views. Small models run here under the profiler, and their views are compared with those of the table of costs. They are
a tenth of a host's time, and other ops differ by more than views do: half_width is the spread of the ratio over
families of ops, and that is what the interval of a measured host rests on.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

import click
import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...analyzer.host.costs import HostCosts, load_host_costs
from ...analyzer.host.recorded_speed import kinds_of_ops
from ...analyzer.work import VARYING_FAMILIES, Family, family_of
from ...formats.files import load_trace
from ...formats.trace import Trace
from .constants import FittedConstants, Program, save_constants, write_options
from .profiler_ratios import models, step

NAME: Final = "host_anchor"
ABOUT: Final = (
    "The machine of REFERENCE_HOST, whose pieces of host work are measured: ops_ratio is its speed relative to the "
    "reference host of host_costs, by the views of small models under the profiler. half_width: what "
    "the ratio differs by from one family of ops to another, 90 %, natural log."
)
ROUNDS: Final = 7
_STEPS: Final = 10
_LEAST_CALLS: Final = 20
_NORMAL_90: Final = 1.645


@click.command(cls=Program, help=__doc__)
@write_options
def main(write: bool, keep: str | None) -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    costs = load_host_costs()
    found: dict[Family, list[float]] = defaultdict(list)
    for model, data in models():
        rounds = [ratios_by_family(record(model, data), costs) for _ in range(ROUNDS)]
        for family in {family for ratios in rounds for family in ratios}:
            # Whatever else runs on the machine only ever slows an op down.
            found[family].append(float(np.percentile([ratios[family] for ratios in rounds if family in ratios], 75)))
    by_family = {family: float(np.exp(np.mean(np.log(ratios)))) for family, ratios in found.items()}
    for family, ratio in sorted(by_family.items()):
        click.echo(f"{family:16} {ratio:.2f} times as fast as on the reference host")
    spread = float(np.std([np.log(ratio / by_family[Family.VIEW]) for ratio in by_family.values()]))
    values = {
        "ops_ratio": round(by_family[Family.VIEW], 2),
        "half_width": round(_NORMAL_90 * spread, 2),
    }
    click.echo(str(values))
    if write:
        counts = {"rounds": ROUNDS, "models": len(models())}
        save_constants(NAME, ABOUT, FittedConstants(values=values, counts=counts, inputs={}), keep=keep)


def record(model: nn.Module, data: torch.Tensor) -> Trace:
    """Return some steps of a model under the profiler, on the CPU."""
    step(model, data)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(_STEPS):
            step(model, data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return load_trace(path)


def ratios_by_family(trace: Trace, costs: HostCosts) -> dict[Family, float]:
    """Return how much faster a trace's ops are than those of the table, by family; not where libraries do the work."""
    listed: dict[Family, float] = defaultdict(float)
    took: dict[Family, float] = defaultdict(float)
    calls: dict[Family, int] = defaultdict(int)
    for name, kind in kinds_of_ops(trace, costs.op_ns)[0].items():
        family = family_of(name)
        if family is not None and family not in VARYING_FAMILIES:
            listed[family] += kind.call_count * costs.op_ns[name]
            took[family] += kind.call_count * kind.own_ns
            calls[family] += kind.call_count
    return {family: listed[family] / took[family] for family in listed if calls[family] >= _LEAST_CALLS}


if __name__ == "__main__":
    main()
