"""What docs/reference/cli.md says of each command, from the options that the code declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from textwrap import dedent

import click
from wavecast.__main__ import COMMAND_GROUPS, COMMANDS, wavecast
from wavecast.analyzer.asking.declared import GroupedOption, HelpPart

MAIN = "analyze"
"""The command whose options others take, too."""
_USUAL = ("help", "version")
_AS_IT_IS = "\b"
"""What click marks a paragraph with whose lines stay as they are."""
_CHOICES = re.compile(r" \[([^\]]*\|[^\]]*)\]$")
_Record = tuple[str, str]


def command_parts() -> Mapping[str, Callable[[], str]]:
    """Return what writes each command's part, and the overview, by its name in the page."""
    parts = {f"command {name}": partial(describe, name) for name in COMMANDS}
    return {"commands": overview, **parts}


def overview() -> str:
    """Return the table of all commands under their headings."""
    rows = ["| | command | does |", "|---|---|---|"]
    for heading, commands in COMMAND_GROUPS.items():
        for index, (name, does) in enumerate(commands.items()):
            rows.append(f"| {'' if index else heading} | [`wavecast {name}`](#{_anchor(name)}) | {does} |")
    return "\n".join(rows) + "\n"


def describe(name: str) -> str:
    """Return a command's usage, what its help says, and its options."""
    command, context = _command(name)
    if isinstance(command, click.Group):
        rows = [
            (f"wavecast {name} {inner}", found.get_short_help_str(200)) for inner, found in command.commands.items()
        ]
        return f"{_help(command)}\n\n{_table('command', rows)}"
    usage = " ".join(["wavecast", name, *command.collect_usage_pieces(context)])
    lines = [f"```text\n{usage}\n```\n\n{_help(command)}\n"]
    shared = set(_records(MAIN).values()) if name != MAIN else set()
    for heading, records in _grouped(command, context).items():
        own = [record for record in records if record not in shared]
        if own:
            lines.append(_table(heading, own))
    also = [record for records in _grouped(command, context).values() for record in records if record in shared]
    if also:
        names = ", ".join(f"`{_named(declaration)}`" for declaration, _ in also)
        lines.append(f"As for [`analyze`](#analyze): {names}.\n")
    return "\n".join(lines)


def _command(name: str) -> tuple[click.Command, click.Context]:
    context = click.Context(wavecast, info_name="wavecast", **wavecast.context_settings)
    command = wavecast.get_command(context, name)
    if command is None:
        raise KeyError(name)
    return command, click.Context(command, info_name=name, parent=context, **command.context_settings)


def _records(name: str) -> dict[str, _Record]:
    """Return how each option is written and what it means, by its name."""
    command, context = _command(name)
    found = ((item.name or "", item.get_help_record(context)) for item in _options(command))
    return {key: record for key, record in found if record is not None}


def _options(command: click.Command) -> Iterator[click.Option]:
    return (item for item in command.params if isinstance(item, click.Option) and item.name not in _USUAL)


def _grouped(command: click.Command, context: click.Context) -> dict[str, list[_Record]]:
    """Return the options under the headings that the help has, in its order."""
    parts: dict[str, list[_Record]] = {"Options": [], **{group: [] for group in HelpPart}}
    for item in _options(command):
        record = item.get_help_record(context)
        if record is not None:
            parts[item.group if isinstance(item, GroupedOption) else "Options"].append(record)
    return parts


def _table(heading: str, rows: list[_Record]) -> str:
    told = ((_named(declaration), _plain(meaning) + _chosen(declaration)) for declaration, meaning in rows)
    cells = ("| `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in row)) for row in told)
    return "\n".join([f"| {heading} | |", "|---|---|", *cells]) + "\n"


def _named(declaration: str) -> str:
    """Return how an option is written, a list of its values shortened to NAME."""
    return _CHOICES.sub(" NAME", declaration)


def _chosen(declaration: str) -> str:
    """Return the values that an option may have, as a sentence."""
    found = _CHOICES.search(declaration)
    return f" One of {', '.join(f'`{value}`' for value in found[1].split('|'))}." if found else ""


def _help(command: click.Command) -> str:
    """Return the help's paragraphs; what it keeps as it is stands in a block."""
    text = command.help or ""
    paragraphs = [
        f"```text\n{dedent(part.partition(_AS_IT_IS)[2]).strip()}\n```" if _AS_IT_IS in part else _plain(part)
        for part in re.split(r"\n[^\S\n]*\n", text.strip())
    ]
    return "\n\n".join(paragraphs)


def _plain(text: str) -> str:
    """Return a help text as Markdown: options, names and patterns are code, what click adds is a sentence."""
    text = re.sub(r"(?:; |\[)[^;\[\]]*x[<>]=?[^\]]*\]", lambda found: "]" if found[0][0] == ";" else "", text)
    text = re.sub(r"\s*\[default: ([^\]]*)\]", r" Default: \1.", " ".join(text.split()))
    return re.sub(r"(?<![\w/-])(--?[a-z][\w-]*|[\w./=\'-]*\*[\w./*\'-]*|[A-Za-z]+(?:_\w+)+)", r"`\1`", text).strip()


def _anchor(name: str) -> str:
    return name if name == MAIN else f"wavecast-{name}"
