"""Keeps what a script puts on a GPU on the meta device, and answers where the script reads values from there."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
import torch.fx.experimental._config as fx_config
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import UninitializedTensorMixin, is_lazy  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from ...records import dataclass, field
from ..hooks.boundaries import RUN
from ..hooks.modules import OptimizerSteps
from ..hooks.patches import patched
from ..meta.host_values import HostValues
from ..meta.script_clock import ScriptClock
from .assumed_sizes import DynamicSizes, result_with_assumed_size

_META: Final = torch.device("meta")
_CPU: Final = torch.device("cpu")
_CUDA: Final = torch.device("cuda", 0)
_STAND_IN_NUMBER: Final = 1
"""What a number is taken for that the script reads from the GPU: a divisor, a logarithm's argument, a length."""
_READ: Final = "aten::_local_scalar_dense"
_COMPARISONS: Final = frozenset({"aten::equal", "aten::allclose"})
_MOVES: Final = frozenset({torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu})
_ON_HOST: Final = frozenset(
    {"aten::copy_", "aten::_to_copy", "aten::_pack_padded_sequence", "aten::_pad_packed_sequence"}
)
"""Ops that take tensors of both sides: copies, and packed sequences, whose lengths stay on the host on a GPU too."""
_NAMES_ONLY: Final = frozenset({torch.device, torch._C._nn._parse_to})
"""Functions that make or read devices' names and put nothing there."""
_ASSIGNMENTS: Final = frozenset({torch.Tensor.data.__set__, torch.Tensor.grad.__set__})  # type: ignore[attr-defined,union-attr]
"""Assignments of a tensor to an attribute of another, which torch refuses between meta and the host."""
_TO_ARRAYS: Final = frozenset(
    {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__format__}
)


@dataclass(slots=True)
class FakeCuda:
    """Hold what the parts of a fake GPU share while a script runs on shapes alone."""

    read_count: int = 0
    """Values that the script read from the GPU and did not get."""
    kept_counts: Counter[str] = field(default_factory=Counter)
    """Selections by values that nobody knows, which kept everything, by the op that selected."""
    is_converting: bool = False
    """Whether a module is moving or casting its parameters."""
    gpu: torch.device = _CUDA
    """Which GPU the script has chosen to be on: the others are not there, whatever it asks for."""
    claimed: torch.device = _CPU
    """Where the script believes its model is: the last place that it moved anything to, or made it on."""

    def move(self) -> None:
        """Let the script believe that what it has is on its GPU."""
        self.claimed = self.gpu

    @property
    def assumed_count(self) -> int:
        """Return how often values decided something that nobody knows."""
        return self.read_count + self.kept_counts.total()


