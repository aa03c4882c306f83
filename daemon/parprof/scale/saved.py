"""The whole answer as text and back: in its pprof file, for `parprof report` and `diff`.

What is read may be of anybody: it is checked against the types of the fields, and numbers must be finite and not
negative. Names are made harmless where they are shown.
"""

from __future__ import annotations

import json
import math
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from parprof.errors import ProfileFormatError
from parprof.scale.model import Scale

SCHEMA = 3
_MOST = 2**63 - 1
_MAX_TEXT = 1 << 16
_MAX_PREDICTIONS = 1 << 10


def dumps(scale: Scale) -> str:
    """One line of JSON: objects are lists of their fields, in order."""
    return json.dumps([SCHEMA, _encoded(scale)], separators=(",", ":"))


def loads(text: str) -> Scale:
    """The answer in such a line.

    Raises:
        ProfileFormatError: there is none, or one of a newer version.
    """
    try:
        schema, content = json.loads(text)
        if schema != SCHEMA:
            raise ProfileFormatError(
                "it was written by another version of parprof: run `parprof scale` again"
            )
        scale = _decoded(Scale, content)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProfileFormatError("it is corrupt: what it says of work and span is damaged") from error
    assert isinstance(scale, Scale)
    if not 0 < len(scale.predictions) <= _MAX_PREDICTIONS:
        raise ProfileFormatError("it is corrupt: it is of no run")
    return scale


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_encoded(one) for one in value]
    if is_dataclass(value):
        return [_encoded(getattr(value, field.name)) for field in fields(value) if field.init]
    return value.value if isinstance(value, Enum) else value


def _decoded(kind: Any, value: Any) -> Any:
    """A value of this type.

    Raises:
        TypeError, ValueError: it is none.
    """
    if typing.get_origin(kind) is tuple:
        of = typing.get_args(kind)[0]
        return tuple(_decoded(of, one) for one in _list(value))
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        kinds = [hints[field.name] for field in fields(kind) if field.init]
        parts = zip(kinds, _list(value), strict=True)
        return typing.cast(Any, kind)(*(_decoded(of, one) for of, one in parts))
    if kind is float:
        return _float(value)
    if issubclass(kind, Enum):
        return kind(_count(value))
    if kind is int:
        return _count(value)
    if type(value) is not kind or (kind is str and len(value) > _MAX_TEXT):
        raise TypeError(f"no {kind.__name__}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError("no count")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MOST or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)
