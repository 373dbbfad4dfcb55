"""Matrix products of every format but fp32, measured alone: `ops/matmul.parquet` for the models of matrix units."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ...records import dataclass, replace
from ...specs.gpu import Catalog
from ..models.frame.problems import problems_from, rate_codes, take_problems
from ..models.matmul.problems import COLD_COPIES, FORMATS, Format, MatmulKernel, MatmulProblems
from .own_products import load_own_products
from .samples import MeasurementTable, Samples, TableColumn, keep_known, pick, read_table, samples_of, shape_share

TABLE: Final = "ops/matmul.parquet"
MORE_TABLE: Final = "ops/matmul_more.parquet"
COLUMNS: Final = ("gpu", "batch", "m", "n", "k", "dtype", "latency_us", "suspect")
MORE_COLUMNS: Final = ("gpu", "batch", "m", "n", "k", "dtype", "latency_us", "source", "note", "accumulate")
OUT_BYTES: Final = 2.0
"""Every format here writes 2-byte floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulSource:
    """Say how a project measured its products."""

    family: str
    copies: float
    """Working sets that it goes through; 1: the same operands again and again."""
    is_column_major: bool = False
    """Its m lies along memory: the product of the transposed matrices in rows."""


SOURCES: Final[Mapping[str, MatmulSource]] = {
    "llmservingsim/v0": MatmulSource(family="matmul (LLMServingSim)", copies=COLD_COPIES),
    "aiter": MatmulSource(family="matmul (aiter)", copies=COLD_COPIES),
    "deepbench": MatmulSource(family="matmul (DeepBench)", copies=1.0, is_column_major=True),
    "hipblaslt_logic": MatmulSource(family="matmul (hipBLASLt)", copies=1.0),
}
"""Of `ops/matmul_more.parquet`. LLMServingSim goes through a model's layers (on H100 its times are those of the first
table, whose operands rotate, which was looked at); DeepBench and hipBLASLt repeat one product; aiter's tuner rotates
its operands."""
UNTRAINED_SOURCES: Final = frozenset({"matmul (DeepBench)"})
"""cuBLAS of 2018 by a host's clock, 160 rows of V100: trained on, they made A100, left out, 10.4 % instead of 7.9
(which was looked at)."""
UNTRAINED_GPUS: Final = frozenset({"Instinct MI308X"})
"""Nobody states its rates: its firmware limits them below those of its units, which the catalogue has."""
FUSED_LOGIC: Final = "_Bias_"
"""In hipBLASLt's notes: tuned with bias, activation and scales in one kernel, which is another op."""


TUNED_SOURCE: Final = "aiter"
TUNED_FORMATS: Final[Mapping[str, Format]] = {
    **{name: FORMATS[name] for name in ("bf16", "fp8_block", "fp8_static")},
    "int8": FORMATS["sq"],
    "mxfp4": replace(FORMATS["nvfp4"], left_bytes=0.53125, right_bytes=0.53125),
}
"""As aiter writes them; mxfp4 has one byte of scale per 32 elements."""
SIMT_DTYPE: Final = "fp32"
"""Of rows that another model reads (`matmul_simt`)."""
QUANTIZED: Final = tuple(name for name, item in FORMATS.items() if item.kind != MatmulKernel.PLAIN)
TUNED_QUANTIZED: Final = tuple(name for name, item in TUNED_FORMATS.items() if item.kind != MatmulKernel.PLAIN)


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulProblems]]:
    """Return the rows of bf16 and fp16, and our own of torch's calls, with TF32."""
    names = [name for name, item in FORMATS.items() if item.kind == MatmulKernel.PLAIN]
    own = load_own_products(data, catalog)
    return [_samples(data, "matmul", names, catalog), *load_more_samples(data, catalog), *own]


def load_training_samples(data: Path) -> list[Samples[MatmulProblems]]:
    """Return the rows of bf16, those of the second table that today's libraries computed, and our own.

    The first table's fp16 rows are of an older library, 9 % slower on H100 at the same shapes.
    """
    more = [_trained(item) for item in load_more_samples(data)]
    return [_samples(data, "matmul", ["bf16"]), *more, *load_own_products(data)]


def _trained(samples: Samples[MatmulProblems]) -> Samples[MatmulProblems]:
    """Return the rows whose source and GPU are trained on."""
    is_known = np.array([gpu.name not in UNTRAINED_GPUS for gpu in samples.gpus], dtype=bool)[samples.gpu]
    rows = np.flatnonzero(is_known & ~np.isin(samples.family.astype(str), list(UNTRAINED_SOURCES)))
    used, gpu = np.unique(samples.gpu[rows], return_inverse=True)
    return replace(
        samples,
        problems=take_problems(samples.problems, rows),
        gpus=tuple(samples.gpus[index] for index in used.tolist()),
        gpu=gpu.astype(np.int64),
        **{name: getattr(samples, name)[rows] for name in ("measured_ns", "family", "dtype", "share")},
    )


