"""Makes CUDA's autocast work on the meta device, while recording; everything is undone afterwards.

torch keeps autocast in a layer of its dispatcher that tensors of a GPU pass first. Meta tensors don't, and autocast for
"cuda" switches itself off where there is none. Here every op passes the layer, and what stands in it converts meta
tensors by torch's own lists: conversions are ops like any other, autograd sees them, and composite functions are
converted as a whole before they decompose.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.amp import GradScaler, autocast_mode
from torch.utils.weak import WeakIdKeyDictionary

from ...formats.trace.autocast import CASTS, WIDE_BY_DTYPE, Cast
from ..hooks.patches import patched

_NO_OVERFLOW: Final = 0.0
_OVERRIDING = "Warning only once for all operators"


class ScalerReads:
    """Hold the values that gradient scalers read."""

    def __init__(self) -> None:
        self.is_disabled_early = False
        """Whether the step used a scaler that had been made, and disabled, before the recording."""
        self._known: Any = WeakIdKeyDictionary()

    def give(self, tensor: Tensor, value: float) -> None:
        """Let a tensor of one element have this value."""
        self._known[tensor] = value

    def read(self, tensor: Tensor) -> float:
        """Return a tensor's value (the meta kernel of aten::_local_scalar_dense)."""
        value: float | None = self._known.get(tensor)
        if value is None:
            raise RuntimeError("Tensor.item() cannot be called on meta tensors")
        return value

    def unscale(self, _gradients: list[Tensor], found_infinite: Tensor, _inverse_scale: Tensor) -> None:
        """Check gradients (the meta kernel of aten::_amp_foreach_non_finite_check_and_unscale_)."""
        self.give(found_infinite, _NO_OVERFLOW)


_READS: Final[dict[str, Callable[..., Any]]] = {
    "_local_scalar_dense": ScalerReads.read,
    "_amp_foreach_non_finite_check_and_unscale_": ScalerReads.unscale,
}


@contextmanager
def grad_scaler_on_meta() -> Iterator[ScalerReads]:
    """Let gradient scalers read what they need of meta tensors; they find that nothing overflowed.

    That is whether a gradient was infinite, and their own scale; all else that reads a value is refused as before.
    Enter it inside `autocast_on_meta`, which keeps them from disabling themselves where there is no CUDA.
    """
    reads = ScalerReads()
    library = torch.library.Library("aten", "IMPL")
    begin, scale, get_scale = GradScaler.__init__, GradScaler.scale, GradScaler.get_scale
    made: weakref.WeakSet[GradScaler] = weakref.WeakSet()

    def make(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        made.add(self)

    def watch(self: GradScaler, outputs: Any) -> Any:
        reads.is_disabled_early |= not self._enabled and self not in made
        return scale(self, outputs)

    def tell(self: GradScaler) -> float:
        if self._enabled and self._scale is not None and self._scale.is_meta:
            reads.give(self._scale, self._init_scale)
        return get_scale(self)

    with ExitStack() as stack:
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_OVERRIDING)
            # Library.impl itself refuses, in torch 2.11, what another library has overridden.
            for name, kernel in _READS.items():
                library.m.impl(name, "Meta", partial(kernel, reads), False)  # type: ignore[union-attr]
        for name, value in {"__init__": make, "scale": watch, "get_scale": tell}.items():
            stack.enter_context(patched(GradScaler, name, value))
        yield reads


CUDA: Final = "cuda"
_META: Final = "meta"
_LAYER: Final = "AutocastCUDA"
_KEY: Final = torch._C.DispatchKey.AutocastCUDA
_DEVICES: Final = frozenset({_META, CUDA})
_RECURRENT: Final = frozenset({"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"})
"""CUDA converts inside (ATen/cudnn/AutocastRNN.cpp), to the same effect; its copies of the weights are not cached."""
_DTYPE_OVERLOADS: Final = {
    "aten::norm.Scalar": "aten::norm.ScalarOpt_dtype",
    "aten::norm.ScalarOpt_dim": "aten::norm.ScalarOpt_dim_dtype",
}
"""Ops without an argument `dtype`, and those with one that autocast runs in their place."""


