"""Prints how far the op models and plain ratios agree on measured kernels that both move to other GPUs.

    python -m benchmarks.check.consistency ../shared/data [--by-pair] [--worst 10]

Every kernel of the public recordings that an op model covers, with the launch that was recorded, is moved to each GPU
of the measurement tables (one of each chip): by its op's model, anchored at the measured time, and by the ratio that
would move it if there were no model (wave scaling; the ratio of rooflines where libraries choose the kernel). Per
family: distinct kernels times GPUs, the share where each time lies in the other's 90 % interval, where one of them
does, and the median, 5th and 95th percentile of the ratio of the two, model over plain. Wave-scaled kernels are to
reach 90 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.method import Method
from wavecast.analyzer.prediction.predict import predict_both_ways
from wavecast.analyzer.prediction.prediction import METHODS
from wavecast.analyzer.prediction.workload import measured_workload
from wavecast.analyzer.recorded.devices import first_known_gpu
from wavecast.analyzer.recorded.window import select_window
from wavecast.errors import WavecastError
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu, chip_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel on one GPU."""

    family: str
    is_wave: bool
    source: str
    target: str
    kernel: str
    measured_us: float
    log_ratio: float
    """Of the model's time over the plain ratio's."""
    model_width: float
    plain_width: float

    @property
    def holds(self) -> bool:
        """Say whether each lies in the other's interval."""
        return abs(self.log_ratio) <= min(self.model_width, self.plain_width)

    @property
    def half_holds(self) -> bool:
        return abs(self.log_ratio) <= max(self.model_width, self.plain_width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--by-pair", action="store_true", help="print every pair of GPUs as well")
    parser.add_argument("--worst", type=int, default=0, help="print so many of the cases that are furthest apart")
    options = parser.parse_args()
    cases = list(compare_all(options.data))
    print(f"{'family':16}{'plain way':>14}{'cases':>8}{'each %':>8}{'one %':>8}{'median':>8}{'p5':>7}{'p95':>7}")
    for is_wave, way in ((True, "wave scaling"), (False, "rooflines")):
        own = [case for case in cases if case.is_wave == is_wave]
        for family in sorted({case.family for case in own}):
            print_row(f"{family:16}{way:>14}", [case for case in own if case.family == family])
        if own:
            print_row(f"{'all':16}{way:>14}", own)
    pairs = sorted({(case.source, case.target) for case in cases}) if options.by_pair else ()
    for source, target in pairs:
        own = [case for case in cases if (case.source, case.target, case.is_wave) == (source, target, True)]
        print_row(f"{source[:24]:24} {target[:24]:24}", own)
    beyond = sorted(cases, key=lambda case: min(case.model_width, case.plain_width) - abs(case.log_ratio))
    for case in [case for case in beyond if case.is_wave][: options.worst]:
        print(f"{np.exp(case.log_ratio):6.2f} x  +-{case.model_width:.2f} / {case.plain_width:.2f} {case.family:14}"
              f"{case.measured_us:9.1f} us  {case.source[:16]} to {case.target[:16]}  {case.kernel[:60]}")  # fmt: skip


def print_row(label: str, cases: Sequence[Case]) -> None:
    ratios = np.exp([case.log_ratio for case in cases])
    each, one = (np.mean([getattr(case, name) for case in cases]) * 100 for name in ("holds", "half_holds"))
    low, high = np.quantile(ratios, (0.05, 0.95))
    print(f"{label}{len(cases):8}{each:8.1f}{one:8.1f}{np.median(ratios):8.2f}{low:7.2f}{high:7.2f}")


def compare_all(data: Path) -> Iterator[Case]:
    targets = measured_gpus(data)
    for path in sorted((data / "traces").glob("*.json*")):
        try:
            yield from compare(path, targets)
        except WavecastError as error:
            print(f"{path.name}: {error}")


def measured_gpus(data: Path) -> list[Gpu]:
    """Return one GPU of each chip that the tables measure."""
    found = {chip_of(gpu): gpu for samples in load_tables(data) for gpu in samples.gpus}
    return list(found.values())


def compare(path: Path, targets: Sequence[Gpu]) -> Iterator[Case]:
    """Yield the cases of one recording; none where its GPU is not known."""
    trace = load_trace(path)
    source = first_known_gpu(load_catalog(), trace)
    if source is None or not trace.is_measured:
        return
    workload = measured_workload(trace, select_window(trace))
    others = [gpu for gpu in targets if chip_of(gpu) != chip_of(source)]
    both = predict_both_ways(trace, workload, source, others, load_library())
    log_ratio = np.log(both.model_ns / both.ratio_ns)
    for at, row in enumerate(both.rows.tolist()):
        if not trace.kernels.grid[workload.kernel[row]].all():
            continue
        for column, gpu in enumerate(others):
            method = METHODS[both.ratio_method[at, column]]
            yield Case(
                family=str(workload.family[row]),
                is_wave=method is Method.WAVE_SCALING,
                source=source.name,
                target=gpu.name,
                kernel=trace.strings[trace.kernels.name[workload.kernel[row]]],
                measured_us=float(workload.duration_ns[row]) / 1e3,
                log_ratio=float(log_ratio[at, column]),
                model_width=float(both.model_width[at, column]),
                plain_width=float(both.ratio_width[at, column]),
            )


if __name__ == "__main__":
    main()
