"""Reads the record files of libparprof_span (instrument/span_record.h). A target wrote them: they are hostile."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from enum import IntEnum, IntFlag

from parprof.errors import ProfileFormatError
from parprof.untrusted import open_regular, visible
from parprof.values import dataclass

MAGIC = 0x314E415053505250
VERSION = 5
MAX_SITES = 4096
MAX_MODULES = 256
MAX_CALLS = 4096
MAX_CHAINS = 256
_CHAIN_CALLS = 16
_CHAIN_BASE = 1024
_AMOUNTS = 9
_UNKNOWN = 0xFFFFFFFF

HEADER = struct.Struct("<QIIQIIIIIIQQQQQQQII256s")
SITE = struct.Struct("<IIIIQQQQQQQQQQQQ")
MODULE = struct.Struct("<II24s480s")
CALL = struct.Struct(f"<IIIIQQQ{2 * _AMOUNTS}Q")
CHAIN = struct.Struct(f"<II{_CHAIN_CALLS}I{_CHAIN_CALLS}Q")
_CHAINS_AT = HEADER.size + MAX_SITES * SITE.size + MAX_MODULES * MODULE.size + MAX_CALLS * CALL.size
SIZE = _CHAINS_AT + MAX_CHAINS * CHAIN.size


class SiteKind(IntEnum):
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
    MASKED = 15
    DOACROSS = 16


class Flag(IntFlag):
    """What is to be known of a process; `span_flag` of the C header."""

    CLOSED = 1
    INSIDE = 2
    NO_RSEQ = 4
    FORKED = 8
    WAITS_LOST = 16
    FOREIGN = 32
    DETACHED = 64
    FAKE_CLOCK = 128
    FULL = 256
    CALLS = 1024
    CALLS_FULL = 2048
    TASKLOOP_ALONE = 4096
    OFFLOADED = 8192
    DEALT_OUT = 16384
    ELSEWHERE = 32768
    """The reader's: most of the run's CPU time was in other processes."""
    REPLACED = 65536
    """It went on as another program, which has a record of its own."""
    FUTEX_LOCKS = 131072
    """Locks that are known by the kernel's futex alone: not all of the times for which they were held."""
    TBB = 262144
    """The reader's: oneTBB made threads."""


@dataclass(frozen=True, slots=True)
class Address:
    """A place in code: an ELF virtual address in a file, or, without one, an address of the process."""

    module: str
    build_id: str
    vaddr: int
    callers: tuple[Address, ...] = ()
    """The calls around this one, where a library may have made it for the program."""

    @property
    def chain(self) -> tuple[Address, ...]:
        """The call itself, then those around it."""
        return (self, *self.callers)


@dataclass(frozen=True, slots=True)
class SiteRecord:
    """One site's amounts, in seconds."""

    index: int
    kind: SiteKind
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
    chained_s: float = 0.0
    """Of ``uneven_s``: what threads of POSIX, that waited for each other, did beyond what any one of them did."""
    at_once: int = 0
    """The most threads that there were in a phase that it is in; 0: not known."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Calls of a call site, with what they called (schardl-2015 sec. 6: a measurement)."""

    count: int
    work_s: float
    span_s: float

    @property
    def parallelism(self) -> float:
        """Work by span; 0 where nothing was measured."""
        return self.work_s / self.span_s if self.span_s else 0.0


@dataclass(frozen=True, slots=True)
class CallSums:
    """A call site in one of the two profiles: of all calls (on work), or of those on the critical path (on span)."""

    count: int
    top_call_site: Measure
    """Of calls that have no other call of the same site above them."""
    top_caller: Measure
    """Of calls that have no other call by the same function above them."""
    local_work_s: float
    """Without what the called function called."""
    local_span_s: float
    """0 in the profile on work."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call site, of a program that is built with hooks in its functions."""

    index: int
    address: Address
    """That the call returns to; ``vaddr`` is 0 for the code that no hooked function is around."""
    callee: Address
    caller: Address
    on_work: CallSums
    on_span: CallSums


@dataclass(frozen=True, slots=True)
class SpanRecord:
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
    calls: tuple[CallRecord, ...] = ()
    scheduled_s: float = 0.0
    """As ``bound_s``, of regions alone, where no phase takes less than its busiest thread was on a CPU."""

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


def read_record(path: str) -> SpanRecord:
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


