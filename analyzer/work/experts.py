"""Products of groups of rows, as layers of experts call them. FLOPs are 2·m·n·k over all groups together.

How the groups share out their side is not recorded: the work does not depend on it, and the model of experts takes the
groups as chosen at random.
"""

from __future__ import annotations

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, result_at, tensor_at, tensors_at
from .registry import register
from .traffic import bytes_of, total_bytes
from .work import ExpertsFormat, Family, GroupedDims, MatmulDims, RaggedSide, Work


@register("aten::_grouped_mm", family=Family.MATMUL)
def grouped_mm(signature: Signature) -> Work:
    """Products of groups of rows, columns or inner slices; offsets at 2, bias at 3."""
    return _grouped_product(signature, tensors_at(signature, 2, 3), offsets_position=2)


@register("aten::_scaled_grouped_mm", family=Family.MATMUL)
def scaled_grouped_mm(signature: Signature) -> Work:
    """fp8 grouped product with scales at 2 and 3, offsets at 4."""
    extras = tensors_at(signature, 2, 3, 4, 5)
    return _grouped_product(signature, extras, offsets_position=4, out_dtype="bfloat16", weights=ExpertsFormat.FP8)


def _grouped_product(
    signature: Signature,
    extras: tuple[TensorSpec, ...],
    *,
    offsets_position: int,
    out_dtype: str | None = None,
    weights: ExpertsFormat = ExpertsFormat.PLAIN,
) -> Work:
    a, b = tensor_at(signature, 0), tensor_at(signature, 1)
    if not {len(a.shape), len(b.shape)} <= {2, 3}:
        raise LackingArgumentError("grouped product of other than 2 or 3 dimensions")
    rows, k, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if k != b.shape[-2]:
        raise LackingArgumentError(f"inner sizes {k} and {b.shape[-2]} differ")
    both_batched = len(a.shape) == len(b.shape) == 3
    products = rows * columns * (a.shape[0] if both_batched else 1)
    groups = next((spec.shape[0] for spec in (a, b) if len(spec.shape) == 3), None)
    out_count = products
    if groups is None:
        groups = tensor_at(signature, offsets_position, rank=1).shape[0]
        out_count *= groups
    result = result_at(signature)
    written = bytes_of(out_count, (out_dtype or a.dtype) if result is None else result.dtype)
    return Work(
        family=Family.MATMUL,
        flops=2 * products * k,
        read_bytes=total_bytes((a, b, *extras)),
        written_bytes=written,
        dtype=a.dtype,
        is_matrix=True,
        dims=_group_dims(a, b, groups, weights),
    )


def _group_dims(a: TensorSpec, b: TensorSpec, groups: int, weights: ExpertsFormat) -> MatmulDims | GroupedDims:
    """Return equal products where both operands are batched, else the side that the groups share out."""
    rows, k, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if len(a.shape) == len(b.shape) == 3:
        return MatmulDims(batch=groups, m=rows, n=columns, k=k)
    side = RaggedSide.ROWS if len(b.shape) == 3 else RaggedSide.COLUMNS if len(a.shape) == 3 else RaggedSide.DEPTH
    return GroupedDims(groups=groups, rows=rows, columns=columns, depth=k, ragged=side, weights=weights)
