"""C structures as the compiled object describes them: decoded by field name, never by a twin kept by hand."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from parprof.errors import KernelUnsupported

_SCALARS: dict[str, Any] = {
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "s8": ctypes.c_int8,
    "s16": ctypes.c_int16,
    "s32": ctypes.c_int32,
    "s64": ctypes.c_int64,
    "char": ctypes.c_char,
}
_CODES: dict[Any, str] = {
    _SCALARS[name]: code
    for name, code in zip(("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"), "BHIQbhiq", strict=True)
}
"""As `struct` knows them."""


def _field_type(name: str) -> Any:
    base, _, length = name.partition("[")
    kind = _SCALARS[base]
    return kind * int(length.rstrip("]")) if length else kind


def make_structure(name: str, fields: list[list[Any]]) -> type[ctypes.Structure]:
    """A ctypes structure from ``[[field, type], ...]`` as the compiler child wrote it; a type may be such a list.

    Raises:
        KernelUnsupported: a type that the compiler child must not have written.
    """
    try:
        described = [
            (field, _field_type(kind) if isinstance(kind, str) else make_structure(field, kind))
            for field, kind in fields
        ]
    except (KeyError, ValueError) as error:
        raise KernelUnsupported(f"the compiled object's layout of {name} is damaged: {error}") from error
    return type(name, (ctypes.Structure,), {"_fields_": described})


def flat_struct(structure: type[ctypes.Structure]) -> struct.Struct:
    """What unpacks a structure of plain integers, field by field in their order: many times as fast as ctypes.

    Raises:
        KernelUnsupported: a field is no plain integer.
    """
    codes, at = ["<"], 0
    for name, kind, *_ in structure._fields_:
        field = getattr(structure, name)
        code = _CODES.get(kind)
        if code is None:
            raise KernelUnsupported(f"layout of {structure.__name__}: {name} is no plain integer")
        codes += ["x" * (field.offset - at), code]
        at = field.offset + field.size
    return struct.Struct("".join([*codes, "x" * (ctypes.sizeof(structure) - at)]))


def check_size(structure: type[ctypes.Structure], expected: int) -> None:
    """Fail loudly when a layout and its map disagree."""
    if ctypes.sizeof(structure) != expected:
        raise KernelUnsupported(
            f"layout of {structure.__name__}: {ctypes.sizeof(structure)} bytes, the map has {expected}"
        )
