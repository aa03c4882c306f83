"""How long to wait before a request is sent again."""

from __future__ import annotations

import random
import time
from email.utils import parsedate_to_datetime

FIRST_S = 1.0
LONGEST_S = 300.0
MAX_RETRY_AFTER_S = 3600.0
"""No server can make us wait longer than this."""


def backoff_s(failures: int, generator: random.Random) -> float:
    """Seconds to wait after the ``failures``-th failure in a row: doubled each time, the upper half random.

    So that the daemons of a fleet, which fail together, do not come back together.
    """
    longest = min(FIRST_S * 2.0 ** min(failures - 1, 30), LONGEST_S)
    return longest / 2 + generator.uniform(0.0, longest / 2)


def retry_after_s(text: str, now_s: float | None = None) -> float:
    """The seconds that a Retry-After header asks for; 0 if it makes no sense. ``now_s``: CLOCK_REALTIME.

    >>> retry_after_s("120")
    120.0
    >>> retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT", now_s=40.0)
    60.0
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    try:
        asked_s = parsedate_to_datetime(text[:64]).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(asked_s - (time.time() if now_s is None else now_s), 0.0), MAX_RETRY_AFTER_S)
