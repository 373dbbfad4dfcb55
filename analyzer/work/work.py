"""What one op must compute and move, at least."""

from enum import IntEnum, StrEnum
from typing import Final

from ...records import dataclass
from ...specs.attention_kernels import AttentionKernel
from ...specs.experts_kernels import ExpertsKernel
from .access import Access
from .communication import CollectiveDims
from .embedding_dims import DrawnRows, EmbeddingDims
from .row_kernels import RowKernel


class Family(StrEnum):
    """Group ops that the same model can predict."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    STATE_SPACE = "state_space"
    """Gated delta nets, Mamba and the causal convolutions before them: a state per sequence, whatever its length."""
    EXPERTS = "experts"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    REDUCTION = "reduction"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    INDEXING = "indexing"
    SORT = "sort"
    TRANSFORM = "transform"
    LOSS = "loss"
    OPTIMIZER = "optimizer"
    RANDOM = "random"
    COLLECTIVE = "collective"
    VIEW = "view"
    """Metadata only: launches nothing."""


VARYING_FAMILIES: Final = frozenset(
    {Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT, Family.EXPERTS}
)
"""Families whose kernels libraries choose per GPU: Habitat's kernel-varying ops."""


class Direction(IntEnum):
    """Name the part of training that an op belongs to."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    WEIGHT_GRADIENT = 2
    BOTH_GRADIENTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulDims:
    """Hold a matrix product: `batch` times [m,k] @ [k,n]."""

    batch: int = 1
    m: int
    n: int
    k: int
    is_k_contiguous: bool | None = None
    is_m_contiguous: bool | None = None
    """Whether k is contiguous in both operands (x @ weightᵀ), m in the left one (a weights' gradient); None: unsaid."""
    distinct_ratio: float = 1.0
    """Of the operands' elements, those in places of their own: less where a batch shares an operand (stride 0)."""
    is_grouped: bool = False
    """Whether groups share out one side among themselves, as experts do: the batch is of those that have any of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDims:
    """Hold a scaled dot-product attention: `heads` query heads share `kv_heads` key and value heads."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    query_dim: int
    value_dim: int
    is_causal: bool = False
    window: int = 0
    """Keys that a query sees at most; 0: all."""
    has_mask: bool = False
    has_dropout: bool = False
    direction: Direction = Direction.FORWARD
    is_deterministic: bool = False
    """Backward: gradients are added up in the same order each time."""
    kernel: AttentionKernel = AttentionKernel.FLASH2
    """Which one ran, or is asked for."""
    is_chosen_by_torch: bool = True
    """Whether PyTorch chooses another where the GPU's default is another."""
    is_chosen_by_engine: bool = False
    """Whether a serving engine chooses it by the GPU."""
    prefers_cudnn: bool = False
    """Whether it was recorded by a version of PyTorch that puts cuDNN's first on some GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionDims:
    """Hold a convolution; spatial sizes are tuples of one to three dimensions."""

    batch: int
    c_in: int
    c_out: int
    groups: int
    input_size: tuple[int, ...]
    output_size: tuple[int, ...]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...] = ()
    """Empty: 1 in every dimension."""
    is_transposed: bool = False
    is_channels_last: bool = False
    """Whether tensors lie with channels innermost; not where strides were not recorded."""
    copied_elements: int = 0
    """Of operands in the other layout, which PyTorch copies to channels innermost before it runs the op there."""
    added_tensors: int = 0
    """Tensors of the output's size that a fused epilogue reads beside the bias."""
    direction: Direction = Direction.FORWARD


class TokenKernel(StrEnum):
    """Name a kernel that has one block per token: of serving libraries, and an older PyTorch's."""

    NORM = "TOKEN_NORM"
    GATED = "TOKEN_GATED"
    ROPE = "TOKEN_ROPE"
    SOFTMAX = "SOFTMAX"  # PyTorch's before 2.4: a block per row that no warp holds


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDims:
    """Hold an op that treats `rows` vectors of `columns` elements alike: normalisation, softmax, reduction."""

    rows: int
    columns: int
    kernel: RowKernel | None = None
    """Which kernel walks over them; None: bytes alone bind it, or its family tells (layer norm, softmax)."""
    run: int = 0
    """Contiguous elements of a row that lies in pieces, such as an image of a channel; 0: it lies in one."""
    walked_bytes: float = 0.0
    """What this kernel moves; 0: what the op must."""
    streamed_bytes: float = 0.0
    """What elementwise kernels of the same op move before and after it, second readings and temporaries included."""
    streaming: RowKernel | None = None  # which kernel moves these; None: one that bytes alone bind
    launches: int = 1
    """Kernels of the op in all."""
    table_rows: int = 0
    """Rows of the table from which these are gathered; 0: of none."""
    token_kernel: TokenKernel | None = None  # None: PyTorch's of today
    is_by_list: bool = False  # a thread or a warp walks over each of many short lists, and waits for memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentDims:
    """Hold whole recurrent layers; `gates` is 4 for LSTM, 3 for GRU, 1 for a plain cell."""

    gates: int
    layers: int
    directions: int
    steps: int
    batch: int
    input_size: int
    hidden_size: int
    direction: Direction = Direction.FORWARD


class LatentKernel(IntEnum):
    """Name who wrote a latent attention, which decides how long it takes."""

    LIBRARY = 0
    """The fastest that serving libraries have for the GPU: FlashMLA, flash attention 3, TensorRT-LLM, FlashInfer where
    matrix units are fed asynchronously; before, Triton."""
    TRITON = 1  # vLLM's: every sequence in four parts, a block per sixteen heads
    SPLIT_TRITON = 2
    """SGLang's: as many parts as the GPU has multiprocessors for."""
    UNSPLIT = 3
    """TensorRT-LLM's before Hopper: a sequence is one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionDims:
    """Hold a multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), without its projections.

    Absorbed: all heads read one latent of `query_dim` elements per token, whose first `value_dim` are the values too
    (576 and 512 in DeepSeek-V3). Else keys and values of each head were made from it before (192 and 128).
    """

    batch: int
    heads: int
    queries: int
    keys: int
    query_dim: int = 576
    value_dim: int = 512
    is_absorbed: bool = True
    is_causal: bool = False
    cache_bytes: float = 2.0
    """Per element of the latent, or of the keys and values; 1: FP8."""
    kernel: LatentKernel = LatentKernel.LIBRARY


class StateRule(IntEnum):
    """Name how a state follows its inputs."""

    CAUSAL_CONVOLUTION = 0
    """The last few inputs of each channel are the state: depthwise, `state_dim` the kernel's width, `head_dim` 1."""
    GATED_DELTA = 1
    """What a key stood for is replaced: gated delta nets (arXiv 2412.06464)."""
    SCALAR_DECAY = 2
    """The state decays by one factor per head: Mamba-2 (arXiv 2405.21060)."""
    SELECTIVE_SCAN = 3
    """It decays by one factor per element: Mamba (arXiv 2312.00752), `heads` the channels, `head_dim` 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceDims:
    """Hold `batch` sequences of `steps` tokens through `heads` states of [state_dim, head_dim] elements each."""

    rule: StateRule
    batch: int
    steps: int
    heads: int
    head_dim: int
    """Of the values (v of a delta net, x of Mamba)."""
    state_dim: int
    """Of the keys and queries (k of a delta net, B and C of Mamba)."""
    groups: int = 1
    """Heads of keys and queries, each shared by heads / groups heads."""
    is_update: bool = False
    """Whether the state is read and overwritten token by token, as in decoding; else chunks of tokens pass it on."""
    state_bytes: float = 4.0
    """Per element of the state."""
    is_fused: bool = False
    """Whether one kernel was written for it: FlashInfer's delta rule, Tri Dao's causal convolution; else Triton's."""


