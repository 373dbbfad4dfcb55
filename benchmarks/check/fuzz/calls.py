"""The command lines that a changed file is put to: every command that reads a file of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from .seeds import ROOT, Kind, Seed, write_profile

SAMPLE = ROOT / "samples" / "dcgan-inference-fp32-b64-shapes.json.gz"
LOOKUPS = ROOT / "samples" / "dlrm-inference-fp32-b2048-shapes.json.gz"
TARGETS = ("H100 SXM5 80GB", "L40S", "MI300X", "T4")
ITERATIONS = ("0", "1", "99", "-1", "median", "longest", "all")
FORMATS = ("table", "json", "csv", "markdown")
NUMBERS = ("1", "2", "7", "64", "1000000", "1000000000", "9223372036854775807")
NAMES = (
    "h100",
    "a100 80gb",
    "x",
    "",
    "4090",
    "p4d.24xlarge",
    "rtx",
    "MI",
    "\x1b[0m",
    "h100" * 400,
    "Mine",
    "Wide",
    "Own",
)
SCENARIOS: tuple[list[str], ...] = (
    *([], [], ["--cuda-graph"], ["--fuse-elementwise"], ["--precision", "bf16"], ["--precision", "fp8"]),
    *(["--host", "1.5"], ["--from-batch", "16", "--batch", "{number}"], ["--batch", "{number}"]),
    ["--batch", "{number}", "--from-batch", "64", "--cuda-graph", "--fuse-elementwise", "--precision", "fp16"],
)


@dataclass(frozen=True, slots=True)
class Call:
    """Hold the words of a command line, the file it reads, and the files it may write."""

    words: tuple[str, ...]
    source: Path
    outputs: tuple[Path, ...]

    @property
    def command(self) -> str:
        """Return what is called, with the options that make it another answer."""
        return self.words[0]


def draw_call(seed: Seed, folder: Path, rng: Random, *, compressed: bool) -> Call:
    """Return a command line that reads the seed's file in `folder`."""
    if seed.words:
        return _of_seed(seed, folder, rng)
    source = folder / (seed.name + ".gz" if compressed else seed.name)
    draw = {
        Kind.PROFILE: _on_trace,
        Kind.TRACE: _on_trace,
        Kind.GPUS: _on_gpus,
        Kind.TABLE: _on_table,
        Kind.CONFIG: _on_config,
        Kind.HOST: _on_host,
        Kind.RECOMMENDER: _on_recommender,
    }[seed.kind]
    words, names = draw(source, folder, rng)
    filled = tuple(word.replace("{number}", rng.choice(NUMBERS)) for word in words)
    return Call(words=filled, source=source, outputs=tuple(folder / name for name in names))


def _of_seed(seed: Seed, folder: Path, rng: Random) -> Call:
    """Return one of the command lines that a seed brings."""
    source = folder / seed.name
    places = {"{file}": str(folder / (seed.named or seed.name)), "{folder}": str(folder), "{sample}": str(SAMPLE)}
    places["{lookups}"] = str(LOOKUPS)
    words = list(rng.choice(seed.words))
    for place, path in places.items():
        words = [word.replace(place, path) for word in words]
    outputs = [folder / name for name in ("converted.json", "out.csv") if str(folder / name) in words]
    return Call(words=tuple(words), source=source, outputs=tuple(outputs))


