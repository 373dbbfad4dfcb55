"""The letters of every op that is known."""

from ...calls import ShapedCall
from ...op_rules import find_rule
from . import layers
from .letters import Naming, name_elementwise


def name_dims(call: ShapedCall) -> Naming | None:
    """Return the letters of a call's dims; None where nothing is known of the op."""
    rule = find_rule("letters", call.name)
    if rule is None and "attention" in call.name:
        rule = layers.name_attention
    found: Naming | None = None if rule is None else rule(call)
    return found or name_elementwise(call)
