"""Symbolization: how fast with caches on disk, and how it compares with llvm-symbolizer.

    .venv/bin/python bench/symbols.py [--addresses 10000] [--compare 5000] [--seed 1]

The files are a C++ program compiled here (-O2 -g), the interpreter's own libpython and the C and C++ libraries
of the machine (with their separate debug files, if those are installed: Debian's libc6-dbg), and libLLVM where
there is one. Two tables: seconds for addresses of all of them, in a fresh process, without and with caches;
and agreement, for files with debug information, by frames (how many, and each one's file and line) and by
names. Names agree if they are the same after demangling and removal of the suffixes of clones, or if the symbol
table has both for one place. Needs llvm-symbolizer (Debian package llvm) for the second table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon")]

from machine import describe  # noqa: E402

from parprof.files.dso import Dso  # noqa: E402
from parprof.files.dso_cache import DsoCache  # noqa: E402
from parprof.files.maps_line import MapsLine  # noqa: E402
from parprof.symbols.debugfiles import find_debug_file, lacks_lines  # noqa: E402
from parprof.symbols.names import readable  # noqa: E402
from parprof.symbols.symbolizer import Symbolizer  # noqa: E402

PROGRAM = ROOT / "bench/programs/symbols.cpp"
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); import symbols; symbols.resolve_file(sys.argv[2])"


class Agreement(NamedTuple):
    file: str
    addresses: int
    inlined: int
    frames: int
    names: int


def compile_program(folder: Path) -> Path:
    subprocess.run(["g++", "-std=c++17", "-O2", "-g", PROGRAM, "-o", folder / "program"], check=True)
    return folder / "program"


def installed_files() -> list[Path]:
    """Libraries of this machine, found as the dynamic linker finds them."""
    out = []
    libpython = Path(sysconfig.get_config_var("LIBDIR")) / str(sysconfig.get_config_var("INSTSONAME"))
    out.append(libpython if libpython.exists() else Path(sys.executable).resolve())
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    for pattern in (r"libc\.so\.6", r"libm\.so\.6", r"libstdc\+\+\.so\.6", r"libLLVM\S*\.so\S*"):
        found = re.search(rf"^\s+{pattern} \(libc6,x86-64\S*.* => (\S+)$", known, re.MULTILINE)
        if found:
            out.append(Path(found[1]).resolve())
    return out


def open_dso(cache: DsoCache, path: Path) -> Dso:
    status = os.stat(path)
    line = MapsLine(0x1000, 0x2000, True, 0, status.st_dev, status.st_ino, os.fsencode(path))
    return cache.get(os.getpid(), line)


def some_addresses(dso: Dso, number: int, dice: random.Random) -> list[int]:
    """Distinct random addresses inside of the file's functions."""
    debug = find_debug_file(dso)
    elf = debug or dso.elf
    assert elf is not None
    functions = sorted({(s.value, s.size) for s in elf.symbols() if s.size})
    sizes = [size for _, size in functions]
    out: set[int] = set()
    number = min(number, sum(sizes) // 2)
    while len(out) < number:
        for start, size in dice.choices(functions, sizes, k=number - len(out)):
            out.add(start + dice.randrange(size))
    if debug is not None:
        debug.close()
    return sorted(out)


# speed


def resolve_file(path: str) -> None:
    """In a fresh process: resolve what a file of JSON says, and print how long that took."""
    wanted: dict[str, list[int]] = json.loads(Path(path).read_text())
    begin = time.perf_counter()
    with DsoCache() as cache, Symbolizer() as symbolizer:
        requests = [
            (dso, address, False)
            for name, addresses in wanted.items()
            for dso in [open_dso(cache, Path(name))]
            for address in addresses
        ]
        found = symbolizer.resolve(requests)
        seconds = time.perf_counter() - begin
        named = sum("+0x" not in frames[-1].name for frames in found.values())
        lines = sum(frames[-1].line > 0 for frames in found.values())
        print(json.dumps([seconds, named, lines, len(found), symbolizer.problems]))


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def time_resolving(wanted: dict[str, list[int]], folder: Path) -> None:
    (folder / "wanted.json").write_text(json.dumps(wanted))
    command = [sys.executable, "-c", _RUN, str(Path(__file__).parent), str(folder / "wanted.json")]
    environment = dict(os.environ, PARPROF_CACHE=str(folder / "cache"))
    environment.pop("DEBUGINFOD_URLS", None)
    print(
        f"{'caches':<8} {'addresses':>9} {'named':>7} {'lines':>7} {'resolve s':>10} {'process s':>10} {'CPU s':>6}"
    )
    for name in ("none", "disk", "disk", "disk"):
        begin, cpu_before = time.perf_counter(), children_cpu()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        whole, cpu = time.perf_counter() - begin, children_cpu() - cpu_before
        seconds, named, lines, number, problems = json.loads(done.stdout)
        print(
            f"{name:<8} {number:9} {named:7} {lines:7} {seconds:10.3f} {whole:10.3f} {cpu:6.2f}",
            *problems.values(),
        )
    size = sum(file.stat().st_size for file in (folder / "cache/symbols").iterdir())
    print(
        f"cache on disk: {size / 1e6:.1f} MB in {len(wanted)} files, throughput goal: under 1 s from disk\n"
    )


# agreement


def llvm_symbolizer(path: str, addresses: list[int]) -> list[list[tuple[str, str, int]]]:
    """(mangled name, file, line) of each frame, innermost first, for each address."""
    command = ["llvm-symbolizer", f"--obj={path}", "--no-demangle", "--functions=linkage", "--inlines"]
    text = subprocess.run(
        [*command, "--output-style=LLVM"], input="\n".join(map(hex, addresses)),
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    out = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        frames = []
        for name, where in zip(lines[::2], lines[1::2], strict=True):
            file, line, _ = where.rsplit(":", 2)
            frames.append((name, "" if file == "??" else os.path.normpath(file), int(line)))
        out.append(frames)
    return out


def folded(name: str) -> str:
    """Without the version of a symbol, and with one name for all variants of a constructor or destructor."""
    return readable(re.sub(r"([CD])[0-9]E", r"\g<1>1E", name.partition("@")[0]))


def compare(
    symbolizer: Symbolizer, dso: Dso, addresses: list[int], show: int
) -> tuple[Agreement, Iterable[str]]:
    debug = find_debug_file(dso)
    elf = debug or dso.elf
    assert elf is not None
    theirs = llvm_symbolizer(debug.label if debug else dso.path, addresses)
    ours = symbolizer.resolve((dso, address, False) for address in addresses)
    places: dict[str, set[int]] = {}
    for symbol in elf.symbols():
        places.setdefault(folded(symbol.name), set()).add(symbol.value)
    same_frames = same_names = inlined = 0
    differences: list[str] = []
    for address, expected in zip(addresses, theirs, strict=True):
        frames = ours[dso, address, False]
        inlined += len(expected) > 1
        found = [(os.path.normpath(frame.file) if frame.file else "", frame.line) for frame in frames]
        is_same = found == [row[1:] for row in expected]
        same_frames += is_same
        names = [(frame.name, folded(row[0])) for frame, row in zip(frames, expected, strict=False)]
        agree = len(frames) == len(expected) and all(
            a == b or places.get(a, set()) & places.get(b, set()) for a, b in names
        )
        same_names += agree
        if not (is_same and agree) and len(differences) < show:
            mine = [(frame.name, *where) for frame, where in zip(frames, found, strict=True)]
            differences.append(f"  {dso.name} {address:#x}\n    ours {mine}\n    llvm {expected}")
    if debug is not None:
        debug.close()
    return Agreement(dso.name, len(addresses), inlined, same_frames, same_names), differences


def compare_all(paths: list[Path], number: int, dice: random.Random, show: int) -> None:
    if not shutil.which("llvm-symbolizer"):
        print("no comparison: llvm-symbolizer is not installed (Debian package llvm)")
        return
    rows = []
    with DsoCache() as cache, Symbolizer() as symbolizer:
        dsos = [open_dso(cache, path) for path in paths]
        with_lines = [dso for dso in dsos if not lacks_lines(dso) or has_debug_file(dso)]
        print(f"{'file':<24} {'addresses':>9} {'inlined':>8} {'frames equal':>14} {'names equal':>14}")
        for dso in with_lines:
            addresses = some_addresses(dso, number // len(with_lines), dice)
            row, differences = compare(symbolizer, dso, addresses, show)
            rows.append(row)
            print_row(row)
            for difference in differences:
                print(difference)
    print_row(Agreement("all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))))
    print("goal: 99 % of frames and names")


def has_debug_file(dso: Dso) -> bool:
    found = find_debug_file(dso)
    if found is None:
        return False
    found.close()
    return True


def print_row(row: Agreement) -> None:
    frames, names = (f"{count} ({100 * count / row.addresses:.2f}%)" for count in (row.frames, row.names))
    print(f"{row.file:<24} {row.addresses:9} {row.inlined:8} {frames:>14} {names:>14}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--addresses", type=int, default=10000, help="for the first table")
    parser.add_argument("--compare", type=int, default=5000, help="addresses for the second table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="differences of each file to print")
    args = parser.parse_args()
    dice = random.Random(args.seed)
    print(describe())
    with tempfile.TemporaryDirectory(prefix="parprof-symbols-") as name:
        folder = Path(name)
        paths = [compile_program(folder), *installed_files()]
        os.environ["PARPROF_CACHE"] = str(folder / "compared")
        with DsoCache() as cache:
            wanted = {
                str(path): some_addresses(open_dso(cache, path), args.addresses // len(paths), dice)
                for path in paths
            }
            short = args.addresses - sum(map(len, wanted.values()))
            if short > 0:
                largest = max(paths, key=lambda path: path.stat().st_size)
                more = set(some_addresses(open_dso(cache, largest), len(wanted[str(largest)]) + short, dice))
                wanted[str(largest)] = sorted(more)
        time_resolving(wanted, folder)
        compare_all(paths, args.compare, dice, args.show)


if __name__ == "__main__":
    main()
