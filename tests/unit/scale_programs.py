"""Builds the programs of known work and span, runs them under the library, and reads what it left."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from compiled import CACHE, compile_once
from parprof.errors import KernelUnsupported
from parprof.instruments import toolchain
from parprof.instruments.span import LIBRARY, compile_command, environment
from parprof.instruments.toolchain import source_directory
from parprof.scale.record import SiteKind, SiteRecord, SpanRecord, read_record

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"


@cache
def library() -> Path:
    """The library, built from this checkout: again when its text has changed, as that takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "PREBUILT", Path(os.devnull))
        patch.setenv("PARPROF_CACHE", str(CACHE))
        with suppress(KernelUnsupported):
            return LIBRARY.path()
        # another user's checkout
        directory = Path(tempfile.mkdtemp(prefix="parprof-span-"))
        atexit.register(shutil.rmtree, directory)
        patch.setenv("PARPROF_CACHE", str(directory))
        return LIBRARY.path()


def put_library_into(cache: Path) -> None:
    """Where the product looks with this PARPROF_CACHE."""
    where = cache / library().parent.name / library().name
    if not where.exists():
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = where.with_suffix(f".{os.getpid()}")
        shutil.copy(library(), scratch)
        scratch.rename(where)


_INCLUDE = f"-I{source_directory()}"
_STRICT = ("-std=gnu11", "-O2", "-g", "-fopenmp", "-Wall", "-Wextra", "-Werror", _INCLUDE)
_LINKED = (
    "span_conditions",
    "span_crews",
    "span_doacross",
    "span_kmp",
    "span_left",
    "span_names",
    "span_semaphores",
    "span_threads",
    "span_tree",
    "span_waits",
)
"""Workloads that cannot do without the library."""


def _libraries(name: str) -> tuple[Path, ...]:
    return (library(),) if name in _LINKED else ()


def _link(name: str) -> tuple[str, ...]:
    """The library defines all that some of them call of the runtime: it is to be linked nevertheless."""
    return ("-Wl,--no-as-needed", *map(str, _libraries(name))) if name in _LINKED else ()


@cache
def program(name: str, directory: Path, compiler: str = "gcc") -> Path:
    """A workload, built with a compiler's OpenMP: gcc's libgomp, clang's libomp."""
    output = directory / f"{name}{'' if compiler == 'gcc' else f'.{compiler}'}"
    # clang warns of its own code for a taskloop
    flags = (*_STRICT, "-Wno-sign-compare") if compiler == "clang" else _STRICT
    source = WORKLOADS / f"{name}.c"
    if not source.exists():
        source, compiler = source.with_suffix(".cpp"), "g++"
        flags = ("-std=c++20", *flags[1:])
    compile_once([compiler, *flags, source, *_link(name), "-o", output], *_libraries(name))
    return output


@cache
def with_hooks(name: str, directory: Path, compiler: str = "gcc") -> str:
    """A workload with a hook at the begin and the end of each function, as `parprof cc --scale` builds it."""
    output = os.fspath(directory / f"{name}.{compiler}.hooks")
    source = os.fspath(WORKLOADS / f"{name}.c")
    compile_once(compile_command([compiler, *_STRICT, source, *_link(name), "-o", output]), *_libraries(name))
    return output


def run_linked(source: str, compiler: str, directory: Path, threads: int, **settings: str) -> SpanRecord:
    """The record of a program of OpenMP, by its text, linked with the library.

    That defines all that some call of the runtime, and is to be linked nevertheless. ``settings``: of the environment,
    besides what the library needs.
    """
    output, records = directory / "program", directory / "records"
    records.mkdir()
    linked = ["-x", "none", "-Wl,--no-as-needed", library()]
    compile_once([compiler, "-O1", "-fopenmp", "-x", "c", "-", *linked, "-o", output], library(), text=source)
    subprocess.run([output], env={**variables(records, threads), **settings}, check=True, timeout=60)
    (record,) = records_of(records)
    return record


@cache
def has_clang() -> bool:
    """Whether clang builds programs of OpenMP here (apt install clang libomp-dev)."""
    source = "#include <omp.h>\nint main(void) { return omp_get_level(); }"
    command = ["clang", "-fopenmp", "-x", "c", "-", "-o", os.devnull]
    try:
        return subprocess.run(command, input=source.encode(), capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def variables(records: Path, threads: int, clock: str = "test") -> dict[str, str]:
    """The environment of a run with so many threads."""
    ours = environment(os.fspath(library()), os.fspath(records), threads)
    return {**os.environ, **ours, "PARPROF_SPAN_CLOCK": clock}


def run(
    directory: Path,
    threads: int,
    name: str,
    *arguments: str,
    clock: str = "test",
    code: int = 0,
    compiler: str = "gcc",
    is_serial: bool = False,
) -> SpanRecord:
    """The record of one run; every run has a directory for its records alone."""
    records = directory / f"records-{os.urandom(6).hex()}"
    records.mkdir()
    command = [os.fspath(program(name, directory, compiler)), *arguments]
    env = variables(records, threads, clock)
    if is_serial:
        env["PARPROF_SPAN_SERIAL"] = "1"
    done = subprocess.run(command, env=env, capture_output=True, timeout=120)
    assert done.returncode == code, done.stderr.decode()
    (record,) = records_of(records)
    records.rmdir()
    return record


def records_of(records: Path) -> list[SpanRecord]:
    """What the processes of a run left; the files are gone then."""
    found = []
    for file in records.glob("*.span"):
        found.append(read_record(os.fspath(file)))
        file.unlink()
    return found


def speedup(record: SpanRecord) -> float:
    return record.work_s / record.bound_s


def sites(record: SpanRecord, kind: SiteKind) -> list[SiteRecord]:
    return [site for site in record.sites if site.kind == kind]


COMPILERS = (
    "gcc",
    pytest.param("clang", marks=pytest.mark.skipif(not has_clang(), reason="needs clang and libomp-dev")),
)