def parse_record(data: bytes) -> SpanRecord:
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
    regions, tasks, _, cpu_ns, elapsed_ns, scheduled, call_count, _, command = header[11:]
    if magic != MAGIC or version != VERSION or size != SIZE:
        raise ProfileFormatError("no record of this version of parprof, or of a target that had yet to begin")
    if not 0 < per_second < 1 << 48:
        raise ProfileFormatError(f"a record whose clock makes {per_second} cycles a second")
    if site_count > MAX_SITES or module_count > MAX_MODULES or call_count > MAX_CALLS:
        raise ProfileFormatError(
            f"a record of {site_count} sites and {call_count} call sites in {module_count} files"
        )
    modules = _modules(data, module_count)
    return SpanRecord(
        pid=pid,
        command=visible(command.partition(b"\0")[0]),
        flags=Flag(flags & (2 * max(Flag) - 1)),
        threads=threads,
        widest_team=widest,
        regions=regions,
        tasks=tasks,
        cpu_s=cpu_ns / 1e9,
        elapsed_s=elapsed_ns / 1e9,
        scheduled_s=scheduled / per_second,
        is_torn=generation % 2 == 1,
        sites=_sites(data, site_count, modules, per_second),
        calls=_calls(data, call_count, modules, per_second),
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


def _chains(data: bytes, modules: list[tuple[str, str]]) -> dict[int, Address]:
    """By number: a call with those around it."""
    found = {}
    for index in range(MAX_CHAINS):
        ready, count, *rest = CHAIN.unpack_from(data, _CHAINS_AT + index * CHAIN.size)
        if not ready or not 0 < count <= _CHAIN_CALLS:
            continue
        places = zip(rest[:count], rest[_CHAIN_CALLS : _CHAIN_CALLS + count], strict=True)
        first, *others = (_address(modules, module, vaddr) for module, vaddr in places)
        found[_CHAIN_BASE + index] = replace(first, callers=tuple(others))
    return found


def _address(modules: list[tuple[str, str]], module: int, vaddr: int) -> Address:
    path, build_id = modules[module] if module < len(modules) else ("", "")
    return Address(path, build_id, vaddr)


def _calls(
    data: bytes, count: int, modules: list[tuple[str, str]], per_second: int
) -> tuple[CallRecord, ...]:
    found = []
    for index in range(count):
        ready, module, callee_module, caller_module, vaddr, callee, caller, *amounts = CALL.unpack_from(
            data, _modules_at() + MAX_MODULES * MODULE.size + index * CALL.size
        )
        if not ready or not any(amounts):
            continue
        found.append(
            CallRecord(
                index,
                _address(modules, module, vaddr),
                _address(modules, callee_module, callee),
                _address(modules, caller_module, caller),
                _call_profile(amounts[:_AMOUNTS], per_second),
                _call_profile(amounts[_AMOUNTS:], per_second),
            )
        )
    return tuple(found)


def _call_profile(amounts: list[int], per_second: int) -> CallSums:
    """From amounts in the order of ``enum call_amount``."""
    (
        count,
        local_work,
        local_span,
        site_count,
        site_work,
        site_span,
        caller_count,
        caller_work,
        caller_span,
    ) = amounts
    return CallSums(
        count,
        Measure(site_count, site_work / per_second, site_span / per_second),
        Measure(caller_count, caller_work / per_second, caller_span / per_second),
        local_work / per_second,
        local_span / per_second,
    )


def _sites(
    data: bytes, count: int, modules: list[tuple[str, str]], per_second: int
) -> tuple[SiteRecord, ...]:
    found = []
    chains = _chains(data, modules)

    def place(module: int, vaddr: int) -> Address:
        is_chain = module == _UNKNOWN and vaddr in chains
        return chains[vaddr] if is_chain else _address(modules, module, vaddr)

    for index in range(count):
        (kind, module, origin_module, ready, vaddr, origin, *amounts) = SITE.unpack_from(
            data, HEADER.size + index * SITE.size
        )
        if not ready or not any(amounts) or kind not in SiteKind.__members__.values():
            continue
        work, calls, span, span_calls, bound, uneven, critical, hold, chained, at_once = amounts
        found.append(
            SiteRecord(
                index,
                SiteKind(kind),
                place(module, vaddr),
                place(origin_module, origin),
                work / per_second,
                calls,
                span / per_second,
                span_calls,
                bound / per_second,
                uneven / per_second,
                critical / per_second,
                hold / per_second,
                chained / per_second,
                at_once,
            )
        )
    return tuple(found)
