"""Events by amount: a sample for each so many bytes that processes read, write or allocate; the exact total beside.

What they are called and how they are asked for; the kernel's side of them is `parprof.kernel.amount_events`. Perf
events are sampled in the same session, and all end up as rows of the same kind (`parprof.model.SampleKey`).
"""

from __future__ import annotations

import re

from parprof.errors import UsageError
from parprof.patterns import regex
from parprof.values import dataclass

READ, WRITTEN, ALLOCATED = 0, 1, 2
MALLOC = "malloc-bytes"
AMOUNTS = {"read-bytes": READ, "write-bytes": WRITTEN, MALLOC: ALLOCATED}
"""``enum amount_kind`` of bpf/amounts.h, by the names of events."""
DEFAULT_BYTES = 512 << 10
MOST_BYTES = 1 << 30
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}
_SIZE = regex(r"(\d{1,10})(?:([kmg])(?:i?b)?|b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Amount:
    """An event by amount that is asked for."""

    name: str
    bytes: int = DEFAULT_BYTES
    """For each of which there is a sample."""


def parse(text: str) -> Amount | None:
    """What an event's text asks for; None if it is no event by amount.

    Raises:
        UsageError: the size is none.

    >>> parse("read-bytes"), parse("write-bytes=64KiB"), parse("cycles")
    (Amount(name='read-bytes', bytes=524288), Amount(name='write-bytes', bytes=65536), None)
    """
    name, equals, size = text.partition("=")
    if name not in AMOUNTS:
        return None
    if not equals:
        return Amount(name)
    found = _SIZE.fullmatch(size)
    amount = int(found[1]) << _UNITS[(found[2] or "").lower()] if found else 0
    if not 1 <= amount <= MOST_BYTES:
        raise UsageError(f"-e {text}: give a size from 1 to 1GiB after the =, such as {name}=512KiB")
    return Amount(name, amount)


AMOUNT_STATISTICS = "total", "times", "left_out"
"""What is counted of each: all bytes, how often there were some, and those of samples that were left out."""


def statistic(name: str, what: str) -> str:
    """Under which key the programs' statistics have something of an event.

    >>> statistic("read-bytes", "total")
    'read_bytes_total'
    """
    return f"{name.replace('-', '_')}_{what}"
