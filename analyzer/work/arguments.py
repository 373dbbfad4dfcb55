"""Typed access to a signature's arguments, by position in the op's schema."""

from ...formats.trace.signature import Argument, Signature, TensorSpec, flatten_tensors


class LackingArgumentError(Exception):
    """Say that a signature lacks what a formula needs; `work_of` turns it into None."""


def argument_at(signature: Signature, position: int) -> Argument:
    """Return an argument, None where the call stops before it."""
    arguments = signature.arguments
    return arguments[position] if position < len(arguments) else None


def tensor_at(signature: Signature, position: int, rank: int | None = None) -> TensorSpec:
    """Return a tensor argument, of the given rank if any; raise where it is none."""
    found = argument_at(signature, position)
    if not isinstance(found, TensorSpec):
        raise LackingArgumentError(position)
    if rank is not None and len(found.shape) != rank:
        raise LackingArgumentError(position)
    return found


def optional_tensor_at(signature: Signature, position: int) -> TensorSpec | None:
    """Return a tensor argument or None: profilers record the dims of every tensor that was given."""
    found = argument_at(signature, position)
    return found if isinstance(found, TensorSpec) else None


def tensors_at(signature: Signature, *positions: int) -> tuple[TensorSpec, ...]:
    """Return the tensors among the arguments at these positions, lists left out."""
    arguments = signature.arguments
    count = len(arguments)
    found = [arguments[position] for position in positions if position < count]
    return tuple(item for item in found if isinstance(item, TensorSpec))


def tensor_list_at(signature: Signature, position: int) -> tuple[TensorSpec, ...]:
    """Return a list of tensors (a lone tensor counts as a list of one); raise where its tensors are unknown."""
    found = argument_at(signature, position)
    if isinstance(found, TensorSpec):
        return (found,)
    tensors = optional_tensor_list_at(signature, position)
    if not tensors:
        raise LackingArgumentError(position)
    return tensors


def optional_tensor_list_at(signature: Signature, position: int) -> tuple[TensorSpec, ...]:
    """Return a list of tensors, empty where the argument is none."""
    found = argument_at(signature, position)
    return tuple(x for x in found if isinstance(x, TensorSpec)) if isinstance(found, tuple) else ()


def sizes_at(signature: Signature, position: int) -> tuple[int, ...]:
    """Return a list of sizes (a lone size counts as a list of one); raise where one is unknown or negative."""
    found = argument_at(signature, position)
    items = found if isinstance(found, tuple) else (found,)
    sizes = tuple(item for item in items if isinstance(item, int) and item >= 0)
    if len(sizes) != len(items):
        raise LackingArgumentError(position)
    return sizes


def size_at(signature: Signature, position: int) -> int:
    """Return a size; raise where it is unknown or negative."""
    found = argument_at(signature, position)
    if not isinstance(found, int) or found < 0:
        raise LackingArgumentError(position)
    return found


def flag_at(signature: Signature, position: int) -> bool:
    """Return a flag; raise where it is unknown."""
    found = argument_at(signature, position)
    if not isinstance(found, bool | int):
        raise LackingArgumentError(position)
    return bool(found)


def flags_at(signature: Signature, position: int, count: int) -> tuple[bool, ...]:
    """Return a mask of `count` flags; raise where it is unknown."""
    found = argument_at(signature, position)
    if not isinstance(found, tuple) or len(found) != count or not all(isinstance(x, bool | int) for x in found):
        raise LackingArgumentError(position)
    return tuple(bool(x) for x in found)


def dims_at(signature: Signature, position: int, rank: int) -> tuple[int, ...] | None:
    """Return dimensions as indices from 0; None where not given, not recorded, or out of range."""
    found = argument_at(signature, position)
    items = found if isinstance(found, tuple) else (found,)
    if not items or isinstance(found, bool):
        return None
    dims = {item % rank for item in items if isinstance(item, int) and -rank <= item < rank}
    return tuple(sorted(dims)) if len(dims) == len(items) else None


def result_at(signature: Signature, position: int = 0) -> TensorSpec | None:
    """Return a recorded result; None where it was not recorded."""
    results = signature.results
    found = results[position] if position < len(results) else None
    return found if isinstance(found, TensorSpec) else None


def result_tensors(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return every recorded result, lists flattened."""
    return flatten_tensors(signature.results)
