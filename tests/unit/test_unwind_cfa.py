# SPDX-License-Identifier: Apache-2.0
"""Call frame instructions, records and pointer encodings, one by one, on files made here."""

from __future__ import annotations

import struct
import zlib

import pytest

from parprof.files.elf import ElfFile
from parprof.unwind.frames import UnwindError
from parprof.unwind.rows import Rule, RuleType, pack, pack_kept, pack_register, pack_return, unpack
from parprof.unwind.table import UnwindTable, build_table
from unwind_elf import CODE, FRAMES, USUAL, cie, eh_frame, elf_bytes, fde, open_elf, record, sleb, uleb

START = 0x2000
NONE = Rule(RuleType.NONE, 0, 0)


def table_of(frames: bytes, **options: object) -> UnwindTable:
    return build_table(open_elf(elf_bytes(frames, **options)))  # type: ignore[arg-type]


def rows_of(table: UnwindTable) -> list[tuple[int, Rule]]:
    rows = [table.row(index) for index in range(table.count)]
    assert [pc for pc, _ in rows] == sorted({pc for pc, _ in rows})
    return [(pc - START, unpack(rule)) for pc, rule in rows]


def rsp(cfa: int, rbp: int = 0) -> Rule:
    return Rule(RuleType.RSP, rbp, cfa)


def one(program: str | bytes, head: bytes | None = None) -> tuple[list[tuple[int, Rule]], dict[str, int]]:
    """The rows of one function of 0x40 bytes and what was noted."""
    raw = bytes.fromhex(program) if isinstance(program, str) else program
    table = table_of(eh_frame((START, 0x40, raw), head=head))
    return rows_of(table), dict(table.notes)


END = (0x40, NONE)


def register(place: int, offset: int, by_rbp: bool, rbp: int = 0) -> Rule:
    return unpack(pack_register(place, offset, by_rbp, rbp))


def returns(place: int, offset: int) -> Rule:
    return unpack(pack_return(place, offset))


def deref(offset: int, rbp: int = 0) -> Rule:
    return unpack(pack_kept(RuleType.RSP_DEREF, offset, 8, rbp))


