"""Ops that only change metadata or answer questions: nothing is computed or moved on the GPU.

So are wrappers like `to`, `contiguous` and `dropout`: where there is something to do, an op inside them does it.
"""

from typing import Final

from ...formats.trace.signature import Signature
from .registry import names, register
from .work import Family, Work, build_work

_VIEWS: Final = names(
    "view _unsafe_view reshape _reshape_alias view_as view_as_real view_as_complex _conj conj _neg_view real imag "
    "resolve_conj resolve_neg as_strided expand expand_as broadcast_to broadcast_tensors transpose t permute swapaxes "
    "swapdims movedim moveaxis numpy_T mT mH adjoint matrix_H squeeze unsqueeze select slice narrow split "
    "split_with_sizes unsafe_split unsafe_split_with_sizes tensor_split chunk unsafe_chunk hsplit vsplit dsplit unbind "
    "diagonal unfold flatten unflatten unflatten_dense_tensors ravel detach alias lift lift_fresh reshape_as "
    "_fw_primal _make_dual atleast_1d atleast_2d atleast_3d meshgrid values "
    "indices _values _indices crow_indices col_indices _coalesced embedding_sparse_backward "
    "_sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors"
)
_ALLOCATIONS: Final = names(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize resize_as set set_data "
    "_resize_output _efficientzerotensor"
)
_QUERIES: Final = names(
    "size stride numel dim is_contiguous is_same_size is_complex is_floating_point is_signed is_pinned is_leaf "
    "is_inference is_conj is_neg is_set_to storage_offset element_size result_type can_cast promote_types "
    "_has_compatible_shallow_copy_type _has_same_storage_numel _debug_has_internal_overlap _is_zerotensor "
    "requires_grad retain_grad output_nr _version record_stream _fused_sdp_choice cudnn_is_acceptable "
    "_nested_tensor_size _nested_tensor_strides is_coalesced sparse_dim dense_dim _nnz "
    "_dimI _dimV sym_size sym_stride sym_numel sym_storage_offset data "
    "_assert_tensor_metadata _shape_as_tensor get_device device"
)
_WRAPPERS: Final = names(
    "to contiguous cuda cpu type_as pin_memory _pin_memory dropout feature_dropout alpha_dropout feature_alpha_dropout "
    "coalesce to_dense"
)


def no_work(signature: Signature) -> Work:
    """Return no FLOPs and no bytes, of the first tensor's dtype."""
    tensors = signature.tensors()
    return build_work(Family.VIEW, 0, 0.0, 0.0, tensors[0].dtype if tensors else "float32")


register(*(f"aten::{name}" for name in (*_VIEWS, *_ALLOCATIONS, *_QUERIES, *_WRAPPERS)), family=Family.VIEW)(no_work)
