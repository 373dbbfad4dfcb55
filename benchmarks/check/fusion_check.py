"""Compare what merging pointwise kernels is predicted to gain with what torch.compile was measured to gain.

    python -m benchmarks.check.fusion_check DATA_DIR

Measured: NeuSight's networks, plain and compiled, on an A100 (fp32), and timm's resnet50 and ViT-B/16, eager and
compiled, on an RTX 4090 (autocast, batch 1,024). Predicted: from NeuSight's graphs, and from the samples in this
checkout with that batch size. Then all timm networks that are recorded (under autocast, as measured), by software.
torch.compile does more than merge: it also picks layouts and kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from wavecast import load_trace
from wavecast.analyzer.iteration.result import build_result
from wavecast.analyzer.measurements.networks import NODES, read_nodes
from wavecast.analyzer.measurements.samples import read_table
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.score.end_to_end import NETWORKS, build_trace
from wavecast.analyzer.questions.score.recordings import archive_for, earlier_networks, read_networks, read_recordings
from wavecast.analyzer.questions.score.throughput import OLDEST_TORCH, PARAMS_WITHIN_M, torch_version
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

SAMPLES = Path(__file__).parents[2] / "samples"
TIMM = {"resnet50": "resnet50", "vit_base_patch16_224": "vit_b16"}
TIMM_GPU, TIMM_BATCH, TIMM_IMAGE = "GeForce RTX 4090", 1024, 224

Row = Mapping[str, Any]


def main(data: Path) -> None:
    """Print one line per pair."""
    print(
        f"{'GPU':18} {'network':22} {'batch':>5} {'eager ms':>18} {'compiled ms':>18} {'gain, measured':>15} predicted"
    )
    for gpu, name, batch, measured, trace in (*neusight_pairs(data), *timm_pairs(data)):
        eager, fused = (predict_ms(trace, gpu, fuses) for fuses in (False, True))
        times = "".join(f"{one:9.1f} ({other:6.1f})" for one, other in zip(measured, (eager, fused), strict=True))
        print(f"{gpu:18} {name:22} {batch:5d} {times} {measured[0] / measured[1]:14.3f} ({eager / fused:7.3f})")
    print(f"\n{TIMM_GPU}, timm networks: gain in samples/s")
    print(
        "software     networks of  number  batch  measured, median  predicted, median  ratio, median  mean |log ratio|"
    )
    for (software, kind), gains in sorted(timm_gains(data).items()):
        measured_gain, predicted_gain, batch = np.array(gains).T
        ratio = predicted_gain / measured_gain
        print(
            f"{software:12} {kind:11} {len(gains):7d} {np.median(batch):6.0f} {np.median(measured_gain):17.3f} "
            f"{np.median(predicted_gain):18.3f} {np.median(ratio):14.3f} {np.abs(np.log(ratio)).mean():17.3f}"
        )


def predict_ms(trace: Trace, gpu: str, fuses: bool) -> float:
    """Return the predicted iteration."""
    catalog = load_catalog()
    result = build_result(trace, None, [find_gpu(catalog, gpu)], load_library(), Scenario(fuse_elementwise=fuses))
    return float(result.forecast.iteration_ns[0] / 1e6)


def neusight_pairs(data: Path) -> Iterator[tuple[str, str, int, tuple[float, float], Trace]]:
    """Yield GPU, network, batch, (plain, compiled) ms and the plain network's ops."""
    rows = rows_of(data / NETWORKS)
    nodes = read_nodes(data / NODES)
    for row in rows:
        key = tuple(row[name] for name in ("gpu", "model", "mode", "seqlen", "batch"))
        plain = [item for item in rows if item["variant"] == "plain" and all(item[n] == row[n] for n in KEYS)]
        if row["variant"] != "fusion" or not plain or (*key, "plain") not in nodes:
            continue
        layers, batch = int(row["num_layer"]), int(row["batch"])
        network = nodes[(*key, "plain")]
        trace, _ = build_trace(network, layers, name=row["model"], batch=batch, mode=row["mode"])
        yield row["gpu"], row["model"], batch, (plain[0]["measured_ms"], row["measured_ms"]), trace


