"""Whose call it was that samples told apart: a frame of the stack as the function in the call path."""

from __future__ import annotations

from parprof.logical.physical import is_start_up_code
from parprof.model import Path


def called(logical: Path, physical: Path) -> tuple[Path, Path] | None:
    """The two call paths up to the function whose frame they end in, without its loops and what is inlined into it.

    None where that is no function of the program's: start-up code, what is no code, and frames of a parallel runtime
    for which the logical path has nothing, or something else.
    """
    logical, physical = _up_to_function(logical), _up_to_function(physical)
    if not logical or not physical or physical[-1].name.startswith("["):
        return None
    if all(map(is_start_up_code, physical)):
        return None
    return (logical, physical) if logical[-1] == physical[-1] else None


def _up_to_function(path: Path) -> Path:
    end = len(path)
    while end and (path[end - 1].inlined or path[end - 1].is_loop):
        end -= 1
    return path[:end]
