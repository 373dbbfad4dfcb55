"""What a kernel's name says, its dtype and whether it communicates; and how torch names copies and fills."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from ...records import dataclass

_WORDS: Final[Mapping[str, str]] = {
    "bf16": "bfloat16", "f16": "float16", "fp16": "float16", "tf32": "float32", "f32": "float32", "fp32": "float32",
    "f64": "float64", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "i8": "int8", "s8": "int8", "u8": "uint8",
}  # fmt: skip
"""In names of cuBLAS, cuDNN, CUTLASS and MIOpen. TF32 is how float32 is multiplied."""
_TENSILE: Final[Mapping[str, str]] = {
    "B": "bfloat16", "H": "float16", "S": "float32", "D": "float64", "C": "complex64", "Z": "complex128",
    "X": "float32", "I": "int8",
}  # fmt: skip
"""The first letter after the index letters of a Tensile kernel: the dtype of what it multiplies."""
_NVJET: Final[Mapping[str, str]] = {
    "t": "bfloat16", "h": "float16", "s": "float32", "d": "float64", "q": "float8_e4m3fn",
}  # fmt: skip
"""The first letter after `nvjet_`: cuBLAS's dtype of the first operand."""
_ONE: Final = r"(bf16|f16|tf32|f32|f64|e4m3|e5m2|i8|u8)"
_ANY: Final = r"(?:bf16|f16|tf32|f32|f64|e4m3|e5m2|i8|u8|i32)"
_SILENT: Final = re.compile(
    r"^Mem(?:cpy|set)\b|^cudnn_generated_|^batched_transpose_|^SubTensorOp|^triton_|vectorized_gather|fbgemm_gpu::|"
    r"^void vllm::reshape_and_cache"
)
"""Kernels whose names have no dtype, or one of the same width as theirs."""
_SPELT: Final[Sequence[tuple[re.Pattern[str], Mapping[str, str]]]] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (rf"_{_ONE}{_ANY}_{_ANY}{_ANY}_{_ANY}(?:_|$)", _WORDS),  # xmma: a, c, b, accumulated, computed
        (r"\d(?:bf16|f16|tf32)gemm()", {"": "float32"}),  # float32 multiplied as something narrower
        (r"gemm_(bf16|f16|tf32|f32|f64|e4m3|e5m2|s8|u8)_", _WORDS),
        (r"gemm_relu_(bf16|f16)_", _WORDS),
        (r"_(bf16|f16|fp16)_[sh]\d+(?:gemm|cudnn|fprop|dgrad|wgrad)", _WORDS),
        (r"[sh]\d+(?:gemm|cudnn)_(?:ldg\d_)?(bf16|fp16)", _WORDS),
        (r"_(fp16|bf16)_sgemm_", _WORDS),
        (r"nvjet_(?:sm\d+_)?([thsdq])[a-z]{2,4}_", _NVJET),
        (r"Cijk_A[a-z]+_B[a-z]+_([BHSDCZX]|I(?=8))(?!8)[A-Z0-9]*(?:_|$)", _TENSILE),
        (r"igemm_(?:fwd|bwd|wrw)_\w+?_(bf16|fp16|fp32)_", _WORDS),
        (r"miopenSp3AsmConv\w*?_(bf16|fp16|fp32)(?:_|$)", _WORDS),
        (r"fmha_cutlass[FB]_(bf16|f16|f32)_", _WORDS),
        (r"^_ZN2ck.*?[E_](t)tft", {"t": "bfloat16"}),  # Composable Kernel mangled: bfloat16 is an unsigned short there
        (r"^_ZN2ck.*?(DF16_)DF16_f", {"DF16_": "float16"}),
        (r"(?:_|volta|ampere|turing|maxwell|pascal)(?:()h\d*gemm|()hcudnn)", {"": "float16"}),
        (r"_h(?:884|1688|16816)(?:gemm|cudnn)?()", {"": "float16"}),
        (r"(?:_|^)(?:sgemm|scudnn|s1688gemm)()", {"": "float32"}),
        (r"(?:_|^)d(?:gemm|884gemm|8x8x4gemm)()", {"": "float64"}),
    )
)
"""First match wins: what a library spells its first operand's dtype as."""
_NCCL: Final = re.compile(
    r"^nccl\w*(?:AllReduce|ReduceScatter)_(?:\w+_)?(?:Sum|Prod|Min|Max|MinMax)_(\w+?)(?:_[A-Z]|\(|$)"
)
_NCCL_WORDS: Final[Mapping[str, str]] = {
    "bf16": "bfloat16", "__nv_bfloat16": "bfloat16", "f16": "float16", "half": "float16", "f32": "float32",
    "float": "float32", "f64": "float64", "double": "float64",
}  # fmt: skip
"""Of reductions alone: other collectives are moved as bytes, whatever they are."""
_NARROW: Final[Sequence[tuple[re.Pattern[str], str]]] = tuple(
    (re.compile(pattern), dtype)
    for pattern, dtype in (
        (r"BFloat16|bfloat16|\b__bf16\b|\bbf16\b", "bfloat16"),
        (r"c10::Half\b|at::Half\b|\b__half2?\b|\bhalf_t\b|\b_Float16\b|\bhalf2?\b", "float16"),
        (r"Float8_e4m3fn\b|__nv_fp8_e4m3|float_e4m3_t", "float8_e4m3fn"),
        (r"Float8_e5m2\b|__nv_fp8_e5m2|float_e5m2_t", "float8_e5m2"),
    )
)
"""Where one of them stands in a template, it is what tensors hold; `float` beside it is what sums are kept in."""
_WIDE: Final[Sequence[tuple[re.Pattern[str], str]]] = tuple(
    (re.compile(pattern), dtype)
    for pattern, dtype in (
        (r"complex<float>", "complex64"),
        (r"complex<double>", "complex128"),
        (r"(?<!complex<)\bfloat[24]?\b", "float32"),
        (r"(?<!complex<)\bdouble\b", "float64"),
    )
)
_WHOLE: Final = re.compile(r"(?:Functor\w*<|lambda\()(long|int|bool|unsigned char|signed char|short)\b")
_NO_WHOLE: Final = re.compile(r"OpaqueType|ReduceOp|multi_tensor_apply")
"""Integers tell only where PyTorch's own kernels compute on them one by one: elsewhere they are indices, or sums of
narrower ones."""
_WHOLE_DTYPES: Final[Mapping[str, str]] = {
    "long": "int64", "int": "int32", "bool": "bool", "unsigned char": "uint8", "signed char": "int8", "short": "int16",
}  # fmt: skip
_LONGEST: Final = 4096
_LONGEST_SPELT: Final = 512
"""Characters that are looked at: names of libraries' kernels say it early, and longer ones are made to take time."""
_INDEX: Final = re.compile(r"\{lambda\(int\)#\d+\}>\(")
_PRODUCT: Final = re.compile(
    r"gemm|gemv|gemvx|flash|fmha|attention|conv|winograd|wgrad|dgrad|fprop|dot_kernel", re.IGNORECASE
)
_HELPER: Final = re.compile(r"at::native::|splitKreduce|nchwToNhwc|nhwcToNchw|reduce_1Block|scalePackedTensor|convert")
_CASTING_COPY: Final = re.compile(r"gpu_kernel_impl<at::native::direct_copy|LoadWithCast")
_SPECIAL_COPY: Final = re.compile(r"at::native::(bfloat16|float16)_copy_kernel_cuda")
_COLLECTIVE: Final = re.compile(r"(?:void )?[nr]ccl", re.IGNORECASE)
_CAST: Final = re.compile(
    r"\((?P<type>bool|int|unsigned int|long|unsigned long|long long|unsigned long long)\)(?P<value>-?\d+)\b"
)
_SUFFIXES: Final = {
    "int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll", "unsigned long long": "ull",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDtype:
    """Hold what one kernel's name says."""

    dtype: str
    """Of the inputs, as torch calls it."""
    is_product: bool = False
    """Whether it is a product's or an attention's own: what it reads decides, not what is copied around it."""
    may_cast: bool = False
    """Whether it may convert what it reads: then the dtype is what it computes in, a copy's that of its output."""


@lru_cache(maxsize=65536)
def dtype_of_kernel(name: str) -> KernelDtype | None:
    """Return which dtype a kernel's name says that its inputs have, or None where it says none or several.

    >>> dtype_of_kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64").dtype
    'bfloat16'
    """
    name = name[:_LONGEST]
    if _SILENT.search(name):
        return None
    if reduced := _NCCL.search(name[:_LONGEST_SPELT]):
        dtype = _NCCL_WORDS.get(reduced[1])
        return None if dtype is None else KernelDtype(dtype=dtype)
    if "<" not in name or "cutlass_" in name:
        for pattern, words in _SPELT:
            if found := pattern.search(name, 0, _LONGEST_SPELT):
                return KernelDtype(dtype=words[found[1] or ""], is_product=True)
        return None
    return _templated(name)


def _templated(name: str) -> KernelDtype | None:
    if special := _SPECIAL_COPY.search(name):
        return KernelDtype(dtype=special[1], may_cast=True)
    is_product = _PRODUCT.search(name) is not None and _HELPER.search(name) is None
    may_cast = _CASTING_COPY.search(name) is not None
    for table in (_NARROW, _WIDE):
        found = [dtype for pattern, dtype in table if pattern.search(name)]
        if found:
            return KernelDtype(dtype=found[0], is_product=is_product, may_cast=may_cast) if len(found) == 1 else None
    if "at::native::" not in name or _NO_WHOLE.search(name):
        return None
    whole = {_WHOLE_DTYPES[word] for word in _WHOLE.findall(_INDEX.sub(">(", name))}
    return KernelDtype(dtype=whole.pop(), may_cast=may_cast) if len(whole) == 1 else None


def is_collective(kernel: str) -> bool:
    """Say whether a kernel communicates, by its name.

    >>> is_collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), is_collective("void gemm()")
    (True, False)
    """
    return _COLLECTIVE.match(kernel) is not None


def plain_template(kernel: str) -> str:
    """Return a kernel's name with template arguments as compilers write them: some tools put their types before them.

    >>> plain_template("void reduce<(int)512, (bool)1, (unsigned int)4, float>(float*)")
    'void reduce<512, true, 4u, float>(float*)'
    """
    return _CAST.sub(_write, kernel) if ")" in kernel else kernel


def _write(match: re.Match[str]) -> str:
    if match["type"] == "bool":
        return "false" if match["value"] == "0" else "true"
    return match["value"] + _SUFFIXES[match["type"]]


def copy_name(direction: str, source: str, target: str) -> str:
    """Return the name of a copy.

    >>> copy_name("HtoD", "Pageable", "Device")
    'Memcpy HtoD (Pageable -> Device)'
    """
    return f"Memcpy {direction} ({source} -> {target})"


def fill_name(memory: str) -> str:
    """Return the name of a fill.

    >>> fill_name("Device")
    'Memset (Device)'
    """
    return f"Memset ({memory})"
