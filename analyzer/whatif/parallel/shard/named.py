"""Decides by letters what stays shared of a call whose dims have names."""

from collections.abc import Sequence
from typing import Final

from .....formats.trace.signature import TensorSpec
from .....records import dataclass
from ...calls import ShapedCall
from .letters import Naming, pairs
from .outcome import Outcome, Rules
from .placement import WHOLE, Cut, Share, State, place_of, state_at

_BATCHED: Final = frozenset(["bmm", "baddbmm"])
"""Products of activations: sums over tokens are no gradients of parameters."""
_CHOOSES: Final = frozenset(["index", "index_select"])


@dataclass(frozen=True, slots=True)
class _Kept:
    """Hold the letter that stays shared, and where it stands in the inputs that are shared by it."""

    naming: Naming
    letter: int
    by_size: dict[int, Cut]
    """By the size of the dim: heads of queries and of keys bear one letter."""

    @property
    def model(self) -> Cut:
        """Return the first."""
        return next(iter(self.by_size.values()))

    def moved(self, spec: TensorSpec, dim: int) -> Cut:
        """Return the place at a dim of another tensor that bears the letter."""
        size = spec.shape[dim]
        if size in self.by_size:
            return Cut(dim, self.by_size[size].inner, self.by_size[size].state)
        whole, like = next(iter(self.by_size.items()))
        inner = max(1, size * like.inner // max(whole, 1))
        return Cut(dim, size if size % inner else inner, like.state)


def decide_named(
    call: ShapedCall,
    naming: Naming,
    states: list[State],
    wanted: list[State | None],
    linked: Sequence[tuple[TensorSpec, State]],
    rules: Rules,
    *,
    is_backward: bool,
) -> Outcome:
    """Return what becomes of a call: one letter stays shared, all other shared dims are made whole."""
    places = [place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True)]
    letters = [
        None if place is None else (names[place.dim] or None if place.dim < len(names) else None)
        for names, place in zip(naming.inputs, places, strict=True)
    ]
    letter, is_exchanged = _active_letter(naming, places, letters, rules)
    lost = _make_whole(places, letters, letter, wanted)
    by_size: dict[int, Cut] = {}
    for spec, place in zip(call.inputs, places, strict=True):
        if place is not None:
            by_size.setdefault(spec.shape[place.dim], place)
    if letter is None or not by_size:
        is_alike = is_backward and not lost and all(item is None for item in wanted)
        found = _as_forward(call, linked) if is_alike and not _are_gradients(states) else None
        return found or _whole_outcome(call, states, places, wanted, lost)
    kept = _Kept(naming, letter, by_size)
    shared = tuple(at for at, place in enumerate(places) if place is not None)
    exchanged = _exchanged_rows(call, places) if is_exchanged and kept.model.state.share is Share.FEATURES else None
    _take_parts(call, kept, places, wanted)
    results = [
        _result(call, names, spec, kept, rules) for names, spec in zip(naming.outputs, call.outputs, strict=True)
    ]
    if call.name in _CHOOSES and kept.model.state.share is Share.TOKENS and naming.outputs[0][:1] == (letter,):
        spec = call.outputs[0]  # rows in an order of their own: those of a rank lie together
        results[0] = state_at(spec, Cut(0, spec.shape[0], kept.model.state))
    return Outcome(
        wanted=tuple(wanted),
        places=tuple(places),
        results=tuple(results),
        lost=lost,
        kept=shared,
        exchanged=exchanged if naming.exchanges else None,
        exchanges=naming.exchanges if exchanged else 0,
    )


def _are_gradients(states: Sequence[State]) -> bool:
    return any(state.share is Share.GRADIENT for state in states)


def _whole_outcome(
    call: ShapedCall,
    states: Sequence[State],
    places: Sequence[Cut | None],
    wanted: Sequence[State | None],
    lost: tuple[int, ...],
) -> Outcome:
    """Return whole results; summands of gradients where the inputs are some."""
    shown = State(Share.GRADIENT) if _are_gradients(states) else WHOLE
    results = tuple(shown if spec.shape else WHOLE for spec in call.outputs)
    return Outcome(wanted=tuple(wanted), places=tuple(places), results=results, lost=lost)


def _make_whole(
    places: list[Cut | None], letters: Sequence[int | None], kept: int | None, wanted: list[State | None]
) -> tuple[int, ...]:
    """Make whole, in place, what is shared by other letters; return the inputs whose features are lost so."""
    lost = []
    for at, place in enumerate(places):
        if place is not None and (letters[at] is None or letters[at] != kept):
            if place.state.share is Share.FEATURES:
                lost.append(at)
            wanted[at], places[at] = WHOLE, None
    return tuple(lost)


def _take_parts(call: ShapedCall, kept: _Kept, places: list[Cut | None], wanted: list[State | None]) -> None:
    """Let a rank take, in place, its own part of inputs that it has whole."""
    for at, (spec, names) in enumerate(zip(call.inputs, kept.naming.inputs, strict=True)):
        if places[at] is None and kept.letter in names:
            dim = names.index(kept.letter)
            if spec.shape[dim] > 1:
                place = kept.moved(spec, dim)
                places[at], wanted[at] = place, state_at(spec, place)


def _exchanged_rows(call: ShapedCall, places: Sequence[Cut | None]) -> tuple[int, str] | None:
    for spec, place in zip(call.inputs, places, strict=True):
        if place is not None:
            return spec.element_count // spec.shape[place.dim], "float32"
    return None


def _as_forward(call: ShapedCall, linked: Sequence[tuple[TensorSpec, State]]) -> Outcome | None:
    """Share a gradient that is the same everywhere, such as a mean's, as what it is the gradient of is shared."""
    for spec, state in linked:
        place = place_of(spec, state)
        if place is None or not any(out.shape == spec.shape for out in call.outputs):
            continue
        places = tuple(place if item.shape == spec.shape else None for item in call.inputs)
        results = tuple(state_at(out, place) if out.shape == spec.shape else WHOLE for out in call.outputs)
        return Outcome(wanted=(None,) * len(places), places=places, results=results)
    return None


def _active_letter(
    naming: Naming, places: Sequence[Cut | None], letters: Sequence[int | None], rules: Rules
) -> tuple[int | None, bool]:
    """Return the letter that stays shared, features before tokens; and whether that takes an exchange."""
    in_results = {letter for names in naming.outputs for _, letter in pairs(names)}
    for share in (Share.FEATURES, Share.TOKENS):
        for place, letter in zip(places, letters, strict=True):
            if place is None or place.state.share is not share or letter is None or letter in naming.kept_whole:
                continue
            is_exchanged = letter == naming.exchanged
            if is_exchanged and share is Share.TOKENS:
                continue
            is_summed = letter not in in_results and naming.is_sum
            if rules.is_search and is_summed and in_results and not is_exchanged:
                continue
            return letter, is_exchanged
    return None, False


def _result(call: ShapedCall, names: Sequence[int], spec: TensorSpec, kept: _Kept, rules: Rules) -> State:
    if kept.letter in names:
        return state_at(spec, kept.moved(spec, names.index(kept.letter)))
    if not any(names) or not kept.naming.is_sum or kept.letter == kept.naming.exchanged:
        return WHOLE
    sums_activations = kept.model.state.share is Share.FEATURES or "attention" in call.name or call.name in _BATCHED
    return rules.summand(spec, is_batched=call.name in _BATCHED) if sums_activations else State(Share.GRADIENT)
