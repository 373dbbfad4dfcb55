"""Compare which ops are predicted to share a kernel with what inductor itself joins, on this machine's CPU.

Run: python -m benchmarks.check.inductor_joins [--scheduler triton|cpp] [--set check|development] [NETWORK ...]

Each network is compiled for real (torch.compile, forward and backward, float32) until inductor's scheduler has decided
what one kernel is; every node of its graph carries the number of the aten call that it came from. The same network is
recorded on the meta device by wavecast's tracer, and its calls are matched with those by name and order. Two ops agree
where both say the same of them: that a kernel holds both, or that none does. `triton` runs the scheduler that GPUs have
(inductor's own setting `cpu_backend`), `cpp` the one of CPUs. No kernel of the networks of `check` was looked at.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from unittest import mock

import torch
import torch._inductor.config as inductor
import torch.fx.experimental.proxy_tensor as proxies
from torch import nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext
from torch._inductor import ir as inductor_ir
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.dependencies import extract_read_writes
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.scheduler import BaseSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V
from torch._prims_common import suggest_memory_format
from torch.fx import traceback
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.recorded.compiled import find_compiled
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.calls import short_name
from wavecast.analyzer.whatif.fusion.kernels import generate_kernels
from wavecast.analyzer.whatif.fusion.layouts import with_compiled_layouts
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.analyzer.work import VARYING_FAMILIES, Family, family_of
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer import trace_iteration

from benchmarks.check.inductor_networks import NETWORKS, Inputs

OpKey = tuple[str, int]
"""Which graph, forward or backward, and which recorded op: a backward graph computes some forward ops again."""
TAG = "_numeric_debug_handle"
"""A field of a node's meta that graph passes copy and nothing else uses: the number of the aten call."""
GPU = DeviceProperties(
    type="cuda", index=0, multi_processor_count=132, cc=90, major=9, max_threads_per_multi_processor=2048, warp_size=32
)
"""What decides which reductions are cut in two: an H100's."""
SHARED_NAMES = {
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "native_batch_norm_backward": "batch_norm_backward",
    "cudnn_batch_norm_backward": "batch_norm_backward",
}


_compute_attributes = SchedulerNode._compute_attrs


class _ScheduledError(Exception):
    """Stop a compilation whose kernels are known."""


@dataclass(slots=True)
class Compilation:
    """Hold what inductor was asked to compile, and the kernels that it made of it."""

    calls: list[tuple[bool, str]] = field(default_factory=list)
    """Whether a call is of the backward pass, and its name."""
    graphs: list[list[frozenset[int]]] = field(default_factory=list)
    """Per graph, forward then backward, per generated kernel, the calls that it computes."""


@contextmanager
def numbered_calls(found: Compilation) -> Iterator[None]:
    """Number the outermost aten calls of a trace, and mark all nodes that come of each."""
    original = proxies.set_original_aten_op

    @contextmanager
    def mark(func: Any) -> Iterator[None]:
        if proxies.ORIGINAL_ATEN.get() is not None or not traceback.has_preserved_node_meta():
            with original(func):
                yield
            return
        traceback.current_meta[TAG] = len(found.calls)
        is_backward = torch._C._current_autograd_node() is not None
        found.calls.append((is_backward, str(getattr(func, "_schema", func)).partition("(")[0]))
        try:
            with original(func):
                yield
        finally:
            traceback.current_meta.pop(TAG, None)

    proxies.set_original_aten_op = mark
    try:
        yield
    finally:
        proxies.set_original_aten_op = original


def compile_network(network: nn.Module, inputs: Inputs, scheduler: str) -> Compilation:
    """Compile a network's forward and backward pass, and return what inductor's scheduler made of them."""
    found = Compilation()

    def keep(nodes: Sequence[Any]) -> Sequence[Any]:
        computed = _computed_nodes(nodes)
        kernels = []
        for node in nodes:
            parts = node.get_nodes()
            if type(parts[0]).__name__ != "SchedulerNode":
                continue  # a library's kernel, or none
            origins = {origin for part in parts for origin in computed[part.get_name()]}
            kernels.append(frozenset(item.meta[TAG] for item in origins if TAG in item.meta and not _is_constant(item)))
        found.graphs.append(kernels)
        _report_strides()
        raise _ScheduledError

    def schedule_only(graph: Any, example_inputs: Any, **options: Any) -> Any:
        try:
            compile_fx_inner(graph, example_inputs, **options)
        except Exception as error:
            if not _is_scheduled(error):
                raise
        return make_boxed_func(graph.forward)

    def backend(graph: Any, example_inputs: Any) -> Any:
        return compile_fx(graph, example_inputs, inner_compile=schedule_only)

    settings = {"cpu_backend": scheduler, "force_disable_caches": True, "_post_fusion_custom_pass": keep}
    torch._dynamo.reset()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder))
        if scheduler == "triton":
            stack.enter_context(mock.patch.object(inductor_ir, "is_cpu", return_value=False))
            stack.enter_context(mock.patch.object(BaseSchedulerNode, "is_cpu", return_value=False))
            stack.enter_context(mock.patch.object(BaseSchedulerNode, "is_gpu", return_value=True))
            stack.enter_context(mock.patch.object(inductor_ir, "is_gpu", return_value=True))
            stack.enter_context(mock.patch.object(SchedulerNode, "_compute_attrs", _unmerged_attributes))
            stack.enter_context(mock.patch.object(DeviceProperties, "create", return_value=GPU))
            stack.enter_context(inductor.patch(force_pointwise_cat=True))
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(
                mock.patch.object(torch._C, "_conv_determine_backend_memory_format", side_effect=_memory_format)
            )
        stack.enter_context(inductor.patch(settings))
        stack.enter_context(numbered_calls(found))
        _loss_of(torch.compile(network, backend=backend)(*inputs)).backward()
    return found


