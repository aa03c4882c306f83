"""What scripts do before they can begin: imports of Python modules, and functions that are compiled when they are first
called. Which frames of call paths are such, and what is imported or compiled."""

from __future__ import annotations

from collections.abc import Iterable

from parprof.causes.ownership import SCRIPT
from parprof.files.dso import ANONYMOUS
from parprof.model import Frame, Path
from parprof.patterns import regex

_COMPILERS = ((regex(r".*/(?:site|dist)-packages/numba/core/(?:dispatcher|compiler)\w*\.py"), "numba"),)
"""By the files of their Python code: what compiles functions of a script as they are called."""
_IMPORT_SYSTEM = regex(r"<frozen (?:importlib|zipimport)|.*/importlib/")
_LOADS = regex(r"_*(?:GI_+)?(?:libc_)?dlm?open|_*dl_open(?:_worker\w*)?")
_INSTALLED = regex(r".*/(?:(?:site|dist)-packages|python\d\.\d+)/")
"""Folders of modules: below these their packages are theirs, not where a program happens to lie."""


def is_import(frame: Frame) -> bool:
    """Whether a frame is the import system's."""
    return frame.module == SCRIPT and _IMPORT_SYSTEM.match(frame.file) is not None


def compiler(frame: Frame) -> str:
    """The name of what compiles functions in this frame; empty if it does not."""
    if frame.module != SCRIPT:
        return ""
    return next((name for file, name in _COMPILERS if file.match(frame.file)), "")


def prepared(path: Path, at: int) -> str:
    """What is imported or compiled from a place on a path on, where a step of the program calls a foreign function:
    ``import numpy``, ``compile numba``; else empty."""
    for inside in range(at, len(path)):
        if is_import(path[inside]):  # libraries import what they need when they need it, too
            return f"import {first_imported(path, inside) or 'modules'}"
        if name := compiler(path[inside]):
            return "" if any(map(is_made, path[inside:])) else f"compile {name}"
    return ""


def loaded(called: Iterable[Frame]) -> str:
    """The same of a thread that sleeps while it loads libraries: they are read in. ``called``: foreign functions."""
    return "load libraries" if any(_LOADS.fullmatch(frame.name) for frame in called) else ""


def is_made(frame: Frame) -> bool:
    """Whether a frame is of code that was compiled while the program ran. Below a compiler's frames it is that of a
    thread that was started as a function was compiled, for what it is now given to do."""
    return frame.module == ANONYMOUS


def imported(frame: Frame) -> str:
    """The name of the module whose body a frame is; empty if it is none."""
    if frame.name != "<module>" or is_import(frame):
        return ""
    return module_name(frame.file)


def first_imported(path: Path, at: int) -> str:
    """The name of the module that is imported at a place on a path, or of the first that this imports; may be empty."""
    return next((name for frame in path[at:] if (name := imported(frame))), "")


def module_name(file: str) -> str:
    """The name of the module in a file, with its packages' where it is installed.

    >>> module_name("/usr/lib/python3/dist-packages/dask/array/__init__.py"), module_name("<frozen site>")
    ('dask.array', 'frozen site')
    """
    root = _INSTALLED.match(file)
    parts = file[root.end() :].split("/") if root else file.split("/")[-2:]
    if parts[-1] == "__init__.py":
        parts.pop()
    names = [part.partition(".")[0].strip("<>") for part in (parts if root else parts[-1:])]
    while len(names) > 1 and not names[0].isidentifier():  # an egg
        names.pop(0)
    return ".".join(names)
