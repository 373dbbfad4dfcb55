"""Check `--sequence-length` and `--cached-tokens` against recordings: python -m benchmarks.check.lengths_check

Each model is recorded (shapes only) at two lengths; the first, rescaled, must equal the second op by op. The sample
models that read text, and small configurations of transformers' models: whole sequences in training and inference, and
one new token after those in a cache.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from wavecast.analyzer.whatif.axis.change import with_cached_tokens, with_sequence_length
from wavecast.analyzer.work import work_of
from wavecast.errors import WavecastError
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration
from wavecast.tracer.named_models.recording import record_model
from wavecast.tracer.named_models.subject import Settings

from ..make.record_samples import Sample, build_step
from .whatif_check import as_profiled, signature_pairs

SAMPLES = ("bert_base", "gpt2_small", "seq2seq")
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs=2, type=int, default=(96, 160), metavar=("FROM", "TO"))
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=(*SAMPLES, *CONFIGS), default=[*SAMPLES, *CONFIGS])
    parser.add_argument("--show", action="store_true", help="the first ops that differ")
    options = parser.parse_args()
    before, after = options.lengths
    print(f"{before} tokens rescaled to {after}, against a recording of {after}: ops with equal signatures; the same")
    print("with neither tensors nor results identified, as profilers record: ops with equal arguments, and work")
    for model in options.models:
        for mode in ("training", "inference"):
            _print(
                f"{model} {mode}",
                _recorder(model, mode, options.batch),
                before,
                after,
                with_sequence_length,
                options.show,
            )
    print(f"\nOne token after {before} in a cache, rescaled to {after}")
    for model in (name for name in options.models if name in DECODERS):
        _print(model, _decoder(model, options.batch), before, after, with_cached_tokens, options.show)


def _print(
    name: str,
    record: Callable[[int], Trace],
    before: int,
    after: int,
    change: Callable[[Trace, int], Any],
    shows: bool,
) -> None:
    small, wanted = record(before), record(after)
    total = len(wanted.ops.name)
    try:
        got = change(small, after).trace
        if len(got.ops.name) != total:
            print(f"{name:42} {len(got.ops.name)} ops, {total} in the other recording")
            return
        pairs = list(signature_pairs(got, wanted))
        equal = sum(left == right for left, right in pairs)
        bare = change(as_profiled(small), after).trace
    except WavecastError as error:
        print(f"{name:42} refused: {error}")
        return
    alike = sum(left.arguments == right.arguments for left, right in signature_pairs(bare, wanted))
    names = [got.strings[row] for row in got.ops.name.tolist()]
    calls = zip(names, signature_pairs(bare, as_profiled(wanted)), strict=True)
    worked = sum(work_of(op, left) == work_of(op, right) for op, (left, right) in calls)
    counts = (got.tensors.element_count == wanted.tensors.element_count).mean()
    print(
        f"{name:42}{equal:6} of {total:6} {equal / total:8.2%} (tensors {counts:7.2%})  {alike / total:8.2%} "
        f"{worked / total:8.2%}",
        flush=True,
    )
    if shows:
        _show(names, pairs)


def _show(names: list[str], pairs: list[tuple[Any, Any]]) -> None:
    wrong = [(name, pair) for name, pair in zip(names, pairs, strict=True) if pair[0] != pair[1]]
    print("   ", Counter(name for name, _ in wrong).most_common(6))
    for name, (left, right) in wrong[:2]:
        print(f"    {name}\n      {left}\n      {right}")


def _recorder(model: str, mode: str, batch: int) -> Callable[[int], Trace]:
    if model in CONFIGS:
        return lambda length: _record_named(model, Settings(mode=mode, batch_size=batch, sequence_length=length))
    module = import_module(f"benchmarks.make.models.{model}")

    def record(length: int) -> Trace:
        vars(module)["LENGTH"] = length
        sample = Sample(model=model, mode=mode, precision="fp32", batch_size=batch)
        return trace_iteration(build_step(module, sample, "meta"), device="meta", mode=mode, batch_size=batch)

    return record


def _decoder(model: str, batch: int) -> Callable[[int], Trace]:
    return lambda count: _record_named(model, Settings(mode="inference", batch_size=batch, cached_tokens=count))


def _record_named(model: str, settings: Settings) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**SIZES, "architectures": [model], **CONFIGS[model]}))
        return record_model("transformers", str(path), settings)


if __name__ == "__main__":
    main()
