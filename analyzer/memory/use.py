"""What is said about the memory of one iteration."""

from collections.abc import Mapping
from enum import StrEnum

from ...records import dataclass


class MemoryCategory(StrEnum):
    """Say what memory holds."""

    PARAMETERS = "parameters"
    """Weights, frozen ones too, and the buffers of modules."""
    GRADIENTS = "gradients"
    """Of the parameters."""
    OPTIMIZER_STATE = "optimizer state"
    PERSISTENT = "held throughout"
    """Held before and after the iteration; allocation events do not tell parameters from optimizer state."""
    ACTIVATIONS = "activations"
    """Results of the forward pass, saved for the backward pass or not."""
    TEMPORARIES = "temporaries"
    """Gradients of activations, the optimizer's intermediate results, and the workspace of single ops."""
    INPUTS = "inputs"
    OTHER = "other"
    """What nothing tells."""


class MemoryMethod(StrEnum):
    """Say how memory was found."""

    ALLOCATION_EVENTS = "allocation events"
    """The allocator's own account."""
    SHAPES_AND_LIFETIMES = "shapes and lifetimes"
    """The size of every storage, held from the op that creates it to the last op that uses it, or as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Describe the moment of one iteration at which the device holds most."""

    peak_bytes: int
    """What tensors and ops hold, each rounded up as blocks are; without the CUDA context and cached free blocks."""
    highest_bytes: int
    """Upper end of the peak: with everything that the Python frames could still hold. The peak where it is known."""
    allocated_peak_bytes: int
    """The most that torch counts as allocated: the peak with what is too little to be cut off blocks."""
    reserved_peak_bytes: int | None
    """The most that the allocator takes from the driver, free blocks of earlier peaks included; None: not known."""
    held: Mapping[MemoryCategory, int]
    """Bytes per category at the peak; they sum to it, and categories that hold nothing are absent."""
    at_op: int | None
    """Row of the op that runs at the peak."""
    method: MemoryMethod
    reason: str
    workspace_count: int
    """Workspaces of the matrix library that the peak does not hold: one per thread that multiplies."""
