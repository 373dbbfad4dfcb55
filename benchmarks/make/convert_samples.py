"""Convert the measured samples: public recordings of one network on two GPUs, in our format.

Run: python -m benchmarks.make.convert_samples DATA -o samples

DATA holds `traces/`, profiler files of AMD-AGI/TraceLens (commit 171dd747, MIT), from which everything outside the
profiler's own fields was removed. Each is read as every command reads it; what the file does not say of its workload,
and its shapes do, is added. Times, ops and kernels stay as they were recorded.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

from wavecast import load_trace, save_trace
from wavecast.formats.trace.meta import Workload

NETWORKS: Final = {"vit_small": 4, "bert_small": 1}
"""Network → images or sequences of an iteration, the first size of its inputs."""
GPUS: Final = ("h100", "mi300x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("-o", "--output", type=Path, default=Path("samples"), metavar="FOLDER")
    options = parser.parse_args()
    for network, batch in NETWORKS.items():
        for gpu in GPUS:
            trace = load_trace(options.data / "traces" / f"{gpu}_{network}_inference.json.gz")
            workload = Workload(name=network, mode="inference", batch_size=batch, samples_per_iteration=batch)
            path = options.output / f"{network}-inference-bf16-b{batch}-{gpu}.json.gz"
            save_trace(replace(trace, meta=replace(trace.meta, workload=workload)), path)
            print(f"{path}: {path.stat().st_size / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
