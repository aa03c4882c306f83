"""The skeleton of an ELF file of x86-64: headers, bytes, and how virtual addresses and file offsets relate.

The files are hostile input, and they may change while we read them: everything is read with ``pread``, never
through a mapping (a file that shrinks under a mapping kills the reader with SIGBUS), every size is bounded,
and the one exception that comes out is `ElfError`.
"""

from __future__ import annotations

import os
import struct
from functools import cached_property
from typing import NamedTuple, Self

from parprof.errors import ParprofError
from parprof.files.elf_symbols import ReadAt, Strings
from parprof.untrusted import open_regular, visible

PT_LOAD, PT_GNU_EH_FRAME = 1, 0x6474E550
PF_X, SHF_EXECINSTR, SHT_NOBITS = 1, 4, 8
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MAX_SEGMENTS, _MAX_SECTIONS = 1024, 1 << 13
_MAX_READ = 1 << 24
_PAGE = 4096


class ElfError(ParprofError):
    """The file is not an ELF file that we can use; the text says why."""


class Segment(NamedTuple):
    """A program header. Sizes in bytes."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    file_size: int
    memory_size: int
    align: int


class Section(NamedTuple):
    """A section header; ``name`` is an index into the table of section names."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class ElfImage:
    """An ELF64 little-endian file: its headers and its bytes. Only the headers are read at once."""

    def __init__(self, read_at: ReadAt, size: int, label: str) -> None:
        """Read the headers of a file of ``size`` bytes; ``label`` names it in errors.

        Raises:
            ElfError: it is no such file.
        """
        self._read = read_at
        self._size = size
        self._fd = self._own_fd = -1
        self.label = label
        raw = self.read_at(0, _HEADER.size)
        if raw[:4] != b"\x7fELF":
            raise ElfError(f"{label} is not an ELF file")
        if len(raw) < _HEADER.size or raw[4:6] != b"\x02\x01":
            raise ElfError(f"{label} is not a 64-bit little-endian ELF file")
        (
            _,
            self.type,
            self.machine,
            _,
            self.entry,
            phoff,
            self._shoff,
            _,
            _,
            phentsize,
            phnum,
            self._shentsize,
            self._shnum,
            self._shstrndx,
        ) = _HEADER.unpack(raw)
        if phnum and phentsize != _SEGMENT.size or phnum > _MAX_SEGMENTS:
            raise ElfError(f"{label} has damaged program headers")
        raw = self.read_at(phoff, phnum * _SEGMENT.size)
        if len(raw) < phnum * _SEGMENT.size:
            raise ElfError(f"{label} ends before its program headers")
        self.segments = [Segment(*fields) for fields in _SEGMENT.iter_unpack(raw)]
        self._loads = [s for s in self.segments if s.type == PT_LOAD]
        self.code = [s for s in self._loads if s.flags & PF_X]
        """The segments that are mapped executable."""

    @classmethod
    def open(cls, file: str | bytes | int) -> Self:
        """Open a file by path, or read one through a descriptor that the caller keeps open.

        Raises:
            ElfError: it cannot be opened, or it is no ELF file that we can use.
        """
        own = not isinstance(file, int)
        label = f"descriptor {file}" if isinstance(file, int) else visible(file)
        try:
            fd = file if isinstance(file, int) else open_regular(file)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise ElfError(f"{label}: {getattr(error, 'strerror', None) or error}") from error
        try:
            elf = cls(lambda offset, size: os.pread(fd, size, offset), os.fstat(fd).st_size, label)
        except BaseException as error:
            if own:
                os.close(fd)
            if isinstance(error, OSError):
                raise ElfError(f"{label}: {error.strerror}") from error
            raise
        elf._fd = fd
        elf._own_fd = fd if own else -1
        return elf

    def fileno(self) -> int:
        """The descriptor that `open` reads through, -1 if there is none."""
        return self._fd

    def close(self) -> None:
        """Close the file if `open` opened it by path."""
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._fd = self._own_fd = -1
            self._read = lambda offset, size: b""

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes (16 MiB at most) from a file offset; fewer at the end of the file.

        Raises:
            ElfError: the file cannot be read any more.
        """
        if not 0 <= offset < self._size or size <= 0:
            return b""
        try:
            return self._read(offset, min(size, self._size - offset, _MAX_READ))
        except OSError as error:
            raise ElfError(f"{self.label}: {error.strerror}") from error

    # addresses

    @property
    def base(self) -> int:
        """Virtual address of the first loaded segment."""
        return self._loads[0].vaddr if self._loads else 0

    def file_offset(self, vaddr: int) -> int | None:
        """Where the byte at a virtual address is in the file; None if it is not in there."""
        for load in self._loads:
            if load.vaddr <= vaddr < load.vaddr + load.file_size:
                return load.offset + vaddr - load.vaddr
        return None

    def vaddr(self, file_offset: int) -> int | None:
        """The virtual address of a byte of the file; where two segments share a page, that of the code."""
        for load in self.code:
            if load.offset <= file_offset < load.offset + load.file_size:
                return load.vaddr + file_offset - load.offset
        for load in self.code:  # the kernel maps whole pages
            if load.offset // _PAGE <= file_offset // _PAGE <= (load.offset + load.file_size - 1) // _PAGE:
                return load.vaddr + file_offset - load.offset
        for load in self._loads:
            if load.offset <= file_offset < load.offset + load.file_size:
                return load.vaddr + file_offset - load.offset
        return None

    def read(self, vaddr: int, size: int) -> bytes:
        """Up to ``size`` bytes at a virtual address, as they are in the file; fewer at a segment's end."""
        for load in self._loads:
            if load.vaddr <= vaddr < load.vaddr + load.file_size:
                inside = vaddr - load.vaddr
                return self.read_at(load.offset + inside, min(size, load.file_size - inside))
        return b""

    def is_code(self, vaddr: int) -> bool:
        """Whether there are instructions at a virtual address, by the sections, or where there are none, the segments.

        Where code and constants share a segment, only the sections tell them apart.
        """
        code = [section for section in self.sections if section.flags & SHF_EXECINSTR]
        if code:
            return any(section.address <= vaddr < section.address + section.size for section in code)
        return any(load.vaddr <= vaddr < load.vaddr + load.file_size for load in self.code)

    def code_end(self, vaddr: int) -> int:
        """Where the code section (or segment) around a virtual address ends; 0 if that is no code."""
        for section in self.sections:
            if section.flags & SHF_EXECINSTR and section.address <= vaddr < section.address + section.size:
                return section.address + section.size
        for load in self.code:
            if load.vaddr <= vaddr < load.vaddr + load.memory_size:
                return load.vaddr + load.memory_size
        return 0

    # sections

    @cached_property
    def sections(self) -> list[Section]:
        """The section headers; empty when there are none or they are damaged."""
        if not self._shoff or self._shentsize != _SECTION.size or self._shnum > _MAX_SECTIONS:
            return []
        raw = self.read_at(self._shoff, self._shnum * _SECTION.size)
        whole = len(raw) - len(raw) % _SECTION.size
        return [Section(*fields) for fields in _SECTION.iter_unpack(raw[:whole])]

    def named_section(self, name: bytes) -> Section | None:
        """The first section of that name that the file has bytes of."""
        if self._shstrndx >= len(self.sections):
            return None
        table = self.sections[self._shstrndx]
        names = Strings(self.read_at, table.offset, table.size)
        known = (s for s in self.sections if s.type != SHT_NOBITS and names.get(s.name) == name)
        return next(known, None)

    def section_data(self, name: bytes, limit: int) -> bytes:
        """The first ``limit`` bytes of the first section of that name; empty if there is none."""
        section = self.named_section(name)
        return self.read_at(section.offset, min(section.size, limit)) if section is not None else b""

    def read_whole(self, section: Section) -> bytes:
        """All bytes of a section that the file has. The caller bounds its size."""
        parts = []
        at, left = section.offset, section.size
        while left > 0 and (part := self.read_at(at, left)):
            parts.append(part)
            at += len(part)
            left -= len(part)
        return b"".join(parts)
