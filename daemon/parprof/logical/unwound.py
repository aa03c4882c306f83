"""Stacks as folding needs them: resolved, and each frame with its place on the stack."""

from __future__ import annotations

from dataclasses import replace

from parprof.kernel.stacks import Stack
from parprof.logical.ourselves import without_counting, without_slot
from parprof.logical.physical import ResolvePlace, physical_path
from parprof.model import Frame, Path, StackMerge, StackRow
from parprof.values import dataclass

_ENTRIES = frozenset((
    "main", "_start", "_dl_start_user", "_dl_start",
    "runtime.goexit", "runtime.goexit.abi0", "runtime.mstart", "runtime.mstart.abi0", "_rt0_amd64_linux",
))  # fmt: skip
"""C's, and Go's: each of its routines has a stack of its own."""
_OUTERMOST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Unwound:
    """A user stack. ``path``: its physical call path, as `physical_path` has it, but for what a probe put there."""

    path: Path
    own: int
    """So many frames of ``path``, the innermost ones, are of the piece of work that the sample is in."""
    is_cut: bool
    """Whether there is work of others below it on the stack."""
    whole: bool
    """Whether the work's frames are all known."""
    entry: bool
    """Whether the stack begins at the program's entry."""
    in_slot: bool = False
    """Whether a probe has taken the thread out of the program's code, or there is nothing but what is ours."""


def _nothing(address: int, is_return: bool) -> tuple[Frame, ...]:
    return ()


def unwind(stack: Stack, resolve: ResolvePlace, merge: StackMerge | None = None) -> Unwound:
    """Resolve a stack. ``merge`` puts the frames of an interpreted language in."""
    found = _unwind(stack, resolve, merge)
    path = without_counting(without_slot(found.path))
    ours = len(found.path) - len(path)
    if not ours:
        return found
    in_slot = without_slot(found.path) != found.path or not path
    return replace(found, path=path, own=max(found.own - ours, 0), in_slot=in_slot)


def _unwind(stack: Stack, resolve: ResolvePlace, merge: StackMerge | None) -> Unwound:
    rows: list[StackRow] = []
    numbers: list[int] = []
    """For each frame, leaf first, its row."""
    complete = False

    def capture(found: list[StackRow], whole: bool) -> tuple[list[Frame], bool]:
        nonlocal complete
        rows.extend(found)
        if merge is None:
            frames, complete = [frame for row in rows for frame in row[2]], whole
            numbers.extend(number for number, row in enumerate(rows) for _ in row[2])
        elif (
            not stack.cut
        ):  # nobody asks for numbers, which are dear: imports of Python are hundreds of frames deep
            frames, complete = merge(rows, whole)
        else:
            frames, complete = _merged(rows, whole, merge, numbers)
        return frames, complete

    path = physical_path(stack, Stack(), resolve, _nothing, capture)
    cut = stack.cut
    complete = complete and bool(stack.frames)
    if not cut:
        return Unwound(path, len(path), False, complete, complete and _has_entry(rows))
    if len(rows) < cut:
        return Unwound(path, len(path), True, False, False)
    own = next((at for at, number in enumerate(numbers) if number >= cut), len(numbers))
    return Unwound(path, min(own, len(path)), True, True, False)


def _has_entry(rows: list[StackRow]) -> bool:
    return any(
        frame.name in _ENTRIES or frame.name.startswith("__libc_start_")
        for _, _, frames in rows[-_OUTERMOST_ROWS:]
        for frame in frames
    )


def _merged(
    rows: list[StackRow], whole: bool, merge: StackMerge, numbers: list[int]
) -> tuple[list[Frame], bool]:
    """The merged frames; native ones are found again by a mark in place of their address."""
    originals: list[tuple[int, Frame]] = []
    marked: list[StackRow] = []
    for number, (address, is_return, frames) in enumerate(rows):
        start = len(originals)
        originals += [(number, frame) for frame in frames]
        marks = tuple(_marked(frame, -1 - start - at) for at, frame in enumerate(frames))
        marked.append((address, is_return, marks))
    merged, complete = merge(marked, whole)
    out: list[Frame] = []
    number = 0
    for frame in merged:
        if frame.address < 0:
            number, frame = originals[-1 - frame.address]
        out.append(frame)
        numbers.append(number)
    return out, complete


def _marked(frame: Frame, mark: int) -> Frame:
    """With that address. Half the time of `dataclasses.replace`, and there are millions of them."""
    return Frame(
        frame.name,
        frame.file,
        frame.line,
        frame.start_line,
        frame.module,
        frame.build_id,
        mark,
        frame.inlined,
        frame.is_loop,
    )
