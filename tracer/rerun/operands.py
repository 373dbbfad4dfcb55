"""Makes the tensors that ops are re-run on, and shares them between ops of equal shapes: only speed is asked for."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.flop_counter import FlopCounterMode

from ...formats.trace.signature import TensorSpec
from .fills import NOISE, Content, Fill, fill_of, indexed_dimensions
from .schema import Bound, Local, UnfitError, torch_dtype

_GPU_SHARE: Final = 0.8
"""Of the free memory: results and workspaces need the rest."""
_HOST_SHARE: Final = 0.5
_LEAST_HOST_BYTES: Final = 4 << 30
"""Taken to be free where the system does not say."""
_CONTAINER: Final = Path("/sys/fs/cgroup")
"""Where Linux says what a container's processes may use."""
TOO_LARGE: Final = "does not fit in memory"
TOO_LONG: Final = "takes longer than the time budget, whatever runs it"
_MOST_PER_S: Final = {"cuda": (3e12, 5e15), "cpu": (3e9, 2e12)}
"""Bytes that are filled, and FLOP: no machine does more of them, so that only what cannot end in time is refused."""
_META: Final = torch.device("meta")

Call = Callable[[], object]


class TooLargeError(UnfitError):
    """Say that an op's tensors do not fit in the device's memory."""


class Operands:
    """Own the tensors on one device, up to a limit; equal ones are made once."""

    def __init__(self, device: torch.device, limit_bytes: float) -> None:
        self.device = device
        self._limit_bytes = limit_bytes
        self._used_bytes = 0.0
        self._made: dict[tuple[TensorSpec, Fill, int], torch.Tensor] = {}

    def prepare(self, bound: Bound) -> Call:
        """Return a function that runs the op on tensors of this device.

        Raises TooLargeError where they do not fit beside those made before, UnfitError where they cannot be made.
        """
        return _Binder(bound, self._take, self.device).call()

    def clear(self) -> None:
        """Let go of every tensor."""
        self._made.clear()
        self._used_bytes = 0.0
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def check_size(self, bound: Bound, left_s: float) -> None:
        """Raise TooLargeError where the tensors and results of a call alone exceed the limit, UnfitError the time left.

        The results' sizes are those that the meta device finds; ops that it does not know are taken as they are.
        """
        bytes_per_s, flops_per_s = _MOST_PER_S[self.device.type]

        def check(needed_bytes: float, flops: float = 0.0) -> None:
            self._check(needed_bytes)
            if max(needed_bytes / bytes_per_s, flops / flops_per_s) > left_s:
                raise UnfitError(TOO_LONG)

        needed: list[float] = []

        def imagine(spec: TensorSpec, _fill: Fill, _ordinal: int) -> torch.Tensor:
            needed.append(_extent(spec) * torch_dtype(spec.dtype).itemsize)
            return torch.empty_strided(spec.shape, _strides(spec), dtype=torch_dtype(spec.dtype), device=_META)

        call = _Binder(bound, imagine, _META).call()
        check(sum(needed))
        try:
            with FlopCounterMode(display=False) as counter:
                results = call()
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AssertionError, AttributeError):
            return
        made = results if isinstance(results, list | tuple) else (results,)
        made_bytes = sum(item.nbytes for item in made if isinstance(item, torch.Tensor))
        check(sum(needed) + made_bytes, counter.get_total_flops())

    def _check(self, needed_bytes: float) -> None:
        if needed_bytes > self._limit_bytes:
            raise TooLargeError(TOO_LARGE)

    def _take(self, spec: TensorSpec, fill: Fill, ordinal: int) -> torch.Tensor:
        key = (spec, fill, ordinal)
        if key not in self._made:
            size = _extent(spec) * torch_dtype(spec.dtype).itemsize
            self._check(self._used_bytes + size)
            self._made[key] = make_tensor(spec, fill, self.device)
            self._used_bytes += size
        return self._made[key]


