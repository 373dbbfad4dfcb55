"""The `sweep` command: figures of a GPU, or sizes of an iteration, vary; where more stops to help, and why."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError
from ...asking.cluster_options import cluster_options, take_cluster
from ...asking.command import (
    WavecastCommand,
    capture_option,
    complete_gpu_names,
    execution_trace_option,
    gpu_file_option,
    iteration_option,
    name_of_trace,
    output_options,
    recover_option,
    source_option,
    trace_argument,
)
from ...asking.energy_options import energy_options, take_electricity
from ...asking.output import choose_format, screen_for, write_result
from ...asking.progress import progress_on_stderr
from ...asking.question import WhatIfs
from ...asking.what_if_options import take_host, what_if_options
from ...page.formats import REPORT_FORMATS, SUFFIXES
from ...page.picture import PICTURE_FORMATS

if TYPE_CHECKING:
    from ...iteration.decision.electricity import Electricity
    from .api import SensitivityAnswer, SweepAnswer

_ENDINGS: Final = {suffix: form for form, suffix in PICTURE_FORMATS.items()}


def _complete_parameters(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return what can be varied that holds what was typed, each with the sign that values follow."""
    from .axes import known_names

    if "=" in incomplete:
        return []
    return [f"{name}=" for name in known_names() if incomplete.casefold() in name.casefold()]


@click.command("sweep", cls=WavecastCommand)
@trace_argument
@click.option(
    "--on",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU that is varied. Default: the one that was measured.",
)
@click.option(
    "--vary",
    metavar="NAME=VALUES",
    multiple=True,
    shell_complete=_complete_parameters,
    help="What varies, and how; twice for two. Default: 1 % more of each figure of the GPU in turn.",
)
@click.option("--plan", metavar="PLAN", help="How GPUs share the iteration, for --vary gpus=8..512; see 'scale'.")
@click.option(
    "--global-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --plan: samples of an iteration on all GPUs. Default: a recorded batch for every GPU.",
)
@source_option()
@gpu_file_option
@cluster_options
@iteration_option()
@capture_option()
@execution_trace_option
@what_if_options
@energy_options
@output_options(*REPORT_FORMATS, *PICTURE_FORMATS)
@recover_option
def sweep(**options: Any) -> None:
    """Predict the iteration recorded in TRACE while one or two parameters vary.

    How much faster each value is, where more of it stops to help, and what the time goes to there.
    Without --vary: what 1 % more of each figure of the GPU's datasheet buys. A file that ends in
    .svg or .png gets the picture.

    \b
    Examples:
      sweep trace.json.gz --on h100sxm --vary memory.bandwidth=2x
      sweep trace.json.gz --on h100sxm --vary bandwidth=1x..4x -o sweep.svg
      sweep trace.json.gz --on l40s --vary bandwidth=1x..4x --vary sms=71,142
      sweep trace.json.gz --on a100sxm80 --vary batch=1..64 -o sweep.html
      sweep trace.json.gz --on h100sxm --vary gpus=8..512 --plan fsdp
      sweep trace.json.gz --on h100sxm

    \b
    Figures of the GPU; other numbers have the name of their catalogue key:
      memory.bandwidth  memory.size  memory.pin_rate  memory.bus  l2.size
      sms  clock        peak rates follow SM count x clock
      matrix  vector    the rates alone
      link.bandwidth  pcie.bandwidth  tdp
    Of the iteration:
      batch  sequence-length  cached-tokens  precision  host  gpus

    \b
    Values:
      1x..4x, 1x..4x:9      equal ratios: 17 points (9 of two parameters), nine
      8..64, 8..64:+8       sizes go in powers of two; steps of 8
      66,132,264            a list
      6.7TB/s 1.2GHz 700W   with a unit, else in the catalogue's
    """
    cluster, electricity = take_cluster(options), take_electricity(options)
    take_host(options)
    what_ifs = WhatIfs(**{item.name: options.pop(item.name, None) for item in fields(WhatIfs)})
    form, output = options.pop("form"), options.pop("output")
    form = _choose_format(form, output)
    if form == "png" and (output is None or str(output) == "-"):
        raise InputError("a PNG is no text: say where to write it with -o FILE.png")
    answer = _predict(options, cluster, what_ifs, electricity)
    if form == "png" and output is not None:
        from ....formats.files.open import write_atomic

        write_atomic(output, answer.picture(form))
    else:
        write_result(answer.draw(form, screen_for(output)), output)


def _choose_format(form: str | None, output: Path | None) -> str:
    suffix = output.suffix.lower() if output is not None else ""
    if form is None and suffix and suffix not in (*SUFFIXES.values(), *_ENDINGS):
        endings = ", ".join((*SUFFIXES.values(), *_ENDINGS))
        raise InputError(f"-o {output}: expected a name that ends in {endings}; --format says what another one holds")
    return form or _ENDINGS.get(suffix) or choose_format(form, output)


def _predict(
    options: dict[str, Any], cluster: Any, what_ifs: WhatIfs, electricity: Electricity | None
) -> SensitivityAnswer | SweepAnswer:
    from .api import sweep as predict

    with progress_on_stderr("Reading the trace") as progress:
        found = predict(
            options["trace"],
            on=options["on"],
            vary=_read_vary(options["vary"]),
            plan=options["plan"],
            global_batch=options["global_batch"],
            source=options["source"],
            gpu_file=options["gpu_file"],
            machines=cluster,
            electricity=electricity,
            iteration=options["iteration"],
            captures=options["captures"],
            execution_trace=options["execution_trace"],
            recover=options["recover"],
            progress=progress,
            **asdict(what_ifs),
        )
    return replace(found, name=name_of_trace(options["trace"]))


def _read_vary(texts: tuple[str, ...]) -> dict[str, str]:
    """Return values by name. Raises InputError for a text without either, and for a name that comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name.strip() and equals):
            raise InputError(f"--vary {text}: expected NAME=VALUES, such as memory.bandwidth=1x..4x")
        if name in found:
            raise InputError(f"--vary: {name} stands there twice: give all its values in one, as in {name}=1x,2x,4x")
        found[name] = values
    return found
