"""What is put into or under a command so that its input is counted: the runtime for programs built with
-fsanitize=thread, and the Valgrind tool; and which of them a program can have.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from parprof.cache import cache_directory
from parprof.errors import KernelUnsupported, UsageError
from parprof.files.elf import ElfFile
from parprof.files.elf_image import ElfError
from parprof.instruments import startable, valgrind_tool
from parprof.instruments.toolchain import Library
from parprof.untrusted import visible
from parprof.values import dataclass

RUNTIME = Library(
    "input",
    ("input_tsan.c",),
    (
        "input_algorithm.h",
        "input_shadow.h",
        "input_record.h",
        "input_hooks.h",
        "input_libc.h",
        "input_openmp.h",
    ),
    (
        "-fvisibility=hidden",
        "-fno-builtin",
        "-mcx16",
        "-falign-functions=64",  # where a hook lies in its cache lines made up to 10 % of a program's time
        "-ftls-model=initial-exec",
        "-Wl,-soname,libtsan.so.2",
        "-Wl,-z,defs",
    ),
)
DIRECTORY_VARIABLE = "PARPROF_INPUT_DIR"
CONTEXTS_VARIABLE = "PARPROF_INPUT_CONTEXTS"
_SONAMES = ("libtsan.so", "libtsan.so.2", "libtsan.so.0")
_LINKING = "parprof cc --input -- gcc ..."
_GCC_FLAGS = (
    "-fsanitize=thread",
    "-fsanitize-coverage=trace-pc",
    "-fno-ipa-modref",  # by it gcc leaves out writes to variables that only a callee reads
)
_C_FLAGS = (
    # what gcc makes of these itself has no hooks: memory that nobody is seen to write is input when it is read
    *(f"-fno-builtin-{name}" for name in ("memset", "memcpy", "memmove", "memcmp")),
)
_FORTRAN_SOURCES = tuple(f".{name}" for name in ("f", "for", "ftn", "fpp", "f90", "f95", "f03", "f08"))
_CLANG_FLAGS = (
    *("-Xclang", "-fsanitize=thread"),
    *("-Xclang", "-fsanitize-coverage-type=3", "-Xclang", "-fsanitize-coverage-trace-pc"),
    # for races the write that follows is enough, for input it is not
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
    # elements of a local array have hooks where the array is known to others; until LLVM 21 each element is asked alone
    *("-mllvm", "-capture-tracking-max-uses-to-explore=0"),
    # accesses of more than 16 bytes have no hooks, nor have those under a mask: of loops, of what is beside each other,
    # of every second element, of elements under a condition
    *("-mprefer-vector-width=128", "-fno-slp-vectorize"),
    *("-mllvm", "-enable-interleaved-mem-accesses=false", "-mllvm", "-enable-if-conversion=false"),
    "-Wno-unused-command-line-argument",  # where objects are linked, or assembled
)


@dataclass(frozen=True, slots=True)
class Start:
    """How a command is started so that it leaves records."""

    tool: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


def library_directory() -> Path:
    """A directory where the runtime has the names that programs look for.

    Raises:
        KernelUnsupported: it cannot be built.
    """
    library = RUNTIME.path()
    directory = cache_directory() / "instrument" / f"lib-{library.stem}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in _SONAMES:
            link = directory / name
            if not link.is_symlink() or os.readlink(link) != os.fspath(library):
                link.unlink(missing_ok=True)
                link.symlink_to(library)
    except OSError as error:
        raise KernelUnsupported(
            f"nowhere to keep the runtime of parprof input: {error}; set PARPROF_CACHE to a directory of your own"
        ) from error
    return directory


def plan(tool: str, command: Sequence[str], records: Path, *, contexts: bool = False) -> Start:
    """How to start a command with a tool: ``valgrind``, ``tsan``, or ``auto`` for what suits the program.

    ``records`` is an empty directory. ``contexts``: routines are told apart by who called them.

    Raises:
        CommandError: there is no such program, or it cannot be started.
        UsageError: the program is not built for the tool.
        KernelUnsupported: the tool cannot be had.
    """
    program = startable.find(command[0])
    hooks = _hooks(program)
    ours = {DIRECTORY_VARIABLE: os.fspath(records), **({CONTEXTS_VARIABLE: "1"} if contexts else {})}
    if tool == "auto":
        tool = "tsan" if "__tsan_func_entry" in hooks else "valgrind"
    if tool == "tsan":
        if "__tsan_func_entry" not in hooks:
            raise UsageError(
                f"{visible(command[0])} is not built for --tool tsan: compile and link it by `{_LINKING}`, or take "
                "--tool valgrind, which needs no build"
            )
        _check_hooks(hooks)
        path = os.pathsep.join(
            filter(None, (os.fspath(library_directory()), os.environ.get("LD_LIBRARY_PATH")))
        )
        return Start("tsan", tuple(command), {**ours, "LD_LIBRARY_PATH": path})
    startable.check(program)
    prefix, environment = valgrind_tool.start(records)
    return Start("valgrind", (*prefix, *command), {**environment, **ours})


def _hooks(program: str) -> frozenset[str]:
    """The ThreadSanitizer's entry points that a program wants from a library."""
    try:
        with ElfFile.open(program) as elf:
            return frozenset(name for name in elf.undefined() if name.startswith("__tsan_"))
    except (ElfError, OSError):
        return frozenset()


def _check_hooks(wanted: frozenset[str]) -> None:
    with ElfFile.open(os.fspath(RUNTIME.path())) as elf:
        unknown = wanted - elf.lookup(wanted).keys()
    if unknown:
        raise UsageError(
            f"the program calls {', '.join(sorted(unknown)[:3])}, which the runtime of parprof input does not know: "
            "build it with gcc 12 or clang 14, or take --tool valgrind"
        )


@cache
def _version(compiler: str) -> bytes:
    """What a compiler says that it is; empty: nothing."""
    try:
        done = subprocess.run(
            [compiler, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout


def _is_fortran(command: Sequence[str]) -> bool:
    """Whether Fortran is compiled, whose front end knows no flags of C's."""
    return b"GNU Fortran" in _version(command[0]) or any(
        word.lower().endswith(_FORTRAN_SOURCES) for word in command[1:]
    )


def compile_command(command: Sequence[str]) -> list[str]:
    """A compiler's command with what makes the program one for ``--tool tsan``.

    gcc links libtsan by itself, and finds ours first. clang would link its own into the program, so only its front
    end is told to instrument.
    """
    directory = os.fspath(library_directory())
    links = not {"-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"} & set(command)
    run_path = ["-Wl,--enable-new-dtags", f"-Wl,-rpath,{directory}"]
    if b"clang" in _version(command[0]):
        return [*command, *_CLANG_FLAGS, *([*run_path, f"{directory}/libtsan.so.2"] if links else [])]
    flags = _GCC_FLAGS if _is_fortran(command) else (*_GCC_FLAGS, *_C_FLAGS)
    return [*command, *flags, *([*run_path, f"-L{directory}"] if links else [])]
