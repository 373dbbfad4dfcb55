"""What is asked beside the GPU: another host, another precision, other sizes, fewer launches."""

from enum import StrEnum
from typing import Any, Final

from ...records import dataclass, field, fields

ASKED: Final = "option"
"""The metadata of a field that make it an option: the part of the help, the explanation, its names, its settings."""


class TargetPrecision(StrEnum):
    """Name a precision that an iteration can be moved to."""

    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    INT8_WEIGHTS = "int8-weights"
    """Of linear layers; what is multiplied with them stays in half precision."""
    INT4_WEIGHTS = "int4-weights"


class TargetAttention(StrEnum):
    """Name whose attention can be asked for: those of `AttentionKernel` that a call to PyTorch or a package reaches."""

    FLASH2 = "flash2"
    FLASH3 = "flash3"
    CUDNN = "cudnn"
    EFFICIENT = "efficient"
    MATH = "math"
    TRITON = "triton"
    CK = "ck"


def _switch(question: str, called: str, change: str, *, keeps_kernels: bool = False) -> Any:
    """Return the field of a what-if that is asked or not, with all that the house knows of it.

    Reports name it as `called`. `change` is the function, by module and name in this folder, that returns the changed
    graph from a `ChangedGraph`, the trace, its workload and the scenario.
    """
    known = {ASKED: ("What if", question, (), {}), "called": called, "change": change, "keeps_kernels": keeps_kernels}
    return field(default=False, metadata=known)


@dataclass(frozen=True, kw_only=True)
class LaunchWhatIfs:
    """Hold what changes the graph of an iteration. The last one is applied first."""

    cuda_graph: bool = _switch(
        "What if CUDA graphs launched it?", "launches by CUDA graphs", ".cuda_graph.capture:capture", keeps_kernels=True
    )
    fuse_elementwise: bool = _switch(
        "What if a compiler merged pointwise ops?", "pointwise ops merged", ".fusion.fusion:fuse"
    )


SWITCHES: Final = fields(LaunchWhatIfs)


@dataclass(frozen=True, kw_only=True)
class _HostAndSizes:
    """Hold what is asked of the host, the precision and the sizes."""

    cpu_speed: float | None = None
    """Speed of the target's host relative to the one that was recorded: 2 is twice as fast. None: not known, taken as
    equal."""
    host_half_width: float = 0.0
    """How far that speed may be off in 90 % of the cases, natural log: 0 where a user says it."""
    precision: TargetPrecision | None = None
    batch_size: int | None = None
    recorded_batch_size: int | None = None
    """What the trace's batch size is, where it does not say it or says it wrongly."""
    sequence_length: int | None = None
    """Tokens of each sample."""
    recorded_sequence_length: int | None = None
    """Those of the recording, where its shapes do not tell."""
    cached_tokens: int | None = None
    """Tokens of each sample whose keys and values are there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(LaunchWhatIfs, _HostAndSizes):
    """Hold the changes to an iteration before it is predicted; the default changes nothing."""

    attention: TargetAttention | None = None
    """Whose attention runs, where it exists; None: the recorded one on its GPU, elsewhere that GPU's default."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Return what is changed, but for the host, as a report names it."""
        named = (
            *self.lengths,
            f"{self.precision.value} arithmetic" if self.precision is not None else None,
            *(item.metadata["called"] for item in SWITCHES if getattr(self, item.name)),
            f"{self.attention.value} attention" if self.attention is not None else None,
        )
        return tuple(name for name in named if name is not None)

    @property
    def lengths(self) -> tuple[str, ...]:
        """Return which sizes are changed, as a report names them."""
        named = (
            f"a batch of {self.batch_size:,}" if self.batch_size is not None else None,
            f"sequences of {self.sequence_length:,} tokens" if self.sequence_length is not None else None,
            f"{self.cached_tokens:,} cached tokens" if self.cached_tokens is not None else None,
        )
        return tuple(name for name in named if name is not None)

    @property
    def changes_sizes(self) -> bool:
        """Say whether tensors may be of another size than recorded, which recorded allocations do not tell."""
        return bool(self.lengths) or self.precision is not None

    @property
    def changes_work(self) -> bool:
        """Say whether the kernels differ from the recorded ones."""
        changed = (self.precision, self.attention)
        switched = (getattr(self, item.name) for item in SWITCHES if not item.metadata["keeps_kernels"])
        return bool(self.lengths) or any(switched) or any(item is not None for item in changed)

    @property
    def changes_anything(self) -> bool:
        """Say whether the iteration differs from the recorded one on the very same GPU."""
        switched = any(getattr(self, item.name) for item in SWITCHES)
        return self.changes_work or switched or self.cpu_speed not in (None, 1.0)
