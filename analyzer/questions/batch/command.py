"""`wavecast.batch` and the `batch` command: many traces on many GPUs under what-ifs, as one table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError, OutputError, parameter, spells_options
from ....progress import progress_on_stderr
from ....records import dataclass, field, fields, replace
from ...asking.answer import Drawn, Report, as_names
from ...asking.choice import GPU_NAMES, DatacenterOnly
from ...asking.command import FAILED_EXIT_CODE, WavecastCommand
from ...asking.declared import COUNT, FILE, HelpPart, asks, declare, grouped_option, option, options_of, repeated
from ...asking.inputs import GpuFile
from ...asking.output import OutputPath, screen_for, write_result
from ...asking.prices import Prices
from ...asking.question import find_named
from ...asking.what_ifs import OpWhatIfs, VariedWhatIfs
from ...page.encoding import Field, FieldTable, encode_csv
from ...whatif.scenario import LaunchWhatIfs
from .columns import COLUMNS
from .workers import Rows

if TYPE_CHECKING:
    from ...page.page import Page
    from .inputs import BatchInput
    from .parts import PartFolder
    from .question import BatchQuestion
    from .report import BatchReport, MixRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracesReport(Report):
    """Hold what a batch comes to: `report` sums it up, its table `predictions` has a row per trace, what-if and GPU."""

    report: BatchReport
    output: Path
    """The file that the table is in."""
    folder: PartFolder
    inputs: tuple[BatchInput, ...]

    def _drawn(self) -> Drawn:
        from .page import describe_batch, draw_batch_json
        from .report import all_rows

        return Drawn(
            page=lambda: describe_batch(self.report, output=self.output.name),
            json=lambda: draw_batch_json(self.report),
            tables={"predictions": lambda: _prediction_table(all_rows(self.folder, self.inputs))},
        )

    def illustrated_page(self) -> Page:
        """Return it with charts."""
        from .charts import illustrate_batch
        from .report import times_of

        return illustrate_batch(self.page(), times_of(self.folder, self.inputs))

    def _headline(self) -> str:
        from ...page.quantity import format_count

        failed = f", {len(self.report.failures)} failed" if self.report.failures else ""
        return f"of {format_count(len(self.inputs), 'trace')}: {format_count(self.report.row_count, 'row')}{failed}"


@dataclass(frozen=True, kw_only=True)
class BatchOptions(DatacenterOnly, LaunchWhatIfs, OpWhatIfs, Prices, GpuFile):
    """Hold what may be asked of many traces."""

    to: str | Sequence[str] = option(
        HelpPart.GPUS,
        "Predict for this GPU only; several with commas, or repeat. Default: every catalogued GPU.",
        **GPU_NAMES,
    )
    batch: int | Sequence[int] = repeated(VariedWhatIfs, "batch")
    sequence_length: int | Sequence[int] = repeated(VariedWhatIfs, "sequence_length")
    precision: str | Sequence[str] = repeated(VariedWhatIfs, "precision")
    host: float | str | Path | Sequence[float | str | Path] = repeated(VariedWhatIfs, "host")
    as_recorded: bool = option(HelpPart.WHAT_IF, "Beside what-ifs, ask what was recorded, too.", default=False)
    weights: str | Path | None = option(
        HelpPart.MONEY,
        "Runs per day by trace, tag or workload: CSV of name and number, or TOML. Adds the cheapest mix of GPUs.",
        **FILE,
    )
    max_kinds: int | None = option(HelpPart.MONEY, "GPU types that the mix may have.", **COUNT)
    utilisation: float | None = option(
        HelpPart.MONEY,
        "How busy a GPU of the mix may be. Default: 1.",
        type=click.FloatRange(min=0, max=1, min_open=True),
        metavar="RATIO",
    )
    jobs: int | None = option(HelpPart.INPUT, "Processes. Default: one per core.", **COUNT)
    restart: bool = option(HelpPart.INPUT, "Throw away what an earlier run kept, and begin anew.", default=False)
    output: str | Path = field(
        metadata=declare(
            HelpPart.OUTPUT,
            "The table (.parquet, .csv), or a report with charts (.html). What is done is kept in FILE.parts.",
            "-o",
            "--output",
            type=OutputPath(path_type=Path),
            metavar="FILE",
        )
    )


@asks(BatchOptions)
def batch(traces: str | Path | Sequence[str | Path], asked: BatchOptions) -> TracesReport:
    """Predict many traces on many GPUs under what-ifs, as one table in a file, and say which GPUs carry them for least.

    `traces` are files, folders, patterns and archives. `output` ends in .parquet, .csv or .html; what is done is kept
    in a folder beside it, so that the same call goes on where it was ended. `batch`, `sequence_length`, `precision` and
    `host` take one value or several: every combination is asked. The keywords mean what the options of `batch` of the
    same names do. Processes are started (`jobs`): a script calls this below `if __name__ == "__main__":`.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued, OutputError
    where the file cannot be written. What a trace refuses is in `report.failures`.
    """
    from .answer import answer_input
    from .inputs import find_inputs, read_weights
    from .parts import PartFolder, parts_path
    from .question import describe_settings
    from .report import report_batch
    from .workers import fill_parts

    path, gpu_file = Path(asked.output), None if asked.gpu_file is None else Path(asked.gpu_file)
    question = _question(asked)
    _check_output(path)
    mix = _mix(asked)
    runs = None if asked.weights is None else read_weights(Path(asked.weights))
    found = find_inputs(as_names(traces, "traces"))
    # The table must not take the place of a trace.
    target = str(path.resolve())
    for item in found.inputs:
        if not item.in_archive and item.location == target:
            raise InputError(f"{parameter('output', path)}: it is one of the traces; write to another file")
    folder = PartFolder(parts_path(path), describe_settings(question, gpu_file))
    folder.open(restart=asked.restart)
    work, count = partial(answer_input, question, spells_options()), asked.jobs or os.cpu_count() or 1
    unanswered = fill_parts(folder, found.inputs, work, count)
    report = report_batch(folder, found.inputs, unanswered, weights=runs, mix=mix)
    skipped = tuple(item for item in found.skipped if Path(item.name).name != path.name)
    answer = TracesReport(report=replace(report, skipped=skipped), output=path, folder=folder, inputs=found.inputs)
    if report.row_count:
        from ....formats.files.open import write_atomic
        from .report import all_rows

        suffix = answer.output.suffix.lower()
        encode = {PARQUET: _encode_parquet, CSV: _encode_csv}.get(suffix)
        rows = all_rows(answer.folder, answer.inputs)
        write_atomic(answer.output, answer.draw("html").encode() if encode is None else encode(rows))
    return answer


def _check_output(output: Path) -> None:
    """Raise InputError for another ending than tables have, OutputError where it cannot be written."""

    suffix = output.suffix.lower()
    if suffix not in (*TABLE_SUFFIXES, HTML):
        endings = f"{', '.join(TABLE_SUFFIXES)} or {HTML}"
        raise InputError(
            f"{parameter('output', output)}: expected a file that ends in {endings}; found {suffix or 'no ending'}"
        )
    if output.is_dir():
        raise OutputError(f"{parameter('output', output)}: it is a directory; name a file in it")
    if not output.parent.is_dir():
        raise OutputError(f"{parameter('output', output)}: its directory does not exist")
    if suffix == HTML:
        from ...page.vega import chart_library

        chart_library()
    if suffix == PARQUET:
        _pyarrow("parquet")


def _question(asked: BatchOptions) -> BatchQuestion:
    from ....specs.prices.book import prices_of
    from ...host.speed import check_host
    from .question import BatchQuestion, combine_changes, installed_identity

    gpus = find_named(as_names(asked.to), None, asked.gpu_file)
    given = asked.host
    hosts = tuple(map(str, [given] if isinstance(given, str | Path | float | int) else given))
    for text in hosts:
        check_host(text)
    several = {
        "batch": _counts(asked.batch),
        "sequence_length": _counts(asked.sequence_length),
        "precision": as_names(asked.precision, "precision"),
        "host": hosts,
    }
    alike = {item.name: getattr(asked, item.name) for kind in (LaunchWhatIfs, OpWhatIfs) for item in fields(kind)}
    changes = combine_changes(several, alike, as_recorded=asked.as_recorded)
    for change in changes:
        change.check_sizes()
    prices = asked.book(gpus.catalog)
    return BatchQuestion(
        catalog=gpus.catalog,
        targets=asked.of_class(gpus),
        changes=changes,
        prices=prices or prices_of(gpus.catalog),
        has_own_prices=prices is not None,
        identity=installed_identity(),
    )


def _counts(value: int | Sequence[int]) -> Sequence[int]:
    return value if isinstance(value, Sequence) else [value]


def _mix(asked: BatchOptions) -> MixRequest | None:
    """Return what a mix has to keep to; None where nothing was said of it."""
    from .report import MixRequest

    max_kinds, utilisation = asked.max_kinds, asked.utilisation
    if max_kinds is None and utilisation is None:
        return None
    if utilisation is not None and not 0 < utilisation <= 1:
        raise InputError(f"{parameter('utilisation', f'{utilisation:g}')}: expected a ratio above 0 and up to 1")
    if asked.weights is None:
        raise InputError(
            f"{parameter('max_kinds')} and {parameter('utilisation')} are for a mix of GPUs: add "
            f"{parameter('weights', 'FILE')}"
        )
    return MixRequest(max_kinds=max_kinds, utilisation=utilisation or 1.0)


CSV: Final = ".csv"
PARQUET: Final = ".parquet"
HTML: Final = ".html"
TABLE_SUFFIXES: Final = (PARQUET, CSV)
_GROUP_ROWS: Final = 100_000
"""Rows that lie together in a Parquet file, and in memory."""


def _prediction_table(rows: Iterable[Rows]) -> FieldTable:
    """Return the table in memory."""
    fields = tuple(Field(name=name, kind=kind) for name, kind in COLUMNS.items())
    lines = (line for some in rows for line in zip(*(some[item.name] for item in fields), strict=True))
    return FieldTable(fields=fields, rows=tuple(lines))


def _encode_csv(rows: Iterable[Rows]) -> bytes:
    lines = (row for some in rows for row in zip(*(some[name] for name in COLUMNS), strict=True))
    return encode_csv(tuple(COLUMNS), lines).encode()


def _encode_parquet(rows: Iterable[Rows]) -> bytes:
    arrow, parquet = _pyarrow("lib"), _pyarrow("parquet")
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([arrow.field(name, types[kind]) for name, kind in COLUMNS.items()])
    buffer = BytesIO()
    with parquet.ParquetWriter(buffer, schema, compression="zstd") as writer:
        waiting: list[Any] = []
        for some in rows:
            waiting.append(arrow.RecordBatch.from_pydict(some, schema=schema))
            if sum(item.num_rows for item in waiting) >= _GROUP_ROWS:
                writer.write_table(arrow.Table.from_batches(waiting, schema), row_group_size=_GROUP_ROWS)
                waiting = []
        if waiting:
            writer.write_table(arrow.Table.from_batches(waiting, schema), row_group_size=_GROUP_ROWS)
    return buffer.getvalue()


def _pyarrow(part: str) -> Any:
    try:
        return import_module(f"pyarrow.{part}")
    except ImportError:
        raise InputError("a Parquet table is written by pyarrow: pip install 'wavecast[batch]', or -o x.csv") from None


_FORMATS: Final = ("table", "json", "markdown")
_SHOWN_NAMES: Final = 20


@click.command("batch", cls=WavecastCommand)
@click.argument("traces", metavar="FILE|FOLDER|PATTERN|archive://…", nargs=-1, required=True)
@options_of(BatchOptions)
@grouped_option(
    HelpPart.OUTPUT,
    "Of the summary.",
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="table",
    show_default=True,
)
def batch_command(traces: tuple[str, ...], output: Path, form: str, **asked: Any) -> None:
    """Predict many traces on many GPUs under what-ifs, as one table, and say which GPUs carry them for the least money.

    Traces are files, what folders (with all below them) and patterns hold of traces, and an archive's:
    archive://DIR, archive://DIR#ID or "archive://DIR?QUERY". A run that was ended goes on where it was
    when it is started again; so does one to which traces were added.

    \b
    Examples:
      batch traces/ -o results.parquet
      batch "runs/*.json.gz" --to h100 --batch 8 --batch 16 -o results.csv
      batch "archive://traces?model~llama" --weights runs.csv -o fleet.parquet
    """
    from .parts import parts_path

    with progress_on_stderr("Predicting"):
        try:
            answer = batch(traces, output=output, **asked)
        except KeyboardInterrupt:
            kept = parts_path(output)
            if kept.is_dir():
                click.echo(f"Ended; what is done is kept in {kept.name}: the same command goes on.", err=True)
            raise
    write_result(answer.draw(form, screen_for(None)), None)
    report = answer.report
    _say("passed over", ((item.name, item.reason) for item in report.skipped))
    _say("failed", ((f"{item.trace}{f' ({item.what_if})' * bool(item.what_if)}", item.reason)
                    for item in report.failures))  # fmt: skip
    if report.failures:
        click.get_current_context().exit(FAILED_EXIT_CODE)


def _say(what: str, found: Iterable[tuple[str, str]]) -> None:
    """Write to stderr what became of which traces, a line for each reason; JSON holds all names."""
    from ....formats.trace.printable import clean_text

    names = dict[str, list[str]]()
    for name, reason in found:
        names.setdefault(clean_text(" ".join(reason.split())), []).append(clean_text(name))
    for reason, named in names.items():
        more = f" and {len(named) - _SHOWN_NAMES:,} more" if len(named) > _SHOWN_NAMES else ""
        click.echo(f"{', '.join(named[:_SHOWN_NAMES])}{more}: {what}: {reason}", err=True)
