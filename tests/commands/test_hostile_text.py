"""Nothing that a file, a table or a name on the command line holds acts on a terminal, a viewer or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from wavecast.__main__ import wavecast
from wavecast.formats.files.open import load_trace, save_trace
from wavecast.formats.measured.ops_file import MeasuredFamily, MeasuredOps, save_ops
from wavecast.formats.perfetto.timeline import EventFile, EventTrack, encode_events
from wavecast.formats.trace.codec import decode
from wavecast.formats.trace.printable import CONTROL_CATEGORIES
from wavecast.formats.trace.tables import Device, Meta, Trace, Workload

Run = Callable[..., Result]
HOSTILE = (
    "\x1b[31m\x1b]0;x\x07\x00\r\n\t\x08\x7f\x9b31m\x85\u061c\u200b\u200e\u202a\u202e\u2028\u2066\ufeff\ufffe\U000e0001"
    "|`*<b>&amp;\"'\\"
)
NAME = f"=1+1{HOSTILE}"
GPU = "A100 SXM4 80GB"
FORMATS = ("table", "markdown", "json", "csv")
NOT_OURS = frozenset({"source_format", "capture", "mode"})
"""Fields of few legal words that decide how a trace is read; a test of their own has them."""


def is_hostile(character: str) -> bool:
    return character != "\n" and unicodedata.category(character) in CONTROL_CATEGORIES


def check_clean(text: str, where: object = "") -> None:
    """Raise AssertionError where a character could do something."""
    found = sorted({hex(ord(character)) for character in text if is_hostile(character)})
    assert not found, (where, found)


def check_rows(text: str) -> None:
    """Raise AssertionError where a table of Markdown has rows of different lengths, or markup in a cell."""
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) <= 1, rows
    assert "<b>" not in text


def check_cells(text: str) -> None:
    """Raise AssertionError where a spreadsheet would compute a cell that is no number."""
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(cell)


def make_hostile(record: Any) -> Any:
    """Return a record whose every text is hostile."""
    texts = {
        item.name: f"{getattr(record, item.name) or ''}{NAME}"
        for item in fields(record)
        if item.name not in NOT_OURS and isinstance(getattr(record, item.name), str | None) and "str" in str(item.type)
    }
    return replace(record, **texts)


@pytest.fixture
def trace(trace_bytes: bytes) -> Trace:
    small = decode(trace_bytes)
    meta = replace(make_hostile(small.meta), workload=make_hostile(small.meta.workload))
    strings = (*small.strings, *(f"{text}{NAME}" for text in small.strings), f"{NAME}.{NAME}")
    count = len(small.strings)
    half = np.arange(len(small.ops.name)) % 2 == 0
    ops = replace(
        small.ops,
        name=np.where(half, small.ops.name, small.ops.name + count).astype(np.int32),
        module=np.full_like(small.ops.module, 2 * count),
    )
    kernels = replace(small.kernels, name=small.kernels.name + np.int32(count))
    calls = replace(small.calls, name=small.calls.name + np.int32(count))
    device = make_hostile(small.devices[0])
    return replace(small, meta=meta, strings=strings, ops=ops, kernels=kernels, calls=calls, devices=(device,))


@pytest.fixture
def path(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hostile trace under a hostile name, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    found = Path(f"-t{HOSTILE.replace(chr(0), '').replace('/', '')}\udcff".replace("-", "", 1) + ".json")
    save_trace(trace, found)
    return found


def test_the_trace_is_hostile(path: Path, trace: Trace) -> None:
    assert load_trace(path) == trace
    assert len({character for character in HOSTILE if is_hostile(character)}) == 19
    check_clean(path.read_text(), "a trace file")


COMMANDS = {
    **{f"analyze, {form}": ("analyze", "{}", "--format", form) for form in FORMATS},
    **{f"analyze --ops, {form}": ("analyze", "{}", "--ops", "--format", form) for form in FORMATS},
    "analyze --batch": ("analyze", "{}", "--batch", "64", "--precision", "bf16", "--cuda-graph", "--fuse-elementwise"),
    **{f"show, {form}": ("show", "{}", "--format", form) for form in ("table", "json")},
    **{f"replay, {form}": ("replay", "{}", "--format", form) for form in ("table", "json")},
    **{
        f"validate, {form}": ("validate", "{}", "{}", "--to", GPU, "--ops", "--format", form) for form in FORMATS
    },
    **{
        f"convert, {form}": ("convert", "{}", "--critical-path", "--to", form)
        for form in ("graph-json", "graphml", "dot")
    },
}  # fmt: skip
TAKES_SOURCE = ("analyze", "replay", "validate")


@pytest.mark.parametrize("columns", [None, "60"])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_report_holds_what_acts(name: str, columns: str | None, path: Path, run: Run) -> None:
    words = [str(path) if word == "{}" else word for word in COMMANDS[name]]
    if words[0] in TAKES_SOURCE:
        words += ["--from", GPU]
    if words[0] == "analyze":
        words += ["--to", GPU, "--to", "H100 SXM5"]
    settings = {} if columns is None else {"COLUMNS": columns}
    found = run(*words, **settings)
    assert found.exit_code == 0, found.output
    check_clean(found.stdout, name)
    check_clean(found.stderr, name)
    if name.endswith("markdown"):
        check_rows(found.stdout)
    if name.endswith("csv"):
        check_cells(found.stdout)
    if name.endswith("json"):
        json.loads(found.stdout)
    if name.endswith("graphml"):
        ElementTree.fromstring(found.stdout)  # noqa: S314 - our own text


def test_a_report_goes_to_a_file_as_to_a_terminal(path: Path, run: Run) -> None:
    for suffix in (".txt", ".md", ".json", ".csv"):
        output = Path(f"out{suffix}")
        assert run("analyze", path, "--from", GPU, "--to", GPU, "--ops", "-o", output).exit_code == 0
        check_clean(output.read_bytes().decode(), suffix)


def test_timelines_hold_nothing_that_acts(path: Path, run: Run) -> None:
    found = run("analyze", path, "--from", GPU, "--to", GPU, "--timeline", "timeline.json")
    assert found.exit_code == 0, found.output
    check_clean(Path("timeline.json").read_text())
    file = EventFile(
        processes=(NAME,), tracks=(EventTrack(process=0, name=NAME),), names=(), slices=(), about={NAME: NAME}
    )
    check_clean(encode_events(file).decode())


def test_a_conversion_holds_and_says_nothing_that_acts(path: Path, run: Run, trace: Trace) -> None:
    target = path.with_name(f"new{path.name}")
    found = run("convert", path, target)
    assert found.exit_code == 0, found.output
    check_clean(found.output)
    check_clean(target.read_text())
    assert load_trace(target) == trace


def test_gpus_of_a_file_are_shown_clean(tmp_path: Path, run: Run) -> None:
    name = NAME.replace("\x00", "").replace("\U000e0001", "")  # which TOML has no escape for, as json writes them
    text = f"[[gpu]]\nname = {json.dumps('Mine' + name)}\nbased_on = {json.dumps(GPU)}\nnote = {json.dumps(name)}\n"
    file = tmp_path / "gpus.toml"
    file.write_text(text)
    for words in (("--format", "table"), ("--format", "json"), ("--format", "csv"), (f"Mine{name}",)):
        found = run("catalog", "--gpu-file", file, *words)
        check_clean(found.output, words)
        assert found.exit_code == 0, found.output
        if "csv" in words:
            check_cells(found.stdout)


@pytest.mark.parametrize("form", FORMATS)
def test_a_score_of_hostile_tables_is_clean(form: str, tmp_path: Path, run: Run, trace_file: Path) -> None:
    (tmp_path / "ops").mkdir()
    shape = {"op": f"mm{NAME}", "batch": 1, "m": 512, "n": 512, "dtype": "bf16", "timing": NAME, "source": NAME}
    shape |= {"latency_us": 9.0, "kernel": NAME, "split": NAME, "suspect": False}
    for gpus, code in (((GPU, "L4"), 0), ((GPU, NAME), 2)):
        rows = [shape | {"gpu": gpu, "k": 64 * k} for gpu in gpus for k in range(1, 9)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "ops" / "matmul.parquet")
        for words in (("score", tmp_path), ("analyze", trace_file, "--calibration", tmp_path)):
            found = run(*words, "--format", form)
            assert found.exit_code == code, found.output
            check_clean(found.output, words)
            if form == "csv":
                check_cells(found.stdout)


@pytest.mark.parametrize("gpu", [GPU, NAME])
def test_a_score_of_a_hostile_measured_file_is_clean(gpu: str, tmp_path: Path, run: Run) -> None:
    row: Any = {"op": NAME, "batch": 1, "m": 512, "n": 512, "k": 64, "dtype": "bf16", "latency_us": 9.0, "timing": NAME}
    columns: Any = {key: [value] for key, value in row.items()}
    family = MeasuredFamily(date=date(2026, 1, 1), wavecast=NAME, torch=NAME, tables={"matmul": columns})
    save_ops(tmp_path / "ops.json", MeasuredOps(gpu=gpu, device="cuda", families={NAME: family}))
    (tmp_path / "bad.json").write_bytes(
        (tmp_path / "ops.json").read_bytes().replace(b'"latency_us"', json.dumps(NAME).encode())
    )
    for name, code in (("ops.json", 0 if gpu == GPU else 2), ("bad.json", 2)):
        found = run("score", tmp_path / name)
        assert found.exit_code == code, found.output
        check_clean(found.output, name)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_rerun_is_clean(form: str, path: Path, run: Run) -> None:
    pytest.importorskip("torch")
    found = run("rerun", path, "--from", GPU, "--device", "cpu", "--seconds", "0.1", "--format", form)
    assert found.exit_code == 0, found.output
    check_clean(found.output, form)


WORD = HOSTILE.replace("\x00", "")


@pytest.mark.parametrize(
    "words",
    [
        (f"no{WORD}",),
        ("analyze", f"no{WORD}"),
        ("analyze", f"--no{WORD}"),
        ("analyze", "x", f"y{WORD}"),
        ("analyze", "x", "--format", WORD),
        ("analyze", "x", "--top", WORD),
        ("analyze", "{}", "--to", WORD),
        ("analyze", "{}", "--from", WORD),
        ("analyze", "{}", "--host", WORD),
        ("analyze", "{}", "--calibration", WORD),
        ("analyze", "{}", "--from", GPU, "-o", f"no/{WORD}"),
        ("analyze", "{}", "-o", "{}"),
        ("show", WORD),
        ("catalog", WORD),
        ("catalog", "--gpu-file", WORD),
        ("convert", "{}", f"{WORD}.xyz"),
        ("score", WORD),
        ("score", ".", "--exclude-gpu", WORD),
        ("record", f"{WORD}.py"),
        ("record", f"--no{WORD}"),
        ("record", "--iterations", WORD, "x.py"),
        ("record", "--shapes-only", "--hf-config", WORD),
        ("record", "-o", f"{WORD}/x.json", "x.py"),
        ("measure", WORD, "--device", "cpu", "--gpu", GPU),
        ("measure", "--families", WORD),
        ("measure", "--device", "cpu", "--gpu", WORD, "--gpu-file", WORD),
    ],
)
def test_no_message_holds_what_acts(words: tuple[str, ...], path: Path) -> None:
    found = CliRunner().invoke(wavecast, [str(path) if word == "{}" else word for word in words], prog_name="wavecast")
    assert found.exit_code in (1, 2), found.output
    check_clean(found.output, words)
    assert isinstance(found.exception, SystemExit)


@pytest.mark.parametrize("content", [f'{{"{NAME}": 1}}', f'{{"format": "wavecast.trace", "version": "{HOSTILE}"}}'])
def test_no_message_about_a_file_holds_what_acts(content: str, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "t"
    file.write_text(json.dumps(json.loads(content, strict=False)) if HOSTILE not in content else content)
    found = run("show", file)
    assert found.exit_code == 2
    check_clean(found.output)


def test_numbers_stay_numbers() -> None:
    from wavecast.analyzer.page.encoding import encode_csv

    rows = [[-1.5, "-1.5", "=1", "+x", "@x", "\tx", "a-b", True, None, -3, "＝1"]]
    assert encode_csv(["-x"], rows).splitlines()[1] == "-1.5,'-1.5,'=1,'+x,'@x,�x,a-b,true,,-3,'＝1"


def test_words_that_decide_how_a_trace_is_read_are_shown_clean(tmp_path: Path, run: Run) -> None:
    meta = Meta(source_format=NAME, capture=NAME, workload=Workload(mode=NAME))
    save_trace(Trace(meta=meta, devices=(Device(name=NAME),)), tmp_path / "t")
    for words in (("show",), ("show", "--format", "json")):
        found = run(*words[:1], tmp_path / "t", *words[1:])
        check_clean(found.output)
