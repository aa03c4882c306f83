"""When to look at context switches again that others on the machine made too many of to be followed.

The programs then follow them no more, for every program pays for it (`spare_bystanders` in bpf/budget.bpf.c). Glimpses
are what a process asks for that has used CPU time to pay for them; but here it is not its own switches that were too
dear, and a storm of others' may last for a tenth of a second only. So they are looked at again after a rest, which is
twice as long each time.
"""

from __future__ import annotations

import math

_FIRST_REST_S = 0.5
_LONGEST_REST_S = 16.0
"""In a storm that lasts one look takes a fifth of a second: not much beside that."""


class Storms:
    """Of one session. Times are CLOCK_MONOTONIC, in seconds."""

    def __init__(self) -> None:
        """There was none."""
        self._rest_s = _FIRST_REST_S
        self._due_s = math.inf

    def note(self, now_s: float) -> None:
        """Switches of others are too many.

        >>> storms = Storms()
        >>> storms.note(1.0)
        >>> storms.is_over(1.4), storms.is_over(1.6), storms.is_over(9.0)
        (False, True, False)
        """
        self._due_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)

    def is_over(self, now_s: float) -> bool:
        """Whether it is time to see if it is over; once for each that was noted."""
        if now_s < self._due_s:
            return False
        self._due_s = math.inf
        return True