class MetaAutocast:
    """Hold what autocast did while recording."""

    def __init__(self) -> None:
        self.dtypes: dict[str, None] = {}
        """Lower precisions in which autocast ran anything, in order."""
        self.is_disabled_early = False
        """Whether the step entered a context that had been made, and disabled, before the recording."""
        self.is_on = torch.is_autocast_enabled(CUDA)
        """Whether autocast is on where the step runs: inside of dispatch modes torch switches its layer off."""
        self.depth = 0
        """How many ops of the layer are running, one inside the other; what they call is not converted."""
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def dtype(self) -> str | None:
        """Return the first lower precision in which anything ran, None where nothing did."""
        return next(iter(self.dtypes), None)

    def clear(self) -> None:
        """Forget the converted parameters."""
        self._copies.clear()

    def convert(self, value: Any, dtype: torch.dtype, *, is_cached: bool = True) -> Any:
        """Return tensors, in lists too, in another floating-point type; anything else, and doubles, as they are."""
        if isinstance(value, list | tuple):
            return type(value)(self.convert(item, dtype, is_cached=is_cached) for item in value)
        if not _is_eligible(value) or value.dtype is dtype:
            return value
        if not (is_cached and _is_cacheable(value, dtype)):
            return value.to(dtype)
        if id(value) not in self._copies:
            self._copies[id(value)] = value, value.to(dtype)
        return self._copies[id(value)][1]


def _is_eligible(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and value.device.type in _DEVICES
    )


def _is_cacheable(value: Tensor, dtype: torch.dtype) -> bool:
    """Say whether autocast keeps a copy: of float32 leaves that require gradients (parameters), not of views."""
    return (
        dtype is torch.get_autocast_dtype(CUDA)
        and value.dtype is torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    )


@contextmanager
def autocast_on_meta() -> Iterator[MetaAutocast]:
    """Let `torch.autocast("cuda")` convert meta tensors as on a GPU; "meta" as a device type means the same."""
    state = MetaAutocast()
    with ExitStack() as stack:
        for owner, name, value in _patches(state):
            stack.enter_context(patched(owner, name, value))
        stack.enter_context(_layer(state))
        _active.append(state)
        stack.callback(_active.remove, state)
        stack.enter_context(torch._C._IncludeDispatchKeyGuard(_KEY))
        stack.callback(state.clear)
        yield state


_active: list[MetaAutocast] = []


@contextmanager
def autocast_resumed() -> Iterator[None]:
    """Let the ops that a dispatch mode runs in place of another be converted as they are outside of modes."""
    exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
    is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY)
    resumes = is_excluded and any(state.is_on and not state.depth for state in _active)
    if resumes:
        exclude(_KEY, False)
    try:
        yield
    finally:
        if resumes:
            exclude(_KEY, True)


@contextmanager
def _layer(state: MetaAutocast) -> Iterator[None]:
    """Put our conversions in the place of CUDA's; torch's own come back on leaving."""
    library = torch.library.Library("aten", "IMPL")
    names = {*torch._C._dispatch_get_registrations_for_dispatch_key(_LAYER), *_RECURRENT}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_OVERRIDING)
            for name in sorted(names):
                rule = rule_of(name)
                if rule is not None:
                    library.impl(name.removeprefix("aten::"), partial(_run, state, rule, _overload(name)), _LAYER)
        yield
    finally:
        library._destroy()


Rule = Callable[[MetaAutocast, Any, tuple[Any, ...], dict[str, Any]], Any]


def rule_of(name: str) -> Rule | None:
    """Return how autocast runs an op, None where torch's own rule stands (it refuses `binary_cross_entropy`)."""
    if name in _DTYPE_OVERLOADS:
        return _run_other_overload
    if name in _RECURRENT:
        return _run_lower_uncached
    plain = name.removeprefix("aten::").partition(".")[0]
    cast = CASTS.get(plain, Cast.FOLLOW)
    if cast is Cast.WIDE and plain in WIDE_BY_DTYPE:
        return _run_with_dtype
    return _RULES.get(cast)


