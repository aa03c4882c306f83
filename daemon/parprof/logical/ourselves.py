"""Our own work, found at samples: the kernel's handlers of probes and of the scheduler's events, and our programs in
them. What they cost is no work of the program. Nor is our library in front of an allocator a part of the program: its
frames go. Pure functions of names.

Other tools' uprobes, and breakpoints of debuggers, take the same way through the kernel and look the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from parprof.kernel.allocation_probe import PRELOADED
from parprof.model import Frame, Path
from parprof.patterns import regex

PROFILING = Frame("[profiling]", module="[kernel]")
"""Stands for all that a handler of ours had on its stack."""

_PROGRAMS = (
    "on_call|on_phase|on_edge|on_load_map|on_edge_unwind|on_edge_python|on_wait_unwind|on_wait_python|on_wait_code|on_wait_seek|on_switch|on_wakeup|on_sample"
    "|on_unwind|on_python|on_python_code|on_fork|on_exec|on_exit|on_seek|on_command|on_activations|on_timed_switch|on_bytes|on_bytes_fork|on_transfer|on_allocation"
)
"""Our BPF programs; those of others are told apart by their names."""

_HANDLER = regex(
    # the breakpoint of a uprobe, and the step over the instruction that it replaced
    r"(?:asm_)?exc_(?:int3|debug)(?:_\w+)?|do_int3(?:_\w+)?|handle_swbp|handler_chain|(?:pre|post)_ssout"
    r"|u(?:ret)?probe_\w+|arch_u(?:ret)?probe_\w+|prepare_uretprobe|handle_(?:uretprobe_chain|trampoline)|xol_\w+"
    # return probes, and uprobes that the kernel made system calls
    r"|(?:__x64_|__do_|__se_|__ia32_)?sys_u(?:ret)?probe|handle_syscall_u(?:ret)?probe"
    # programs at the scheduler's tracepoints, and our own anywhere
    rf"|bpf_trace_run\d+|__bpf_trace_sched_\w+|bpf_prog_[0-9a-f]{{16}}_(?:{_PROGRAMS})"
)
_SUFFIX = regex(r"\.(?:isra|constprop|part|cold|llvm|lto_priv)\b.*")
"""What compilers put behind the names of copies of functions."""

_SLOTS = frozenset(("[uprobes]", "[uprobes-trampoline]"))
"""The pages of out-of-line instructions, and of the trampoline to which probed functions return."""
_SLOTS_UNKNOWN = regex(r"\[unknown\]\+0x7fffffffe[0-9a-f]{3}")
"""The same in a load map that is older than the page: the kernel puts it as high as it can."""


def is_handler(name: str) -> bool:
    """Whether a function of the kernel runs for a probe, or is one of our programs."""
    return _HANDLER.fullmatch(_SUFFIX.sub("", name)) is not None


def in_handler(kernel: Iterable[Frame]) -> bool:
    """Whether a kernel stack is, at any depth, in a handler of ours."""
    return any(is_handler(frame.name) for frame in kernel)


def is_slot(frame: Frame) -> bool:
    """Whether a user frame is where the kernel sends threads to for a probe."""
    return frame.module in _SLOTS or _SLOTS_UNKNOWN.fullmatch(frame.name) is not None


def without_slot(path: Path) -> Path:
    """A user stack, root first, without the innermost frames that are there for a probe."""
    end = len(path)
    while end and is_slot(path[end - 1]):
        end -= 1
    return path[:end]


def without_counting(path: Path) -> Path:
    """A user stack, root first, up to the call of an allocator that our library is in front of.

    What that calls itself goes, too; the program's own allocator does not, for our library jumps to it.
    """
    ours = (at for at, frame in enumerate(path) if frame.module.startswith(PRELOADED))
    return path[: next(ours, len(path))]
