"""The `record` command: an unmodified script's iterations, or a named model's shapes, in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from ...errors import CaptureError, InputError, WavecastError, spelling_options
from ...formats.files.destinations import check_destinations
from ...progress import progress_on_stderr
from . import say, say_error
from .script import Script, ShapesRequest, run_script, show_error, stop_script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...formats.trace.tables import Workload
    from ..measured.recorder import Plan, Recorder

_INTERRUPTED_EXIT_CODE: Final = 130
"""What shells report for a command that Ctrl-C ended."""
_FAILED_EXIT_CODE: Final = 1
_NO_TORCH: Final = CaptureError("recording needs torch: pip install 'wavecast[tracer]'")
_LIBRARIES: Final = {"hf_config": "transformers", "timm": "timm", "torchvision": "torchvision"}
"""The option that names a model of each library."""
_MODEL_OPTIONS: Final = frozenset(
    {
        *_LIBRARIES, "sequence_length", "image_size", "precision", "autocast", "attention", "optimizer",
        "as_engine", "cached_tokens", "channels_last", "gradient_checkpointing", "reference_kernels",
    }
)  # fmt: skip
_MEASURING_OPTIONS: Final = frozenset({"iterations"})
_RANK_OPTIONS: Final = frozenset({"world_size", "ranks"})
_SCRIPT_OPTIONS: Final = frozenset(
    {"script", "is_module", "iteration_ends", "no_host_times", "stop", *_MEASURING_OPTIONS, *_RANK_OPTIONS}
)


_number = partial(click.option, type=int, metavar="N")
_flag = partial(click.option, is_flag=True)


@click.command(
    "record",
    context_settings={
        "allow_interspersed_args": False,
        "ignore_unknown_options": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.argument("script", metavar="[SCRIPT]", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("trace.json.gz"),
    show_default=True,
    metavar="FILE",
    help="Write the trace to FILE (.json or .json.gz); with several ranks, to FILE with the rank before its ending.",
)
@click.option(
    "--iterations",
    default="10:15",
    show_default=True,
    metavar="FIRST:END",
    help="Capture iterations FIRST to before END, numbered from 0.",
)
@_flag("--stop", help="End the script once the trace is complete, as --shapes-only does. Default: let it go on.")
@click.option(
    "--mode",
    type=click.Choice(["training", "inference"]),
    help="What an iteration is: up to an optimizer's step, or one forward pass. Default: what is seen; training "
    "for a named model.",
)
@click.option(
    "--iteration-ends",
    type=click.Choice(["backward"]),
    help="Let an iteration end with each backward pass: for training that steps no torch optimizer.",
)
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@click.option("--name", metavar="TEXT", help="Name of the workload, for reports.")
@_number(
    "--batch-size",
    help="Samples per iteration, for throughput and 'analyze --batch'; of a named model what is run. Default there: 8.",
)
@_flag(
    "--shapes-only",
    help="Record shapes without a GPU, and no times: of SCRIPT, which believes in a GPU and ends after one iteration, "
    "or of a model that one of the options below names.",
)
@_number(
    "--world-size", help="With --shapes-only: let SCRIPT believe that it is one of N processes, on GPUs of their own."
)
@click.option(
    "--rank",
    "ranks",
    metavar="RANK[,RANK]...|distinct",
    help="Which of them; several write a file each. 'distinct': one of each that differ. Default: 0.",
)
@click.option("--hf-config", metavar="FILE", help="The model that a transformers config.json describes.")
@click.option("--timm", metavar="NAME", help="The model that timm calls NAME.")
@click.option("--torchvision", metavar="NAME", help="The classification model that torchvision calls NAME.")
@_number("--sequence-length", help="Tokens of text per sample. Default: 512, or the most the model takes.")
@_number("--image-size", help="Side of the images. Default: the model's own, else 224.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="Of weights and inputs. Default: fp32.")
@click.option("--autocast", type=click.Choice(["bf16", "fp16"]), help="Run forward and loss under torch.autocast.")
@click.option(
    "--attention", type=click.Choice(["sdpa", "eager"]), help="Of transformers' models. Default: the library's choice."
)
@click.option("--optimizer", type=click.Choice(["adamw", "adamw-fused", "sgd"]), help="Default: adamw.")
@_number("--cached-tokens", help="Generate one token per sample, after N that are in the cache.")
@_flag(
    "--as-engine",
    help="Run it as serving engines do: fused ops, a paged cache, CUDA graphs for small steps. With --mode inference.",
)
@_flag("--channels-last", help="Put channels last in images and convolutions.")
@_flag("--gradient-checkpointing", help="Recompute activations in backward, as the library does.")
@_flag(
    "--reference-kernels",
    help="Run Mamba and delta nets as without mamba_ssm, causal_conv1d and flash-linear-attention: many small ops.",
)
@_flag(
    "--no-host-times",
    help="Do not time this machine's host afterwards, a third of a second, for the trace to say how fast it was.",
)
def record(  # noqa: PLR0913 - one parameter per option
    script: str | None,
    arguments: tuple[str, ...],
    *,
    output: Path,
    iterations: str,
    stop: bool,
    mode: str | None,
    iteration_ends: str | None,
    is_module: bool,
    name: str | None,
    batch_size: int | None,
    shapes_only: bool,
    world_size: int | None,
    ranks: str | None,
    no_host_times: bool,
    **model_options: str | int | bool | None,
) -> None:
    """Run SCRIPT with its ARGUMENTS, unmodified, and record some of its iterations.

    An iteration ends with an optimizer's step; in a script without one, with the forward pass of the outermost
    module. Some are captured with the profiler, at least ten others are timed without it where the script runs
    long enough. The script's output, results and exit status are its own; what was recorded is said on stderr.

    \b
      wavecast record train.py data/
      wavecast record --stop -o run.json.gz -m mypackage.train --lr 0.1
      wavecast record --shapes-only train.py data/
      wavecast record --shapes-only --world-size 512 --rank 0 train.py data/
      wavecast record --shapes-only --hf-config config.json --precision bf16
      wavecast record --shapes-only --hf-config config.json --mode inference

    With --shapes-only no GPU is needed and weights take no memory: SCRIPT runs until one iteration is recorded, or
    there is no SCRIPT and a model from transformers, timm or torchvision is built and run.
    """
    context = click.get_current_context()
    context.with_resource(spelling_options())
    _check_options(context, shapes_only=shapes_only)
    inputs = {"SCRIPT": None if is_module else script, "--hf-config": model_options["hf_config"]}
    with _errors_said():
        check_destinations({"-o": output}, {label: str(path) for label, path in inputs.items() if path is not None})
    if shapes_only and script is None:
        sizes = {"mode": mode, "batch_size": batch_size}
        _record_shapes(output, name, sizes | model_options)
        return
    if script is None:
        raise click.MissingParameter(ctx=context, param_type="argument", param_hint="'SCRIPT'")
    from ...formats.trace.tables import Workload

    code = Script(script, arguments, is_module)
    workload = Workload(name=name, mode=mode, batch_size=batch_size, samples_per_iteration=batch_size)
    if shapes_only:
        request = ShapesRequest(
            script=code,
            workload=workload,
            ends=iteration_ends,
            world_size=world_size,
            ranks=ranks,
            host_times=not no_host_times,
        )
        _record_script_shapes(output, request)
    else:
        plan = partial(_make_plan, iterations, workload, iteration_ends, host_times=not no_host_times)
        _record_script(output, code, plan, stop=stop)


def _record_script(output: Path, script: Script, make_plan: Callable[[], Plan], *, stop: bool) -> None:
    """Run a script as it is, say on stderr what was recorded, and end as the script did."""
    with _errors_said():
        from ..measured.recorder import Recorder

        recorder = Recorder(output, make_plan(), stop_script if stop else None)
        with recorder:
            raised = run_script(script.target, script.arguments, is_module=script.is_module)
    if raised is not None and not isinstance(raised, SystemExit):
        show_error(raised)
    _report(recorder, raised)
    if isinstance(raised, SystemExit):
        if recorder.error is None or raised.code not in (None, 0):
            raise raised
    elif raised is not None:
        sys.exit(_INTERRUPTED_EXIT_CODE if isinstance(raised, KeyboardInterrupt) else _FAILED_EXIT_CODE)
    if recorder.error is not None:
        sys.exit(_FAILED_EXIT_CODE)


def _check_options(context: click.Context, *, shapes_only: bool) -> None:
    """Refuse options of the script with a model, and the other way round."""
    source = click.core.ParameterSource.COMMANDLINE
    given = [item for item in context.params if context.get_parameter_source(item) is source]
    options = {item: f"--{item.removeprefix('is_').replace('_', '-')}" for item in given} | {"ranks": "--rank"}
    if not shapes_only:
        extra = [options[item] for item in given if item in _MODEL_OPTIONS | _RANK_OPTIONS]
        if extra:
            raise click.UsageError(f"{extra[0]} needs --shapes-only")
        return
    if "ranks" in given and "world_size" not in given:
        raise click.UsageError("--rank needs --world-size")
    models = [options[item] for item in given if item in _LIBRARIES]
    if context.params["script"] is not None and not models:
        extra = [options[item] for item in given if item in _MODEL_OPTIONS | _MEASURING_OPTIONS]
        if extra:
            raise click.UsageError(f"{extra[0]}: not with --shapes-only and a script")
        return
    if len(models) != 1:
        choices = "a SCRIPT, --hf-config, --timm or --torchvision"
        raise click.UsageError(f"--shapes-only: expected {choices}, got {' and '.join(models) or 'none'}")
    extra = [context.params[item] if item == "script" else options[item] for item in given if item in _SCRIPT_OPTIONS]
    if extra:
        raise click.UsageError(f"{extra[0]}: {models[0]} takes no script and none of its options")


def _record_script_shapes(output: Path, request: ShapesRequest) -> None:
    """Run a script on shapes until one iteration is recorded, as one rank or several, and say on stderr what was."""
    with _errors_said():
        from ...formats.files.open import save_trace
        from ..fake_cuda.session import ScriptShapes
        from ..fake_ranks.mail import RankPlace
        from ..host_times.measure import add_host_times
        from ..measured.files import check_output, name_of_rank, rank_path
        from .ranks import read_ranks, record_ranks

        output = check_output(output)
        world_size, script = request.world_size, request.script
        chosen = read_ranks(request.ranks, RankPlace(world_size=world_size).size)
        if chosen is None or len(chosen) > 1:
            record_ranks(chosen, partial(name_of_rank, output), request.rank_command)
            return
        place = RankPlace(rank=chosen[0], world_size=world_size, start=request.rank_command)
        path = output if world_size is not None else rank_path(output)
        session = ScriptShapes(request.workload, stop_script, request.ends, place)
        with session, progress_on_stderr(f"recording {script.target}", is_among_others=True):
            raised = run_script(script.target, script.arguments, is_module=script.is_module)
        if session.trace is None:
            _end_without_trace(session.explain_nothing(raised), raised)
        save_trace(add_host_times(session.trace) if request.host_times else session.trace, path)
    say(f"wavecast: {path}: {session.summarise()}")


def _end_without_trace(error: WavecastError, raised: BaseException | None) -> NoReturn:
    """Say why there is no trace, and end with the script's own status where it has one."""
    if isinstance(raised, Exception) and error.exit_code == _FAILED_EXIT_CODE and not isinstance(raised, WavecastError):
        show_error(raised)
    say_error(error)
    if isinstance(raised, SystemExit) and raised.code not in (None, 0):
        raise raised
    sys.exit(_INTERRUPTED_EXIT_CODE if isinstance(raised, KeyboardInterrupt) else error.exit_code)


