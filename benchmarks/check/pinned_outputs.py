"""Whether the command line still prints what it printed: byte for byte, for every sample under every what-if.

Run: python -m benchmarks.check.pinned_outputs DIR --write     # before a change that should change nothing
     python -m benchmarks.check.pinned_outputs DIR             # after it: lists what differs, exit status 1
     … --public DATA                                           # with public traces, pairs of them, and the score

DIR holds one compressed file per call. Floating-point sums differ between machines and libraries, so DIR is for the
machine that wrote it and is not kept in the repository.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from multiprocessing import Pool
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHAT_IFS = {
    "plain": [],
    "batch": ["--batch", "24"],
    "bf16": ["--precision", "bf16"],
    "fp16": ["--precision", "fp16"],
    "tf32": ["--precision", "tf32"],
    "fp8": ["--precision", "fp8"],
    "cuda_graph": ["--cuda-graph"],
    "fused": ["--fuse-elementwise"],
    "cpu_speed": ["--host", "1.7"],
    "all": ["--batch", "24", "--precision", "bf16", "--cuda-graph", "--fuse-elementwise", "--host", "0.8"],
}
PUBLIC_WHAT_IFS = ("plain", "batch", "bf16", "cuda_graph", "fused", "cpu_speed")
FORMATS = {form: ["--format", form] for form in ("json", "csv", "table", "markdown", "html")}
CHEAP = ("json",)
"""What is asked of every what-if; the unchanged iteration is asked in all forms."""
PAIRS = (
    ("h100_vit_small_inference", "mi300x_vit_small_inference"),
    ("mi300x_bert_small_inference", "h100_bert_small_inference"),
)
LINES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Call:
    """Name a call of the command line; `{out}` in its words is a file whose content counts."""

    name: str
    words: tuple[str, ...]
    columns: int | None = None


def main() -> None:
    """Write or compare every call's output."""
    options = _options()
    calls = [call for call in _calls(options.public) if re.search(options.only, call.name)]
    options.folder.mkdir(parents=True, exist_ok=True)
    with Pool(options.jobs) as pool:
        results = pool.imap_unordered(_answer, calls, chunksize=4)
        differing = sorted(name for name, text in results if not _agrees(options, name, text))
    if options.write:
        print(f"{len(calls)} outputs written")
        return
    print(f"{len(differing)} of {len(calls)} outputs differ", *differing, sep="\n  ")
    sys.exit(bool(differing))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the outputs instead of comparing")
    parser.add_argument("--public", type=Path, help="directory of public measurements and traces")
    parser.add_argument("--only", default="", help="regular expression that a call's name must match")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args()


def _calls(public: Path | None) -> Iterator[Call]:
    for path in sorted((ROOT / "samples").glob("*.json.gz")):
        yield from _calls_on(path, WHAT_IFS)
    yield from _calls_of_every_command(ROOT / "samples")
    if public is None:
        return
    traces = public / "traces"
    for path in sorted(traces.glob("*.json.gz")):
        yield from _calls_on(path, PUBLIC_WHAT_IFS)
        yield from _calls_on_measured(path)
    for path in sorted((*(traces / "odd").glob("*.gz"), *(traces / "other").glob("*.gz"))):
        yield Call(f"{path.name}-odd", ("analyze", str(path)))
    ranks = [str(traces / f"v100_dlrm_training_rank{rank}.json.gz") for rank in (0, 1)]
    for form, form_words in FORMATS.items():
        yield Call(f"every-ranks-{form}", ("ranks", *ranks, "--to", "A100-SXM-80GB", *form_words))
        yield Call(f"every-shard-ranks-{form}", ("shard", ranks[0], "--to", "H100-SXM", "--gpus", "8", *form_words))
    for source, target in PAIRS:
        for form in ("table", "json", "markdown"):
            words = ("validate", *(str(traces / f"{name}.json.gz") for name in (source, target)), "--format", form)
            yield Call(f"{source}-validate-{form}", words)
    for form in ("table", "json", "csv"):
        yield Call(f"score-{form}", ("score", str(public), "--leave-out", "chips", "--format", form))
    yield Call("score-plain", ("score", str(public)))


def _calls_on(path: Path, what_ifs: Iterable[str]) -> Iterator[Call]:
    name = path.name.split(".")[0]
    for what_if in what_ifs:
        for form, words in FORMATS.items():
            if what_if != "plain" and form not in CHEAP:
                continue
            yield Call(f"{name}-{what_if}-{form}", ("analyze", str(path), *WHAT_IFS[what_if], *words))
    yield Call(f"{name}-ops", ("analyze", str(path), "--to", "l40s", "--ops", "--format", "markdown"))
    yield Call(f"{name}-narrow", ("analyze", str(path), "--to", "h100", "--to", "l40s"), columns=80)
    timeline = ("analyze", str(path), "--to", "l40s", "--format", "csv", "--timeline", "{out}.json")
    yield Call(f"{name}-timeline", timeline)
    for form in ("table", "json"):
        yield Call(f"{name}-show-{form}", ("show", str(path), "--format", form))
    for form in ("graphml", "json", "dot"):
        kind = "graph-json" if form == "json" else form
        yield Call(f"{name}-graph-{form}", ("convert", str(path), f"{{out}}.{form}", "--to", kind))
    yield Call(f"{name}-convert", ("convert", str(path), "{out}.json"))