class ExpertsFormat(IntEnum):
    """Name how experts' weights and their inputs are held in a product."""

    PLAIN = 0
    """Both 16 (or 32) bits wide."""
    FP8 = 1
    """Both fp8, one scale per tensor, row or column."""
    FP8_BLOCK = 2
    """Both fp8, a scale per 128 elements of a row and per 128 x 128 of the weights."""
    FP4 = 3
    """Both 4 bits wide, a scale per 16 (nvfp4) or 32 (mxfp4) elements."""
    W4A8 = 4
    """Weights of 4 bits, inputs of fp8."""
    W4A16 = 5
    """Weights of 4 bits (int4, mxfp4), widened in the kernel."""
    W8A16 = 6
    """Weights of 8 bits, widened in the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsDims:
    """Hold a layer of experts on one rank: `top_k` of `experts` for each token, of which `local_experts` are here.

    Two products per token and expert, [hidden] @ [hidden, 2 or 1 · intermediate], activation, then
    [intermediate] @ [intermediate, hidden], and what sorts rows by expert before and adds them up after them.
    """

    tokens: int
    """That enter the layer, of all expert-parallel ranks: those routed to other ranks' experts take no product here."""
    hidden: int
    intermediate: int
    """As each expert has it here: divided by tensor parallelism."""
    experts: int
    """Of all ranks."""
    local_experts: int
    top_k: int
    is_gated: bool = True
    """Whether the first product has twice the columns, half of which gate the others."""
    weights: ExpertsFormat = ExpertsFormat.PLAIN
    is_quantized: bool = False
    """Whether the layer converts its 16-bit inputs itself."""
    skew: float | None = None
    """Exponent of the power law by which tokens choose experts, 0: all are chosen alike often; None: not known."""
    kernel: ExpertsKernel | None = None
    """Which one ran, or is asked for; None: the default of each GPU and format."""


