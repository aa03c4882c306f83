"""Perf events: names, the clock event and its fallback, one event per CPU.

The *clock* event drives work and idleness: each of its samples stands for 1/frequency seconds. Further
events are counted beside it under their own names.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from parprof.errors import KernelUnsupported, UsageError
from parprof.kernel import amounts, bpf
from parprof.kernel.amounts import AMOUNTS, Amount
from parprof.kernel.cpus import online_cpus
from parprof.kernel.refusals import perf_not_permitted
from parprof.values import dataclass

_HARDWARE, _SOFTWARE, _CACHE, _RAW = 0, 1, 3, 4
_L1D, _LL, _DTLB = 0, 2, 3
_READ_MISS = 1 << 16
EVENTS: dict[str, tuple[int, int]] = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "cache-references": (_HARDWARE, 2),
    "cache-misses": (_HARDWARE, 3),
    "branches": (_HARDWARE, 4),
    "branch-misses": (_HARDWARE, 5),
    "stalled-cycles-frontend": (_HARDWARE, 7),
    "stalled-cycles-backend": (_HARDWARE, 8),
    "ref-cycles": (_HARDWARE, 9),
    "L1-dcache-load-misses": (_CACHE, _L1D | _READ_MISS),
    "LLC-load-misses": (_CACHE, _LL | _READ_MISS),
    "dTLB-load-misses": (_CACHE, _DTLB | _READ_MISS),
    "cpu-clock": (_SOFTWARE, 0),
    "page-faults": (_SOFTWARE, 2),
    "context-switches": (_SOFTWARE, 3),
    "cpu-migrations": (_SOFTWARE, 4),
    "minor-faults": (_SOFTWARE, 5),
    "major-faults": (_SOFTWARE, 6),
}
_PERIODS = {
    "page-faults": 32,
    "minor-faults": 32,
    "context-switches": 7,
    "major-faults": 1,
    "cpu-migrations": 1,
}
"""Events of the kernel come in bursts, which a frequency would estimate by a factor of ten: each such number of
them is a sample. Switches are counted for all that a CPU runs, and two programs often take turns: by an even number
all samples would be of one of them."""
_NO_INTERRUPT = 0x100
"""SAMPLE_NO_INTERRUPT of bpf/wire.h."""
CLOCKS = ("cycles", "ref-cycles", "cpu-clock")
_FLAG_DISABLED, _FLAG_EXCLUDE_IDLE, _FLAG_FREQUENCY = 1 << 0, 1 << 7, 1 << 10
_ATTRIBUTE_SIZE = 136
_TOTAL_TIME_ENABLED = 1
"""Reading an event gives two words: its count, and for how long it was enabled, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Which events to sample: ``names[0]`` is the clock; ``notes`` say what was replaced and why.

    ``amounts``: those by amount, whose names come last among the names.
    """

    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    amounts: tuple[Amount, ...] = ()


def encode(name: str) -> tuple[int, int]:
    """(perf type, config) of an event name; ``rNNNN`` is a raw hexadecimal code.

    Raises:
        UsageError: the name is unknown; the text lists those that are known.
    """
    if name in EVENTS:
        return EVENTS[name]
    if name[:1] == "r" and len(name) > 1:
        with suppress(ValueError):
            return _RAW, int(name[1:], 16)
    raise UsageError(
        f"unknown event {name!r}; known: {', '.join((*EVENTS, *AMOUNTS))}, and raw codes such as r01c2"
    )


def _attributes(kind: int, config: int, frequency_hz: int, flags: int) -> bytes:
    head = struct.pack("<IIQQQQQ", kind, _ATTRIBUTE_SIZE, config, frequency_hz, 0, _TOTAL_TIME_ENABLED, flags)
    return head.ljust(_ATTRIBUTE_SIZE, b"\0")


def maximum_rate_hz() -> int:
    """The kernel's limit on sampling rates."""
    try:
        return int(Path("/proc/sys/kernel/perf_event_max_sample_rate").read_text())
    except (OSError, ValueError):
        return 1_000_000


def cookie_of(name: str, index: int) -> int:
    """What the sampler is told of an event: ``index`` among them, and whether a sample of it takes no interrupt."""
    return index | (_NO_INTERRUPT if name in _PERIODS else 0)


def open_on_cpu(name: str, frequency_hz: int, cpu: int) -> int:
    """Open one event for all processes on one CPU; inherited by nothing."""
    kind, config = encode(name)
    period = _PERIODS.get(name)
    flags = _FLAG_EXCLUDE_IDLE | (0 if period else _FLAG_FREQUENCY)
    return bpf.perf_event_open(_attributes(kind, config, period or frequency_hz, flags), -1, cpu)


def open_on_self(name: str, frequency_hz: int) -> int:
    """Open one event for the calling thread."""
    kind, config = encode(name)
    return bpf.perf_event_open(_attributes(kind, config, frequency_hz, _FLAG_FREQUENCY), 0, -1)


def is_available(name: str) -> OSError | None:
    """None when this machine can count the event, else the kernel's refusal."""
    try:
        os.close(open_on_cpu(name, 99, online_cpus()[0]))
    except OSError as error:
        return error
    return None


def parted(requested: Sequence[str]) -> tuple[list[str], tuple[Amount, ...]]:
    """Those of some events that perf counts, and those that are sampled by amount.

    Raises:
        UsageError: they are no events, of any machine, or cannot be sampled together.
    """
    by_amount = tuple(dict.fromkeys(filter(None, map(amounts.parse, requested))))
    if len({one.name for one in by_amount}) < len(by_amount):
        raise UsageError(f"-e {by_amount[0].name} is given with two sizes: give one")
    perf = [name for name in requested if amounts.parse(name) is None]
    for name in perf:
        encode(name)
    clocks = [name for name in perf if name in CLOCKS]
    if len(clocks) > 1:
        raise UsageError(f"only one of {', '.join(clocks)} can be the clock")
    return perf, by_amount


def choose(requested: list[str]) -> EventChoice:
    """Pick the clock and the further events.

    Without a request the clock is ``cycles`` where the machine has a PMU, else ``cpu-clock``. A requested
    clock that the machine lacks is replaced by ``cpu-clock``, with a note.

    Raises:
        UsageError: an unknown event.
        PrivilegeError: not allowed to open perf events.
        KernelUnsupported: a further event that this machine cannot count.
    """
    perf, by_amount = parted(requested)
    clock = next((name for name in perf if name in CLOCKS), "cycles")
    notes: list[str] = []
    refusal = is_available(clock)
    if refusal is not None and refusal.errno in (errno.EACCES, errno.EPERM):
        raise perf_not_permitted()
    if refusal is not None and clock != "cpu-clock":
        notes.append(f"no hardware counter for {clock} on this machine: sampled cpu-clock instead")
        clock = "cpu-clock"
        refusal = is_available(clock)
    if refusal is not None:
        raise KernelUnsupported(f"perf event {clock}: {refusal.strerror}")
    others = [name for name in dict.fromkeys(perf) if name not in CLOCKS]
    for name in others:
        refusal = is_available(name)
        if refusal is not None:
            raise KernelUnsupported(
                f"this machine cannot count {name} ({refusal.strerror}); `parprof check` lists what it can"
            )
    names = (clock, *others, *(one.name for one in by_amount))
    return EventChoice(names, tuple(notes), by_amount)
