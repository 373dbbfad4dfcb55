"""What a rank must hold of an op's inputs, and what it then has of the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .....formats.signature import TensorSpec
from .letters import MADE, Naming, OpCall, name_dims, pairs
from .placement import WHOLE, Place, Share, State, place_of, state_at

_ADDS: Final = frozenset(["add", "sub", "neg", "clone", "contiguous", "accumulate_grad"])
"""Ops that may as well run on summands, where all that they read are some."""
_CHOOSES: Final = frozenset(["index", "index_select"])
_BATCHED: Final = frozenset(["bmm", "baddbmm"])
"""Products of activations: sums over tokens are no gradients of parameters."""
_GROUPED: Final = frozenset(["_grouped_mm", "_scaled_grouped_mm"])


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

    def summand(self, spec: TensorSpec) -> State:
        """Return the state of a new tensor of which ranks have summands: it knows where it holds tokens."""
        place = self.token_place(spec) if self.splits_tokens else None
        return State(Share.PARTIAL, 0 if place is None else state_at(spec, place).extent, self.degree)

    def reduced(self, spec: TensorSpec, summand: State) -> State:
        """Return what a rank has of a tensor whose summands were added up."""
        parted = State(Share.TOKENS, summand.extent, self.degree)
        return parted if summand.extent and place_of(spec, parted) is not None else WHOLE

    def token_place(self, spec: TensorSpec) -> Place | None:
        """Return where a tensor holds tokens; None where they cannot be divided."""
        shape, count = spec.shape, self.tokens
        state = State(Share.TOKENS, 0, self.degree)
        holds_features = len(shape) > 1 and not spec.dtype.startswith("int")
        dim = next((dim for dim in range(len(shape) - holds_features) if count > 1 and shape[dim] == count), None)
        if dim is not None:
            return Place(dim, count, state) if not count % self.degree else None
        if not shape or shape[0] % self.degree or shape[0] < self.degree:
            return None
        by_sample = count > 1 and not count % self.degree and shape[0] == self.batch * count
        return Place(0, count if by_sample else shape[0], state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what a rank needs and gets; one entry per input or result."""

    wanted: tuple[State | None, ...]
    """None: as it is."""
    places: tuple[Place | None, ...]
    """Of the inputs, as wanted."""
    results: tuple[State, ...]
    lost: tuple[int, ...] = ()
    """Inputs whose shared features had to be made whole."""
    kept: tuple[int, ...] = ()
    """Inputs whose features stay shared."""
    exchanged: tuple[int, str] | None = None
    """Elements and dtype of what ranks add up to go on with a shared vocabulary."""
    exchanges: int = 0


def decide(
    call: OpCall,
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
        given = [state for state, spec in zip(states, call.inputs, strict=True) if spec.shape]
        if call.name in _ADDS and all(state.share is Share.PARTIAL for state in given):
            return Outcome(wanted=tuple(wanted), places=(None,) * len(states), results=(given[0],) * len(call.outputs))
        if is_backward and call.name == "add" and len(given) > 1 and all(_is_summand(state) for state in given):
            # A gradient that is split by tokens is a summand as well: what comes after is added before ranks exchange.
            shown = next(state for state in given if state.share is Share.PARTIAL)
            return Outcome(wanted=tuple(wanted), places=(None,) * len(states), results=(shown,) * len(call.outputs))
        for at, (state, spec) in enumerate(zip(states, call.inputs, strict=True)):
            if state.share is Share.PARTIAL:
                wanted[at] = now[at] = rules.reduced(spec, state)
    if call.name in MADE and not call.name.endswith("_like"):
        return _made(call, now, wanted, linked)
    if any(state.share in (Share.DISPATCHED, Share.EXPERTS) for state in now):
        return _dispatched(call, now, wanted, rules)
    naming = name_dims(call)
    return _unknown(call, now, wanted, rules) if naming is None else _named(call, naming, now, wanted, linked, rules)


def _is_summand(state: State) -> bool:
    return state.share in (Share.PARTIAL, Share.TOKENS)


def _made(
    call: OpCall, states: list[State], wanted: list[State | None], linked: Sequence[tuple[TensorSpec, State]]
) -> Outcome:
    """Make what the forward op had of that shape."""
    results = []
    for spec in call.outputs:
        like = next((item for item in linked if item[0].shape == spec.shape and item[1].is_part), None)
        place = None if like is None else place_of(*like)
        results.append(WHOLE if place is None else state_at(spec, place))
    places = tuple(place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True))
    return Outcome(wanted=tuple(wanted), places=places, results=tuple(results))


