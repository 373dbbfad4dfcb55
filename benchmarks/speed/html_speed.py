"""Times the HTML report of the largest samples as a user has it, each written by a process of its own.

Run: python -m benchmarks.speed.html_speed       # the three largest samples; exit status 1 where a bar is missed
     … --browser                                 # and how long a browser takes until all charts are drawn
     … trace.json.gz other.json                  # other traces

Bars: writing the report, once the prediction is there, 3 s; the file, 5 MB. The whole process is told beside them, and
the processor's time, which other work on the machine hardly changes. The largest samples are those of most recorded
ops, of different models.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import wavecast
from wavecast.formats.files.open import load_trace

SAMPLES = Path(__file__).parents[2] / "samples"
ROUNDS = 3
WRITE_S, FILE_BYTES = 3.0, 5e6
WRITE = """
import sys, time, wavecast
report = wavecast.analyze(sys.argv[1])
begin, begin_cpu = time.perf_counter(), time.process_time()
report.save(sys.argv[2])
print(time.perf_counter() - begin, time.process_time() - begin_cpu)
"""


def largest_samples(count: int) -> list[Path]:
    """Return the samples of most ops, one per model."""
    sizes = dict[str, tuple[int, Path]]()
    for path in sorted(SAMPLES.glob("*-shapes.json.gz")):
        name, found = path.name.split("-")[0], (len(load_trace(path).ops.name), path)
        sizes[name] = max(sizes.get(name, found), found)
    return [path for _, path in sorted(sizes.values(), reverse=True)[:count]]


def timed(command: list[str]) -> tuple[float, str]:
    """Return how long a process takes, s, and what it prints."""
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, done.stdout


def draw_times(paths: list[Path]) -> Iterator[float]:
    """Yield how long a browser takes from opening each file until its charts are drawn, s."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import WebDriverWait

    options = ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    browser = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    drawn = "return document.documentElement.dataset.charts"
    for path in paths:
        begin = time.perf_counter()
        browser.get(path.as_uri())
        WebDriverWait(browser, 60, 0.02).until(lambda page: page.execute_script(drawn) == "drawn")
        yield time.perf_counter() - begin
    browser.quit()


def main() -> int:
    """Print a line per trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--browser", action="store_true")
    asked = parser.parse_args()
    print(f"wavecast {wavecast.__version__}; the median of {ROUNDS}")
    missed, written = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for path in asked.traces or largest_samples(3):
            out = Path(folder) / f"{path.name}.html"
            runs = [timed([sys.executable, "-c", WRITE, str(path), str(out)]) for _ in range(ROUNDS)]
            told = [[float(word) for word in text.split()] for _, text in runs]
            (write_s, cpu_s), size = map(median, zip(*told, strict=True)), out.stat().st_size
            missed += write_s > WRITE_S or size > FILE_BYTES
            written.append(out)
            whole_s = median(taken for taken, _ in runs)
            print(
                f"{path.name}: written in {write_s:.2f} s ({cpu_s:.2f} s of processor), whole process {whole_s:.2f} s, "
                f"{size / 1e6:.2f} MB"
            )
        if asked.browser:
            for out, taken in zip(written, draw_times(written), strict=True):
                print(f"{out.name}: drawn by a browser in {taken:.2f} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
