"""Records the ops of a step on the meta device: shapes without memory, without a GPU and without times."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from ...errors import CaptureError
from ...formats.trace.column import MISSING
from ...formats.trace.signature import Signature
from ...formats.trace.tables import Meta, Phase, Precision, Trace
from ..description.signatures import describe_arguments, describe_tensor, describe_value, tensors_in
from ..hooks.modules import ModulePaths, OptimizerSteps
from .autocast import MetaAutocast, ScalerReads, autocast_on_meta, autocast_resumed, grad_scaler_on_meta
from .collectives import Answer, Flights
from .compiled import RegionRows, compiled_functions_eager
from .oplog import OpLog, OpRow
from .overrides import STAND_INS, cuda_ops_on_meta, foreach_on_meta, part_bias, put_in_place
from .script_clock import ScriptClock
from .sparse import is_stolen, sparse_on_meta, sparse_rule
from .streams import current_stream

_META = torch.device("meta")
_NO_SEQUENCE = 2**63
"""Nodes without a forward op (gradient accumulation) report the largest unsigned number."""
_HOST_READERS = frozenset({torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__})
_NOISE_NAMESPACES = frozenset({"prim", "profiler", "c10d"})
"""Of what launches nothing; collectives of a script come by `note_collective`, a step alone has none."""
_NOISE_OPS = frozenset({"aten::detach", "aten::lift_fresh"})
"""Ops that a dispatch mode sees more often than a real run does, and that launch nothing."""
_WAIT = "c10d::wait"
"""A wait for what a process group moves in place: torch's `Work.wait`, which is no op of its own."""
_WAIT_TENSOR = "_c10d_functional::wait_tensor"
_DATA_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def record_shapes(step: Callable[[], object], *, warmup: int) -> Trace:
    """Run `step` on the meta device and return its ops; meta, devices and workload are left for the caller.

    At most one warm-up run is made: it creates optimizer state, and later ones would change no shape.
    Raises CaptureError when the step needs a tensor's values.
    """
    optimizers = OptimizerSteps()
    with cuda_behaviour() as (autocast, reads), optimizers, _MetaByDefault(optimizers):
        if warmup:
            with MetaOps():
                step()
        with ModulePaths() as modules, ShapeRecorder(modules, optimizers) as recorder:
            step()
    # Of what may have switched itself off, before the recording, for want of a GPU.
    if autocast.is_disabled_early:
        warnings.warn(_DISABLED_AUTOCAST, RuntimeWarning, stacklevel=4)
    if reads.is_disabled_early and "float16" in autocast.dtypes:
        warnings.warn(_DISABLED_SCALER, RuntimeWarning, stacklevel=4)
    return read_recorder(recorder, autocast.dtype)


@contextmanager
def cuda_behaviour() -> Iterator[tuple[MetaAutocast, ScalerReads]]:
    """Let the meta device run what CUDA would: its ops, autocast, and gradient scalers."""
    with (
        cuda_ops_on_meta(),
        foreach_on_meta(),
        sparse_on_meta(),
        autocast_on_meta() as autocast,
        grad_scaler_on_meta() as reads,
        compiled_functions_eager(),
    ):
        yield autocast, reads


def read_recorder(recorder: ShapeRecorder, autocast_dtype: str | None = None) -> Trace:
    """Return what was recorded, and end the watch over living storages."""
    log = recorder.log
    log.tensor_numbers.release()
    ops, operands, tensors, memory = log.op_table(), log.operand_table(), log.tensor_table(), log.memory_table()
    collectives = log.collectives.table(ops, tuple(log.signatures), log.strings)
    groups, members = log.collectives.group_tables(log.strings)
    return Trace(
        meta=Meta(has_memory=True, precision=Precision(autocast_dtype=autocast_dtype)),
        strings=tuple(log.strings),
        signatures=tuple(log.signatures),
        ops=ops,
        tensors=tensors,
        operands=operands,
        collectives=collectives,
        groups=groups,
        members=members,
        memory=memory,
    )


_DISABLED_AUTOCAST = (
    "the step entered an autocast context that was made before the recording and is disabled, as all are where torch "
    "sees no GPU: if it should be enabled, make it inside the step"
)
_DISABLED_SCALER = (
    "the step scaled its loss with a GradScaler that was made before the recording and is disabled, as all are where "
    "torch sees no GPU: if it should be enabled, make it inside the step, or as torch.amp.GradScaler('cpu')"
)


