"""The `hosts` command: hosts that `--host` takes by name, or all facts of one."""

from __future__ import annotations

from pathlib import Path

import click

from ...asking.command import WavecastCommand, output_options
from ...asking.output import choose_format, screen_for, write_result
from ...asking.what_if_options import complete_hosts


@click.command("hosts", cls=WavecastCommand, short_help="List the hosts that --host names, or all facts of one.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_hosts)
@output_options("table", "json", "csv")
def hosts(name: str | None, form: str | None, output: Path | None) -> None:
    """List the hosts that --host takes by name; with NAME, all facts of that one and where they come from.

    NAME is a host, a processor, a server or a cloud instance ('p4d.24xlarge'). Speeds are relative to
    h100-node, on which recordings of shapes are replayed. Those of public recordings are known within
    the factor shown; of others only the processor is, and their speed is as much in doubt as that of
    any host. 'wavecast measure --host -o host.json' measures yours, for --host host.json.
    """
    from ....errors import InputError
    from ...host.named import find_host, host_list
    from ...page.terminal import draw_terminal
    from .hosts_page import describe_host, describe_hosts, draw_hosts_csv, draw_hosts_json

    found = None if name is None else find_host(name)
    if name is not None and found is None:
        raise InputError(f"{name!r}: no host is called so; 'wavecast hosts' lists them")
    chosen = host_list() if found is None else (found,)
    kind = choose_format(form, output)
    if kind == "json":
        text = draw_hosts_json(chosen)
    elif kind == "csv":
        text = draw_hosts_csv(chosen)
    else:
        page = describe_hosts(chosen) if found is None else describe_host(found)
        text = draw_terminal(page, screen_for(output))
    write_result(text, output)
