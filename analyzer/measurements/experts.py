"""Layers of experts, measured whole: `ops/moe.parquet`."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Codes, Floats, Mask
from ...specs.experts_kernels import ExpertsKernel
from ...specs.fleet import build_fleet
from ...specs.gpu import Catalog, Rate
from ..models.experts.machine import has_generated
from ..models.experts.problems import FORMAT_BYTES, ExpertsProblems, least_work, load_columns
from ..models.experts.routing import rank_load
from ..models.frame.problems import rate_codes
from ..work.work import ExpertsFormat
from .samples import (
    MeasurementTable,
    Samples,
    TableColumn,
    gpus_of,
    keep_known,
    pick,
    read_table,
    samples_of,
    shape_share,
)

TABLE: Final = "ops/moe.parquet"
SIZES: Final = ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep")
COLUMNS: Final = ("gpu", *SIZES, "distribution", "kernel", "dtype", "latency_us")
FORMATS: Final[Mapping[str, ExpertsFormat]] = {
    "bf16": ExpertsFormat.PLAIN,
    "fp8": ExpertsFormat.FP8,
    "fp8_block": ExpertsFormat.FP8_BLOCK,
    "nvfp4": ExpertsFormat.FP4,
    "w4a8_mxfp4_mxfp8": ExpertsFormat.W4A8,
    "w4afp8": ExpertsFormat.W4A8,
    "int4_wo": ExpertsFormat.W4A16,
    "w4a16_mxfp4": ExpertsFormat.W4A16,
}
MXFP4: Final = ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8")
KERNELS: Final = (
    ("trtllm", ExpertsKernel.TRTLLM_GEN),
    ("min_latency", ExpertsKernel.TRTLLM_GEN),
    ("flashinfer_mxfp4", ExpertsKernel.TRTLLM_GEN),
    ("cutedsl", ExpertsKernel.CUTE_DSL),
    ("marlin", ExpertsKernel.MARLIN),
    ("deepgemm", ExpertsKernel.DEEP_GEMM),
    ("sglang_fused_moe_triton", ExpertsKernel.TRITON_FIXED),
    ("vllm_fused_moe", ExpertsKernel.TRITON_FIXED),
    ("triton", ExpertsKernel.TRITON),
    ("cutlass", ExpertsKernel.CUTLASS),
    ("nongated", ExpertsKernel.CUTLASS),
    ("moe_torch_flow", ExpertsKernel.CUTLASS),
)
"""What a kernel's name in the table holds; the first that fits."""
ROWS_PER_GPU: Final = 12000
"""Drawn by shape, the same ones on every GPU."""
THINNING: Final = 14
"""Makes that draw another than the training's, which is by shape as well."""
MOVED: Final = ("sglang_fused_moe_triton", "sglang_marlin_moe")
UNTUNED, UNTUNED_GPU = "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "H100 SXM5 80GB"
BALANCED: Final = "balanced"
POWER_LAW: Final = "power_law_"
_LAWS: Final = re.compile(rf"{BALANCED}|{POWER_LAW}[0-9]+([.][0-9]+)?")


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[ExpertsProblems]]:
    """Return rows of every format, at most so many per GPU."""
    table = read_table(data / TABLE, COLUMNS)
    table, notes = keep_known(
        pick(table, _is_sound(table)),
        {
            "dtype": FORMATS,
            "kernel": [name for name in set(table["kernel"].tolist()) if any(part in name for part, _ in KERNELS)],
            "distribution": [name for name in set(table["distribution"].tolist()) if _LAWS.fullmatch(name)],
        },
    )
    sizes = [table[name] for name in SIZES]
    share = shape_share(*sizes)
    keep = _first_per_gpu(table["gpu"].astype(str), shape_share(*sizes, np.full(len(share), THINNING)))
    table, share = pick(table, keep), share[keep]
    gpus, gpu = gpus_of(table["gpu"], catalog)
    problems = problems_of_rows(table, has_generated(build_fleet(gpus))[gpu])
    return [
        replace(
            samples_of(table, "experts", problems, catalog, family="experts", share=share),
            work=least_work(problems),
            notes=notes,
        )
    ]


