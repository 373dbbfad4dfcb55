"""Stands in for the kernels of state-space layers that transformers takes from other libraries where these are there.

Without mamba_ssm, causal_conv1d and flash-linear-attention transformers runs reference code: token by token,
thousands of small ops that nobody runs on a GPU. So a recording has one op per call of a kernel in their place, with
shapes alone.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ...records import dataclass
from ..hooks.patches import patched
from ..meta.overrides import shape_like_first, shape_like_second
from .subject import Settings

LIBRARIES: Final = {"causal_conv1d": "causal_conv1d", "mamba_ssm": "mamba_ssm", "fla": "flash-linear-attention"}
"""Namespaces of the ops below, and how the libraries are called."""
_FUNCTION_NAME: Final = "func_name"
"""What transformers' wrapper around such a function (in `hub_kernels`) calls its name in the library."""
_HIDDEN: Final = ("mamba_split_conv1d_scan_combined", "mamba_inner_fn")
"""Whole mixers in one call: the parts that they are made of are recorded instead, convolution, scan and products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """Hold an op: its library, the arguments of its schema, which the function takes first, and its shapes."""

    library: str
    arguments: str
    """With names as the function has them, in its order."""
    shape: Callable[..., Any]
    """Returns the result, and the state after it where `state_flag` asks for one."""
    state_flag: str | None = None
    """The argument that asks for the state."""
    always_pairs: bool = False
    """Whether a pair is returned even so, nothing in the state's place."""
    is_differentiable: bool = True

    @property
    def schema(self) -> str:
        """Return arguments and results."""
        return f"({self.arguments}) -> {'(Tensor, Tensor)' if self.state_flag else 'Tensor'}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arguments."""
        return tuple(item.split()[-1] for item in self.arguments.split(","))


def kernels_for(model: torch.nn.Module, settings: Settings) -> AbstractContextManager[None]:
    """Return the context in which a model runs as the settings ask for."""
    return nullcontext() if settings.reference_kernels else library_kernels(model)


@contextmanager
def library_kernels(model: torch.nn.Module) -> Iterator[None]:
    """Let a model of transformers call the ops of `_KERNELS` where it has the functions that they stand for.

    Where a library is installed its functions are replaced too: their kernels need a GPU. All is undone on leaving.
    """
    modules = {type(item).__module__ for item in model.modules()}
    found = [item for name in sorted(modules) for item in _functions_of(name)]
    if not found:
        yield
        return
    with ExitStack() as stack:
        for namespace in LIBRARIES:
            library = torch.library.Library(namespace, "FRAGMENT")
            stack.callback(library._destroy)
            for name, kernel in _KERNELS.items():
                if kernel.library == namespace:
                    _define_kernel(library, namespace, name, kernel)
        for module, attribute, name in found:
            call = _no_kernel if name in _HIDDEN else partial(_call, name)
            stack.enter_context(patched(module, attribute, call))
        yield


