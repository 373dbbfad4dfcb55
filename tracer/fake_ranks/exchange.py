"""Answers collectives of torch's process groups on the meta device: every rank is taken to hold what this one holds."""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..description.signatures import describe_arguments, tensors_in
from ..meta.collectives import Answer, Group, Transfer
from ..meta.host_values import HostValues
from ..meta.streams import current_stream

_PLAIN: Final = "c10d"
_FUNCTIONAL: Final = "_c10d_functional"
_DTENSOR: Final = "_dtensor::shard_dim_alltoall"
_MAX_ELEMENTS: Final = 1 << 16
"""Values of larger tensors are not followed through a collective: counts, lengths and splits stay well under it."""
_UNNAMED: Final = frozenset({"", "undefined", "default_pg"})
_MESH_PREFIX: Final = "mesh_"
"""What torch's DeviceMesh puts before the name of a dimension when it describes its groups."""
_SENT: Final = frozenset({"send", "isend"})
_RECEIVED: Final = frozenset({"recv_", "irecv"})
_PEERS: Final[Mapping[str, int]] = {"send": 2, "recv_": 2, "isend": 1, "irecv": 1}
"""Which argument is the rank, within the group, that is sent to or received from."""
_ROOTS: Final[Mapping[str, int]] = {"broadcast_": 2, "reduce_": 3, "gather_": 3, "scatter_": 3}
_IGNORED: Final = frozenset({"barrier", "monitored_barrier_", "check_for_nan"})
"""What moves nothing that a prediction looks at."""


def is_collective(func: torch._ops.OpOverload) -> bool:
    """Say whether an op is one of a process group."""
    return func.namespace in (_PLAIN, _FUNCTIONAL) or func._schema.name == _DTENSOR


class _Work(torch._C._distributed_c10d.Work):
    """Stand in for what torch waits on: everything has arrived; `on_wait` is told when somebody waits."""

    def __init__(self, tensors: Sequence[Tensor], on_wait: Callable[[Sequence[Tensor]], None]) -> None:
        super().__init__()
        self._tensors = [weakref.ref(item) for item in tensors]
        self._on_wait = on_wait

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002
        self._on_wait(self.result())
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return [item for item in (reference() for reference in self._tensors) if item is not None]

    def get_future(self) -> torch.futures.Future[Any]:
        return _told(self.result())

    def get_future_result(self) -> torch.futures.Future[Any]:
        return _told(0)


