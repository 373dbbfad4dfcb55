"""What a rank must hold of an op's inputs, and what it then has of the results."""

from collections.abc import Sequence
from typing import Final

from .....formats.trace.signature import TensorSpec
from ...calls import ShapedCall
from .layers import name_dims
from .letters import MADE
from .named import decide_named
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
    joins = is_backward and call.name == "add" and any(map(_is_open, given)) and all(map(_is_summand, given))
    if not (is_open or joins):
        return None
    shown = next(state for state in given if _is_open(state))
    return Outcome(wanted=(None,) * len(states), places=(None,) * len(states), results=(shown,) * len(call.outputs))


def _is_summand(state: State) -> bool:
    return _is_open(state) or state.share is Share.TOKENS


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
