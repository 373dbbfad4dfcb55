"""What a rank must hold of an op's inputs, and what it then has of the results.

Decides by letters what stays shared of a call whose dims have names.
"""

from collections.abc import Sequence
from typing import Final

from .....formats.trace.signature import TensorSpec
from .....records import dataclass
from ...calls import ShapedCall
from .layers import name_dims
from .letters import MADE, Naming, pairs
from .outcome import Outcome, Rules
from .placement import WHOLE, Cut, Share, State, place_of, state_at

_ADDS: Final = frozenset(["add", "sub", "neg", "clone", "contiguous", "accumulate_grad"])
"""Ops that may as well run on summands, where all that they read are some."""
_GROUPED: Final = frozenset(["_grouped_mm", "_scaled_grouped_mm"])


def decide(
    call: ShapedCall,
    states: Sequence[State],
    linked: Sequence[tuple[TensorSpec, State]],
    rules: Rules,
    *,
    is_backward: bool = False,
) -> Outcome:
    """Return what becomes of a call. `linked`: the inputs of the forward op that it differentiates."""
    wanted: list[State | None] = [None] * len(states)
    now = list(states)
    if any(state.share is Share.PARTIAL for state in states):
        added = _sum_of_summands(call, states, is_backward=is_backward)
        if added is not None:
            return added
        for at, (state, spec) in enumerate(zip(states, call.inputs, strict=True)):
            if state.share is Share.PARTIAL:
                wanted[at] = now[at] = rules.reduced(spec, state)
    makes = call.name in MADE and not call.name.endswith("_like")
    # Gradients of what ran with the experts go there before they meet anything of it.
    goes = is_backward and bool(linked) and all(state.share is Share.DISPATCHED for _, state in linked)
    if not makes and (goes or any(state.share in (Share.DISPATCHED, Share.EXPERTS) for state in now)):
        return _dispatched(call, now, wanted, rules, goes=goes)
    return _divided(call, now, wanted, linked, rules, is_backward=is_backward)


def _divided(
    call: ShapedCall,
    now: list[State],
    wanted: list[State | None],
    linked: Sequence[tuple[TensorSpec, State]],
    rules: Rules,
    *,
    is_backward: bool,
) -> Outcome:
    """Return what becomes of a call whose tensors are divided by features or tokens."""
    if call.name in MADE and not call.name.endswith("_like"):
        return _made(call, now, wanted, linked)
    if call.name == "embedding_dense_backward" and linked and linked[0][1].share is Share.FEATURES:
        # The gradient of a shared table: every rank has the gradients of all tokens, and adds up those of its rows.
        place = place_of(*linked[0])
        for at, state in enumerate(now):
            if state.is_part:
                wanted[at] = WHOLE
        result = WHOLE if place is None else state_at(call.outputs[0], place)
        return Outcome(wanted=tuple(wanted), places=(None,) * len(now), results=(result,))
    naming = name_dims(call)
    if naming is None:
        return _unknown(call, now, wanted)
    return decide_named(call, naming, now, wanted, linked, rules, is_backward=is_backward)


def _sum_of_summands(call: ShapedCall, states: Sequence[State], *, is_backward: bool) -> Outcome | None:
    """Return a sum that each rank takes of its summands; None where these must be added up first.

    In the backward pass a gradient that is split by tokens counts as a summand: what comes after is added before ranks
    exchange anything.
    """
    given = [state for state, spec in zip(states, call.inputs, strict=True) if spec.shape]
    is_open = call.name in _ADDS and all(_is_open(state) for state in given)
    summands = [_is_open(state) or state.share is Share.TOKENS for state in given]
    joins = is_backward and call.name == "add" and any(map(_is_open, given)) and all(summands)
    if not (is_open or joins):
        return None
    shown = next(state for state in given if _is_open(state))
    return Outcome(wanted=(None,) * len(states), places=(None,) * len(states), results=(shown,) * len(call.outputs))


def _is_open(state: State) -> bool:
    return state.share is Share.PARTIAL and not state.is_added_up


def _made(
    call: ShapedCall, states: list[State], wanted: list[State | None], linked: Sequence[tuple[TensorSpec, State]]
) -> Outcome:
    """Make what the forward op had of that shape."""
    results = []
    for spec in call.outputs:
        like = next((item for item in linked if item[0].shape == spec.shape and item[1].is_part), None)
        place = None if like is None else place_of(*like)
        results.append(WHOLE if place is None else state_at(spec, place))
    places = tuple(place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True))
    return Outcome(wanted=tuple(wanted), places=places, results=tuple(results))


