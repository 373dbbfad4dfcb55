"""Kill a batch in the middle again and again, resume it, and look whether every row is there once.

Run: python benchmarks/check/batch_resume.py [--traces 40] [--kills 5]
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "samples"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=40)
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_traces(folder / "traces", options.traces)
        killed, output = 0, folder / "killed.csv"
        command = [sys.executable, "-m", "wavecast", "batch", str(folder / "traces"), "--jobs", "2", "-o"]
        dice = random.Random(1)  # noqa: S311
        counts: list[int] = []
        for _ in range(options.kills):
            process = subprocess.Popen([*command, str(output)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wanted = (counts[-1] if counts else 0) + dice.randint(1, max(options.traces // (options.kills + 1), 1))
            while process.poll() is None and len(list(folder.glob("killed.csv.parts/*.part"))) < wanted:
                time.sleep(0.005)
            killed += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
            counts.append(len(list(folder.glob("killed.csv.parts/*.part"))))
        subprocess.run([*command, str(output)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*command, str(folder / "whole.csv")], check=True, stdout=subprocess.DEVNULL)
        with output.open(newline="") as stream:
            rows = [(row["trace_id"], row["what_if"], row["gpu"]) for row in csv.DictReader(stream)]
        same = output.read_bytes() == (folder / "whole.csv").read_bytes()
        print(f"{killed} runs killed, with {counts} of {options.traces} traces done")
        print(f"{len(rows):,} rows, {len(set(rows)):,} different, the same bytes as of a whole run: {same}")


def copy_traces(folder: Path, count: int) -> None:
    """Write `count` small traces of different content."""
    import gzip

    folder.mkdir()
    smallest = sorted(SAMPLES.glob("*-inference-*.json.gz"), key=lambda path: path.stat().st_size)[:8]
    for number in range(count):
        source = smallest[number % len(smallest)]
        if number < len(smallest):
            shutil.copy(source, folder / f"{number:05d}.json.gz")
        else:
            text = gzip.decompress(source.read_bytes()) + b" " * number
            (folder / f"{number:05d}.json.gz").write_bytes(gzip.compress(text, 1, mtime=0))


if __name__ == "__main__":
    main()
