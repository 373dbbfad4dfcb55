"""What a user may write: it type-checks under `mypy --strict` with the rest, and `test_reports` runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wavecast
from wavecast import InputError, Report, Trace

SAMPLES = Path("samples")
H100 = SAMPLES / "bert_small-inference-bf16-b1-h100.json.gz"
MI300X = SAMPLES / "bert_small-inference-bf16-b1-mi300x.json.gz"
TRAINING = SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"


def cheapest(report: wavecast.IterationReport) -> str:
    """The GPU of least cost per iteration, from the figures themselves."""
    priced = [row for row in report.report.predictions if row.usd_per_1000_iterations is not None]
    return min(priced, key=lambda row: row.usd_per_1000_iterations or 0.0).gpu


def answers() -> Sequence[Report]:
    trace: Trace = wavecast.load_trace(H100)
    validated: wavecast.ValidationReport = wavecast.validate(trace, MI300X, top=5)
    replayed: wavecast.ReplayReport = wavecast.replay(trace, iteration=0)
    plans: wavecast.PlansReport = wavecast.scale(
        TRAINING,
        to="H100 SXM",
        gpus=[8, 16],
        plan="fsdp=*",
        max_memory="70GiB",
        node="DGX/HGX H100",
        precision="fp16",
    )
    changed: wavecast.ComparisonReport = wavecast.compare(H100, MI300X, on=["H100 SXM"], max_slowdown="3%")
    held: wavecast.OverviewReport = wavecast.overview(trace, top=None)
    return (wavecast.analyze(trace, to=["L4", "L40S"], host=1.2), validated, replayed, plans, changed, held)


def main(folder: Path) -> dict[str, list[dict[str, Any]]]:
    first = wavecast.analyze(H100, to="L4", ops=True, top=3)
    first.save(folder / "report.json")
    first.save_timeline(folder / "timeline.json.gz")
    first.show()
    edges: int = wavecast.graph(H100, critical_path=True).number_of_edges()
    known: list[str] = [gpu.name for gpu in wavecast.gpus()]
    try:
        wavecast.analyze(H100, to="L4", from_sequence_length=2)
    except InputError as error:
        print(error, cheapest(first), edges > 0, len(known) > 100)  # noqa: T201
    return {type(report).__name__: report.to_records() for report in (*answers(), wavecast.gpus("a100"))}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
