"""Records every model type of the installed transformers by its default configuration, and counts what is refused.

Usage: python -m benchmarks.check.named_models_survey [--heads causal-lm,ctc] [--only llama,bert | --popular]
           [--most 50] [--resume FILE]

Models have two layers per stack where their configuration says how many, texts 128 tokens, batches two samples.
One training and one inference iteration each, in fp32 unless --precision says otherwise. --resume keeps what was
found in FILE, one JSON object per line, and goes on after it.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import logging
import re
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from wavecast.errors import InputError, WavecastError
from wavecast.tracer.named_models import Settings, record_model

SECONDS_PER_MODEL = 60
TEXT_LENGTH = 128
POPULAR = [
    "albert", "bart", "bert", "blip", "bloom", "clip", "convnext", "deberta-v2", "deepseek_v3", "deit", "detr",
    "dinov2", "distilbert", "electra", "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "gpt_oss", "granite",
    "hubert", "llama", "llava", "mamba", "marian", "mask2former", "mbart", "mistral", "mixtral", "olmo2", "opt",
    "pegasus", "phi3", "qwen2", "qwen2_5_vl", "qwen2_vl", "qwen3", "qwen3_moe", "resnet", "roberta", "segformer",
    "siglip", "stablelm", "swin", "t5", "vit", "wav2vec2", "whisper", "xlnet",
]  # fmt: skip
"""Model types for --popular: written down before they were tried."""
LAYER_COUNTS = re.compile(r"(num(_\w+)?_(hidden_)?layers|(\w+_)?(num_layers|n_layers?|depth|layers))$")
"""Names of numbers of layers in configurations; lists of them, one per stage, are left as they are."""
TOLD = re.compile(r"0x[0-9a-f]+|\d+")
HEADS = {
    "causal-lm": "CAUSAL_LM",
    "masked-lm": "MASKED_LM",
    "seq2seq-lm": "SEQ_TO_SEQ_CAUSAL_LM",
    "sequence-classification": "SEQUENCE_CLASSIFICATION",
    "image-classification": "IMAGE_CLASSIFICATION",
    "speech-ctc": "CTC",
    "speech-seq2seq": "SPEECH_SEQ_2_SEQ",
    "audio-classification": "AUDIO_CLASSIFICATION",
    "image-and-text-pair": "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "image-text-to-text": "IMAGE_TEXT_TO_TEXT",
    "object-detection": "OBJECT_DETECTION",
    "open-vocabulary-detection": "ZERO_SHOT_OBJECT_DETECTION",
    "semantic-segmentation": "SEMANTIC_SEGMENTATION",
    "universal-segmentation": "UNIVERSAL_SEGMENTATION",
    "depth-estimation": "DEPTH_ESTIMATION",
    "video-classification": "VIDEO_CLASSIFICATION",
}


class TooSlowError(BaseException):
    """Ends a model at its time limit; no Exception, so that no library swallows it."""


def list_models(heads: list[str], only: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield head, model type and class name, each class once."""
    auto = import_module("transformers.models.auto.modeling_auto")
    seen: set[str] = set()
    for head in heads:
        for kind, names in getattr(auto, f"MODEL_FOR_{HEADS[head]}_MAPPING_NAMES").items():
            for name in (names,) if isinstance(names, str) else names:
                if name not in seen and (not only or kind in only):
                    seen.add(name)
                    yield head, kind, name


def shrink(config: dict[str, Any], layer_count: int = 2) -> dict[str, Any]:
    """Return a configuration with two layers per stack where it says how many there are."""
    small: dict[str, Any] = {}
    for name, value in ((str(key), item) for key, item in config.items()):
        if isinstance(value, dict):
            small[name] = shrink(value, layer_count)
        elif LAYER_COUNTS.match(name) and isinstance(value, int) and not isinstance(value, bool):
            small[name] = min(value, layer_count)
        else:
            small[name] = value
    return small


def write_config(name: str, folder: Path) -> str:
    """Write the type's default configuration, two layers deep where that is possible, and return its path."""
    transformers = import_module("transformers")
    architecture = getattr(transformers, name)
    config_class = architecture.config_class
    plain = config_class()
    small = shrink(plain.to_dict())
    try:
        config_class.from_dict(small)
        chosen = small
    except Exception:  # noqa: BLE001 - lists of one entry per layer don't fit: the default depth then
        chosen = plain.to_dict()
    chosen = chosen | {"architectures": [name], "model_type": plain.model_type}
    path = folder / "config.json"
    path.write_text(json.dumps(chosen, default=str))
    return str(path)


