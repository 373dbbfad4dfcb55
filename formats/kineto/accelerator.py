"""Gathers what tells which accelerator a file is of: one whose kernels are missing is no recording of a CPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ..recording.settle import Recording
from .events import DeviceProperties, Event, Header, LightEvent
from .values import Integers

CUDA: Final = "cuda"
HIP: Final = "hip"
EITHER: Final = "gpu"
"""CUDA or ROCm, which PyTorch calls CUDA, too."""
UNKNOWN: Final = "unknown"
"""Of a device that the file lists, or whose calls it holds, without saying what it is."""

_PLATFORMS: Final = frozenset({
    CUDA, HIP, "mtia", "xpu", "hpu", "npu", "mlu", "gcu", "musa", "ipu", "tpu", "xla", "mps", "glow", "privateuse1",
})  # fmt: skip
"""Whose categories of events begin with their name."""
_CALL_SUFFIXES: Final = ("_runtime", "_driver")
"""End the categories of any platform's calls on the host; its other events are of the device."""
_LINK_CATEGORIES: Final = frozenset({"ac2g", "async", "async_gpu", "async_cpu_to_gpu", "gpu_user_annotation"})
"""Exist only where a device was recorded: arrows to it, and annotations drawn on it."""
_DEVICE_TYPES: Final = {
    1: EITHER, 6: HIP, 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 18: "ipu", 19: "mtia", 20: "privateuse1",
}  # fmt: skip
"""Of allocations, as c10/core/DeviceType.h numbers devices."""
_GPU_OP: Final = re.compile(
    r"aten::(?:_?cudnn_(?!is_acceptable)|_?miopen_|record_stream$|_pin_memory$|_thnn_fused_"
    r"|_scaled_dot_product_(?:efficient|cudnn)_attention|_(?:flash|efficient|cudnn)_attention_)"
    r"|triton_(?:poi|red|per|tem|unk)_"
)
"""Ops that PyTorch has for GPUs alone: their libraries, streams, pinned memory and fused kernels."""
_DEVICE_ARGUMENT: Final = re.compile(rb'"(cuda|hip|xpu|mtia|hpu|npu|mps|xla)(?::\d+)?"')
"""A device among the inputs of an op."""
_NCCL_PREFIX: Final = "nccl:"
"""Begins the names of torch's own annotations around collectives of GPUs."""
_FORMS: Final[tuple[tuple[str, Callable[[Event], bool]], ...]] = (
    (
        "a trace of torch.autograd.profiler's legacy form (export_chrome_trace of a profile with use_cuda), which "
        "tells no launches and no shapes: record with torch.profiler.profile and activities=[ProfilerActivity.CPU, "
        "ProfilerActivity.CUDA]",
        lambda event: event.pid in ("CPU functions", "CUDA functions"),
    ),
    (
        "a trace of Ascend's profiler (an NPU of Huawei), whose kernels are not read: record the model on a GPU, or "
        "its shapes with `wavecast record --shapes-only`",
        lambda event: event.args is not None and event.args.task_type is not None,
    ),
    (
        "a trace of rocprof (v1), whose successor is read: record with `rocprofv3 --kernel-trace --hip-trace "
        "--memory-copy-trace --marker-trace --output-format json`",
        lambda event: event.args is not None and event.args.begun is not None,
    ),
)
"""What other tools write as the same kind of JSON, how to tell it, and what to do instead."""
_MAX_CATEGORIES: Final = 1000
"""Profilers have some thirty; only a broken file has more, and they are not counted."""


def find_platform(evidence: Evidence, inputs: Iterable[bytes], header: Header, recording: Recording) -> str | None:
    """Return the platform of the accelerator that a file names, in its header or by what was run; None for a CPU's.

    What was run decides over what is listed: a machine may hold devices that the recording did not use.
    """
    found = next((name for name in _names(evidence, inputs, header, recording) if name is not None), None)
    if found not in (CUDA, EITHER):
        return found
    if _is_rocm(header, recording):
        return HIP
    return CUDA if found == EITHER and _is_cuda(header) else found


def count_unread(evidence: Evidence) -> int:
    """Count the events of devices in categories that are not read."""
    unread = evidence.unread_counts.items()
    return sum(count for name, count in unread if _platform(name) and not name.endswith(_CALL_SUFFIXES))


