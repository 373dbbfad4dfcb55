"""Draws the README's picture: the beginning of the HTML report of its first example, as a browser shows it.

Run: python -m benchmarks.make.report_picture [-o docs/report.png]

Needs Chromium (`apt-get install chromium`) and `pip install 'wavecast[html]'`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE = "1280,1240"
"""Of the window, in pixels: what a reader sees without scrolling."""
SETTLED_MS = 8000
"""Of the page's own clock, until its charts are drawn."""
_EXAMPLE = re.compile(r"^```console\n\$ (analyze .+)$", re.MULTILINE)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=PICTURE)
    output = parser.parse_args().output.resolve()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit("no Chromium here: apt-get install chromium")
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run([sys.executable, "-m", "wavecast", *example(), "-o", page], cwd=ROOT, check=True)
        photograph(browser, page, output)
    print(f"{output}: {output.stat().st_size:,} bytes")


def example() -> list[str]:
    """Return the words of the README's first example."""
    found = _EXAMPLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    if found is None:
        sys.exit("README.md: no ```console block that begins with `$ analyze`")
    return shlex.split(found[1])


def photograph(browser: str, page: Path, picture: Path, size: str = SIZE) -> None:
    """Let a browser without a window draw the beginning of a page."""
    words = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
    ]
    words += [f"--window-size={size}", f"--virtual-time-budget={SETTLED_MS}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(words, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