def _record_shapes(output: Path, name: str | None, options: Mapping[str, str | int | bool | None]) -> None:
    """Record the shapes of the model that the options name, and say on stderr what was recorded."""
    library, model = next((_LIBRARIES[item], options[item]) for item in _LIBRARIES if options[item] is not None)
    settings = {item: value for item, value in options.items() if item not in _LIBRARIES and value is not None}
    with _errors_said():
        from ...formats.files.open import save_trace
        from ..measured.files import check_output
        from ..named_models import Settings, record_model
        from ..named_models.library_kernels import libraries_in

        path = check_output(output)
        with progress_on_stderr(f"Recording {model}"):
            trace = record_model(library, str(model), Settings(**settings), name=name)  # type: ignore[arg-type]
        save_trace(trace, path)
    workload = trace.meta.workload
    text = f"one {workload.mode} iteration of {workload.name}, batch size {workload.batch_size}, from shapes alone"
    found = libraries_in(trace.strings)
    kernels = f"; kernels of {', '.join(found)} (without them: --reference-kernels)" if found else ""
    engine = (
        "; a serving engine runs it otherwise: wavecast serve MODEL"
        if settings.get("cached_tokens") and not settings["as_engine"]
        else ""
    )
    say(f"wavecast: {path}: {text}; {len(trace.ops.name)} ops{kernels}{engine}")