def _calls_of_every_command(samples: Path) -> Iterator[Call]:
    """Yield calls of what asks more than one GPU's time of one trace."""
    gpt2, resnet, vit, block, dlrm = (
        str(samples / f"{name}-shapes.json.gz")
        for name in (
            "gpt2_small-training-bf16-b4",
            "resnet50-training-bf16-b32",
            "vit_b16-training-bf16-b32",
            "llama_block-training-bf16-b1-fsdp8-rank0of8",
            "dlrm-training-bf16-b2048",
        )
    )
    here, there = (str(samples / f"vit_small-inference-bf16-b4-{gpu}.json.gz") for gpu in ("h100", "mi300x"))
    power = ("--electricity", "0.12", "--pue", "1.2")
    questions: dict[str, tuple[str, ...]] = {
        "decide": ("analyze", vit, "--for", "3 epochs of 1281167 samples", "--deadline", "24h", *power),
        "largest": ("analyze", gpt2, "--to", "H100-SXM", "--to", "RTX 4090", "--largest-batch"),
        "priced": ("analyze", gpt2, "--price", "H100=1.99", "--vendor", "nvidia", "--sort", "cost", "--rows", "5"),
        "longer": ("analyze", gpt2, "--to", "l40s", "--sequence-length", "512", "--attention-kernel", "math", "--ops"),
        "scale": ("scale", gpt2, "--to", "H100-SXM", "--gpus", "16"),
        "scale-plan": ("scale", gpt2, "--to", "H100-SXM", "--gpus", "16", "--plan", "dp8 tp2", "--host", "1.3"),
        "scale-block": ("scale", block, "--to", "B200-SXM", "--gpus", "32", *power),
        "sweep": ("sweep", gpt2, "--on", "H100-SXM", "--vary", "memory.bandwidth=1x..4x", "--batch", "32"),
        "sweep-two": ("sweep", resnet, "--on", "L40S", "--vary", "sms=0.5x,1x,2x", "--vary", "l2=1x..4x"),
        "sweep-all": ("sweep", resnet, "--on", "L40S"),
        "sweep-gpus": ("sweep", gpt2, "--on", "H100-SXM", "--vary", "gpus=8..64", "--global-batch", "256"),
        "compare": ("compare", gpt2, str(samples / "gpt2_small-training-fp32-b4-shapes.json.gz"), "--on", "H100-SXM"),
        "compare-measured": ("compare", here, there, "--on", "L40S"),
        "validate": ("validate", here, there),
        "validate-ops": ("validate", here, there, "--ops", "--top", "5"),
        "replay": ("replay", here),
        "shard": ("shard", dlrm, "--to", "H100-SXM", "--gpus", "8"),
        "recommender": ("recommender", str(samples / "dlrm-dcnv2.toml"), "--to", "H100-SXM"),
    }
    for name, words in questions.items():
        for form, format_words in FORMATS.items():
            yield Call(f"every-{name}-{form}", (*words, *format_words))
    for form in ("table", "json", "csv"):
        for name in ("gpus", "nodes", "hosts"):
            yield Call(f"every-{name}-{form}", ("catalog", name, "--format", form))
    batch = ("batch", gpt2, vit, here, "--to", "h100sxm", "--to", "l40s", "--batch", "8", "--jobs", "1")
    yield Call("every-batch", (*batch, "-o", "{out}.csv"))
    yield Call("every-gpus-one", ("catalog", "H100 SXM5 80GB"))
    yield Call("every-nodes-one", ("catalog", "nodes", "h100sxm"))
    yield Call("every-scale-curve", ("scale", gpt2, "--to", "H100-SXM", "--gpus", "8..64", "-o", "{out}.svg"))
    yield Call("every-help", ("--help",))


def _calls_on_measured(path: Path) -> Iterator[Call]:
    name = path.name.split(".")[0]
    for form in ("table", "json"):
        yield Call(f"{name}-replay-{form}", ("replay", str(path), "--format", form))
    yield Call(f"{name}-figure", ("replay", str(path), "--to", "L40S", "--figure", "{out}.svg"))


def _answer(call: Call) -> tuple[str, str]:
    """Return what a call prints and writes; paths that differ from run to run are taken out."""
    from click.testing import CliRunner
    from wavecast.__main__ import wavecast

    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        environment = {"COLUMNS": str(call.columns)} if call.columns else {}
        words = [word.replace("{out}", out) for word in call.words]
        result = CliRunner().invoke(wavecast, words, env=environment)
        written = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).iterdir()) if path.is_file()]
    text = "\n".join([f"exit status {result.exit_code}", result.output, *written])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        text += f"\n{result.exception!r}"
    return call.name, text.replace(folder, "FOLDER").replace(str(ROOT), "ROOT")


def _agrees(options: argparse.Namespace, name: str, text: str) -> bool:
    path = options.folder / f"{name}.gz"
    if options.write:
        path.write_bytes(gzip.compress(text.encode(), compresslevel=1, mtime=0))
        return True
    before = gzip.decompress(path.read_bytes()).decode() if path.exists() else ""
    if before == text:
        return True
    lines = unified_diff(before.splitlines(), text.splitlines(), "before", "now", n=0, lineterm="")
    shown = [line[:300] for line, _ in zip(lines, range(LINES_SHOWN), strict=False)]
    print(f"--- {name}", *shown, sep="\n    ")
    return False


if __name__ == "__main__":
    main()
