"""`wavecast.validate` and the `validate` command: a prediction beside what the predicted GPU really took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....records import dataclass, replace
from ...asking.answer import Drawn, Report, trace_name
from ...asking.choice import GPU_NAME
from ...asking.command import report_command
from ...asking.declared import LIST_LENGTH, HelpPart, asks, option
from ...asking.inputs import AskedIteration, AskedSource, Captures, Recover, TracePath
from ...asking.keywords import check_iteration
from ...asking.question import find_one, read_catalog, read_trace, refuse_input_twice
from ...asking.what_ifs import WhatIfs

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from ...page.page import Page
    from .report import Validation

SHORT_OP_COUNT: Final = 10
"""Ops compared in the page where nobody asks for more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ValidationReport(Report):
    """Hold a prediction beside a measurement: `report` has the figures. Its tables are `ops` and `unmatched`."""

    first_name: str
    second_name: str
    """Of the traces."""
    report: Validation
    """With all ops that were asked for."""
    shown_op_count: int | None = SHORT_OP_COUNT
    """Ops in its page and its JSON; None: all."""
    has_op_details: bool = False

    def _drawn(self) -> Drawn:
        from ...page.encoding import table_of
        from .page import compared_op_table, describe_validation, draw_validation_json
        from .report import Unmatched

        return Drawn(
            page=lambda: describe_validation(
                self._shortened(),
                source_name=self.first_name,
                target_name=self.second_name,
                detailed_ops=self.has_op_details,
            ),
            json=lambda: draw_validation_json(self._shortened()),
            tables={
                "ops": lambda: compared_op_table(self.report),
                "unmatched": lambda: table_of(self.report.unmatched, Unmatched),
            },
        )

    def illustrated_page(self) -> Page:
        """Return it under its headline."""
        from ...page.plot import place_charts

        return place_charts(self.page(), headline=f"Validation {self._headline()}")

    def _shortened(self) -> Validation:
        return replace(self.report, ops=self.report.ops[: self.shown_op_count])

    def _headline(self) -> str:
        from ...page.quantity import format_error

        where = f"from {self.report.source.gpu or 'shapes'} to {self.report.target.gpu}"
        return f"{where}: iteration {format_error(self.report.iteration.error_ratio)} off"


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(WhatIfs, AskedIteration, Captures, Recover, AskedSource):
    """Hold what may be asked of a prediction beside a measurement."""

    to: str | None = option(
        HelpPart.GPUS, "The GPU of MEASURED_ON_TARGET, where that does not say it or says it wrongly.", **GPU_NAME
    )
    ops: bool = option(HelpPart.OUTPUT, "List every op with its interval, bound and reason.", default=False)
    top: int | None = option(
        HelpPart.OUTPUT,
        f"Ops listed, those with the largest errors; 0: none. Default: {SHORT_OP_COUNT}, with --ops or CSV all.",
        **LIST_LENGTH,
    )


@asks(ValidateOptions)
def validate(first: str | Path | Trace, second: str | Path | Trace, asked: ValidateOptions) -> ValidationReport:
    """Predict the GPU of `second` from the trace `first` of the same work, and compare with what `second` measured.

    `source` and `to` are the GPUs of the two, where the traces do not say them. `top` limits the ops that are listed,
    `ops` shows them all, with bounds and reasons. What-ifs are asked of `first`: `second` measured them. The other
    keywords mean what the options of `validate` of the same names do.
    Raises InputError for what cannot be read or compared, UnknownGpuError for a GPU that is not catalogued, and
    TraceError for a file that is no trace.

    >>> pair = [f"samples/bert_small-inference-bf16-b1-{gpu}.json.gz" for gpu in ("h100", "mi300x")]
    >>> report = validate(*pair)
    >>> report.report.target.gpu, report.tables
    ('Instinct MI300X', ('ops', 'unmatched'))
    """
    from ...prediction.capture_join import join_either
    from .validation import validate_traces

    refuse_input_twice(first, second)
    catalog = read_catalog(asked.gpu_file)
    measured, predicted = find_one(catalog, asked.source), find_one(catalog, asked.to)
    before, after = (read_trace(trace, joins=False, recover=asked.recover) for trace in (first, second))
    recorded = {str(path): read_trace(path, joins=False) for path in asked.captures or ()}
    before, after = join_either((before, after), recorded)
    report = validate_traces(
        before,
        after,
        catalog,
        source=measured,
        target=predicted,
        op_limit=asked.top,
        scenario=asked.scenario(before),
        iteration=check_iteration(asked.iteration),
    )
    return ValidationReport(
        first_name=trace_name(first),
        second_name=trace_name(second),
        report=report,
        shown_op_count=SHORT_OP_COUNT if asked.top is None and not asked.ops else None,
        has_op_details=asked.ops,
    )


@report_command("validate", ValidateOptions, label="Reading the traces")
@click.argument("first", type=TracePath(), metavar="PREDICTED_FROM")
@click.argument("second", type=TracePath(), metavar="MEASURED_ON_TARGET")
@click.argument("more", type=TracePath(), metavar="[MORE PAIRS]...", nargs=-1)
def validate_command(first: Path, second: Path, more: tuple[Path, ...], **asked: Any) -> Report:
    """Predict the GPU of one trace from another and compare.

    Two traces of the same workload: PREDICTED_FROM, on any GPU or of shapes alone, is predicted on
    the GPU of MEASURED_ON_TARGET, and held against what that took: the iteration and what its error
    comes from, every family of kernels, and the ops that are furthest off. Ops are matched by what
    they compute, on which shapes, and by order; names may differ between vendors and versions.
    More traces, in pairs, give a table of all pairs instead, and the mean errors by the two GPUs.

    \b
    Examples:
      wavecast validate h100.json.gz mi300x.json.gz
      wavecast validate shapes.json.gz l40s.json.gz --ops
      wavecast validate h100.json.gz h200.json.gz --host 1.1 -o out.json
      wavecast validate h100.json.gz h200.json.gz --iteration longest
      wavecast validate a.h100.json a.h200.json b.h100.json b.h200.json
    """
    from .pairs import PairRow, pair_row, validate_pairs

    def compare(one: Path, other: Path) -> PairRow:
        found = validate(one, other, **asked)
        return pair_row(found.first_name, found.second_name, found.report)

    return validate_pairs((first, second, *more), compare) if more else validate(first, second, **asked)
