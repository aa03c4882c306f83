"""What ``/proc/PID/status``, and that of a thread, tells."""

from __future__ import annotations

import re

from parprof.patterns import regex

_INSIDE = regex(r"^NSpid:.*?(\d+)$", re.MULTILINE)


def number_inside(status: str) -> int | None:
    """The process's number, or the thread's, in its own PID namespace; None before Linux 4.1.

    >>> number_inside("Pid:\\t812\\nNSpid:\\t812\\t7\\n"), number_inside("Pid:\\t812\\n")
    (7, None)
    """
    found = _INSIDE.search(status)
    return int(found[1]) if found else None
