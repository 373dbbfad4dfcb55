"""The `measure` command: a short op sweep of the local GPU, for `analyze --calibration` and `score`."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...errors import CaptureError, InputError, WavecastError, spelling_options
from ...progress import progress_on_stderr
from ...records import dataclass, replace
from . import say, say_error

if TYPE_CHECKING:
    from ...formats.trace.meta import HostTimes
    from ...specs.gpu import Catalog
    from ..op_sweep.sweep import Stage

FAMILIES: Final = ("matmul", "attention", "convolution", "vector")
"""What op models read, and so what a correction can be learned from."""
DTYPES: Final = ("fp32", "tf32", "bf16", "fp16")
_CPU_FLOPS, _CPU_ELEMENTS = 1e8, 1e6
"""A CPU is only there to try the sweep out: larger calls are left out."""
_DEFAULT_S: Final = 60.0
_INTERRUPTED_EXIT_CODE: Final = 130
_EXTRA: Final = "pip install 'wavecast[measure]'"


def _names_of(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...] | None]:
    """Return what reads some of the known names, parted by commas."""

    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        found = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        wrong = [name for name in found if name not in known]
        if wrong or not found:
            raise click.BadParameter(f"{', '.join(wrong) or 'nothing'}: expected some of {','.join(known)}")
        return found

    return read


def complete_gpu_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the catalogued GPUs that hold what was typed, for the shell's completion."""
    from ...specs.catalog import load_catalog

    return [gpu.name for gpu in load_catalog().gpus if incomplete.casefold() in gpu.name.casefold()]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """Hold what was asked for."""

    trace: Path | None
    output: Path
    families: tuple[str, ...] | None
    dtypes: tuple[str, ...] | None
    seconds: float | None
    device: str
    gpu: str | None
    gpu_file: Path | None