def _names(evidence: Evidence, inputs: Iterable[bytes], header: Header, recording: Recording) -> Iterator[str | None]:
    """Yield what each kind of evidence says, the surest first."""
    categories = list(evidence.category_counts)
    yield from map(_platform, categories)
    yield from (_DEVICE_TYPES.get(number) for number in sorted(evidence.device_types))
    if evidence.has_nccl or (header.distributed is not None and header.distributed.backend == "nccl"):
        yield EITHER
    if not _LINK_CATEGORIES.isdisjoint(categories):
        yield EITHER
    names = [recording.names.texts[name] for name in np.unique(recording.ops.name).tolist()]
    if any(_GPU_OP.match(name) for name in names):
        yield EITHER
    for text in inputs:
        if match := _DEVICE_ARGUMENT.search(text):
            yield EITHER if match[1] == b"cuda" else match[1].decode()
    yield from map(_platform_of_device, header.devices or ())
    if header.cuda_driver_version or header.hip_driver_version:
        yield EITHER


def _platform(category: str) -> str | None:
    """Return the platform that a category of events belongs to, e.g. `mtia` for `mtia_runtime`."""
    name = category.partition("_")[0]
    if name in _PLATFORMS and name != category:
        return name
    return UNKNOWN if category.endswith(_CALL_SUFFIXES) else None


def _platform_of_device(item: DeviceProperties) -> str:
    """Return the platform of a listed device: of CUDA and ROCm the compute capability is listed, too."""
    if item.name.startswith("Intel"):
        return "xpu"
    return UNKNOWN if item.compute_major is None else CUDA


def _is_cuda(header: Header) -> bool:
    """Say whether a header is CUDA's own, ROCm's being out of question."""
    versions = (header.cuda_runtime_version, header.cuda_driver_version)
    return any(versions) or any(_platform_of_device(item) == CUDA for item in header.devices or ())


def _is_rocm(header: Header, recording: Recording) -> bool:
    """Say whether what calls itself CUDA is ROCm, whose calls and devices PyTorch names so."""
    if header.hip_runtime_version is not None or header.hip_driver_version is not None:
        return True
    if any(item.name.startswith("AMD") or item.shared_memory_per_cu is not None for item in header.devices or ()):
        return True
    calls = np.unique(recording.calls.name).tolist()
    return any(recording.names.texts[name].startswith("hip") for name in calls)


class Evidence:
    """Own what was seen of devices while a file is read."""

    def __init__(self) -> None:
        self.category_counts = Counter[str]()
        self.unread_counts = Counter[str]()
        """Of the categories that no reader takes."""
        self.device_types: set[int] = set()
        self.has_nccl = False
        self.form: str | None = None
        """A known form of file that is not read, by what is in it."""

    def note_forms(self, events: Sequence[Event]) -> None:
        """Look for what other tools write in the same form, among events without a category."""
        for event in events if self.form is None else ():
            self.form = next((words for words, is_of in _FORMS if is_of(event)), None)
            if self.form is not None:
                return

    def note_categories(self, groups: Mapping[str | None, Sequence[Event]], read: Container[str | None]) -> None:
        """Count the events of each category; `read` holds those that are read."""
        self.note_counts({category: len(events) for category, events in groups.items()}, read)

    def note_counts(self, counts: Mapping[str | None, int], read: Container[str | None]) -> None:
        """Add how many events there are of each category; `read` holds those that are read."""
        for category, count in counts.items():
            name = category or ""
            if name in self.category_counts or len(self.category_counts) < _MAX_CATEGORIES:
                self.category_counts[name] += count
                self.unread_counts[name] += 0 if category in read else count

    def note_annotations(self, events: Sequence[Event | LightEvent]) -> None:
        """Look for collectives of GPUs among annotations."""
        self.has_nccl = self.has_nccl or any((event.name or "").startswith(_NCCL_PREFIX) for event in events)

    def note_device_types(self, numbers: Integers) -> None:
        """Keep the types of devices that memory was allocated on, as torch numbers them."""
        self.device_types.update(np.unique(numbers).tolist())
