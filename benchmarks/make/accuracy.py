"""Write docs/evidence/accuracy.md from a score, and keep a copy of the score.

    python -m benchmarks.make.accuracy SCORE.json -o docs/evidence/accuracy.md [--keep docs/evidence/accuracy.json.gz]

SCORE.json (or .json.gz) is what `wavecast score DATA --leave-out chips --format json` writes.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from msgspec import ValidationError, convert
from wavecast.analyzer.page.columns import count_column, number_column, text_column
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.page.page import Line, Page, Passage, Tone, build_page
from wavecast.analyzer.page.quantity import format_count, percent
from wavecast.analyzer.page.sheet import Sheet
from wavecast.analyzer.questions.score.end_to_end import NETWORKS, OP_SUM
from wavecast.analyzer.questions.score.page import iterations, own
from wavecast.analyzer.questions.score.page.iterations import error_of
from wavecast.analyzer.questions.score.page.page import (
    decision_sheet,
    error_sheet,
    network_sheet,
    serving_sheet,
    trace_sheet,
    worst_sheet,
)
from wavecast.analyzer.questions.score.page.records import draw_score_json
from wavecast.analyzer.questions.score.report import (
    CLASS_LABELS,
    EVERYTHING,
    MEAN,
    SCORE_FORMAT,
    SCORE_VERSION,
    IterationScore,
    Score,
    ScoreRow,
    Size,
    ThroughputRow,
)
from wavecast.analyzer.questions.score.rows import ANCHORED, BANDWIDTH_RATIO, FITTED_ROOFLINE, ROOFLINE
from wavecast.analyzer.questions.score.throughput import THROUGHPUT
from wavecast.analyzer.work.indices import USUAL
from wavecast.arrays import group_by
from wavecast.errors import InputError, WavecastError
from wavecast.formats.files.open import write_atomic
from wavecast.formats.trace.printable import clean_text

WORST_GROUPS: Final = 15
LEAST_ROWS: Final = 30
"""A group of fewer rows is not called a worst one."""
TABLE_TITLES: Final = {
    "ops/matmul.parquet": "Matrix products",
    "ops/attention.parquet": "Attention",
    "ops/vector.parquet": "Elementwise ops, normalisation, softmax, copies, embedding",
    "ops/convolution.parquet": "Convolution",
    "ops/convolution_general.parquet": "Convolution in every direction and format",
    "ops/recurrent.parquet": "Recurrent layers",
    "ops/attention_backward.parquet": "Attention, backward",
    "ops/norm_backward.parquet": "Norms, forward and backward",
    "ops/batch_norm.parquet": "Batch norm",
    "ops/vector_liger.parquet": "Norms, losses and activations, timed by Liger's benchmarks",
    "ops/vector_kernelbench.parquet": "Pooling, reductions, losses and scans",
    "ops/moe.parquet": "Layers of experts",
    "ops/context_mla.parquet": "Latent attention of many queries",
    "ops/generation_mla.parquet": "Latent attention of one query",
    "ops/mla_bmm.parquet": "Products of latent attention",
    "ops/gdn.parquet": "Gated delta nets",
    "ops/mamba2.parquet": "Mamba-2",
    "ops/vector_more.parquet": "Elementwise ops, more sources",
    "ops/matmul_more.parquet": "Matrix products, more sources",
    "own/ops.parquet": "Our own measurements of single ops on an H100 and an H200",
    "models/neusight_ops.parquet": "Ops of networks, beside the predictions of others",
    "models/neusight_e2e.parquet": "Whole networks",
    THROUGHPUT: "Image models from their shapes alone",
}


def describe_accuracy(score: Score) -> Page:
    """Return the page: prose in Markdown, which names each table, and the tables."""
    return build_page(*map(_block, _sections(score)))


def _block(section: str | Sheet) -> Passage | Sheet:
    if isinstance(section, Sheet):
        return replace(section, title="")
    return Passage(lines=(Line(text=section, tone=Tone.MARKDOWN),))


def _sections(score: Score) -> Iterator[str | Sheet]:
    yield _section("head")
    yield from _own_lines(score)
    yield "## All ops together"
    everything = [row for row in score.rows if row.table == EVERYTHING]
    yield error_sheet("", everything)
    yield from _interval_lines(score.rows)
    yield from _baseline_lines(score.rows)
    for table in dict.fromkeys(row.table for row in score.rows if row.table != EVERYTHING):
        yield f"## {TABLE_TITLES.get(table, table)}"
        yield f"From `{table}`."
        yield error_sheet("", [row for row in score.rows if row.table == table])
        yield from _network_lines(score) if table == NETWORKS else ()
        yield from _throughput_lines(score.throughput) if table == THROUGHPUT else ()
    yield from _iteration_lines(score.iterations)
    yield from _recommender_lines(score.recommenders)
    if score.serving:
        yield "## Served models under load"
        yield from _paragraphs("serving")
        yield serving_sheet(score.serving)
    if score.decisions:
        yield "## Which GPU or plan is better"
        yield from _paragraphs("decisions")
        yield decision_sheet(score.decisions)
    if score.traces:
        yield "## Traces moved to another GPU"
        yield from _paragraphs("traces")
        yield trace_sheet(score.traces)
    groups = [row for row in score.rows if row.size is Size.OVER_20_US and _is_group(row) and row.rows >= LEAST_ROWS]
    if groups:
        groups.sort(key=lambda row: -row.mape)
        yield "## Worst cases"
        yield f"The {min(WORST_GROUPS, len(groups))} groups with the largest MAPE above 20 µs."
        yield _group_sheet(groups[:WORST_GROUPS])
    if score.worst:
        yield "And single rows above 20 µs, at most one of each group."
        yield worst_sheet(score.worst)
    yield _section("unmodelled")
    yield from (f"- {note}" for note in score.notes)
    yield "How well plain wave scaling does, without any fitted model: [method.md](method.md#wave-scaling)."


def _own_lines(score: Score) -> Iterator[str | Sheet]:
    if not score.own_networks:
        return
    yield "## Real iterations first"
    yield from _paragraphs("own")
    yield from own.summary(score.own_networks)
    yield own.family_sheet(score.own_families)
    yield own.recording_sheet(score.own_networks)


def _section(name: str, **values: object) -> str:
    """Return a section of the prose that stands in a file beside this one."""
    prose = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    text = prose.split(f"<!-- {name} -->\n")[1].split("\n<!-- ")[0]
    return text.format(**values).strip("\n")


def _paragraphs(name: str, **values: object) -> Iterator[str]:
    yield from (" ".join(text.split()) for text in _section(name, **values).split("\n\n"))


def _interval_lines(rows: Sequence[ScoreRow]) -> Iterator[str | Sheet]:
    pooled = [row for row in rows if row.table == EVERYTHING and row.size is Size.ALL and isfinite(row.coverage_90)]
    classes = set(CLASS_LABELS.values())
    over_all = [row for row in pooled if row.gpu == EVERYTHING]
    by_class = [row for row in pooled if row.gpu in classes]
    by_gpu = sorted((row for row in pooled if row.gpu not in {EVERYTHING, *classes}), key=lambda row: row.coverage_90)
    if over_all and by_gpu:
        low, high = by_gpu[0], by_gpu[-1]
        yield (
            f"The 90 % intervals hold {percent(over_all[0].coverage_90)} % of the measurements, by GPU from "
            f"{percent(low.coverage_90)} % ({low.gpu}) to {percent(high.coverage_90)} % ({high.gpu}). Half of them are "
            f"narrower than {percent(over_all[0].median_width_90)} % of the prediction. Their mean width is "
            f"{percent(over_all[0].width_90)} %, by GPU from {percent(min(row.width_90 for row in by_gpu))} % to "
            f"{percent(max(row.width_90 for row in by_gpu))} %."
        )
        yield _interval_sheet([*over_all, *by_class, low])


def _interval_sheet(rows: Sequence[ScoreRow]) -> Sheet:
    """Return coverage and width side by side: of all, of each class, and of the GPU whose intervals hold least."""
    names = [f"worst GPU: {row.gpu}" if row is rows[-1] else row.gpu for row in rows]
    columns = (
        text_column("GPUs", names),
        count_column("rows", (row.rows for row in rows)),
        number_column("in 90 % interval", (percent(row.coverage_90) for row in rows)),
        number_column("median width", (percent(row.median_width_90) for row in rows)),
        number_column("mean width", (percent(row.width_90) for row in rows)),
        number_column("MAPE", (percent(row.mape) for row in rows)),
    )
    return Sheet(title="", columns=columns)


def _baseline_lines(rows: Sequence[ScoreRow]) -> Iterator[str]:
    groups = [row for row in rows if row.size is Size.OVER_20_US and _is_group(row)]
    names = {
        ROOFLINE: "the roofline",
        FITTED_ROOFLINE: "the roofline with a fitted efficiency",
        BANDWIDTH_RATIO: "the bandwidth ratio",
    }
    parts = []
    for kind, name in names.items():
        known = [row for row in groups if kind in row.baselines]
        own = ANCHORED if kind == BANDWIDTH_RATIO else None
        better = sum(row.baselines.get(own or "", row.mape) < row.baselines[kind] for row in known)
        parts.append(f"{name} in {better} of {len(known)}")
    if groups:
        yield (
            f"Of the {len(groups)} groups of family, dtype and GPU with rows above 20 µs, wavecast's MAPE is lower "
            f"than that of {', '.join(parts)} (there anchored, so that both know the same)."
        )


def _network_lines(score: Score) -> Iterator[str | Sheet]:
    trusted = [row for row in score.networks if not row.is_suspect]
    if not trusted:
        return
    error = iterations.mean_error
    nvidia = [row for row in trusted if "Instinct" not in row.gpu]
    yield (
        "Each network is predicted from the shapes of its ops: its layers, what comes before and after them, and for "
        "training the backward and the accumulation of gradients. Peers' predictions are the table's; NeuSight was "
        "trained on these GPUs. Errors below are signed."
    )
    yield (
        f"Mean absolute error over {format_count(len(trusted), 'network')}: {percent(error(trusted))} %; over the "
        f"{len(nvidia)} on NVIDIA GPUs {percent(error(nvidia))} %, where the sum of the *measured* ops is off by "
        f"{percent(error(nvidia, OP_SUM))} %, NeuSight by {percent(error(nvidia, 'neusight'))} % and the "
        f"roofline by {percent(error(nvidia, ROOFLINE))} %."
    )
    yield network_sheet(score.networks)


def _throughput_lines(rows: Sequence[ThroughputRow]) -> Iterator[str | Sheet]:
    models, families = {row.model for row in rows}, {row.family for row in rows}
    yield from _paragraphs(
        "throughput",
        models=format_count(len(models), "timm model"),
        families=format_count(len(families), "family", "families"),
    )
    yield "Mean signed errors of eager runs by timm's source file, over all software versions:"
    yield timm_sheet(rows)
    worst = iterations.worst_model_sheet(rows)
    yield f"{worst.title}, run eagerly, each where it is worst:"
    yield worst


def _iteration_lines(rows: Sequence[IterationScore]) -> Iterator[str | Sheet]:
    if not rows:
        return
    yield "## Iterations on many GPUs"
    yield from _paragraphs("iterations")
    yield from iterations.guess_lines(rows)
    yield iterations.iteration_sheet(rows)
    worst = iterations.worst_iteration_sheet(rows)
    yield f"{worst.title}:"
    yield worst


def _recommender_lines(rows: Sequence[IterationScore]) -> Iterator[str | Sheet]:
    if not rows:
        return
    yield "## Recommenders on many GPUs"
    yield from _paragraphs("recommenders", spread=USUAL)
    yield iterations.recommender_sheet(rows)


def _group_sheet(rows: Sequence[ScoreRow]) -> Sheet:
    columns = (
        text_column("family, dtype", (f"{row.family}, {row.dtype}" for row in rows)),
        text_column("GPU", (row.gpu for row in rows)),
        count_column("rows", (row.rows for row in rows)),
        number_column("MAPE", (percent(row.mape) for row in rows)),
        number_column("bias", (percent(row.bias) for row in rows)),
        number_column("in 90 % interval", (percent(row.coverage_90) for row in rows)),
        number_column("median width", (percent(row.median_width_90) for row in rows)),
        number_column("mean width", (percent(row.width_90) for row in rows)),
        number_column("fitted roofline", (percent(row.baselines.get(FITTED_ROOFLINE)) for row in rows)),
    )
    return Sheet(title="", columns=columns)


def _is_group(row: ScoreRow) -> bool:
    return row.table.startswith("ops/") and row.gpu not in (EVERYTHING, MEAN)


def timm_sheet(rows: Sequence[ThroughputRow]) -> Sheet:
    """Return the mean signed error of each family of models, eagerly run, by GPU and layout, the worst first."""
    eager = [row for row in rows if not row.is_compiled]
    families = group_by(eager, lambda row: row.family)
    names = sorted(families, key=lambda name: -abs(_mean(error_of(row) for row in families[name]) or 0.0))
    groups = sorted({(row.gpu, row.layout) for row in eager})
    columns = [
        text_column("family", map(clean_text, names)),
        number_column("models", (str(len({row.model for row in families[name]})) for name in names)),
    ]
    for gpu, layout in groups:
        mine = [[row for row in families[name] if (row.gpu, row.layout) == (gpu, layout)] for name in names]
        columns.append(
            number_column(f"{gpu}, {layout.upper()}", (percent(_mean(map(error_of, found))) for found in mine))
        )
        moved = (percent(_mean(error_of(row, ANCHORED) for row in found)) for found in mine)
        columns.append(number_column("as ratio", moved))
    return Sheet(title="Mean signed error by family", columns=tuple(columns))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def read_score_json(document: Mapping[str, Any]) -> Score:
    """Return the score that a JSON document holds.

    Raises InputError where it is no score of a version that is known.
    """
    if document.get("format") != SCORE_FORMAT or str(document.get("version")).split(".")[0] != SCORE_VERSION[0]:
        found = f"{document.get('format')!r} {document.get('version')!r}"
        raise InputError(f"$.format: found {found}, expected {SCORE_FORMAT!r} {SCORE_VERSION!r}")
    try:
        return convert(_with_nan(dict(document)), Score)
    except ValidationError as error:
        raise InputError(f"$: no score of version {SCORE_VERSION} ({error})") from error


def _with_nan(value: Any) -> Any:
    """Return a document with NaN where null stands for it."""
    if isinstance(value, dict):
        return {
            name: float("nan") if item is None and name not in _OPTIONAL else _with_nan(item)
            for name, item in value.items()
        }
    return [_with_nan(item) for item in value] if isinstance(value, list) else value


_OPTIONAL: Final = frozenset(
    {"low_ns", "high_ns", "kendall_tau", "source", "moved_ns", "moved_iteration_ns"}
    | {"joules", "moved_joules", "moved_low_joules", "moved_high_joules"}
)
"""Fields that may be None; elsewhere null is NaN."""


def read_score(path: Path) -> Score:
    """Return the score that a file holds, gzipped or not."""
    try:
        content = path.read_bytes()
        return read_score_json(orjson.loads(gzip.decompress(content) if path.suffix == ".gz" else content))
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{path}: no readable score ({error})") from error


def write_page(score: Score, page: Path, keep: Path | None = None) -> None:
    """Write the page and, where asked for, a gzipped copy of the score that is the same for the same score."""
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
