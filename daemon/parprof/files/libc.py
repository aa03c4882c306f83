"""What the files of the C library are called: glibc's, whose threads were a library of their own before 2.34, and
musl's, where one file is the C library, its threads and the loader.

All names are base names, as a load map or a frame's module has them.
"""

from __future__ import annotations

from parprof.patterns import regex

_LIBC = regex(r"libc[.-]|libpthread[.-]|ld-musl")
"""``libc.so.6``, ``libc-2.31.so``, ``libpthread.so.0``; ``ld-musl-x86_64.so.1``, ``libc.musl-x86_64.so.1``."""
_MUSL = regex(r"ld-musl|libc\.so\Z")
"""``ld-musl-x86_64.so.1``, which in Debian is another name of ``libc.so``."""
_LOADER = regex(rf"ld-linux|ld-\d|ld\.so|{_MUSL.pattern}")
"""``ld-linux-x86-64.so.2``, ``ld-2.31.so``; and musl's."""
_BESIDE = regex(r"librt[.-]|linux-vdso|\[vdso\]")
_MATHEMATICS = regex(r"libm[.-]")


def is_libc(name: str) -> bool:
    """Whether threads are created, synchronized and put to sleep by functions of this file."""
    return bool(_LIBC.match(name))


def is_loader(name: str) -> bool:
    """Whether this is the dynamic loader, which runs before the program and tells debuggers of new libraries."""
    return bool(_LOADER.match(name))


def tells_once(name: str) -> bool:
    """Whether this loader tells debuggers of the libraries that a program starts with once, when they are mapped:
    glibc's does so before that, too."""
    return bool(_MUSL.match(name))


def is_start_up(name: str) -> bool:
    """Whether the outermost frames of a thread, below its own function, are in this file."""
    return is_libc(name) or is_loader(name)


def is_of_c_library(name: str) -> bool:
    """Whether a file is the C library, or goes with it: the loader, timers (librt), the kernel's vDSO."""
    return is_start_up(name) or bool(_BESIDE.match(name))


def is_of_c_or_mathematics(name: str) -> bool:
    """Whether a file comes with the C library, ``libm`` too: what programs and interpreters use for themselves."""
    return is_of_c_library(name) or bool(_MATHEMATICS.match(name))
