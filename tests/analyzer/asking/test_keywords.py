"""Errors in the words of whoever asks: options on a command line, keywords in Python; and what keywords refuse."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import wavecast
from click.testing import CliRunner
from wavecast.__main__ import wavecast as program
from wavecast.analyzer.asking.keywords import read_bytes, read_duration_ns, read_percent
from wavecast.errors import parameter, spelling_options

ROOT = Path(wavecast.__file__).parent
ROOMS = ("analyzer", "formats", "mlp_weights", "specs", "tracer")
NO_CONTEXT = click.Context(program)
SAMPLES = ROOT / "samples"
SHAPES = SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"
H100 = SAMPLES / "bert_small-inference-bf16-b1-h100.json.gz"
SAVED_BY_REPORTS = {"form", "output", "timeline", "figure", "stretch", "max_error_percent", "version", "help"}
"""Options that say where a result goes, and what a command says of it."""
KEYWORD_OF = {
    "target": ("to",), "marks_path": ("critical_path",), "left_out": ("leave_out",),
    "excluded": ("exclude_gpu",), "price": ("prices",), "price_kind": ("prices",),
    "cloud": ("prices",),
}  # fmt: skip
"""Of commands that take no record."""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "analyze": wavecast.analyze,
    "scale": wavecast.scale,
    "sweep": wavecast.sweep,
    "validate": wavecast.validate,
    "replay": wavecast.replay,
    "compare": wavecast.compare,
    "show": wavecast.overview,
    "catalog": wavecast.gpus,
    "ranks": wavecast.ranks,
    "convert": wavecast.graph,
    "score": wavecast.score,
    "batch": wavecast.batch,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_of_a_command_is_a_keyword(name: str) -> None:
    command = program.get_command(click.Context(program), name)
    assert command is not None
    known = set(inspect.signature(FUNCTIONS[name]).parameters)
    options = {str(item.name) for item in command.params} - SAVED_BY_REPORTS
    options -= {"target"} if name == "replay" else set()  # of its figure
    options -= {"more"} if name == "validate" else set()  # pairs, of which Python asks one by one
    options -= {"kind", "cluster_file", "nccl_tests"} if name == "catalog" else set()  # of nodes and hosts
    options -= {"source", "execution_trace", "window_ns"} if name == "convert" else set()  # of traces
    assert {option for option in options if not known & {option, *KEYWORD_OF.get(option, ())}} == set()


def test_a_keyword_that_nothing_takes_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"scale\(\): got an unexpected keyword argument 'largest_batch'"):
        wavecast.scale(SHAPES, largest_batch=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value", "option", "keyword"),
    [
        ("to", None, "--to", "to"),
        ("to", "h100", "--to h100", "to='h100'"),
        ("from", "GPU", "--from GPU", "source=GPU"),
        ("batch", 64, "--batch 64", "batch=64"),
        ("batch", "2,048", "--batch 2,048", "batch=2,048"),
        ("from_batch", "N", "--from-batch N", "from_batch=N"),
        ("host", "fast", "--host fast", "host='fast'"),
        ("node", None, "--node", "node"),
        ("nccl_tests", None, "--nccl-tests", "nccl_tests"),
        ("rows", "all", "--rows all", "rows='all'"),
        ("allowance", "10%", "--allowance 10%", "allowance='10%'"),
        ("output", "x.csv", "-o x.csv", "output='x.csv'"),
    ],
)
def test_a_parameter_is_an_option_or_a_keyword(name: str, value: object, option: str, keyword: str) -> None:
    assert parameter(name, value) == keyword
    with spelling_options():
        assert parameter(name, value) == option
    assert parameter(name, value) == keyword


def test_messages_name_parameters_that_a_command_has_and_only_when_they_are_made() -> None:
    commands = [program.get_command(click.Context(program), name) for name in program.list_commands(NO_CONTEXT)]
    options = {option for command in commands if command for item in command.params for option in item.opts}
    for path in [*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]:
        for call, inside in calls_of_parameter(ast.parse(path.read_text()), inside=False):
            assert inside, f"{path}:{call.lineno}: would be spelled for whoever imports the module"
            if isinstance(call.args[0], ast.Constant):
                with spelling_options():
                    assert parameter(str(call.args[0].value)) in options, f"{path}:{call.lineno}"


def calls_of_parameter(node: ast.AST, *, inside: bool) -> Iterator[tuple[ast.Call, bool]]:
    """Yield the calls in a tree, and whether each is made when a function runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "parameter":
            yield child, inside
        yield from calls_of_parameter(child, inside=inside or isinstance(child, ast.FunctionDef | ast.Lambda))


def test_a_command_names_its_options_where_the_function_names_keywords() -> None:
    with pytest.raises(wavecast.InputError) as caught:
        wavecast.scale(SHAPES, gpus=8)
    assert str(caught.value).endswith("a recording of shapes has none of its own; add to='h100'")
    result = CliRunner().invoke(program, ["scale", str(SHAPES), "--gpus", "8"])
    assert result.exit_code == 2
    assert result.stderr.strip().endswith("a recording of shapes has none of its own; add --to h100")