def _unmerged_attributes(node: SchedulerNode, *arguments: Any, **options: Any) -> None:
    """Describe a loop nest as on a GPU, where loops are merged only once kernels are known."""
    _compute_attributes(node, *arguments, **options)
    node.set_read_writes(extract_read_writes(node._body, *node._sizes, normalize=False))


def _report_strides() -> None:
    """Tell how the forward pass lays out what it saves, as a compilation that ends would, for the backward pass."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    for result in V.graph.graph_outputs:
        stride = result.maybe_get_stride()
        context.output_strides.append(None if stride is None else tuple(map(int, stride)))


def _memory_format(data: torch.Tensor, weight: torch.Tensor, _backend: Any) -> torch.memory_format:
    """Return the layout of a convolution's results as cuDNN has it: channels innermost where an operand has it."""
    is_last = any(suggest_memory_format(item) == torch.channels_last for item in (data, weight))
    return torch.channels_last if is_last and data.dim() == 4 else torch.contiguous_format


def _computed_nodes(nodes: Sequence[Any]) -> dict[str, set[Any]]:
    """Return by scheduler node the graph nodes that its loop computes: its origins but for those of what it reads.

    A view of what is in memory by now keeps the origins of the expression that it was.
    """
    parts = sorted((part for node in nodes for part in node.get_nodes()), key=lambda part: part.min_order)
    wrote: dict[str, set[Any]] = {}
    computed: dict[str, set[Any]] = {}
    for part in parts:
        all_of = set(part.node.get_origins()) if part.node is not None else set()
        read = {origin for item in part.read_writes.reads for origin in wrote.get(item.name, ())}
        own = all_of - read or all_of & {getattr(part.node, "origin_node", None)} or all_of
        computed[part.get_name()] = own
        for buffer in part.get_buffer_names():
            wrote[buffer] = own
    return computed


def _is_constant(node: Any) -> bool:
    """Say whether a graph node is a number, of which all ops that need it share one."""
    value = node.meta.get("val")
    return not node.all_input_nodes and isinstance(value, torch.Tensor) and value.numel() == 1