def _is_sound(table: MeasurementTable) -> TableColumn:
    """Say which rows time what they say.

    With experts on other ranks, a version of SGLang's collector has choices of those computed on the first expert of
    this one: B200's and GB200's rows, of two versions, differ by 15-25 % there, where the twins' others do by 4 %.
    FlashInfer's fp8 CUTLASS kernels on H100 take 2.6 times TensorRT-LLM's, which are the same: nothing tuned them.
    """
    names = table["kernel"].astype(str)
    is_moved = (table["ep"] > 1) & np.isin(names, MOVED)
    is_untuned = (names == UNTUNED) & (table["gpu"].astype(str) == UNTUNED_GPU)
    return np.asarray(~is_moved & ~is_untuned & (table["distribution"].astype(str) != "power_law_0"))


def _first_per_gpu(gpu: TableColumn, share: Floats) -> TableColumn:
    keep = np.zeros(len(gpu), dtype=bool)
    for name in np.unique(gpu):
        rows = np.flatnonzero(gpu == name)
        keep[rows[np.argsort(share[rows], kind="stable")[:ROWS_PER_GPU]]] = True
    return keep


def kernel_named(name: str) -> ExpertsKernel:
    """Return the implementation that a name in the table stands for.

    >>> kernel_named("vllm_unquantizedfusedmoe_triton_tritonexperts").name
    'TRITON'
    """
    return next(kernel for part, kernel in KERNELS if part in name)


def problems_of_rows(table: Mapping[str, TableColumn], is_generated: Mask) -> ExpertsProblems:
    """Return rows of the table as problems: the busiest rank's share, weights used again and again.

    `is_generated`: whether the row's GPU has TensorRT-LLM's generated kernels.
    """
    sizes = {name: table[name].astype(np.float64) for name in SIZES}
    names, named = np.unique(table["kernel"].astype(str), return_inverse=True)
    is_ungated = np.array(["nongated" in name for name in names.tolist()], dtype=bool)[named]
    dtypes, dtype = np.unique(table["dtype"].astype(str), return_inverse=True)
    formats = [FORMATS[name] for name in dtypes.tolist()]
    found = [FORMAT_BYTES[item] for item in formats]
    is_converted = [item not in (ExpertsFormat.PLAIN, ExpertsFormat.W4A16) for item in formats]
    intermediate = np.floor(sizes["inter"] / sizes["tp"])
    return ExpertsProblems(
        tokens=sizes["tokens"],
        choices=sizes["tokens"] * sizes["topk"],
        hidden=sizes["hidden"],
        columns=intermediate * np.where(is_ungated, 1.0, 2.0),
        intermediate=intermediate,
        experts=sizes["experts"],
        local_experts=np.floor(sizes["experts"] / sizes["ep"]),
        **_loads(table),
        input_bytes=np.array([item.inputs for item in found], dtype=np.float64)[dtype],
        weight_bytes=np.array([item.weights for item in found], dtype=np.float64)[dtype],
        rate=rate_codes([item.rate or Rate.MATRIX_BF16 for item in found])[dtype],
        format=np.array([int(item) for item in formats], dtype=np.int64)[dtype],
        kernel=_kernels(table, is_generated),
        quantized=np.array(is_converted, dtype=np.int64)[dtype],
        copies=np.ones(len(dtype)),
    )


def _loads(table: Mapping[str, TableColumn]) -> dict[str, Floats]:
    laws, law = np.unique(table["distribution"].astype(str), return_inverse=True)
    skews = [0.0 if name == BALANCED else float(name.removeprefix(POWER_LAW)) for name in laws.tolist()]
    skew = np.array(skews, dtype=np.float64)[law].tolist()
    sizes = [table[name].astype(np.int64).tolist() for name in ("tokens", "topk", "experts", "ep")]
    return load_columns([rank_load(*row) for row in zip(*sizes, skew, strict=True)])


def _kernels(table: Mapping[str, TableColumn], is_generated: Mask) -> Codes:
    """Return the implementation of each row; TensorRT-LLM's layers of mxfp4 run generated kernels or Triton's."""
    names, named = np.unique(table["kernel"].astype(str), return_inverse=True)
    kernel = np.array([int(kernel_named(name)) for name in names.tolist()], dtype=np.int64)[named]
    is_packed = np.isin(table["dtype"].astype(str), MXFP4) & (table["kernel"].astype(str) == "moe_torch_flow")
    packed = np.where(is_generated, ExpertsKernel.TRTLLM_GEN, ExpertsKernel.TRITON)
    return np.where(is_packed, packed, kernel).astype(np.int64)
