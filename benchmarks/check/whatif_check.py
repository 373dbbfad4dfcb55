"""Checks the what-ifs against recordings: `--batch`, `--sequence-length`, `--cached-tokens` and `--precision`.

Run: python -m benchmarks.check.whatif_check [batch lengths timm precision]      # default: all

Batch, lengths: each model is recorded (shapes only) at two sizes; the first, rescaled, must equal the second op by op.
Lengths are those of the samples that read text and of small configurations of transformers' models: whole sequences,
and one new token after those in a cache. Timm: every network of samples/timm.tar.xz that was recorded at several batch
sizes, from the smallest to the largest and back. Precision: the float32 recording, moved to bf16, is compared with one
made under autocast (its types op by op, its conversions byte by byte) and, in predicted GPU time, with one of the model
cast to bf16 as a whole.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.predict import predict_shapes
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.questions.score.throughput import list_recordings, read_recordings
from wavecast.analyzer.whatif.axis.change import with_batch, with_cached_tokens, with_sequence_length
from wavecast.analyzer.whatif.calls import short_name
from wavecast.analyzer.whatif.change import Whatif
from wavecast.analyzer.whatif.precision.precision import with_precision
from wavecast.analyzer.whatif.retiming.kernels import cast_times_ns
from wavecast.analyzer.whatif.scenario import TargetPrecision
from wavecast.analyzer.work import Family, family_of, work_of
from wavecast.errors import WavecastError
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Argument, Signature, flatten_tensors
from wavecast.formats.trace.tables import OperandTable, Phase, TensorTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration
from wavecast.tracer.named_models.recording import record_model
from wavecast.tracer.named_models.subject import Settings

from ..make.record_samples import BATCH_SIZES, MODES, Sample, build_step

GPUS: Final = ("H100 SXM5 80GB", "A100 SXM4 80GB")
LOW: Final = torch.bfloat16
BATCHES: Final = (4, 8)
LENGTHS: Final = (96, 160)
LENGTHS_BATCH: Final = 3
TEXT_SAMPLES: Final = ("bert_base", "gpt2_small", "seq2seq")
SIZES: Final = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral", "sliding_window": 2048},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "head_dim": 64},
    "Gemma2ForCausalLM": {"model_type": "gemma2", "head_dim": 64, "sliding_window": 2048},
    "GPT2LMHeadModel": {"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 4096},
    "GPTNeoXForCausalLM": {"model_type": "gpt_neox"},
    "OPTForCausalLM": {"model_type": "opt", "ffn_dim": 512, "word_embed_proj_dim": 256},
    "PhiForCausalLM": {"model_type": "phi"},
    "BertForMaskedLM": {"model_type": "bert"},
    "RobertaForMaskedLM": {"model_type": "roberta"},
    "MixtralForCausalLM": {"model_type": "mixtral", "num_local_experts": 4},
    "T5ForConditionalGeneration": {
        "model_type": "t5", "d_model": 256, "d_ff": 512, "num_layers": 2, "num_heads": 4, "is_encoder_decoder": True,
    },
    "BartForConditionalGeneration": {
        "model_type": "bart", "d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    },
}  # fmt: skip
DECODERS = tuple(name for name in CONFIGS if name.endswith(("CausalLM", "LMHeadModel")))


@dataclass(frozen=True, slots=True)
class Case:
    """Hold what is recorded."""

    model: str
    mode: str

    def record(self, batch_size: int, *, dtype: str = "fp32", autocast: bool = False) -> Trace:
        """Record the model on the meta device, with fixed warm-up."""
        module = import_module(f"..make.models.{self.model}", __package__)
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
    checks = {"batch": check_batch, "lengths": check_lengths, "timm": check_timm, "precision": check_precision}
    parser.add_argument("checks", nargs="*", choices=[*checks, []], default=list(checks))
    torch.backends.cudnn.allow_tf32 = False  # torch's default is TF32, and the recording says so
    for name in parser.parse_args().checks:
        checks[name]()


def sample_cases() -> list[Case]:
    """Return the samples' models, each training and in inference."""
    return [Case(model, mode) for model in BATCH_SIZES for mode in MODES]


def check_batch() -> None:
    """Rescale the samples' models to another batch."""
    print(f"\nBatch {BATCHES[0]} rescaled to {BATCHES[1]}, against a recording at {BATCHES[1]}: {COLUMNS}")
    for case in sample_cases():
        print_rescaled(f"{case.model:12}{case.mode:10}", case.record, BATCHES, with_batch)


def check_lengths() -> None:
    """Rescale models that read text to another length, and decoders to another cache."""
    before, after = LENGTHS
    print(f"\n{before} tokens rescaled to {after}, against a recording of {after}: {COLUMNS}")
    for model in (*TEXT_SAMPLES, *CONFIGS):
        for mode in MODES:
            print_rescaled(f"{model} {mode}", _recorder(model, mode), LENGTHS, with_sequence_length)
    print(f"\nOne token after {before} in a cache, rescaled to {after}")
    for model in DECODERS:
        decoder = partial(_record_named, model, "cached_tokens")
        print_rescaled(model, decoder, LENGTHS, with_cached_tokens)


