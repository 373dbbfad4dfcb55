"""Finds the torch op behind a recorded call: the overload whose schema takes what was recorded, and its arguments."""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from ...formats.trace.signature import UNKNOWN, Argument, TensorSpec
from ...records import dataclass


class Local(Enum):
    """Stand for the device that ops are re-run on, whatever device was recorded."""

    DEVICE = "local"


class UnfitError(Exception):
    """Say why a recorded call cannot be run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Hold an overload with a value for each parameter of its schema: tensors as specs, devices as `Local`."""

    name: str
    """Without namespace, overload and the underscore of in-place ops: what tables of ops go by."""
    overload: torch._ops.OpOverload
    values: Mapping[str, Any]
    results: tuple[Argument, ...] = ()
    """As recorded, if they were."""


HOST_COPY: Final = "copies between host and device"
_NAMESPACE: Final = "aten"
_TEXT_PARAMETERS: Final = frozenset({"approximate", "reduce", "rounding_mode", "mode", "indexing", "side", "padding"})
"""The only parameters that take text: mode names. Any other (a file's name, an equation) may be anything."""
_FORBIDDEN: Final = re.compile(
    r"from_file|(^|_)(seed|save|load|set_data|record_stream|print|warn|wait|fork)($|_)|^set_|_set_|pin_memory"
    r"|resize|assert|_test_|_validate|storage|sparse|nested|jagged|quanti[sz]|dyn_quant|_thnn_differentiable|_transform_bias|prepack|fbgemm|_cslt|_async"
)
"""Ops that touch files, seeds, devices or memory that no tensor owns, layouts that are not made up here, and ops that
end the process where their arguments are not of the only kind that torch itself gives them."""
_OFTEN_EMPTY: Final = frozenset(["max_exp_avg_sqs", "momentum_buffer_list"])
"""Lists of tensors that optimizers leave empty unless asked; profilers do not record empty lists."""
_LAZY: Final = frozenset(
    ["contiguous", "reshape", "reshape_as", "flatten", "to", "type_as", "cpu", "cuda", "item", "is_nonzero", "equal"]
)
"""Ops that do nothing, or give a number to the host, depending on what the trace may not tell: ops inside them work."""
_FLATTENING: Final = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu"])
"""Ops that copy weights together first where these do not lie in one buffer, which a trace does not tell."""
_UNSUPPORTED_OVERLOADS: Final = ("prim_", "hacked_twin", "names", "dimname", "Dimname")
_BACKENDS: Final = {"cuda": "CUDA", "cpu": "CPU"}
_COMPOSITES: Final = tuple(f"Composite{kind}" for kind in (
    "ImplicitAutograd", "ExplicitAutograd", "ExplicitAutogradNonFunctional"
))  # fmt: skip
_CPU_STAND_INS: Final = dict.fromkeys(
    (f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")),
    "_scaled_dot_product_flash_attention_for_cpu",
)
"""What a CPU runs in place of ops that exist on GPUs alone."""

_DTYPE_OF_CODE: Final = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
    23: torch.float8_e5m2, 24: torch.float8_e4m3fn, 25: torch.float8_e5m2fnuz, 26: torch.float8_e4m3fnuz,
}  # fmt: skip
"""torch's numbers of dtypes (c10/core/ScalarType.h), which profilers write."""
_FORMAT_OF_CODE: Final = (
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
)  # fmt: skip
"""The same of memory formats (c10/core/MemoryFormat.h)."""

_EXACT, _CONVERTED, _ASSUMED = 3, 1, 0
"""How well a recorded value fits a parameter; the overload with the largest sum is taken."""


class _Fit(NamedTuple):
    score: int
    value: Any


def bind(name: str, arguments: tuple[Argument, ...], *, device_type: str, from_cpu: bool = False) -> Bound:
    """Return the overload that takes `arguments`, in schema order, with what was not recorded filled by defaults.

    `from_cpu` says that the call was recorded on a CPU, where a `cpu` argument is no copy from the GPU. Raises
    UnfitError.
    """
    packet, base, wanted = find_packet(name)
    best: tuple[tuple[int, int], torch._ops.OpOverload, list[Any]] | None = None
    reasons = list[tuple[int, str]]()
    for overload in _overloads(packet):
        if wanted and overload._overloadname != wanted:
            continue
        fits = list[_Fit]()
        try:
            fits.extend(_fit_all(overload, arguments, from_cpu=from_cpu))
        except UnfitError as error:
            if str(error) == HOST_COPY:
                raise
            reasons.append((abs(len(overload._schema.arguments) - len(arguments)), str(error)))
            continue
        score = sum(item.score for item in fits), -len(fits)  # of equal fits, that which leaves least to defaults
        if best is None or score > best[0]:
            best = score, overload, [item.value for item in fits]
    if best is None:
        nearest = min(reasons, key=lambda item: item[0], default=(0, "it gives a number to the host"))
        raise UnfitError(nearest[1])
    overload = best[1]
    values = {parameter.name: value for parameter, value in zip(overload._schema.arguments, best[2], strict=True)}
    return _on_device(Bound(name=base, overload=overload, values=values), device_type)


