"""Physical stacks to call paths: addresses with their load map become frames, root first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parprof.model import Frame, Path

Resolve = Callable[[int, bool], tuple[Frame, ...]]
"""(address, is a return address) -> frames, innermost inlined function first."""

TRUNCATED = Frame("[truncated]")
NO_STACK = Frame("[no user stack]")
_OUTERMOST = frozenset(
    ("main", "_start", "__libc_start_main", "__libc_start_call_main", "start_thread", "clone", "clone3", "__clone3",
     "__clone", "_dl_start_user", "_dl_start")
)  # fmt: skip


def physical_path(
    user: Sequence[int], kernel: Sequence[int], resolve: Resolve, resolve_kernel: Resolve
) -> Path:
    """The call path of one sample, root first.

    ``user`` and ``kernel`` are leaf first. What a frame-pointer walk picks up beyond the outermost function is
    garbage and is cut off; a stack that never reaches an outermost function begins with ``[truncated]``.
    A sample that hit the kernel ends with the kernel's frames.
    """
    frames: list[Frame] = []
    complete = False
    for index, address in enumerate(user):
        here = resolve(address, index > 0)
        if not here:
            break  # not code: the walk left the stack
        frames.extend(here)
        if here[-1].name in _OUTERMOST:  # main's callers are the C library's start-up code: begin at main
            complete = True
            break
    if not user:
        frames.append(NO_STACK)
    elif not complete:
        frames.append(TRUNCATED)
    path = list(reversed(frames))
    for index in reversed(range(len(kernel))):
        path.extend(reversed(resolve_kernel(kernel[index], index > 0)))
    return tuple(path)