class CudaToMeta(TorchFunctionMode):
    """Send tensors to meta that a script sends to CUDA, and give arrays to code that wants them on the host."""

    def __init__(self, fake: FakeCuda, values: HostValues, optimizers: OptimizerSteps) -> None:
        super().__init__()
        self._fake = fake
        self._values = values
        self._optimizers = optimizers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is None or not tensor.is_meta:
            return self._call(func, args, options)
        if func in _ASSIGNMENTS and isinstance(args[1], torch.Tensor):
            args = tensor, args[1].to(_META)  # a module's weights are there, whatever the script thinks
        if func in self._answers and not self._optimizers.is_running:  # which choose multi-tensor ops by device
            return self._answers[func](self._fake.claimed)
        if func in _TO_ARRAYS:
            known = self._values.find(tensor)
            self._fake.read_count += known is None
            return func(_ones_like(tensor) if known is None else known.clone(), *args[1:], **options)
        if func in _MOVES and (self._fake.is_converting or self._fake.claimed == _CPU):
            return self._stay(func, args, options)
        return self._call(func, args, options)

    _answers: Final[Mapping[Any, Callable[[torch.device], Any]]] = {
        torch.Tensor.device.__get__: lambda claimed: claimed,
        torch.Tensor.is_cuda.__get__: lambda claimed: claimed.type == "cuda",  # type: ignore[attr-defined]
        torch.Tensor.is_cpu.__get__: lambda claimed: claimed.type == "cpu",  # type: ignore[attr-defined]
        torch.Tensor.get_device: lambda claimed: claimed.index if claimed.type == "cuda" else -1,
    }
    """What meta tensors say of where they are."""

    def _call(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a function with meta wherever the script says CUDA."""
        if type(options.get("device")) is int:
            options["device"] = _CUDA
        if func in _NAMES_ONLY:
            numbered = args and type(args[0]) is int
            return func(*((torch.device("cuda", args[0]), *args[1:]) if numbered else args), **options)
        if func is torch.Tensor.cuda:
            func, args, options = torch.Tensor.to, (args[0], _CUDA), {}
        elif func is torch.Tensor.type and find_cuda_dtype(args[-1]) is not None:
            func, args, options = torch.Tensor.to, (args[0], _CUDA, find_cuda_dtype(args[-1])), {}
        elif func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = args[0], _CUDA, *args[2:]
        options.pop("pin_memory", None)  # there is no memory to pin
        moved_args, moved_options = tree_map(_moved, (args, options))
        if (args, options) != (moved_args, moved_options):
            self._fake.claimed = self._fake.gpu
        return func(*moved_args, **moved_options)

    def _stay(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Cast or move to where the script believes the tensor to be, or moves the module to: it stays on meta."""
        found = [item for item in (*args[1:], *options.values()) if _is_device(item)]
        if func is not torch.Tensor.to:
            found = [_CUDA if func is torch.Tensor.cuda else _CPU]
        if found and torch.device(found[0]) != _META:
            self._fake.claimed = _CPU if torch.device(found[0]).type == "cpu" else self._fake.gpu
        if func is not torch.Tensor.to:
            return args[0]
        kept, options = tree_map(lambda item: _META if _is_device(item) else item, (args[1:], options))
        return args[0].to(*kept, **options)


class AssumedReads(TorchDispatchMode):
    """Answer what values that nobody knows decide: numbers are 1, truths False, copies to the host ones.

    Selections keep everything; they are counted by the op that selects.
    """

    def __init__(self, fake: FakeCuda, values: HostValues, sizes: DynamicSizes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake, self._values, self._sizes = fake, values, sizes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        data = args[0] if args and isinstance(args[0], torch.Tensor) else None
        is_here = data is not None and not data.is_meta
        answer: Any = NotImplemented
        if data is not None:
            answer = self._copy_here(func, args) if is_here else self._read(func, args, options)
        if answer is not NotImplemented:
            return answer
        return func(*args, **options) if is_here else self._select(func, args, options)

    def _read(self, func: torch._ops.OpOverload, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Answer what asks for values; NotImplemented where an op does not."""
        name = func._schema.name
        if name == _READ:
            try:
                return func(*args, **options)  # a gradient scaler's own values are known
            except RuntimeError:
                kind = args[0].dtype  # of a truth value False, else 1
                answer: Any = kind is not torch.bool and (1.0 if kind.is_floating_point else _STAND_IN_NUMBER)
        elif name in _COMPARISONS:
            answer = False
        elif name == "aten::_to_copy" and torch.device(options.get("device") or _META).type == "cpu":
            answer = _ones_like(args[0], options.get("dtype"))
        else:
            return NotImplemented
        self._fake.read_count += 1
        return answer

    def _copy_here(self, func: torch._ops.OpOverload, args: tuple[Any, ...]) -> Any:
        if func._schema.name != "aten::copy_" or not args[1].is_meta:
            return NotImplemented
        self._fake.read_count += 1
        return args[0].fill_(_STAND_IN_NUMBER)

    def _select(self, func: torch._ops.OpOverload, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an op that may keep as many of what it is given as values say: it keeps all."""
        result = result_with_assumed_size(self._values, func, args, options)
        if result is not NotImplemented:
            self._fake.kept_counts[func._schema.name] += 1
            return result
        self._sizes.arguments, self._sizes.asked_count = args, 0
        result = func(*args, **options)
        if self._sizes.asked_count:
            self._fake.kept_counts[func._schema.name] += 1
        return result


class Promotion(TorchDispatchMode):
    """Take host tensors along to the GPU where they meet its tensors: a script for the CPU shows what a GPU would do.

    Single numbers stay: torch takes those along itself. The clock stands meanwhile.
    """

    def __init__(self, fake: FakeCuda, clock: ScriptClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake
        self._clock = clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._clock.enter_untold()
        try:
            return self._run(func, args, kwargs)
        finally:
            self._clock.leave()

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        options = dict(kwargs or {})
        found = [item for item in tree_leaves((args, options)) if isinstance(item, torch.Tensor)]
        if func._schema.name not in _ON_HOST and any(item.is_meta for item in found) and any(map(_is_whole, found)):
            args, options = tree_map_only(
                torch.Tensor, lambda item: item.to(_META) if _is_whole(item) else item, (args, options)
            )
        return func(*args, **options)


@contextmanager
def asked_in_backward(functions: CudaToMeta) -> Iterator[None]:
    """Let hooks that ask in backward where tensors are hear what they hear in forward.

    Torch leaves a mode for as long as the function runs that it was asked about, and `backward` is one.
    """
    run: Any = getattr(torch.autograd, RUN)

    def run_asked(*arguments: Any, **options: Any) -> Any:
        with functions:
            return run(*arguments, **options)

    with patched(torch.autograd, RUN, run_asked):
        yield


@contextmanager
def modules_on_meta(fake: FakeCuda, optimizers: OptimizerSteps) -> Iterator[None]:
    """Put parameters and buffers on meta as soon as a module has them, to stay: a model takes no memory.

    So with what a default device makes, but counters of optimizers: `torch.tensor` would ask a real GPU.
    """
    place: Callable[..., Any] = DeviceContext.__torch_function__
    convert: Callable[..., nn.Module] = nn.Module._apply
    materialize: Callable[..., None] = UninitializedTensorMixin.materialize

    def convert_on_meta(module: nn.Module, *arguments: Any, **options: Any) -> nn.Module:
        outer, fake.is_converting = fake.is_converting, True
        try:
            return convert(module, *arguments, **options)
        finally:
            fake.is_converting = outer

    def materialize_on_meta(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:  # noqa: ARG001
        materialize(tensor, shape, _META, dtype)

    def place_on_meta(context: Any, *arguments: Any, **options: Any) -> Any:
        if context.device.type != "cuda":
            return place(context, *arguments, **options)
        fake.move()
        with patched(context, "device", _CPU if optimizers.is_running else _META):
            return place(context, *arguments, **options)

    with ExitStack() as stack:
        stack.callback(register_module_parameter_registration_hook(_forget_values).remove)
        stack.callback(register_module_buffer_registration_hook(_forget_values).remove)
        stack.enter_context(patched(nn.Module, "_apply", convert_on_meta))
        stack.enter_context(patched(UninitializedTensorMixin, "materialize", materialize_on_meta))
        stack.enter_context(patched(DeviceContext, "__torch_function__", place_on_meta))
        if hasattr(fx_config, "meta_nonzero_assume_all_nonzero"):  # torch 2.5 refuses selection by a mask
            stack.enter_context(patched(fx_config, "meta_nonzero_assume_all_nonzero", True))
        yield


def _forget_values(_module: nn.Module, _name: str, value: Any) -> Any:
    """Move a tensor to meta in place, so that whoever else holds it sees the same one."""
    if value is None or value.is_meta or value.layout is not torch.strided:
        return None
    if is_lazy(value):
        kind: Any = type(value)
        return kind(requires_grad=value.requires_grad, device=_META, dtype=value.dtype)
    with torch.no_grad():
        moved = value.to(_META)
    if isinstance(value, nn.Parameter):
        moved = nn.Parameter(moved, requires_grad=value.requires_grad)
    try:
        torch.utils.swap_tensors(value, moved)
    except RuntimeError:  # held where torch cannot follow: by a weak reference, by a graph
        return moved
    return None


def _moved(item: Any) -> Any:
    """Return meta for a CUDA device, anything else as it is."""
    return _META if _is_device(item) and torch.device(item).type == "cuda" else item


def _is_device(item: Any) -> bool:
    return isinstance(item, torch.device) or (isinstance(item, str) and item.partition(":")[0] in ("cpu", "cuda"))


def _ones_like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.full(tensor.shape, _STAND_IN_NUMBER, dtype=dtype or tensor.dtype, device="cpu")


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dim() > 0


_PREFIX: Final = "torch.cuda."
_DTYPES: Final = {
    f"{name}Tensor": dtype for name, dtype in (
        ("BFloat16", torch.bfloat16), ("Bool", torch.bool), ("Byte", torch.uint8), ("Char", torch.int8),
        ("Double", torch.float64), ("Float", torch.float32), ("Half", torch.float16), ("Int", torch.int32),
        ("Long", torch.int64), ("Short", torch.int16),
    )
}  # fmt: skip


class _CudaTensorType(type):
    """Be a type whose instances are tensors of one dtype on a GPU, made of sizes or of data."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype is cls.dtype and instance.is_cuda

    def __call__(cls, *arguments: Any, **_options: Any) -> torch.Tensor:
        is_data = len(arguments) == 1 and not isinstance(arguments[0], int | torch.Size)
        if is_data:
            return torch.as_tensor(arguments[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*(arguments or (0,)), dtype=cls.dtype, device="cuda")


def cuda_tensor_types() -> Iterator[tuple[object, str, object]]:
    """Yield what stands for the types, and for the function that makes one of them the default."""
    for name, dtype in _DTYPES.items():
        yield torch.cuda, name, _CudaTensorType(name, (), {"dtype": dtype})
    choose = torch.set_default_tensor_type

    def choose_any(kind: Any) -> None:
        dtype = find_cuda_dtype(kind)
        if dtype is None:
            choose(kind)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda")

    yield torch, "set_default_tensor_type", choose_any


def find_cuda_dtype(kind: object) -> torch.dtype | None:
    """Return the dtype of such a type, or of its name; None for anything else."""
    if isinstance(kind, str) and kind.startswith(_PREFIX):
        return _DTYPES.get(kind.removeprefix(_PREFIX))
    return kind.dtype if isinstance(kind, _CudaTensorType) else None
