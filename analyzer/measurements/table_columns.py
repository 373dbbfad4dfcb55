"""What the columns of measurement tables may hold, by name: the one check of every table that is read."""

from collections.abc import Collection, Mapping
from math import isnan
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...formats.trace.column import MAX_INTEGER
from ...records import dataclass, replace

MAX_SIZE: Final = 2**40
"""Of one dimension: more elements than any GPU holds."""
MAX_TIME: Final = 1e12
"""In µs or ms: beyond a week."""
MIN_TIME: Final = 1e-6
"""In µs or ms: a picosecond, or a nanosecond; no clock tells less."""
_MOST_LAYERS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """Hold what a column of numbers may hold."""

    low: float
    high: float
    is_whole: bool = True
    is_optional: bool = False

    @property
    def expectation(self) -> str:
        """Say it in words."""
        kind = "a whole number" if self.is_whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"


_SIZE: Final = NumberRange(low=1, high=MAX_SIZE)
_COUNT: Final = NumberRange(low=0, high=MAX_SIZE)
_BYTES: Final = NumberRange(low=0, high=MAX_INTEGER, is_optional=True)
_LAYERS: Final = NumberRange(low=1, high=_MOST_LAYERS, is_optional=True)
_TIME: Final = NumberRange(low=MIN_TIME, high=MAX_TIME, is_whole=False)
_TIME_OR_NONE: Final = NumberRange(low=0, high=MAX_TIME, is_whole=False, is_optional=True)

NUMBERS: Final[Mapping[str, NumberRange]] = {
    **dict.fromkeys(("batch", "m", "n", "k", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv"), _SIZE),
    **dict.fromkeys(("c_in", "c_out", "kernel_size", "input_size", "stride", "output_size", "rows", "cols"), _SIZE),
    **dict.fromkeys(("seqlen", "batch_per_gpu", "image_size", "n_gpus", "steps", "hidden_size", "layers"), _SIZE),
    **dict.fromkeys(("head_dim_qk", "head_dim_v"), _SIZE),
    **dict.fromkeys(("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"), _SIZE),
    **dict.fromkeys(("groups", "spatial"), _SIZE),
    **{f"{name}_{axis}": _SIZE for name in ("input", "output", "kernel", "stride", "dilation") for axis in "dhw"},
    **dict.fromkeys(("window", "padding", "idx"), _COUNT),
    **dict.fromkeys(("bytes_read", "bytes_written"), _BYTES),
    "num_layer": _LAYERS,
    **dict.fromkeys(("latency_us", "samples_per_s", "measured_ms"), _TIME),
    **dict.fromkeys(("measured_fw_ms", "opsum_fw_ms", "opsum_bw_ms", "params_m"), _TIME_OR_NONE),
    **{
        f"pred_{peer}_{part}ms": _TIME_OR_NONE
        for peer in ("neusight", "habitat", "micro", "roofline")
        for part in ("", "fw_")
    },
}
TEXTS: Final = frozenset(
    (
        *("gpu", "op", "dtype", "kv_dtype", "timing", "source", "phase", "model", "mode", "variant", "name", "op_name"),
        *("target", "input_shapes", "output_shape", "acc_ops", "precision", "software", "distribution"),
    )
)
OPTIONAL_TEXTS: Final = frozenset(("kernel", "algorithm"))
FLAGS: Final = frozenset(("suspect", "compile", "channels_last"))


def check_column(path: Path, name: str, values: npt.NDArray[Any], *, may_lack: bool = False) -> None:
    """Raise InputError that names file, column, row and what was expected at the first value that cannot be.

    One wrong row refuses the table: what wrote it can be mended, and a table with holes would be scored as if whole.
    `may_lack`: whether this table's texts and numbers may be missing, a number also be 0.
    """
    if name in NUMBERS:
        legal = NUMBERS[name]
        _check_numbers(path, name, values, replace(legal, low=0, is_optional=True) if may_lack else legal)
    elif name in FLAGS:
        if values.dtype.kind not in "biu":
            _refuse(path, name, _first(values, lambda value: type(value) is not bool), values, "true or false")
    elif name in TEXTS or name in OPTIONAL_TEXTS:
        kinds = {str, type(None)} if may_lack or name in OPTIONAL_TEXTS else {str}
        if values.dtype.kind != "O" or not set(map(type, values.tolist())) <= kinds:
            _refuse(path, name, _first(values, lambda value: type(value) not in kinds), values, "a text")


def check_known(path: Path, name: str, values: npt.NDArray[Any], known: Collection[str]) -> None:
    """Raise InputError at the first text that is none of the known ones."""
    strange = set(values.tolist()) - set(known)
    if strange:
        at = _first(values, lambda value: value in strange)
        _refuse(path, name, at, values, f"one of {', '.join(known)}")


def _check_numbers(path: Path, name: str, values: npt.NDArray[Any], legal: NumberRange) -> None:
    if values.dtype.kind == "O" and legal.is_optional and all(value is None for value in values.tolist()):
        return
    if values.dtype.kind not in "iuf":
        numbers = (int, float, type(None)) if legal.is_optional else (int, float)
        at = _first(values, lambda value: isinstance(value, bool) or not isinstance(value, numbers))
        _refuse(path, name, at, values, legal.expectation)
    floats = values.astype(np.float64)
    bad = ~((floats >= legal.low) & (floats <= legal.high))
    if legal.is_whole:
        bad |= floats != np.trunc(floats)
    if legal.is_optional:
        bad &= ~np.isnan(floats)
    if bad.any():
        _refuse(path, name, int(bad.argmax()), values, legal.expectation)


def _first(values: npt.NDArray[Any], is_bad: Any) -> int:
    return next((row for row, value in enumerate(values.tolist()) if is_bad(value)), 0)


def shown_path(path: Path) -> str:
    """Return a table's path as it is known to who gave it: `FILE: matmul` of a table within a file of `measure`.

    >>> shown_path(Path("no/ops/matmul.parquet"))
    'no/ops/matmul.parquet'
    """
    file = path.parent.parent
    return f"{file}: {path.stem}" if file.is_file() else str(path)


def _refuse(path: Path, name: str, row: int, values: npt.NDArray[Any], expected: str) -> None:
    found = values.tolist()[row] if len(values) else values.dtype
    is_null = found is None or (isinstance(found, float) and isnan(found))
    shown = "nothing" if is_null else repr(found)
    raise InputError(f"{shown_path(path)}: {name} of row {row} is {shown[:60]}; expected {expected}")
