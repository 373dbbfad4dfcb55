"""Draw the timm models that the score predicts, and record their inference: shapes alone, no GPU, no weights.

    python -m benchmarks.make.record_timm DATA/models/throughput.parquet -o samples

Needs timm and torchvision beside torch. Writes timm.toml, the list, and timm.tar.xz with MODEL-LAYOUT-BATCH.json,
layout nchw or nhwc: the traces of a model differ little, and packed together they take a fraction of single files.
When storages are dropped is left out: no score reads it, and it would be a quarter of the archive.

How models are drawn, which looks at no prediction: candidates have rows of torch 2.4.0, eager, on both GPUs and in both
layouts, at the image size that timm trains them with. Those of one timm source file are a family, ordered by
multiply-adds. A family gives its median model; one of eight or more gives its two quartile models. A model that cannot
be recorded, or whose parameter count is not the table's within 1 %, is replaced by the family's next larger one, or the
next smaller one where there is none.

What is recorded is what upstream measured: evaluation, torch.no_grad, float32 weights under float16 autocast, at every
batch size that the table has of the model, layout and image size from torch 2.1 on.

    python -m benchmarks.make.record_timm DATA/models/throughput.parquet -o samples --earlier

draws nothing: it records the models of the list as torch before 2.5 ran them, at the batch sizes measured with it, and
writes those that differ to timm-earlier.tar.xz: attention that no fused kernel takes, for which torch has a switch.
"""

from __future__ import annotations

import argparse
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import timm
import torch
from pyarrow import parquet
from timm.models._registry import _model_to_module  # no public function says where a model is defined
from wavecast.analyzer.questions.score.throughput import (
    ARCHIVE,
    EARLIER_ARCHIVE,
    HALF_ATTENTION_BEFORE,
    OLDEST_TORCH,
    read_networks,
)
from wavecast.analyzer.work.kernel_names import torch_version
from wavecast.errors import WavecastError
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import MemoryTable, Trace
from wavecast.tracer import trace_iteration

SOFTWARE = "torch 2.4.0; cuda 12.4"
GPUS = ("GeForce RTX 3090", "GeForce RTX 4090")
TARGET = GPUS[1]
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
LARGE_FAMILY = 8
PARAMETERS_WITHIN = 0.01
Traces = dict[tuple[str, int], Trace]
"""By layout and batch size."""
Batches = dict[tuple[str, int, str], set[int]]
"""Measured batch sizes by model, image size and layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    family: str
    image_size: int
    params_m: float
    gmacs: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the list and the traces")
    parser.add_argument("--earlier", action="store_true", help="record what torch before 2.5 ran otherwise instead")
    options = parser.parse_args()
    rows = [row for row in parquet.read_table(options.table).to_pylist() if row["source"] == "timm"]
    if options.earlier:
        record_earlier(rows, options.output)
        return
    families, batches = candidates(rows), batches_of(rows)
    drawn = [item for name in sorted(families) for item in draw(families[name], batches)]
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "timm.toml").write_text("\n".join(_lines([model for model, _ in drawn])), encoding="utf-8")
    pack(drawn, options.output / ARCHIVE)
    print(f"{len(drawn)} models of {len(families)} families")


def record_earlier(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Record the list's models that torch before 2.5 ran otherwise, as it ran them."""
    before = [row for row in rows if torch_version(row["software"]) < HALF_ATTENTION_BEFORE]
    batches, found = batches_of(before), list[tuple[Model, Traces]]()
    for item in read_networks(folder).values():
        model = Model(name=item.name, family=item.family, image_size=item.image_size, params_m=item.params_m, gmacs=0.0)
        least = min(batches[model.name, model.image_size, "nchw"])
        now = _trace(model, "nchw", least)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
        if _trace(model, "nchw", least).signatures != now.signatures and (traces := _record(model, batches)):
            found.append((model, traces))
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
    pack(found, folder / EARLIER_ARCHIVE)


