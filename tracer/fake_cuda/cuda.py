"""Lets a script believe in a GPU where there is none while its shapes are recorded; it is all undone afterwards."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.nn.parallel._functions as parallel_functions

from ...errors import CaptureError
from ..hooks.patches import environment, patched
from ..meta.streams import FakeStream, OnFakeStream, default_stream, find_current_stream, set_stream
from .devices import FakeCuda, cuda_tensor_types

_CAPABILITY: Final = (9, 0)
"""New enough that libraries choose what current data-centre GPUs run: bfloat16, fused attention."""
_MEMORY_BYTES: Final = 80 << 30
_PROPERTIES: Final = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=_CAPABILITY[0], minor=_CAPABILITY[1], total_memory=_MEMORY_BYTES,
    multi_processor_count=132, warp_size=32, is_integrated=False, is_multi_gpu_board=False, gcnArchName="",
    L2_cache_size=50 << 20, max_threads_per_block=1024, max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=1 << 16, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10, clock_rate=1_980_000, memory_clock_rate=2_619_000,
    memory_bus_width=5120, uuid="", pci_bus_id=0, pci_device_id=0, pci_domain_id=0,
)  # fmt: skip
"""What a script is told where it asks; no prediction looks at it, and no trace holds it."""


_NCCL_VERSION: Final = (2, 27, 5)


class _Event:
    """Stand in for torch.cuda.Event: it has happened, and anything between two of them took a millisecond."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        return

    record = wait = synchronize = __init__

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Any) -> float:
        return 1.0


_make_generator: Final = torch.Generator
_GeneratorKind: Any = type(torch.Generator)


class _AnyGenerator(_GeneratorKind):  # type: ignore[misc] # its type is not the same in every version
    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _make_generator)


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """Stand in for torch.Generator: one for the GPU is the host's, which torch takes for meta tensors."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc] # one that torch knows
        named = torch.device(device)
        return _make_generator(torch.device("cpu") if named.type == "cuda" else named)


class _Graph:
    """Stand in for torch.cuda.CUDAGraph, to say in a line that there is none."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        raise CaptureError(
            "torch.cuda.CUDAGraph: a recording of shapes cannot replay a graph that the script captures itself; "
            "record it without, and ask what a graph would do: analyze --cuda-graph"
        )


class _Current(nullcontext[None]):
    """Stand in for torch.cuda.device: the only one is always the current one."""

    def __init__(self, *_arguments: Any) -> None:
        super().__init__()


class _Runtime:
    """Stand in for the module of CUDA's runtime, whose functions scripts call to mark what a profiler shall see."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return _answer(0)


def _answer(value: Any) -> Callable[..., Any]:
    """Return a function of its own that answers so: torch's compiler keeps a table of what stands under each name."""

    def answer(*_arguments: Any, **_options: Any) -> Any:
        return value

    return answer


