"""Changed files put to every command: no traceback, no hang, no memory, no NaN, nothing left behind.

Run: python -m benchmarks.check.fuzz                          # 20,000 inputs of seed 1; lists faults, exit status 1
     … --inputs 300 --seed 7 --jobs 2                         # fewer, others
     … --only 1234 --keep DIR                                 # one input again, its files kept in DIR

An input is a valid small file of a kind that wavecast reads (profile, trace, GPU file, measurement table, model
configuration) with its bytes, structure, numbers, texts, compression or columns changed, and a command line that reads
it. Each runs in a process that may use 20 s of processor time and 2 GB more than before; it must end with status 0 or
with status 2 and one line. The same seed gives the same inputs on every machine.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .guard import CPU_LIMIT_S, Verdict, draw_input, run_input, shown_words
from .seeds import Kind, Seed, build_seeds

WALL_LIMIT_S = 10 * CPU_LIMIT_S
"""A process that waits uses no processor time; on a busy machine one that works takes long."""
SHOWN = 40


def main() -> None:
    """Run the inputs and print what came of them."""
    options = _options()
    seeds = tuple(seed for seed in build_seeds() if seed.kind is not Kind.CONFIG or _has_transformers())
    indices = range(options.inputs) if options.only is None else [options.only]
    with tempfile.TemporaryDirectory(prefix="wavecast-fuzz-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        verdicts = []
        for verdict in run_all(list(indices), options.seed, seeds, folder, options.jobs):
            verdicts.append(verdict)
            if verdict.fault is not None:
                print(f"{verdict.index}: {verdict.fault}: wavecast {' '.join(verdict.words)}"[:400], flush=True)
                if options.only is not None or options.verbose:
                    print(verdict.detail)
    print_verdicts(verdicts)
    sys.exit(any(verdict.fault is not None for verdict in verdicts))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="the number of one input")
    parser.add_argument("--keep", type=Path, help="keep the files of inputs with faults here")
    parser.add_argument("--verbose", action="store_true", help="print each fault's particulars")
    return parser.parse_args()


def _has_transformers() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None and find_spec("transformers") is not None


def run_all(indices: list[int], run_seed: int, seeds: tuple[Seed, ...], folder: Path, jobs: int) -> Iterator[Verdict]:
    """Yield each input's verdict; a process that dies or hangs is one, too, and another takes its place."""
    _import_once()
    waiting = [indices[job::jobs] for job in range(jobs)]
    started = [_Worker(share, run_seed, seeds, folder) for share in waiting if share]
    workers: dict[Any, _Worker] = {worker.reader: worker for worker in started}
    while workers:
        for reader in connection.wait(list(workers), timeout=1.0):
            worker = workers[reader]
            try:
                message = worker.reader.recv()
            except EOFError:
                yield from worker.bury()
                del workers[reader]
                if worker.share:
                    heir = _Worker(worker.share, run_seed, seeds, folder)
                    workers[heir.reader] = heir
                continue
            if isinstance(message, int):
                worker.current, worker.since = message, time.monotonic()
            else:
                worker.share.remove(message.index)
                worker.current = None
                yield message
        for worker in workers.values():
            if worker.current is not None and time.monotonic() - worker.since > WALL_LIMIT_S:
                worker.process.kill()


def _import_once() -> None:
    """Load what every command needs before the processes part, so that none pays for it."""
    import_module("wavecast.analyzer.questions.score")
    import_module("wavecast.analyzer.iteration.analyze")
    from wavecast.analyzer.models.library import load_library
    from wavecast.errors import InputError, WavecastError
    from wavecast.specs.catalog import load_catalog

    load_library()
    load_catalog()
    workers = import_module("wavecast.analyzer.questions.batch.workers")

    def answer_here(work: Any, items: list[Any], _: int) -> Iterator[Any]:
        for item in items:
            try:
                yield workers.Delivery(item=item, data=work(item))
            except InputError:
                raise
            except WavecastError as error:
                yield workers.Delivery(item=item, failure=str(error))

    vars(workers)["answer_on_processes"] = answer_here  # a process for each input would take most of the time


class _Worker:
    """A process that runs its share of the inputs, one after the other."""

    def __init__(self, share: list[int], run_seed: int, seeds: tuple[Seed, ...], folder: Path) -> None:
        self.share = list(share)
        self.current: int | None = None
        self.since = time.monotonic()
        self.inputs = (run_seed, seeds, folder)
        context = get_context("fork")
        self.reader, writer = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(writer, self.share, run_seed, seeds, folder))
        self.process.start()
        writer.close()

    def bury(self) -> Iterator[Verdict]:
        """Yield what the process died of, unless it had nothing left to do."""
        self.process.join()
        if self.current is None:
            self.share = self.share if self.process.exitcode else []
            return
        self.share.remove(self.current)
        died = f"no end after {CPU_LIMIT_S} s" if self.process.exitcode == -27 else f"died with {self.process.exitcode}"
        run_seed, seeds, folder = self.inputs
        seed, call, _ = draw_input(self.current, run_seed, seeds, folder / str(self.current))
        words = shown_words(call, folder / str(self.current))
        yield Verdict(index=self.current, seed=seed.name, command=call.command, status=None, fault=died, words=words)


def _work(writer: Connection, share: list[int], run_seed: int, seeds: tuple[Seed, ...], folder: Path) -> None:
    for index in share:
        writer.send(index)
        faulthandler.dump_traceback_later(3 * CPU_LIMIT_S)  # on stderr: where it hangs
        writer.send(run_input(index, run_seed, seeds, folder / str(index)))
    writer.close()


def print_verdicts(verdicts: list[Verdict]) -> None:
    """Print the commands, and the files, with how they ended, and the faults by kind."""
    for title in ("command", "seed"):
        ended: dict[str, Counter[Any]] = {}
        for verdict in verdicts:
            key = "fault" if verdict.fault is not None else verdict.status
            ended.setdefault(Path(getattr(verdict, title)).name[:40], Counter())[key] += 1
        print(f"{title:42}{'answered':>10}{'refused':>10}{'faults':>10}")
        for name, counts in sorted(ended.items()):
            print(f"{name:42}{counts[0]:10}{counts[1] + counts[2]:10}{counts['fault']:10}")
    faults = Counter(verdict.fault for verdict in verdicts if verdict.fault is not None)
    for fault, count in faults.most_common(SHOWN):
        print(f"{count:6} × {fault}")
    slowest = max(verdicts, key=lambda verdict: verdict.cpu_s)
    # A re-run makes the tensors of the trace, as large as they are.
    largest = max(verdicts, key=lambda verdict: verdict.peak_bytes * (verdict.command != "rerun"))
    total = sum(verdict.cpu_s for verdict in verdicts)
    print(
        f"{len(verdicts)} inputs, {sum(faults.values())} faults; slowest {slowest.cpu_s:.1f} s "
        f"(input {slowest.index}), largest {largest.peak_bytes / 2**30:.2f} GiB (input {largest.index}), "
        f"{total:.0f} s of processor time"
    )


if __name__ == "__main__":
    main()
