"""Physical stacks to call paths: addresses with their load map become frames, root first."""

from __future__ import annotations

from collections.abc import Callable

from parprof.files.libc import is_start_up
from parprof.kernel.stacks import Stack
from parprof.model import Frame, Path, StackMerge, StackRow

ResolvePlace = Callable[[int, bool], tuple[Frame, ...]]
"""(address, is a return address) -> frames, innermost inlined function first."""


TRUNCATED = Frame("[truncated]")
NO_STACK = Frame("[no user stack]")
_CLONES = frozenset(("clone", "clone3", "__clone", "__clone3"))
_BARE_ENTRIES = _CLONES | {"main", "_start", "__libc_start_main", "__libc_start_call_main", "start_thread"}
_OUTERMOST = _BARE_ENTRIES | {"_dl_start_user", "_dl_start"}


def is_start_up_code(frame: Frame) -> bool:
    """Whether it only leads to `main`, or to what a thread begins with."""
    return frame.name != "main" and (frame.name in _OUTERMOST or is_start_up(frame.module))


def _without_start_up(frames: list[Frame]) -> list[Frame]:
    """A stack, leaf first, without what only leads to the program's code; where there is none yet, as while the loader
    relocates its libraries, all of it stays but for what every stack begins with."""
    is_dropped = is_start_up_code
    if all(map(is_start_up_code, frames)):
        is_dropped = _is_bare_entry
    end = len(frames)
    while end > 1 and is_dropped(frames[end - 1]):
        end -= 1
    return frames[:end]


def _is_bare_entry(frame: Frame) -> bool:
    return frame.name in _BARE_ENTRIES


def physical_path(
    user: Stack,
    kernel: Stack,
    resolve: ResolvePlace,
    resolve_kernel: ResolvePlace,
    merge: StackMerge | None = None,
) -> Path:
    """The call path of one sample, root first.

    A path begins at ``main`` or, in other threads, with the first function beyond the C library's start-up code, or
    within that where there is nothing beyond. Where the walk did not reach the outermost frame it begins with
    ``[truncated]``; what a walk along frame pointers picks up beyond the stack's end is cut off. A sample that hit the
    kernel ends with the kernel's frames.
    """
    rows: list[StackRow] = []
    complete = user.is_whole
    for address, is_return in user.frames:
        here = resolve(address, is_return)
        if not here:
            break  # not code: the walk left the stack
        rows.append((address, is_return, here))
        name = here[-1].name
        if name in _OUTERMOST and not (
            name in _CLONES and len(rows) == 1
        ):  # the creator is in clone's system call
            complete = True
            break
    frames = [frame for _, _, here in rows for frame in here]
    if merge is not None:
        frames, complete = merge(rows, complete)
    if not user.frames:
        frames.append(NO_STACK)
    elif not complete:
        frames.append(TRUNCATED)
    else:
        frames = _without_start_up(frames)
    path = list(reversed(frames))
    for address, is_return in reversed(kernel.frames):
        path.extend(reversed(resolve_kernel(address, is_return)))
    return tuple(path)
