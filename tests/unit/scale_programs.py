"""Builds the programs of known work and span, runs them under the library, and reads what it left."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from parprof.instruments.span import LIBRARY, environment
from parprof.scale.record import Kind, Record, SiteRecord, read_record

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"


@cache
def library(directory: Path) -> Path:
    """The library, built from this checkout."""
    output = directory / "libparprof_span.so"
    LIBRARY.build(output)
    return output


@cache
def program(name: str, directory: Path) -> Path:
    """A workload, built with gcc's OpenMP."""
    output = directory / name
    flags = ("-std=gnu11", "-O2", "-g", "-fopenmp", "-Wall", "-Wextra", "-Werror")
    source = WORKLOADS / f"{name}.c"
    link = (str(library(directory)),) if name in ("span_tree", "span_threads") else ()
    subprocess.run(["gcc", *flags, str(source), *link, "-o", str(output)], check=True, timeout=120)
    return output


def variables(directory: Path, records: Path, threads: int, clock: str = "test") -> dict[str, str]:
    """The environment of a run with so many threads."""
    ours = environment(os.fspath(library(directory)), os.fspath(records), threads)
    return {**os.environ, **ours, "PARPROF_SPAN_CLOCK": clock}


def run(
    directory: Path, threads: int, name: str, *arguments: str, clock: str = "test", code: int = 0
) -> Record:
    """The record of one run; every run has a directory for its records alone."""
    records = directory / f"records-{os.urandom(6).hex()}"
    records.mkdir()
    command = [os.fspath(program(name, directory)), *arguments]
    done = subprocess.run(
        command, env=variables(directory, records, threads, clock), capture_output=True, timeout=120
    )
    assert done.returncode == code, done.stderr.decode()
    (found,) = records.glob("*.span")
    record = read_record(os.fspath(found))
    found.unlink()
    records.rmdir()
    return record


def speedup(record: Record) -> float:
    return record.work_s / record.bound_s


def sites(record: Record, kind: Kind) -> list[SiteRecord]:
    return [site for site in record.sites if site.kind == kind]