def _dispatched(
    call: ShapedCall, states: list[State], wanted: list[State | None], rules: Rules, *, goes: bool
) -> Outcome:
    """Follow rows that are with their experts: products of groups take them there, and the op where it `goes`."""
    grouped = call.name in _GROUPED
    naming = name_dims(call) if grouped else None
    places: list[Cut | None] = [None] * len(states)
    if naming is not None:
        results = []
        groups = 4
        for at, (state, spec, names) in enumerate(zip(states, call.inputs, naming.inputs, strict=True)):
            if groups in names:
                dim = names.index(groups)
                places[at] = Cut(dim, spec.shape[dim], State(Share.EXPERTS, 0, rules.degree))
            elif state.share is not Share.DISPATCHED:
                wanted[at] = State(Share.DISPATCHED)
        for names, spec in zip(naming.outputs, call.outputs, strict=True):
            if groups in names:
                dim = names.index(groups)
                results.append(state_at(spec, Cut(dim, spec.shape[dim], State(Share.EXPERTS, 0, rules.degree))))
            else:
                results.append(State(Share.DISPATCHED))
        return Outcome(wanted=tuple(wanted), places=tuple(places), results=tuple(results))
    places = [place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True)]
    if any(place is not None for place in places):
        model = next(state for state in states if state.share is Share.EXPERTS)
        results = [
            state_at(spec, place) if (place := place_of(spec, model)) is not None and place.dim == 0 else WHOLE
            for spec in call.outputs
        ]
        return Outcome(wanted=tuple(wanted), places=tuple(places), results=tuple(results))
    return _mixed(call, states, wanted, goes=goes)


def _mixed(call: ShapedCall, states: list[State], wanted: list[State | None], *, goes: bool) -> Outcome:
    """Leave rows with their experts where all are there or go there; else mix them back. A bias has no rows."""
    pairs = list(zip(states, call.inputs, strict=True))
    sent = [spec for state, spec in pairs if goes or state.share is Share.DISPATCHED]
    rows = max(sent, key=lambda spec: spec.element_count).shape[:1] if sent else ()
    of_rows = [bool(rows) and spec.shape[:1] == rows for _, spec in pairs]
    if goes or all(state.share is Share.DISPATCHED for state, is_mine in zip(states, of_rows, strict=True) if is_mine):
        for at in (at for at, is_mine in enumerate(of_rows) if is_mine and states[at].share is not Share.DISPATCHED):
            wanted[at] = State(Share.DISPATCHED)
        found = tuple(State(Share.DISPATCHED) if rows and spec.shape[:1] == rows else WHOLE for spec in call.outputs)
        return Outcome(wanted=tuple(wanted), places=(None,) * len(states), results=found)
    for at, state in enumerate(states):
        if state.share is Share.DISPATCHED:
            wanted[at] = WHOLE
    return Outcome(wanted=tuple(wanted), places=(None,) * len(states), results=(WHOLE,) * len(call.outputs))


def _unknown(call: ShapedCall, states: list[State], wanted: list[State | None]) -> Outcome:
    """Follow tokens through an op that is not known as far as leading sizes agree; make features whole."""
    places = [place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True)]
    lost = []
    for at, place in enumerate(places):
        if (
            place is not None
            and place.state.share is Share.FEATURES
            and not any(spec.shape == call.inputs[at].shape for spec in call.outputs)
        ):
            lost.append(at)
            wanted[at], places[at] = WHOLE, None
    held = [(spec, place) for spec, place in zip(call.inputs, places, strict=True) if place is not None]
    results = []
    for spec in call.outputs:
        found = next(
            (
                (source, place)
                for source, place in held
                if len(spec.shape) > place.dim and spec.shape[: place.dim + 1] == source.shape[: place.dim + 1]
            ),
            None,
        )
        results.append(WHOLE if found is None else state_at(spec, found[1]))
    kept = tuple(at for at, place in enumerate(places) if place is not None)
    return Outcome(wanted=tuple(wanted), places=tuple(places), results=tuple(results), lost=tuple(lost), kept=kept)


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
