"""Debug information in the compact form of PyPI ``symbolic``, built from a file or read back from disk.

A cache file is symbolic's own SymCache, then a trailer: what version made it, and a checksum. Whatever of it
does not fit is built again. For the child process only: this loads a large library.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

MAX_FILE = 256 << 20
"""Bytes of a cache file; what is larger is built each time."""
_MAGIC = b"parprof1"
_TRAILER = struct.Struct("<8s32sQII")
_ALIGN = 16


def preload() -> bool:
    """Load all that is needed, while its files may still be read; whether symbolic is there."""
    try:
        _buffer(b"")
        _version()
    except ImportError:
        return False
    return True


@cache
def _version() -> bytes:
    symbolic = import_module("symbolic")
    return f"{_installed(Path(str(symbolic.__file__)))} {symbolic.SYMCACHE_LATEST_VERSION}".encode()[:32]


def _installed(init: Path) -> str:
    """The version of an installed package, by the name of the folder that describes it.

    `importlib.metadata` says the same after an import of 18 ms, which each of these processes would pay.
    """
    package = init.parent
    for folder in package.parent.glob(f"{package.name}-*.dist-info"):
        return folder.name.removeprefix(f"{package.name}-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version(package.name)


def _mapped(fd: int) -> mmap.mmap:
    return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)


def _buffer(data: Any) -> Any:
    """Mapped memory as an argument for symbolic, without a copy.

    With symbolic's own interface: that of the package cffi brings a parser of C, which takes 45 ms to load.
    """
    return import_module("symbolic._lowlevel").ffi.from_buffer(data)


def build(fd: int) -> Any:
    """The SymCache of an ELF file; None if it has no debug information.

    Raises:
        Exception: whatever symbolic makes of damaged input.
    """
    data = _buffer(_mapped(fd))  # must outlive the archive, which does not hold it
    archive = import_module("symbolic").Archive.from_bytes(data)
    found = next(archive.iter_objects())
    return found.make_symcache() if "debug" in found.features else None


def load(fd: int) -> Any:
    """The SymCache in a cache file; None if that is damaged or of another version."""
    try:
        mapped = _mapped(fd)
        if not _TRAILER.size < len(mapped) <= MAX_FILE:
            return None
        magic, made_by, length, checksum, _ = _TRAILER.unpack_from(mapped, len(mapped) - _TRAILER.size)
        if magic != _MAGIC or made_by.rstrip(b"\0") != _version() or length > len(mapped) - _TRAILER.size:
            return None
        content = memoryview(mapped)[:length]
        if zlib.crc32(content) != checksum:
            return None
        loaded = import_module("symbolic").SymCache.from_bytes(_buffer(content))
        return loaded if loaded.is_latest_version else None
    except Exception:  # whatever it is, it is no cache
        return None


def save(symcache: Any, fd: int) -> bool:
    """Write a cache file; whether that was possible. The descriptor is closed."""
    with open(fd, "wb", buffering=0) as file:
        stream = symcache.open_stream()
        length = checksum = 0
        while content := stream.read(1 << 20):
            length += len(content)
            if length > MAX_FILE - 2 * _TRAILER.size or file.write(content) != len(content):
                return False
            checksum = zlib.crc32(content, checksum)
        padding = bytes(-length % _ALIGN)
        end = padding + _TRAILER.pack(_MAGIC, _version(), length, checksum, 0)
        return length > 0 and file.write(end) == len(end)