def load_more_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulProblems]]:
    """Return the 16-bit rows of `ops/matmul_more.parquet` that matrix units computed; none where there is no table."""
    path = data / MORE_TABLE
    if not path.exists():
        return []
    table = read_table(path, MORE_COLUMNS, may_lack=("note", "accumulate"))
    is_plain = np.isin(table["dtype"].astype(str), ["bf16", "fp16"])
    is_matrix = table["accumulate"].astype(str) != "fp32_math"
    is_fused = np.array([FUSED_LOGIC in str(note) for note in table["note"].tolist()])
    table = pick(table, is_plain & is_matrix & ~is_fused & np.isin(table["source"].astype(str), list(SOURCES)))
    sources = [SOURCES[name] for name in table["source"].astype(str).tolist()]
    is_turned = np.array([item.is_column_major for item in sources])
    table["m"], table["n"] = np.where(is_turned, table["n"], table["m"]), np.where(is_turned, table["m"], table["n"])
    copies = np.array([item.copies for item in sources], dtype=np.float64)
    problems = replace(problems_of_rows(table), copies=copies)
    return [_by_shape(table, "matmul", problems, catalog, [item.family for item in sources])]


def load_quantized_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulProblems]]:
    """Return the rows of narrower formats."""
    return [_samples(data, "matmul_quantized", QUANTIZED, catalog), *load_tuned_samples(data, catalog)]


def load_quantized_training_samples(data: Path) -> list[Samples[MatmulProblems]]:
    """Return the rows of narrower formats, and those of bf16, which alone show what each GPU has beside the format."""
    tuned = [*load_tuned_samples(data), *load_tuned_samples(data, formats=("bf16",))]
    return [
        _samples(data, "matmul_quantized", QUANTIZED),
        _samples(data, "matmul", ["bf16"]),
        *(_trained(samples) for samples in tuned),
    ]


def load_tuned_samples(
    data: Path, catalog: Catalog | None = None, formats: Sequence[str] = TUNED_QUANTIZED
) -> list[Samples[MatmulProblems]]:
    """Return the rows of these formats that aiter tuned on AMD's GPUs, whose operands come quantised; none without."""
    path = data / MORE_TABLE
    if not path.exists():
        return []
    table = read_table(path, ("gpu", "batch", "m", "n", "k", "dtype", "latency_us", "source"))
    table = pick(table, np.isin(table["dtype"].astype(str), formats) & (table["source"].astype(str) == TUNED_SOURCE))
    problems = problems_of_rows(table, TUNED_FORMATS)
    problems = replace(problems, quantized=np.zeros_like(problems.quantized))
    return [_by_shape(table, "matmul_quantized", problems, catalog, SOURCES[TUNED_SOURCE].family)]


def _samples(data: Path, model: str, formats: Sequence[str], catalog: Catalog | None = None) -> Samples[MatmulProblems]:
    """Return the rows of these formats that are not suspect."""
    table, notes = keep_known(read_table(data / TABLE, COLUMNS), {"dtype": (*FORMATS, SIMT_DTYPE)})
    is_wanted = np.isin(table["dtype"].astype(str), formats)
    table = pick(table, is_wanted & ~table["suspect"].astype(bool))
    samples = _by_shape(table, model, problems_of_rows(table), catalog, "matmul")
    return replace(samples, notes=notes if model == "matmul" else ())


def _by_shape(
    table: MeasurementTable, model: str, problems: MatmulProblems, catalog: Catalog | None, family: str | Sequence[str]
) -> Samples[MatmulProblems]:
    share = shape_share(*(table[name] for name in ("batch", "m", "n", "k")))
    return samples_of(table, model, problems, catalog, family=family, share=share)


def problems_of_rows(table: dict[str, TableColumn], known: Mapping[str, Format] = FORMATS) -> MatmulProblems:
    """Return rows of the table as problems.

    Integer formats come with a plugin's launches, the dynamic float formats with the activations' conversion.
    """
    names, index = np.unique(table["dtype"].astype(str), return_inverse=True)
    formats = [known[name] for name in names.tolist()]

    is_wrapped = [item.is_quantized or item.kind >= MatmulKernel.WEIGHT_ONLY for item in formats]
    by_format = {
        "left_bytes": [item.left_bytes for item in formats],
        "right_bytes": [item.right_bytes for item in formats],
        "rate": rate_codes([item.rate for item in formats]),
        "kind": [item.kind for item in formats],
        "quantized": is_wrapped,
    }
    return problems_from(
        MatmulProblems,
        len(index),
        **{name: table[name] for name in ("batch", "m", "n", "k")},
        **{name: np.array(values)[index] for name, values in by_format.items()},
        out_bytes=OUT_BYTES,
        copies=COLD_COPIES,
        distinct=1.0,
    )