CASES = {
    "nothing": ("", [(0, rsp(8))]),
    "push rbp": ("410e108602", [(0, rsp(8)), (1, rsp(16, 2))]),
    "offset of 2 bytes": ("440ee001", [(0, rsp(8)), (4, rsp(0xE0))]),
    "offset of 3 bytes": ("440e808004", [(0, rsp(8)), (4, rsp(0x10000))]),
    "frame pointer": ("410e108602430d06", [(0, rsp(8)), (1, rsp(16, 2)), (4, Rule(RuleType.RBP, 2, 16))]),
    "leave": ("410c0610420c0708", [(0, rsp(8)), (1, Rule(RuleType.RBP, 0, 16)), (3, rsp(8))]),
    "remember": ("410e10410a0e18420b", [(0, rsp(8)), (1, rsp(16)), (2, rsp(24)), (4, rsp(16))]),
    "restore": ("418602440e1041c6", [(0, rsp(8)), (1, rsp(8, 2)), (5, rsp(16, 2)), (6, rsp(16))]),
    "restore_extended": ("418602410606", [(0, rsp(8)), (1, rsp(8, 2)), (2, rsp(8))]),
    "advance_loc1": ("02100e10", [(0, rsp(8)), (16, rsp(16))]),
    "advance_loc2": ("0310000e10", [(0, rsp(8)), (16, rsp(16))]),
    "advance_loc4": ("04100000000e10", [(0, rsp(8)), (16, rsp(16))]),
    "advance_loc8": ("1d10000000000000000e10", [(0, rsp(8)), (16, rsp(16))]),
    "advance by 0": ("400e10", [(0, rsp(16))]),
    "advance_loc1 by 0": ("02000e10", [(0, rsp(16))]),
    "beyond the end": ("410e1002400e18410e20", [(0, rsp(8)), (1, rsp(16))]),
    "equal rows": ("410e10410e10420e08", [(0, rsp(8)), (1, rsp(16)), (4, rsp(8))]),
    "offset_extended": ("41050602", [(0, rsp(8)), (1, rsp(8, 2))]),
    "offset_extended_sf": ("41110602", [(0, rsp(8)), (1, rsp(8, 2))]),
    "GNU_negative_offset_extended": ("412f067e" + "0e10", None),
    "def_cfa_sf": ("4112077e", [(0, rsp(8)), (1, rsp(16))]),
    "def_cfa_offset_sf": ("41137d", [(0, rsp(8)), (1, rsp(24))]),
    "same_value": ("4186024108064107068902", [(0, rsp(8)), (1, rsp(8, 2)), (2, rsp(8))]),
    "GNU_args_size": ("412e80010e10", [(0, rsp(8)), (1, rsp(16))]),
    "others ignored": ("410903020e10 140c01150d7f 160e03010203 100f0101 9003 8304 c3 0511 05", None),
    "r10": ("450c0a00410c0708", [(0, rsp(8)), (5, Rule(RuleType.R10, 0, 0)), (6, rsp(8))]),
    "r10 and rbp": ("450c0a0041100602 7600", [(0, rsp(8)), (5, Rule(RuleType.R10, 0, 0)),
                                             (6, Rule(RuleType.R10, 1, 0))]),
    "realigned": ("41100602 76000f037678 06", [(0, rsp(8)), (1, Rule(RuleType.RBP_DEREF, 1, 8))]),
    "realigned, rbp below": ("41100602 76780f037670 06", [(0, rsp(8)), (1, Rule(RuleType.RBP_DEREF, 2, 16))]),
    "rbp expression, CFA by rbp": ("410c0610 1006027600", [(0, rsp(8)), (1, Rule(RuleType.RBP, 2, 16))]),
    "rbp expression, popped": ("41100602 7600", [(0, rsp(8))]),
    "rbp expression, r13 not popped": ("41100602 76000e10", [(0, rsp(8)), (1, rsp(16))]),
    "r13": ("0c0d00 1006027600", [(0, register(2, 0, True, 1))]),
    "rax": ("0c0008 8603", [(0, register(10, 8, False, 3))]),
    "*(rsp + 152) + 8": ("410f06 779801 06 2308 8602", [(0, rsp(8)), (1, deref(152, 2))]),
    "*(rsp - 8) + 8": ("0f05 7778 06 2308", [(0, deref(-8))]),
    "*(rsp + 0) + 8, padded": ("0f09 77808000 06 23888000", [(0, deref(0))]),
    "return address in rdi": ("410e0009100547 0e08", [(0, rsp(8)), (1, returns(14, 0)), (8, returns(14, 8))]),
    "outermost": ("0710", [(0, Rule(RuleType.END, 0, 0))]),
    "plt": ("0e10460e184a0f0b770880003f1a3b2a332422",
            [(0, rsp(16)), (6, rsp(24)), (16, Rule(RuleType.PLT, 0, 0))]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_instructions(name: str) -> None:
    program, expected = CASES[name]
    rows, notes = one(program)
    if name == "GNU_negative_offset_extended":
        # -(0x7e * -8) is above the CFA
        assert rows == [(0, rsp(8)), (1, NONE)]
        assert notes == {"rbp rule": 1}
    elif name == "others ignored":
        assert rows[:2] == [(0, rsp(8)), (1, NONE)]
        assert notes == {"return address": 1}
    else:
        assert (rows, notes) == ([*expected, END], {})


@pytest.mark.parametrize(
    ("program", "note"),
    [
        ("0c1008", "CFA register"), ("0c0304", "CFA offset"), ("0f03777806", "CFA expression"),
        ("0f037608 06", "CFA expression"),
        ("0f0176", "CFA expression"), ("0f0577100623 40", "CFA expression"), ("0f06771006230800", "CFA expression"),
        ("0f0576100623 08", "CFA expression"), ("0c0d00 8602 1006027604", "rbp rule"), ("0c0308 140601", "rbp rule"),
        ("0f0b770880003f1a302a332422", "CFA expression"), ("0f04760000 06", "CFA expression"), ("0e0c", "CFA offset"),
        ("0e80808080 01", "CFA offset"), ("12 07 01", "CFA offset"), ("8600", "rbp rule"), ("090603", "rbp rule"),
        ("140601", "rbp rule"), ("16060170", "rbp rule"), ("0e181006027600", "rbp rule"), ("1006027678", "rbp rule"),
        ("0c0a00 8602", "rbp rule"), ("9002", "return address"), ("0810", "return address"),
        ("091007", "return address"), ("091020", "return address"), ("091003 0c0610", "return address"),
        ("091003 8602", "return address"), ("091003 0e0c", "CFA offset"),
        ("0b", "instruction"), ("3f", "instruction"), ("2d", "instruction"), ("0a" * 65, "instruction"),
        ("0f00", "CFA expression"), ("0f00 0e10", "instruction"), ("0e" + "80" * 11 + "01", "number"),
        ("0c07", "truncated"), ("0f4077", "truncated"), ("86", "truncated"), ("0e", "truncated"),
    ],
)  # fmt: skip
def test_what_no_row_can_express_ends_the_walk(program: str, note: str) -> None:
    raw = b"\x44" + bytes.fromhex(program)
    if note == "truncated":  # up to the end of the record, or its padding would complete the instruction
        raw = bytes(-(17 + len(raw)) % 8) + raw
    rows, notes = one(raw)
    assert rows == [(0, rsp(8)), (4, NONE)]
    assert notes == {note: 1}


def test_functions_in_any_order_gaps_and_overlaps() -> None:
    push = bytes.fromhex("410e10")
    frames = eh_frame(
        (START + 0x60, 0x10, push), (START, 0x20, b""), (START + 0x20, 0x10, push),
        (START + 0x80, 0x40, b"\x50\x0e\x20"),
        (START + 0xA0, 0x10, push), (START + 0x60, 0x08, b""), (START + 0x70, 0, push), (0x500, 0x40, push),
    )  # fmt: skip
    table = table_of(frames)
    assert rows_of(table) == [
        (0, rsp(8)), (0x21, rsp(16)), (0x30, NONE), (0x60, rsp(8)), (0x68, NONE), (0x80, rsp(8)), (0x90, rsp(32)),
        (0xA0, rsp(8)), (0xA1, rsp(16)), (0xB0, NONE),
    ]  # fmt: skip
    assert table.notes == {"overlap": 2, "outside code": 1}
    assert unpack(table.rule(START + 0x25)) == rsp(16)
    assert table.rule(START - 1) == table.rule(START + 0x5F) == table.rule(START + 0x1000) == 0
    with pytest.raises(IndexError):
        table.row(table.count)


def test_a_function_ends_with_its_segment() -> None:
    assert rows_of(table_of(eh_frame((CODE + 0xFFF0, 1 << 31, b""))))[1:] == [(CODE + 0x10000 - START, NONE)]


@pytest.mark.parametrize("pushed", [1, 5, 9, 15])
def test_linkage_tables_with_other_slots(pushed: int) -> None:
    rows, notes = one(bytes.fromhex(f"0f0b770880003f1a{0x30 + pushed:02x}2a332422"))
    expected = [(slot + at, rsp(cfa)) for slot in range(0, 0x40, 16) for at, cfa in ((0, 8), (pushed, 16))]
    assert (rows, notes) == ([*expected, END], {})


def test_a_huge_linkage_table_is_not_unrolled() -> None:
    raw = bytes.fromhex("0f0b770880003f1a352a332422" * 2).replace(b"\x24\x22\x0f", b"\x24\x22\x41\x0f")
    frames = eh_frame((0x1000000, 1 << 30, raw))
    table = table_of(frames, code=0x1000000, code_size=1 << 30)
    assert (table.count, table.notes) == (0, {"CFA expression": 2})
    frames = eh_frame((0x1000000, 1 << 30, bytes.fromhex("0f0b770880003f1a3b2a332422")))
    assert table_of(frames, code=0x1000000, code_size=1 << 30).count == 2


def test_signal_frames() -> None:
    saved = bytes.fromhex("0f0477a00106 100603 77f800 101003 77a801".replace(" ", ""))
    for augmentation, kind in ((b"zRS", RuleType.SIGNAL), (b"zR", RuleType.NONE)):
        rows, _ = one(saved, cie(b"", augmentation))
        assert [rule.type for _, rule in rows] == ([kind, RuleType.NONE] if kind else [])
    assert one("", cie(augmentation=b"zRS"))[0] == [(0, rsp(8)), END]  # an ordinary frame for all that


def test_instructions_of_the_cie() -> None:
    head = cie(bytes.fromhex("0c07089001860341"), b"zR")  # the location means nothing there
    assert one("41c60e10418602 42c6", head)[0] == [
        (0, rsp(8, 3)), (1, rsp(16, 3)), (2, rsp(16, 2)), (4, rsp(16, 3)), END,
    ]  # fmt: skip
    assert one("410e10", cie(bytes.fromhex("0c07089002"))) == ([], {"return address": 2})
    assert one("410e10", cie(bytes.fromhex("0c070c9001"))) == ([(1, rsp(16)), END], {"CFA offset": 1})
    assert one("410e10", cie(USUAL + b"\x3f")) == ([], {"instruction": 2})


def test_factors() -> None:
    assert one("410e108604", cie(bytes.fromhex("0c0708 9002"), factor=-4))[0] == [
        (0, rsp(8)),
        (1, rsp(16, 2)),
        END,
    ]
    assert one("410e10", cie(code=4))[0] == [(0, rsp(8)), (4, rsp(16)), END]
    assert one("410e10", cie(code=0))[0] == [(0, rsp(16)), END]


PERSONALITY = {0x9B: 4, 0x03: 4, 0x00: 8, 0xFF: 0, 0x02: 2, 0x01: 1, 0x10: 8}


@pytest.mark.parametrize("encoding", PERSONALITY)
def test_augmentations(encoding: int) -> None:
    data = bytes((encoding,)) + bytes(PERSONALITY[encoding]) + b"\x1b\x1b"
    assert one("410e10", cie(augmentation=b"zPLR", data=data))[0] == [(0, rsp(8)), (1, rsp(16)), END]
    assert one("410e10", cie(augmentation=b"zPLRSB", data=data))[0] == [(0, rsp(8)), (1, rsp(16)), END]


@pytest.mark.parametrize(
    ("head", "note"),
    [
        (cie(augmentation=b"zX"), "augmentation"), (cie(augmentation=b"zR" * 40), "augmentation"),
        (cie(augmentation=b"zPR", data=b"\x50\x1b"), "pointer encoding"), (cie(version=2), "CIE version"),
        (cie(column=15), "CIE contents"), (cie(factor=1 << 30), "CIE contents"), (cie(code=1 << 30), "CIE contents"),
        (cie(augmentation=b"zPR", data=b"\x07" + bytes(8)), "pointer encoding"), (record(bytes(4)), "CIE version"),
        (record(bytes(4) + b"\x01zR\0\x01"), "CIE contents"),
        (record(bytes(4) + b"\x01zR\0\x01\x78\x10\x7f"), "augmentation"),
        (record(bytes(4) + b"\x01z\0\x01\x78\x10\x7f"), "truncated"),
    ],
)  # fmt: skip
def test_a_cie_that_cannot_be_used(head: bytes, note: str) -> None:
    assert one("410e10", head) == ([], {note: 1, "CIE refused": 1})


def fde_with(encoding: int, start: bytes, size: bytes) -> tuple[bytes, int]:
    """Frames with one function of one-byte rows, and where in them its pointer is."""
    head = cie(data=bytes((encoding,)))
    body = struct.pack("<I", len(head) + 4) + start + size + b"\0\x41\x0e\x10"
    return head + record(body) + bytes(4), FRAMES + len(head) + 8


PC = FRAMES + len(cie()) + 8
ENCODINGS = {
    0x00: ("<QQ", START), 0x04: ("<QQ", START), 0x0C: ("<qq", START), 0x10: ("<qq", START - PC), 
    0x1C: ("<qq", START - PC),
    0x03: ("<II", START), 0x0B: ("<iI", START), 0x1B: ("<iI", START - PC), 0x02: ("<HH", START), 0x0A: ("<hH", START),
}  # fmt: skip


@pytest.mark.parametrize("encoding", [*ENCODINGS, 0x01, 0x09, 0x19])
def test_pointer_encodings(encoding: int) -> None:
    if encoding in ENCODINGS:
        layout, value = ENCODINGS[encoding]
        packed = struct.pack(layout, value, 0x40)
        start, size = packed[: len(packed) // 2], packed[len(packed) // 2 :]
    else:
        size = uleb(0x40)
        start = uleb(START) if encoding == 1 else sleb(START - (PC if encoding == 0x19 else 0))
    frames, where = fde_with(encoding, start, size)
    assert where == PC
    table = table_of(frames)
    assert (rows_of(table), table.notes) == ([(0, rsp(8)), (1, rsp(16)), END], {})


@pytest.mark.parametrize("encoding", [0x9B, 0x3B, 0x2B, 0x4B, 0x50, 0x0D, 0x0F, 0xFF, 0x08])
def test_refused_pointer_encodings(encoding: int) -> None:
    table = table_of(fde_with(encoding, bytes(8), bytes(8))[0])
    assert (table.count, table.notes) == (0, {"pointer encoding": 1})


def test_wide_records_set_loc_and_old_augmentation() -> None:
    head = cie(augmentation=b"eh", data=bytes(0), wide=True)  # an address of 8 bytes follows: no 'z'
    body = head[12 + 4 :]
    head = record(bytes(4) + body[:4] + bytes(8) + body[4:], wide=True)
    set_loc = b"\x01" + struct.pack("<Q", START + 16) + b"\x0e\x10"
    fields = struct.pack("<IQQ", len(head) + 12, START, 0x40) + set_loc
    table = table_of(head + record(fields, wide=True) + bytes(4))
    assert (rows_of(table), table.notes) == ([(0, rsp(8)), (16, rsp(16)), END], {})
    backwards = fields[:-10] + struct.pack("<Q", START - 1) + b"\x0e\x10"
    assert table_of(head + record(backwards, wide=True) + bytes(4)).notes == {"instruction": 1}


def debug_frame(address: int = START, version: int = 4, wide: bool = False, cie_last: bool = False) -> bytes:
    marker, width = (b"\xff" * 8, "Q") if wide else (b"\xff" * 4, "I")
    head = cie(augmentation=b"", data=b"", version=version, id=marker, wide=wide)
    program = bytes.fromhex("410e10")
    size = len(record(struct.pack(f"<{width}QQ", 0, address, 0x40) + program, wide))
    at = size if cie_last else 0
    function = record(struct.pack(f"<{width}QQ", at, address, 0x40) + program, wide)
    return function + head if cie_last else head + function


ONLY_DEBUG = {"header": b"", "frames": b""}
DEBUG_ROWS = [(0, rsp(8)), (1, rsp(16)), END]


def debug_table(flags: int, contents: bytes, name: bytes = b".debug_frame") -> UnwindTable:
    return table_of(b"", header=b"", sections=((name, flags, contents),))


@pytest.mark.parametrize("options", [{}, {"version": 3}, {"version": 1}, {"wide": True}, {"cie_last": True}])
def test_debug_frame(options: dict[str, bool]) -> None:
    table = debug_table(0, debug_frame(**options))  # type: ignore[arg-type]
    assert (rows_of(table), table.notes) == (DEBUG_ROWS, {})


def compressed(data: bytes, method: int = 1, size: int | None = None) -> bytes:
    return struct.pack("<IIQQ", method, 0, len(data) if size is None else size, 8) + zlib.compress(data)


def test_compressed_debug_frame() -> None:
    data = debug_frame()
    assert rows_of(debug_table(0x800, compressed(data))) == DEBUG_ROWS
    old = b"ZLIB" + struct.pack(">Q", len(data)) + zlib.compress(data)
    assert rows_of(debug_table(0, old, b".zdebug_frame")) == DEBUG_ROWS
    assert debug_table(0x800, compressed(data, size=8)).notes == {"truncated": 1}
    assert (
        debug_table(0x800, compressed(data)[:20]).count
        == debug_table(0, b"ZLIX", b".zdebug_frame").count
        == 0
    )
    assert debug_table(0x800, compressed(data, size=0)).count == 0


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (compressed(b"", method=2), "method 2"), (compressed(b"", size=1 << 40), "MiB of call frame"),
        (struct.pack("<IIQQ", 1, 0, 100, 8) + b"no zlib", "damaged"),
    ],
)  # fmt: skip
def test_damaged_compression(contents: bytes, text: str) -> None:
    with pytest.raises(UnwindError, match=text):
        debug_table(0x800, contents)


def test_eh_frame_counts_more_than_debug_frame() -> None:
    sections = ((b".debug_frame", 0, debug_frame()),)
    table = table_of(eh_frame((START, 0x40, b"\x42\x0e\x20"), (START + 0x80, 1, b"")), sections=sections)
    assert rows_of(table)[:3] == [(0, rsp(8)), (2, rsp(32)), END]
    assert table.notes == {"overlap": 1}


def test_eh_frame_by_its_section_alone() -> None:
    program = bytes.fromhex("410e10")
    head = cie(data=b"\x03")
    frames = head + record(struct.pack("<IIIB", len(head) + 4, START, 0x40, 0) + program)
    assert rows_of(debug_table(2, frames, b".eh_frame")) == DEBUG_ROWS


@pytest.mark.parametrize(
    "header",
    [b"\x02\x1b\xff\xff" + bytes(4), b"\x01\x1b", b"\x01\x9b" + bytes(18), b"\x01\x03" + b"\xee" * 18],
)
def test_damaged_eh_frame_hdr(header: bytes) -> None:
    table = table_of(eh_frame((START, 0x40, b"")), header=header)
    assert (table.count, table.rows, table.build_id) == (0, b"", "")


def test_records_that_do_not_fit() -> None:
    whole = eh_frame((START, 0x40, bytes.fromhex("410e10")), (START + 0x40, 0x40, b""))
    good = rows_of(table_of(whole))
    for end in range(1, len(whole)):
        table = table_of(whole[:end], header=None)
        assert set(rows_of(table)) <= {*good, (1, NONE), (0x40, NONE)}
    lost = cie() + fde(24, START, 0x40, cie_at=8) + fde(48, START, 0x40, cie_at=-99) + bytes(4)
    assert table_of(lost).notes["no CIE"] == 2
    assert table_of(struct.pack("<I", 0xFFFFFFF5) + bytes(1 << 8)).notes == {"truncated": 1}
    assert table_of(cie() + record(b"\x01\0")[:6] + bytes(30)).count == 0


def test_no_table_for_other_machines_and_high_addresses() -> None:
    frames = eh_frame((START, 0x40, b""))
    with pytest.raises(UnwindError, match="machine 183"):
        table_of(frames, machine=183)
    with pytest.raises(UnwindError, match="4 GiB"):
        table_of(frames, code=(1 << 32) - 0x8000)
    with pytest.raises(UnwindError, match="4 GiB"):
        table_of(frames, code_size=1 << 63)
    assert isinstance(open_elf(elf_bytes(frames)), ElfFile)


def test_rules_that_do_not_fit_are_refused() -> None:
    for cfa, rbp in ((4, 0), (-8, 0), (1 << 21, 0), (8, 1 << 10), (8, -1)):
        with pytest.raises(ValueError, match="no rule"):
            pack(RuleType.RSP, cfa, rbp)
    with pytest.raises(ValueError, match="15"):
        unpack(0xFFFFFFFF)
    assert unpack(pack(RuleType.R10, (1 << 21) - 8, 1023)) == Rule(RuleType.R10, 1023, (1 << 21) - 8)
