"""Names as their authors wrote them: demangled C++, without what compilers append to copies of functions."""

from __future__ import annotations

import ctypes
import re
from functools import cache, lru_cache
from typing import Any

MAX_NAME = 4096
_MAX_MANGLED = 1 << 13
_CLONE = re.compile(r"\.(?:constprop|isra|part|cold|lto_priv|llvm)(?:\.\d+)*(?=\.|\Z)")
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}\Z")
_SPECIAL = re.compile(r"(?:[\w-]+ ){1,3}(?:to|for) ")  # thunks and the like
_ANONYMOUS = "(anonymous namespace)"


def without_clone_suffixes(name: str) -> str:
    """The function that a compiler's copy or part was made from; outlined bodies are functions of their own.

    >>> without_clone_suffixes("solve.constprop.0.isra.0"), without_clone_suffixes("main._omp_fn.0.cold")
    ('solve', 'main._omp_fn.0')
    """
    return _CLONE.sub("", name) or name if "." in name else name


@cache
def _libraries() -> tuple[Any, Any] | None:
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.restype = None
    free.argtypes = [ctypes.c_void_p]
    return demangle, free


def _demangle(mangled: str) -> str:
    libraries = _libraries()
    if libraries is None or len(mangled) > _MAX_MANGLED:
        return mangled
    demangle, free = libraries
    status = ctypes.c_int(0)
    raw = demangle(mangled.encode("utf-8", "replace"), None, None, ctypes.byref(status))
    if not raw:
        return mangled
    try:
        text = ctypes.string_at(raw).decode("utf-8", "replace")
    finally:
        free(raw)
    return without_return_type(text) if status.value == 0 else mangled


@lru_cache(maxsize=1 << 14)
def readable(name: str) -> str:
    """A symbol's name for people. Runs C++ library code on hostile input: for the child process only."""
    name = without_clone_suffixes(name)
    if name.startswith("_Z"):
        base, dot, suffix = name.partition(".")
        name = _RUST_HASH.sub("", _demangle(base)) + dot + suffix
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "..."


def without_return_type(name: str) -> str:
    """A demangled C++ function without the return type that only templates carry.

    >>> without_return_type("std::vector<int> ns::make<int>(int (*)(char))")
    'ns::make<int>(int (*)(char))'
    """
    if _SPECIAL.match(name):
        return name
    start = depth = at = 0
    while at < len(name):
        char = name[at]
        if char == "o" and name.startswith("operator", at) and not _in_word(name, at):
            break
        if char == "-" and name.startswith("->", at):
            at += 1
        elif char == "(" and name.startswith(_ANONYMOUS, at):
            at += len(_ANONYMOUS) - 1
        elif char == "(" and depth == 0 and not name[start:at].rstrip().endswith("decltype"):
            if name[at + 1 : at + 2] in ("*", "&"):
                return name  # returns a pointer to a function: the name is inside of its type
            break
        elif char in "<([{":
            depth += 1
        elif char in ">)]}":
            depth -= 1
        elif char == " " and depth == 0 and not name[start:at].endswith("decltype"):
            start = at + 1
        at += 1
    return name[start:]


def _in_word(name: str, at: int) -> bool:
    return at > 0 and (name[at - 1].isalnum() or name[at - 1] == "_")
