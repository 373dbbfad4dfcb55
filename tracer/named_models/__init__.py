"""Records models of transformers, timm and torchvision by name: shapes alone, no weights and nothing downloaded."""

from .recording import LIBRARIES, record_model
from .subject import DTYPES, Settings, Subject, build_step

__all__ = ["DTYPES", "LIBRARIES", "Settings", "Subject", "build_step", "record_model"]
