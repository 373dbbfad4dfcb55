"""Write files of fitted constants, and the part of the manifest that lists them.

A file says what its numbers mean, which command wrote it, from which files (by SHA-256), and how many points each
number comes from. It holds no date and no path: the same command on the same files writes the same bytes.

Where the values in use are older than the files that a program reads today, or than the program itself, they may be
kept: the file then says why, and what the program gives instead.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import orjson

from ...errors import InputError, WavecastError
from ...formats.files.constants import ENTRIES, FOLDER, MANIFEST, read_constants
from ...formats.files.open import write_atomic
from ...records import dataclass

F = TypeVar("F", bound=Callable[..., Any])
LINE_LENGTH: Final = 120
PACKAGE: Final = "python -m wavecast.mlp_weights.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstants:
    """Hold what a program fitted."""

    values: Mapping[str, Any]
    counts: Mapping[str, Any]
    """Points behind the values, by part."""
    inputs: Mapping[str, str]
    """SHA-256 of each file read, by its path in the data directory."""


Fitted = tuple[Mapping[str, Any], Mapping[str, Any], Sequence[Path]]
"""Values, the points behind them by part, and the files that they come from."""
OPTIONAL: Final = ("torch", "torchvision", "scipy", "pyarrow")
"""Modules that some programs need and an installation may lack."""


class Program(click.Command):
    """Run a program whose own errors are one line each."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; exit with the error's code where it is one of ours."""
        try:
            return super().invoke(ctx)
        except WavecastError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            click.echo(f"Error: this program needs {error.name}: pip install {error.name}", err=True)
            ctx.exit(InputError.exit_code)


def data_argument(command: F) -> F:
    """Give a command the directory of the measurements."""
    return click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))(command)


def write_options(command: F) -> F:
    """Give a command `--write` and `--keep`."""
    keep = click.option(
        "--keep", metavar="REASON", help="With --write: leave the values as they are, say why, note what was fitted."
    )
    return click.option("--write", is_flag=True, help="Write the file that the analyzer reads.")(keep(command))


def program(
    name: str, about: str, doc: str | None, *options: Callable[[Any], Any], has_data: bool = True
) -> Callable[[Callable[..., Fitted]], click.Command]:
    """Return what makes a command of a function that fits constants: it prints them, and saves them with `--write`."""

    def make(fit: Callable[..., Fitted]) -> click.Command:
        def run(*, write: bool, keep: str | None, **given: Any) -> None:
            values, counts, paths = fit(**given)
            if write:
                inputs = hash_files(given["data"], paths) if paths else {}
                save_constants(name, about, FittedConstants(values=values, counts=counts, inputs=inputs), keep=keep)

        command = write_options(run)
        for option in (*options, *([data_argument] if has_data else [])):
            command = option(command)
        return click.command("main", cls=Program, help=doc)(command)

    return make


def hash_files(data: Path, paths: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in the data directory, sorted."""
    return {path.relative_to(data).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def save_constants(
    name: str, about: str, fitted: FittedConstants, *, keep: str | None = None, module: str = "", folder: Path = FOLDER
) -> None:
    """Write a file of constants and its manifest entry, each atomically; with `keep`, the values in use stay.

    `module` is the program that fitted them; default: the one of their name beside this module.

    Raises InputError where there is nothing to keep.
    """
    command = f"python -m {module}" if module else f"{PACKAGE}.{name}"
    arguments = [command, *(["DATA"] if fitted.inputs else []), "--write"]
    content: dict[str, Any] = {
        "format": "wavecast.constants",
        "version": "1.0",
        "about": about,
        "command": " ".join(arguments),
        "inputs": dict(fitted.inputs),
        "counts": dict(fitted.counts),
    }
    fitted_values = json.loads(json.dumps(fitted.values))
    if keep is None:
        content["values"] = fitted_values
    else:
        values = read_constants(name, folder)
        content |= {"kept": keep, "fitted_instead": difference(values, fitted_values), "values": values}
    data = render(content).encode()
    write_atomic(folder / f"{name}.json", data + b"\n")
    _list_in_manifest(name, data + b"\n", folder)


def difference(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `others` that `values` has otherwise, or not at all; null where `others` has none."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys((*values, *others)):
        mine, other = values.get(key), others.get(key)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            if inner := difference(mine, other):
                found[key] = inner
        elif mine != other:
            found[key] = other
    return found


def render(value: Any, indent: int = 0) -> str:
    """Return JSON in which every object that fits on a line takes one, so that changes can be read."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, Mapping) or not value or (indent and indent + len(text) <= LINE_LENGTH):
        return text
    inside = " " * (indent + 2)
    rows = (f"{inside}{json.dumps(key)}: {render(item, indent + 2)}" for key, item in value.items())
    return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"


def _list_in_manifest(name: str, data: bytes, folder: Path) -> None:
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"{path}: no manifest to list {name} in")
    manifest = orjson.loads(path.read_bytes())
    entries = manifest.get(ENTRIES, {}) | {name: {"sha256": hashlib.sha256(data).hexdigest()}}
    manifest[ENTRIES] = dict(sorted(entries.items()))
    write_atomic(path, orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n")
    read_constants.cache_clear()