def libraries_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the libraries whose kernels are among the ops of a recording.

    >>> libraries_in(["aten::mm", "fla::chunk_gated_delta_rule"])
    ('flash-linear-attention',)
    """
    found = {name.partition("::")[0] for name in names}
    return tuple(library for namespace, library in LIBRARIES.items() if namespace in found)


def _functions_of(module_name: str) -> Iterator[tuple[Any, str, str]]:
    """Yield the functions of a module that transformers would replace: module, attribute, name in the library."""
    module = sys.modules.get(module_name)
    for attribute, item in list(vars(module).items()) if module is not None else ():
        code = getattr(item, "__code__", None)
        if code is None or _FUNCTION_NAME not in code.co_freevars:
            continue
        name = item.__closure__[code.co_freevars.index(_FUNCTION_NAME)].cell_contents
        if name in _KERNELS or name in _HIDDEN:
            yield module, attribute, name


def _define_kernel(library: torch.library.Library, namespace: str, name: str, kernel: _Kernel) -> None:
    """Define an op, its shapes on the meta device, and its gradients."""
    library.define(f"{name}{kernel.schema}")
    library.impl(name, kernel.shape, "Meta")
    if not kernel.is_differentiable:
        return
    backward_name = f"{name}_backward"
    library.define(f"{backward_name}(Tensor gradient, Tensor[] inputs) -> Tensor[]")
    library.impl(backward_name, lambda _, inputs: [torch.empty_like(item) for item in inputs], "Meta")

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 - called by name
        ctx.positions = [place for place, item in enumerate(inputs) if isinstance(item, Tensor)]
        ctx.count = len(inputs)
        ctx.save_for_backward(*(inputs[place] for place in ctx.positions))

    def differentiate(ctx: Any, gradient: Tensor, *_states: Any) -> tuple[Tensor | None, ...]:
        op = getattr(getattr(torch.ops, namespace), backward_name)
        found: list[Tensor | None] = [None] * ctx.count
        for place, item in zip(ctx.positions, op(gradient, list(ctx.saved_tensors)), strict=True):
            found[place] = item
        return tuple(found)

    torch.library.register_autograd(f"{namespace}::{name}", differentiate, setup_context=keep, lib=library)


def _no_kernel(*_arguments: Any, **_options: Any) -> None:
    """Return what transformers takes for: there is no such kernel."""


def _call(name: str, *arguments: Any, **options: Any) -> Any:
    """Call the op as the library's function is called, arguments that say nothing of sizes left out."""
    kernel = _KERNELS[name]
    given = dict(zip(kernel.names, arguments, strict=False)) | options
    found = getattr(getattr(torch.ops, kernel.library), name)(*(given.get(item) for item in kernel.names))
    if kernel.state_flag is None:
        return found
    result, state = found
    wants_state = bool(options.get(kernel.state_flag))
    return (result, state if wants_state else None) if wants_state or kernel.always_pairs else result


def _shape_delta(query: Tensor, key: Tensor, value: Tensor, *_rest: Any) -> tuple[Tensor, Tensor]:
    del query
    states = value.new_empty((value.shape[0], value.shape[2], key.shape[3], value.shape[3]), dtype=torch.float32)
    return torch.empty_like(value), states


def _shape_chunk_scan(x: Tensor, _steps: Tensor, _decay: Tensor, keys: Tensor, *_rest: Any) -> tuple[Tensor, Tensor]:
    states = x.new_empty((x.shape[0], x.shape[2], x.shape[3], keys.shape[3]), dtype=torch.float32)
    return torch.empty_like(x), states


def _shape_selective_scan(x: Tensor, _steps: Tensor, decay: Tensor, *_rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((x.shape[0], x.shape[1], decay.shape[1]), dtype=torch.float32)


_DELTA: Final = _Kernel(
    library="fla",
    arguments="Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float? scale, Tensor? initial_state",
    shape=_shape_delta,
    state_flag="output_final_state",
    always_pairs=True,
)
_KERNELS: Final = {
    "causal_conv1d_fn": _Kernel(
        library="causal_conv1d", arguments="Tensor x, Tensor weight, Tensor? bias", shape=shape_like_first
    ),
    "causal_conv1d_update": _Kernel(
        library="causal_conv1d",
        arguments="Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias",
        shape=shape_like_first,
        is_differentiable=False,
    ),
    "chunk_gated_delta_rule": _DELTA,
    "fused_recurrent_gated_delta_rule": _DELTA,
    "mamba_chunk_scan_combined": _Kernel(
        library="mamba_ssm",
        arguments="Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, int chunk_size, Tensor? D, Tensor? z, "
        "Tensor? dt_bias, Tensor? initial_states",
        shape=_shape_chunk_scan,
        state_flag="return_final_states",
    ),
    "selective_scan_fn": _Kernel(
        library="mamba_ssm",
        arguments="Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias",
        shape=_shape_selective_scan,
        state_flag="return_last_state",
    ),
    "selective_state_update": _Kernel(
        library="mamba_ssm",
        arguments="Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
        "Tensor? dt_bias",
        shape=shape_like_second,
        is_differentiable=False,
    ),
}
"""By their names in the libraries."""
