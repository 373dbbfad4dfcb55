"""Marks what torch.compile would compile in a shape-only recording, where it runs eagerly: nothing is compiled."""

import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any

import torch

from ...formats.trace.column import MISSING
from ...formats.trace.signature import Signature
from ...formats.trace.tables import Phase
from ...records import dataclass
from .oplog import OpLog, OpRow

_FORWARD_NAME = "Torch-Compiled Region: {}/0"
_BACKWARD_NAME = "CompiledFunctionBackward"
_GRAPH_NAME = "cudaGraphLaunch"
"""What torch's profiler calls them on a GPU; the number is the compiled frame's, in order of first use."""
_EVAL_FRAME, _DECORATORS, _DYNAMO = "torch._dynamo.eval_frame", "torch._dynamo.decorators", "torch._dynamo"
_SETTERS = ("set_eval_frame", "_maybe_set_eval_frame")
"""Globals of `torch._dynamo.eval_frame` through which compiled callables, and disabled ones, turn the compiler on and
off around their function; both return what was set before."""
_FRAME_COUNT = "set_fullgraph_compiled_frame_count"
"""Counts what `fullgraph=True` compiled, from torch 2.13 on; nothing is an error, but where the count is negative."""
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"


@dataclass(slots=True, eq=False)
class _Call:
    """Hold one call of a compiled function, cut into pieces where one graph would end and another begin."""

    compiler: Hashable
    in_backward: bool
    """Whether it was called by the autograd engine: a recomputed forward, a custom gradient."""
    piece: int = 0
    piece_seen: int = MISSING


class _Running(threading.local):
    """Hold, per thread, the call that would be compiled now, and the one that just turned the compiler off."""

    def __init__(self) -> None:
        self.call: _Call | None = None
        self.paused: _Call | None = None


_RUNNING = _Running()


@contextmanager
def compiled_functions_eager() -> Iterator[None]:
    """Run compiled functions as they are, and know which one runs; torch's compiler is as before on leaving.

    Compiling on the meta device would record what a GPU never launches, and would change the caches of the user's
    functions. What the compiler would leave out of its graphs is seen where code says so (`torch.compiler.disable`,
    `torch._dynamo.graph_break`), not where only compiling would tell.
    """
    with warnings.catch_warnings(), ExitStack() as patches:
        warnings.filterwarnings("ignore", message=_HOOKS_WARNING)
        if _EVAL_FRAME in sys.modules:
            _take_over(patches)
        else:  # importing the compiler takes seconds: only where it is asked for
            _replace(patches, torch, "compile", partial(_compile_first, torch.compile, patches))
        try:
            yield
        finally:
            _RUNNING.call = _RUNNING.paused = None


def _compile_first(original: Callable[..., Any], patches: ExitStack, *args: Any, **kwargs: Any) -> Any:
    """Do what torch.compile does, but take the compiler over when it is first loaded."""
    import_module(_EVAL_FRAME)
    if torch.compile is not original:
        torch.compile = original
        _take_over(patches)
    return original(*args, **kwargs)


def _take_over(patches: ExitStack) -> None:
    """Keep the compiler from being turned on, and note when it would have been."""
    frames = sys.modules[_EVAL_FRAME]
    for name in _SETTERS:
        _replace(patches, frames, name, _set_compiler)
    _replace(patches, frames, _FRAME_COUNT, lambda _count: MISSING)
    for owner in filter(None, map(sys.modules.get, (_DYNAMO, _DECORATORS))):
        _replace(patches, owner, "graph_break", _break_graph)


def _replace(patches: ExitStack, owner: ModuleType, name: str, value: Any) -> None:
    if hasattr(owner, name):
        patches.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


def _set_compiler(compiler: Any) -> Any:
    """Stand in for dynamo's `set_eval_frame`: None and False turn the compiler off, a call of ours goes on."""
    before = _RUNNING.call
    if compiler is None or compiler is False:
        if before is None or not _disables_torch(sys._getframe(1)):
            _RUNNING.call, _RUNNING.paused = None, before
    elif isinstance(compiler, _Call):
        _RUNNING.call = compiler
    else:  # inside a compiled call the compiler inlines another one
        _RUNNING.call = before or _RUNNING.paused or _Call(compiler, torch._C._current_autograd_node() is not None)
    return before


def _disables_torch(caller: FrameType) -> bool:
    """Say whether dynamo is kept out of a function of torch, or a dispatch mode, rather than out of the user's code.

    They cost no graph break: the compiler knows them (checkpointing), or they run below what it compiles.
    """
    variables = caller.f_locals
    if type(variables.get("self")).__name__ != "DisableContext":
        return False
    function = variables.get("fn")
    is_torch = str(getattr(function, "__module__", "")).partition(".")[0] == "torch"
    return is_torch or getattr(function, "__name__", "") == "__torch_dispatch__"


def _break_graph(*_args: Any, **_kwargs: Any) -> None:
    if _RUNNING.call is not None:
        _RUNNING.call.piece += 1


@contextmanager
def graph_region(*, when: bool = True) -> Iterator[None]:
    """Enclose what runs inside by a row that says that one launch of a CUDA graph runs it, where `when` holds."""
    before = _RUNNING.call
    _RUNNING.call = _Call(_GRAPH_NAME, in_backward=False) if when else before
    try:
        yield
    finally:
        _RUNNING.call = before


class RegionRows:
    """Enclose the ops of compiled regions in a log by a row that stands for the region."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        self._numbers: dict[tuple[Hashable, int], int] = {}
        self._rows: set[int] = set()
        self._open_key: object = None
        self._open_row = MISSING

    def parent(self, *, phase: Phase, thread: int, forward: int) -> int:
        """Return the row of the region that the next op belongs to, adding it where it begins; MISSING outside all.

        `forward` is the op that the next one differentiates: the backward pass of a region is a region too. Ops of
        one region with others in between are two regions: rows enclose what follows one another. Gradients that are
        accumulated in between are enclosed too; they differentiate no op.
        """
        region = self._log.parents[forward] if forward != MISSING else MISSING
        call = _RUNNING.call
        key: object = None
        if call is not None and call.in_backward:
            key, name, region = *self._forward(call), MISSING
        elif forward != MISSING:
            key, name = (region if region in self._rows else None), _BACKWARD_NAME
        elif call is not None and phase is not Phase.BACKWARD:  # a graph ends where backward is called
            key, name = self._forward(call)
        elif phase is Phase.BACKWARD and self._open_key in self._rows:
            return self._open_row
        if key != self._open_key:
            self._open_key, self._open_row = key, MISSING
            if key is not None:
                row = OpRow(name=name, signature=Signature((), ()), phase=phase, thread=thread, forward=region)
                self._open_row = self._log.add(row, (), ())
                self._rows.add(self._open_row)
        return self._open_row

    def _forward(self, call: _Call) -> tuple[object, str]:
        if self._open_key != (call, call.piece) and call.piece_seen == call.piece:
            call.piece += 1  # something else ran in between
        call.piece_seen = call.piece
        number = self._numbers.setdefault((call.compiler, call.piece), len(self._numbers))
        name = _GRAPH_NAME if call.compiler == _GRAPH_NAME else _FORWARD_NAME.format(number)
        return (call, call.piece), name
