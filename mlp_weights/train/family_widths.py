"""Learn by family how much more the ops of real networks are off than their models' intervals say.

    python -m wavecast.mlp_weights.train.family_widths DATA [--write]

Every op of our own recordings is predicted from its shapes alone (`score_own` reads them so): by weights that saw its
chip, which speak for that chip, and by weights that did not, which speak for all others. An op's interval is
hypot(model, family); the family's half-width is the least that holds 90 % of its ops, apart for those predicted to be
short (`LONG_NS`), and below zero where the model's holds more. `held` says what those learned without the network hold.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from ...analyzer.prediction.predict import CONSTANTS, LEAST_PART, LONG, LONG_NS, OTHER, SHORT, family_half_widths
from ...analyzer.questions.score.own_networks import TABLE, recorded_ops
from ...analyzer.questions.score.weights import Withheld, choose_weights
from ...analyzer.work import Family
from ...arrays import Floats
from ...records import dataclass
from ...specs.gpu import chip_of
from .constants import Fitted, program

ABOUT: Final = (
    "90 % half-widths, natural log, of what the ops of real networks are off beside their models' own intervals, by "
    "family and predicted time: on chips whose networks were recorded, by weights that saw them (seen), and by weights "
    "that did not (unseen: every other chip). Below zero: what the models' have too much. short: of ops under 10 us. "
    "other: of all such ops together, for families that no recording has. counts: ops by family."
)
HELD: Final = 0.9
LEAST_OPS: Final = 10
"""A family of fewer says nothing of its own. Of ten ops a half-width leaves out none, of 11 to 20 one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamilyErrors:
    """Hold the squared errors of one family's ops in one network beyond their models' half-widths, [n]."""

    network: str
    excess: Floats
    """Error^2 - half-width^2, natural log squared; negative inside the interval."""


Families = Mapping[str, Sequence[FamilyErrors]]
Sizes = Mapping[str, Families]
"""Families by `SHORT` and `LONG`."""


@program(CONSTANTS, ABOUT, __doc__)
def main(data: Path) -> Fitted:
    """Print a line per family and kind of weights, and the half-widths."""
    values: dict[str, Any] = {"chips": []}
    counts: dict[str, dict[str, int]] = {}
    click.echo(f"{'':12} {'family':20} {'networks':>8} {'ops':>7} {'width':>6} {'before':>7} {'held':>6}")
    for name, withheld in (("seen", None), ("unseen", Withheld.CHIPS)):
        sizes, chips = errors_of(data, withheld)
        values["chips"] = sorted(chips)
        values[name] = {size: widths_of(families) for size, families in sizes.items()}
        for size, families in sizes.items():
            print_families(f"{name} {size}", families)
        counts = {
            size: {family: len(_joined(parts)) for family, parts in found.items()} for size, found in sizes.items()
        }
    return values, counts, [data / TABLE]


def errors_of(data: Path, withheld: Withheld | None) -> tuple[Sizes, set[str]]:
    """Return the errors by size and family of all recordings, and the chips that these ran on."""
    weights, chips = choose_weights(left_out=withheld), set()
    found: Mapping[str, dict[str, list[FamilyErrors]]] = {SHORT: defaultdict(list), LONG: defaultdict(list)}
    for row, gpu, ops in recorded_ops(data, weights):
        chips.add(chip_of(gpu))
        families, time_ns = [Family(family) for family in ops.family], ops.predicted_ns[:, None]
        family = family_half_widths(families, time_ns, [gpu], weights.library_for(gpu).seen_chips)[:, 0]
        joint = np.square(ops.half_width)
        alone = np.minimum(joint - family * np.abs(family), joint / LEAST_PART**2)
        known = (ops.measured_ns > 0) & (ops.predicted_ns > 0) & np.isfinite(alone)
        excess = np.square(np.log(ops.predicted_ns[known] / ops.measured_ns[known])) - alone[known]
        names, is_long = np.array(ops.family, dtype=object)[known], ops.predicted_ns[known] >= LONG_NS
        for size, mine in ((SHORT, ~is_long), (LONG, is_long)):
            for name in sorted(set(names[mine].tolist())):
                part = excess[mine & (names == name)]
                found[size][name].append(FamilyErrors(network=str(row["workload"]), excess=part))
    return {size: dict(sorted(families.items())) for size, families in found.items()}, chips


def widths_of(families: Families) -> dict[str, float]:
    """Return each family's half-width, and that of all ops together."""
    wide = {family: _joined(parts) for family, parts in families.items()}
    known = {family: half_width_of(excess) for family, excess in wide.items() if len(excess) >= LEAST_OPS}
    return {**known, OTHER: max(half_width_of(np.concatenate([*wide.values(), np.zeros(0)])), 0.0)}


def half_width_of(excess: Floats) -> float:
    """Return the least half-width that holds `HELD` of the ops; below zero where their models' hold more.

    >>> half_width_of(np.array([-0.1, -0.1, 0.25])), half_width_of(np.array([-0.25, -0.09]))
    (0.5, -0.3)
    """
    least = float(np.quantile(excess, HELD, method="higher")) if len(excess) else 0.0
    return round(float(np.copysign(np.sqrt(abs(least)), least)), 2) + 0.0


def print_families(name: str, families: Families) -> None:
    """Print what each family's half-width holds where it was learned without the network."""
    for family, parts in families.items():
        excess, held = _joined(parts), []
        for network in {part.network for part in parts}:
            others = _joined([part for part in parts if part.network != network])
            mine = _joined([part for part in parts if part.network == network])
            held.append(mine <= (width := half_width_of(others)) * abs(width))
        click.echo(
            f"{name:12} {family:20} {len(parts):8} {len(excess):7,} {half_width_of(excess):6.2f} "
            f"{np.mean(excess <= 0.0):7.1%} {np.mean(np.concatenate(held)):6.1%}"
        )


def _joined(parts: Sequence[FamilyErrors]) -> Floats:
    return np.concatenate([part.excess for part in parts]) if parts else np.zeros(0)


if __name__ == "__main__":
    main()