KEYS = ("gpu", "model", "mode", "seqlen", "batch", "n_gpus")


def timm_pairs(data: Path) -> Iterator[tuple[str, str, int, tuple[float, float], Trace]]:
    """Yield the same from the throughput table and the samples."""
    rows = rows_of(data / "models/throughput.parquet")
    for model, sample in TIMM.items():
        found = {
            bool(row["compile"]): float(row["iter_ms"])
            for row in rows
            if (row["gpu"], row["model"], row["batch_per_gpu"]) == (TIMM_GPU, model, TIMM_BATCH)
            and row["image_size"] == TIMM_IMAGE
            and (row["mode"], row["precision"]) == ("infer", "amp")
            and row["source"] == "timm"
            and not row["channels_last"]
        }
        trace = load_trace(SAMPLES / f"{sample}-inference-bf16-b32-shapes.json.gz")
        if len(found) == 2:
            yield TIMM_GPU, model, TIMM_BATCH, (found[False], found[True]), with_batch(trace, TIMM_BATCH).trace


def timm_gains(data: Path) -> dict[tuple[str, str], list[tuple[float, float, int]]]:
    """Return each recorded network's measured and predicted gain and compiled batch, contiguous tensors.

    By software, and by whether the network attends or has convolutions alone.
    """
    networks = read_networks()
    wanted: dict[tuple[str, str], dict[bool, Row]] = {}
    for row in rows_of(data / "models/throughput.parquet"):
        network, software = networks.get(row["model"]), str(row["software"]).split(";")[0]
        if (row["gpu"], row["mode"], row["precision"], row["source"]) != (TIMM_GPU, "infer", "amp", "timm"):
            continue
        if network is None or row["image_size"] != network.image_size or torch_version(software) < OLDEST_TORCH:
            continue
        if not row["channels_last"] and abs(row["params_m"] - network.params_m) < PARAMS_WITHIN_M:
            wanted.setdefault((row["model"], software), {})[bool(row["compile"])] = row
    pairs = {key: pair for key, pair in wanted.items() if len(pair) == 2}
    earlier = earlier_networks()
    archives = {key: archive_for(key[0], torch_version(key[1]), earlier) for key in pairs}
    times: dict[tuple[str, str, int], tuple[float, float, str]] = {}
    for archive in sorted(set(archives.values())):
        mine = [(key[0], pair) for key, pair in pairs.items() if archives[key] == archive]
        keys = {(model, "nchw", int(row["batch_per_gpu"])) for model, pair in mine for row in pair.values()}
        for item in read_recordings(keys, archive=archive):
            eager, fused = (predict_ms(item.trace, TIMM_GPU, fuses) / item.batch for fuses in (False, True))
            times[archive, item.network.name, item.batch] = eager, fused, kind_of(item.trace)
    gains: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for key, pair in pairs.items():
        model, software = key
        found = [times.get((archives[key], model, int(pair[compiled]["batch_per_gpu"]))) for compiled in (False, True)]
        if found[0] is not None and found[1] is not None:
            measured = pair[True]["samples_per_s"] / pair[False]["samples_per_s"]
            gain = measured, found[0][0] / found[1][1], int(pair[True]["batch_per_gpu"])
            gains.setdefault((software, found[0][2]), []).append(gain)
    return gains


def kind_of(trace: Trace) -> str:
    """Say whether a network attends: whether it multiplies activations, or calls a kernel for attention."""
    names = {trace.strings[name] for name in trace.ops.name.tolist()}
    return "attention" if any("attention" in name or "bmm" in name for name in names) else "convolution"


def rows_of(path: Path) -> list[Row]:
    """Return a table's rows."""
    columns = {name: column.tolist() for name, column in read_table(path).items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(Path(sys.argv[1]))
