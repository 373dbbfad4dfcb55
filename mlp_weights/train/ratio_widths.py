"""Measure how far off the rules without an op model are: the widths of analyzer/prediction/ratio_widths.py.

    python -m wavecast.mlp_weights.train.ratio_widths DATA [--by-pair] [--write]

The rules predict the kernels of the measurement tables between every two GPUs that have them (ratio_blocks.py). A block
is one table family between an ordered pair of GPUs, all blocks count alike. |ln(predicted / measured)|, divided by what
the widths grow with the distance, has the 90 % quantile `pooled`; `width` is widened so that it holds 90 % on a chip
left out. `left out` is the share that such widths hold on the blocks of a chip that neither quantile nor widening saw.
Printed as well: the share that the widths in use hold, by distance.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from ...analyzer.prediction.ratio_widths import width_of
from ...analyzer.work import Family
from ...arrays import Floats, group_by
from .calibrate import COVERAGE
from .constants import Fitted, program
from .ratio_blocks import (
    BY_HOST_OR_NODE,
    CACHED,
    COLLECTIVES,
    POINTS,
    PairErrors,
    link_blocks,
    pcie_blocks,
    table_blocks,
    trace_paths,
    wave_blocks,
)

NAME: Final = "ratio_widths"
ABOUT: Final = (
    "w of each rule that moves a measured time by a ratio, natural log: what holds 90 % on a chip left out, at the "
    "distance 2 between two GPUs, of plain rules (by_rule) and of those that differ by family (by_family). "
    "convolution takes the w of products on a known unit, since only four older GPUs measured it, in fp32; recurrent, "
    "which nothing measured, the widest. counts: kernels, blocks (a table family between two GPUs) and chips behind "
    "each w."
)
TABLES: Final = ("matmul", "attention", "vector", "convolution")
LEAPS: Final = ((0.0, 0.5), (0.5, 1.5), (1.5, 2.5), (2.5, 9.0))
PLAIN: Final = ("wave", "bandwidth", "link", "pcie")
BY_FAMILY: Final = ("bound", "compute", "guess")
LIKE_MATMUL: Final = ("bound", "compute")
"""Convolutions were measured in fp32 on four older GPUs only: they take what products show on nine, by the same rule
where their unit is known. cuDNN's kernels whose name tells none are fp32 ones in recordings, so `compute` stands in."""

Groups = Mapping[tuple[str, str], Sequence[PairErrors]]
"""Blocks by rule and family, empty where the rule is the same for all."""


@program(NAME, ABOUT, __doc__, click.option("--by-pair", is_flag=True, help="Print every block as well."))
def main(data: Path, by_pair: bool) -> Fitted:
    """Print a line per rule and family."""
    groups = read_groups(data)
    leaps = "  ".join(f"{low:g}-{high:g}".center(7) for low, high in LEAPS)
    numbers = f"{'points':>8} {'blocks':>6} {'chips':>5} {'pooled':>7} {'width':>6}  {'left out':>8}"
    click.echo(f"{'rule':16} {'family':12} {numbers}  {'worst chip':26} {'in use':>7}  {leaps}")
    for (rule, family), blocks in sorted(groups.items()):
        print_group(rule, family, blocks)
        for item in sorted(blocks, key=lambda item: item.apart) if by_pair else ():
            width = np.quantile(item.residual, COVERAGE)
            click.echo(f"    {item.apart:4.1f} {width:6.2f} {item.count:7}  {item.kind}: {item.source} → {item.target}")
    paths = [*(data / "ops" / f"{name}.parquet" for name in TABLES), data / COLLECTIVES, *trace_paths(data)]
    return widths_of(groups), counts_of(groups), paths


def read_groups(data: Path) -> dict[tuple[str, str], list[PairErrors]]:
    """Return all blocks by rule and family."""
    blocks = chain(table_blocks(data), wave_blocks(data), link_blocks(data), pcie_blocks(data))
    return group_by(blocks, lambda item: (item.rule, item.family.value if item.family else ""))