@lru_cache(maxsize=4096)
def find_packet(name: str) -> tuple[torch._ops.OpOverloadPacket, str, str]:
    """Return an op's overloads, its bare name and the overload that the name asks for.

    Raises UnfitError for all but PyTorch's own ops, and for those that are never run.
    """
    namespace, colons, rest = name.partition("::")
    if namespace != _NAMESPACE or not colons:
        raise UnfitError("not one of PyTorch's own ops")
    op, _, wanted = rest.partition(".")
    if not op.isidentifier() or op.startswith("__") or _FORBIDDEN.search(op):
        raise UnfitError("an op that is never run from a file")
    if op in _LAZY | _FLATTENING:
        raise UnfitError("nothing of its own to run")
    packet = getattr(torch.ops.aten, op, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise UnfitError("this torch has no such op")
    return packet, op.rstrip("_") or op, wanted


@lru_cache(maxsize=4096)
def _overloads(packet: torch._ops.OpOverloadPacket) -> tuple[torch._ops.OpOverload, ...]:
    """Return those that return tensors or write to some, and need no host to read them."""
    found = []
    for overload in (getattr(packet, it) for it in packet.overloads() if not it.startswith(_UNSUPPORTED_OVERLOADS)):
        written = [item for item in overload._schema.arguments if item.alias_info and item.alias_info.is_write]
        makes_tensors = any("Tensor" in str(item.type) for item in (*overload._schema.returns, *written))
        if makes_tensors and torch.Tag.data_dependent_output not in overload.tags:
            found.append(overload)
    return tuple(found)


def _fit_all(overload: torch._ops.OpOverload, arguments: tuple[Argument, ...], *, from_cpu: bool) -> Iterator[_Fit]:
    """Yield a value for each parameter. Raises UnfitError at the first that none fits."""
    parameters = overload._schema.arguments
    if any(item is not None and item is not UNKNOWN for item in arguments[len(parameters) :]):
        raise UnfitError(f"{len(arguments)} arguments were recorded, this torch's op takes {len(parameters)}")
    list_length = next((len(item) for item in arguments if isinstance(item, tuple)), 1)
    for at, parameter in enumerate(parameters):
        if at >= len(arguments):
            yield _missing(parameter, "was not recorded")
        else:
            yield _fit(parameter, arguments[at], list_length=list_length, from_cpu=from_cpu)


def _fit(parameter: Any, value: Argument, *, list_length: int, from_cpu: bool) -> _Fit:
    kind = str(parameter.real_type)
    is_optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if is_optional else kind
    if kind == "Device":
        if value == "cpu" and not from_cpu:
            raise UnfitError(HOST_COPY)
        return _Fit(_EXACT, Local.DEVICE)
    if parameter.name == "pin_memory" or kind == "Generator":
        return _Fit(_EXACT, None)
    if value is None:
        # Backward ops take undefined tensors where their schema has plain ones.
        is_undefined = kind == "Tensor" and parameter.name != "self"
        return _Fit(_EXACT, None) if is_optional or is_undefined else _missing(parameter, "is missing")
    if value is UNKNOWN:
        return _guess(parameter, kind, list_length)
    if kind == "str" and parameter.name not in _TEXT_PARAMETERS:
        raise UnfitError(f"its argument {parameter.name!r} is free text")
    found = _CONVERTERS[kind](value, parameter.N) if kind in _CONVERTERS else None
    if found is None:
        raise UnfitError(_misfit(parameter, kind, value))
    return found


def _misfit(parameter: Any, kind: str, value: Argument) -> str:
    specs = (value,) if isinstance(value, TensorSpec) else value if isinstance(value, tuple) else ()
    strange = next((item.dtype for item in specs if isinstance(item, TensorSpec) and _dtype(item.dtype) is None), None)
    if strange is not None:
        return f"the dtype of its argument {parameter.name!r} was not recorded"
    return f"its argument {parameter.name!r} is no {kind}"


def _missing(parameter: Any, why: str) -> _Fit:
    """Return the schema's default."""
    if parameter.has_default_value():
        return _Fit(_ASSUMED, parameter.default_value)
    raise UnfitError(f"its argument {parameter.name!r} {why}")


def _guess(parameter: Any, kind: str, list_length: int) -> _Fit:
    """Return a value in place of one that was not recorded: factors decide no time, exponents and sizes do."""
    if parameter.name in _OFTEN_EMPTY:
        return _Fit(_EXACT, [])
    if kind in ("ScalarType", "str") or parameter.name == "exponent":
        raise UnfitError(f"its argument {parameter.name!r} was not recorded")
    if kind == "number" and parameter.default_value is None:
        return _Fit(_ASSUMED, 1)
    if kind == "List[number]":
        return _Fit(_CONVERTED, [1.0] * list_length)
    return _missing(parameter, "was not recorded")


def _on_device(bound: Bound, device_type: str) -> Bound:
    """Return what the device runs; on a CPU some ops have a stand-in. Raises UnfitError where it has no kernel."""
    if _has_kernel(bound.overload, _BACKENDS.get(device_type, device_type.upper())):
        return bound
    is_backward = bound.name.endswith("_backward")
    stand_in = _CPU_STAND_INS.get(bound.name.removesuffix("_backward")) if device_type == "cpu" else None
    if stand_in is None:
        raise UnfitError(f"this torch has no kernel of it for {device_type}")
    overload: torch._ops.OpOverload = getattr(torch.ops.aten, stand_in + "_backward" * is_backward).default
    synonyms = {"grad_out": "grad_out_", "attn_mask": "attn_bias"}
    values = dict[str, Any]()
    for parameter in overload._schema.arguments:
        known = [name for name in (parameter.name, synonyms.get(parameter.name, "")) if name in bound.values]
        values[parameter.name] = bound.values[known[0]] if known else parameter.default_value
    return Bound(name=bound.name, overload=overload, values=values | {"dropout_p": 0.0})


@lru_cache(maxsize=4096)
def _has_kernel(overload: torch._ops.OpOverload, backend: str) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return any(has_kernel(overload.name(), key) for key in (backend, *_COMPOSITES))
    except RuntimeError:
        return False  # an overload of TorchScript alone


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name that `bind` accepted."""
    found = _dtype(name)
    if found is None:
        raise UnfitError(f"this torch has no dtype {name}")
    return found


def _dtype(name: str) -> torch.dtype | None:
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) and not name.startswith(("q", "bits", "float4")) else None


def _to_tensor(value: Argument, _length: int | None) -> _Fit | None:
    if isinstance(value, TensorSpec):
        return _Fit(_EXACT, value) if _dtype(value.dtype) is not None else None
    return _Fit(_CONVERTED, value) if isinstance(value, int | float) else None


def _to_tensors(value: Argument, _length: int | None) -> _Fit | None:
    if not isinstance(value, tuple) or not all(isinstance(item, TensorSpec) for item in value):
        return None
    if any(isinstance(item, TensorSpec) and _dtype(item.dtype) is None for item in value):
        return None
    return _Fit(_EXACT if value else _CONVERTED, list(value))


def _to_int(value: Argument, _length: int | None) -> _Fit | None:
    if isinstance(value, bool):
        return _Fit(_CONVERTED, int(value))
    if isinstance(value, int):
        return _Fit(_EXACT, value)
    return _Fit(_CONVERTED, int(value)) if isinstance(value, float) and value.is_integer() else None


def _to_float(value: Argument, _length: int | None) -> _Fit | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return _Fit(_EXACT if isinstance(value, float) else _CONVERTED, float(value))


def _to_number(value: Argument, _length: int | None) -> _Fit | None:
    return _Fit(_EXACT, value) if isinstance(value, int | float) else None


def _to_bool(value: Argument, _length: int | None) -> _Fit | None:
    if isinstance(value, bool):
        return _Fit(_EXACT, value)
    return _Fit(_CONVERTED, bool(value)) if isinstance(value, int) and value in (0, 1) else None


def _to_list(convert: Callable[[Argument, int | None], _Fit | None]) -> Callable[[Argument, int | None], _Fit | None]:
    """Return a converter of lists; a single value fills a list whose length the schema fixes."""

    def to_list(value: Argument, length: int | None) -> _Fit | None:
        values = value if isinstance(value, tuple) else (value,) * (length or 0)
        found = [None if isinstance(item, TensorSpec) else convert(item, None) for item in values]
        fits = [item for item in found if item is not None]
        if len(fits) < len(values) or (not values and not isinstance(value, tuple)):
            return None
        return _Fit(min((item.score for item in fits), default=_CONVERTED), [item.value for item in fits])

    return to_list


def _to_dtype(value: Argument, _length: int | None) -> _Fit | None:
    found = _dtype(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        found = _DTYPE_OF_CODE.get(value)
    return _Fit(_EXACT, found) if found is not None else None


def _to_format(value: Argument, _length: int | None) -> _Fit | None:
    if isinstance(value, str):
        found = getattr(torch, value, None)
        return _Fit(_EXACT, found) if isinstance(found, torch.memory_format) else None
    is_code = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_FORMAT_OF_CODE)
    return _Fit(_EXACT, _FORMAT_OF_CODE[int(value)]) if is_code and isinstance(value, int) else None


_CONVERTERS: Final[Mapping[str, Callable[[Argument, int | None], _Fit | None]]] = {
    "Tensor": _to_tensor,
    "List[Tensor]": _to_tensors,
    "List[Optional[Tensor]]": _to_tensors,
    "int": _to_int,
    "SymInt": _to_int,
    "float": _to_float,
    "number": _to_number,
    "bool": _to_bool,
    **dict.fromkeys(("List[int]", "List[SymInt]"), _to_list(_to_int)),
    "List[float]": _to_list(_to_float),
    "List[number]": _to_list(_to_number),
    "List[bool]": _to_list(_to_bool),
    "ScalarType": _to_dtype,
    "Layout": lambda value, _: _Fit(_EXACT, torch.strided) if value in ("strided", 0) and value is not False else None,
    "MemoryFormat": _to_format,
    "str": lambda value, _: _Fit(_EXACT, value) if isinstance(value, str) else None,
}
