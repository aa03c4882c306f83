"""The Valgrind tool of ``instrument/input_valgrind.c``: built, when first used, for the Valgrind that is there.

It is linked with Valgrind's own archives, so it is a program under the GPL, apart from the rest.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from parprof import __version__
from parprof.cache import DiskCache, cache_directory
from parprof.errors import KernelUnsupported
from parprof.instruments.toolchain import compiler_version, find_compiler, run_compiler, source_directory

HEADERS = Path("/usr/include/valgrind")
ARCHIVES = (Path("/usr/lib/x86_64-linux-gnu/valgrind"), Path("/usr/lib/valgrind"))
TOOLS = (Path("/usr/libexec/valgrind"), Path("/usr/lib/x86_64-linux-gnu/valgrind"), Path("/usr/lib/valgrind"))
NAME = "parprof-amd64-linux"
_SOURCES = (
    "input_valgrind.c",
    "input_valgrind_code.h",
    "input_valgrind_owners.h",
    "input_algorithm.h",
    "input_shadow.h",
    "input_record.h",
)
_SUBDIRECTORY = "valgrind"
_CACHE_BYTES = 64 << 20
_COMPILE = (
    *("-c", "-std=gnu11", "-O2", "-ffreestanding", "-fno-stack-protector", "-fno-builtin", "-fno-pie"),
    *("-fno-strict-aliasing", "-DVGA_amd64=1", "-DVGO_linux=1", "-DVGP_amd64_linux=1"),
    "-DVGPV_amd64_linux_vanilla=1",
)
_LINK = (
    *("-static", "-nodefaultlibs", "-nostartfiles", "-no-pie", "-s", "-u", "_start"),
    *("-Wl,-Ttext-segment=0x58000000", "-Wl,--build-id=none"),
)
_OPTIONS = ("--tool=parprof", "-q", "--fair-sched=yes", "--trace-children=yes", "--vgdb=no")


def start(directory: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words before a command that put it under the tool, and its environment.

    ``directory`` is one of ours, where Valgrind's own files are linked to.

    Raises:
        KernelUnsupported: Valgrind or what builds the tool is not there.
    """
    program, tools, archives = _installed()
    tool = _built(program, archives)
    library = directory / "valgrind"
    library.mkdir()
    for path in tools.iterdir():
        (library / path.name).symlink_to(path)
    (library / NAME).symlink_to(tool)
    # the first call of a function of another file would lead to the loader, and to no name
    environment = {"VALGRIND_LIB": os.fspath(library), "LD_BIND_NOW": "1"}
    return (program, *_OPTIONS), environment


def _installed() -> tuple[str, Path, Path]:
    if platform.machine() != "x86_64":
        raise KernelUnsupported(f"--tool valgrind is for x86-64 alone, this machine is {platform.machine()}")
    program = shutil.which("valgrind")
    tools = next((path for path in TOOLS if (path / "none-amd64-linux").exists()), None)
    archives = next((path for path in ARCHIVES if (path / "libcoregrind-amd64-linux.a").exists()), None)
    if (
        program is None
        or tools is None
        or archives is None
        or not (HEADERS / "pub_tool_tooliface.h").exists()
    ):
        raise KernelUnsupported(
            "--tool valgrind needs Valgrind with its headers: on Debian `apt install valgrind libc6-dbg gcc`"
        )
    return program, tools, archives


def _built(program: str, archives: Path) -> Path:
    compiler = find_compiler()
    cache = DiskCache(_SUBDIRECTORY, _CACHE_BYTES)
    name = f"tool-{_digest(program, compiler, archives)}"
    where = cache_directory() / _SUBDIRECTORY / name
    descriptor = cache.open(name)  # only if nobody else can have put it there
    if descriptor is None:
        with tempfile.TemporaryDirectory(prefix="parprof-") as scratch:
            output = Path(scratch) / name
            _build(compiler, archives, output)
            if not cache.write(name, output.read_bytes()):
                raise KernelUnsupported(
                    f"nowhere to keep the Valgrind tool: {cache.problem or 'the cache cannot be written'}; "
                    "set PARPROF_CACHE to a directory of your own"
                )
    else:
        os.close(descriptor)
    os.chmod(where, 0o700)
    return where


def _build(compiler: str, archives: Path, output: Path) -> None:
    part = output.with_suffix(".o")
    source = source_directory() / _SOURCES[0]
    run_compiler(
        [compiler, *_COMPILE, f"-I{HEADERS}", "-o", os.fspath(part), os.fspath(source)], "the Valgrind tool"
    )
    core, vex, support = (
        os.fspath(archives / f"lib{name}-amd64-linux.a") for name in ("coregrind", "vex", "gcc-sup")
    )
    run_compiler(
        [compiler, *_LINK, "-o", os.fspath(output), os.fspath(part), core, vex, "-lgcc", support],
        "the Valgrind tool",
    )


def _digest(program: str, compiler: str, archives: Path) -> str:
    version = subprocess.run(
        [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30
    ).stdout
    built_ns = (archives / "libcoregrind-amd64-linux.a").stat().st_mtime_ns
    told = f"{__version__} {compiler_version(compiler)} {version!r} {built_ns} {_COMPILE} {_LINK}"
    digest = hashlib.sha256(told.encode())
    for name in _SOURCES:
        digest.update((source_directory() / name).read_bytes())
    return digest.hexdigest()[:32]
