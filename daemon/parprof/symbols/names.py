"""Names as their authors wrote them: demangled C++ and Rust, without what compilers append to copies of functions."""

from __future__ import annotations

import ctypes
import re
from functools import cache, lru_cache
from typing import Any

import pydemumble

from parprof.patterns import regex

MAX_NAME = 4096
_MAX_MANGLED = 1 << 13
_CLONE = regex(r"\.(?:(?:constprop|isra|part|llvm)\.\d+|cold|lto_priv)(?:\.\d+)*(?=\.|\Z)")
"""Compilers number them, but for cold parts: ``main.part`` is a function of Go's package ``main``."""
_OLD_RUST = regex(r"_ZN.*17h[0-9a-f]{16}E(?=\.|\Z)")
"""Rust's older mangling is C++'s, with a hash at the end and punctuation in words."""
_RUST_HASH = regex(r"::h[0-9a-f]{16}\Z")
_RUST_WORD = regex(r"\$(?:(SP|BP|RF|LT|GT|LP|RP|C)|u([0-9a-f]{1,6}))\$")
_RUST_PUNCTUATION = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
_PLAIN = regex(r"[\w:~$]+(?:(?<!decltype)\((?!anonymous)|\Z)", re.ASCII)
"""A name without template arguments, which has no return type."""
_SPECIAL = regex(r"(?:[\w-]+ ){1,3}(?:to|for) ")  # thunks and the like
_COROUTINE = regex(r"(_Z.*\.Frame)\.(?:actor|destroy)\Z")
"""The parts that GCC makes of a coroutine take its frame, whose type is named after it: ``_Z3runi.Frame``."""
_COROUTINE_FRAME = regex(r"(?: const)?::_Z[\w$]+\.Frame\*\)\Z")
_ANONYMOUS = "(anonymous namespace)"


def without_clone_suffixes(name: str) -> str:
    """The function that a compiler's copy or part was made from; outlined bodies are functions of their own.

    >>> without_clone_suffixes("solve.constprop.0.isra.0"), without_clone_suffixes("main._omp_fn.0.cold")
    ('solve', 'main._omp_fn.0')
    """
    return _CLONE.sub("", name) or name if "." in name else name


_STRING = regex(
    r"std::(?:__cxx11::|__1::)?basic_string<char, std::(?:__1::)?char_traits<char>, std::(?:__1::)?allocator<char> ?>"
)
_ALLOCATOR = ", std::allocator<"


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


def _coroutine(part: str) -> str:
    """The coroutine of whose parts this is one, demangled: what its frame belongs to.

    >>> _coroutine("ns::run(ns::run(int)::_ZN2ns3runEi.Frame*)")
    'ns::run(int)'
    """
    frame = _COROUTINE_FRAME.search(part)
    at = part.find("(")
    while frame is not None and at > 0:
        if part.startswith(part[:at], at + 1):
            return part[at + 1 : frame.start()]
        at = part.find("(", at + 1)
    return part


def _without_rust_words(name: str) -> str:
    """Of Rust's older mangling, demangled as C++: with punctuation, and without the hash.

    >>> _without_rust_words("sc::_$LT$impl$u20$core..fmt..Debug$GT$::fmt::h0123456789abcdef")
    'sc::<impl core::fmt::Debug>::fmt'
    """

    def punctuation(found: re.Match[str]) -> str:
        word, number = found.groups()
        code = 0 if word else int(number, 16)
        if word or not 0x20 <= code < 0x7F:
            return _RUST_PUNCTUATION.get(word, found[0])
        return chr(code)

    parts = _RUST_HASH.sub("", name).split("::")
    bare = (part[1:] if part.startswith("_$") else part for part in parts)
    return _RUST_WORD.sub(punctuation, "::".join(bare).replace("..", "::"))


@lru_cache(maxsize=1 << 14)
def readable(name: str) -> str:
    """A symbol's name for people. Runs C++ library code on hostile input: for the child process only.

    Of Rust's two manglings the older one is C++'s.
    """
    name = without_clone_suffixes(name)
    if old_rust := _OLD_RUST.match(name):
        name = _without_rust_words(_demangle(old_rust[0])) + name[old_rust.end() :]
    elif coroutine := _COROUTINE.match(name):
        part = _demangle(coroutine[1])
        name = _coroutine(part) if part != coroutine[1] else name
    elif name.startswith("_Z"):
        base, dot, suffix = name.partition(".")
        name = _demangle(base) + dot + suffix
    elif name.startswith("_R") and len(name) <= _MAX_MANGLED:
        base, dot, suffix = name.partition(".")
        name = (pydemumble.demangle(base) or base) + dot + suffix
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "..."


def without_defaults(name: str) -> str:
    """A demangled C++ name without what the library's templates have by default.

    >>> string = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"
    >>> without_defaults(f"f(std::vector<{string}, std::allocator<{string} > > const&)")
    'f(std::vector<std::string> const&)'
    >>> without_defaults("g(std::vector<long, std::allocator<")
    'g(std::vector<long, std::allocator<'
    """
    name = _STRING.sub("std::string", name)
    start = 0
    while (start := name.find(_ALLOCATOR, start)) >= 0:
        end, depth = start + len(_ALLOCATOR), 1
        while depth and end < len(name):
            depth += {"<": 1, ">": -1}.get(name[end], 0)
            end += 1
        if depth:
            break
        name = name[:start] + name[end:].removeprefix(" ")
    return name


def without_return_type(name: str) -> str:
    """A demangled C++ function without the return type that only templates carry.

    >>> without_return_type("std::vector<int> ns::make<int>(int (*)(char))")
    'ns::make<int>(int (*)(char))'
    """
    if _PLAIN.match(name) or _SPECIAL.match(name):
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
