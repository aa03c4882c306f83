"""The records of ``.eh_frame`` and ``.debug_frame``: which code has which call frame instructions.

A CIE (common information entry) holds what many FDEs share; an FDE (frame description entry) describes one
piece of code. The sections are read from front to back; a record that cannot be used is left out and counted
by kind, and one that is longer than the section ends it.
"""

from __future__ import annotations

import struct
from collections import Counter

from parprof.patterns import regex
from parprof.unwind.cfa import REG_RA, CfiRow, Factors, run
from parprof.unwind.frames import FrameSection, UnwindError
from parprof.unwind.pointers import Refused, read_leb, read_pointer, skip_pointer

MAX_PROGRAM = 1 << 20
"""Bytes of instructions of one function; longer ones are refused."""
MAX_CIES, MAX_FDES, MAX_REFUSED = 1 << 18, 1 << 21, 1 << 18
"""Records of one section, and how many of them may be damaged. A file with more is refused."""
_USUAL_ENCODING = 0x1B  # pcrel | sdata4
_USUAL_FDE = struct.Struct("<IIiIB")  # length, distance of the CIE, start, size, length of augmentation data
_LENGTH_64, _LONGEST_32 = 0xFFFFFFFF, 0xFFFFFFF0
_MASK = (1 << 64) - 1
_ZEROS = regex(rb"\0+")


class Cie:
    """What the FDEs of one CIE share."""

    __slots__ = ("data", "address", "factors", "augmented", "is_signal", "initial")

    def __init__(self, section: FrameSection, at: int, end: int) -> None:
        """Read the CIE whose fields behind its id are ``section.data[at:end]``.

        Raises:
            Refused: it cannot be used.
        """
        self.data = data = section.data
        self.address = section.address
        self.is_signal = False
        encoding = 0
        version = data[at] if at < end else 0
        if version not in (1, 3, 4):
            raise Refused("CIE version")
        terminator = data.find(b"\0", at + 1, min(end, at + 64))
        if terminator < 0:
            raise Refused("augmentation")
        augmentation = data[at + 1 : terminator]
        at = terminator + 1
        if version == 4:
            if data[at : at + 2] != b"\x08\0":  # size of addresses and of segment selectors
                raise Refused("CIE version")
            at += 2
        if augmentation.startswith(b"eh"):
            at, augmentation = at + 8, augmentation[2:]
        code, at = read_leb(data, at)
        factor, at = read_leb(data, at, signed=True)
        column, at = (data[at] if at < end else -1, at + 1) if version == 1 else read_leb(data, at)
        if column != REG_RA or abs(factor) > 1 << 16 or code > 1 << 16:
            raise Refused("CIE contents")
        program = at
        self.augmented = augmentation.startswith(b"z")
        if self.augmented:
            size, at = read_leb(data, at)
            program = at + size
        for letter in augmentation[self.augmented :]:
            if letter == 0x53:  # S
                self.is_signal = True
            elif letter == 0x52 and at < end:  # R
                encoding, at = data[at], at + 1
            elif letter == 0x50 and at < end:  # P: the personality routine
                at = skip_pointer(data, at + 1, data[at])
            elif letter == 0x4C:  # L: encoding of pointers to language-specific data
                at += 1
            elif letter != 0x42:  # B: pointer authentication
                raise Refused("augmentation")
        if not self.augmented:
            program = at
        if not at <= program <= end:
            raise Refused("truncated")
        self.factors = Factors(code, factor, encoding)
        if end - program > MAX_PROGRAM:
            raise Refused("CIE contents")
        self.initial = CfiRow()
        for _, frame in run(data[program:end], self.factors, CfiRow(), 0, section.address + program):
            self.initial = frame


Fde = tuple[int, int, int, int, Cie]
"""``(start, stop, at, end, cie)``: code from ``start`` up to ``stop``, instructions ``cie.data[at:end]``."""


