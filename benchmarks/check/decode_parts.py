"""What a decode step goes to under tp, ms: weights, attention, links, copies of the cache, small kernels.

    wavecast record --shapes-only --hf-config CONFIG.json --mode inference --cached-tokens 2048 -o TRACE.json.gz
    python -m benchmarks.check.decode_parts TRACE.json.gz MODEL GPU SEQUENCES CACHED

Last of each line: the step over all but small kernels, the slowest rank's wait included; of `scale` in a CUDA graph,
then compiled as well; `serve`'s engine merges kernels, copies no cache, adds up by its own kernel; all its parts wait.
"""

import sys
from functools import partial

import numpy as np
import wavecast
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction import predict, workload
from wavecast.analyzer.questions.serve import engines, ops, sizes, step
from wavecast.analyzer.whatif.parallel import derive, plan
from wavecast.formats.files.open import load_trace
from wavecast.specs import catalog, match


def main() -> None:
    """Print a line of `scale` and one of `serve` for each degree."""
    path, model, name, *load = sys.argv[1:]
    gpu, library, (sequences, cached) = match.find_gpu(catalog.load_catalog(), name), load_library(), map(int, load)
    stack = engines.stack_of(gpu, "bf16", "vllm")
    for tp in (2, 4, 8):
        work = workload.shape_workload(derive.derive_ranks(load_trace(path), plan.ParallelPlan(tp=tp))[0].trace)
        time = predict.predict_shapes(work, [gpu], library).time_ns[:, 0] * work.count / 1e6
        part = np.where(work.work.moved_bytes > 1e6, 3, 4)
        for place, family in enumerate(("matmul", "attention", "collective")):
            part[np.array(work.family) == family] = place
        parts = np.bincount(part, time)
        ask = partial(wavecast.scale, path, to=gpu.name, plan=f"tp={tp}", global_batch=sequences, cuda_graph=True)
        steps = [ask(fuse_elementwise=more).to_records()[0]["iteration_ns"] for more in (False, True)]
        print(f"tp={tp} scale", parts.round(2), np.round(np.array(steps) / 1e6 / parts[:4].sum(), 3))
        tables = step.step_tables(sizes.read_model(model), ops.ServePlan(tp=tp), stack, [gpu], library)
        found = tables.parts(0, sequences, cached)[0] / 1e6
        print(f"tp={tp} serve", found.round(2), (found.sum() / found[:3].sum()).round(3))


if __name__ == "__main__":
    main()
