# SPDX-License-Identifier: Apache-2.0
"""Damaged ELF files: whatever one holds, the reader answers or raises ElfError, soon and with little memory.

``python fuzz_elf.py CORPUS -max_total_time=600`` fuzzes with atheris (pip install atheris) from what `seeds` made
in an empty CORPUS; without atheris it mutates the seeds at random for that many seconds.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / "daemon")]

try:
    import atheris
except ImportError:
    atheris = None

if atheris is not None and __name__ == "__main__":
    with atheris.instrument_imports(include=["parprof"]):  # the rest would only slow it down
        import parprof.symbols.table  # noqa: F401

from parprof.files.elf import ElfError, ElfFile
from parprof.files.elf_symbols import MAX_NAME
from parprof.symbols.table import find_functions

SECONDS = 5.0
"""What one input may take. Inputs here are small; a real file of 100 MB takes less."""
MAX_READ_FACTOR = 4000
"""How many times its own size may be read of a file (names by windows, tables by chunks), beside a constant."""
NAMES = ("visible", "hidden", "main", "versioned", "")
ADDRESSES = (0, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x401000, (1 << 63) + 1, (1 << 64) - 1)
_SOURCE = """
int visible(int x) { return x + 1; }
static __attribute__((noinline, used)) int hidden(int x) { return x * 3; }
int versioned(int x) { return hidden(x) + visible(x); }
extern int missing(int);
int caller(int x) { return missing(x); }
__thread int local;
int *address(void) { return &local; }
"""
_WAYS = (
    ("-Wl,--hash-style=both",), ("-Wl,--hash-style=sysv", "-Wl,--version-script=VERSIONS"),
    ("-Wl,--hash-style=gnu", "-s"), ("-Wl,--hash-style=gnu", "-Wl,-z,separate-code", "-g"),
)  # fmt: skip


class Reader:
    """A file in memory; counts what is read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read = 0

    def __call__(self, offset: int, size: int) -> bytes:
        assert 0 <= offset and 0 <= size <= 1 << 24
        found = self.data[offset : offset + size]
        self.read += len(found)
        return found


def check(data: bytes) -> ElfFile | None:
    """Run one input; an AssertionError or any untyped error is a finding."""
    begin = time.monotonic()
    reader = Reader(data)
    try:
        elf = ElfFile(reader, len(data), "input")
    except ElfError:
        return None
    try:
        use(elf, data)
    except ElfError:
        pass
    assert time.monotonic() - begin < SECONDS
    assert reader.read <= MAX_READ_FACTOR * len(data) + (1 << 24), reader.read
    return elf


def use(elf: ElfFile, data: bytes) -> None:
    """All that the profiler asks of a file."""
    assert len(elf.build_id) <= 128 and int(elf.build_id or "0", 16) >= 0
    assert len(elf.interp) <= 4096 and all(len(name) <= 1 << 16 for name in elf.needed)
    assert isinstance(elf.soname, str) and isinstance(elf.is_static, bool)
    for address in (*ADDRESSES, elf.entry, elf.base):
        found = elf.read(address, 64)
        offset = elf.file_offset(address)
        assert not found or (offset is not None and found == data[offset : offset + len(found)])
        assert elf.code_end(address) == 0 or elf.code_end(address) > address
        again = elf.vaddr(address)
        assert again is None or isinstance(again, int)
    for name in (b".text", b".eh_frame", b".gnu_debuglink", b""):
        assert len(elf.section_data(name, 100)) <= 100
    addresses = set(ADDRESSES)
    for symbol in islice(elf.symbols(), 1 << 16):
        assert symbol.value and len(symbol.name) <= max(MAX_NAME, 1 << 16) and 0 <= symbol.bind < 16
        if len(addresses) < 1000:
            addresses |= {symbol.value, symbol.value + symbol.size // 2}
    assert all(isinstance(name, str) for name in elf.undefined())
    for name, symbols in elf.lookup(NAMES).items():
        assert name in NAMES and symbols and len({symbol.value for symbol in symbols}) == len(symbols)
    for address, symbol in find_functions(elf, addresses).items():
        assert symbol.value <= address and (not symbol.size or address < symbol.value + symbol.size)


@cache
def seeds() -> tuple[bytes, ...]:
    """Files to start from: small libraries as the linker makes them; without section headers, too."""
    return tuple(_seeds())


def _seeds() -> Iterator[bytes]:
    if shutil.which("gcc") is None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        source, versions, out = (Path(scratch) / name for name in ("a.c", "versions", "a.so"))
        source.write_text(_SOURCE)
        versions.write_text("V1 { global: visible; caller; local: *; }; V2 { global: versioned; } V1;")
        for way in _WAYS:
            flags = [flag.replace("VERSIONS", str(versions)) for flag in way]
            flags += ["-Wl,--build-id", "-Wl,-z,noseparate-code"] if "-g" not in way else ["-Wl,--build-id"]
            done = subprocess.run(
                ["gcc", "-O1", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,lib", *flags, "-o", out, source],
                capture_output=True,
            )
            if done.returncode == 0:
                data = out.read_bytes()
                yield data
                yield data[:0x28] + bytes(8) + data[0x30:0x3C] + bytes(4) + data[0x40:]


def mutated(data: bytes, source: random.Random) -> bytes:
    """A file near to another one: fields of its headers and tables changed, pieces moved, its end cut off."""
    raw = bytearray(data)
    tables = [0, 64]
    if len(raw) >= 64:
        tables += [struct.unpack_from("<Q", raw, 0x20)[0], struct.unpack_from("<Q", raw, 0x28)[0]]
    for _ in range(source.randint(1, 6)):
        if not raw:
            break
        where = source.randrange(4)
        at = source.randrange(len(raw)) if where == 3 else (tables[source.randrange(4) % len(tables)] +
              8 * source.randrange(64)) % len(raw)  # fmt: skip
        how = source.randrange(6)
        if how == 0:
            raw[at] ^= 1 << source.randrange(8)
        elif how <= 2:
            number = source.choice((0, 1, 7, 8, len(raw), len(raw) - 1, 1 << 16, 1 << 31, 1 << 32, (1 << 63) - 1,
                                    (1 << 64) - 1, source.getrandbits(64), source.randrange(len(raw))))  # fmt: skip
            size = source.choice((2, 4, 8))
            raw[at : at + size] = number.to_bytes(8, "little")[:size]
        elif how == 3:
            raw[at : at + 16] = source.randbytes(16)
        elif how == 4:
            raw[at:at] = raw[at : at + source.randint(1, 64)]
        else:
            del raw[source.randrange(len(raw)) :]
    return bytes(raw)


def short(seconds: float, seed: int = 1) -> int:
    """Mutate the seeds for that long; how many inputs that were."""
    source = random.Random(seed)
    pool = list(seeds())
    assert all(check(data) is not None for data in pool)
    end = time.monotonic() + seconds
    count = 0
    while pool and time.monotonic() < end:
        data = mutated(source.choice(pool), source)
        readable = check(data)
        count += 1
        if count % 50 == 0 and len(pool) < 1000 and readable is not None:
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
    atheris.Setup(sys.argv, lambda data: (check(data), None)[1])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