def _on_trace(source: Path, folder: Path, rng: Random) -> tuple[list[str], list[str]]:
    trace = str(source)
    how = rng.choice(_TRACE_COMMANDS)
    recover = ["--recover"] * (rng.random() < 0.25)
    to = [word for name in rng.sample(TARGETS, rng.choice((1, 2))) for word in ("--to", name)]
    form = ["--format", rng.choice(FORMATS)]
    scenario = rng.choice(SCENARIOS)
    table_or_json = ["--format", rng.choice(("table", "json"))]
    if how in _WRITTEN:
        name = rng.choice(_WRITTEN[how])
        written = str(folder / name)
        ending = {
            "timeline": ["analyze", trace, *to, *scenario, "--timeline", written],
            "graph": ["convert", trace, written, *["--to", "graph-json"] * written.endswith("graph.json")],
            "convert": ["convert", trace, written],
        }
        return [*ending[how], *recover], [name]
    if how == "analyze":
        source_gpu = ["--from", rng.choice(("A100 SXM4 80GB", "MI300X"))]
        source_gpu *= rng.random() < (1.0 if source.name.startswith("list") else 0.2)
        detail = rng.choice(([], ["--ops"], ["--top", "0"]))
        which = rng.choice(
            (*[[]] * 12, *[["--iteration", rng.choice(ITERATIONS)]] * 7, ["--capture", _write_other(folder)])
        )
        return ["analyze", trace, *to, *source_gpu, *scenario, *detail, *which, *form, *recover], []
    if how == "validate":
        pair = [trace, _write_other(folder)]
        rng.shuffle(pair)
        return ["validate", *pair, *table_or_json], []
    seconds = ["--device", "cpu", "--seconds", "0.2"] if how == "rerun" else []
    return [how, trace, *seconds, *table_or_json, *recover], []


_WRITTEN = {
    "timeline": ("timeline.json",),
    "graph": ("graph.graphml", "graph.json", "graph.dot"),
    "convert": ("converted.json", "converted.json.gz"),
}


def _write_other(folder: Path) -> str:
    """Write the same run on another GPU, to compare with."""
    path = folder / "other.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(write_profile("NVIDIA H100 80GB HBM3"))
    return str(path)


_TRACE_COMMANDS = (
    *(("analyze",) * 18 + ("timeline",) * 6),
    *(("show", "replay", "graph", "convert", "validate") * 3 + ("rerun",)),
)


def _on_gpus(source: Path, folder: Path, rng: Random) -> tuple[list[str], list[str]]:
    file, form = ["--gpu-file", str(source)], ["--format", rng.choice(("table", "json", "csv"))]
    how = rng.randrange(4)
    if how == 0:
        return ["catalog", *file, *form], []
    if how == 1:
        return ["catalog", rng.choice(NAMES), *file], []
    if how == 2:
        return ["analyze", str(SAMPLE), *file, "--to", rng.choice(NAMES), *form], []
    return ["catalog", *file, "-o", str(folder / "gpus.csv")], ["gpus.csv"]


def _on_table(source: Path, folder: Path, rng: Random) -> tuple[list[str], list[str]]:
    form = ["--format", rng.choice(("table", "json", "csv"))]
    how = rng.randrange(3)
    if how == 0:
        return ["score", str(folder), *form], []
    if how == 1:
        return ["score", str(folder), "--leave-out", "chips", *form], []
    return ["analyze", str(SAMPLE), "--calibration", rng.choice((str(folder), str(source))), "--to", "L4", *form], []


def _on_config(source: Path, folder: Path, rng: Random) -> tuple[list[str], list[str]]:
    mode = rng.choice(("inference", "training"))
    words = ["record", "--shapes-only", "--hf-config", str(source), "--mode", mode, "--batch-size", "2"]
    return [*words, "--sequence-length", "8", "-o", str(folder / "recorded.json")], ["recorded.json"]


def _on_host(source: Path, folder: Path, rng: Random) -> tuple[list[str], list[str]]:
    trace = rng.choice((str(SAMPLE), _write_other(folder)))
    return ["analyze", trace, "--host", str(source), "--to", "L4", "--format", rng.choice(FORMATS)], []


def _on_recommender(source: Path, folder: Path, rng: Random) -> tuple[list[str], list[str]]:
    words = ["recommender", str(source), "--to", rng.choice(("h100sxm", "a100sxm80")), "--format", rng.choice(FORMATS)]
    if rng.random() < 0.3:
        return [*words, "--save-trace", str(folder / "step.json")], ["step.json"]
    return words, []