def _is_scheduled(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, _ScheduledError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error is not None


def _loss_of(result: Any) -> torch.Tensor:
    """Return what is differentiated: the result itself, weighted by nothing."""
    total: torch.Tensor = result.sum()
    return total


def record_network(network: nn.Module, inputs: Inputs) -> Trace:
    """Record the same on the meta device."""
    shadow = network.to("meta")
    data = tuple(item.to("meta").requires_grad_(item.requires_grad) for item in inputs)
    compiled = torch.compile(shadow)
    return trace_iteration(lambda: _loss_of(compiled(*data)).backward(), device="meta")


def predicted_kernels(trace: Trace) -> list[frozenset[OpKey]]:
    """Return the ops of each kernel that the analyzer expects."""
    trace = with_compiled_layouts(trace, Scenario())
    workload = shape_workload(trace, select_window(trace))
    return [
        frozenset((graph_of(trace, kernel.region), op) for op in kernel.ops)
        for kernel in generate_kernels(trace, workload, find_compiled(trace).region)
    ]


def graph_of(trace: Trace, op: int) -> str:
    """Return which compiled graph a recorded op was part of."""
    return "backward" if trace.ops.phase[op] == Phase.BACKWARD else "forward"


def match_calls(found: Compilation, trace: Trace) -> dict[int, int]:
    """Return the recorded op of each call: the same names in the same order, forward and backward each."""
    region = find_compiled(trace).region
    pairs: dict[int, int] = {}
    for is_backward in (False, True):
        calls = [at for at, (known, name) in enumerate(found.calls) if known == is_backward and _is_op(name)]
        wanted = "backward" if is_backward else "forward"
        ops = [op for op in range(len(region)) if region[op] >= 0 and graph_of(trace, op) == wanted]
        names = [_name(trace.strings[trace.ops.name[op]]) for op in ops]
        called = [_name(found.calls[at][1]) for at in calls]
        pairs |= {calls[one]: ops[other] for one, other in _common(called, names)}
    return pairs


def _common(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence."""
    longest = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for one in range(len(first) - 1, -1, -1):
        for other in range(len(second) - 1, -1, -1):
            same = longest[one + 1][other + 1] + 1 if first[one] == second[other] else 0
            longest[one][other] = max(same, longest[one + 1][other], longest[one][other + 1])
    pairs, one, other = [], 0, 0
    while one < len(first) and other < len(second):
        if first[one] == second[other] and longest[one][other] == longest[one + 1][other + 1] + 1:
            pairs.append((one, other))
            one, other = one + 1, other + 1
        elif longest[one + 1][other] >= longest[one][other + 1]:
            one += 1
        else:
            other += 1
    return pairs


def _is_op(name: str) -> bool:
    return not name.startswith("prim") and not name.endswith("detach")


def _name(name: str) -> str:
    short = short_name(name)
    return "attention" if "dot_product" in short and "backward" not in short else SHARED_NAMES.get(short, short)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Count pairs of ops that share a kernel."""

    ops: int
    joined: int
    """As inductor has it."""
    predicted: int
    both: int
    alike: int
    """Ops of which every pair is the same."""

    @property
    def share(self) -> float:
        """Return the pairs that both join, of those that either does."""
        return self.both / max(self.joined + self.predicted - self.both, 1)


def compare(found: Compilation, trace: Trace, *, is_told: bool = False) -> Agreement:
    """Compare inductor's kernels with the predicted ones, over the ops that it generates code for."""
    op_of = match_calls(found, trace)
    left_out = [family_of(name) in (Family.VIEW, *VARYING_FAMILIES) for name in trace.strings]
    kernels = [
        frozenset(
            (label, op_of[call]) for call in kernel if call in op_of and not left_out[trace.ops.name[op_of[call]]]
        )
        for label, graph in zip(("forward", "backward"), found.graphs, strict=False)
        for kernel in graph
    ]
    kernels = [
        frozenset(item for item in kernel if item[0] == "backward" or graph_of(trace, item[1]) == "forward")
        for kernel in kernels
    ]
    ops = {item for kernel in kernels for item in kernel}
    expected = [kernel & ops for kernel in predicted_kernels(trace)]
    joined, predicted = (
        {pair for kernel in each for pair in combinations(sorted(kernel), 2)} for each in (kernels, expected)
    )
    unlike = {item for pair in joined ^ predicted for item in pair}
    if is_told:
        tell(trace, joined, predicted, kernels)
    both = len(joined & predicted)
    return Agreement(
        ops=len(ops), joined=len(joined), predicted=len(predicted), both=both, alike=len(ops) - len(unlike)
    )


def tell(trace: Trace, joined: set[Any], predicted: set[Any], kernels: Sequence[frozenset[OpKey]]) -> None:
    """Print the kernels, and the pairs that only one of the two joins."""

    def say(item: OpKey) -> str:
        return f"{item[0][0]}{item[1]}:{short_name(trace.strings[trace.ops.name[item[1]]])}"

    for kernel in kernels:
        print("   kernel", *(say(item) for item in sorted(kernel)))
    for title, pairs in (("missed", joined - predicted), ("too much", predicted - joined)):
        for one, other in sorted(pairs):
            print(f"   {title}: {say(one)} {say(other)}")


def main() -> None:
    """Print one line per network, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--scheduler", choices=("triton", "cpp"), default="triton")
    parser.add_argument("--set", choices=tuple(NETWORKS), default="check")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    chosen = NETWORKS[options.set]
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    print("network        ops  pairs predicted   both precision  recall  alike")
    sums = []
    for name in options.networks or chosen:
        torch.manual_seed(0)
        network, inputs = chosen[name]()
        network.train()
        found = compile_network(network, inputs, options.scheduler)
        item = compare(found, record_network(network, inputs), is_told=options.verbose)
        precision, recall = item.both / max(item.predicted, 1), item.both / max(item.joined, 1)
        alike = item.alike / max(item.ops, 1)
        sums.append((precision, recall, alike))
        print(
            f"{name:12} {item.ops:5d} {item.joined:6d} {item.predicted:9d} {item.both:6d} "
            f"{precision:9.1%} {recall:7.1%} {alike:6.1%}"
        )
    means = [sum(column) / len(sums) for column in zip(*sums, strict=True)]
    print(f"{'mean':12} {'':5} {'':6} {'':9} {'':6} {means[0]:9.1%} {means[1]:7.1%} {means[2]:6.1%}")


if __name__ == "__main__":
    main()
