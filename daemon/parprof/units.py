"""What metrics and events are counted in, and how that is written in files and for people."""

from __future__ import annotations

from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """What values are counted in, and what readers see of that."""

    name: str
    """In pprof files."""
    suffix: str = ""
    """Of names in Python: ``work_ns``."""
    shown: str = ""
    """For people, and as a suffix in JSON: ``work_s``."""
    word: str = ""
    """In names of Prometheus: ``parprof_work_seconds_total``."""
    scale: float = 1
    """How many of them make one of those that readers see."""
    digits: int = 0
    """After the point, for people."""

    def amount(self, value: float) -> float:
        """The value for readers: nanoseconds become seconds; whole numbers stay such."""
        return value if self.scale == 1 else value / self.scale

    def text(self, value: float) -> str:
        """The value for people: ``1.50 s``, ``12,345``."""
        number = f"{self.amount(value):,.{self.digits}f}"
        return f"{number} {self.shown}" if self.shown else number


NANOSECONDS = Unit("nanoseconds", "ns", "s", "seconds", 1e9, 2)
COUNT = Unit("count")
BYTES = Unit("bytes", "bytes", "bytes", "bytes")


def event_unit(name: str) -> Unit:
    """What an event's count is a number of.

    >>> event_unit("read-bytes").name, event_unit("page-faults").name
    ('bytes', 'count')
    """
    return BYTES if name.endswith("-bytes") else COUNT


def brief_bytes(value: int) -> str:
    """A number of bytes where there is little room.

    >>> brief_bytes(0), brief_bytes(1000), brief_bytes(142_999_552)
    ('0', '1,000', '136.4 MiB')
    """
    if value < 1 << 13:
        return f"{value:,}"
    unit = min((value.bit_length() - 1) // 10, 5)
    return f"{value / (1 << 10 * unit):,.1f} {' KMGTP'[unit]}iB"
