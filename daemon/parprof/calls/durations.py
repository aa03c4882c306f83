"""Times and numbers of calls, for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(4e-8), duration(4e-7), duration(0.0123), duration(2.5)
    ('40 ns', '0.4 us', '12 ms', '2.5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-7), ("ns", 0.0)):
        if seconds >= size:
            value = seconds * {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
            return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    raise AssertionError


def so_many_calls(number: int, verb: str = "") -> str:
    """So many calls, and what they are or were.

    >>> so_many_calls(1), so_many_calls(2000, "are"), so_many_calls(1, "were")
    ('1 call', '2,000 calls are', '1 call was')
    """
    if number == 1:
        verb = {"are": "is", "were": "was"}.get(verb, verb)
    return " ".join(filter(None, (f"{number:,} call{'s' * (number != 1)}", verb)))
