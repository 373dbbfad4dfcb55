"""What is installed here: versions, the GPUs of this machine, and what each extra adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from platform import python_version

from ...formats.trace.printable import clean_text
from ...specs.catalog import load_catalog
from ...version import __version__
from ..page.columns import text_column
from ..page.page import Page, build_page, facts
from ..page.quantity import format_bytes, format_count
from ..page.sheet import Sheet
from .machine import Extra, LocalGpu, find_extras, find_local_gpus, installed_version


def describe_installation() -> Page:
    """Put into words what works here; nothing is imported or sent, and no host, user or path is named."""
    catalog, shown = load_catalog(), ("torch", "numpy")
    own = {"wavecast": __version__, "Python": python_version()}
    versions = own | {name: installed_version(name) for name in shown}
    return describe_machine(versions, find_local_gpus(catalog), find_extras(), len(catalog.gpus))


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
