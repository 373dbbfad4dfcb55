"""Several writers, kills, flipped bits, a prune beside an add and a full disk: an archive loses nothing unsaid.

Run: python -m benchmarks.check.archive_stress                     # all; prints counts and faults, exit status 1 on any
     … --only kills,bits --kills 100 --bits 1000 --seed 3

writers   8 processes add 100 traces each, half of them the same ones, with tags of their own.
kills     `wavecast archive add` of several files gets SIGKILL at a random moment. Then `verify` finds nothing but
          harmless left-overs, and every id that was told on stdout is there and reads.
bits      One bit of a trace's file or of the journal is flipped: `verify` finds it, or entries and contents are as
          they were. The bit is put back, and the archive is whole again.
prune     One process adds and another sweeps whatever no record names, however young: no trace is lost.
full      A child may not write files of more than so many bytes: WriteError, and nothing half-written stays.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from wavecast.errors import InputError, WriteError
from wavecast.formats.archive import changes as changes_module
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.archive.entry import FOLDER
from wavecast.formats.archive.verify import verify
from wavecast.formats.files.open import load_trace, save_trace
from wavecast.formats.trace.tables import Trace

SAMPLE = Path(__file__).parents[2] / "samples" / "dcgan-inference-fp32-b64-shapes.json.gz"
WRITERS, ADDS = 8, 100
SLOW = """
import os, sys, time
folder, pause_s = os.path.realpath(sys.argv.pop(1)), 0.004
def hook(event, args):
    if event in ("open", "os.rename", "os.link", "os.remove") and folder in str(args[0]):
        time.sleep(pause_s)
sys.addaudithook(hook)
for name in ("fsync", "write"):
    def wait(*args, _real=getattr(os, name)):
        time.sleep(pause_s)
        return _real(*args)
    setattr(os, name, wait)
