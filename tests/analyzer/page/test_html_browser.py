"""HTML in a browser: charts are drawn, nothing is fetched, no error is logged, keys work, and phones are wide enough.

Needs chromium and its driver (Debian: chromium, chromium-driver); what lacks them skips, and says so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wavecast

pytest.importorskip("selenium", reason="needs selenium")
pytest.importorskip("vl_convert", reason="needs vl-convert-python")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
SAMPLE = "gpt2_small-training-bf16-b4-shapes.json.gz"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = Chrome(options=options, service=Service(driver))
    found.get("data:text/html,ready")
    found.get_log("performance")  # type: ignore[no-untyped-call]
    yield found
    found.quit()


@pytest.fixture(scope="module")
def report(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    wavecast.analyze(root_dir / "samples" / SAMPLE).save(path)
    return path


def opened(browser: Any, path: Path, *, width: int, scheme: str = "light") -> Any:
    """Open a file at a width and wait for its charts."""
    from selenium.webdriver.support.ui import WebDriverWait

    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(path.as_uri())
    WebDriverWait(browser, 60).until(
        lambda page: page.execute_script("return document.documentElement.dataset.charts") == "drawn"
    )
    return browser


def requested(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [item["params"]["request"]["url"] for item in messages if item["method"] == "Network.requestWillBeSent"]


def test_charts_are_drawn_without_a_request_or_an_error(browser: Any, report: Path) -> None:
    page = opened(browser, report, width=1280)
    asked = [url for url in requested(page) if not url.startswith(("chrome:", "data:"))]
    assert asked == [report.as_uri()]
    assert page.get_log("browser") == []
    states = page.execute_script("return [...document.querySelectorAll('.chart')].map((item) => item.dataset.state)")
    assert states == ["drawn"] * 6
    labels = page.execute_script(
        "return [...document.querySelectorAll('.chart svg')].map((item) => [item.getAttribute('role'),"
        " item.getAttribute('aria-label').length > 40, item.querySelectorAll('path').length > 3])"
    )
    assert labels == [["img", True, True]] * 6


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_wider_than_the_window(browser: Any, report: Path, width: int) -> None:
    page = opened(browser, report, width=width)
    beyond = "const { scrollWidth, clientWidth } = document.documentElement; return scrollWidth - clientWidth"
    assert page.execute_script(beyond) == 0
    assert page.execute_script("return document.querySelector('.chart svg').clientWidth") > 0.6 * min(width, 1000)


def test_switches_work_by_key(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    page = opened(browser, report, width=1280)
    legend = "return document.querySelector('section:has(input[type=radio]) .chart svg').textContent"
    before = page.execute_script(legend)
    assert "matmul" in before
    page.find_element(By.CSS_SELECTOR, "input[type=radio]:checked").send_keys(Keys.ARROW_DOWN)
    WebDriverWait(page, 10).until(lambda page: "addmm" in page.execute_script(legend))
    after = page.execute_script(legend)
    assert page.switch_to.active_element.get_attribute("value") == "op"
    assert "matmul" not in after
    select = page.find_element(By.CSS_SELECTOR, "section:has(input[type=radio]) select")
    select.send_keys("AMD")
    shown = page.execute_script(legend)
    assert "Instinct" in shown
    assert "H200" not in shown
    unlabelled = "return [...document.querySelectorAll('input, select')].filter((item) => !item.labels.length).length"
    assert page.execute_script(unlabelled) == 0


def test_all_rows_are_shown_by_key(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from wavecast.analyzer.page.columns import text_column
    from wavecast.analyzer.page.html import draw_html
    from wavecast.analyzer.page.page import build_page
    from wavecast.analyzer.page.sheet import Sheet

    path = tmp_path / "long.html"
    names = [f"gpu {number}" for number in range(90)]
    path.write_text(draw_html(build_page(Sheet(title="All", columns=(text_column("GPU", names),)))), encoding="utf-8")
    browser.get(path.as_uri())
    count = "return [...document.querySelectorAll('tbody tr')].filter((item) => item.offsetParent).length"
    assert browser.execute_script(count) < 30
    browser.find_element(By.CSS_SELECTOR, "input.switch").send_keys(Keys.SPACE)
    assert browser.execute_script(count) == 90


def test_charts_follow_the_scheme_and_print_in_light(browser: Any, report: Path) -> None:
    page = opened(browser, report, width=1280, scheme="dark")
    colour = "return getComputedStyle(document.querySelector('.chart .role-axis-label text')).fill"
    dark = page.execute_script(colour)
    for media in ({"features": [{"name": "prefers-color-scheme", "value": "light"}]}, {"media": "print"}):
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", **media})
        assert page.execute_script(colour) != dark
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_hostile_names_are_text_in_tooltips_and_switches(browser: Any, tmp_path: Path) -> None:
    from wavecast.analyzer.page.html import draw_html
    from wavecast.analyzer.page.page import Chart, build_page
    from wavecast.analyzer.page.plot import choice

    name = "</script><img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    spec = {
        "height": 200,
        "params": [choice("chosen", name, [name, "other"])],
        "mark": {"type": "bar", "color": "#777"},
        "encoding": {
            "y": {"field": "name", "type": "nominal"},
            "x": {"field": "time", "type": "quantitative"},
            "tooltip": [{"field": "name", "title": name}],
        },
    }
    chart = Chart(title=name, description=name, spec=spec, rows=[{"name": name, "time": 3}])
    path = tmp_path / "hostile.html"
    path.write_text(draw_html(build_page(chart)), encoding="utf-8")
    page = opened(browser, path, width=800)
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    ActionChains(page).move_to_element(page.find_element(By.CSS_SELECTOR, ".mark-rect path")).perform()
    tip = page.execute_script("return document.getElementById('vg-tooltip-element').textContent")
    assert "<img src=x" in tip
    assert page.title == "wavecast"
    assert page.execute_script("return document.images.length") == 0
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
