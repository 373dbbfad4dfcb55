"""Measure hosts by the CPU ops of their traces alone, and how well that tells what a host takes.

    python -m wavecast.mlp_weights.train.host_speeds DATA           # hosts, and the errors with each host left out
    python -m wavecast.mlp_weights.train.host_speeds DATA --write   # the shipped table

Of each trace in DATA/traces that host_costs.py reads: how fast its host was by `host_speed_of`, which knows nothing of
the time between ops and of the iteration's length. The error is that of the host's time of an iteration without
waiting, predicted from costs of other hosts' traces on a host that fast; host_costs.py --check prints it by trace.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from ...analyzer.host.costs import load_host_costs
from ...analyzer.host.recorded_speed import speed_by_ops
from .constants import Fitted, program
from .host_costs import (
    KNOWN_HOST,
    PARTS,
    REFERENCE,
    SAME_HOST,
    UNKNOWN_HOST,
    check,
    fit_samples,
    host_effects,
    ninth_tenth,
)
from .host_samples import HOSTS, Sample, load_sample

NAME: Final = "host_speeds"
ABOUT: Final = (
    "Speed of the hosts of host_costs relative to the reference host by the CPU ops of their traces alone: ops_ratio. "
    "usual_over_reference: what the mean trace's host takes over what the reference host does, by part of an op's "
    "cost, and as CPU ops tell it. known_host_half_width: what nine of ten traces lie within, natural log, where their "
    "CPU ops tell the host's speed, all traces of their host left out of the costs. named_host_half_width: the same "
    "where another trace of their host tells it. counts: ops."
)


@program(NAME, ABOUT, __doc__)
def main(data: Path) -> Fitted:
    """Print hosts and errors."""
    paths = {name: data / "traces" / f"{name}.json.gz" for name in HOSTS}
    samples = [load_sample(paths[name], host) for name, host in HOSTS.items()]
    errors = check(samples)
    values = speeds(samples) | {
        "known_host_half_width": round(ninth_tenth(errors[KNOWN_HOST]), 2),
        "named_host_half_width": round(ninth_tenth(errors[SAME_HOST]), 2),
    }
    narrowed = ninth_tenth(errors[KNOWN_HOST]) / ninth_tenth(errors[UNKNOWN_HOST])
    click.echo(f"interval with the speed told: {narrowed:.2f} of that without, natural log")
    for host, ratio in values["ops_ratio"].items():
        click.echo(f"{host:24} {ratio:.3f} times as fast as {REFERENCE} by its ops")
    return values, {sample.name: len(sample.own_ns) for sample in samples}, list(paths.values())


def speeds(samples: list[Sample]) -> dict[str, Any]:
    """Return the hosts' speeds by the ops of their traces, and the usual host beside the reference host."""
    costs = load_host_costs()
    found: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        found[sample.host].append(speed_by_ops(sample.recorded, costs) or 1.0)
    of_host = {host: geometric_mean(ratios) for host, ratios in found.items()}
    told = {host: ratio / of_host[REFERENCE] for host, ratio in of_host.items()}
    mean = geometric_mean([ratio for ratios in found.values() for ratio in ratios]) / of_host[REFERENCE]
    effects = {part: host_effects(fit[1])[REFERENCE] for part, fit in fit_samples(samples).items()}
    usual = {part: 1.0 / effects[part] for part in PARTS} | {"ops": 1.0 / mean}
    return {
        "ops_ratio": {host: round(ratio, 3) for host, ratio in told.items()},
        "usual_over_reference": {part: round(ratio, 3) for part, ratio in usual.items()},
    }


def geometric_mean(values: Iterable[float]) -> float:
    """Return the mean of some ratios."""
    return float(np.exp(np.mean(np.log(list(values)))))


if __name__ == "__main__":
    main()