Dims = (
    MatmulDims
    | AttentionDims
    | ConvolutionDims
    | RowDims
    | EmbeddingDims
    | RecurrentDims
    | LatentAttentionDims
    | StateSpaceDims
    | ExpertsDims
    | CollectiveDims
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Hold the minimum work of one op: arithmetic, and each tensor's bytes moved once.

    `flops` counts a multiply-add as 2 and comparisons or special functions as 1.
    `dtype` is the torch name of the operands' dtype, which decides the arithmetic rate.
    `is_matrix` says whether libraries run it on matrix (tensor) units where the dtype allows.
    `dims` are the sizes that the op models need beyond the totals; None where the totals are all there is to know.
    """

    family: Family
    flops: float
    read_bytes: float
    written_bytes: float
    dtype: str
    is_matrix: bool = False
    dims: Dims | None = None
    moved_since_bytes: float | None = None
    """What the GPU moved between the last touch of the operands and this op; None: not known."""
    drawn: DrawnRows | None = None
    """Its sizes are of as many rows as were looked up, of which nobody counted the different ones."""
    access: Access | None = None
    """How an elementwise kernel or a copy reaches its operands; None: as they lie, or not known."""

    @property
    def least_flops(self) -> float:
        """Return the FLOPs that no kernel avoids: without masked scores and what Winograd saves."""
        if self.drawn is not None:
            return self.flops / max(self.drawn.lookups, 1)
        match self.dims:
            case AttentionDims(is_causal=True) | LatentAttentionDims(is_causal=True):
                return self.flops * _seen_share(self.dims)
            case ConvolutionDims() if _fits_winograd(self.dims):
                return self.flops / WINOGRAD_SAVING
            case _:
                return self.flops

    @property
    def moved_bytes(self) -> float:
        """Return bytes read plus bytes written."""
        return self.read_bytes + self.written_bytes

    @property
    def least_bytes(self) -> float:
        """Return the bytes that no kernel avoids: lookups may all be of one row of each table."""
        if self.drawn is not None and not isinstance(self.dims, EmbeddingDims):
            return self.moved_bytes / max(self.drawn.lookups, 1)
        repeated = self.dims.repeated_bytes if isinstance(self.dims, EmbeddingDims) else 0.0
        return self.moved_bytes - repeated


def build_work(
    family: Family,
    flops: float,
    read_bytes: float,
    written_bytes: float,
    dtype: str,
    *,
    is_matrix: bool = False,
    dims: Dims | None = None,
) -> Work:
    """Return the work of an op by its totals, in the order in which every formula tells them."""
    return Work(
        family=family,
        flops=flops,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        dtype=dtype,
        is_matrix=is_matrix,
        dims=dims,
    )


def _seen_share(dims: AttentionDims | LatentAttentionDims) -> float:
    """Return the share of the scores that a causal mask leaves, at the alignment that leaves fewer."""
    q, k = dims.queries, dims.keys
    return min(q * k - q * (q - 1) / 2 if q <= k else k * (k + 1) / 2, q * (q + 1) / 2) / max(q * k, 1)


def _fits_winograd(dims: ConvolutionDims) -> bool:
    is_plain = max((*dims.stride, *dims.dilation, dims.groups)) == 1
    return len(dims.kernel_size) > 1 and min(dims.kernel_size) >= 3 and is_plain


WINOGRAD_SAVING: Final = 4.0
"""F(4x4, 3x3) multiplies 36 times where the direct algorithm multiplies 144 times (Lavin and Gray, 2015)."""
