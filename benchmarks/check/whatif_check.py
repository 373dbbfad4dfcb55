"""Check the what-ifs `--batch` and `--precision` against recordings: python -m benchmarks.check.whatif_check

Batch: each model is recorded (shapes only) at two batch sizes; the first, rescaled, must equal the second op by op.
Precision: the float32 recording, moved to bf16, is compared with one made under autocast (its types op by op, its
conversions byte by byte) and, in predicted GPU time, with one of the model cast to bf16 as a whole.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.predict import predict_shapes
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.analyzer.whatif.calls import short_name
from wavecast.analyzer.whatif.change import Whatif
from wavecast.analyzer.whatif.precision.precision import with_precision
from wavecast.analyzer.whatif.retiming.casts import cast_times_ns
from wavecast.analyzer.whatif.scenario import TargetPrecision
from wavecast.analyzer.work import Family, family_of, work_of
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Argument, Signature, flatten_tensors
from wavecast.formats.trace.tables import OperandTable, Phase, TensorTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

from ..make.record_samples import BATCH_SIZES, MODES, Sample, build_step

GPUS = ("H100 SXM5 80GB", "A100 SXM4 80GB")
LOW = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Case:
    """Hold what is recorded."""

    model: str
    mode: str

    def record(self, batch_size: int, *, dtype: str = "fp32", autocast: bool = False) -> Trace:
        """Record the model on the meta device, with fixed warm-up."""
        module = import_module(f"benchmarks.make.models.{self.model}")
        chosen: Any = _under_autocast(module) if autocast else module
        sample = Sample(model=self.model, mode=self.mode, precision=dtype, batch_size=batch_size)
        return trace_iteration(
            build_step(chosen, sample, "meta"), device="meta", name=self.model, mode=self.mode, batch_size=batch_size
        )


def _under_autocast(module: Any) -> SimpleNamespace:
    def run(function: Any, model: Any, *batch: Any) -> Any:
        with torch.autocast("cuda", dtype=LOW):
            return function(model, *batch)

    return SimpleNamespace(
        build=module.build,
        make_batch=module.make_batch,
        predict=lambda model, *batch: run(module.predict, model, *batch),
        compute_loss=lambda model, *batch: run(module.compute_loss, model, *batch),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=BATCH_SIZES, default=list(BATCH_SIZES))
    parser.add_argument("--batches", nargs=2, type=int, default=(4, 8), metavar=("FROM", "TO"))
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # torch's default is TF32, and the recording says so
    cases = [Case(model, mode) for model in options.models for mode in MODES]
    _print_batches(cases, *options.batches)
    _print_types(cases, options.batches[0])
    _print_times(cases)


def _print_batches(cases: list[Case], before: int, after: int) -> None:
    print(f"\nBatch {before} rescaled to {after}, against a recording at {after}: ops with equal signatures;")
    print(
        "the same with neither tensors nor results identified, as profilers record: ops with equal arguments, and work"
    )
    for case in cases:
        small, wanted = case.record(before), case.record(after)
        got, total = with_batch(small, after).trace, len(small.ops.name)
        equal = sum(left == right for left, right in signature_pairs(got, wanted))
        bare = with_batch(as_profiled(small), after).trace
        alike = sum(left.arguments == right.arguments for left, right in signature_pairs(bare, wanted))
        names = [bare.strings[name] for name in bare.ops.name.tolist()]
        calls = zip(names, signature_pairs(bare, as_profiled(wanted)), strict=True)
        worked = sum(work_of(name, left) == work_of(name, right) for name, (left, right) in calls)
        print(
            f"{case.model:12}{case.mode:10}{equal:6} of {total:6}  {equal / total:7.2%}   "
            f"{alike / total:7.2%}  {worked / total:7.2%}",
            flush=True,
        )


def signature_pairs(left: Trace, right: Trace) -> Iterator[tuple[Signature, Signature]]:
    """Yield each op's signature in both traces, which hold the same ops."""
    for a, b in zip(left.ops.signature.tolist(), right.ops.signature.tolist(), strict=True):
        yield left.signatures[a], right.signatures[b]


def as_profiled(trace: Trace) -> Trace:
    """Return the trace without tensors and results, which torch's profiler does not record."""
    bare = tuple(Signature(item.arguments) for item in trace.signatures)
    return replace(trace, signatures=bare, operands=build_table(OperandTable, 0), tensors=build_table(TensorTable, 0))


