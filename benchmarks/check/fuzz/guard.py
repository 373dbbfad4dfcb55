"""Runs one command on one input under limits, and says what was wrong with how it ended."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner, Result

from .calls import Call, draw_call
from .mutate import mutate
from .seeds import Kind, Seed

CPU_LIMIT_S = 20
MEMORY_LIMIT_BYTES = 2 << 30
"""Of a process in memory; of its address space, this much more than before the input."""
GOOD_STATUS = {"record": (0, 1, 2), "archive": (0, 1, 2)}
"""By command: 0 and 2 where none is given. A model that a library cannot run is a failure, 1; so is damage found."""
SHARES = {
    **{Kind.PROFILE: 30, Kind.TRACE: 40, Kind.GPUS: 10, Kind.TABLE: 18, Kind.CONFIG: 2},
    **{Kind.HOST: 12, Kind.RECOMMENDER: 10, Kind.OTHER: 60, Kind.SETTINGS: 40, Kind.ARCHIVE: 20, Kind.BATCH: 12},
}
"""How often a kind is drawn: by how much reads it."""

ROUNDED = 1.0 + 1e-9
"""Two ways to one number may differ in its last digits."""

_NOT_A_NUMBER = re.compile(r"(?<![\w.\"])-?(?:nan|inf)(?![\w.])", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = re.compile(r'(?:^|,)"?[=@]', re.MULTILINE)
_SHARE = re.compile(r"busy [^()\n%]*\(([\d,]+) %\)")
_TIMES = ("iteration_ns", "time_ns", "gpu_busy_ns", "duration_ns")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say how an input ended: `fault` is None where as it should."""

    index: int
    seed: str
    command: str
    status: int | None
    fault: str | None
    cpu_s: float = 0.0
    peak_bytes: int = 0
    words: tuple[str, ...] = ()
    detail: str = ""


def run_input(index: int, run_seed: int, seeds: tuple[Seed, ...], folder: Path) -> Verdict:
    """Make input `index` in `folder`, run its command, and judge; ends the process where a limit is passed."""
    seed, call, data = draw_input(index, run_seed, seeds, folder)
    for name, content in {**seed.beside, str(call.source.relative_to(folder)): data}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    started = _cpu_s()
    with _limits():
        result, noted = _invoke(call)
    peak_bytes = _peak_bytes()
    fault, detail = _fault(seed, call, result, noted, folder)
    if fault is None and peak_bytes > MEMORY_LIMIT_BYTES and call.command != "rerun":  # it makes the trace's tensors
        fault, detail = "more memory than it may take", f"{peak_bytes / 2**30:.2f} GiB"
    verdict = Verdict(
        index=index,
        seed=seed.name,
        command=call.command,
        status=result.exit_code,
        fault=fault,
        cpu_s=_cpu_s() - started,
        peak_bytes=peak_bytes,
        words=shown_words(call, folder),
        detail=detail,
    )
    if fault is None:
        shutil.rmtree(folder)
    return verdict


def draw_input(index: int, run_seed: int, seeds: tuple[Seed, ...], folder: Path) -> tuple[Seed, Call, bytes]:
    """Return what input `index` starts from, its command line and its bytes."""
    rng = Random(f"{run_seed}:{index}")  # noqa: S311 (a fixed sequence is wanted)
    kind = rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    seed = rng.choice([seed for seed in seeds if seed.kind is kind] or seeds)
    return seed, *make_input(seed, rng, folder)


def make_input(seed: Seed, rng: Random, folder: Path) -> tuple[Call, bytes]:
    """Return the command line and the changed bytes of an input."""
    data = mutate(seed, rng)
    call = draw_call(seed, folder, rng, compressed=data[:2] == b"\x1f\x8b")
    return call, data


def shown_words(call: Call, folder: Path) -> tuple[str, ...]:
    """Return a command line as it would be typed in the input's folder."""
    return tuple(word.replace(str(folder), ".") for word in call.words)


def _invoke(call: Call) -> tuple[Result, list[str]]:
    from wavecast.__main__ import wavecast

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = CliRunner().invoke(wavecast, list(call.words))
    places = ((f"{Path(note.filename).name}:{note.lineno}", note) for note in caught)
    return result, [f"{note.category.__name__}: {note.message} ({place})" for place, note in places]


