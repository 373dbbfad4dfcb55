"""The torchvision networks of `models/throughput.parquet`, recorded on the meta device and predicted.

Boards of 2017 and 2018 measured them in 2019 to 2021: rows with source `ryujaehun`, one GPU, which no model is trained
on and no score reads. They are predicted by weights that never saw the board's chip. Upstream timed single steps of 12
images, the copy of the images and the host's launches inside, so that networks of little work per op say nothing of the
GPU: rows count where the mean op is predicted to take 100 us. Left out: A100, whose steps wait for the host all the
same (fp32 is off by 0.3 for inference, 0.5 for training there, 0 to 0.2 elsewhere), and 16-bit runs of boards without
matrix units, which tell of Pascal alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...analyzer.iteration.analyze import run_analysis
from ...analyzer.measurements.samples import pick, read_table
from ...analyzer.models.library import load_library
from ...analyzer.prediction.sum_interval import busy_interval_ns
from ...formats.files.open import load_trace, save_trace
from ...formats.trace.tables import Trace
from ...specs.catalog import load_catalog
from ...specs.gpu import Rate, chip_of, peak_flops_per_s
from ...specs.match import find_gpu

TABLE: Final = "models/throughput.parquet"
SOURCE: Final = "ryujaehun"
LEAST_OP_NS: Final = 100e3
"""Mean time of an op from which on neither launches nor the images' copy matter."""
HOST_BOUND: Final = frozenset({"GA100"})
DTYPES: Final = {"fp32": "float32", "fp16": "float16"}
"""Names in torch."""
IMAGE_SIZE, CLASSES = 224, 1000


def predict_networks(data: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Predict each network on each board once; yield its measurements, which differ by software."""
    table = read_table(data / TABLE)
    table = pick(table, (table["source"].astype(str) == SOURCE) & (table["n_gpus"] == 1))
    measured = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    keys: dict[tuple[str, str, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for item in measured:
        dtype = "fp16" if item["precision"] == "fp16" else "fp32"
        keys[item["model"], item["mode"], dtype, int(item["batch_per_gpu"])].append(item)
    catalog = load_catalog()
    for (name, mode, dtype, batch), rows in keys.items():
        trace = recorded(folder / f"{name}-{mode}-{dtype}-b{batch}.json.gz", name, mode, dtype, batch)
        for gpu_name in sorted({row["gpu"] for row in rows}):
            gpu = find_gpu(catalog, gpu_name)
            if chip_of(gpu) in HOST_BOUND or (dtype == "fp16" and not peak_flops_per_s(gpu, Rate.MATRIX_FP16)):
                continue
            result = run_analysis(trace, catalog, targets=[gpu], library=load_library(frozenset({chip_of(gpu)})))
            prediction = replace(result.prediction, shared_half_width=np.zeros(1))
            total = float(prediction.total_busy_ns()[0])
            low, high = (float(end[0]) for end in busy_interval_ns(prediction, result.workload.family))
            if total / float(prediction.weight.sum()) < LEAST_OP_NS or not np.isfinite(low + high):
                continue
            for row in rows:
                if row["gpu"] == gpu_name:
                    yield {
                        "chip": chip_of(gpu),
                        "mode": mode,
                        "precision": row["precision"],
                        "log_ratio": float(np.log(batch / row["samples_per_s"] * 1e9 / total)),
                        "fall": 1.0 - low / total,
                        "rise": high / total - 1.0,
                    }


def recorded(path: Path, name: str, mode: str, dtype: str, batch: int) -> Trace:
    """Return the trace of a network's step, recorded where the file is not there yet."""
    from ...tracer import trace_iteration

    if not path.exists():
        step = build_step(name, mode, dtype, batch)
        kind = "inference" if mode == "infer" else "training"
        trace = trace_iteration(
            step, device="meta", warmup=0, name=name, mode=kind, batch_size=batch, samples_per_iteration=batch
        )
        save_trace(trace, path)
    return load_trace(path)


def build_step(name: str, mode: str, precision: str, batch: int) -> Callable[[], object]:
    """Return what upstream timed: the forward pass, or forward and backward without an optimizer."""
    import torch
    import torchvision.models

    dtype = getattr(torch, DTYPES[precision])
    with torch.device("meta"):
        module = getattr(torchvision.models, name)().to(dtype)
        images = torch.empty(batch, 3, IMAGE_SIZE, IMAGE_SIZE, dtype=dtype)
        labels = torch.empty(batch, dtype=torch.long)
    if mode == "infer":
        module.eval()

        def infer() -> object:
            with torch.no_grad():
                return module(images)

        return infer

    def train() -> None:
        module.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(module(images), labels).backward()

    return train