def _named(
    call: OpCall,
    naming: Naming,
    states: list[State],
    wanted: list[State | None],
    linked: Sequence[tuple[TensorSpec, State]],
    rules: Rules,
) -> Outcome:
    places = [place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True)]
    letters = [
        None if place is None else _letter(names, place) for names, place in zip(naming.inputs, places, strict=True)
    ]
    if call.name == "embedding_dense_backward" and linked and linked[0][1].share is Share.FEATURES:
        return _table_gradient(call, states, wanted, linked[0], rules)
    active, exchange = _active_letter(naming, places, letters, rules)
    lost, kept = [], []
    for at, place in enumerate(places):
        if place is not None and (letters[at] is None or letters[at] != active):
            if place.state.share is Share.FEATURES:
                lost.append(at)
            wanted[at], places[at] = WHOLE, None
    model = next(
        (place for place, letter in zip(places, letters, strict=True) if place is not None and letter == active), None
    )
    if active is None or model is None:
        sums = any(state.share is Share.GRADIENT for state in states)
        shown = State(Share.GRADIENT) if sums else WHOLE
        return Outcome(
            wanted=tuple(wanted),
            places=tuple(places),
            results=tuple(shown if spec.shape else WHOLE for spec in call.outputs),
            lost=tuple(lost),
        )
    by_size: dict[int, Place] = {}
    for at, place in enumerate(places):
        if place is not None:
            by_size.setdefault(call.inputs[at].shape[place.dim], place)
            kept.append(at)
    for at, names in enumerate(naming.inputs):
        if places[at] is None and active in names:
            dim = names.index(active)
            if call.inputs[at].shape[dim] > 1:
                places[at] = _moved(by_size, model, call.inputs[at], dim)
                wanted[at] = state_at(call.inputs[at], _sure(places[at]))
    results = tuple(
        _result(call, names, spec, active, naming, by_size, model, rules)
        for names, spec in zip(naming.outputs, call.outputs, strict=True)
    )
    if (
        call.name in _CHOOSES
        and model.state.share is Share.TOKENS
        and results[0].is_part
        and active == naming.outputs[0][0]
    ):
        spec = call.outputs[0]  # rows in an order of their own: those of a rank lie together
        results = (state_at(spec, Place(0, spec.shape[0], model.state)), *results[1:])
    exchanged = None
    if exchange and naming.exchanges and model.state.share is Share.FEATURES:
        spec, place = next((s, p) for s, p in zip(call.inputs, places, strict=True) if p is not None)
        exchanged = (spec.element_count // spec.shape[place.dim], "float32")
    return Outcome(
        wanted=tuple(wanted),
        places=tuple(places),
        results=results,
        lost=tuple(lost),
        kept=tuple(kept),
        exchanged=exchanged,
        exchanges=naming.exchanges if exchanged else 0,
    )


def _sure(place: Place | None) -> Place:
    if place is None:
        raise AssertionError
    return place


def _letter(names: Sequence[int], place: Place) -> int | None:
    return names[place.dim] or None if place.dim < len(names) else None


def _active_letter(
    naming: Naming, places: Sequence[Place | None], letters: Sequence[int | None], rules: Rules
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
            if rules.is_search and is_summed and not is_exchanged:
                continue
            return letter, is_exchanged
    return None, False


def _moved(by_size: dict[int, Place], model: Place, spec: TensorSpec, dim: int) -> Place:
    size = spec.shape[dim]
    like = by_size.get(size, model)
    whole = next((known for known, place in by_size.items() if place is like), size)
    inner = like.inner if whole == size else max(1, size * like.inner // max(whole, 1))
    return Place(dim, inner if not size % inner else size, like.state)


def _result(
    call: OpCall,
    names: Sequence[int],
    spec: TensorSpec,
    active: int,
    naming: Naming,
    by_size: dict[int, Place],
    model: Place,
    rules: Rules,
) -> State:
    if active in names:
        return state_at(spec, _moved(by_size, model, spec, names.index(active)))
    if not any(names) or not naming.is_sum or active == naming.exchanged:
        return WHOLE
    sums_activations = model.state.share is Share.FEATURES or "attention" in call.name or call.name in _BATCHED
    return rules.summand(spec) if sums_activations else State(Share.GRADIENT)


def _table_gradient(
    call: OpCall, states: list[State], wanted: list[State | None], table: tuple[TensorSpec, State], rules: Rules
) -> Outcome:
    """The gradient of a shared table: every rank has the gradients of all tokens, and adds up those of its rows."""
    place = place_of(*table)
    for at, state in enumerate(states):
        if state.is_part:
            wanted[at] = WHOLE
    result = WHOLE if place is None else state_at(call.outputs[0], replace(place, dim=place.dim))
    return Outcome(wanted=tuple(wanted), places=(None,) * len(states), results=(result,))


def _dispatched(call: OpCall, states: list[State], wanted: list[State | None], rules: Rules) -> Outcome:
    """Follow rows that are with their experts: products of groups take them there, all else that mixes them back."""
    grouped = call.name in _GROUPED
    naming = name_dims(call) if grouped else None
    places: list[Place | None] = [None] * len(states)
    if naming is not None:
        results = []
        groups = 4
        for at, (state, spec, names) in enumerate(zip(states, call.inputs, naming.inputs, strict=True)):
            if groups in names:
                dim = names.index(groups)
                places[at] = Place(dim, spec.shape[dim], State(Share.EXPERTS, 0, rules.degree))
            elif state.share is not Share.DISPATCHED:
                wanted[at] = State(Share.DISPATCHED)
        for names, spec in zip(naming.outputs, call.outputs, strict=True):
            if groups in names:
                dim = names.index(groups)
                place = Place(dim, spec.shape[dim], State(Share.EXPERTS, 0, rules.degree))
                results.append(state_at(spec, place))
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
    rows = [state.share is Share.DISPATCHED for state, spec in zip(states, call.inputs, strict=True) if spec.shape]
    if all(rows):
        found = tuple(State(Share.DISPATCHED) if spec.shape else WHOLE for spec in call.outputs)
        return Outcome(wanted=tuple(wanted), places=tuple(places), results=found)
    for at, state in enumerate(states):
        if state.share is Share.DISPATCHED:
            wanted[at] = WHOLE
    return Outcome(wanted=tuple(wanted), places=tuple(places), results=(WHOLE,) * len(call.outputs))


def _unknown(call: OpCall, states: list[State], wanted: list[State | None], rules: Rules) -> Outcome:
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
