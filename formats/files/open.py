"""Reads and writes trace files: recognises by content, unpacks within limits, writes whole or not at all."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, BinaryIO, Final

from ...errors import InputError, OutputError, TraceError, WavecastError, WriteError
from .detect import describe_content, starts_as_json
from .importers import IMPORTERS, find_importer
from .reference import is_reference, load_reference
from .replacing import replace_file, write_all
from .source import ImportSource, ReadOptions
from .unpack import LIMIT_VARIABLE

if TYPE_CHECKING:
    from ..trace.tables import Trace

DEFAULT_MAX_BYTES: Final = 2 << 30
"""Reading takes several times the text's size in memory: 2 GiB is what a machine of 24 GiB reads with room to spare."""
CONTAINER_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container sees its own limit, by version 2 and version 1 of control groups."""
MEMORY_PER_BYTE: Final = 4
"""Bytes of memory that reading may take per byte of text: a profiler file of a gigabyte takes 1.3, our own files up to
this where their rows are long, and hostile ones of nothing but short rows more."""
STANDARD_STREAM: Final = "-"
PIPE_PATIENCE_S: Final = 10.0
_DESCRIPTOR: Final = re.compile(r"/dev/(?:fd/(\d+)|stdout|(stderr))|/proc/self/fd/(\d+)")
_BAD_PLACE: Final = frozenset({
    errno.EACCES, errno.EBADF, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.EPERM, errno.EROFS, errno.ETXTBSY,
})  # fmt: skip
"""What another destination helps against; all else (a full disk, a quota, a broken device) is no fault of the user."""
_GZIP_LEVEL: Final = 6


def load_trace(
    path: str | Path,
    *,
    recover: bool = False,
    window_ns: tuple[int | None, int | None] | None = None,
    iteration: int | str | None = None,
) -> Trace:
    """Read a trace: our own format or a PyTorch profiler file, plain or packed; `-` reads standard input.

    `recover` reads what a truncated or dirty profiler file still holds and counts the loss in `quality`. `iteration` (a
    number from 0, "median" or "longest") and `window_ns` (ns since the earliest event; None: an open end) keep only
    what the host did then and what that put on the GPU. Numbers of threads and storages that lie far apart come closer
    together, so that no table is sized by them.
    Raises InputError where nothing can be read and TraceError where it is no trace.

    >>> load_trace("samples/gpt2_small-inference-bf16-b4-shapes.json.gz").meta.workload
    Workload(name='gpt2_small', mode='inference', batch_size=4, samples_per_iteration=4)
    """
    return load_part(path, ReadOptions(recover=recover, window_ns=window_ns, iteration=iteration))


def load_part(path: str | Path, options: ReadOptions) -> Trace:
    """Read what is asked for of a trace, as `load_trace` does.

    >>> load_part("samples/gpt2_small-inference-bf16-b4-shapes.json.gz", ReadOptions()).meta.capture
    'shapes'
    """
    from ..trace.cut import cut_part, find_part
    from ..trace.renumber import renumber

    _check_path(path)
    # Raise InputError for what is no begin and end, each whole nanoseconds or None.
    window_ns = options.window_ns
    ends = window_ns if isinstance(window_ns, tuple | list) else ()
    if window_ns is not None and (len(ends) != 2 or not {type(end) for end in ends} <= {int, type(None)}):
        raise InputError(f"window_ns={window_ns!r}: expected a begin and an end in ns, or None for an open end")
    if is_reference(path):
        trace, part, is_chosen = load_reference(path), None, False
    else:
        with _opened(path, _limit(), recover=options.recover) as source:
            trace = _read_content(source, options)()
            part, is_chosen = source.part, source.is_chosen
    try:
        if part is None and not is_chosen:
            part = find_part(trace, options)
        return renumber(trace if part is None else cut_part(trace, part))
    except TraceError as error:
        raise TraceError(f"{_name(path)}: {error}") from error


def _check_path(path: object) -> None:
    if not isinstance(path, str | os.PathLike) or "\0" in os.fsdecode(path):
        raise InputError(f"{path!r}: expected a path")


def is_read_in_parts(path: str | Path) -> bool:
    """Say whether a file is too large to be read whole, as far as its beginning tells; a stream is not.

    >>> is_read_in_parts("samples/gpt2_small-inference-bf16-b4-shapes.json.gz")
    False
    """
    if is_reference(path) or str(path) == STANDARD_STREAM or not Path(path).is_file():
        return False
    with _opened(path, _limit(), recover=True) as source:
        return source.likely_bytes > source.max_bytes


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace in our format, gzipped where the name ends in `.gz`; `-` writes to standard output.

    The same trace gives the same bytes. Raises OutputError where the file cannot be written; then nothing is changed.

    >>> save_trace(trace, folder / "gpt2.json.gz")
    >>> load_trace(folder / "gpt2.json.gz").meta == trace.meta
    True
    """
    from ..trace.codec import encode
    from ..trace.tables import Trace

    if not isinstance(trace, Trace):
        raise InputError(f"trace: expected a Trace, got {type(trace).__name__}")
    _check_path(path)
    data = encode(trace)
    write_atomic(path, pack_gzip(data) if str(path).endswith(".gz") else data)


def read_bytes(path: str | Path, *, max_bytes: int | None = None, recover: bool = False) -> bytes:
    """Read a file and unpack it if it is packed; `-` reads standard input.

    `max_bytes` bounds the result; it defaults to WAVECAST_MAX_TRACE_BYTES, else to 2 GiB or a quarter of the memory.
    Raises InputError or TraceError that begins with the file's name.
    """
    with _opened(path, _limit() if max_bytes is None else max_bytes, recover=recover) as source:
        return source.read()