class _limits:  # noqa: N801 (used as a function)
    """Hold the process to a memory and a processor limit; the kernel ends it where it passes the second."""

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_LIMIT_BYTES, self.before[1]))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is now what is held now
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, self.before)


def _peak_bytes() -> int:
    """Return the most memory that the process held since the limits were set."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _fault(seed: Seed, call: Call, result: Result, noted: list[str], folder: Path) -> tuple[str | None, str]:
    """Return what is wrong, and its particulars; None where nothing is."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        lines = traceback.format_exception(result.exception)
        return f"traceback {_place(result.exception)}", "".join(lines)[-3000:]
    for fault, detail in _doubts(seed, call, result, noted, folder):
        return fault, detail
    return None, ""


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "wavecast" in frame.filename or "/main/" in frame.filename]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.name}"


def _doubts(seed: Seed, call: Call, result: Result, noted: list[str], folder: Path) -> Iterator[tuple[str, str]]:
    if result.exit_code not in GOOD_STATUS.get(call.command, (0, 2)):
        yield f"status {result.exit_code}", result.stderr[-500:]
    if noted and call.command != "record":  # there other libraries warn, too
        yield f"python warning {noted[0][:120]}", "\n".join(noted)
    texts = [result.stdout, *(_text_of(path) for path in call.outputs if path.exists())]
    complaint = result.stderr
    if result.exit_code and result.exit_code not in GOOD_STATUS.get(call.command, ())[:2]:
        lines = [line for line in complaint.splitlines() if line]
        if not lines or not lines[-1].startswith("Error: ") or len(lines) > 4:
            yield f"status {result.exit_code} without one clear line", complaint[-800:]
        if any(path.exists() for path in call.outputs):
            yield "output in spite of an error", complaint
    allowed = {call.source, folder / "other.json", *call.outputs}
    allowed |= {folder / name for name in seed.beside}
    left = [path.name for path in folder.rglob("*") if path.is_file() and path not in allowed]
    if left and seed.kind not in (Kind.ARCHIVE, Kind.BATCH):
        yield "files left behind", ", ".join(left)
    for name, right in seed.answers.items() if result.exit_code == 0 else ():
        if (folder / name).read_bytes() != right:
            yield f"another {name} than of intact files", (folder / name).read_text("utf-8", "replace")[:3000]
    for text in (*texts, complaint):
        if found := _CONTROL.search(text):
            yield f"control character {found[0]!r}", text[max(found.start() - 100, 0) :][:300]
    for text in texts:
        yield from _bad_numbers(text)


def _text_of(path: Path) -> str:
    data = path.read_bytes()
    return "" if data[:2] == b"\x1f\x8b" else data.decode("utf-8", "surrogateescape")


def _bad_numbers(text: str) -> Iterator[tuple[str, str]]:
    if any(int(share.replace(",", "")) > 100 for share in _SHARE.findall(text)):
        yield "a share over 100 %", text[:1500]
    if not text.startswith("{"):
        if found := _NOT_A_NUMBER.search(text):
            yield f"number {found[0]!r}", text[max(found.start() - 150, 0) :][:400]
        return
    try:
        document = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        yield "unreadable JSON", f"{error}: {text[:300]}"
        return
    for where, value in _times_in(document):
        if value is None or value < 0 or value > 1e30:
            yield f"time {where} is {value}", text[:300]
    for row in document.get("predictions") or []:
        low, middle, high = (row.get(f"iteration_{name}ns") for name in ("low_", "", "high_"))
        if None not in (low, middle, high) and (low > middle * ROUNDED or middle > high * ROUNDED or low <= 0 < middle):
            yield "an interval that does not hold its middle", f"{low} {middle} {high}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"holds {constant}")


def _times_in(value: Any, where: str = "$") -> Iterator[tuple[str, Any]]:
    """Yield what a report says under `predictions`: the times of the GPUs."""
    if isinstance(value, dict) and isinstance(value.get("predictions"), list):
        for row in value["predictions"]:
            yield from ((f"{where}.{key}", row[key]) for key in _TIMES if isinstance(row, dict) and key in row)