def _run(state: MetaAutocast, rule: Rule, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an op in the type that autocast gives it; what it calls is not converted again."""
    state.dtypes.setdefault(str(torch.get_autocast_dtype(CUDA)).removeprefix("torch."))
    state.depth += 1
    try:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return rule(state, op, args, kwargs)
    finally:
        state.depth -= 1


def _run_in(find_dtype: Callable[[tuple[Any, ...]], torch.dtype], *, is_cached: bool = True) -> Rule:
    """Return the rule that converts everything to the type that is found from the arguments."""

    def run(state: MetaAutocast, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = find_dtype(args)
        converted = {name: state.convert(item, dtype, is_cached=is_cached) for name, item in kwargs.items()}
        return op(*state.convert(args, dtype, is_cached=is_cached), **converted)

    return run


def _lower(_args: tuple[Any, ...]) -> torch.dtype:
    return torch.get_autocast_dtype(CUDA)


def _widest(args: tuple[Any, ...]) -> torch.dtype:
    tensors = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else (arg,))]
    is_wide = any(_is_eligible(item) and item.dtype is torch.float32 for item in tensors)
    return torch.float32 if is_wide else _lower(args)


def _run_with_dtype(_state: MetaAutocast, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    place = next(index for index, item in enumerate(op._schema.arguments) if item.name == "dtype")
    is_given = kwargs.get("dtype") is not None or (len(args) > place and args[place] is not None)
    if _is_eligible(args[0]) and not is_given:
        return op(*args[:place], **{**kwargs, "dtype": torch.float32})
    return op(*args, **kwargs)


def _run_other_overload(_state: MetaAutocast, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = torch.float32 if _is_eligible(args[0]) else args[0].dtype
    defaults = [item.default_value for item in op._schema.arguments[len(args) :] if item.name not in kwargs]
    return _overload(_DTYPE_OVERLOADS[op.name()])(*args, *defaults, **kwargs, dtype=dtype)


_RULES: Final[dict[Cast, Rule]] = {
    Cast.LOWER: _run_in(_lower), Cast.WIDE: _run_in(lambda _: torch.float32), Cast.PROMOTE: _run_in(_widest),
}  # fmt: skip
_run_lower_uncached: Final = _run_in(_lower, is_cached=False)


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _patches(state: MetaAutocast) -> Iterator[tuple[object, str, object]]:
    """Yield what has to say for a while that there is CUDA, or take "meta" for "cuda"."""
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    region: Any = autocast_mode.autocast
    begin, enter = region.__init__, region.__enter__
    clear, turn = torch.clear_autocast_cache, torch.set_autocast_enabled

    def make(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, _as_cuda(device_type), *args, **kwargs)
        made.add(self)

    def watch(self: Any) -> Any:
        is_off = self.device == CUDA and not self._enabled and not torch.is_autocast_enabled(CUDA)
        state.is_disabled_early |= is_off and self not in made
        return enter(self)

    def forget() -> None:
        clear()
        state.clear()

    def switch(*args: Any, **kwargs: Any) -> None:
        turn(*args, **kwargs)
        state.is_on = torch.is_autocast_enabled(CUDA)

    yield region, "__init__", make
    yield region, "__enter__", watch
    yield torch, "clear_autocast_cache", forget
    yield torch, "set_autocast_enabled", switch
    yield torch.cuda.amp.common, "amp_definitely_not_available", lambda: False
    yield torch.cuda, "is_bf16_supported", lambda *_flags, **_options: True
    yield autocast_mode, "_cast", partial(_cast_arguments, autocast_mode._cast)
    infer: Callable[..., str] = torch.utils.checkpoint._infer_device_type
    yield torch.utils.checkpoint, "_infer_device_type", lambda *args: _as_cuda(infer(*args))
    checks: dict[str, Callable[[Tensor], Any]] = torch.utils.checkpoint._allowed_determinism_checks_to_fns
    yield (
        torch.utils.checkpoint,
        "_allowed_determinism_checks_to_fns",
        {name: partial(_without_functions, check) for name, check in checks.items()},
    )
    for owner in (torch.amp, autocast_mode):
        yield owner, "is_autocast_available", _of_cuda(autocast_mode.is_autocast_available)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        yield torch, name, _of_cuda(getattr(torch, name))


def _as_cuda(device_type: str) -> str:
    return CUDA if device_type == _META else device_type


def _without_functions(check: Callable[[Tensor], Any], tensor: Tensor) -> Any:
    """Look at a tensor as it is: in backward no mode says that it is on the GPU, as it was said in forward."""
    with torch._C.DisableTorchFunction():
        return check(tensor)


def _of_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a device type that takes "meta" for "cuda"."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_as_cuda, args), **{name: _as_cuda(value) for name, value in kwargs.items()})

    return ask


def _cast_arguments(cast: Callable[..., Any], value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """Cast the arguments of a `torch.amp.custom_fwd`; torch's own function goes by the device of each tensor."""
    is_meta = isinstance(value, Tensor) and value.device.type == _META
    return cast(value, _META if is_meta and device_type == CUDA else device_type, dtype)
