"""The page docs/accuracy.md, written from a score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Final

from ....page.columns import count_column, number_column, text_column
from ....page.page import Line, Page, Passage, Tone, build_page
from ....page.quantity import format_count, percent
from ....page.sheet import Sheet
from ..baselines import ANCHORED, BANDWIDTH_RATIO, FITTED_ROOFLINE, ROOFLINE
from ..end_to_end import NETWORKS, OP_SUM
from ..report import CLASS_LABELS, EVERYTHING, MEAN, IterationScore, NetworkRow, Score, ScoreRow, Size, ThroughputRow
from ..throughput import THROUGHPUT
from .iterations import RECOMMENDER_LINES, iteration_sheet, recommender_sheet, worst_iteration_sheet
from .page import decision_sheet, error_sheet, network_sheet, trace_sheet, worst_sheet
from .throughput import family_sheet, worst_model_sheet

WORST_GROUPS: Final = 15
LEAST_ROWS: Final = 30
"""A group of fewer rows is not called a worst one."""
TABLE_TITLES: Final = {
    "ops/matmul.parquet": "Matrix products",
    "ops/attention.parquet": "Attention",
    "ops/vector.parquet": "Elementwise ops, normalisation, softmax, copies, embedding",
    "ops/convolution.parquet": "Convolution",
    "ops/convolution_general.parquet": "Convolution in every direction and format",
    "ops/recurrent.parquet": "Recurrent layers",
    "ops/attention_backward.parquet": "Attention, backward",
    "ops/norm_backward.parquet": "Norms, forward and backward",
    "ops/batch_norm.parquet": "Batch norm",
    "ops/vector_liger.parquet": "Norms, losses and activations, timed by Liger's benchmarks",
    "ops/vector_kernelbench.parquet": "Pooling, reductions, losses and scans",
    "ops/moe.parquet": "Layers of experts",
    "ops/context_mla.parquet": "Latent attention of many queries",
    "ops/generation_mla.parquet": "Latent attention of one query",
    "ops/mla_bmm.parquet": "Products of latent attention",
    "ops/gdn.parquet": "Gated delta nets",
    "ops/mamba2.parquet": "Mamba-2",
    "ops/vector_more.parquet": "Elementwise ops, more sources",
    "ops/matmul_more.parquet": "Matrix products, more sources",
    "models/neusight_ops.parquet": "Ops of networks, beside the predictions of others",
    "models/neusight_e2e.parquet": "Whole networks",
    THROUGHPUT: "Image models from their shapes alone",
}
HEAD: Final = """\
# Accuracy

