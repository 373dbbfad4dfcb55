"""Retrain every op model: `python -m wavecast.mlp_weights.train DATA...`."""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ...analyzer.models.store import FOLDER
from ...errors import InputError, WavecastError
from .driver import PRIORS, RECIPES, store_priors, train_models

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Workers compute on one thread each: sums in another order would give other weights."""


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--model", "models", multiple=True, type=click.Choice(sorted(RECIPES)), help="Only these (default: all).")
@click.option(
    "--output", "folder", type=click.Path(file_okay=False, path_type=Path), default=FOLDER, show_default=False
)
@click.option("--jobs", default=2, show_default=True, help="Fits side by side.")
def main(data: tuple[Path, ...], models: tuple[str, ...], folder: Path, jobs: int) -> None:
    """Retrain the op models from the measurement tables in each DATA and write weights and manifest.

    DATA is a directory of tables or a file of `wavecast measure`.
    The same tables and library versions give the same weights.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        _require("pyarrow", "scipy", "torch")
        folder.mkdir(parents=True, exist_ok=True)
        for name in PRIORS if not models else ():
            store_priors(name, folder)
        for name, entry in train_models(models or RECIPES, data, folder, jobs):
            click.echo(describe(name, entry))
    except WavecastError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


def _require(*modules: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise InputError(f"training needs {', '.join(missing)}: pip install 'wavecast[train]'")


def describe(name: str, entry: Mapping[str, Any]) -> str:
    """Return a model's errors on GPUs that its weights never saw."""
    errors = ", ".join(
        f"{gpu} {found['mape']:.1%} / {found['mape_over_20us']:.1%}" for gpu, found in entry["held_out_errors"].items()
    )
    return f"{name}: MAPE on each GPU unseen, all sizes / over 20 us: {errors}"


if __name__ == "__main__":
    main()
