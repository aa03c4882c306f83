# SPDX-License-Identifier: Apache-2.0
"""Damaged call frame information: whatever it holds, a table comes out or a typed error, and soon.

``python fuzz_eh_frame.py CORPUS -max_total_time=600`` fuzzes with atheris (pip install atheris) from what
`seeds` made in an empty CORPUS; without atheris it mutates the seeds at random for that many seconds.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[index] / part) for index, part in ((2, "daemon"), (1, "unit"))]

try:
    import atheris
except ImportError:
    atheris = None

from parprof.files.elf import ElfError, ElfFile
from parprof.unwind import emit
from parprof.unwind.eh_frame import FrameParser
from parprof.unwind.frames import UnwindError, frame_sections
from parprof.unwind.rows import RuleType
from parprof.unwind.table import UnwindTable, build_table
from unwind_elf import CODE, cie, eh_frame, elf_bytes, fde, open_elf

KINDS = ("eh_frame", "debug_frame", "program", "elf", "compressed")
LIBRARIES = ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libgcc_s.so.1")
SECONDS = 5.0
"""What one input may take. Inputs here are small; a real file of 5 MB takes less."""
_MAX_REAL = 4096


def file_of(data: bytes) -> bytes:
    """The ELF file that an input stands for: its first byte says what the rest is."""
    kind, rest = KINDS[data[0] % len(KINDS)], data[1:]
    if kind == "elf":
        return rest
    if kind == "program":
        return elf_bytes(eh_frame((CODE, 0x100, rest), (CODE + 0x100, 0x80, rest[::-1])))
    if kind == "eh_frame":
        return elf_bytes(rest)
    flags = 0x800 if kind == "compressed" else 0
    return elf_bytes(b"", header=b"", sections=((b".debug_frame", flags, rest or b"\0"),))


def check(data: bytes) -> UnwindTable | None:
    """Run one input; an AssertionError or any untyped error is a finding."""
    if not data:
        return None
    begin = time.monotonic()
    try:
        elf = open_elf(file_of(data))
        table = build_table(elf)
    except (ElfError, UnwindError):
        return None
    before = -1
    for index in range(table.count):
        pc, rule = table.row(index)
        assert pc > before and rule >> 28 in set(RuleType) and (rule >> 28 or not rule)
        before = pc
    assert not table.count or rule == 0
    assert time.monotonic() - begin < SECONDS
    assert_exact_agrees(elf, table)
    return table


def assert_exact_agrees(elf: ElfFile, table: UnwindTable) -> None:
    """The fast interpreter and the exact one say the same."""
    usual, emit.usual_state = emit.usual_state, lambda _: None
    try:
        exact = build_table(elf)
    finally:
        emit.usual_state = usual
    assert exact.rows == table.rows and exact.notes == table.notes


def seeds() -> Iterator[bytes]:
    """Inputs of every kind to start from."""
    programs = (
        "410e108602430d0602800c0708", "0a410e10410bc6", "10060276000f03767806", "0f0b770880003f1a3b2a332422",
        "0f0b770880003f1a352a332422", "2e8001120877137d0506020816071015",
    )  # fmt: skip
    for program in programs:
        yield bytes((KINDS.index("program"),)) + bytes.fromhex(program)
    several = eh_frame(
        *((CODE + 0x40 * n, 0x40, bytes.fromhex(program)) for n, program in enumerate(programs))
    )
    yield bytes((KINDS.index("eh_frame"),)) + several
    yield bytes((KINDS.index("elf"),)) + elf_bytes(several)
    data = b"\x9b" + bytes(4) + b"\x1b\x1b"
    yield (
        bytes((KINDS.index("eh_frame"),))
        + cie(augmentation=b"zPLRS", data=data, version=4)
        + fde(40, CODE, 9)
    )
    debug = cie(augmentation=b"", data=b"", version=4, id=b"\xff" * 4)
    debug += struct.pack("<IIQQ4s", 24, 0, CODE, 0x40, bytes.fromhex("410e1000"))
    yield bytes((KINDS.index("debug_frame"),)) + debug
    yield bytes((KINDS.index("compressed"),)) + struct.pack("<IIQQ", 1, 0, len(debug), 8) + debug
    for path in LIBRARIES:
        try:
            with ElfFile.open(path) as elf:
                section = frame_sections(elf)[0]
        except (ElfError, UnwindError, IndexError):
            continue
        fdes = FrameParser(section, Counter()).fdes
        yield bytes((KINDS.index("eh_frame"),)) + section.data[:_MAX_REAL]
        for _, _, at, end, owner in fdes[:: max(1, len(fdes) // 20)]:
            yield bytes((KINDS.index("program"),)) + owner.data[at:end]


def mutated(data: bytes, source: random.Random) -> bytes:
    """An input near to another one: bits flipped, bytes replaced, pieces cut out, doubled or moved."""
    raw = bytearray(data)
    for _ in range(source.randint(1, 8)):
        at = source.randrange(1, len(raw) + 1)
        size = source.randint(1, 16)
        how = source.randrange(6)
        if how == 0 and at < len(raw):
            raw[at] ^= 1 << source.randrange(8)
        elif how == 1:
            raw[at : at + size] = source.randbytes(size)
        elif how == 2 and len(raw) > size + 1:
            del raw[at : at + size]
        elif how == 3:
            raw[at:at] = raw[at : at + size]
        elif how == 4:
            raw[at:at] = source.choice(
                (b"\xff" * 4, b"\x80" * 12, b"\x00" * 8, b"\x7f" * 4, bytes(range(size)))
            )
        else:
            del raw[source.randrange(1, len(raw) + 1) :]
    return bytes(raw)


def short(seconds: float, seed: int = 1) -> int:
    """Mutate the seeds for that long; how many inputs that were."""
    source = random.Random(seed)
    pool = list(seeds())
    tables = sum(check(data) is not None for data in pool)
    assert tables >= len(pool) // 2
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        data = mutated(source.choice(pool), source)
        check(data)
        count += 1
        if count % 50 == 0 and len(pool) < 1000:
            pool.append(data)
    return count


def main() -> None:
    """Entry point; takes the arguments of libFuzzer."""
    if atheris is None:
        limits = [
            argument.partition("=")[2] for argument in sys.argv if argument.startswith("-max_total_time=")
        ]
        print(short(float(limits[0]) if limits else 60.0, seed=int(time.time())), "inputs")
        return
    for argument in sys.argv[1:]:
        if not argument.startswith("-"):
            corpus = Path(argument)
            corpus.mkdir(exist_ok=True)
            if not any(corpus.iterdir()):
                for number, data in enumerate(seeds()):
                    (corpus / f"seed{number}").write_bytes(data)
    atheris.instrument_all()
    atheris.Setup(sys.argv, lambda data: (check(data), None)[1])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
