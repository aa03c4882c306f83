"""Imports of Python modules in call paths: which frames are the import system's, and what is imported."""

from __future__ import annotations

import os
import re

from parprof.causes.ownership import SCRIPT
from parprof.model import Frame, Path

_IMPORT_SYSTEM = re.compile(r"<frozen (?:importlib|zipimport)|.*/importlib/")


def is_import(frame: Frame) -> bool:
    """Whether a frame is the import system's."""
    return frame.module == SCRIPT and _IMPORT_SYSTEM.match(frame.file) is not None


def imported(frame: Frame) -> str:
    """The name of the module whose body a frame is; empty if it is none."""
    if frame.name != "<module>" or is_import(frame):
        return ""
    return module_name(frame.file)


def first_imported(path: Path, at: int) -> str:
    """The name of the module that is imported at a place on a path, or of the first that this imports; may be empty."""
    return next((name for frame in path[at:] if (name := imported(frame))), "")


def module_name(file: str) -> str:
    """The name of the module in a file.

    >>> module_name("/usr/lib/python3/dist-packages/numpy/__init__.py"), module_name("<frozen site>")
    ('numpy', 'frozen site')
    """
    base = os.path.basename(file)
    if base == "__init__.py":
        base = os.path.basename(os.path.dirname(file))
    return base.partition(".")[0].strip("<>")
