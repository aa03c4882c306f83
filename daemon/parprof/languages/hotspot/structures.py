"""What HotSpot says of itself for tools: where the fields of its structures are, how large they are, some constants.

Its library exports the tables and, as variables, the layout of their rows. The serviceability agent reads them, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import field

from parprof.languages.hotspot.memory import JvmMemory, Unreadable
from parprof.values import dataclass

_MOST_ROWS = 1 << 14
_MOST_STRIDE = 256
_STRUCT = "gHotSpotVMStruct"
_TYPE = "gHotSpotVMType"
_INT = "gHotSpotVMIntConstant"
SYMBOLS = (
    *(f"{kind}s" for kind in (_STRUCT, _TYPE, _INT)),
    *(f"{kind}EntryArrayStride" for kind in (_STRUCT, _TYPE, _INT)),
    f"{_STRUCT}EntryTypeNameOffset",
    f"{_STRUCT}EntryFieldNameOffset",
    f"{_STRUCT}EntryIsStaticOffset",
    f"{_STRUCT}EntryOffsetOffset",
    f"{_STRUCT}EntryAddressOffset",
    f"{_TYPE}EntryTypeNameOffset",
    f"{_TYPE}EntrySizeOffset",
    f"{_INT}EntryNameOffset",
    f"{_INT}EntryValueOffset",
)
"""Of the library: the tables, and how their rows are made."""


@dataclass(slots=True)
class VmStructures:
    """What the tables say. Names are HotSpot's own: they changed with its versions."""

    offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    """By structure and field."""
    statics: dict[tuple[str, str], int] = field(default_factory=dict)
    """The addresses of static fields."""
    sizes: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, memory: JvmMemory, symbols: Mapping[str, int]) -> VmStructures:
        """``symbols``: the addresses of `SYMBOLS`.

        Raises:
            Unreadable: they are not there (yet), or no such tables.
        """
        out = cls()
        texts = _Texts(memory)
        try:
            at = {name: memory.number(symbols[name]) for name in SYMBOLS}
        except KeyError as error:
            raise Unreadable(f"no {error}") from error
        row_of = {
            name: at[f"{_STRUCT}Entry{name}Offset"]
            for name in ("TypeName", "FieldName", "IsStatic", "Offset", "Address")
        }
        for row in _rows(memory, at, _STRUCT, row_of["TypeName"]):
            key = texts[_word(row, row_of["TypeName"])], texts[_word(row, row_of["FieldName"])]
            if _word(row, row_of["IsStatic"]) & 0xFFFFFFFF:
                out.statics[key] = _word(row, row_of["Address"])
            else:
                out.offsets[key] = _word(row, row_of["Offset"])
        name_at, size_at = at[f"{_TYPE}EntryTypeNameOffset"], at[f"{_TYPE}EntrySizeOffset"]
        for row in _rows(memory, at, _TYPE, name_at):
            out.sizes[texts[_word(row, name_at)]] = _word(row, size_at)
        name_at, value_at = at[f"{_INT}EntryNameOffset"], at[f"{_INT}EntryValueOffset"]
        for row in _rows(memory, at, _INT, name_at):
            out.constants[texts[_word(row, name_at)]] = _word(row, value_at) & 0xFFFFFFFF
        return out

    def offset(self, *known: str) -> int:
        """Of the first of these fields, ``Structure.field``, that there is.

        Raises:
            Unreadable: there is none of them, or not where one can be.
        """
        found = next((self.offsets[key] for key in map(_key, known) if key in self.offsets), None)
        if found is None or found >= 1 << 15:
            raise Unreadable(f"no {known[0]}")
        return found

    def static(self, *known: str) -> int:
        """The address of the first of these static fields that there is.

        Raises:
            Unreadable: there is none of them.
        """
        found = next((self.statics[key] for key in map(_key, known) if key in self.statics), 0)
        if not found:
            raise Unreadable(f"no {known[0]}")
        return found

    def size(self, name: str) -> int:
        """Bytes of a structure.

        Raises:
            Unreadable: it is not known, or none that can be.
        """
        found = self.sizes.get(name, 0)
        if not 0 < found < 1 << 15:
            raise Unreadable(f"no size of {name}")
        return found


class _Texts(dict[int, str]):
    """Texts by their address: most rows share theirs with others."""

    def __init__(self, memory: JvmMemory) -> None:
        super().__init__()
        self._memory = memory

    def __missing__(self, address: int) -> str:
        text = self[address] = self._memory.text(address) if address else ""
        return text


def _key(name: str) -> tuple[str, str]:
    structure, _, member = name.partition(".")
    return structure, member


def _word(row: bytes, at: int) -> int:
    if not 0 <= at <= len(row) - 8:
        raise Unreadable("a row that is too short")
    (value,) = struct.unpack_from("<Q", row, at)
    return int(value)


def _rows(memory: JvmMemory, at: Mapping[str, int], kind: str, name_at: int) -> Iterator[bytes]:
    """The rows of a table, which ends with one that has no name. Some bytes more than each has: of its last field,
    which may be a short one, a word is read."""
    start, stride = at[f"{kind}s"], at[f"{kind}EntryArrayStride"]
    if not 8 <= stride <= _MOST_STRIDE:
        raise Unreadable(f"rows of {stride} bytes")
    for index in range(_MOST_ROWS):
        row = memory.read(start + index * stride, stride + 8)
        if not _word(row, name_at):
            return
        yield row
    raise Unreadable("a table without an end")