class FrameParser:
    """Reads one section. ``fdes`` in its order; ``notes`` counts what was left out by kind."""

    def __init__(self, section: FrameSection, notes: Counter[str]) -> None:
        """Read all of it, and count into ``notes``.

        Raises:
            UnwindError: there is too much of it.
        """
        self._section = section
        self._notes = notes
        self._cies: dict[int, Cie | None] = {}
        self._refused = 0
        self.fdes: list[Fde] = []
        self._postponed: list[tuple[int, int, int]] = []
        self._scan()
        for cie_at, at, end in self._postponed:  # in .debug_frame a CIE may follow its FDEs
            try:
                self._fde(cie_at, at, end, postponed=True)
            except Refused as reason:
                self._refuse(reason)

    def _refuse(self, reason: Refused) -> None:
        self._notes[str(reason)] += 1
        self._refused += 1

    def _scan(self) -> None:
        data, origin, is_debug, _ = self._section
        size = len(data)
        usual: dict[int, Cie] = {}
        unpack, append, last_usual = _USUAL_FDE.unpack_from, self.fdes.append, size - _USUAL_FDE.size
        at = 0
        while 0 <= at <= size - 4:
            if at <= last_usual:
                length, distance, start, span, extra = unpack(data, at)
                end = at + 4 + length
                cie = usual.get(at + 4 - distance)
                if cie is not None and extra < 0x80 and 13 + extra <= length and end <= size:
                    if span:
                        start = (start + origin + at + 8) & _MASK
                        append((start, start + span, at + 17 + extra, end, cie))
                    at = end
                    continue
            end = self._record(at)
            cie = self._cies.get(at)
            if cie is not None and cie.augmented and cie.factors.encoding == _USUAL_ENCODING and not is_debug:
                usual[at] = cie
            if self._refused > MAX_REFUSED or len(self.fdes) > MAX_FDES:
                raise UnwindError("its call frame information is damaged, or there is too much of it")
            at = end

    def _record(self, at: int) -> int:
        """Read a record of any kind, and say where the next one is; -1 if this was the last."""
        data, _, is_debug, open_ended = self._section
        length = int.from_bytes(data[at : at + 4], "little")
        if length == 0:
            zeros = _ZEROS.match(data, at)
            return -1 if open_ended or zeros is None else at + (zeros.end() - at) // 4 * 4
        body, wide = at + 4, length == _LENGTH_64
        if wide:
            length, body = int.from_bytes(data[at + 4 : at + 12], "little"), at + 12
        end = body + length
        if end > len(data) or not wide and length >= _LONGEST_32:
            self._notes["truncated"] += 1
            return -1
        try:
            fields = body + (8 if wide and is_debug else 4)
            if fields > end:
                raise Refused("truncated")
            number = int.from_bytes(data[body:fields], "little")
            if number == ((1 << 8 * (fields - body)) - 1 if is_debug else 0):
                self._cies[at] = None  # should it be refused: known, but of no use
                if len(self._cies) > MAX_CIES:
                    raise Refused("CIE refused")
                self._cies[at] = Cie(self._section, fields, end)
            else:
                self._fde(number if is_debug else body - number, fields, end)
        except Refused as reason:
            self._refuse(reason)
        return end

    def _fde(self, cie_at: int, at: int, end: int, postponed: bool = False) -> None:
        data, origin, is_debug, _ = self._section
        if cie_at not in self._cies:
            if postponed or not is_debug:
                raise Refused("no CIE")
            self._postponed.append((cie_at, at, end))
            return
        cie = self._cies[cie_at]
        if cie is None:
            raise Refused("CIE refused")
        encoding = cie.factors.encoding
        start, at = read_pointer(data, at, encoding, origin)
        span, at = read_pointer(data, at, encoding & 0x07)
        if cie.augmented:
            extra, at = read_leb(data, at)
            at += extra
        if at > end:
            raise Refused("truncated")
        if span:
            self.fdes.append((start, start + span, at, end, cie))
