"""What a program is told of the probe that it runs at: flags in its cookie, ``COOKIE_*`` of bpf/wire.h."""

from __future__ import annotations

COOKIE_RETURN, COOKIE_SESSION, COOKIE_LEARN, COOKIE_DEAR = 1 << 8, 1 << 9, 1 << 10, 1 << 11
COOKIE_ENTRY, COOKIE_BARRIER = 1 << 15, 1 << 19