def widths_of(groups: Groups) -> dict[str, Any]:
    """Return the widths that the analyzer reads: as measured, and what stands in where too little was."""
    measured = {key: round(widened(fitted_blocks(key[0], blocks)), 2) for key, blocks in groups.items()}
    by_family = {}
    for rule in BY_FAMILY:
        product, attention = measured[rule, Family.MATMUL.value], measured[rule, Family.ATTENTION.value]
        by_family[rule] = {
            Family.MATMUL.value: product,
            Family.CONVOLUTION.value: product if rule in LIKE_MATMUL else measured["compute", Family.MATMUL.value],
            Family.ATTENTION.value: attention,
            Family.RECURRENT.value: max(product, attention),
        }
    return {"by_rule": {rule: measured[rule, ""] for rule in PLAIN}, "by_family": by_family}


def counts_of(groups: Groups) -> dict[str, Any]:
    """Return how many kernels, blocks and chips stand behind each width."""
    counts = {}
    for (rule, family), blocks in sorted(groups.items()):
        fitted = fitted_blocks(rule, blocks)
        counts[f"{rule} {family}".strip()] = {
            "kernels": sum(item.count for item in fitted), "blocks": len(fitted), "chips": len(chips_of(fitted)),
        }  # fmt: skip
    return counts


def fitted_blocks(rule: str, blocks: Sequence[PairErrors]) -> list[PairErrors]:
    """Return the blocks that tell of two unlike GPUs."""
    return [item for item in blocks if rule in BY_HOST_OR_NODE or item.chips[0] != item.chips[1]]


def residuals(blocks: Sequence[PairErrors]) -> Floats:
    """Return all residuals at the reference distance."""
    return np.concatenate([item.scaled for item in blocks])


def pooled(blocks: Sequence[PairErrors]) -> float:
    """Return the 90 % quantile, blocks counting alike."""
    return float(np.quantile(residuals(blocks), COVERAGE))


def chips_of(blocks: Sequence[PairErrors]) -> list[str]:
    """Return the chips that blocks are between, sorted."""
    return sorted({chip for item in blocks for chip in item.chips})


def by_chip(blocks: Sequence[PairErrors]) -> Iterator[tuple[str, list[PairErrors], list[PairErrors]]]:
    """Yield each chip with the blocks that it has no part in, and those that it has, where there are both."""
    for chip in chips_of(blocks):
        others, mine = ([item for item in blocks if (chip in item.chips) is has_part] for has_part in (False, True))
        if others:
            yield chip, others, mine


def widened(blocks: Sequence[PairErrors]) -> float:
    """Return the quantile, widened for a chip that is not among these.

    Times the least factor under which the others' quantile holds 90 % of each chip's, chips counting alike, to the
    power of (J - 1) / J for J chips, as calibrate.py does; never under 1.
    """
    ratios = [np.quantile(residuals(mine), POINTS) / pooled(others) for _, others, mine in by_chip(blocks)]
    if not ratios:
        return pooled(blocks)
    needed = float(np.quantile(np.concatenate(ratios), COVERAGE) ** ((len(ratios) - 1) / len(ratios)))
    return pooled(blocks) * max(needed, 1.0)


def held(blocks: Sequence[PairErrors], width: float) -> float:
    """Return the share of the blocks' residuals within a width."""
    return float(np.mean([np.mean(item.scaled <= width) for item in blocks]))


def left_out(blocks: Sequence[PairErrors]) -> list[tuple[float, str]]:
    """Return the share held on each chip by widths that never saw it."""
    return [(held(mine, widened(others)), chip) for chip, others, mine in by_chip(blocks)]


def print_group(rule: str, family: str, blocks: Sequence[PairErrors]) -> None:
    """Print the widths of a rule and family, and what those in use hold."""
    fitted = fitted_blocks(rule, blocks)
    shares = [] if rule.endswith(CACHED) else left_out(fitted)
    mean = f"{np.mean([share for share, _ in shares]):8.1%}" if shares else " " * 8
    worst = f"{min(shares)[0]:7.1%} {min(shares)[1][:18]:18}" if shares else " " * 26
    in_use = width_of(rule.removesuffix(CACHED), blocks[0].family)
    spread = []
    for low, high in LEAPS:
        here = [item for item in blocks if low <= item.apart < high]
        spread.append(
            f"{np.mean([np.mean(item.residual <= item.in_use) for item in here]):7.1%}" if here else "      –"
        )
    click.echo(
        f"{rule:16} {family:12} {sum(item.count for item in fitted):8} {len(fitted):6} {len(chips_of(fitted)):5} "
        f"{pooled(fitted):7.2f} {widened(fitted):6.2f}  {mean}  {worst} {in_use:7.2f}  {'  '.join(spread)}"
    )


if __name__ == "__main__":
    main()