def pack(recorded: Sequence[tuple[Model, Traces]], path: Path) -> None:
    """Write an archive that is the same for the same traces."""
    files = {
        f"{model.name}-{layout}-{batch}.json": encode(trace)
        for model, traces in recorded
        for (layout, batch), trace in traces.items()
    }
    with tarfile.open(path, "w:xz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))


def batches_of(rows: Sequence[dict[str, Any]]) -> Batches:
    """Return the batch sizes of inference that the table has."""
    found: Batches = {}
    for row in rows:
        if row["mode"] == "infer" and torch_version(row["software"]) >= OLDEST_TORCH:
            layout = "nhwc" if row["channels_last"] else "nchw"
            found.setdefault((row["model"], row["image_size"], layout), set()).add(row["batch_per_gpu"])
    return found


def candidates(rows: Sequence[dict[str, Any]]) -> dict[str, list[Model]]:
    """Return the candidates by family, ordered by multiply-adds."""
    found: dict[tuple[str, int], dict[tuple[str, bool], dict[str, Any]]] = {}
    for row in rows:
        if row["mode"] == "infer" and row["software"] == SOFTWARE and not row["compile"]:
            key = row["model"], row["image_size"]
            found.setdefault(key, {})[row["gpu"], row["channels_last"]] = row
    families: dict[str, list[Model]] = {}
    for (name, size), measured in found.items():
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        if len(measured) == len(GPUS) * len(LAYOUTS) and config is not None and config.input_size[-1] == size:
            model = _model(name, measured[TARGET, False])
            families.setdefault(model.family, []).append(model)
    return {name: sorted(models, key=lambda item: (item.gmacs, item.name)) for name, models in families.items()}


def _model(name: str, row: dict[str, Any]) -> Model:
    return Model(
        name=name,
        family=_model_to_module[name],
        image_size=row["image_size"],
        params_m=row["params_m"],
        gmacs=row["gmacs"] or 0.0,
    )


def draw(models: list[Model], batches: Batches) -> Iterator[tuple[Model, Traces]]:
    """Yield the family's models at their places in the order, or those that stand in for them, with their traces."""
    count, taken = len(models), set()
    places = (count // 4, 3 * count // 4) if count >= LARGE_FAMILY else ((count - 1) // 2,)
    for place in places:
        order = (*range(place, count), *range(place - 1, -1, -1))
        found = ((index, _record(models[index], batches)) for index in order if index not in taken)
        index, traces = next(((index, traces) for index, traces in found if traces), (place, None))
        if traces:
            taken.add(index)
            yield models[index], traces


def _record(model: Model, batches: Batches) -> Traces | None:
    """Return the model's trace in each layout and batch size; say why it cannot be recorded otherwise."""
    try:
        traces = {
            (layout, batch): _trace(model, layout, batch)
            for layout in LAYOUTS
            for batch in sorted(batches[model.name, model.image_size, layout])
        }
    except (WavecastError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        print(f"{model.name}: left out: {str(error).splitlines()[0]}", flush=True)
        return None
    print(f"{model.name}: {len(traces)} traces", flush=True)
    return traces


def _trace(model: Model, layout: str, batch: int) -> Trace:
    form = LAYOUTS[layout]
    with torch.device("meta"):
        module = timm.create_model(model.name).eval()
        images = torch.randn(batch, 3, model.image_size, model.image_size)
    count = sum(item.numel() for item in module.parameters()) / 1e6
    if abs(count / model.params_m - 1) > PARAMETERS_WITHIN:
        raise ValueError(f"has {count:.2f} million parameters, in the table {model.params_m:.2f}")
    trace = trace_iteration(
        _step(module.to(memory_format=form), images.contiguous(memory_format=form)),
        device="meta",
        warmup=0,
        name=model.name,
        mode="inference",
        batch_size=batch,
        samples_per_iteration=batch,
    )
    return replace(trace, meta=replace(trace.meta, has_memory=False), memory=build_table(MemoryTable, 0))


def _step(module: torch.nn.Module, images: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            module(images)

    return step


def _lines(models: Sequence[Model]) -> Iterator[str]:
    yield "# Drawn and recorded by benchmarks/make/record_timm.py, which says how, with "
    yield f"# timm {timm.__version__} and torch {torch.__version__}."
    yield f'software = "{SOFTWARE}"'
    for model in models:
        yield ""
        yield "[[model]]"
        yield f'name = "{model.name}"'
        yield f'family = "{model.family}"'
        yield f"image_size = {model.image_size}"
        yield f"params_m = {model.params_m:.2f}"
    yield ""


if __name__ == "__main__":
    main()