class MetaOps(TorchDispatchMode):
    """Run ops on the meta device whole, as CUDA does; what is not possible there is refused in one line."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(item) for item in types):
            return NotImplemented  # let the wrapper unwrap itself: its inner ops come here
        whole = _decomposition(func, args)
        if whole is not None:
            with self, autocast_resumed():
                return whole(*args, **kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return _call(func, args, kwargs, None)


class ShapeRecorder(MetaOps):
    """Log every op on meta tensors that reaches the dispatcher while this mode is entered.

    Ops on host tensors alone (an optimizer's step counter) run but are not logged: they launch nothing.
    """

    def __init__(self, modules: ModulePaths, optimizers: OptimizerSteps, clock: ScriptClock | None = None) -> None:
        super().__init__()
        self.log = OpLog()
        self._clock = clock
        self._modules = modules
        self._optimizers = optimizers
        self._regions = RegionRows(self.log)
        self._sequence_base = self._sequence_seen = _get_sequence_nr()
        self._op_of_sequence: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        self._backward_seen = False
        self._flights = Flights()

    def note_collective(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Answer
    ) -> None:
        """Log what communicates, or waits for what does."""
        transfer, ordered = answer.transfer, describe_arguments(func, args, kwargs)
        inputs, outputs = tensors_in(ordered), tensors_in(answer.result)
        if func._schema.name == _WAIT_TENSOR:
            self._flights.end(self._storages(inputs))
        elif transfer is None:
            return
        arguments = tuple(describe_value(item, keep_text=False) for item in ordered)
        op = self._note(func, arguments, inputs, answer.result)
        if op is None or transfer is None:
            return
        self.log.collectives.add(op, transfer)
        if transfer.is_async:
            self._flights.begin(self._storages([*answer.received, *outputs]), self._storages(answer.sent))

    def note_wait(self, tensors: Sequence[torch.Tensor]) -> None:
        """Log that the default stream waits here for what these tensors hold, where it is on its way."""
        if current_stream():
            return  # which goes on by itself, beside the default one
        found = [item for item in tensors if item.is_meta]
        if self._flights.end(self._storages(found)):
            specs = tuple(describe_tensor(item) for item in found)
            self._add(_WAIT, Signature((specs,)), found, [], (MISSING, MISSING))

    def _storages(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        plain = [item for item in tensors if item.layout is torch.strided and item.is_meta]
        return [self.log.tensor_numbers.number_storage(item) for item in plain]

    def _meet_flights(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Wait for what is read on the default stream; what another stream makes of it is on its way with it."""
        if not self._flights.is_any:
            return
        read = [item for item in inputs if item.layout is torch.strided and item.is_meta]
        awaited = [item for item in read if self._flights.has(self.log.tensor_numbers.number_storage(item))]
        if not awaited:
            return
        if current_stream():
            self._flights.begin(self._storages([*read, *outputs]), [])
        else:
            self.note_wait(awaited)

    def _run(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func.namespace in _NOISE_NAMESPACES or func._schema.name in _NOISE_OPS:
            return func(*args, **kwargs)
        ordered = describe_arguments(func, args, kwargs)
        keep_text = func.namespace == "aten"
        arguments = tuple(describe_value(item, keep_text=keep_text) for item in ordered)
        result = _call(func, args, kwargs, self._modules.current)
        if is_stolen(func, args):
            return result
        if not func.is_view:
            self._meet_flights(tensors_in(ordered), tensors_in(result))
        self._note(func, arguments, tensors_in(ordered), result)
        return result

    def _note(self, func: torch._ops.OpOverload, arguments: Any, inputs: list[torch.Tensor], result: Any) -> int | None:
        outputs = tensors_in(result)
        if all(item.device != _META for item in (*inputs, *outputs)):
            self._autograd_links()
            return None
        returned = result if isinstance(result, list | tuple) else (result,)
        results = tuple(describe_value(item, keep_text=False) for item in returned)
        signature = Signature(arguments, results if func._schema.returns else ())
        return self._add(func._schema.name, signature, inputs, outputs, self._autograd_links())

    def _add(
        self,
        name: str,
        signature: Signature,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        links: tuple[int, int],
    ) -> int:
        sequence, forward = links
        module = self._modules.current
        if module is None and forward != MISSING:
            module = self.log.modules[forward]
        phase, thread = self._phase(sequence), self._threads.setdefault(threading.get_ident(), len(self._threads))
        row = OpRow(
            name=name,
            signature=signature,
            phase=phase,
            thread=thread,
            sequence=sequence,
            forward=forward,
            module=module,
            parent=self._regions.parent(phase=phase, thread=thread, forward=forward),
            stream=current_stream(),
        )
        if self._clock is not None:
            self._clock.take()
        op = self.log.add(row, inputs, outputs)
        if row.phase is not Phase.BACKWARD and sequence != MISSING:
            self._op_of_sequence[sequence] = op
        return op

    def _autograd_links(self) -> tuple[int, int]:
        """Return the op's sequence number, counted from the start of the step, and its forward op."""
        seen, now = self._sequence_seen, _get_sequence_nr()
        self._sequence_seen = now
        node: Any = torch._C._current_autograd_node()  # None outside backward, whatever its annotation says
        if node is None:
            # The autograd layer above took a number for this op's node just before the op came here.
            return (now - 1 - self._sequence_base, MISSING) if now > seen else (MISSING, MISSING)
        number = node._sequence_nr()
        if not self._sequence_base <= number < _NO_SEQUENCE:
            return MISSING, MISSING
        sequence = number - self._sequence_base
        return sequence, self._op_of_sequence.get(sequence, MISSING)

    def _phase(self, sequence: int) -> Phase:
        in_backward = torch._C._current_graph_task_id() >= 0  # with what is called at its end
        optimizers = self._optimizers
        if optimizers.is_running and (optimizers.began_in_backward or not in_backward):
            return Phase.FORWARD if self._modules.current else Phase.OPTIMIZER
        if in_backward:
            self._backward_seen = True
            return Phase.BACKWARD
        is_forward = self._modules.current or sequence != MISSING or not self._backward_seen
        return Phase.FORWARD if is_forward else Phase.OTHER


class _MetaByDefault(TorchFunctionMode):
    """Create tensors on the meta device unless told otherwise; optimizers keep their counters on the host."""

    def __init__(self, optimizers: OptimizerSteps) -> None:
        super().__init__()
        self._optimizers = optimizers
        self._constructors = frozenset(_device_constructors())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        follows = func is torch.sparse_coo_tensor and bool(tensors_in(args))  # makes it where its values are
        if func in self._constructors and kwargs.get("device") is None and not follows:
            kwargs["device"] = torch.device("cpu") if self._optimizers.is_running else _META
        elif func in _HOST_READERS and args[0].device == _META:
            raise CaptureError(_values_message(f"Tensor.{func.__name__}()", None))
        return func(*args, **kwargs)


def _decomposition(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return what runs in place of a composite op, None for an op that runs as it is.

    Composite ops come here only under `torch.inference_mode`, which skips the layer that resolves them.
    """
    stand_in = STAND_INS.get(func.name())
    if stand_in is not None:
        return stand_in
    if func is torch.ops.aten.index_put.default:
        node: Any = torch._C._current_autograd_node()  # None outside backward, whatever its annotation says
        if node is not None and str(node.name()).startswith("IndexBackward"):
            return put_in_place
    if func is torch.ops.aten.convolution_backward.default and args[10:] and args[10][2]:
        return part_bias
    if func.namespace == "fsdp":  # its copies run as other ops
        return partial(func._op_dk, torch._C.DispatchKey.CPU)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU"):
        return None if has_kernel(func.name(), "Meta") else partial(func._op_dk, composite)
    return None


def _call(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], module: str | None) -> Any:
    rule = sparse_rule(func, args, kwargs)
    if rule is not None:
        return rule(*args, **kwargs)
    try:
        return in_cuda_layout(func, args, func(*args, **kwargs))
    except (NotImplementedError, RuntimeError) as error:
        if any(tag in func.tags for tag in _DATA_TAGS) or "copy out of meta tensor" in str(error):
            raise CaptureError(_values_message(func._schema.name, module)) from error
        if isinstance(error, NotImplementedError):
            where = f" (in {module})" if module else ""
            raise CaptureError(
                f"{func._schema.name}{where} has no shape rule for the meta device: "
                "register one with torch.library.register_fake, or record on a GPU"
            ) from error
        raise


def _values_message(name: str, module: str | None) -> str:
    where = f" (in {module})" if module else ""
    return (
        f"{name}{where} needs the values of a tensor, and a shape-only recording has none: keep .item(), .cpu(), "
        "printing, boolean indexing and nonzero out of the step (torch.where keeps shapes fixed), or record on a GPU"
    )


_LAYOUTS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dimensions."""


def in_cuda_layout(func: torch._ops.OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """Return a convolution's result with its channels innermost where those of its input or its weights are.

    So does torch with cuDNN (`cudnn_conv_suggest_memory_format`); on the meta device results are contiguous.
    """
    if func is not torch.ops.aten.convolution.default or not isinstance(result, Tensor):
        return result
    layout = _LAYOUTS.get(result.dim())
    if layout is None or not any(_has_innermost_channels(item, layout) for item in args[:2]):
        return result
    return result.contiguous(memory_format=layout)


def _has_innermost_channels(value: Any, layout: torch.memory_format) -> bool:
    """Say whether a tensor is laid out so, and in no other way: without height and width the two are one."""
    return isinstance(value, Tensor) and value.is_contiguous(memory_format=layout) and not value.is_contiguous()
