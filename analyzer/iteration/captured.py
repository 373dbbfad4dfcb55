"""Iterations captured under a profiler that are unlike those timed without it: refused, or warned of."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...arrays import distinct
from ...errors import InputError
from ...formats.trace.tables import Trace
from ..recorded.window import Window, timed_iterations

MOST_STRETCHED: Final = 3.0
"""How many times a timed iteration's length a captured one has: 0.8 to 2.4 in 95 recordings on H100 and H200."""
SPENT_ONCE_NS: Final = 10e6
"""What a captured iteration may take beside, however short it is: the profiler's own pauses."""
BUSY_TOLERANCE: Final = 1.05
"""How far a GPU may be busy longer than a timed iteration lasts: clocks and the profiler move a few per cent."""
COMPILING: Final = "PythonDispatchMode"
"""The op under which torch.compile tries ops out on fake tensors."""
_COMPILED: Final = (
    "torch compiled code in the captured iteration{}: its kernels and the host's times are not those of a step"
)


def check_compiling(trace: Trace, window: Window) -> None:
    """Raise InputError where compiling is most of the captured iteration.

    >>> check_compiling(measured, recorded.window)  # nothing was compiled in it: nothing to say
    """
    captured_ns, usual_ns, told = _lengths(trace, window)
    if _is_compiling(trace, window) and captured_ns > MOST_STRETCHED * usual_ns + SPENT_ONCE_NS:
        raise InputError(f"{_COMPILED.format(told)}; record again, after more iterations of warm-up")


def warn_captured(trace: Trace, window: Window, busy_ns: float) -> Iterator[str]:
    """Say where the captured iteration is no such iteration as those that were timed without the profiler."""
    if window.index is None or trace.meta.capture == "shapes":
        return
    captured_ns, usual_ns, told = _lengths(trace, window)
    if _is_compiling(trace, window):
        yield f"{_COMPILED.format(told)}; record again, after more iterations of warm-up"
    elif captured_ns > MOST_STRETCHED * usual_ns + SPENT_ONCE_NS:
        yield (
            f"the captured iteration took {captured_ns / usual_ns:.1f} times as long as the timed ones{told}: "
            "something ran in it that does not in every iteration (compiling, autotuning, loading); record again"
        )
    elif busy_ns > BUSY_TOLERANCE * usual_ns:
        yield (
            f"the GPU is busy for {brief(busy_ns)} in the captured iteration, longer than the timed "
            f"ones last ({brief(usual_ns)}): they are not alike, record again"
        )


def _is_compiling(trace: Trace, window: Window) -> bool:
    names = (trace.strings[name] for name in distinct(trace.ops.name[window.op_rows]).tolist())
    return any(COMPILING in name or name.endswith("(dynamo_timed)") for name in names)


def _lengths(trace: Trace, window: Window) -> tuple[float, float, str]:
    """Return the captured length and the timed ones' median, ns, and both in words; alike where none was timed."""
    lengths_ns = trace.iterations.end_ns - trace.iterations.start_ns
    captured_ns = float(lengths_ns[window.index]) if window.index is not None else 0.0
    timed_ns = lengths_ns[timed_iterations(trace)]
    if not len(timed_ns):
        return captured_ns, captured_ns, ""
    usual_ns = float(np.median(timed_ns))
    return captured_ns, usual_ns, f" ({brief(captured_ns)}; {brief(usual_ns)} without the profiler)"


def brief(time_ns: float) -> str:
    """Write seconds or milliseconds, as sentences have them."""
    return f"{time_ns / 1e9:.2f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:.1f} ms"
