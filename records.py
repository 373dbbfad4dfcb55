"""Makes classes of fields: `dataclass` as the standard library's, whose methods cost nothing until they are used.

The standard library compiles up to six functions for each class while its module is imported. Of the 240 classes that
a question imports, that was a third of a command's time, and most of them are never made. Here the standard library
reads the fields and adds the slots, as it does so at once; `__init__` is compiled when it is first looked up, and the
other methods are closures. `fields`, `replace` and `asdict` do as with the standard library's. What this package has
no use for is refused: `InitVar`, and a field's `hash`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, field, fields, replace
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "replace"]

_Class = TypeVar("_Class", bound=type[Any])

if TYPE_CHECKING:
    from dataclasses import dataclass  # noqa: TID251 (what type checkers know)
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, kw_only: bool = False, eq: bool = True, repr: bool = True
    ) -> Callable[[_Class], _Class]:
        """Return a decorator that adds the methods which `dataclasses.dataclass` adds; instances have no order.

        >>> @dataclass(frozen=True, slots=True, kw_only=True)
        ... class Span:
        ...     start_ns: int
        ...     duration_ns: int = 0
        >>> Span(start_ns=5)
        Span(start_ns=5, duration_ns=0)
        """

        def make(cls: _Class) -> _Class:
            cls.__doc__ = cls.__doc__ or cls.__name__  # or the standard library writes the signature there
            with _thawed(cls):
                made = dataclasses.dataclass(  # noqa: TID251 (it compiles nothing of this)
                    cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
                )
            given = made.__dataclass_fields__.values()
            if any("InitVar" in str(item.type) or item.hash is not None for item in given):
                raise TypeError(f"{cls.__name__}: InitVar and a field's hash are not known here")
            methods = {"__init__": _Unwritten(made, frozen)}
            if repr:
                methods["__repr__"] = _representation(made)
            if eq:
                methods |= _comparison(made, frozen)
                if made.__dict__.get("__hash__") is None:  # none, or what `__eq__` in the class's body leaves
                    made.__hash__ = methods.pop("__hash__")
            if frozen:
                methods |= _refusals(made)
            if frozen and slots:
                methods |= _states(made)
            for name, method in methods.items():
                if name not in made.__dict__:
                    setattr(made, name, method)
            for name, value in (("init", True), ("repr", repr), ("eq", eq), ("frozen", frozen)):
                setattr(made.__dataclass_params__, name, value)
            return made

        return make


@contextmanager
def _thawed(cls: type[Any]) -> Iterator[None]:
    """Let the standard library take the bases of a class for ones that may change: it is not told that this may not."""
    found = (base.__dict__.get("__dataclass_params__") for base in cls.__mro__[1:])
    frozen = [params for params in found if params is not None and params.frozen]
    for params in frozen:
        params.frozen = False
    try:
        yield
    finally:
        for params in frozen:
            params.frozen = True


class _Made:
    """Stand for a default that is made anew, where signatures are shown."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


class _Unwritten:
    """Stand for the `__init__` of a class until something looks it up."""

    def __init__(self, cls: type[Any], frozen: bool) -> None:
        self._cls, self._frozen = cls, frozen

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        written = _write_init(self._cls, self._frozen)
        self._cls.__init__ = written
        return written.__get__(instance, owner)


def _write_init(cls: type[Any], frozen: bool) -> Any:
    """Compile the `__init__` of a class: its parameters are the fields, in order, those by keyword alone last."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_made": _MADE}
    positional: list[str] = []
    by_keyword: list[str] = []
    body: list[str] = []
    for item in fields(cls):
        name, value = item.name, item.name
        parameter = name
        if item.default is not dataclasses.MISSING:
            known[f"_of_{name}"] = item.default
            parameter = f"{name}=_of_{name}"
        elif item.default_factory is not dataclasses.MISSING:
            known[f"_of_{name}"] = item.default_factory
            parameter = f"{name}=_made"
            value = f"_of_{name}() if {name} is _made else {name}" if item.init else f"_of_{name}()"
        elif not item.init:
            continue
        if item.init:
            (by_keyword if item.kw_only else positional).append(parameter)
        elif item.default is not dataclasses.MISSING:
            value = f"_of_{name}"
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ["self", *positional, *(["*", *by_keyword] if by_keyword else [])]
    lines = "\n    ".join(body or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n    {lines}", known)  # noqa: S102 (names of fields alone)
    init = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {item.name: item.type for item in fields(cls) if item.init} | {"return": None}
    return init


def _representation(cls: type[Any]) -> Callable[[Any], str]:
    names = [item.name for item in fields(cls) if item.repr]

    @recursive_repr("...")
    def represent(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return represent


def _comparison(cls: type[Any], frozen: bool) -> dict[str, Any]:
    """Return how instances are compared and, where they stay as they are, hashed: by their fields, as tuples."""
    names = [item.name for item in fields(cls) if item.compare]
    getter = attrgetter(*names) if names else lambda _: ()
    values: Callable[[Any], Any] = getter if len(names) != 1 else lambda self: (getter(self),)

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": hashed if frozen else None}


def _refusals(cls: type[Any]) -> dict[str, Any]:
    """Return what keeps the fields of an instance as they are."""
    names = {item.name for item in fields(cls)}

    def assign(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": assign, "__delattr__": delete}


def _states(cls: type[Any]) -> dict[str, Any]:
    """Return how instances are pickled and copied that have slots and refuse to be assigned to."""
    names = [item.name for item in fields(cls)]

    def get(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def put(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": get, "__setstate__": put}