def try_model(name: str, mode: str, options: dict[str, Any], folder: Path) -> str:
    """Return an empty text where the model was recorded, else the reason in one line."""

    def end(*_signal: Any) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS_PER_MODEL)
    try:
        path = write_config(name, folder)
        reads = inspect.signature(getattr(import_module("transformers"), name).forward).parameters.keys()
        length = TEXT_LENGTH if reads & {"input_ids", "decoder_input_ids"} else None
        try:
            record_model("transformers", path, Settings(mode=mode, sequence_length=length, **options))
        except InputError as error:
            if not str(error).startswith("--sequence-length"):
                raise
            record_model("transformers", path, Settings(mode=mode, **options))  # as many positions as it has
    except WavecastError as error:
        return str(error)
    except TooSlowError:
        return f"not recorded within {SECONDS_PER_MODEL} s"
    except Exception as error:  # noqa: BLE001 - counted
        return f"no default configuration: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return ""


def survey(arguments: argparse.Namespace, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Try each model in each mode, and return one row for each."""
    store: Path | None = arguments.resume
    rows = [json.loads(line) for line in store.read_text().splitlines()] if store and store.is_file() else []
    done = {(row["name"], row["mode"]) for row in rows}
    chosen = list(list_models(arguments.heads, arguments.only))[: arguments.most]
    with tempfile.TemporaryDirectory() as folder:
        for head, kind, name in chosen:
            for mode in ("inference", "training"):
                if (name, mode) in done:
                    continue
                begin = time.perf_counter()
                reason = try_model(name, mode, options, Path(folder))
                seconds = round(time.perf_counter() - begin, 1)
                row = {"head": head, "type": kind, "name": name, "mode": mode, "reason": reason, "seconds": seconds}
                rows.append(row)
                if store:
                    with store.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                if reason or arguments.verbose:
                    print(f"{mode:9} {name}: {reason or 'recorded'} ({seconds} s)", flush=True)
            gc.collect()
    names = {name for _, _, name in chosen}
    return [row for row in rows if row["name"] in names]


def summarise(rows: list[dict[str, Any]]) -> None:
    """Print how many were recorded per head and mode, and the reasons of the others, most frequent first."""
    print(f"\n{'head':28}{'inference':>16}{'training':>16}")
    for head in (*dict.fromkeys(row["head"] for row in rows), "all"):
        cells = []
        for mode in ("inference", "training"):
            own = [row for row in rows if row["mode"] == mode and head in (row["head"], "all")]
            cells.append(f"{sum(not row['reason'] for row in own)} of {len(own)}")
        print(f"{head:28}{cells[0]:>16}{cells[1]:>16}")
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            reason = TOLD.sub("N", row["reason"].replace(row["name"], "MODEL"))
            reasons.setdefault(reason, []).append(row["name"])
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        unique = list(dict.fromkeys(names))
        print(f"{len(names):4} {reason[:170]} [{', '.join(unique[:4])}{', ...' if len(unique) > 4 else ''}]")
    slowest = Counter({f"{row['name']} {row['mode']}": row["seconds"] for row in rows}).most_common(3)
    print(f"slowest: {', '.join(f'{name} {seconds} s' for name, seconds in slowest)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=lambda text: text.split(","), default=list(HEADS), help=", ".join(HEADS))
    parser.add_argument("--only", type=lambda text: set(text.split(",")), default=set(), help="model types")
    parser.add_argument("--popular", dest="only", action="store_const", const=set(POPULAR), help=", ".join(POPULAR))
    parser.add_argument("--most", type=int, help="at most so many classes")
    parser.add_argument("--resume", type=Path, help="rows that were found, kept and completed")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--verbose", action="store_true", help="print also what is recorded")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    import_module("transformers").logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    options = {"batch_size": 2, "precision": arguments.precision}
    rows = survey(arguments, options)
    summarise(rows)


if __name__ == "__main__":
    main()