def _print_types(cases: list[Case], batch_size: int) -> None:
    print("\nfloat32 moved to bf16, against a recording under autocast: ops with equal types; bytes of conversions;")
    print("the same with neither tensors nor results identified: ops with the types found with them; bytes")
    for case in cases:
        whatif = with_precision(case.record(batch_size), TargetPrecision.BF16)
        recorded = case.record(batch_size, autocast=True)
        ours, theirs = Counter(_calls(whatif.trace)), Counter(_calls(recorded))
        equal, total = sum((ours & theirs).values()), sum(ours.values())
        judged = with_precision(as_profiled(case.record(batch_size)), TargetPrecision.BF16)
        is_view = [family_of(item) is Family.VIEW for item in whatif.trace.strings]
        named = zip(whatif.trace.ops.name.tolist(), signature_pairs(judged.trace, whatif.trace), strict=True)
        pairs = [pair for name, pair in named if not is_view[name]]
        alike = sum(a.arguments == b.arguments for a, b in pairs) / len(pairs)
        bytes_judged = float(judged.casts.moved_bytes.sum())
        bytes_ours, bytes_theirs = float(whatif.casts.moved_bytes.sum()), sum(_converted_bytes(recorded))
        print(
            f"{case.model:12}{case.mode:10}{equal:6} of {total:6}  {equal / total:7.2%}   "
            f"{bytes_ours / 1e6:9.1f} MB of {bytes_theirs / 1e6:9.1f} MB ({bytes_ours / bytes_theirs - 1:+.1%})   "
            f"{alike:7.2%}  {bytes_judged / bytes_theirs - 1:+.0%}",
            flush=True,
        )


def _print_times(cases: list[Case]) -> None:
    catalog, library = load_catalog(), load_library()
    gpus = [find_gpu(catalog, name) for name in GPUS]
    print("\nPredicted GPU time, ms: float32 recording | moved to bf16 | recorded under autocast | model cast to bf16")
    errors: dict[str, list[float]] = {name: [] for name in GPUS}
    for case in cases:
        size = BATCH_SIZES[case.model][0]
        wide = case.record(size)
        columns = [
            _busy_ms(Whatif(trace=wide), gpus, library),
            _busy_ms(with_precision(wide, TargetPrecision.BF16), gpus, library),
            _busy_ms(Whatif(trace=case.record(size, autocast=True)), gpus, library),
            _busy_ms(Whatif(trace=case.record(size, dtype="bf16")), gpus, library),
        ]
        for place, name in enumerate(GPUS):
            before, moved, autocast, cast = (column[place] for column in columns)
            errors[name].append(moved / autocast - 1)
            print(
                f"{case.model:12}{case.mode:10}b{size:<6}{name:16}{before:9.3f}{moved:9.3f}{autocast:9.3f}{cast:9.3f}  "
                f"against autocast {moved / autocast - 1:+6.1%}, against bf16 throughout {moved / cast - 1:+6.1%}"
            )
    for name, found in errors.items():
        mean, worst = sum(map(abs, found)) / len(found), max(map(abs, found))
        print(f"{name}: |difference| from the recording under autocast: mean {mean:.1%}, worst {worst:.1%}")


def _busy_ms(whatif: Whatif, gpus: list[Gpu], library: Any) -> list[float]:
    workload = shape_workload(whatif.trace, select_window(whatif.trace))
    busy_ns = predict_shapes(workload, gpus, library).total_busy_ns()
    return [
        float(value) / 1e6 for value in busy_ns + cast_times_ns(whatif.casts, build_fleet(gpus), library).sum(axis=0)
    ]


def _calls(trace: Trace) -> Iterator[tuple[object, ...]]:
    """Yield name, shapes and types of calls that compute; attention kernels differ by precision, so by family."""
    for name, number, phase in zip(
        trace.ops.name.tolist(), trace.ops.signature.tolist(), trace.ops.phase.tolist(), strict=True
    ):
        full = trace.strings[name]
        if phase == Phase.OPTIMIZER or family_of(full) is Family.VIEW or short_name(full) in _UNCOUNTED:
            continue
        signature = trace.signatures[number]
        inputs, results = _described(signature.arguments), _described(signature.results)
        if "attention" in full:
            backward = "backward" in full
            yield ("attention", inputs[: 3 + backward], results[: 3 if backward else 1])
        else:
            yield (short_name(full), inputs, results)


_UNCOUNTED = ("_to_copy", "empty", "new_empty", "empty_like", "arange", "zeros")


def _described(arguments: tuple[Argument, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((spec.dtype, spec.shape) for spec in flatten_tensors(arguments))


def _converted_bytes(trace: Trace) -> Iterator[float]:
    """Yield what each conversion between float32 and bf16 moves."""
    for name, number in zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True):
        signature = trace.signatures[number]
        tensors = [*flatten_tensors(signature.arguments), *flatten_tensors(signature.results)]
        if short_name(trace.strings[name]) == "_to_copy" and {item.dtype for item in tensors} == {
            "float32",
            "bfloat16",
        }:
            yield sum(item.size_bytes for item in tensors)


if __name__ == "__main__":
    main()
