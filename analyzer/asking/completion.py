"""What the shell offers as one types: names of GPUs, of vendors, of archived traces."""

from __future__ import annotations

import click

from ...errors import WavecastError


def complete_gpu_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the catalogued GPUs that hold what was typed, or its slices after a `/`, for the shell's completion."""
    from ...specs.catalog import load_catalog
    from ...specs.variants import slice_names

    base, mark, part = incomplete.partition("/")
    if mark:
        return [f"{base}/{name}" for name in slice_names(load_catalog(), base) if name.startswith(part)]
    typed = incomplete.casefold()
    return [gpu.name for gpu in load_catalog().gpus if typed in gpu.name.casefold()]


def complete_gpu_equals(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return `GPU=` for the catalogued GPUs that hold what was typed; what follows the sign is the user's."""
    return [f"{name}=" for name in complete_gpu_names(context, parameter, incomplete)] if "=" not in incomplete else []


def complete_vendors(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the catalogue's vendors that begin as typed, for the shell's completion."""
    from ...specs.catalog import load_catalog

    known = sorted({gpu.vendor for gpu in load_catalog().gpus})
    return [name for name in known if name.casefold().startswith(incomplete.casefold())]


def complete_archived(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids and tags of the archive DIR that begin as was typed, for the shell's completion."""
    return archived_names(str(context.params.get("directory") or ""), incomplete)


def archived_names(location: str, beginning: str) -> list[str]:
    """Return ids and tags of an archive in a folder; a bucket is not asked between two keys."""
    from ...formats.archive import open_archive

    if not location or "://" in location:
        return []
    try:
        with open_archive(location, say=lambda _text: None) as archive:
            return archive.names(beginning)
    except WavecastError:
        return []
