"""Workers: processes of this machine.

Each reads the models once and takes a trace at a time. A process that dies takes one trace with it, which is known by
name; another takes its place. Processes are started afresh (not forked), calculate on one thread each, and end with the
process that started them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final

from ....errors import InputError, WavecastError
from ....progress import tell
from ....records import dataclass
from .columns import COLUMNS
from .inputs import BatchInput
from .parts import PartFolder, TracePart, Value

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

Work = Callable[[BatchInput], bytes]
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD: Final[Mapping[str, str]] = dict.fromkeys(_THREAD_VARIABLES, "1")
"""Workers share the cores already; and sums over several threads may round otherwise."""
_READY: Final = b""
_ENDING_S: Final = 5.0
"""For a worker that is asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Hold what came of one trace: its part, or why there is none."""

    item: BatchInput
    data: bytes | None = None
    failure: str | None = None


@dataclass(slots=True, kw_only=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    is_ready: bool = False
    item: BatchInput | None = None


def answer_on_processes(work: Work, items: Sequence[BatchInput], count: int) -> Iterator[Delivery]:
    """Yield what `work`, which can be pickled, makes of each item, as it is done, on `count` processes.

    What it raises and the death of a worker fail that item, but for InputError, which is of all. Raises WavecastError
    where workers die before they begin.
    """
    waiting = list(reversed(items))
    workers = [_start(work) for _ in range(min(count, len(items)))]
    try:
        while workers:
            ready = wait([worker.pipe for worker in workers])
            for worker in [worker for worker in workers if worker.pipe in ready]:
                yield from _receive(worker)
                if worker.is_ready and worker.item is None and waiting:
                    item = waiting.pop()
                    worker.item = item
                    with suppress(OSError):  # it has died: its pipe says so next
                        worker.pipe.send(item)
                elif worker.item is None:
                    workers.remove(worker)
                    _end(worker)
                    if not worker.is_ready and waiting:
                        workers.append(_start(work))
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            _end(worker)


def _receive(worker: _Worker) -> Iterator[Delivery]:
    """Yield what a worker has to say of its item; one that died is not ready any more."""
    item, worker.item = worker.item, None
    try:
        message = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(_ENDING_S)
        if not worker.is_ready:
            raise WavecastError(f"a worker ended before it began: {_describe_end(worker.process.exitcode)}") from None
        worker.is_ready = False
        if item is not None:
            yield Delivery(item=item, failure=f"its worker ended: {_describe_end(worker.process.exitcode)}")
        return
    if isinstance(message, InputError):
        raise message
    worker.is_ready = True
    if item is not None:
        is_part = isinstance(message, bytes)
        yield Delivery(item=item, data=message if is_part else None, failure=None if is_part else message)


def _describe_end(code: int | None) -> str:
    if code is not None and code < 0:
        hint = " (out of memory?)" if -code == getattr(signal, "SIGKILL", 0) else ""
        return f"signal {-code}{hint}"
    return f"exit status {code}"


def _start(work: Work) -> _Worker:
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True, name="wavecast batch")
    with _environment(ONE_THREAD):
        process.start()
    theirs.close()
    with suppress(OSError):  # it has died: its pipe says so next
        mine.send(work)  # not as an argument: Python waits forever for one that dies before it has read so much
    return _Worker(process=process, pipe=mine)


def _end(worker: _Worker) -> None:
    """Let a worker go; it ends when its pipe is closed."""
    worker.pipe.close()
    worker.process.join(_ENDING_S)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(pipe: Connection) -> None:
    """Answer items until the pipe is closed. Ctrl-C is for who started this, and closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        work: Work = pipe.recv()
        pipe.send(_READY)
        while True:
            pipe.send(_deliver(work, pipe.recv()))


def _deliver(work: Work, item: BatchInput) -> Any:
    """Return the part; a sentence where it fails, or the InputError that is of all items."""
    try:
        return work(item)
    except InputError as error:
        return error
    except WavecastError as error:
        return str(error)
    except MemoryError:
        return "out of memory"
    except Exception as error:  # noqa: BLE001 (a fault in one trace must not end a thousand others)
        return f"{type(error).__name__}: {' '.join(str(error).split())}; please report it with the trace"


Rows = dict[str, list[Value]]
"""A column per name in `COLUMNS`, equally long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """Say which trace, or which what-if of one, has no rows, and why."""

    trace: str
    what_if: str | None
    """None: all of them."""
    reason: str
    may_pass: bool
    """Whether another run may bring it: the trace was not refused, but its worker ended or its file was changed."""


def fill_parts(
    folder: PartFolder, inputs: Sequence[BatchInput], work: Work, process_count: int
) -> tuple[BatchFailure, ...]:
    """Ask for every trace that has no part yet, and keep what comes; return those of which nothing came."""
    missing = [item for item in inputs if folder.read(item.trace_id) is None]
    done, failures = len(inputs) - len(missing), dict[str, BatchFailure]()
    for delivery in answer_on_processes(work, missing, process_count):
        item = delivery.item
        if delivery.data is not None:
            folder.write(item.trace_id, delivery.data)
        else:
            reason = delivery.failure or "nothing came of it"
            failures[item.trace_id] = BatchFailure(trace=item.name, what_if=None, reason=reason, may_pass=True)
        done += 1
        tell(item.name, done, len(inputs))
    return tuple(failures[item.trace_id] for item in missing if item.trace_id in failures)


def refusals_of(item: BatchInput, part: TracePart) -> tuple[BatchFailure, ...]:
    """Return what was refused of a trace."""
    return tuple(
        BatchFailure(trace=item.name, what_if=refusal.what_if, reason=refusal.reason, may_pass=False)
        for refusal in part.refusals
    )


def rows_of(item: BatchInput, part: TracePart) -> Iterator[Rows]:
    """Yield the table's rows of a trace, those of one what-if at a time."""
    for answer in part.answers:
        count = len(answer.columns["gpu"])
        shared = {"trace_id": item.trace_id, "trace": item.name, **part.facts, **answer.shared}
        yield {name: answer.columns[name] if name in answer.columns else [shared[name]] * count for name in COLUMNS}