This page is generated: `python -m wavecast.analyzer.questions.score.page SCORE -o docs/accuracy.md` writes it from
the JSON that `wavecast score DATA --leave-one-out --format json` prints, of which `docs/accuracy.json.gz` is a copy.
DATA holds public measurements (NVIDIA's aiconfigurator, NeuSight, vidur) and profiler traces. Figures that disappoint
stand here too.

**Every GPU is predicted by models that never saw its chip**, so that twins (B200 and GB200, PCIe and SXM versions) are
left out together. What differs from a GPU that nobody has measured yet: the same libraries' versions, and mostly the
same shapes, were seen on other GPUs.

Errors are in %: MAPE is the mean of \\|predicted / measured − 1\\|, bias the mean of predicted / measured − 1. A bold
line is the mean over the GPUs below it. Baselines on the same rows, those above 20 µs where there are any: the
roofline; the roofline over one efficiency per family and dtype, fitted on the other chips; the nearest other chip's
measurement of the same problem times the ratio of bandwidths; and, as *anchored*, wavecast's prediction given that
measurement too, which is what `analyze` does with a measured trace. A dash: nothing to say."""
UNMODELLED: Final = """\
## What is not modelled

- Collectives of unknown sizes, sorts, ops whose work depends on values: rooflines, ratios or nothing (see `analyze`).
- The host: launches, Python, data loading. A recorded host's times are taken as they are, a trace of shapes gets a
  usual host's ([replay.md](replay.md)), which shows only where the GPU waits for it. The fp32
  tables time single launches from the host, whose floor (15 to 60 µs) is unknown for a GPU that is left out; their rows
  under about 100 µs say more about that host than about the GPU.
- Library versions: two versions of one library differ by 4 to 8 % on the same GPU and shapes.
- Clocks below the boost clock by temperature, sharing, or power limits other than the catalogue's.
- The data: real activations may need less power than random ones, and so run at higher clocks.
- Interference of kernels that run at the same time, and what the L2 cache keeps from one op to the next.
- GPUs far from all measured ones: AMD cards rest on one measured GPU of that vendor (MI100, fp32). Intervals widen with
  the distance from the measured GPUs, but nothing has checked them there."""


def describe_accuracy(score: Score) -> Page:
    """Return the page: prose in Markdown, which names each table, and the tables."""
    return build_page(*map(_block, _sections(score)))


def _block(section: str | Sheet) -> Passage | Sheet:
    if isinstance(section, Sheet):
        return replace(section, title="")
    return Passage(lines=(Line(text=section, tone=Tone.MARKDOWN),))


def _sections(score: Score) -> Iterator[str | Sheet]:
    yield HEAD
    yield "## All ops together"
    everything = [row for row in score.rows if row.table == EVERYTHING]
    yield error_sheet("", everything)
    yield from _interval_lines(score.rows)
    yield from _baseline_lines(score.rows)
    for table in dict.fromkeys(row.table for row in score.rows if row.table != EVERYTHING):
        yield f"## {TABLE_TITLES.get(table, table)}"
        yield f"From `{table}`."
        yield error_sheet("", [row for row in score.rows if row.table == table])
        yield from _network_lines(score) if table == NETWORKS else ()
        yield from _throughput_lines(score.throughput) if table == THROUGHPUT else ()
    yield from _iteration_lines(score.iterations)
    yield from _recommender_lines(score.recommenders)
    if score.decisions:
        yield "## Which GPU or plan is better"
        yield (
            "Every two GPUs that measured the same network: how often the faster one, and by the catalogue's prices "
            "the one that is cheaper per sample, was named rightly, in %. And every two plans of the same model, "
            "task, GPUs, batch and precision, within a source and across sources."
        )
        yield decision_sheet(score.decisions)
    if score.traces:
        yield "## Traces moved to another GPU"
        yield (
            "The same step recorded on two GPUs, each predicted from the other's trace. Busy is the union of the GPU's "
            "kernels. The hosts differ, so that the iteration also holds another machine's CPU: read busy."
        )
        yield trace_sheet(score.traces)
    yield from _worst_lines(score)
    yield UNMODELLED
    yield from (f"- {note}" for note in score.notes)
    yield "How well plain wave scaling does, without any fitted model: [wave-scaling.md](wave-scaling.md)."


def _interval_lines(rows: Sequence[ScoreRow]) -> Iterator[str | Sheet]:
    pooled = [row for row in rows if row.table == EVERYTHING and row.size is Size.ALL and isfinite(row.coverage_90)]
    classes = set(CLASS_LABELS.values())
    over_all = [row for row in pooled if row.gpu == EVERYTHING]
    by_class = [row for row in pooled if row.gpu in classes]
    by_gpu = sorted((row for row in pooled if row.gpu not in {EVERYTHING, *classes}), key=lambda row: row.coverage_90)
    if over_all and by_gpu:
        low, high = by_gpu[0], by_gpu[-1]
        yield (
            f"The 90 % intervals hold {percent(over_all[0].coverage_90)} % of the measurements; by GPU from "
            f"{percent(low.coverage_90)} % ({low.gpu}) to {percent(high.coverage_90)} % ({high.gpu}). Half of them are "
            f"narrower than {percent(over_all[0].median_width_90)} % of the prediction; their mean width is "
            f"{percent(over_all[0].width_90)} %, by GPU from {percent(min(row.width_90 for row in by_gpu))} % to "
            f"{percent(max(row.width_90 for row in by_gpu))} %."
        )
        yield _interval_sheet([*over_all, *by_class, low])


def _interval_sheet(rows: Sequence[ScoreRow]) -> Sheet:
    """Return coverage and width side by side: of all, of each class, and of the GPU whose intervals hold least."""
    names = [f"worst GPU: {row.gpu}" if row is rows[-1] else row.gpu for row in rows]
    columns = (
        text_column("GPUs", names),
        count_column("rows", (row.rows for row in rows)),
        number_column("in 90 % interval", (percent(row.coverage_90) for row in rows)),
        number_column("median width", (percent(row.median_width_90) for row in rows)),
        number_column("mean width", (percent(row.width_90) for row in rows)),
        number_column("MAPE", (percent(row.mape) for row in rows)),
    )
    return Sheet(title="", columns=columns)


def _baseline_lines(rows: Sequence[ScoreRow]) -> Iterator[str]:
    groups = [row for row in rows if row.size is Size.OVER_20_US and _is_group(row)]
    names = {
        ROOFLINE: "the roofline",
        FITTED_ROOFLINE: "the roofline with a fitted efficiency",
        BANDWIDTH_RATIO: "the bandwidth ratio",
    }
    parts = []
    for kind, name in names.items():
        known = [row for row in groups if kind in row.baselines]
        own = ANCHORED if kind == BANDWIDTH_RATIO else None
        better = sum(row.baselines.get(own or "", row.mape) < row.baselines[kind] for row in known)
        parts.append(f"{name} in {better} of {len(known)}")
    if groups:
        yield (
            f"Of the {len(groups)} groups of family, dtype and GPU with rows above 20 µs, wavecast's MAPE is lower "
            f"than that of {', '.join(parts)} (there anchored, so that both know the same)."
        )


def _network_lines(score: Score) -> Iterator[str | Sheet]:
    trusted = [row for row in score.networks if not row.is_suspect]
    if not trusted:
        return
    nvidia = [row for row in trusted if "Instinct" not in row.gpu]
    yield (
        "Each network is predicted from the shapes of its ops: one layer as often as it has layers, what comes before "
        "and after it, and for training the backward and the accumulation of gradients. Peers' predictions are those "
        "that the table holds; NeuSight was trained on these GPUs. Errors below are signed."
    )
    yield (
        f"Mean absolute error over {format_count(len(trusted), 'network')}: {percent(error_of(trusted))} %; over the "
        f"{len(nvidia)} on NVIDIA GPUs {percent(error_of(nvidia))} %, where the sum of the *measured* ops is off by "
        f"{percent(error_of(nvidia, OP_SUM))} %, NeuSight by {percent(error_of(nvidia, 'neusight'))} % and the "
        f"roofline by {percent(error_of(nvidia, ROOFLINE))} %."
    )
    yield network_sheet(score.networks)


def _throughput_lines(rows: Sequence[ThroughputRow]) -> Iterator[str | Sheet]:
    models, families = {row.model for row in rows}, {row.family for row in rows}
    yield (
        f"{format_count(len(models), 'timm model')} of {format_count(len(families), 'family', 'families')}, drawn by "
        "rule and not by error (`samples/timm.toml`, `benchmarks/make/record_timm.py`), recorded on the meta device "
        "without a GPU: float32 weights under float16 autocast, at the measured batch sizes. Times are predicted "
        "absolutely, nothing measured; *anchored* and the ratios (*bandw.*, *peak*: of dense float16 matrix rates, "
        "*roofline*: of the trace's rooflines) start from the other GPU's measurement of the same model, layout and "
        "software. NCHW "
        "and NHWC are contiguous and channels-last tensors; compiled rows are predicted with what inductor's scheduler "
        "would merge into one kernel ([what-if.md](what-if.md#--fuse-elementwise)). Rows of torch before 2.1 are left "
        "out: attention ran otherwise."
    )
    yield (
        "Rows whose parameter count is not the recorded one are left out too: they ran with the branches of "
        "reparametrized models merged. No weight and no constant was read off a time of the RTX 4090; which models' "
        "compiled rows it was off by most told where to look for what compiled code and older versions of torch do "
        "otherwise. Rows of the RTX 3090 are "
        "development data: no weight was trained on them, but forms of layer norm, strided copies, convolutions' "
        "layouts, groups, tiles and depthwise filters, products and attention were chosen with them in sight, and two "
        "values of depthwise filters were read off them ([models.md](models.md)): its rows are no test of these. "
        "How wide intervals are was learned from networks on other chips: RTX 4090's from those on RTX 3090 and older "
        "boards, and the other way round. An iteration's "
        "interval takes ops of a family to err together and families independently, and beside that all of a GPU's "
        "times to share one error, whose size those told ([method.md](method.md#5-intervals))."
    )
    yield (
        "Attention on tensors of three or five dimensions, which no fused kernel takes (hiera, nest, "
        "vision_transformer_sam), runs in float32 since torch 2.5, in half precision before: rows of older versions "
        "are predicted from recordings that do so too, by torch's own switch (`samples/timm-earlier.tar.xz`). "
        "Known causes of large errors: such attention in float32 where it is compiled; patches of 14 or 16 pixels are "
        "priced as slow as a trace of an H100 shows, whose library did not measure its algorithms as timm lets it; "
        "average pooling and casts of half precision; channels-last convolutions in groups of other than 4, 8 or 16 "
        "channels, most with torch 2.1."
    )
    yield "Mean signed errors of eager runs by timm's source file, over all software versions:"
    yield family_sheet(rows)
    worst = worst_model_sheet(rows)
    yield f"{worst.title}, run eagerly, each where it is worst:"
    yield worst


def _iteration_lines(rows: Sequence[IterationScore]) -> Iterator[str | Sheet]:
    if not rows:
        return
    yield "## Iterations on many GPUs"
    yield (
        "From `distributed/iterations.parquet`: MLPerf training, Megatron-Bridge, NeMo, dgxc, llm-foundry and "
        "fms-fsdp, on 1 to 11,616 GPUs. Each model is written as a recording of one GPU from its sizes, with the "
        "kernels that its framework runs; what each rank of the plan runs is derived from that, and an iteration "
        "predicted as `wavecast scale` does. No time was fitted on these rows; the half-width of the error that "
        "kernels share was, without the publisher that is scored (docs/many-gpus.md). Attention is an input: cuDNN's "
        "under Transformer Engine on Hopper, FlashAttention-2 elsewhere, at llm-foundry (2023) MPT's Triton kernel, "
        "for which memory-efficient attention stands. That, and what else llm-foundry's software does in an "
        "iteration, was looked up after its errors were seen. Rows whose plan or sizes are not given are left out."
    )
    yield (
        "Baselines: a utilisation of 40 %; the median utilisation of the same model on other GPUs, and under other "
        "plans on the same GPU; perfect weak scaling from the smallest row of the same series. *Anchored* is wavecast "
        "given one other row of the same model and GPU (another batch, plan or source; of llm-foundry one row per "
        "GPU), *from own smallest* wavecast given the row that perfect scaling is given. Below, data-parallel runs of "
        "other models, predicted from their own run on fewer GPUs."
    )
    yield iteration_sheet(rows)
    worst = worst_iteration_sheet(rows)
    yield f"{worst.title}:"
    yield worst


def _recommender_lines(rows: Sequence[IterationScore]) -> Iterator[str | Sheet]:
    if not rows:
        return
    yield "## Recommenders on many GPUs"
    yield from RECOMMENDER_LINES
    yield recommender_sheet(rows)


def error_of(rows: Sequence[NetworkRow], kind: str | None = None) -> float | None:
    """Return the mean absolute error of networks, or of a baseline over those that have it."""
    pairs = [(row.predicted_ns if kind is None else row.baselines_ns.get(kind), row.measured_ns) for row in rows]
    errors = [abs(guess / measured - 1) for guess, measured in pairs if guess is not None]
    return sum(errors) / len(errors) if errors else None


def _worst_lines(score: Score) -> Iterator[str | Sheet]:
    groups = [row for row in score.rows if row.size is Size.OVER_20_US and _is_group(row) and row.rows >= LEAST_ROWS]
    if groups:
        groups.sort(key=lambda row: -row.mape)
        yield "## Worst cases"
        yield f"The {min(WORST_GROUPS, len(groups))} groups with the largest MAPE above 20 µs."
        yield _group_sheet(groups[:WORST_GROUPS])
    if score.worst:
        yield "And single rows above 20 µs, at most one of each group."
        yield worst_sheet(score.worst)


def _group_sheet(rows: Sequence[ScoreRow]) -> Sheet:
    columns = (
        text_column("family, dtype", (f"{row.family}, {row.dtype}" for row in rows)),
        text_column("GPU", (row.gpu for row in rows)),
        count_column("rows", (row.rows for row in rows)),
        number_column("MAPE", (percent(row.mape) for row in rows)),
        number_column("bias", (percent(row.bias) for row in rows)),
        number_column("in 90 % interval", (percent(row.coverage_90) for row in rows)),
        number_column("median width", (percent(row.median_width_90) for row in rows)),
        number_column("mean width", (percent(row.width_90) for row in rows)),
        number_column("fitted roofline", (percent(row.baselines.get(FITTED_ROOFLINE)) for row in rows)),
    )
    return Sheet(title="", columns=columns)


def _is_group(row: ScoreRow) -> bool:
    return row.table.startswith("ops/") and row.gpu not in (EVERYTHING, MEAN)
