"""The ways in which a time on a target can come about."""

from __future__ import annotations

from enum import StrEnum


class Method(StrEnum):
    """Name how a kernel's time on the target was obtained."""

    MEASURED = "measured"
    """The target is the source: the recorded time."""
    WAVE_SCALING = "wave_scaling"
    """Habitat's wave scaling of the measured time: the same kernel is assumed on the target."""
    BOUND_RATIO = "bound_ratio"
    """Measured time times the ratio of the op's roofline times: kernels that libraries choose per GPU."""
    BANDWIDTH_RATIO = "bandwidth_ratio"
    """Measured time times the ratio of memory bandwidths: copies and fills on the device."""
    LINK_RATIO = "link_ratio"
    """Measured time times the ratio of PCIe or GPU-to-GPU bandwidths."""
    ANCHORED_MODEL = "anchored_model"
    """Measured time moved by the op model of its family: what the source shows and the model misses carries over."""
    OP_MODEL = "op_model"
    """The op model of its family, from the shapes alone: nothing was measured."""
    ROOFLINE = "roofline"
    """Arithmetic or memory traffic at peak rate, whichever is longer: no op model covers it, real ones are slower."""
    UNMODELLED = "unmodelled"
    """Nothing models it: the measured time is kept as it is; without one it counts 0."""