def memory_limit(device: torch.device) -> float:
    """Return how many bytes the tensors of re-run ops may take on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return _GPU_SHARE * free
    try:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        free_bytes = _LEAST_HOST_BYTES
    try:
        limit, used = (int((_CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
    except (ValueError, OSError):  # no container, or one without a limit ("max")
        return _HOST_SHARE * free_bytes
    return _HOST_SHARE * min(free_bytes, limit - used)


def make_tensor(spec: TensorSpec, fill: Fill, device: torch.device) -> torch.Tensor:
    """Return a tensor of a recorded dtype, shape and strides with the content that its op needs."""
    return _filled(_extent(spec), fill, torch_dtype(spec.dtype), device).as_strided(spec.shape, _strides(spec))


def _filled(count: int, fill: Fill, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if dtype.is_floating_point and dtype.itemsize == 1:
        return _filled(count, fill, torch.float16, device).to(dtype)
    flat = torch.empty(count, dtype=dtype, device=device)
    if fill.content is Content.STEPS:
        return flat.copy_(torch.linspace(0, fill.high, count, dtype=torch.float64).floor())
    return (_fill_fractions if dtype.is_floating_point or dtype.is_complex else _fill_integers)(flat, fill)


def _fill_fractions(flat: torch.Tensor, fill: Fill) -> torch.Tensor:
    if fill.content is Content.CONSTANT:
        return flat.fill_(fill.high)
    if fill.content in (Content.POSITIVE, Content.UNIT) and not flat.is_complex():
        low = 0.5 if fill.content is Content.POSITIVE else 0.0
        return flat.uniform_(low, low + 1.0)
    return flat.normal_()


def _fill_integers(flat: torch.Tensor, fill: Fill) -> torch.Tensor:
    if flat.dtype is torch.bool:
        return flat.random_(0, 2)
    if fill.content is Content.INDEX:
        return flat.random_(0, fill.high)
    constants = {Content.CONSTANT: fill.high, Content.POSITIVE: 1}
    return flat.fill_(constants.get(fill.content, 0))


class _Binder:
    """Put tensors in the place of a bound call's specs."""

    def __init__(
        self, bound: Bound, take: Callable[[TensorSpec, Fill, int], torch.Tensor], device: torch.device
    ) -> None:
        self._bound = bound
        self._take = take
        self._device = device
        self._seen: Counter[tuple[TensorSpec, Fill]] = Counter()

    def call(self) -> Call:
        """Return the call with its arguments. Raises UnfitError."""
        try:
            return self._call()
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise TooLargeError(TOO_LARGE) from error
            why = str(error).partition("\n")[0] or type(error).__name__
            raise UnfitError(f"its arguments do not go together: {why}") from error

    def _call(self) -> Call:
        parameters = self._bound.overload._schema.arguments
        values = {item.name: self._value(item.name, self._bound.values[item.name]) for item in parameters}
        if self._device != _META and self._bound.name in _RULES:
            values = _RULES[self._bound.name](values)
        positional = [values[item.name] for item in parameters if not item.kwarg_only]
        named = {item.name: values[item.name] for item in parameters if item.kwarg_only}
        return partial(self._bound.overload, *positional, **named)

    def _value(self, parameter: str, value: Any) -> Any:
        if value is Local.DEVICE:
            return self._device
        if isinstance(value, TensorSpec):
            return self._tensor(value, fill_of(self._bound, parameter))
        if not isinstance(value, list) or not any(isinstance(item, TensorSpec) for item in value):
            return value
        first = indexed_dimensions(self._bound) if parameter == "indices" else None
        if first is None:
            return [self._tensor(item, fill_of(self._bound, parameter)) for item in value]
        return [None] * first + [self._index(at, item) for at, item in enumerate(value, first)]

    def _index(self, dimension: int, spec: TensorSpec) -> torch.Tensor:
        size = self._bound.values["self"].shape[dimension]
        return self._tensor(spec, NOISE if spec.dtype == "bool" else Fill(Content.INDEX, max(size, 1)))

    def _tensor(self, spec: TensorSpec, fill: Fill) -> torch.Tensor:
        if spec.stored is not None:
            raise UnfitError("it takes a sparse tensor, and which rows that stores was not recorded")
        key = (spec, fill)
        self._seen[key] += 1
        return self._take(spec, fill, self._seen[key])


def _extent(spec: TensorSpec) -> int:
    """Return the number of elements between the first and the last that a tensor reaches."""
    if 0 in spec.shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(spec.shape, _strides(spec), strict=True))


def _strides(spec: TensorSpec) -> tuple[int, ...]:
    if spec.strides is not None:
        return spec.strides
    return tuple(prod(max(size, 1) for size in spec.shape[at + 1 :]) for at in range(len(spec.shape)))


def _without_dropout_state(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out the dropout between layers where a trace (of shapes alone) holds no state to draw it from."""
    return values | {"dropout": 0.0} if values["dropout_state"] is None else values


def _after_forward(values: dict[str, Any]) -> dict[str, Any]:
    """Run the forward op for the buffers that its backward op reads."""
    values = _without_dropout_state(values)
    forward = torch.ops.aten._cudnn_rnn.default
    names = [parameter.name for parameter in forward._schema.arguments]
    output, _, _, reserve, buffer = forward(*(values[name] for name in names))
    return values | {"output": output, "reserve": reserve, "weight_buf": buffer}


def _after_pooling(values: dict[str, Any]) -> dict[str, Any]:
    """Pool for the indices: those of a real pass lie near each other, which decides what scattering to them takes."""
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    _, indices = torch.ops.aten.max_pool2d_with_indices.default(*(values[name] for name in names))
    return values | {"indices": indices}


def _without_dropout(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out the dropout of attention's backward pass.

    Its kernels read seed and offset on the host or on the device, depending on torch's version and on whether a graph
    is captured; on the wrong one they end the process.
    """
    return values | {"dropout_p": 0.0}


_RULES: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "_cudnn_rnn": _without_dropout_state,
    "_cudnn_rnn_backward": _after_forward,
    "max_pool2d_with_indices_backward": _after_pooling,
    **{f"_{name}_attention_backward": _without_dropout for name in ("flash", "efficient")},
    **{f"_scaled_dot_product_{name}_attention_backward": _without_dropout for name in ("flash", "efficient", "cudnn")},
}
