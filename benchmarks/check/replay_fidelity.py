"""How well the replay explains recordings: every trace replayed with its own times, as a Markdown table.

    python -m benchmarks.check.replay_fidelity ../shared/data/traces samples

Rules only: measured kernel durations and host times, every start by rule. Replayed: delays of more than 20 us that no
rule explains carried over as well. Errors are of the iteration, in percent, the worst of the file's iterations.
Opaque starts come more than 20 us after every recorded reason and are not among those counted as within a distance;
opaque time is the part of the iteration in which the GPU goes on without anything recorded: where it is large, rules
alone cannot be right. Files without GPU times are passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import wavecast
from wavecast.analyzer.replay.fidelity import Fidelity, ReplayedIteration, check_fidelity
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import match_device

OPAQUE_RATIO = 0.1
HEADER = (
    "trace", "GPU", "iterations", "rules only %", "replayed %", "exact %", "starts", "opaque starts", "within 1 us %",
    "2 us %", "5 us %", "opaque time %",
)  # fmt: skip


def main() -> None:
    """Print a row per trace, and the median and worst errors."""
    paths = sorted(path for name in sys.argv[1:] for path in Path(name).glob("*.json.gz"))
    rows = [(path, fidelity) for path in paths if (fidelity := _check(path)) is not None]
    print(f"| {' | '.join(HEADER)} |\n|---|---|{'---:|' * (len(HEADER) - 2)}")
    for path, fidelity in rows:
        print(f"| {' | '.join(_cells(path, fidelity))} |")
    print()
    for title, opaque in (("nothing opaque", False), (f"opaque for more than {OPAQUE_RATIO:.0%}", True)):
        chosen = [item for _, fidelity in rows for item in fidelity.iterations if _is_opaque(item) == opaque]
        print(f"{title}: {len(chosen)} iterations; {'; '.join(_summary(chosen))}")
    for gpu, starts in _by_gpu([fidelity for _, fidelity in rows]):
        print(f"starts on {gpu}: {starts}")


def _check(path: Path) -> Fidelity | None:
    trace = wavecast.load_trace(path)
    if not trace.is_measured:
        return None
    catalog = load_catalog()
    found = (
        match_device(catalog, item.name, sm_count=item.sm_count, memory_bytes=item.memory_bytes)
        for item in trace.devices
    )
    return check_fidelity(trace, next((gpu for gpu in found if gpu is not None), None))


def _is_opaque(item: ReplayedIteration) -> bool:
    return item.opaque_ratio > OPAQUE_RATIO


def _errors(items: list[ReplayedIteration], name: str) -> list[float]:
    return [(getattr(item, name) / item.measured_ns - 1) * 100 for item in items]


def _worst(errors: list[float]) -> str:
    return f"{max(errors, key=abs):+.2f}"


def _cells(path: Path, fidelity: Fidelity) -> Iterator[str]:
    items = list(fidelity.iterations)
    yield path.name.removesuffix(".json.gz")
    yield fidelity.gpu or "?"
    yield str(len(items))
    for name in ("rules_only_ns", "replayed_ns", "exact_ns"):
        yield _worst(_errors(items, name))
    yield f"{fidelity.start_count:,}"
    yield str(fidelity.opaque_start_count)
    for share in fidelity.starts_within_ratio.values():
        yield f"{share * 100:.1f}"
    yield f"{max(item.opaque_ratio for item in items) * 100:.1f}"


def _summary(items: list[ReplayedIteration]) -> Iterator[str]:
    for title, name in (("rules only", "rules_only_ns"), ("replayed", "replayed_ns"), ("exact", "exact_ns")):
        errors = _errors(items, name)
        if errors:
            yield f"{title} median {np.median(np.abs(errors)):.3f} %, worst {_worst(errors)} %"


def _by_gpu(all_fidelity: list[Fidelity]) -> Iterator[tuple[str, str]]:
    for gpu in sorted({item.gpu or "?" for item in all_fidelity}):
        mine = [item for item in all_fidelity if (item.gpu or "?") == gpu]
        opaque = sum(item.opaque_start_count for item in mine)
        count = sum(item.start_count for item in mine) - opaque
        near = [
            (distance, sum(item.starts_within_ratio[distance] * _explained(item) for item in mine) / count)
            for distance in mine[0].starts_within_ratio
        ]
        shares = ", ".join(f"{share:.1%} within {distance / 1e3:.0f} us" for distance, share in near)
        yield gpu, f"{count:,}: {shares}; {opaque} more are opaque"


def _explained(fidelity: Fidelity) -> int:
    return fidelity.start_count - fidelity.opaque_start_count


if __name__ == "__main__":
    main()
