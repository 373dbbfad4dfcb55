"""The `archive` commands: keep traces, find them again, check that they are whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ....errors import InputError, OutputError
from ....progress import progress_on_stderr, tell
from ...asking.choice import complete_archived
from ...asking.command import FAILED_EXIT_CODE, WavecastCommand, output_options
from ...asking.declared import options_of
from ...asking.inputs import Recover
from ...asking.output import OutputPath, choose_format, screen_for, write_result

if TYPE_CHECKING:
    from ....formats.archive import Archive, Entry

_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DIRECTORY = click.argument("directory", metavar="DIR")
_TAGS = click.option("--tag", "tags", multiple=True, metavar="TAG", help="Tag what is added; repeat for several.")


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.commands)


@click.group("archive", cls=_InOrder, context_settings=_SETTINGS)
def archive() -> None:
    """Keep traces in an archive: each once, by its content, with what it holds, tags and notes.

    Every command that reads a trace takes one of an archive: archive://DIR#ID, where ID is the
    beginning of an id or a tag.

    \b
    Examples:
      wavecast archive init traces/
      wavecast archive add traces/ run.json.gz --tag nightly --note "v2"
      wavecast archive find traces/ "model~llama gpu~h100 batch>=8"
      analyze archive://traces#nightly --to h100
    """


@archive.command("init", cls=WavecastCommand, short_help="Make an archive.")
@_DIRECTORY
def init(directory: str) -> None:
    """Make an archive in the folder DIR; one that is there stays as it is."""
    from ....formats.archive import init_archive

    made = init_archive(directory)
    write_result(f"{directory}: {'an empty archive' if made else 'an archive already'}\n", None)


@archive.command("add", cls=WavecastCommand, short_help="Add traces.")
@_DIRECTORY
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@_TAGS
@click.option("--note", metavar="TEXT", help="A note on them, of up to 1,000 characters.")
@options_of(Recover)
def add(directory: str, traces: tuple[str, ...], tags: tuple[str, ...], note: str | None, recover: bool) -> None:
    """Add each TRACE (whatever 'analyze' reads) to the archive DIR, without what is private.

    Prints the id of each. A trace that is there already only gets the tags and the note.
    """
    with _open(directory) as found:
        for place in traces:
            entry, is_new = _add(found, place, tags, note, recover)
            write_result(f"{entry.short_id}  {'added' if is_new else 'there already'}  {place}\n", None)


@archive.command("import", cls=WavecastCommand, short_help="Add all traces of folders.")
@_DIRECTORY
@click.argument("places", metavar="FILE|FOLDER|PATTERN...", nargs=-1, required=True)
@_TAGS
@options_of(Recover)
@click.pass_context
def import_(
    context: click.Context, directory: str, places: tuple[str, ...], tags: tuple[str, ...], recover: bool
) -> None:
    """Add every trace that files, folders (with all below them) and patterns hold to the archive DIR.

    What is no trace is passed over. What cannot be read is told with the reason; then the exit
    status is 1.
    """
    from ..batch.inputs import find_inputs

    wanted = find_inputs(places)
    failed: list[str] = []
    added = there = 0
    with _open(directory) as found, progress_on_stderr("Adding traces"):
        for number, item in enumerate(wanted.inputs, 1):
            try:
                _, is_new = _add(found, item.location, tags, None, recover)
                added, there = added + is_new, there + (not is_new)
            except (InputError, MemoryError) as error:
                failed.append(f"{item.name}: {str(error).removeprefix(f'{item.location}: ') or 'out of memory'}")
            tell(item.name, number, len(wanted.inputs))
    _tell_skipped([f"{item.name}: {item.reason}" for item in wanted.skipped], "passed over")
    _tell_skipped(failed, "failed")
    write_result(f"{directory}: {added:,} added, {there:,} there already, {len(failed):,} failed\n", None)
    if failed:
        context.exit(FAILED_EXIT_CODE)


@archive.command("list", cls=WavecastCommand, short_help="List the traces.")
@_DIRECTORY
@output_options("table", "json", "csv")
def list_(directory: str, form: str | None, output: Path | None) -> None:
    """List all traces of the archive DIR, the newest first."""
    _write_entries(directory, "", form, output)


@archive.command("find", cls=WavecastCommand, short_help="List the traces that a query means.")
@_DIRECTORY
@click.argument("query", metavar="QUERY", nargs=-1)
@output_options("table", "json", "csv")
def find(directory: str, query: tuple[str, ...], form: str | None, output: Path | None) -> None:
    """List the traces of the archive DIR for which all words of QUERY hold: "model~llama gpu=h100 batch>=8".

    A word is a field, an operator (= != ~ < <= > >=; ~ is "contains") and a value, in quotes where
    it has blanks. Times and sizes take units: time<50ms size>1MB.
    """
    _write_entries(directory, " ".join(query), form, output)


@archive.command("show", cls=WavecastCommand, short_help="Show what the archive knows of a trace.")
@_DIRECTORY
@click.argument("name", metavar="ID", shell_complete=complete_archived)
@output_options("table", "json")
def show(directory: str, name: str, form: str | None, output: Path | None) -> None:
    """Show what the archive DIR knows of one trace; ID is the beginning of its id, or a tag."""
    from ...page.terminal import draw_terminal
    from .page import describe_entry, draw_entries_json

    with _open(directory) as found:
        entry = found.find(name)
    if choose_format(form, output) == "json":
        write_result(draw_entries_json([entry]), output)
    else:
        write_result(draw_terminal(describe_entry(entry), screen_for(output)), output)


@archive.command(
    "tag",
    cls=WavecastCommand,
    short_help="Tag a trace, or take tags away.",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@_DIRECTORY
@click.argument("name", metavar="ID", shell_complete=complete_archived)
@click.argument("changes", metavar="+TAG|-TAG...", nargs=-1)
@click.option("--note", metavar="TEXT", help="Set its note; an empty one takes it away.")
def tag(directory: str, name: str, changes: tuple[str, ...], note: str | None) -> None:
    """Tag the trace ID of the archive DIR (+nightly), or take tags away (-nightly)."""
    for change in changes:
        if change[:1] not in ("+", "-"):
            raise InputError(f"{change[:80]!r}: expected +TAG to add a tag or -TAG to take one away")
    with _open(directory) as found:
        entry = found.tag(
            name,
            add=[change[1:] for change in changes if change[0] == "+"],
            remove=[change[1:] for change in changes if change[0] == "-"],
            note=note,
        )
        write_result(f"{entry.short_id}  {' '.join(entry.tags) or 'no tags'}\n", None)


@archive.command("export", cls=WavecastCommand, short_help="Write traces to files.")
@_DIRECTORY
@click.argument("names", metavar="ID...", nargs=-1, required=True, shell_complete=complete_archived)
@click.option(
    "-o", "--output", type=OutputPath(path_type=Path), required=True, metavar="FILE|FOLDER", help="Where they go."
)
def export(directory: str, names: tuple[str, ...], output: Path) -> None:
    """Write traces of the archive DIR to a file, or several to a folder, as <id>.json.gz."""
    from ....formats.files.open import save_trace

    is_file = output.name.endswith((".json", ".json.gz"))
    if is_file and len(names) > 1:
        raise OutputError(f"{output}: {len(names)} traces need a folder, which must be there")
    if not is_file and not output.is_dir():
        raise OutputError(f"{output}: expected a name that ends in .json or .json.gz, or a folder that is there")
    with _open(directory) as found:
        entries = [found.find(name) for name in names]
        for entry in entries:
            target = output if is_file else output / f"{entry.short_id}.json.gz"
            save_trace(found.load(entry.id), target)
            write_result(f"{entry.short_id}  {target}\n", None)


@archive.command("verify", cls=WavecastCommand, short_help="Check that every trace is whole.")
@_DIRECTORY
@click.option("--deep", is_flag=True, help="Also unpack and decode each trace.")
@output_options("table", "json")
@click.pass_context
def verify(context: click.Context, directory: str, deep: bool, form: str | None, output: Path | None) -> None:
    """Check every file of the archive DIR by its hash, and that entries and files agree.

    Each thing that is damaged, missing or not the archive's is told by name. The exit status is 1
    where anything is lost.
    """
    from ....formats.archive.verify import verify as check
    from ...page.terminal import draw_terminal
    from .page import describe_verification, draw_verification_json

    begin_s = time.monotonic()
    with _open(directory) as found, progress_on_stderr("Checking"):
        result = check(found, deep=deep)
    seconds = time.monotonic() - begin_s
    if choose_format(form, output) == "json":
        write_result(draw_verification_json(result), output)
    else:
        page = describe_verification(result, directory, seconds)
        write_result(draw_terminal(page, screen_for(output)), output)
    if not result.is_sound:
        context.exit(FAILED_EXIT_CODE)


@archive.command("prune", cls=WavecastCommand, short_help="Remove traces, and files that nothing names.")
@_DIRECTORY
@click.argument("query", metavar="QUERY", nargs=-1)
@click.option("--keep-tagged", is_flag=True, help="Keep what has a tag.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune(directory: str, query: tuple[str, ...], keep_tagged: bool, dry_run: bool) -> None:
    """Remove the traces that QUERY means from the archive DIR; without one, files that no entry names.

    Such files are left by an 'add' that was killed; they are removed when they are a day old.
    """
    from ...recorded.devices import names_of_gpu

    with _open(directory) as found:
        text = " ".join(query)
        meant = found.entries(text, gpu_names=names_of_gpu) if text.strip() else []
        chosen = [entry for entry in meant if not (keep_tagged and entry.tags)]
        for entry in chosen:
            if not dry_run:
                found.remove(entry.id)
            write_result(f"{entry.short_id}  {'would be removed' if dry_run else 'removed'}\n", None)
        if dry_run:
            write_result(f"{len(chosen):,} traces, and of files that no entry names {len(found.unnamed()):,}\n", None)
            return
        swept = found.sweep()
        write_result(f"{len(chosen):,} traces removed, and {len(swept):,} files that no entry named\n", None)


@archive.command("repair", cls=WavecastCommand, short_help="Make entries again from the files.")
@_DIRECTORY
def repair(directory: str) -> None:
    """Make damaged entries of the archive DIR again, and give files without an entry one.

    Tags and notes that were lost stay lost.
    """
    from ....formats.archive.making import repair_archive

    ids = repair_archive(directory, say=_tell)
    write_result(f"{directory}: {len(ids):,} traces have an entry again\n", None)


def _open(directory: str) -> Archive:
    from ....formats.archive import open_archive

    return open_archive(directory, say=_tell)


def _tell(text: str) -> None:
    from ....formats.trace.printable import clean_text

    click.echo(f"Note: {clean_text(text)}", err=True)


def _add(found: Archive, place: str, tags: Sequence[str], note: str | None, recover: bool) -> tuple[Entry, bool]:
    from ....formats.archive.describe import Provenance, find_provenance
    from ....formats.files.open import load_trace
    from ....formats.files.reference import is_reference

    trace = load_trace(place, recover=recover)
    origin = Provenance() if is_reference(place) else find_provenance(place)
    return found.add(trace, tags=tags, note=note, provenance=origin)


def _write_entries(directory: str, query: str, form: str | None, output: Path | None) -> None:
    from ...page.terminal import draw_terminal
    from ...recorded.devices import names_of_gpu
    from . import page as drawn

    with _open(directory) as found:
        entries = found.entries(query, gpu_names=names_of_gpu)
    writers: dict[str, Callable[[], str]] = {
        "json": lambda: drawn.draw_entries_json(entries),
        "csv": lambda: drawn.draw_entries_csv(entries),
        "table": lambda: draw_terminal(drawn.describe_entries(entries), screen_for(output)),
    }
    write_result(writers[choose_format(form, output)](), output)


def _tell_skipped(lines: Sequence[str], what: str) -> None:
    from ....formats.trace.printable import clean_text

    for line in lines:
        click.echo(f"{what}: {clean_text(line)}", err=True)
