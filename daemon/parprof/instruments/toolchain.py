"""The C of ``instrument/`` as files that can be loaded into a target: prebuilt, from the cache, or compiled now."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from parprof import __version__
from parprof.cache import DiskCache, cache_directory
from parprof.errors import KernelUnsupported
from parprof.values import dataclass

PREBUILT = Path(sys.prefix) / "libexec/parprof"
"""Where an installation puts what it built, for machines without a compiler."""
_SUBDIRECTORY = "instrument"
_CACHE_BYTES = 16 << 20
_COMPILERS = ("cc", "gcc", "clang")
_COMPILE_SECONDS = 120
PLAIN_VARIABLE = "PARPROF_PLAIN_CC"
"""In the environment of compilers that build what is ours: CC may be `parprof cc`, perhaps in a script."""
_FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra")


def source_directory() -> Path:
    """Where ``instrument/`` is, in an installation or in a checkout."""
    beside = Path(__file__).resolve().parents[1] / "instrument"
    return beside if beside.is_dir() else Path(__file__).resolve().parents[3] / "instrument"


@dataclass(frozen=True)
class Library:
    """A shared library made of files of ``instrument/``.

    ``sources`` are compiled; ``headers`` are what they include, from there too. ``flags`` come after the usual ones
    (libraries to link with among them).
    """

    name: str
    sources: tuple[str, ...]
    headers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def prebuilt_name(self) -> str:
        """What it is called in `PREBUILT`."""
        return f"{self.name}-{__version__}.so"

    def path(self) -> Path:
        """Where the built library is; it is built now if need be.

        Raises:
            KernelUnsupported: there is neither a prebuilt one nor a compiler, it does not compile, or there is no
                directory to keep it in.
        """
        prebuilt = PREBUILT / self.prebuilt_name
        return prebuilt if prebuilt.is_file() else self._cached()

    def build(self, output: Path) -> None:
        """Compile it to a file.

        Raises:
            KernelUnsupported: as `path`.
        """
        directory = source_directory()
        sources = [os.fspath(directory / source) for source in self.sources]
        run_compiler([find_compiler(), *_FLAGS, "-o", os.fspath(output), *sources, *self.flags], self.name)

    def _cached(self) -> Path:
        cache = DiskCache(_SUBDIRECTORY, _CACHE_BYTES)
        name = f"{self.name}-{self._digest(find_compiler())}.so"
        where = cache_directory() / _SUBDIRECTORY / name
        descriptor = cache.open(name)  # only if nobody else can have put it there
        if descriptor is not None:
            os.close(descriptor)
            return where
        with tempfile.TemporaryDirectory(prefix="parprof-") as scratch:
            output = Path(scratch) / name
            self.build(output)
            if not cache.write(name, output.read_bytes()):
                raise KernelUnsupported(
                    f"nowhere to keep {self.name}: {cache.problem or 'the cache cannot be written'}; "
                    "set PARPROF_CACHE to a directory of your own"
                )
        return where

    def _digest(self, compiler: str) -> str:
        digest = hashlib.sha256(f"{__version__} {compiler_version(compiler)} {self.flags} {_FLAGS}".encode())
        for name in (*self.sources, *self.headers):
            digest.update((source_directory() / name).read_bytes())
        return digest.hexdigest()[:32]


def find_compiler() -> str:
    """The path of a C compiler: that of the CC variable, if it names one, or the first of the usual names.

    Raises:
        KernelUnsupported: there is none.
    """
    names = tuple(
        filter(None, (os.environ.get("CC"), *_COMPILERS))
    )  # CC may be of several words, of ours even
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise KernelUnsupported(
            f"no C compiler ({', '.join(names)}) to build what runs in the target: install one, "
            "on Debian with `apt install gcc libc6-dev`"
        )
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, PLAIN_VARIABLE: "1"}


def compiler_version(compiler: str) -> str:
    """What a compiler says that it is."""
    done = subprocess.run(
        [compiler, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        env=_environment(),
    )
    return done.stdout.decode(errors="replace").partition("\n")[0]


def run_compiler(command: Sequence[str], what: str) -> None:
    """Run a compiler.

    Raises:
        KernelUnsupported: it fails; the message has its first error.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_SECONDS,
            check=False,
            env=_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelUnsupported(f"compiling {what}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        told = next((line for line in lines if "error" in line), lines[-1] if lines else "no output")
        raise KernelUnsupported(f"{what} does not compile here: {told}")
