"""A parallel runtime that was linked into a stripped file: told by its messages, and where its code uses them.

No symbol tells of it. But its messages are among the file's constants, and its code refers to them. That many of them
are there is not enough: a program may print them (a shell's completion, a profiler's tables). What has the runtime
has a stretch of code that uses many of them, in several functions, and waits in between with ``pause``. Linkers put the
runtime's objects side by side, so that all between the first and the last of these functions is its code.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from parprof.files.elf import ET_EXEC, ElfFile
from parprof.files.elf_image import PT_LOAD
from parprof.patterns import regex
from parprof.probes.wait_code import MAX_CODE, Range, function_starts, functions_with_pause
from parprof.runtimes import Agent, agents

_PF_W = 2
_PIECE = 8 << 20
_MAX_CONSTANTS = 128 << 20
"""Bytes of constants of one file that are searched for `Agent.sign`."""
_MAX_TEXTS = 1 << 10
_LONGEST = 512
_GAP = 64 << 10
"""Bytes of code between two functions of the runtime that use messages, at most: its other functions."""
_LEAST_TEXTS, _LEAST_FUNCTIONS, _LEAST_WAITS = 4, 6, 3
"""Of a stretch of code that is a runtime: different messages, functions that use some, functions that wait."""
_RELATIVE = regex(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(....))", re.DOTALL)
"""``lea`` of an address relative to the next instruction, which is 7 bytes on."""
_LEA_BYTES = 7
_ABSOLUTE = regex(rb"[\xb8-\xbf](?=(....))", re.DOTALL)
"""``mov`` of an address below 4 GiB: in programs that are not relocated."""


class HiddenRuntime(NamedTuple):
    """A runtime in a stripped file."""

    agent: Agent
    code: Range
    """ELF addresses [start, end): its code, but for functions at both ends that use no message."""


class _Use(NamedTuple):
    function: int
    """Index among the functions of the file."""
    text: int
    """Where the message is, an ELF address."""


def hidden_runtime(elf: ElfFile) -> HiddenRuntime | None:
    """The runtime in a file that has no symbols of one; None if there is none, or it cannot be told.

    Raises:
        ElfError: the file cannot be read.
    """
    known = [agent for agent in agents() if agent.sign]
    signed = _signed(elf, {agent.sign for agent in known})
    if not signed:
        return None
    starts = function_starts(elf)
    waits = functions_with_pause(elf, starts) if starts else set()
    for agent in known:
        if agent.sign not in signed or len(waits) < _LEAST_WAITS:
            continue
        texts = set(_texts(elf, agent.messages))
        for stretch in _stretches(sorted(_uses(elf, starts, texts)), starts):
            first, last = stretch[0].function, stretch[-1].function
            if (
                len({use.text for use in stretch}) >= _LEAST_TEXTS
                and len({use.function for use in stretch}) >= _LEAST_FUNCTIONS
                and sum(first <= index <= last for index in waits) >= _LEAST_WAITS
            ):
                return HiddenRuntime(agent, (starts[first], starts[last + 1]))
    return None


def _constants(elf: ElfFile) -> list[Range]:
    """Where the file has constants, ELF addresses [start, end): in one section, or what is mapped to be read only."""
    section = elf.named_section(b".rodata")
    if section is not None and section.address:
        return [(section.address, section.address + section.size)]
    fixed = [s for s in elf.segments if s.type == PT_LOAD and not s.flags & _PF_W]
    apart = [segment for segment in fixed if segment not in elf.code]  # old linkers put them beside the code
    return [(s.vaddr, s.vaddr + s.file_size) for s in apart or fixed]


def _pieces(elf: ElfFile, ranges: Iterable[Range], most: int, overlap: int) -> Iterator[tuple[int, bytes]]:
    """What is at these ELF addresses, piece by piece, ``most`` bytes in all; each has the next one's first bytes."""
    left = most
    for start, end in ranges:
        while start < end and left > 0:
            piece = elf.read(start, min(_PIECE + overlap, end - start))
            if not piece:
                break
            yield start, piece
            start += _PIECE
            left -= _PIECE


def _signed(elf: ElfFile, signs: Collection[bytes]) -> set[bytes]:
    longest = max((len(sign) for sign in signs), default=0)
    found: set[bytes] = set()
    for _, piece in _pieces(elf, _constants(elf), _MAX_CONSTANTS, longest):
        found.update(sign for sign in signs if sign not in found and sign in piece)
        if len(found) == len(signs):
            break
    return found


def _texts(elf: ElfFile, messages: re.Pattern[bytes]) -> Iterator[int]:
    """Where such messages begin among the constants of the file, or seem to: ELF addresses."""
    count = 0
    for start, piece in _pieces(elf, _constants(elf), _MAX_CONSTANTS, _LONGEST):
        for match in messages.finditer(piece):
            yield start + match.start()
            count += 1
            if count >= _MAX_TEXTS:
                return


def _uses(elf: ElfFile, starts: Sequence[int], texts: set[int]) -> Iterator[_Use]:
    code = [(segment.vaddr, segment.vaddr + segment.file_size) for segment in elf.code]
    for start, piece in _pieces(elf, code, MAX_CODE, _LEA_BYTES):
        found = [
            (start + match.start(), start + match.start() + _LEA_BYTES + _word(match[1], signed=True))
            for match in _RELATIVE.finditer(piece)
        ]
        if elf.type == ET_EXEC:
            found += [
                (start + match.start(), _word(match[1], signed=False)) for match in _ABSOLUTE.finditer(piece)
            ]
        for at, text in found:
            index = bisect_right(starts, at) - 1
            if text in texts and 0 <= index < len(starts) - 1:
                yield _Use(index, text)


def _word(raw: bytes, signed: bool) -> int:
    word: int = struct.unpack("<i" if signed else "<I", raw)[0]
    return word


def _stretches(uses: list[_Use], starts: Sequence[int]) -> list[list[_Use]]:
    """Uses of messages that lie close together, those of the longest stretch first."""
    out: list[list[_Use]] = []
    for use in uses:
        if out and starts[use.function] - starts[out[-1][-1].function + 1] <= _GAP:
            out[-1].append(use)
        else:
            out.append([use])
    return sorted(out, key=len, reverse=True)
