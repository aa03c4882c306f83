"""How many files we may have open: links of probes and processes take many, and programs' defaults are low."""

from __future__ import annotations

import resource
from contextlib import suppress

_MOST = 1 << 16
_before: tuple[int, int] | None = None


def allow_many() -> None:
    """Raise our limit as far as is sensible and permitted. What we start is to have the old one: `as_before`."""
    global _before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            _before = _before or (soft, hard)


def as_before() -> None:
    """Undo it: select(2) in many programs cannot cope with high numbers."""
    if _before is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, _before)