def _open_pipe(path: str | Path) -> BinaryIO:
    """Open a named pipe to read. Raises InputError where nothing opens it to write: a read would wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    stream = os.fdopen(descriptor, "rb")
    if not select([descriptor], [], [], PIPE_PATIENCE_S)[0]:
        try:
            is_lonely = not os.read(descriptor, 1)
        except BlockingIOError:  # there is a writer, which has written nothing yet
            is_lonely = False
        if is_lonely:
            stream.close()
            raise InputError(
                f"a pipe that nothing wrote to for {PIPE_PATIENCE_S:.0f} s; name a file, or start its writer"
            )
    os.set_blocking(descriptor, True)
    return stream


@contextmanager
def _opened(path: str | Path, limit: int, *, recover: bool) -> Iterator[ImportSource]:
    """Open a file to import, and give every error its name."""
    name = _name(path)
    try:
        with ExitStack() as stack:
            if str(path) == STANDARD_STREAM:
                source = ImportSource(name, stream=sys.stdin.buffer, max_bytes=limit, recover=recover)
            else:
                stream = stack.enter_context(_open_pipe(path) if Path(path).is_fifo() else Path(path).open("rb"))  # noqa: SIM115
                source = ImportSource(name, path=Path(path), stream=stream, max_bytes=limit, recover=recover)
            stack.callback(source.close)
            yield source
    except OSError as error:
        raise _explain_unreadable(path, error) from None
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from error


def pack_gzip(data: bytes) -> bytes:
    """Compress to gzip without time, file name or operating system in its header, so that bytes are reproducible."""
    packed = bytearray(zlib.compress(data, _GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS))
    packed[4:10] = b"\x00\x00\x00\x00\x00\xff"
    return bytes(packed)


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all; `-` writes to standard output.

    Symbolic links are followed, permissions kept; pipes and devices are written to. Raises OutputError where nothing
    can be written there, WriteError where writing failed: then the old file, or none, is still there.

    >>> write_atomic(folder / "page.md", b"done")
    >>> (folder / "page.md").read_text()
    'done'
    """
    try:
        if str(path) == STANDARD_STREAM:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            _write_file(Path(path), data)
    except OSError as error:
        raise explain_unwritable(_name(path, "standard output"), error) from None


def explain_unwritable(name: str, error: OSError) -> WavecastError:
    """Return the error for a destination: OutputError where another one helps, WriteError where writing failed.

    >>> explain_unwritable("report.md", OSError(errno.ENOSPC, "No space left on device"))
    WriteError('report.md: cannot be written: No space left on device')
    """
    kind = OutputError if error.errno in _BAD_PLACE else WriteError
    return kind(f"{name}: cannot be written: {_reason(error)}")


def _read_content(source: ImportSource, options: ReadOptions) -> Callable[[], Trace]:
    importer = find_importer(source.head)
    if importer is None:
        content = source.read() if not source.head or starts_as_json(source.head) else source.head
        importer = find_importer(content)
        if importer is None:
            *names, last = (item.name for item in IMPORTERS)
            raise TraceError(f"no trace: found {describe_content(content)}; expected {', '.join(names)} or {last}")
    return importer.read(source, options=options)


def _limit() -> int:
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return min(DEFAULT_MAX_BYTES, machine_bytes() // MEMORY_PER_BYTE)
    if not text.isdecimal():
        raise InputError(f"{LIMIT_VARIABLE}: expected a number of bytes, found {text!r}")
    return int(text)


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container; where neither says, enough for the usual limit."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        whole = DEFAULT_MAX_BYTES * MEMORY_PER_BYTE
    return min(_granted_bytes(path, whole) for path in CONTAINER_LIMITS)


def _granted_bytes(path: Path, whole: int) -> int:
    """Return what a container may take of the whole machine's memory."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return whole
    return min(int(text), whole) if text.isdecimal() else whole


def _write_file(path: Path, data: bytes) -> None:
    stream = _DESCRIPTOR.fullmatch(os.path.abspath(path))  # noqa: PTH100 (links stay: these lead to what is open)
    if stream is not None:
        number = stream[1] or stream[3] or ("2" if stream[2] else "1")
        sys.stdout.flush()
        write_all(int(number), data)
        return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only")
    replace_file(target, data)


def _name(path: str | Path, stream: str = "standard input") -> str:
    return stream if str(path) == STANDARD_STREAM else str(path)


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "its directory does not exist"
    return error.strerror or str(error)


_SEVERAL: Final = " (ranks of one job: wavecast ranks; any traces: wavecast batch)"


def _explain_unreadable(path: str | Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: no such file{_suggest(Path(path))}")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path}: expected a trace file, found a directory; name a file in it{_SEVERAL}")
    return InputError(f"{_name(path)}: cannot be read: {_reason(error)}")


def _suggest(path: Path) -> str:
    """Name the file in the same directory that may have been meant."""
    if not path.parent.is_dir():
        return f" (the directory {path.parent} does not exist)"
    try:
        names = {entry.name.partition(".")[0]: entry.name for entry in path.parent.iterdir()}
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name.partition(".")[0], names, n=1)  # endings are alike anyway
    return f"; did you mean {path.with_name(names[close[0]])}?" if close else ""
