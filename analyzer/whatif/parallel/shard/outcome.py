"""Who shares what, and what becomes of a call: what a rank must hold of its inputs, and gets of its results."""

from .....formats.trace.signature import TensorSpec
from .....records import dataclass, replace
from .placement import WHOLE, Cut, Share, State, place_of, state_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Say how many ranks share what, and what becomes of sums over parts of the features."""

    degree: int
    splits_tokens: bool
    """Whether these are divided by tokens, else each rank gets the whole."""
    tokens: int = 0
    """Tokens of a sample; 0: unknown."""
    batch: int = 0
    """Samples; 0: unknown."""
    is_search: bool = False
    """Whether the products are being looked for whose results stay shared: sums end that."""

    def summand(self, spec: TensorSpec, *, is_batched: bool = False) -> State:
        """Return the state of a new tensor of which ranks have summands: it knows where it holds tokens.

        Products of batches may lay keys out with the tokens last.
        """
        is_last = is_batched and spec.shape.count(self.tokens) == 1 and spec.shape[-1] == self.tokens
        last = Cut(len(spec.shape) - 1, self.tokens, State(Share.TOKENS, 0, self.degree))
        place = (last if is_last else self.token_place(spec)) if self.splits_tokens else None
        if place is None or (spec.shape[-1:] == (1,) and not is_batched):  # of a row's features, which all ranks need
            return State(Share.PARTIAL, 0, self.degree)
        return replace(state_at(spec, place), share=Share.PARTIAL)

    def reduced(self, spec: TensorSpec, summand: State) -> State:
        """Return what a rank has of a tensor whose summands were added up."""
        parted = State(Share.TOKENS, summand.extent, self.degree, summand.step)
        return parted if summand.extent and place_of(spec, parted) is not None else WHOLE

    def token_place(self, spec: TensorSpec) -> Cut | None:
        """Return where a tensor holds tokens; None where they cannot be divided."""
        shape, count = spec.shape, self.tokens
        state = State(Share.TOKENS, 0, self.degree)
        holds_features = len(shape) > 1 and not spec.dtype.startswith("int")
        dim = next((dim for dim in range(len(shape) - holds_features) if count > 1 and shape[dim] == count), None)
        if dim is not None:
            return Cut(dim, count, state) if not count % self.degree else None
        if not shape or count < 2 or shape[0] % count or shape[0] % self.degree:
            return None  # it holds no tokens
        by_sample = not count % self.degree and shape[0] == self.batch * count
        return Cut(0, count if by_sample else shape[0], state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what a rank needs and gets; one entry per input or result."""

    wanted: tuple[State | None, ...]
    """None: as it is."""
    places: tuple[Cut | None, ...]
    """Of the inputs, as wanted."""
    results: tuple[State, ...]
    lost: tuple[int, ...] = ()
    """Inputs whose shared features had to be made whole."""
    kept: tuple[int, ...] = ()
    """Inputs whose features stay shared."""
    exchanged: tuple[int, str] | None = None
    """Elements and dtype of what ranks add up to go on with a shared vocabulary."""
    exchanges: int = 0
