"""Reads the record files of libparprof_span (instrument/span_record.h). A target wrote them: they are hostile."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from parprof.errors import ProfileFormatError
from parprof.untrusted import open_regular, visible

MAGIC = 0x314E415053505250
VERSION = 1
MAX_SITES = 4096
MAX_MODULES = 256
_UNKNOWN = 0xFFFFFFFF

HEADER = struct.Struct("<QIIQIIIIIIQQQQQQ256s")
SITE = struct.Struct("<IIIIQQQQQQQQQQ")
MODULE = struct.Struct("<II24s480s")
SIZE = HEADER.size + MAX_SITES * SITE.size + MAX_MODULES * MODULE.size


class Kind(IntEnum):
    """What a site is; `SpanKind` of the C header."""

    NONE = 0
    PENDING = 1
    OTHER = 2
    SERIAL = 3
    REGION = 4
    PHASE = 5
    LOOP = 6
    SECTIONS = 7
    SINGLE = 8
    TASK = 9
    TASKLOOP = 10
    CRITICAL = 11
    ORDERED = 12
    LOCK = 13
    THREAD = 14


class Flag(IntFlag):
    """What is to be known of a process; `span_flag` of the C header."""

    CLOSED = 1
    INSIDE = 2
    NO_RSEQ = 4
    FORKED = 8
    DOACROSS = 16
    FOREIGN = 32
    DETACHED = 64
    FAKE_CLOCK = 128
    FULL = 256
    LLVM = 512


@dataclass(frozen=True, slots=True)
class Address:
    """A place in code: an ELF virtual address in a file, or, without one, an address of the process."""

    module: str
    build_id: str
    vaddr: int


@dataclass(frozen=True, slots=True)
class SiteRecord:
    """One site's amounts, in seconds."""

    index: int
    kind: Kind
    address: Address
    origin: Address
    work_s: float
    count: int
    span_s: float
    span_count: int
    bound_s: float
    """As ``span_s``, where a phase takes at least its work divided by its threads, and any lock's hold time."""
    uneven_s: float
    critical_s: float
    hold_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """What one process left."""

    pid: int
    command: str
    flags: Flag
    threads: int
    """Asked for."""
    widest_team: int
    regions: int
    tasks: int
    cpu_s: float
    elapsed_s: float
    is_torn: bool
    """The process was killed while it changed its totals: they may be off by one phase."""
    sites: tuple[SiteRecord, ...]

    @property
    def work_s(self) -> float:
        """T_1: the sum of the local work of all sites."""
        return sum(site.work_s for site in self.sites)

    @property
    def span_s(self) -> float:
        """T_inf: the sum of the local span on span of all sites (schardl-2015 sec. 6)."""
        return sum(site.span_s for site in self.sites)

    @property
    def bound_s(self) -> float:
        """The least time that the program takes with its threads."""
        return sum(site.bound_s for site in self.sites)


def read_record(path: str) -> Record:
    """The record in a file.

    Raises:
        ProfileFormatError: it is none.
        OSError: it cannot be read.
    """
    descriptor = open_regular(path)
    try:
        data = os.pread(descriptor, SIZE + 1, 0)
    finally:
        os.close(descriptor)
    return parse_record(data)


def parse_record(data: bytes) -> Record:
    """The record in these bytes.

    Raises:
        ProfileFormatError: it is none.
    """
    if len(data) != SIZE:
        raise ProfileFormatError(
            f"a record of {len(data)} bytes, not {SIZE}: it was cut off, or is none of ours"
        )
    header = HEADER.unpack_from(data)
    magic, version, size, generation, flags, pid, site_count, module_count, threads, widest, per_second = (
        header[:11]
    )
    regions, tasks, _, cpu_ns, elapsed_ns, command = header[11:]
    if magic != MAGIC or version != VERSION or size != SIZE:
        raise ProfileFormatError("no record of this version of parprof, or of a target that had yet to begin")
    if not 0 < per_second < 1 << 48:
        raise ProfileFormatError(f"a record whose clock makes {per_second} cycles a second")
    if site_count > MAX_SITES or module_count > MAX_MODULES:
        raise ProfileFormatError(f"a record of {site_count} sites in {module_count} files")
    modules = _modules(data, module_count)
    return Record(
        pid=pid,
        command=visible(command.partition(b"\0")[0]),
        flags=Flag(flags & 0x3FF),
        threads=threads,
        widest_team=widest,
        regions=regions,
        tasks=tasks,
        cpu_s=cpu_ns / 1e9,
        elapsed_s=elapsed_ns / 1e9,
        is_torn=generation % 2 == 1,
        sites=_sites(data, site_count, modules, per_second),
    )


def _modules(data: bytes, count: int) -> list[tuple[str, str]]:
    found = []
    for index in range(count):
        ready, length, build_id, path = MODULE.unpack_from(data, _modules_at() + index * MODULE.size)
        known = os.fsdecode(path.partition(b"\0")[0]) if ready else ""
        found.append((known, build_id[: min(length, len(build_id))].hex()))
    return found


def _modules_at() -> int:
    return HEADER.size + MAX_SITES * SITE.size


def _sites(
    data: bytes, count: int, modules: list[tuple[str, str]], per_second: int
) -> tuple[SiteRecord, ...]:
    def address(module: int, vaddr: int) -> Address:
        path, build_id = modules[module] if module < len(modules) else ("", "")
        return Address(path, build_id, vaddr)

    found = []
    for index in range(count):
        (kind, module, origin_module, ready, vaddr, origin, *amounts) = SITE.unpack_from(
            data, HEADER.size + index * SITE.size
        )
        if not ready or not any(amounts) or kind not in Kind.__members__.values():
            continue
        work, calls, span, span_calls, bound, uneven, critical, hold = amounts
        found.append(
            SiteRecord(
                index,
                Kind(kind),
                address(module, vaddr),
                address(origin_module, origin),
                work / per_second,
                calls,
                span / per_second,
                span_calls,
                bound / per_second,
                uneven / per_second,
                critical / per_second,
                hold / per_second,
            )  # fmt: skip
        )
    return tuple(found)
