"""What is installed here: GPUs as their drivers' tools name them, extras, catalogue and weights."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from platform import python_version
from typing import Final

from ...formats.trace.printable import clean_text
from ...formats.trace.version import __version__
from ...records import dataclass
from ...specs.catalog import load_catalog
from ...specs.gpu import Catalog
from ...specs.match import match_device
from ..page.columns import text_column
from ..page.page import Page, build_page, facts
from ..page.quantity import format_bytes, format_count
from ..page.sheet import Sheet

PACKAGE: Final = "wavecast"
EXTRAS: Final[Mapping[str, str]] = {
    "tracer": "record: traces of scripts and models; rerun",
    "measure": "measure: times ops on the GPU at hand",
    "score": "score, --calibration: reads tables of measurements",
    "html": "-o report.html: reports with charts, in one file",
    "s3": "archive: keeps traces in a bucket of S3",
    "gcs": "archive: keeps traces in a bucket of Google Cloud Storage",
    "azure": "archive: keeps traces in a container of Azure",
    "zstd": "reads zstd-packed traces (built in from Python 3.14)",
    "batch": "batch: writes Parquet tables",
    "fleet": "batch --weights: the cheapest mix of GPUs",
    "train": "mlp_weights.train: fits the models again",
}
"""What each extra adds, of those that are for users."""
_TOOL_SECONDS: Final = 10
_FIELDS: Final = ("name", "memory.total", "driver_version", "compute_cap")
_NVIDIA: Final = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_AMD: Final = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
_REQUIREMENT: Final = re.compile(
    r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([0-9.]+))?.*extra\s*==\s*['\"]([^'\"]+)['\"]"
)
"""Name, least version and extra of a requirement as a package's metadata holds it."""
_OLDER_PYTHON: Final = re.compile(r"python_version\s*<\s*['\"]([0-9.]+)['\"]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """Describe a GPU of this machine."""

    name: str
    memory_bytes: int | None
    driver_version: str | None
    catalogued: str | None
    """The entry that it is; None where the catalogue does not hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Say whether an extra can be used, and what it adds."""

    name: str
    adds: str
    missing: tuple[str, ...]
    """Requirements that are not installed, or are too old."""


def find_local_gpus(catalog: Catalog) -> tuple[LocalGpu, ...]:
    """Return the GPUs of this machine; none where no driver's tool tells of any.

    >>> [gpu.catalogued for gpu in find_local_gpus(catalog)]  # a machine without a GPU
    []
    """
    return tuple(_nvidia_gpus(catalog, _run(_NVIDIA))) + tuple(_amd_gpus(catalog, _run(_AMD)))


def find_extras() -> tuple[Extra, ...]:
    """Return the extras for users, each with what of it is missing."""
    try:
        listed = requires(PACKAGE) or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        listed = []
    missing: dict[str, list[str]] = {name: [] for name in EXTRAS}
    for text in listed:
        found = _REQUIREMENT.match(text)
        if found is None or found[3] not in missing or _is_built_in(text):
            continue
        if not _is_installed(found[1], found[2]):
            missing[found[3]].append(f"{found[1]}>={found[2]}" if found[2] else found[1])
    return tuple(Extra(name=name, adds=adds, missing=tuple(missing[name])) for name, adds in EXTRAS.items())


def _installed_version(package: str) -> str | None:
    """Return the version of a package that is installed; None where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_installed(package: str, least: str | None) -> bool:
    found = _installed_version(package)
    return found is not None and (least is None or _numbers(found) >= _numbers(least))


def _is_built_in(requirement: str) -> bool:
    """Say whether a requirement is for older Pythons only."""
    found = _OLDER_PYTHON.search(requirement)
    return found is not None and sys.version_info[:2] >= _numbers(found[1])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _run(command: Sequence[str]) -> str:
    """Return what a driver's tool prints; nothing where it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _nvidia_gpus(catalog: Catalog, text: str) -> Iterator[LocalGpu]:
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != len(_FIELDS):
            continue
        name, memory, driver, capability = row
        memory_bytes = int(memory) << 20 if memory.isdecimal() else None
        yield _local_gpu(catalog, name, memory_bytes, driver, capability)


def _amd_gpus(catalog: Catalog, text: str) -> Iterator[LocalGpu]:
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return
    cards = document if isinstance(document, dict) else {}
    system = cards.get("system")
    driver = str(system.get("Driver version")) if isinstance(system, dict) else None
    for key, card in sorted(cards.items()):
        if key.startswith("card") and isinstance(card, dict):
            name = card.get("Card Series") or card.get("Card series") or card.get("Card Model") or "unknown"
            memory = str(card.get("VRAM Total Memory (B)", ""))
            yield _local_gpu(catalog, str(name), int(memory) if memory.isdecimal() else None, driver, None)


def _local_gpu(
    catalog: Catalog, name: str, memory_bytes: int | None, driver: str | None, capability: str | None
) -> LocalGpu:
    known = match_device(catalog, name, sm_count=None, memory_bytes=memory_bytes, compute_capability=capability)
    return LocalGpu(
        name=name, memory_bytes=memory_bytes, driver_version=driver, catalogued=None if known is None else known.name
    )


def describe_installation() -> Page:
    """Put into words what works here; nothing is imported or sent, and no host, user or path is named."""
    catalog, shown = load_catalog(), ("torch", "numpy")
    own = {"wavecast": __version__, "Python": python_version()}
    versions = own | {name: _installed_version(name) for name in shown}
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
