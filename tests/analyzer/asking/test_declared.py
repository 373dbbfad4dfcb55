"""An option is declared once: what commands call alike is alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import click
from wavecast.__main__ import wavecast as program

ON_THE_GPU = ("measure", "record")
"""Programs of the machine that has the GPU: what they call like a what-if is not asked but done."""
OWN = {
    ("catalog", "--cluster-file"), ("catalog", "--nccl-tests"), ("batch", "--format"), ("batch", "--output"),
    ("archive export", "--output"), ("convert", "--iteration"),
    ("replay", "--iteration"), ("convert", "--to"), ("serve", "--precision"),
}  # fmt: skip
"""Where an option of many commands means something of its own."""
OF_EACH = {"--gpus", "--max-error", "--note", "--on", "--ops", "--plan", "--sort", "--timeline", "--to", "--top"}
"""What each command that has it says in its own words: what is listed, gated or named."""
OF_ONE_SORT = {"--format"}
"""What takes other choices in each command."""


def list_options(group: click.Group = program, name: str = "") -> Iterator[tuple[str, click.Option]]:
    """Yield the options of every command, with the command's name."""
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        called = f"{name} {word}".strip()
        if isinstance(command, click.Group):
            yield from list_options(command, called)
        elif called not in ON_THE_GPU:
            yield from ((called, item) for item in command.params if isinstance(item, click.Option))


def test_options_that_commands_share_have_one_help_and_one_type() -> None:
    known: dict[str, dict[tuple[object, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for command, item in list_options():
        word = item.opts[-1]
        if (command, word) not in OWN and word not in OF_EACH:
            kind = None if word in OF_ONE_SORT else str(item.type.to_info_dict())
            known[word][item.help, kind, item.name, item.is_flag].append(command)
    assert {word: dict(found) for word, found in known.items() if len(found) > 1} == {}
    assert sum(len(commands) > 1 for found in known.values() for commands in found.values()) > 20


def test_what_is_let_off_is_still_an_option_and_says_something_else() -> None:
    said: dict[str, dict[str, str | None]] = defaultdict(dict)
    for command, item in list_options():
        said[item.opts[-1]][command] = item.help
    for command, word in OWN:
        own = said[word].pop(command)
        assert own not in said[word].values(), (command, word)
    for word in OF_EACH:
        assert len(set(said[word].values())) > 1, word