_QUIET: Final = (
    *("_lazy_init", "init", "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "seed"),
    *("seed_all", "ipc_collect", "set_rng_state", "set_rng_state_all", "set_per_process_memory_fraction"),
    *("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated"),
    *("reset_max_memory_cached", "set_sync_debug_mode", "reset_peak_host_memory_stats"),
    "reset_accumulated_host_memory_stats",
)
_ZEROS: Final = (
    *("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("memory_cached", "max_memory_cached", "utilization", "memory_usage", "device_memory_used", "initial_seed"),
    *("temperature", "power_draw", "clock_rate", "get_sync_debug_mode", "current_blas_handle"),
)


_FACTS: Final[dict[str, Any]] = {
    **dict.fromkeys(_QUIET),
    **dict.fromkeys(_ZEROS, 0),
    "is_available": True,
    "is_initialized": False,  # torch's own bookkeeping, and ours, must not go looking for the GPU
    "is_bf16_supported": True,
    "is_tf32_supported": True,
    "is_current_stream_capturing": False,
    "device_count": 1,
    "get_device_name": _PROPERTIES.name,
    "get_device_capability": _CAPABILITY,
    "get_device_properties": _PROPERTIES,
    "get_arch_list": ["sm_90"],
    "mem_get_info": (_MEMORY_BYTES, _MEMORY_BYTES),
    "memory_stats": defaultdict(int),
    "memory_summary": "",
    "memory_snapshot": [],
    "host_memory_stats": defaultdict(int),
    "get_per_process_memory_fraction": 1.0,
    "get_allocator_backend": "native",
    "can_device_access_peer": False,
    "list_gpu_processes": "",
}
"""What functions of `torch.cuda` answer while a script runs."""
_ACCELERATOR: Final[dict[str, Any]] = {
    "is_available": True,
    "current_accelerator": torch.device("cuda"),
    "get_memory_info": (_MEMORY_BYTES, _MEMORY_BYTES),
    **{name: _FACTS[name] for name in ("device_count", "memory_stats", "memory_allocated", "memory_reserved")},
    **{name: _FACTS[name] for name in ("max_memory_allocated", "max_memory_reserved", "synchronize", "empty_cache")},
    **dict.fromkeys(("current_device_index", "current_device_idx"), 0),
    **dict.fromkeys(("set_device_index", "set_device_idx", "reset_peak_memory_stats", "set_stream")),
}
"""What functions of `torch.accelerator` answer, which newer scripts ask instead."""


def _answers(device_count: int, fake: FakeCuda) -> dict[str, Any]:
    """Return what stands in `torch.cuda` while a script runs, by name."""
    state = torch.get_rng_state()

    def choose(device: Any) -> None:
        number = device if isinstance(device, int) else torch.device(device).index
        if number is not None and number >= 0:
            fake.gpu = torch.device("cuda", number)
            fake.claimed = fake.gpu if fake.claimed.type == "cuda" else fake.claimed

    return {
        **{name: _answer(value) for name, value in _FACTS.items()},
        "device_count": _answer(device_count),
        "set_device": choose,
        "current_device": lambda: fake.gpu.index,
        "get_rng_state": _answer(state),
        "get_rng_state_all": _answer([state]),
        "current_stream": find_current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "stream": OnFakeStream,
        "StreamContext": OnFakeStream,
        "Stream": FakeStream,
        "Event": _Event,
        "CUDAGraph": _Graph,
        "device": _Current,
        "device_of": _Current,
        "cudart": _Runtime,
        "ExternalStream": FakeStream,
    }


def _elsewhere(device_count: int) -> Iterator[tuple[object, str, object]]:
    """Yield what has to tell of a GPU outside of `torch.cuda`."""
    yield from cuda_tensor_types()
    yield torch, "Generator", _Generator
    yield torch.Tensor, "record_stream", _answer(None)
    yield torch.cuda.nccl, "version", _answer(_NCCL_VERSION)
    yield torch.cuda.profiler, "start", _answer(None)
    yield torch.cuda.profiler, "stop", _answer(None)
    yield torch, "Stream", FakeStream
    yield torch, "Event", _Event
    for name in ("_record_memory_history", "_dump_snapshot", "_snapshot"):
        yield torch.cuda.memory, name, _answer(None)
    # Data loaders pin on a thread of their own, where torch's modes are not entered.
    yield torch.Tensor, "pin_memory", lambda tensor, *_, **__: tensor
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        yield accelerator, "current_stream", find_current_stream
        if hasattr(accelerator, "device_index"):
            yield accelerator, "device_index", _Current
        yield from ((accelerator, name, _answer(it)) for name, it in _ACCELERATOR.items() if hasattr(accelerator, name))
        yield accelerator, "device_count", _answer(device_count)
    if hasattr(parallel_functions, "_streams"):
        yield parallel_functions, "_streams", None  # one per GPU, which it keeps
    yield torch.backends.cudnn, "version", _answer(find_cudnn_version())
    yield torch.backends.cudnn, "is_acceptable", _answer(False)  # recurrent layers would flatten their weights


@contextmanager
def cuda_stand_in(fake: FakeCuda | None = None, device_count: int = 1) -> Iterator[None]:
    """Answer for `torch.cuda` as a GPU would, where torch sees none: nothing runs on it."""
    with ExitStack() as patches:
        if not torch.cuda.is_available():
            for name, answer in _answers(device_count, fake or FakeCuda()).items():
                if not hasattr(torch.cuda, name):
                    continue  # newer or older than this torch
                patches.enter_context(patched(torch.cuda, name, answer))
            for owner, name, value in _elsewhere(device_count):
                patches.enter_context(patched(owner, name, value))
            patches.enter_context(cuda_version_told())
            for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
                patches.enter_context(patched(torch.cuda.nvtx, name, _answer(0)))
            # Checkpoints that are loaded onto the GPU stay on the host: only their shapes matter.
            patches.enter_context(patched(torch.UntypedStorage, "to", lambda storage, *_, **__: storage))
        # torch's modes are a thread's own, and transformers loads weights on others unless told not to.
        patches.enter_context(environment(HF_DEACTIVATE_ASYNC_LOAD="1"))
        yield


_CUDA_VERSION: Final = "12.8"
_CUDNN_VERSION: Final = 91002
"""Versions that torch 2.7 to 2.9 come with; libraries ask for them before they turn TF32 on."""
_PARTNERS: Final = ("torchvision", "torchaudio", "xformers")
"""Libraries that refuse a torch that was built for another CUDA than they were."""
_LABEL: Final = re.compile(r"\+cu(\d\d+)(\d)\b")
"""How wheels name the CUDA that they were built for: `0.28.0+cu130`."""


@contextmanager
def cuda_version_told() -> Iterator[None]:
    """Let `torch.version.cuda` be a version where torch was built without CUDA: the one that its libraries need.

    They are asked when it is read, since torchvision's extension answers once it is loaded, just before it compares.
    """
    module: Any = torch.version
    if module.cuda is not None:
        yield
        return

    def answer(name: str) -> str:
        if name == "cuda":
            # The CUDA version that installed libraries were built for, a usual one where none says.
            found = (_loaded_torchvision(), *map(_installed, _PARTNERS))
            return next((version for version in found if version is not None), _CUDA_VERSION)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    del module.cuda
    module.__getattr__ = answer
    try:
        yield
    finally:
        del module.__getattr__
        module.cuda = None


def find_cudnn_version() -> int:
    """Return torch's own cuDNN version, a usual one where there is none."""
    try:
        return torch.backends.cudnn.version() or _CUDNN_VERSION
    except RuntimeError:  # another one is loaded than torch was built with, which is of no matter here
        return _CUDNN_VERSION


def _loaded_torchvision() -> str | None:
    """Return what torchvision's extension answers where it is loaded: 13020 is 13.2, -1 a build without CUDA."""
    try:
        number = torch.ops.torchvision._cuda_version()
    except (AttributeError, RuntimeError):
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if number > 0 else None


@cache
def _installed(library: str) -> str | None:
    """Return what the label of a library's version says: in its file, as PyPI's wheels have it, or in its metadata."""
    label = _LABEL.search(f"{_version_file(library)} {_version_of(library)}")
    return f"{label[1]}.{label[2]}" if label else None


def _version_file(library: str) -> str:
    """Return the text of `version.py` in a library's folder; nothing is imported, which would take seconds."""
    try:
        found = find_spec(library)
        return Path(found.origin).with_name("version.py").read_text("utf-8") if found and found.origin else ""
    except (ImportError, ValueError, OSError):
        return ""


def _version_of(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
