"""How long `analyze --help` takes to start, beside bare Python that imports numpy.

Run: python -m benchmarks.speed.start_speed

CPU time (user and system) of whole processes, median of several, taken in turn so that a busy machine hits all alike.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from statistics import median

STARTS = {
    "python": "pass",
    "python with numpy": "import numpy",
    "import wavecast": "import wavecast",
    "analyze --help": (
        "import sys; sys.argv = ['analyze', '-h']; from wavecast.analyzer.questions.analyze.command import main; main()"
    ),
    "wavecast --help": "import sys; sys.argv = ['wavecast', '--help']; from wavecast.__main__ import main; main()",
}
BASELINE = "python with numpy"


def cpu_time_s(code: str) -> float:
    """Return the CPU time of a Python process that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Print CPU time and the ratio to the baseline for each start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=11)
    repeats = parser.parse_args().repeats
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(repeats):
        for name, code in STARTS.items():
            times[name].append(cpu_time_s(code))
    baseline_s = median(times[BASELINE])
    for name, values in times.items():
        print(f"{name:<20} {1e3 * median(values):6.0f} ms CPU   {median(values) / baseline_s:5.2f} x {BASELINE}")


if __name__ == "__main__":
    main()
