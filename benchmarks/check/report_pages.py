"""Writes the HTML reports of all commands but `analyze` and opens them in a browser: size, time, errors, requests.

Run: python -m benchmarks.check.report_pages                  # of the samples and docs/accuracy.json.gz
     … --traces FOLDER                                        # and `show` and `replay` of each trace there
     … --keep FOLDER                                          # keep the files

Bars: a report is written in 3 s of CPU once its figures are there, and has under 5 MB; every chart is drawn at 390,
1280 and 1920 pixels, with nothing in the browser's log, nothing fetched and nothing wider than the window. Exit status
1 where one is missed. Needs selenium, chromium and its driver.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import wavecast
from wavecast.analyzer.page.html import draw_html
from wavecast.analyzer.page.page import Page
from wavecast.analyzer.questions.score.page.__main__ import read_score
from wavecast.analyzer.questions.score.page.charts import illustrate_score
from wavecast.errors import WavecastError

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
WRITE_S, FILE_BYTES = 3.0, 5e6
WIDTHS = (390, 1280, 1920)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
STATES = "return [...document.querySelectorAll('.chart')].map((item) => item.dataset.state)"
Build = Callable[[], Page]


def reports(traces: Path | None) -> Iterator[tuple[str, Build]]:
    """Yield what to write: a name, and what computes the figures and returns the page's builder."""
    pair = [SAMPLES / f"vit_small-inference-bf16-b4-{gpu}.json.gz" for gpu in ("h100", "mi300x")]
    both = [SAMPLES / f"vit_b16-training-{precision}-b32-shapes.json.gz" for precision in ("fp32", "bf16")]
    score = read_score(ROOT / "docs" / "accuracy.json.gz")
    plans = wavecast.scale(
        SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz", to=["h100", "b200"], gpus=[8, 64, 512]
    )
    yield "scale", plans.illustrated_page
    yield "validate", wavecast.validate(*pair).illustrated_page
    yield "compare", wavecast.compare(*both, on=["h100", "l40s"], max_slowdown="3%").illustrated_page
    yield "score", lambda: illustrate_score(score)
    measured = sorted(traces.glob("*.json.gz")) if traces is not None else pair
    for path in measured:
        yield f"show {path.name}", wavecast.overview(path).illustrated_page
        try:
            yield f"replay {path.name}", wavecast.replay(path).illustrated_page
        except WavecastError as error:
            print(f"replay {path.name}: {error}")
    ranks = sorted(traces.glob("*_rank?.json.gz")) if traces is not None else []
    if len(ranks) > 1:
        yield "ranks", wavecast.ranks(ranks).illustrated_page


def open_browser() -> Any:
    """Return a browser without a window that logs what it is asked for."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(shutil.which("chromedriver")))


def faults(browser: Any, path: Path) -> Iterator[str]:
    """Yield what is wrong with a file in the browser."""
    from selenium.webdriver.support.ui import WebDriverWait

    for width in WIDTHS:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(path.as_uri())
        WebDriverWait(browser, 60).until(
            lambda page: page.execute_script("return document.documentElement.dataset.charts") == "drawn"
        )
        undrawn = [state for state in browser.execute_script(STATES) if state != "drawn"]
        if undrawn:
            yield f"{len(undrawn)} charts are not drawn at {width} px"
        if browser.execute_script("return document.documentElement.scrollWidth > window.innerWidth"):
            yield f"it is wider than {width} px"
        yield from (entry["message"] for entry in browser.get_log("browser"))
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [item["params"]["request"]["url"] for item in messages if item["method"] == "Network.requestWillBeSent"]
    yield from (f"asks for {url}" for url in asked if url != path.as_uri() and not url.startswith(("data:", "chrome:")))


def main() -> int:
    """Print a line per report, and what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--keep", type=Path)
    asked, missed, count = parser.parse_args(), 0, 0
    browser = open_browser()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        for name, build in reports(asked.traces):
            begin = time.process_time()
            text = draw_html(build())
            took_s, path = time.process_time() - begin, folder / f"{name.replace(' ', '-')}.html"
            path.write_text(text, encoding="utf-8")
            found = list(faults(browser, path.resolve()))
            size = path.stat().st_size
            missed += bool(found) or took_s > WRITE_S or size > FILE_BYTES
            count += 1
            print(f"{name}: {took_s:.2f} s, {size / 1e6:.2f} MB", *found, sep="\n  ")
    browser.quit()
    print(f"{count} reports, {missed} with a fault")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
