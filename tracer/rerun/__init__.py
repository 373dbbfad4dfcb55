"""Re-executes the ops of a trace on the local device, on synthetic tensors of the recorded shapes. Needs torch."""

from .execute import rerun_ops
from .local import find_device

__all__ = ["find_device", "rerun_ops"]
