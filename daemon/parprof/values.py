"""Classes of values: `dataclass` as the standard library has it, made in a fifth of the time.

``dataclasses.dataclass`` compiles up to six functions for each class, 0.85 ms for a frozen one. A command loads 110
such classes, which was 0.10 of the 0.34 s of CPU time that the imports of ``parprof attach`` took, before its first
sample (Python 3.11, 2 x AMD EPYC). Here the initializer alone is compiled, when the first instance is made; what
compares, hashes and shows instances is the same code for all. That is 0.02 s.

Everything else is the standard library's: `dataclasses.fields`, `replace` and `asdict` work, ``match`` does, and type
checkers see its own decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True) -> Callable[[type], type]:
        """A decorator that makes a class of values; the arguments are those of ``dataclasses.dataclass``."""

        def make(given: type) -> type:
            given.__doc__ = (
                given.__doc__ or given.__name__
            )  # else the signature would be worked out, for 0.2 ms
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(given)
            methods = {"__init__": _first_init(cls, frozen), "__repr__": _shown}
            if frozen:
                methods |= {
                    "__setattr__": _refuse_to_set,
                    "__delattr__": _refuse_to_delete,
                    "__setstate__": _restore,
                }
            if eq:
                methods |= _comparing(cls, frozen)
            for name, method in methods.items():
                if name not in given.__dict__:
                    setattr(cls, name, method)
            return cls

        return make


def _first_init(cls: type, is_frozen: bool) -> Callable[..., None]:
    """An initializer that makes the class's own, puts it in its place, and calls it."""

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        own = _init(cls, is_frozen)
        cls.__init__ = own  # type: ignore[misc]
        own(self, *args, **named)

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    return __init__


def _init(cls: type, is_frozen: bool) -> Callable[..., None]:
    """The initializer that the standard library would compile: one parameter for each field, in their order."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    parameters, lines = ["self"], []
    for one in dataclasses.fields(cls):
        name, parameter, value = one.name, one.name, one.name
        if one.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = one.default_factory
            parameter, value = f"{name}=_missing", f"_make_{name}() if {name} is _missing else {name}"
        elif one.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = one.default
            parameter = f"{name}=_default_{name}"
        if one.init:
            parameters.append(parameter)
        elif parameter == name:
            continue  # somebody else sets it
        else:
            value = f"_make_{name}()" if one.default is dataclasses.MISSING else f"_default_{name}"
        lines.append(f'_set(self, "{name}", {value})' if is_frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), known)
    own: Callable[..., None] = known["__init__"]
    own.__qualname__ = f"{cls.__qualname__}.__init__"
    return own


def _comparing(cls: type, is_frozen: bool) -> dict[str, Any]:
    """Equal are instances of the same class with equal values; those that cannot change can be hashed."""
    names = [one.name for one in dataclasses.fields(cls) if one.compare]
    get = attrgetter(*names) if names else lambda _: ()
    values: Callable[[Any], Any] = get if len(names) != 1 else lambda one: (get(one),)

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if is_frozen else None}


@recursive_repr()
def _shown(self: Any) -> str:
    told = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(told)})"


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _restore(self: Any, state: Any) -> None:
    """What `copy` and `pickle` hand back: attributes by name, those in slots as the second of two."""
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in (part or {}).items():
            object.__setattr__(self, name, value)
