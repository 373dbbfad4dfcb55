"""The `doctor` command: what is installed, which GPU is seen, what each extra adds."""

from __future__ import annotations

from pathlib import Path

import click

from ...asking.command import WavecastCommand, output_options
from ...asking.output import choose_format, screen_for, write_result


@click.command("doctor", cls=WavecastCommand, short_help="Say what is installed and which GPU is seen.")
@output_options("table", "json")
def doctor(form: str | None, output: Path | None) -> None:
    """Say what of wavecast works here: versions, the GPUs that this machine has, and what each extra adds.

    GPUs are those that nvidia-smi or rocm-smi tell of. Nothing is imported or sent; the result
    names no host, user or path.
    """
    import platform

    from ....specs.catalog import load_catalog
    from ....specs.local import find_extras, find_local_gpus, installed_version
    from ....version import __version__
    from ...page.terminal import draw_terminal
    from .page import describe_machine, draw_machine_json

    catalog = load_catalog()
    versions = {
        "wavecast": __version__,
        "Python": platform.python_version(),
        "torch": installed_version("torch"),
        "numpy": installed_version("numpy"),
    }
    gpus, extras = find_local_gpus(catalog), find_extras()
    if choose_format(form, output) == "json":
        write_result(draw_machine_json(versions, gpus, extras, len(catalog.gpus)), output)
    else:
        page = describe_machine(versions, gpus, extras, len(catalog.gpus))
        write_result(draw_terminal(page, screen_for(output)), output)
