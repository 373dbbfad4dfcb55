"""What this machine has for wavecast, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from ....formats.trace.printable import clean_text
from ....specs.local import Extra, LocalGpu
from ...page.columns import text_column
from ...page.encoding import encode_json
from ...page.page import Page, build_page, facts
from ...page.quantity import format_bytes, format_count
from ...page.sheet import Sheet

DOCTOR_FORMAT: Final = "wavecast.doctor"
DOCTOR_VERSION: Final = "1.0"


def describe_machine(
    versions: Mapping[str, str | None], gpus: Sequence[LocalGpu], extras: Sequence[Extra], gpu_count: int
) -> Page:
    """Put into words what is installed, which GPUs are seen, and what each extra adds."""
    columns = (
        text_column("extra", (item.name for item in extras)),
        text_column(
            "state", (f"missing: {', '.join(item.missing)}" if item.missing else "installed" for item in extras)
        ),
        text_column("adds", (item.adds for item in extras), wraps=True),
    )
    lacking = [item.name for item in extras if item.missing]
    advice = [("to add", f"pip install 'wavecast[{','.join(lacking)}]'")] if lacking else []
    lead = facts((*_facts(versions, gpus, gpu_count), *advice))
    return build_page(lead, Sheet(title="Extras", columns=columns))


def draw_machine_json(
    versions: Mapping[str, str | None], gpus: Sequence[LocalGpu], extras: Sequence[Extra], gpu_count: int
) -> str:
    """Write the same as JSON, sizes in bytes."""
    return encode_json(
        {
            "format": DOCTOR_FORMAT,
            "version": DOCTOR_VERSION,
            "versions": dict(versions),
            "gpus": [asdict(item) for item in gpus],
            "extras": [asdict(item) for item in extras],
            "catalogued_gpu_count": gpu_count,
        }
    )


def _facts(versions: Mapping[str, str | None], gpus: Sequence[LocalGpu], gpu_count: int) -> Iterator[tuple[str, str]]:
    for name, text in versions.items():
        yield name, clean_text(text) if text is not None else "not installed"
    for number, gpu in enumerate(gpus):
        memory = f", {format_bytes(gpu.memory_bytes)}" if gpu.memory_bytes else ""
        driver = f", driver {clean_text(gpu.driver_version)}" if gpu.driver_version else ""
        known = f"in the catalogue as {gpu.catalogued}" if gpu.catalogued else "not in the catalogue: see --gpu-file"
        yield f"GPU {number}", f"{clean_text(gpu.name)}{memory}{driver}; {known}"
    if not gpus:
        yield "GPU", "none seen (nvidia-smi and rocm-smi tell of none): analyze needs none, record has --shapes-only"
    yield "catalogue", format_count(gpu_count, "GPU")
