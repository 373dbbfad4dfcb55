"""FBGEMM's ops in public recordings of an A100 and a V100: measured times beside the models', from shapes alone.

Each row is an op of the median iteration with all its kernels: how often it is called, what its kernels take and what
the op's model says on the same GPU, where one covers it. Then lookups by waves: what a call takes less a launch, over
the waves of blocks that its registers let a multiprocessor hold. The A100's two lookups set the model's wave cycles;
nothing else was fitted to these rows.

Run: python benchmarks/check/fbgemm_recordings.py DATA
"""

from __future__ import annotations

import sys
from math import ceil, isnan
from pathlib import Path

from wavecast import load_trace
from wavecast.analyzer.models.frame.gpu_physics import LAUNCH_PARAMETERS
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.op_models import assign_rows, model_times
from wavecast.analyzer.prediction.workload import GpuWorkload, measured_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

RECORDINGS = {"a100_80gb_training": "A100 SXM4 80GB", "v100_dlrm_training_rank0": "Tesla V100 SXM2 16GB"}
REGISTERS = 65536
"""Of a multiprocessor; a thread takes them by eight."""
LOOKUP = "embedding_codegen_forward"


def is_of_fbgemm(name: str) -> bool:
    """Say whether an op is FBGEMM's, or autograd's node of one."""
    return name.startswith("fbgemm::") or (name.startswith("torch::autograd::CppNode<") and "Function" in name)


def show_ops(trace: Trace, workload: GpuWorkload, gpu: Gpu) -> None:
    """Print each op's measured and predicted time."""
    library, fleet = load_library(), build_fleet([gpu])
    times = model_times(assign_rows(workload, library), len(workload.op), fleet, library).time_ns[:, 0]
    found: dict[int, list[float]] = {}
    for row, op in enumerate(workload.op.tolist()):
        if op >= 0 and workload.count[row] and is_of_fbgemm(trace.strings[trace.ops.name[op]]):
            entry = found.setdefault(op, [0.0, 0.0, float(times[row])])
            entry[0] += workload.count[row]
            entry[1] += workload.count[row] * workload.duration_ns[row]
    for op, (kernels, measured, predicted) in found.items():
        said = "no model" if isnan(predicted) else f"{predicted / 1e3:7.1f} us  {predicted / measured - 1:+.0%}"
        name = trace.strings[trace.ops.name[op]].rpartition("::")[2]
        print(f"{name[:58]:58} {kernels:3.0f} kernels  {measured / 1e3:7.1f} us  {said}")


def show_waves(trace: Trace, workload: GpuWorkload, gpu: Gpu) -> None:
    """Print what a wave of each lookup's blocks takes."""
    priors = {parameter.name: parameter.prior for parameter in LAUNCH_PARAMETERS}
    launch_us = priors["launch_us"] + priors["launch_cycles"] / gpu.boost_clock_hz * 1e6
    kernels = trace.kernels
    for row, kernel in enumerate(workload.kernel.tolist()):
        if not workload.count[row] or LOOKUP not in trace.strings[kernels.name[kernel]]:
            continue
        threads = int(kernels.block[kernel].prod())
        held = REGISTERS // (threads * 8 * ceil(int(kernels.registers[kernel]) / 8))
        waves = int(kernels.grid[kernel].prod()) / (held * gpu.sm_count)
        time_us = workload.duration_ns[row] / 1e3
        print(
            f"{int(kernels.grid[kernel].prod()):6} blocks of {threads}, {held} on a multiprocessor: {waves:.1f} waves, "
            f"{time_us:5.1f} us, less a launch {(time_us - launch_us) / max(waves, 1.0):.2f} us each"
        )


def main(data: Path) -> None:
    """Print both tables of both recordings."""
    for name, gpu_name in RECORDINGS.items():
        trace = load_trace(data / "traces" / f"{name}.json.gz")
        workload, gpu = measured_workload(trace, select_window(trace)), find_gpu(load_catalog(), gpu_name)
        print(f"\n{name}, on {gpu.name}")
        show_ops(trace, workload, gpu)
        show_waves(trace, workload, gpu)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
