"""Programs of known truth in other languages, and on their packages (bench/programs/foreign): how to run each.

They are built when they are asked for, from what is installed: nothing is downloaded. Threads are those of their own
language's pool. Their work is that of a library in C, which logs it (truth_calls.c); but Go's is its own, as calls of C
from Go run on other stacks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "bench/programs/foreign"
_HEADERS = ROOT / "tests/workloads"
DEBIAN_CRATES = Path("/usr/share/cargo/registry")
"""Of the packages librust-...-dev: librust-rayon-dev is one."""
_BUILD_SECONDS = 300
_MOST_SAID = 70


class NotHere(Exception):
    """The text says what is missing."""


@dataclass(frozen=True)
class Command:
    program: Path
    arguments: tuple[str, ...] = ()


def command(name: str, folder: Path, python: str = sys.executable) -> Command:
    """How to run a program; it is built in ``folder``. ``python``: an interpreter that has the packages.

    Raises:
        NotHere: it cannot be built here.
    """
    library = folder / "libtruth_calls.so"
    if not library.exists():
        _run("gcc", "-std=gnu11", "-O2", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-fvisibility=hidden",
             f"-I{_HEADERS}", str(SOURCES / "truth_calls.c"), "-o", str(library))  # fmt: skip
    return _PROGRAMS[name](folder, library, python)


def _run(*arguments: str, folder: Path | None = None, **environment: str) -> None:
    if shutil.which(arguments[0]) is None:
        raise NotHere(f"{arguments[0]} is not installed")
    words = [f"{name}={value}" for name, value in environment.items()]
    done = subprocess.run(
        ["env", *words, *arguments], capture_output=True, text=True, timeout=_BUILD_SECONDS, cwd=folder
    )
    if done.returncode:
        raise NotHere(f"{arguments[0]}: {next(_told(done.stderr), 'failed')[:_MOST_SAID]}")


def _told(output: str) -> Iterator[str]:
    """The lines of what a compiler or an interpreter said that tell most: the one with an error, the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    yield from (line for line in lines if line.startswith("error"))
    yield from reversed(lines)


def _go(folder: Path, library: Path, python: str) -> Command:
    program = folder / "truth.go.program"
    _run("go", "build", "-o", str(program), str(SOURCES / "truth.go"), folder=folder, GOPROXY="off")
    return Command(program)


def _java(folder: Path, library: Path, python: str) -> Command:
    _run("javac", "-d", str(folder), str(SOURCES / "Truth.java"))
    java = shutil.which("java")
    if java is None:
        raise NotHere("java is not installed")
    return Command(Path(java), ("-cp", str(folder), "Truth", str(library)))


def _rayon(folder: Path, library: Path, python: str) -> Command:
    package = folder / "rayon"
    shutil.copytree(SOURCES / "rayon", package, dirs_exist_ok=True)
    flags = f"-L {folder} -C link-arg=-Wl,-rpath,{folder} -C force-frame-pointers=yes"
    debian = [
        *("--config", 'source.crates-io.replace-with="debian"'),
        *("--config", f'source.debian.directory="{DEBIAN_CRATES}"'),
    ]
    known = debian if any(DEBIAN_CRATES.glob("rayon-*")) else []  # else what cargo has downloaded once
    _run("cargo", "build", "--release", "--offline", "--quiet", *known, folder=package, RUSTFLAGS=flags)
    return Command(package / "target/release/truth")


def _python(module: str) -> Callable[[Path, Path, str], Command]:
    """Of a script that needs a module."""

    def make(folder: Path, library: Path, python: str) -> Command:
        needed = {"openblas": "numpy"}.get(module, module)
        with suppress(NotHere):
            _run(python, "-c", f"import {needed}")
            return Command(Path(python), (str(SOURCES / f"truth_{module}.py"), str(library)))
        raise NotHere(f"{needed} is not installed (--python: one that has it)")

    return make


_PROGRAMS: dict[str, Callable[[Path, Path, str], Command]] = {
    "go": _go,
    "java": _java,
    "rayon": _rayon,
    "numba": _python("numba"),
    "openblas": _python("openblas"),
}