COLUMNS: Final = """ops with equal signatures; the same
with neither tensors nor results identified, as profilers record: ops with equal arguments, and work"""


def print_rescaled(
    name: str, record: Callable[[int], Trace], sizes: tuple[int, int], change: Callable[[Trace, int], Whatif]
) -> None:
    """Print how much of a recording, rescaled to the second size, equals one of that size."""
    small, wanted = map(record, sizes)
    total = len(wanted.ops.name)
    try:
        got, bare = (change(trace, sizes[1]).trace for trace in (small, as_profiled(small)))
    except WavecastError as error:
        print(f"{name:42} refused: {error}")
        return
    if len(got.ops.name) != total:
        print(f"{name:42} {len(got.ops.name)} ops, {total} in the other recording")
        return
    equal = sum(left == right for left, right in signature_pairs(got, wanted))
    alike = sum(left.arguments == right.arguments for left, right in signature_pairs(bare, wanted))
    names = [bare.strings[row] for row in bare.ops.name.tolist()]
    calls = zip(names, signature_pairs(bare, as_profiled(wanted)), strict=True)
    worked = sum(work_of(op, left) == work_of(op, right) for op, (left, right) in calls)
    shares = f"{equal / total:8.2%}  {alike / total:8.2%} {worked / total:8.2%}"
    print(f"{name:42}{equal:6} of {total:6} {shares}", flush=True)


def _recorder(model: str, mode: str) -> Callable[[int], Trace]:
    if model in CONFIGS:
        return partial(_record_named, model, "sequence_length", mode=mode)
    module = import_module(f"..make.models.{model}", __package__)

    def record(length: int) -> Trace:
        vars(module)["LENGTH"] = length
        sample = Sample(model=model, mode=mode, precision="fp32", batch_size=LENGTHS_BATCH)
        return trace_iteration(build_step(module, sample, "meta"), device="meta", mode=mode, batch_size=LENGTHS_BATCH)

    return record


def _record_named(model: str, what: str, length: int, *, mode: str = "inference") -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**SIZES, "architectures": [model], **CONFIGS[model]}))
        settings = replace(Settings(mode=mode, batch_size=LENGTHS_BATCH), **{what: length})  # type: ignore[arg-type]
        return record_model("transformers", str(path), settings)


def check_timm() -> None:
    """Rescale timm's networks, on which the rules of `--batch` were not written, and print each pair that differs."""
    sizes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for name, layout, batch in list_recordings():
        sizes[name, layout].append(batch)
    ends = {key: (min(found), max(found)) for key, found in sizes.items() if len(found) > 1}
    wanted = {(*key, batch) for key, pair in ends.items() for batch in pair}
    traces = {(item.network.name, item.layout, item.batch): item.trace for item in read_recordings(wanted)}
    found: list[tuple[int, int]] = []
    for key, (low, high) in sorted(ends.items()):
        for before, after in ((low, high), (high, low)):
            small, recorded = traces[(*key, before)], traces[(*key, after)]
            if len(recorded.ops.name) == len(small.ops.name):
                rescaled = with_batch(small, after).trace
                equal = sum(one == other for one, other in signature_pairs(rescaled, recorded))
                found.append((equal, len(recorded.ops.name)))
                if equal < len(recorded.ops.name):
                    print(
                        f"{key[0]:<40} {key[1]}  {before:>4} -> {after:<4}  {equal:>5} of {found[-1][1]:>5} ops equal"
                    )
    equal, total = map(sum, zip(*found, strict=True))
    print(
        f"{len({name for name, _ in ends})} networks, {len(found)} pairs of batch sizes: "
        f"{sum(one == other for one, other in found)} equal in every op; "
        f"{equal:,} of {total:,} ops equal ({equal / total:.2%})"
    )


def signature_pairs(left: Trace, right: Trace) -> Iterator[tuple[Signature, Signature]]:
    """Yield each op's signature in both traces, which hold the same ops."""
    for a, b in zip(left.ops.signature.tolist(), right.ops.signature.tolist(), strict=True):
        yield left.signatures[a], right.signatures[b]


def as_profiled(trace: Trace) -> Trace:
    """Return the trace without tensors and results, which torch's profiler does not record."""
    bare = tuple(Signature(item.arguments) for item in trace.signatures)
    return replace(trace, signatures=bare, operands=build_table(OperandTable, 0), tensors=build_table(TensorTable, 0))


def check_precision() -> None:
    """Move the samples' models to bf16."""
    _print_types(sample_cases(), BATCHES[0])
    _print_times(sample_cases())


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
    workload = shape_workload(whatif.trace)
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
