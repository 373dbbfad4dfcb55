"""Record sample traces of real architectures: shapes alone anywhere, or measured steps on a CUDA GPU.

    python -m benchmarks.make.record_samples --shapes-only -o samples/
    python -m benchmarks.make.record_samples -o measured/            # on a GPU: all models, precisions, batch sizes

One model that fails (out of memory, say) is reported and left out; the others are recorded.
"""

from __future__ import annotations

import argparse
import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType

import torch
from wavecast.errors import WavecastError
from wavecast.formats.files.open import save_trace
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration
from wavecast.tracer.op_sweep.sweep import tf32_switched

BATCH_SIZES = {
    "resnet50": (32, 128),
    "bert_base": (16, 64),
    "gpt2_small": (4, 16),
    "vit_b16": (32, 128),
    "dcgan": (64, 256),
    "seq2seq": (64, 256),
    "dlrm": (2_048, 16_384),
    "ddpm_unet": (32, 128),
}
"""Two batch sizes per model; shape-only samples take the first."""
OPTIMIZERS = {"dlrm": partial(torch.optim.SGD, lr=0.01)}
"""Plain SGD for DLRM, as its authors train it; AdamW with torch's default settings for the others."""
MODES = ("training", "inference")
PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    model: str
    mode: str
    precision: str
    batch_size: int

    def file_name(self, where: str) -> str:
        return f"{self.model}-{self.mode}-{self.precision}-b{self.batch_size}-{where}.json.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--shapes-only", action="store_true", help="record on the meta device: no GPU, no times")
    parser.add_argument("--models", nargs="+", choices=BATCH_SIZES, help="record only these")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="record only these")
    parser.add_argument("--first-batch-size-only", action="store_true", help="leave the larger batch size out")
    options = parser.parse_args()
    if not options.shapes_only and not torch.cuda.is_available():
        parser.error("no CUDA GPU here: pass --shapes-only")
    device = "meta" if options.shapes_only else "cuda"
    options.output.mkdir(parents=True, exist_ok=True)
    failures = [sample for sample in _select(options) if not _record(sample, device, options.output)]
    print(f"{len(failures)} could not be recorded")
    parser.exit(1 if failures else 0)


def _select(options: argparse.Namespace) -> Iterator[Sample]:
    models = options.models or tuple(BATCH_SIZES)
    # TF32 is no property of shapes: the same ops run on other units.
    precisions = options.precisions or (("fp32", "bf16") if options.shapes_only else PRECISIONS)
    for model, mode, precision in product(models, MODES, precisions):
        sizes = BATCH_SIZES[model]
        for batch_size in sizes[:1] if options.shapes_only or options.first_batch_size_only else sizes:
            yield Sample(model=model, mode=mode, precision=precision, batch_size=batch_size)


def _record(sample: Sample, device: str, folder: Path) -> bool:
    """Record and save one sample; report what went wrong otherwise, and say whether it worked."""
    path = folder / sample.file_name(_name_place(device))
    try:
        trace = record_step(sample, device)
        save_trace(trace, path)
    except (WavecastError, RuntimeError, OSError) as error:  # running out of memory is a RuntimeError
        print(f"{path.name}: left out: {str(error).splitlines()[0]}")
        return False
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    print(f"{path.name}: {len(trace.ops.name)} ops, {len(trace.kernels.name)} kernels, {path.stat().st_size:,} bytes")
    return True


def record_step(sample: Sample, device: str, *, building: bool = False) -> Trace:
    """Record one step of a sample on a device; `building`: what builds and casts the model before it as well."""
    build = partial(build_step, import_module(f"benchmarks.make.models.{sample.model}"), sample, device)
    with tf32_switched(sample.precision):
        return trace_iteration(
            (lambda: build()()) if building else build(),  # noqa: PLW0108 - builds it in the step
            device=device,
            name=sample.model,
            mode=sample.mode,
            batch_size=sample.batch_size,
            samples_per_iteration=sample.batch_size,
        )


def build_step(module: ModuleType, sample: Sample, device: str) -> Callable[[], object]:
    """Return a function that runs one training or inference iteration of a model on `device`."""
    dtype = torch.bfloat16 if sample.precision == "bf16" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model = module.build().to(dtype)
        batch = [item.to(dtype) if item.is_floating_point() else item for item in module.make_batch(sample.batch_size)]
    if sample.mode == "inference":
        model.eval()

        def predict() -> object:
            with torch.inference_mode():
                return module.predict(model, *batch)

        return predict
    # Plain SGD for DLRM, as its authors train it; AdamW, torch's default settings, for the others.
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.01)
        if sample.model == "dlrm"
        else torch.optim.AdamW(model.parameters())
    )

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        module.compute_loss(model, *batch).backward()
        optimizer.step()

    return train


def _name_place(device: str) -> str:
    """Return `shapes`, or the GPU's name as a file name can hold it."""
    if device == "meta":
        return "shapes"
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")


if __name__ == "__main__":
    main()
