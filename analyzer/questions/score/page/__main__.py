"""Writes docs/evidence/accuracy.md from a score, and keeps a copy of the score.

Usage: python -m wavecast.analyzer.questions.score.page SCORE.json -o docs/evidence/accuracy.md
    [--keep docs/evidence/accuracy.json.gz]

SCORE.json (or .json.gz) is what `wavecast score DATA --leave-one-out --format json` writes.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

from .....errors import InputError, WavecastError
from ..report import Score


def read_score(path: Path) -> Score:
    """Return the score that a file holds, gzipped or not."""
    import orjson

    from .records import read_score_json

    try:
        content = path.read_bytes()
        return read_score_json(orjson.loads(gzip.decompress(content) if path.suffix == ".gz" else content))
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{path}: no readable score ({error})") from error


def write_page(score: Score, page: Path, keep: Path | None = None) -> None:
    """Write the page and, where asked for, a gzipped copy of the score that is the same for the same score."""
    from .....formats.files.open import write_atomic
    from ....page.markdown import draw_markdown
    from .accuracy import describe_accuracy
    from .records import draw_score_json

    write_atomic(page, draw_markdown(describe_accuracy(score)).encode())
    if keep is not None:
        write_atomic(keep, gzip.compress(draw_score_json(score).encode(), mtime=0))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("score", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="also write the score here, gzipped")
    options = parser.parse_args()
    try:
        write_page(read_score(options.score), options.output, options.keep)
    except WavecastError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
