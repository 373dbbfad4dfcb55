"""The `serve` command: how a language model is served, on which GPUs, for how much."""

from pathlib import Path
from typing import Any

import click

from ....progress import progress_on_stderr
from ...asking.command import WavecastCommand, output_options, write_answer
from ...asking.declared import options_of
from ...page.formats import REPORT_FORMATS
from .api import ServeOptions


@click.command("serve", cls=WavecastCommand)
@click.argument("model")
@output_options(*REPORT_FORMATS)
@options_of(ServeOptions)
def serve(model: str, form: str | None, output: Path | None, **asked: Any) -> None:
    """Predict how the language model MODEL is served under load, from its sizes alone.

    MODEL is a Hugging Face config.json, a folder that holds one, or a short name (llama-3-70b,
    qwen3-32b, mixtral-8x7b, deepseek-v3, gpt-oss-20b). Says tokens per second, time to the first
    token and per token, cost, and with a rate how many GPUs of what; see docs/reference/serve.md.

    \b
    Examples:
      serve llama-3-70b --precision fp8 --to 2xH200,4xL40S --users 64
      serve llama-3-8b --rate 20 --tpot 50ms
      serve gpt-oss-20b --to 4090
    """
    from .api import serve as predict

    with progress_on_stderr("Searching plans"):
        found = predict(model, **asked)
    write_answer(found, form, output)
