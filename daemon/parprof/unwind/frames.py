"""Where an ELF file has its call frame information: ``.eh_frame``, ``.debug_frame``."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from parprof.errors import ParprofError
from parprof.files.elf import ElfFile
from parprof.files.elf_image import PT_GNU_EH_FRAME, PT_LOAD, SHT_NOBITS, Section
from parprof.unwind.pointers import Refused, read_pointer

MAX_FRAME_BYTES = 1 << 26
"""Bytes of call frame information that are read of one section; a file with more is refused."""
_SHF_COMPRESSED, _COMPRESS_ZLIB = 0x800, 1
_COMPRESSION = struct.Struct("<IIQQ")
_CHUNK = 1 << 23


class UnwindError(ParprofError):
    """The file cannot have an unwind table; the text says why."""


class FrameSection(NamedTuple):
    """Call frame information.

    ``address`` is the virtual address of its first byte, 0 in ``.debug_frame``. It is ``open_ended`` when
    only a terminator says where it ends, ``is_debug`` when it has the format of ``.debug_frame``.
    """

    data: bytes
    address: int
    is_debug: bool = False
    open_ended: bool = False


def frame_sections(elf: ElfFile) -> list[FrameSection]:
    """The call frame information of a file; the most trusted first, none of it empty.

    Raises:
        UnwindError: there is too much of it, or it is compressed in a way that we cannot read.
        ElfError: the file cannot be read.
    """
    found = [_by_header(elf) or _loaded(elf, elf.named_section(b".eh_frame")), _debug(elf)]
    return [section for section in found if section is not None and section.data]


def _by_header(elf: ElfFile) -> FrameSection | None:
    """``.eh_frame`` where the C++ runtime would find it: through the header that PT_GNU_EH_FRAME names."""
    for segment in elf.segments:
        if segment.type != PT_GNU_EH_FRAME:
            continue
        header = elf.read(segment.vaddr, 20)
        if len(header) < 8 or header[0] != 1:
            return None
        try:
            address, _ = read_pointer(header, 4, header[1], segment.vaddr, segment.vaddr)
        except Refused:
            return None
        for section in elf.sections:
            inside = section.address <= address < section.address + section.size
            if inside and section.type != SHT_NOBITS and section.address:
                size = section.address + section.size - address
                return FrameSection(_read(elf, address, size), address)
        for load in elf.segments:
            if load.type == PT_LOAD and load.vaddr <= address < load.vaddr + load.file_size:
                size = min(load.vaddr + load.file_size - address, MAX_FRAME_BYTES)
                return FrameSection(_read(elf, address, size), address, open_ended=True)
        return None
    return None


def _loaded(elf: ElfFile, section: Section | None) -> FrameSection | None:
    if section is None or section.flags & _SHF_COMPRESSED:
        return None
    return FrameSection(_read_section(elf, section), section.address)


def _debug(elf: ElfFile) -> FrameSection | None:
    if section := elf.named_section(b".debug_frame"):
        data = _read_section(elf, section)
        if section.flags & _SHF_COMPRESSED:
            if len(data) < _COMPRESSION.size:
                return None
            method, _, size, _ = _COMPRESSION.unpack_from(data)
            if method != _COMPRESS_ZLIB:
                raise UnwindError(f"{elf.label}: .debug_frame is compressed by method {method}, not by zlib")
            data = _inflate(elf, data[_COMPRESSION.size :], size)
        return FrameSection(data, 0, is_debug=True)
    if section := elf.named_section(b".zdebug_frame"):
        data = _read_section(elf, section)
        if data[:4] == b"ZLIB":
            size = int.from_bytes(data[4:12], "big")
            return FrameSection(_inflate(elf, data[12:], size), 0, is_debug=True)
    return None


def _inflate(elf: ElfFile, packed: bytes, size: int) -> bytes:
    _check_size(elf, size)
    try:
        return zlib.decompressobj().decompress(packed, size) if size else b""
    except zlib.error as error:
        raise UnwindError(f"{elf.label}: .debug_frame is damaged: {error}") from error


def _check_size(elf: ElfFile, size: int) -> None:
    if size > MAX_FRAME_BYTES:
        limit = MAX_FRAME_BYTES >> 20
        raise UnwindError(
            f"{elf.label} has {size >> 20} MiB of call frame information; at most {limit} are read"
        )


def _read(elf: ElfFile, address: int, size: int) -> bytes:
    _check_size(elf, size)
    parts = []
    while size > 0 and (part := elf.read(address, min(size, _CHUNK))):
        parts.append(part)
        address += len(part)
        size -= len(part)
    return b"".join(parts)


def _read_section(elf: ElfFile, section: Section) -> bytes:
    _check_size(elf, section.size)
    return elf.read_whole(section)