sys.stdout.reconfigure(write_through=True)
print("started", flush=True)
from wavecast.__main__ import main
sys.argv[0] = "wavecast"
main()
"""
"""The command line with slow file operations, so that a kill hits an unfinished one."""


def variant(number: int, seed: Trace | None = None) -> Trace:
    seed = seed or load_trace(SAMPLE)
    workload = replace(seed.meta.workload, name=f"net-{number}", batch_size=1 + number % 64)
    return replace(seed, meta=replace(seed.meta, workload=workload))


def made(folder: Path) -> Path:
    init_archive(folder)
    return folder


def faults_of(folder: Path | str, *, deep: bool = True) -> list[str]:
    with open_archive(folder) as archive:
        return [f"{item.fault.value} {item.name}" for item in verify(archive, deep=deep).findings if item.is_harmful]


def content(folder: Path | str) -> dict[str, str]:
    """Return entry and content of every trace, as hashes."""
    with open_archive(folder, say=lambda _: None) as archive:
        return {
            item.id: f"{hashlib.sha256(repr(item).encode()).hexdigest()} {len(archive.read(item.id))}"
            for item in archive.entries()
        }


def write_many(place: Path | str, writer: int, adds: int) -> None:
    seed = load_trace(SAMPLE)
    with open_archive(place) as archive:
        for number in range(adds):
            shared = number % 2 == 0
            entry = archive.add(variant(number if shared else 1000 * (writer + 1) + number, seed), tags=[f"w{writer}"])
            archive.tag([entry.id], add=["seen"])


def stress_writers(place: Path | str, *, writers: int, adds: int) -> list[str]:
    """Return the faults after so many processes added so many traces each to an empty archive."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(place, number, adds)) for number in range(writers)]
    begin_s = time.monotonic()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.monotonic() - begin_s
    found = [f"writer ended with {process.exitcode}" for process in processes if process.exitcode]
    with open_archive(place) as archive:
        entries = archive.entries()
        expected = -(-adds // 2) + writers * (adds // 2)
        found += [f"{len(entries)} entries, not {expected}"] if len(entries) != expected else []
        for number in range(writers):
            count = len(archive.entries(f"tag=w{number} tag=seen"))
            found += [f"writer {number}: {count} tagged, not {adds}"] if count != adds else []
    print(f"writers: {writers} x {adds} adds in {seconds:.1f} s, {len(entries)} traces")
    return found + faults_of(place)


def check_writers(folder: Path, _options: argparse.Namespace) -> list[str]:
    return stress_writers(made(folder), writers=WRITERS, adds=ADDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """Say how often a command line that adds to an archive is killed, and when."""

    place: Path | str
    start: tuple[str, ...]
    """What of the command line comes before the words of `wavecast`; it prints a line when it begins."""
    count: int
    seed: int
    after_s: tuple[float, float]


def stress_kills(kills: Kills, sources: Path) -> tuple[Counter[str], list[str]]:
    """Return what was counted and the faults; every id that a command told before its end is in the archive."""
    place, random, seed = kills.place, Random(kills.seed), load_trace(SAMPLE)  # noqa: S311
    counts, found, confirmed = Counter[str](), list[str](), set[str]()
    for kill in range(kills.count):
        files = [sources / f"{kill}-{number}.json" for number in range(4)]
        for number, file in enumerate(files):
            save_trace(variant(10 * kill + number, seed), file)
        command = [*kills.start, "archive", "add", str(place), *map(str, files), "--tag", "k"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.uniform(*kills.after_s))
        process.send_signal(signal.SIGKILL)
        text, errors = process.communicate()
        counts["killed" if process.returncode == -signal.SIGKILL else "ended before"] += 1
        found += [f"kill {kill}: {errors.strip().splitlines()[-1]}"] if errors.strip() else []
        confirmed |= {line.split()[0] for line in text.splitlines() if line.endswith(".json")}
        found += [f"kill {kill}: {fault}" for fault in faults_of(place)]
        with open_archive(place) as archive:
            kept = {entry.short_id for entry in archive.entries()}
            found += [f"kill {kill}: {lost} was confirmed and is not there" for lost in sorted(confirmed - kept)]
            counts["left what no entry names"] = len(archive.unnamed())
            counts["entries"], counts["confirmed"] = len(kept), len(confirmed)
    with open_archive(place) as archive:
        counts["given an entry by repair"] = len(archive.repair())
    return counts, found + [f"after repair: {fault}" for fault in faults_of(place)]


def check_kills(folder: Path, options: argparse.Namespace) -> list[str]:
    sources = folder.parent / "sources"
    sources.mkdir()
    start = (sys.executable, "-c", SLOW, str(folder))
    kills = Kills(place=made(folder), start=start, count=options.kills, seed=options.seed, after_s=(0.0, 0.4))
    counts, found = stress_kills(kills, sources)
    counts["unfinished files"] = sum(path.is_file() and ".tmp" in path.name for path in folder.rglob("*"))
    print(f"kills: {dict(counts)}")
    return found


def check_bits(folder: Path, options: argparse.Namespace) -> list[str]:
    made(folder)
    random, seed = Random(options.seed), load_trace(SAMPLE)  # noqa: S311
    with open_archive(folder) as archive:
        for number in range(12):
            archive.add(variant(number, seed), tags=["a", f"t{number}"], note=f"note {number}")
    before = content(folder)
    files = [*(folder / FOLDER).rglob("*.json.gz"), *[folder / "journal" / "records.jsonl"] * 6]
    counts, found = Counter[str](), list[str]()
    for flip in range(options.bits):
        path = random.choice(files)
        whole = path.read_bytes()
        bit = random.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        if flip % 2:
            (folder / "index.sqlite").unlink(missing_ok=True)  # half of the readers come with no index
        kind = "journal" if path.suffix == ".jsonl" else "trace"
        try:
            is_found = bool(faults_of(folder, deep=False))
        except InputError:
            is_found = True
        if is_found:
            counts[f"{kind}: found"] += 1
        elif content(folder) == before:
            counts[f"{kind}: harmless"] += 1
        else:
            found.append(f"bit {bit} of {path.name}: not found, and entries or contents differ")
        path.write_bytes(whole)
    (folder / "index.sqlite").unlink(missing_ok=True)
    found += faults_of(folder) + ([] if content(folder) == before else ["not as before when all bits are back"])
    print(f"bits: {dict(counts)}")
    return found


def sweep_until(folder: Path, end: Callable[[], bool], results: multiprocessing.Queue[tuple[int, int, int]]) -> None:
    changes_module.sweep.__kwdefaults__["grace_s"] = 0.0  # type: ignore[index]
    sweeps = removed = restored = 0
    with open_archive(folder) as archive:
        while not end():
            swept = archive.sweep()
            sweeps, removed, restored = sweeps + 1, removed + swept.removed_count, restored + swept.restored_count
    results.put((sweeps, removed, restored))


def check_prune(folder: Path, options: argparse.Namespace) -> list[str]:
    made(folder)
    seed, ended = load_trace(SAMPLE), multiprocessing.Event()
    results: multiprocessing.Queue[tuple[int, int, int]] = multiprocessing.Queue()
    sweeper = multiprocessing.Process(target=sweep_until, args=(folder, ended.is_set, results))
    sweeper.start()
    with open_archive(folder) as archive:
        ids = {archive.add(variant(number, seed)).id for number in range(options.beside)}
    ended.set()
    sweeps, removed, restored = results.get(timeout=60)
    sweeper.join()
    with open_archive(folder) as archive:
        lost = ids - {entry.id for entry in archive.entries()}
    print(f"prune: {len(ids)} adds beside {sweeps} sweeps; {removed} files removed early, {restored} put back")
    return [f"{len(lost)} entries lost"] * bool(lost) + faults_of(folder)


def add_in_little_room(folder: Path, room_bytes: int, number: int) -> None:
    """End with 0 where the add went through, 3 where it said that it could not write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    trace = variant(number)
    try:
        with open_archive(folder) as archive:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, room_bytes))
            archive.add(trace, tags=["full"])
    except WriteError as error:
        sys.exit(3 if "\n" not in str(error) else 4)


def check_full(folder: Path, _options: argparse.Namespace) -> list[str]:
    made(folder)
    with open_archive(folder) as archive:
        archive.add(variant(0), tags=["first"])
    journal_bytes = (folder / "journal" / "records.jsonl").stat().st_size
    counts, found = Counter[str](), list[str]()
    rooms = [0, 100, 1000, *(journal_bytes + step for step in (-1, 0, 1, 50, 400, 900)), 4096, 8192, 32768, 1 << 20]
    for number, room in enumerate(rooms, 1):
        before = content(folder)
        process = multiprocessing.Process(target=add_in_little_room, args=(folder, room, number))
        process.start()
        process.join()
        counts[{0: "added", 3: "said so"}.get(process.exitcode or 0, f"ended with {process.exitcode}")] += 1
        found += [f"{room} bytes: ended with {process.exitcode}"] if process.exitcode not in (0, 3) else []
        left = [path.name for path in folder.rglob("*.tmp*")]
        found += [f"{room} bytes: left {left}"] if left else []
        found += [f"{room} bytes: {fault}" for fault in faults_of(folder)]
        after = content(folder)
        if process.exitcode and after != before:
            found.append(f"{room} bytes: entries changed though it failed")
    print(f"full: {dict(counts)}")
    return found


CHECKS = {
    "writers": check_writers, "kills": check_kills, "bits": check_bits, "prune": check_prune, "full": check_full,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CHECKS))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--bits", type=int, default=1000)
    parser.add_argument("--beside", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        checks = {name: partial(check, made_under(Path(scratch), name), options) for name, check in CHECKS.items()}
        return run_checks(checks, options.only)


def made_under(scratch: Path, name: str) -> Path:
    (scratch / name).mkdir()
    return scratch / name / "archive"


def run_checks(checks: Mapping[str, Callable[[], list[str]]], only: str) -> int:
    """Run the checks that `only` names and print their faults; return 1 where there are any."""
    broken = 0
    for name in only.split(","):
        for fault in checks[name]():
            broken += 1
            print(f"  FAULT {name}: {fault}", flush=True)
        sys.stdout.flush()
    print(f"{broken} faults")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