def test_a_process_that_works_for_a_command_names_options(tmp_path: Path) -> None:
    images = SAMPLES / "resnet50-inference-bf16-b32-shapes.json.gz"
    asked = ["batch", str(images), "--to", "h100", "--sequence-length", "9", "-o", str(tmp_path / "found.csv")]
    result = CliRunner().invoke(program, asked)
    assert "pass it with --from-sequence-length" in result.stderr


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda: wavecast.compare(SHAPES, SHAPES, on="L4", from_batch=3), "from_batch says what batch rescales"),
        (lambda: wavecast.analyze(SHAPES, goal=3), "goal=3: expected words"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, prices=3), "prices=3: expected a price list"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, sort="price"), "sort='price': expected one of time, cost"),
        (lambda: wavecast.sweep(SHAPES, vary="sms=2x"), "expected values by parameter"),  # type: ignore[arg-type]
        (lambda: wavecast.sweep(SHAPES, on=3, vary={"sms": "2x"}), "on=3: expected the name"),  # type: ignore[arg-type]
        (lambda: wavecast.gpus(3), "3: expected the name of a GPU"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, rows="x"), "rows='x': expected a number"),
        (lambda: wavecast.analyze(SHAPES, rows=-1), "rows=-1: expected a number"),
        (lambda: wavecast.analyze(SHAPES, only=[3]), "only=.3.: expected a name"),  # type: ignore[list-item]
        (lambda: wavecast.analyze(SHAPES, min_memory=-3), "min_memory=-3: expected a size"),
        (lambda: wavecast.analyze(SHAPES, goal="5 ells"), "goal '5 ells': expected such as"),
        (lambda: wavecast.analyze(SHAPES, budget="5"), "budget is of a whole run"),
        (lambda: wavecast.analyze(SHAPES, batch=0), "batch=0: expected a whole number, 1 or more"),
        (lambda: wavecast.analyze(SHAPES, batch=True), "batch=True: expected a whole number, 1 or more"),
        (lambda: wavecast.analyze(SHAPES, batch=2.5), r"batch=2\.5: expected a whole number"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, precision="fp3"), "precision='fp3': expected one of bf16, fp16"),
        (lambda: wavecast.analyze(SHAPES, attention_kernel="x"), "attention_kernel='x': expected one of flash2"),
        (lambda: wavecast.analyze(SHAPES, host=float("nan")), "host=nan: expected a ratio"),
        (lambda: wavecast.analyze(SHAPES, iteration="first"), "iteration='first': expected a number, median"),
        (lambda: wavecast.analyze(SHAPES, iteration=-1), "iteration=-1: expected a whole number, 0 or more"),
        (lambda: wavecast.analyze(SHAPES, top=-1), "top=-1: expected a whole number, 0 or more"),
        (lambda: wavecast.analyze(SHAPES, to=7), "to=7: expected a name or a list of names"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(None), "trace: expected a path or a Trace, got NoneType"),  # type: ignore[arg-type]
        (lambda: wavecast.scale(SHAPES, to="L4", gpus=0), "gpus=0: expected a number of GPUs"),
        (lambda: wavecast.scale(SHAPES, to="L4", gpus=[]), "add gpus=N, or say which plan"),
        (lambda: wavecast.scale(SHAPES, to="L4", gpus="8"), "gpus='8': expected"),  # type: ignore[arg-type]
        (lambda: wavecast.scale(SHAPES, to="L4", gpus=8, max_memory="much"), "max_memory='much': expected a size"),
        (
            lambda: wavecast.scale(SHAPES, to="L4", gpus=8, max_memory=7e10),  # type: ignore[arg-type]
            "expected a size such as '70GiB' or '80GB', as text",
        ),
        (lambda: wavecast.scale(SHAPES, to="L4", gpus=8, measured_step="0"), "measured_step=0: expected a time"),
        (lambda: wavecast.scale(SHAPES, to="L4", gpus=8, measured_step="9ms"), "say which with source=GPU"),
        (lambda: wavecast.scale(SHAPES, to="L4", gpus=8, global_batch=10**10), "expected 1,000,000,000 at most"),
        (lambda: wavecast.compare(SHAPES, SHAPES), "name the GPUs to predict with on, e.g. on='h100'"),
        (lambda: wavecast.compare(H100, H100, max_slowdown="-3%"), "max_slowdown='-3%': expected a percentage"),
        (lambda: wavecast.compare("-", "-"), "standard input holds one trace"),
        (lambda: wavecast.validate(H100, SHAPES), "the second trace holds no GPU kernels"),
        (lambda: wavecast.replay(SHAPES), "the trace holds no kernels"),
        (lambda: wavecast.overview(H100, top=-1), "top=-1: expected"),
        (lambda: wavecast.ranks([]), "traces: expected the files of a job's ranks"),
        (
            lambda: wavecast.batch("x", output="x.txt"),
            r"output='x\.txt': expected a file that ends in \.parquet, \.csv",
        ),
        (lambda: wavecast.batch("nothing", output="x.csv"), "nothing: no such file"),
        (lambda: wavecast.batch("x", output="x.csv", precision="fp3"), "precision='fp3': expected one of bf16"),
        (lambda: wavecast.batch("x", output="x.csv", batch=[8, 0]), "batch=0: expected a whole number"),
        (lambda: wavecast.batch("x", output="x.csv", host=[1.0, -1]), "host=-1: expected a ratio"),
        (lambda: wavecast.batch("x", output="x.csv", max_kinds=2), "max_kinds and utilisation are for a mix"),
        (lambda: wavecast.batch("x", output="x.csv", utilisation=2.0), "utilisation=2: expected a ratio"),
        (lambda: wavecast.gpus("h9000"), "is called 'h9000'"),
        (lambda: wavecast.graph(H100, iteration=5), "iteration 5"),
        (lambda: wavecast.score("nowhere", leave_out="x"), "leave_out='x': expected one of chips, shapes"),
        (lambda: wavecast.score("nowhere", leave_out="chips", exclude_gpu="L4"), "it goes without exclude_gpu"),
        (lambda: wavecast.load_trace(3), "3: expected a path"),  # type: ignore[arg-type]
        (lambda: wavecast.load_trace("a\0b"), r"'a\\x00b': expected a path"),
        (lambda: wavecast.overview(H100, window_ns=(1,)), "expected a begin and an end"),  # type: ignore[arg-type]
        (lambda: wavecast.save_trace(3, "x"), "trace: expected a Trace, got int"),  # type: ignore[arg-type]
        (lambda: wavecast.recommender(None, to="h100"), "description=None: expected a path"),  # type: ignore[arg-type]
        (lambda: wavecast.serve(3, to="h100"), "model=3: expected a model's name or a path"),  # type: ignore[arg-type]
        (lambda: wavecast.batch("x", output=None), "output=None: expected a path"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, cluster_file=3), "cluster_file=3: expected a path"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, cloud=3), "cloud=3: expected the name of a cloud"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, captures=3), "captures=3: expected a path"),  # type: ignore[arg-type]
        (lambda: wavecast.analyze(SHAPES, captures=[3]), "3: expected a path"),  # type: ignore[list-item]
        (lambda: wavecast.analyze(SHAPES, observed=[3]), "observed 3: expected a GPU and"),  # type: ignore[list-item]
        (lambda: wavecast.analyze(SHAPES, carbon=10**400), "carbon: expected a number of at most 64 bits"),
        (lambda: wavecast.analyze(SHAPES, prices="\0"), "prices='.x00': expected a text without null characters"),
        (lambda: wavecast.analyze(SHAPES, calibration="x" * 5000), "xx…xx.*: no file has so long a name"),
        (lambda: wavecast.analyze(SHAPES, precision="y z" * 5000), "precision='y zy z.*….*y z': expected one of bf16"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(ask: Callable[[], Any], expected: str) -> None:
    with pytest.raises(wavecast.InputError, match=expected) as caught:
        ask()
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_amounts() -> None:
    sizes = {"1": 2.0**30, "2 MiB": 2.0**21, "0.5tib": 2.0**39, "80GB": 80e9, "1e3": 1000 * 2.0**30}
    assert {text: read_bytes("max_memory", text) for text in sizes} == sizes
    times = {"3us": 3e3, "3 s": 3e9, "850 µs": 850e3, "1.2s": 1.2e9}
    assert {text: read_duration_ns("ttft", text) for text in times} == times
    ratios = {"3%": 0.03, "0": 0.0, "29": 29 / 100}
    assert {text: read_percent("max_slowdown", text) for text in ratios} == ratios


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (read_bytes, ["0", "GB", "a lot", "1e30"]),
        (read_duration_ns, ["3", "-1", "nan", "1e12s", "1,5ms"]),
        (read_percent, ["nan", "inf", "x%", "-1"]),
    ],
)
def test_what_is_no_amount_is_refused(read: Callable[[str, str], float], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(wavecast.InputError, match="expected a"):
            read("asked", text)


def test_recording_needs_torch_when_it_is_called() -> None:
    code = """if True:
        import sys
        sys.modules["torch"] = None
        import wavecast
        try:
            wavecast.record(lambda: None)
        except wavecast.CaptureError as error:
            print(error)
    """
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "recording needs torch: pip install 'wavecast[tracer]'\n"


def test_a_function_or_a_loop_is_recorded(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer, x = torch.nn.Linear(64, 32), torch.ones(8, 64)
    found = wavecast.record(lambda: layer(x), device="cpu", warmup=0, repeats=1, name="linear", batch_size=8)
    assert found.meta.workload.name == "linear"
    with wavecast.record(tmp_path / "loop.json.gz", iterations=(2, 4), mode="inference"):
        for _ in range(5):
            layer(x)
    assert int(wavecast.load_trace(tmp_path / "loop.json.gz").iterations.profiled.sum()) == 2
    with pytest.raises(wavecast.InputError, match="device: expected cuda"):
        wavecast.record(lambda: layer(x), device="tpu")
    with pytest.raises(TypeError, match="itrations"):
        wavecast.record(lambda: layer(x), itrations=3)  # type: ignore[call-overload]