def _read_place(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Path | None:
    """Return where a trace lies: a file, or in an archive."""
    if text is not None and text.startswith("archive:"):
        from ...formats.files.reference import as_path

        return as_path(text)
    return None if text is None else Path(text)


@click.command("measure", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("trace", callback=_read_place, metavar="[TRACE]", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("measurements.json.gz"),
    show_default=True,
    metavar="FILE",
    help="Write this file, .json or .json.gz; one FILE holds one GPU. It names no host, user or path.",
)
@click.option(
    "--families",
    callback=_names_of(FAMILIES),
    metavar="NAMES",
    help=f"Some of {','.join(FAMILIES)}. Default: all of them.",
)
@click.option(
    "--dtypes",
    callback=_names_of(DTYPES),
    metavar="NAMES",
    help=f"Some of {','.join(DTYPES)}. Default: fp32,tf32,bf16; fp32,fp16 before Ampere; with TRACE the trace's own.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Time for everything, shared evenly among the families. Default: 60; with --host 4.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="What to measure; cpu only tries the sweep out.",
)
@click.option(
    "--gpu",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU's name in the catalogue, where the driver's is not known there.",
)
@click.option(
    "--gpu-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read more GPUs (yours, unreleased) from this TOML file; see 'wavecast catalog --help'.",
)
@click.option(
    "--host",
    "is_host",
    is_flag=True,
    help="Time this machine's host instead: Python, dispatch, autograd, modules, an optimizer, allocation; -o FILE.",
)
def measure(*, is_host: bool, **options: object) -> None:
    """Time ops on the local GPU and write a file that sharpens predictions for it.

    \b
      wavecast measure -o l40s.json.gz            # a minute; shapes of all sizes
      wavecast measure trace.json.gz -o l40s.json.gz  # one workload's calls first
      analyze trace.json.gz --to L40S --calibration l40s.json.gz  # uses them
      wavecast score l40s.json.gz                 # how far the models were off
      wavecast measure --host -o host.json        # this host's speed; no GPU

    With TRACE, the products, attention, convolutions and elementwise ops that it holds are measured, those first
    that take most of the time; then other sizes, where they are too few to learn from. Nobody else may use the GPU
    meanwhile. A family is written when it is done; Ctrl-C keeps those that are. CONTRIBUTING.md says how to give FILE
    to the project: it holds the GPU, driver, versions and op times, and nothing else.
    """
    try:
        request, context = MeasureRequest(**options), click.get_current_context()  # type: ignore[arg-type]
        context.with_resource(spelling_options())
        if is_host:
            _measure_host(context, request)
        else:
            _measure(request)
    except KeyboardInterrupt:
        done = "nothing is written" if is_host else "the families that were done are written"
        click.echo(f"wavecast: interrupted; {done}", err=True)
        sys.exit(_INTERRUPTED_EXIT_CODE)
    except ImportError as error:
        if error.name != "torch":
            raise
        _exit_with(CaptureError(f"measuring needs torch: {_EXTRA}"))
    except WavecastError as error:
        _exit_with(error)


def _measure_host(context: click.Context, request: MeasureRequest) -> None:
    """Measure the host; refuse what only GPUs are measured with."""

    source = click.core.ParameterSource.COMMANDLINE
    given = {name for name in context.params if context.get_parameter_source(name) is source}
    extra = sorted(given - {"is_host", "output", "seconds"})
    if extra:
        name = "TRACE" if extra[0] == "trace" else f"--{extra[0].replace('_', '-')}"
        raise click.UsageError(f"{name}: not with --host, which takes -o FILE and --seconds alone")
    measure_host_speed(request.output if "output" in given else None, request.seconds)


def _measure(request: MeasureRequest) -> None:
    seconds = _DEFAULT_S if request.seconds is None else request.seconds
    if not isfinite(seconds):
        raise InputError(f"--seconds {seconds:g}: expected a time above zero")
    from ...specs.catalog import load_catalog
    from ..op_sweep.local import name_gpu, open_file, save
    from ..op_sweep.sweep import Sweep, describe, run_cases

    inputs = {"TRACE": request.trace, "--gpu-file": request.gpu_file}
    catalog = load_catalog(request.gpu_file)
    gpu = name_gpu(catalog, request.device, request.gpu)
    plan = _plan(request)
    open_file(request.output, gpu, request.device, inputs)
    end = time.monotonic() + seconds
    row_count = 0
    for done, (family, stages) in enumerate(plan.items()):
        now = time.monotonic()
        sweep = Sweep(gpu=gpu, device=request.device)
        family_end = now + max(0.0, end - now) / (len(plan) - done)
        with progress_on_stderr(family):
            for stage in stages:
                left = max(0.0, family_end - time.monotonic())
                run_cases(stage.cases, sweep, replace(stage.limits, seconds=left))
        if sweep.rows or sweep.left_out:
            save(request.output, family, sweep)
        say(f"wavecast: {family}: {describe(sweep)}")
        row_count += sum(map(len, sweep.rows.values()))
        if sweep.is_broken:
            raise CaptureError("the GPU failed: what was measured until then is written; start again for the rest")
    if not row_count:
        raise CaptureError("nothing was measured: give it more time with --seconds, or other --families or --dtypes")
    _say_what_next(request, gpu, catalog)


def _plan(request: MeasureRequest) -> dict[str, tuple[Stage, ...]]:
    from ...formats.files.open import load_trace
    from ..op_sweep.local import default_dtypes, has_tf32
    from ..op_sweep.sweep import SweepLimits, plan_sizes, plan_workload
    from ..op_sweep.workload import trace_cases

    is_gpu = request.device == "cuda"
    limits = SweepLimits() if is_gpu else SweepLimits(flops=_CPU_FLOPS, elements=_CPU_ELEMENTS)
    families = request.families or FAMILIES
    if "tf32" in (request.dtypes or ()) and not has_tf32(request.device):
        raise InputError("--dtypes: this GPU has no tf32; measure fp32")
    if request.trace is None:
        return plan_sizes(families, request.dtypes or default_dtypes(request.device), limits)
    own = trace_cases(load_trace(request.trace), has_tf32=has_tf32(request.device))
    plan = plan_workload(own, families, request.dtypes, limits, is_limited=not is_gpu)
    if not plan:
        raise InputError(f"{request.trace}: holds no calls that can be measured: leave TRACE out to measure all sizes")
    return plan


def _say_what_next(request: MeasureRequest, gpu: str, catalog: Catalog) -> None:
    from ..op_sweep.local import is_catalogued

    if request.device == "cpu":
        say(f"wavecast: these are times of this CPU under the name of {gpu}: use them for nothing")
    if not is_catalogued(catalog, gpu):
        say(
            f"wavecast: {gpu!r} is not in the catalogue: describe a GPU of that name in a file, and pass it with "
            "--gpu-file (see 'wavecast catalog -h')"
        )
    command = ["analyze", str(request.trace or "TRACE"), "--to", gpu, "--calibration", str(request.output)]
    if request.gpu_file is not None:
        command += ["--gpu-file", str(request.gpu_file)]
    say(f"wavecast: {request.output}: measured {gpu}; next: {shlex.join(command)}")


def _exit_with(error: WavecastError) -> None:
    say_error(error)
    sys.exit(error.exit_code)


_WORDS: Final = {
    "python_ns": ("plain Python", "a round of calls, attributes, small containers, strings"),
    "dispatch_ns": ("dispatch", "an op on a tensor of one element"),
    "autograd_ns": ("autograd", "what gradients add to such an op, forward and backward"),
    "module_ns": ("modules", "a call of a module that does nothing"),
    "optimizer_ns": ("optimizer", "a parameter's turn in Adam's loop"),
    "allocation_ns": ("allocation", "a tensor made and dropped"),
    "launch_ns": ("launches", "a kernel of one element"),
}
_WIDE_SPREAD: Final = 0.15
_MOST_S: Final = 600.0


def measure_host_speed(output: Path | None, seconds: float | None) -> None:
    """Measure the host, print what was found, and write it where `output` says.

    Raises InputError or OutputError before anything is measured where it can, CaptureError where nothing can be.
    """
    from ...formats.measured.host_file import HostFile, save_host
    from ...formats.trace.version import __version__

    if seconds is not None and not (isfinite(seconds) and seconds <= _MOST_S):
        raise InputError(f"--seconds {seconds:g}: expected at most {_MOST_S:g} for --host: a few do")
    is_stream = str(output) == "-"
    if output is not None and output.is_dir():
        raise InputError(f"-o {output}: a directory; --host writes one file, for example host.json")
    try:
        from ..description.device import describe_framework
        from ..host_times.measure import THOROUGH_S, measure_host
        from ..measured.files import check_output

        if output is not None and not is_stream:
            check_output(output)
        times = measure_host(THOROUGH_S if seconds is None else seconds)
    except RuntimeError as error:
        raise CaptureError(f"the host could not be measured: {str(error).splitlines()[0]}") from error
    found = HostFile(
        producer=f"wavecast {__version__}",
        date=datetime.now(tz=UTC).date().isoformat(),
        framework=describe_framework(),
        host=times,
    )
    if not is_stream:
        click.echo("\n".join(_lines(found.framework, times)))
    if output is not None:
        save_host(output, found)
        say(f"wavecast: {'standard output' if is_stream else output}: this host's times")


def _lines(framework: str | None, times: HostTimes) -> Iterator[str]:
    from ...formats.measured.host_file import REFERENCE_HOST, host_ratios, host_speed

    ratios, speed = host_ratios(times), host_speed(times)
    yield f"Host: {times.processor or 'unknown processor'}, Python {times.python_version}, {framework}"
    yield ""
    yield f"{'kind':14}{'time':>10}{'speed':>8}   of"
    for kind, (name, unit) in _WORDS.items():
        time_ns = getattr(times, kind)
        if time_ns is not None:
            ratio = f"{ratios[kind]:.2f}" if kind in ratios else ""
            yield f"{name:14}{time_ns / 1e3:>7.2f} us{ratio:>8}   {unit}"
    yield ""
    reference = f"{REFERENCE_HOST.processor}, Python {REFERENCE_HOST.python_version}"
    spread = times.spread or 0.0
    if speed is not None:
        yield f"{'in all':14}{speed:>18.2f}   times as fast as the reference ({reference}); rounds within {spread:.0%}"
    if spread > _WIDE_SPREAD:
        yield "The rounds lie far apart: something else runs here. Measure again when the machine is idle."
