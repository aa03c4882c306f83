# SPDX-License-Identifier: Apache-2.0
"""Small ELF files with call frame information, byte by byte."""

from __future__ import annotations

import struct

from parprof.files.elf import ElfFile

CODE, CODE_SIZE = 0x1000, 0x10000
FRAMES = 0x20000
"""Where the code and ``.eh_frame`` are, in the file as in memory."""
USUAL = bytes.fromhex("0c07089001")  # def_cfa rsp+8, offset ra at CFA-8


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def record(body: bytes, wide: bool = False) -> bytes:
    body += bytes(-(len(body) + 4) % 8)
    return (struct.pack("<IQ", 0xFFFFFFFF, len(body)) if wide else struct.pack("<I", len(body))) + body


def cie(
    program: bytes = USUAL, augmentation: bytes = b"zR", data: bytes = b"\x1b", *, version: int = 1,
    code: int = 1, factor: int = -8, column: int = 16, id: bytes = bytes(4), wide: bool = False,
) -> bytes:  # fmt: skip
    extra = uleb(len(data)) + data if augmentation.startswith(b"z") else data
    sizes = b"\x08\0" if version == 4 else b""
    head = bytes((version,)) + augmentation + b"\0" + sizes + uleb(code) + sleb(factor) + uleb(column)
    return record(id + head + extra + program, wide)


def fde(at: int, start: int, size: int, program: bytes = b"", cie_at: int = 0) -> bytes:
    """An FDE of the usual encoding (pcrel, sdata4); ``at`` is where in ``.eh_frame`` it is put."""
    where = (start - (FRAMES + at + 8) + (1 << 31)) % (1 << 32) - (1 << 31)
    return record(struct.pack("<IiIB", at + 4 - cie_at, where, size, 0) + program)


def eh_frame(*functions: tuple[int, int, bytes], head: bytes | None = None) -> bytes:
    """One CIE, an FDE for each ``(start, size, program)``, and a terminator."""
    out = cie() if head is None else head
    for start, size, program in functions:
        out += fde(len(out), start, size, program)
    return out + bytes(4)


def elf_bytes(
    frames: bytes, *, code: int = CODE, code_size: int = CODE_SIZE, machine: int = 62, header: bytes | None = None,
    sections: tuple[tuple[bytes, int, bytes], ...] = (),
) -> bytes:  # fmt: skip
    """An ELF file whose segment PT_GNU_EH_FRAME leads to ``frames``; empty ``header``: it has no such segment.

    ``sections`` has the name, flags and contents of sections that are not loaded.
    """
    where = FRAMES + len(frames)
    if header is None:
        header = struct.pack("<BBBBi", 1, 0x1B, 0xFF, 0xFF, FRAMES - where - 4)
    loaded = len(frames) + len(header)
    segments = [(1, 5, code, code, 0, code_size, code_size), (1, 4, FRAMES, FRAMES, 0, loaded, loaded)]
    if header:
        segments.append((0x6474E550, 4, where, where, 0, len(header), len(header)))
    raw = b"".join(struct.pack("<IIQQQQQQ", *segment, 8) for segment in segments)
    body = bytearray(FRAMES) + frames + header
    names, entries = b"\0", bytes(64)
    for name, flags, contents in (*sections, (b".shstrtab", 0, b"")):
        at = len(names)
        names += name + b"\0"
        entries += struct.pack("<IIQQQQIIQQ", at, 1, flags, 0, len(body), len(contents or names), 0, 0, 1, 0)
        body += contents or names
    count = len(entries) // 64 if sections else 0
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    start = len(body) if count else 0
    last = max(0, count - 1)
    body[: 64 + len(raw)] = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, 64, start, 0, 64, 56, len(segments), 64, count, last
    ) + raw  # fmt: skip
    return bytes(body) + entries


def open_elf(data: bytes) -> ElfFile:
    return ElfFile(lambda offset, size: data[offset : offset + size], len(data), "test")