def _make_plan(iterations: str, workload: Workload, ends: str | None, *, host_times: bool) -> Plan:
    from ..measured.recorder import Plan

    first, colon, end = iterations.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise InputError(f"--iterations: expected FIRST:END, for example 10:15, got {iterations!r}")
    return Plan(first=int(first), end=int(end), ends=ends, workload=workload, host_times=host_times)


def _report(recorder: Recorder, raised: BaseException | None) -> None:
    """Say on stderr what was recorded, or why nothing was."""
    import torch

    from ..hooks.patches import describe_end

    if recorder.is_elsewhere:
        return
    if recorder.trace is not None:
        say(f"wavecast: {recorder.path}: {recorder.summarise()}")
    if recorder.error is not None:
        early = describe_end(raised, recorder.iteration_count) if recorder.ended_early else None
        text = f"nothing was recorded: {early}" if early else str(recorder.error)
        if early and not torch.cuda.is_available() and ("NVIDIA" in str(raised) or "CUDA" in str(raised)):
            text += "; where there is no GPU, --shapes-only records the script without one"
        say_error(text)


@contextmanager
def _errors_said() -> Iterator[None]:
    """End with what went wrong on one line of stderr, also where torch is not there."""
    try:
        yield
    except (ImportError, WavecastError) as error:
        if isinstance(error, ImportError) and error.name != "torch":
            raise
        said = _NO_TORCH if isinstance(error, ImportError) else error
        say_error(said)
        sys.exit(said.exit_code)
