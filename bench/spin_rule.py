"""What the rule for code that only waits marks in the libraries and programs of this machine, to be looked at by hand.

    .venv/bin/python bench/spin_rule.py [--all] [--show] [--only REGEX] [PATH ...]

Loops and functions that pause (`parprof.loops.pauses`) are looked for in all ELF files below each PATH (/usr/lib,
/usr/bin and /usr/sbin by default; a virtual environment of bench/wheels.py, say). With ``--all`` every function is
looked at, for loops that wait by what they read (`parprof.loops.spins`), which takes a second for some 100,000
instructions. One line for each that is marked: rule, file, function, address and size; with ``--show`` its code. Needs
no root.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon")]

from parprof.errors import ParprofError  # noqa: E402
from parprof.files.eh_frame_header import Extent, extents_around  # noqa: E402
from parprof.files.elf import EM_X86_64, ElfError, ElfFile  # noqa: E402
from parprof.loops.machinecode import decode, read_code  # noqa: E402
from parprof.loops.noreturn import ReturningCalls  # noqa: E402
from parprof.loops.pauses import PAUSES, Pauses, is_pause  # noqa: E402
from parprof.loops.spins import LoopRange, spin_loops  # noqa: E402
from parprof.symbols.table import find_functions  # noqa: E402

_PAUSE = re.compile(rb"\xf3\x90|[\x66\xf3\xf2]\x41?\x0f\xae[\xf0-\xf7]", re.DOTALL)
"""``pause``, ``tpause``, ``umonitor`` or ``umwait``."""
_CALL = re.compile(rb"[\xe8\xe9]", re.DOTALL)
_MOST_BYTES = 1 << 16
"""Of a function."""


def files_below(paths: Iterable[Path], only: str) -> Iterator[Path]:
    """Each ELF file once."""
    seen = set()
    for path in paths:
        found = (
            [path]
            if path.is_file()
            else (Path(at) / name for at, _, names in os.walk(path) for name in names)
        )
        for file in found:
            if not re.search(only, str(file)):
                continue
            with suppress(OSError):
                stat = file.stat()
                if (stat.st_dev, stat.st_ino) in seen or not file.is_file() or stat.st_size < 64:
                    continue
                seen.add((stat.st_dev, stat.st_ino))
                with open(file, "rb") as opened:
                    if opened.read(4) == b"\x7fELF":
                        yield file


def code_of(elf: ElfFile) -> list[tuple[int, bytes]]:
    return [(segment.vaddr, elf.read(segment.vaddr, segment.file_size)) for segment in elf.code]


def extents_of(elf: ElfFile, addresses: Iterable[int]) -> set[Extent]:
    """The functions around these."""
    wanted = set(addresses)
    found = extents_around(elf, wanted)
    named = find_functions(elf, wanted - found.keys())
    found |= {at: (symbol.value, symbol.size) for at, symbol in named.items() if symbol.size}
    return {extent for extent in found.values() if 0 < extent[1] <= _MOST_BYTES}


def candidates(elf: ElfFile) -> set[Extent]:
    """The functions that pause, or call one that does nothing else."""
    code = code_of(elf)
    pausing = extents_of(
        elf, (start + found.start() for start, raw in code for found in _PAUSE.finditer(raw))
    )
    alone = {start for start, size in pausing if pauses_alone(elf, (start, size))}
    callers = set()
    for start, raw in code if alone else ():
        for found in _CALL.finditer(raw):
            at = found.end()
            if start + at + 4 + int.from_bytes(raw[at : at + 4], "little", signed=True) in alone:
                callers.add(start + found.start())
    return pausing | extents_of(elf, callers)


def every_function(elf: ElfFile) -> set[Extent]:
    return extents_of(elf, (at for start, raw in code_of(elf) for at in range(start, start + len(raw), 16)))


def pauses_alone(elf: ElfFile, extent: Extent) -> bool:
    """Whether a function pauses and returns."""
    try:
        return is_pause(read_code(elf, *extent))
    except ParprofError:
        return False


def rule_of(elf: ElfFile, pauses: Pauses, function: Extent, loop: LoopRange) -> str:
    if pauses_alone(elf, function):
        return "pauses and returns"
    code = read_code(elf, *function)
    indexes = [index for index, at in enumerate(code.addresses) if loop[0] <= at < loop[1]]
    if not pauses.among(code, indexes):
        return "waits for memory"
    has_pause = any(code.mnemonics[index] in PAUSES for index in indexes)
    return "pauses at each turn" if has_pause else "calls what pauses, or gives up the CPU, at each turn"


def show(elf: ElfFile, loop: LoopRange) -> None:
    for address, _, mnemonic, text in decode(elf.read(loop[0], loop[1] - loop[0]), loop[0], 400):
        print(f"    {address:#x} {mnemonic} {text}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all", action="store_true", help="look at every function, not at those that pause alone"
    )
    parser.add_argument("--show", action="store_true", help="disassemble what is marked")
    parser.add_argument("--only", default="", metavar="REGEX", help="files whose path matches")
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[Path("/usr/lib"), Path("/usr/bin"), Path("/usr/sbin")]
    )
    args = parser.parse_args()
    rules: Counter[str] = Counter()
    files = functions = 0
    began_s = time.monotonic()
    for path in files_below(args.paths, args.only):
        with suppress(ElfError, OSError), ElfFile.open(str(path)) as elf:
            if elf.machine != EM_X86_64:
                continue
            files += 1
            calls, pauses = ReturningCalls(elf), Pauses(elf)
            for function in sorted(every_function(elf) if args.all else candidates(elf)):
                functions += 1
                for loop in spin_loops(elf, *function, calls, pauses):
                    rule = rule_of(elf, pauses, function, loop)
                    rules[rule] += 1
                    symbol = find_functions(elf, [function[0]]).get(function[0])
                    name = symbol.name if symbol is not None else "?"
                    print(f"{rule}: {path} {name} {loop[0]:#x} {loop[1] - loop[0]}", flush=True)
                    if args.show:
                        show(elf, loop)
    marked = ", ".join(f"{number} {rule}" for rule, number in rules.most_common()) or "none"
    print(f"{files} files, {functions} functions looked at in {time.monotonic() - began_s:.0f} s: {marked}")


if __name__ == "__main__":
    main()
