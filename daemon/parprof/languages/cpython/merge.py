"""Python frames put in the place of the native frames that ran them.

Each activation of the interpreter loop on the native stack runs one Python frame (3.9, 3.10) or several (3.11
on, up to the one marked as entry). Both stacks end at the thread's first call, so they are matched from there;
where a native stack was cut short, from the leaf. The frames of the interpreter's own code between two Python
functions are how the one calls the other, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from parprof.files.libc import is_of_c_or_mathematics
from parprof.kernel.stacks import Stack
from parprof.languages.cpython.functions import PythonFrame
from parprof.model import Frame, StackRow
from parprof.patterns import regex

GAP = Frame("[truncated]")
CUT = Frame("[more Python frames]", module="python")
_CALLING = regex(
    r"_?PyObject_(Vectorcall|FastCall|Call|MakeTpCall)|_?PyFunction_|_?PyVectorcall_|_?PyEval_|_?PyCFunction_|"
    r"\w*vectorcall|cfunction_|method_|slot_tp_|wrap_|type_call|object_(vacall|init)|_PyMethodDef_|"
    r"_?PyMethodDescr_|builtin___|call_|do_call|pymain_|Py_(Run|Bytes)?Main|PyRun_|run_|_PyRun_|gen_send|"
    r"_?PyGen_|gen_iternext|main$|thread_run|pythread_wrapper|t_bootstrap|function_code_fastcall|\w+\+0x"
)
"""Functions of the interpreter that only call others, and code without a name."""


class Native(NamedTuple):
    """A native frame: its functions, the innermost inlined one first."""

    frames: tuple[Frame, ...]
    is_loop: bool


def merge(
    native: Sequence[Native],
    python: Sequence[PythonFrame],
    modules: frozenset[str],
    *,
    whole: bool,
    cut: bool,
) -> tuple[list[Frame], bool]:
    """The frames of both stacks, leaf first, and whether their activations matched.

    ``modules`` name the interpreter's files; ``whole``: the native stack has its outermost frame; ``cut``: the
    Python stack has not.
    """
    groups = _activations(python)
    loops = [index for index, frame in enumerate(native) if frame.is_loop]
    from_leaf = cut or not whole
    if not any(groups):
        return _flat(native), len(groups) == len(loops)
    if not loops:
        extra = [frame for group in groups for frame in group]
        return [
            *_leaf_part(native, modules),
            *([] if whole else [GAP]),
            *extra,
            *([CUT] if cut else []),
        ], False
    surplus = len(groups) - len(loops)
    if surplus > 0:  # nothing is lost: what has no activation joins its neighbour
        joined = groups[len(loops) - 1 :] if from_leaf else groups[: surplus + 1]
        together = [[frame for group in joined for frame in group]]
        groups = groups[: len(loops) - 1] + together if from_leaf else together + groups[surplus + 1 :]
    offset = 0 if from_leaf else len(loops) - len(groups)
    out: list[Frame] = []
    start = 0
    for index, group in zip(loops[offset:], groups, strict=False):
        if group:
            between = native[start:index]
            out += _others(between, modules) if start else _leaf_part(between, modules)
            out += group
            start = index + 1
    if cut:
        out.append(CUT)
    return out + _others(native[start:], modules), surplus == 0


def _activations(python: Sequence[PythonFrame]) -> list[list[Frame]]:
    groups: list[list[Frame]] = []
    group: list[Frame] = []
    for frame, is_entry in python:
        if frame is not None and frame.name != frame.file:  # so the interpreter names what it makes up
            group.append(frame)
        if is_entry:
            groups.append(group)
            group = []
    if group:
        groups.append(group)
    return groups


def _flat(native: Sequence[Native]) -> list[Frame]:
    return [frame for item in native for frame in item.frames]


def _others(native: Sequence[Native], modules: frozenset[str]) -> list[Frame]:
    return [frame for frame in _flat(native) if frame.module not in modules]


def _leaf_part(native: Sequence[Native], modules: frozenset[str]) -> list[Frame]:
    """What runs below the innermost Python function.

    Inside of the interpreter that is what it does for it (``list_sort``, ``gc_collect_main``); on the way to
    another library the interpreter's functions say nothing.
    """
    frames = _flat([item for item in native if not item.is_loop])
    beyond = (
        index
        for index, frame in enumerate(frames)
        if frame.module not in modules and not is_of_c_or_mathematics(frame.module)
    )
    last = next(beyond, len(frames))
    out = []
    for index, frame in enumerate(frames):
        own = frame.module in modules
        if not own or (index < last and not frame.is_loop and not _CALLING.match(frame.name)):
            out.append(frame)
    return out


class Interpreter(Protocol):
    """Where an interpreter's own code is."""

    @property
    def modules(self) -> frozenset[str]:
        """Names of the files that are the interpreter."""

    def is_loop(self, address: int, is_return: bool) -> bool:
        """Whether the frame at an address is an activation of the interpreter loop."""


class ResolvedStacks(Protocol):
    """The Python stacks of a process image, whose functions were looked up: `PythonStacks`, or recorded ones."""

    @property
    def python(self) -> Interpreter:
        """The interpreter."""

    @property
    def mismatched(self) -> set[int]:
        """Stacks whose activations of the interpreter loop were not those of the Python frames; merging adds them."""

    def stack(self, digest: int) -> tuple[PythonFrame, ...] | None:
        """The Python frames of a stack that was resolved, innermost first."""


def python_merge(
    stacks: ResolvedStacks, digest: int, stack: Stack
) -> Callable[[list[StackRow], bool], tuple[list[Frame], bool]] | None:
    """How to merge one stack; None when it has no Python frames that were resolved."""
    python = stacks.stack(digest) if stack.python else None
    if python is None or all(frame is None for frame, _ in python):
        return None

    def merge_rows(rows: list[StackRow], whole: bool) -> tuple[list[Frame], bool]:
        is_loop, modules = stacks.python.is_loop, stacks.python.modules
        native = [Native(frames, is_loop(address, is_return)) for address, is_return, frames in rows]
        cut = stack.python_end != "complete"
        out, matched = merge(native, python, modules, whole=whole, cut=cut)
        if not matched and whole and not cut:
            stacks.mismatched.add(digest)
        return out, whole or not cut

    return merge_rows
