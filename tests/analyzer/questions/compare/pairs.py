"""Whether `wavecast compare` names what was changed between two traces, and nothing where nothing was.

Each pair is one small model recorded twice as shapes alone, with one switch changed. A pair is right where the kind of
change that was made comes first by its size or is said in words, and where no more groups are named than the change
explains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.compare.compare import ComparedTrace, compare_traces
from wavecast.analyzer.questions.compare.report import ChangeKind, Comparison
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpus

from .models import Setup, record

GPT = Setup()
INFERENCE = replace(GPT, training=False)
CONVNET = Setup(model="convnet", layers=3, width=64, length=64)
MLP = Setup(model="mlp", layers=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Say what was changed, what must be said of it, and in how many groups at most; no kind: nothing changed."""

    name: str
    old: Setup
    new: Setup
    kind: ChangeKind | None = None
    words: str = ""
    most_groups: int = 1


def _pair(name: str, old: Setup, kind: ChangeKind, words: str, most_groups: int = 1, **changed: object) -> Expected:
    new = replace(old, **changed)  # type: ignore[arg-type]
    return Expected(name=name, old=old, new=new, kind=kind, words=words, most_groups=most_groups)


KIND = ChangeKind
PAIRS = (
    Expected(name="gpt training, unchanged", old=GPT, new=GPT),
    Expected(name="gpt inference, unchanged", old=INFERENCE, new=INFERENCE),
    Expected(name="convnet, unchanged", old=CONVNET, new=CONVNET),
    Expected(name="mlp, unchanged", old=MLP, new=MLP),
    _pair("batch doubled", GPT, KIND.SIZE, "batch 8 → 16", batch=16),
    _pair("batch doubled, sizes not told", replace(GPT, with_sizes=False), KIND.SIZE, "batch 8 → 16", batch=16),
    _pair("images doubled in number", CONVNET, KIND.SIZE, "batch 8 → 16", batch=16),
    _pair("sequence doubled", GPT, KIND.SIZE, "sequence length 128 → 256", length=256),
    _pair("width doubled", GPT, KIND.SIZE, "width 256 → 512", width=512),
    _pair("layer added", GPT, KIND.MODULE_ADDED, "blocks.", 2, layers=5),
    _pair("layer removed", GPT, KIND.MODULE_REMOVED, "blocks.", 2, layers=3),
    _pair("layer added to a Sequential", MLP, KIND.MODULE_ADDED, "added", 2, layers=5),
    _pair("activation", GPT, KIND.REPLACED, "gelu → relu", activation="relu"),
    _pair("norm", GPT, KIND.REPLACED, "layer_norm", 2, norm="rms"),
    _pair("dropout added", GPT, KIND.ADDED, "dropout", 3, dropout=0.1),
    _pair("attention written out", GPT, KIND.ATTENTION, "attention no longer fused", 3, attention="written out"),
    _pair("attention fused", replace(GPT, attention="written out"), KIND.ATTENTION, "fused", 3, attention="sdpa"),
    _pair("attention written out, inference", INFERENCE, KIND.ATTENTION, "no longer fused", 2, attention="written out"),
    _pair("q, k, v apart", GPT, KIND.MODULE_ADDED, "in 4", 6, qkv="apart"),
    _pair("weights tied", GPT, KIND.TIED, "weights tied", 2, tied=True),
    _pair("optimizer fused", GPT, KIND.OPTIMIZER, "optimizer fused", optimizer="adamw fused"),
    _pair("optimizer goes tensor by tensor", GPT, KIND.OPTIMIZER, "tensor by tensor", optimizer="adamw single"),
    _pair("another optimizer", GPT, KIND.OPTIMIZER, "Adam → SGD", 2, optimizer="sgd"),
    _pair("bfloat16 weights", GPT, KIND.PRECISION, "float32 → bfloat16", 2, precision="bf16"),
    _pair("autocast", GPT, KIND.PRECISION, "float32 → bfloat16", 3, precision="autocast"),
    _pair("TF32", GPT, KIND.PRECISION, "TF32 switched on", precision="tf32"),
    _pair("checkpointing", GPT, KIND.RECOMPUTED, "activation checkpointing", 2, checkpointing=True),
    _pair("first layers frozen", GPT, KIND.FROZEN, "weights frozen", 3, frozen=2),
    _pair("gradients accumulated", GPT, KIND.REPEATED, "1 → 2 times", 2, accumulate=2),
    _pair("gradients clipped", GPT, KIND.ADDED, "", 3, clip=True),
    _pair("channels last", CONVNET, KIND.LAYOUT, "channels now last", 2, channels_last=True),
    _pair("batch norm removed", CONVNET, KIND.MODULE_REMOVED, "in 3", 4, batch_norm=False),
    _pair("inference", GPT, KIND.MODE, "training → inference", 2, training=False),
)


@cache
def recorded(setup: Setup) -> Trace:
    """Record each setup once; an unchanged pair is recorded twice by `compare_pair`."""
    return record(setup)


def compare_pair(pair: Expected) -> Comparison:
    """Return what is found on an H100."""
    catalog = load_catalog(None)
    new = record(pair.new) if pair.new == pair.old else recorded(pair.new)
    targets = find_gpus(catalog, "h100 sxm")[:1]
    sides = ComparedTrace(trace=recorded(pair.old)), ComparedTrace(trace=new)
    return compare_traces(*sides, catalog, targets=targets, library=load_library())


def fault(pair: Expected, found: Comparison) -> str:
    """Return what is wrong with what was found; nothing where it is right."""
    groups = found.groups
    if pair.kind is None:
        return "false alarm" if groups or found.gpus[0].change != 0 else ""
    if not any(group.kind is pair.kind and pair.words in group.cause for group in groups):
        return "missed"
    return "" if len(groups) <= pair.most_groups else f"{len(groups)} groups, {pair.most_groups} at most"
