"""Text and files of unknown origin: made visible, opened without side effects."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import IO

from parprof.patterns import regex

_CHUNK = 1 << 20

_UNPRINTABLE = regex(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls, also those of bidirectional text, and surrogates."""


def visible(text: str | bytes, limit: int = 4096) -> str:
    r"""Text of a target on one line: controls and undecodable bytes spelled out, clipped to about ``limit``.

    >>> visible(b"a\nb\xff")
    'a\\x0ab\\xff'
    """
    if isinstance(text, bytes):
        text = text[: limit + 1].decode("utf-8", "backslashreplace")
    if len(text) > limit:
        text = text[:limit] + "..."
    if text.isascii() and text.isprintable():
        return text
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates
    return _UNPRINTABLE.sub(lambda m: f"\\x{ord(m[0]):02x}" if m[0] < "\x80" else f"\\u{ord(m[0]):04x}", text)


def printable(text: str) -> str:
    r"""Text of a target, harmless for a terminal and an encoder: each such character is replaced by one.

    For columns, where `visible` would take more room than there is.

    >>> printable("a\nb") == "a\ufffdb"
    True
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def open_regular(path: str | bytes) -> int:
    """A descriptor to read a regular file; nothing else is opened, so no device or pipe notices.

    Raises:
        OSError: it cannot be opened, or it is no regular file.
    """
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{visible(path)} is not a regular file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{handle}", flags)
    finally:
        os.close(handle)


def chunks(file: IO[bytes], limit: int) -> Iterator[bytes]:
    """The content of a file, at most ``limit`` bytes: ``read(limit)`` would first take memory for all of these."""
    while limit > 0 and (chunk := file.read(min(limit, _CHUNK))):
        yield chunk
        limit -= len(chunk)