def _told(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


class FakeExchange:
    """Answer collectives, and number them by group as all ranks of it would.

    `on_wait` is told of tensors that are waited for by `Work.wait`.
    """

    def __init__(self, values: HostValues, on_wait: Callable[[Sequence[Tensor]], None]) -> None:
        self._values = values
        self._on_wait = on_wait
        self._counts: Counter[Any] = Counter()
        self._works: list[_Work] = []
        self._groups: dict[str, Group] = {}

    def run(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Answer:
        """Return what an op of a process group returns where nothing is exchanged."""
        name = func._schema.name.rpartition("::")[2]
        if name == "wait_tensor":
            return Answer(args[0])
        if name == "_wrap_tensor_autograd":  # which on meta is another tensor, that nobody waits for
            return Answer(torch.distributed._functional_collectives.AsyncCollectiveTensor(args[0]))
        if func.namespace == _PLAIN:
            return self._run_plain(func, name, describe_arguments(func, args, kwargs))
        return self._run_functional(func, name, args, kwargs)

    def _run_plain(self, func: torch._ops.OpOverload, name: str, args: list[Any]) -> Answer:
        if name == "check_for_nan" or not func._schema.returns:
            return Answer(None, None)
        group = torch.distributed.ProcessGroup.unbox(
            next(item for item in args if isinstance(item, torch.ScriptObject) and "ProcessGroup" in str(item._type()))
        )
        received, sent = _sides(name, args)
        self._exchange(name, received, sent, group)
        transfer = None
        if name not in _IGNORED:
            asked = {item.name: value for item, value in zip(func._schema.arguments, args, strict=False)}
            is_aside = current_stream() != 0
            is_async = name in _PEERS or bool(asked.get("async_op", asked.get("asyncOp", True))) or is_aside
            # gather and scatter of one rank alone, and what the peers are numbered by, is the group's order
            transfer = self._transfer(name, group, args, is_async=is_async)
        work = _Work(received or sent, self._on_wait)
        self._works = [*self._works[-63:], work]  # torch looks at it through C++, which does not keep it
        boxed = work.boxed()
        result = (args[0], boxed) if len(func._schema.returns) > 1 else boxed
        return Answer(result, transfer, received, [] if sent is received else sent)

    def _run_functional(
        self, func: torch._ops.OpOverload, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Answer:
        given = describe_arguments(func, args, kwargs)
        names = [item.name for item in func._schema.arguments]
        if "group_name" not in names or name == "batch_p2p_ops":
            return Answer(func(*args, **kwargs), None)
        named = given[names.index("group_name")]
        group = _find_group(named)
        result = _shape(func, name, given)
        self._exchange(name, tensors_in(result), tensors_in(given[:1]), group)
        return Answer(result, self._transfer(name, group, given, is_async=True))

    def _transfer(self, name: str, group: Any, args: Sequence[Any], *, is_async: bool) -> Transfer:
        described = self._describe(group)
        peer = None
        if name in _PEERS:
            peer = described.ranks[int(args[_PEERS[name]])]
        direction = "to" if name in _SENT else "from" if name in _RECEIVED else None
        key = described.key, direction, peer
        self._counts[key] += 1
        return Transfer(group=described, sequence=self._counts[key] - 1, is_async=is_async, peer=peer)

    def _describe(self, group: Any) -> Group:
        key = str(group.group_name)
        if key not in self._groups:
            text = str(getattr(group, "group_desc", ""))
            name = None if text in _UNNAMED else text.removeprefix(_MESH_PREFIX)
            ranks = tuple(torch.distributed.get_process_group_ranks(group))
            self._groups[key] = Group(key=key, name=name, ranks=ranks)
        return self._groups[key]

    def _exchange(self, name: str, received: list[Tensor], sent: list[Tensor], group: Any) -> None:
        """Give what is received the values that it has if all ranks hold the same, and a reduction is their mean."""
        size, rank = group.size(), group.rank()
        plain = name.strip("_").removesuffix("_out").removesuffix("_coalesced")
        pairs = list(zip(sent, received, strict=False))
        change: Callable[[Tensor], Tensor] = _same
        if "reduce_scatter" in plain:
            pairs = list(zip(sent if len(sent) == len(received) else sent[rank::size], received, strict=False))
            change = partial(_part, size, rank) if len(sent) == len(received) else _same
        elif "gather" in plain and sent:
            times = len(received) // len(sent)
            pairs = [(sent[index // max(times, 1)], item) for index, item in enumerate(received[: times * len(sent)])]
            change = lambda values: values.flatten().repeat(1 if times > 1 else size)  # noqa: E731
        for source, target in pairs:
            self._copy(target, source, change)

    def _copy(self, target: Tensor, source: Tensor, change: Callable[[Tensor], Tensor]) -> None:
        known = self._values.find(source) if source.numel() <= _MAX_ELEMENTS else None
        value = change(known) if known is not None else None
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if not target.is_meta:
                if value is not None and value.numel() == target.numel():
                    target.copy_(value.view(target.shape))
                return
            if value is not None and value.numel() == target.numel():
                self._values.give(target, value.to(target.dtype).reshape(target.shape).clone())
            elif self._values.find(target) is not None:
                self._values.forget(target)


def _find_group(named: Any) -> Any:
    """Return the group that functional collectives name, or give."""
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    return resolve(named) if isinstance(named, str) else named


def _sides(name: str, args: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Return what a rank receives and what it sends, by the schemas of torch/csrc/distributed/c10d/Ops.cpp."""
    first = _leaves(args[0])
    if name in ("send", "barrier"):
        return [], first
    if name in ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_"):
        return first, first
    if name in ("recv_", "recv_any_source_"):
        return first, []
    return first, _leaves(args[1])


def _same(values: Tensor) -> Tensor:
    return values


def _part(size: int, rank: int, values: Tensor) -> Tensor:
    parts = values.flatten().chunk(size)
    return parts[rank] if rank < len(parts) else values.new_empty(0)


def _leaves(value: Any) -> list[Tensor]:
    return [item for item in tree_leaves(value) if isinstance(item, Tensor)]


def _shape(func: torch._ops.OpOverload, name: str, given: list[Any]) -> Any:
    """Return what a functional collective returns of tensors on the host, or DTensor's own exchange of shards."""
    if func._schema.name == _DTENSOR:
        data, gather, shard, named = given
        group = _find_group(named)
        shape = list(data.shape)
        shape[gather], shape[shard] = shape[gather] * group.size(), shape[shard] // group.size()
        return data.new_empty(shape)
    if name.endswith("_out"):
        return given[-1]
    data = given[0]
    if name in ("isend", "irecv") or name.endswith("_"):
        return data
    outputs = [_shape_one(name, item, given) for item in (data if isinstance(data, list) else [data])]
    return outputs if isinstance(data, list) else outputs[0]


def _shape_one(name: str, data: Tensor, given: list[Any]) -> Tensor:
    rows = data.shape[0] if data.dim() else 1
    if name.startswith("all_gather"):
        return data.new_empty((rows * given[1], *data.shape[1:]))
    if name.startswith("reduce_scatter"):
        return data.new_empty((rows // given[2], *data.shape[1:]))
    if name == "all_to_all_single":
        return data.new_empty((sum(given[1]), *data.shape[1:]))
    return torch.empty_like(data)
