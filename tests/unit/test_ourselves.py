# SPDX-License-Identifier: Apache-2.0
"""Our own handlers, told from the program's work by the names in kernel stacks."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(FilePath(__file__).parent))


from logical_stacks import AGENTS, frames, text
from parprof.attribution import Verdict, verdict
from parprof.causes.ranking import causes_of
from parprof.cct.tree import CallingContextTree
from parprof.exporters import json_report
from parprof.facts.drain import Drain
from parprof.kernel.stacks import Stack
from parprof.logical.ourselves import (
    PROFILING,
    in_handler,
    is_handler,
    is_slot,
    without_counting,
    without_slot,
)
from parprof.metrics import Metrics
from parprof.model import (
    Count,
    Frame,
    Path,
    PathSample,
    ProcessInfo,
    Profile,
    SampleKey,
    ThreadState,
)
from parprof.profile.rows import RowMaker

BPF = FilePath(__file__).resolve().parents[2] / "bpf"

# Kernel stacks, root first, as `parprof record --n-w-source exact` of Linux 6.18 had them.
OURS = [
    "asm_exc_int3 irqentry_exit_to_user_mode",
    "asm_exc_int3 irqentry_exit_to_user_mode uprobe_notify_resume handler_chain uprobe_multi_link_handler"
    " uprobe_prog_run bpf_prog_4823c2730a689e49_on_edge_unwind htab_lru_map_update_elem bpf_lru_push_free",
    "asm_exc_int3 irqentry_exit_to_user_mode uprobe_notify_resume handler_chain arch_uretprobe_hijack_return_addr"
    " _copy_from_user",
    "asm_exc_int3 irqentry_exit_to_user_mode uprobe_notify_resume arch_uprobe_skip_sstep branch_emulate_op",
    "entry_SYSCALL_64_after_hwframe do_syscall_64 __do_sys_uretprobe uprobe_handle_trampoline"
    " uprobe_multi_link_ret_handler uprobe_prog_run bpf_prog_9f547145168c6e31_on_edge lookup_nulls_elem_raw",
    "asm_exc_debug noist_exc_debug irqentry_exit_to_user_mode",
    "entry_SYSCALL_64_after_hwframe do_syscall_64 __x64_sys_futex do_futex futex_wait schedule __schedule"
    " __traceiter_sched_switch __bpf_trace_sched_switch bpf_trace_run4 bpf_prog_0123456789abcdef_on_switch",
    "asm_exc_page_fault exc_page_fault do_user_addr_fault schedule bpf_prog_0123456789abcdef_on_switch",
    "asm_exc_int3.cold exc_int3",
]
NOT_OURS = [
    "asm_sysvec_apic_timer_interrupt irqentry_exit_to_user_mode schedule __schedule finish_task_switch.isra.0",
    "entry_SYSCALL_64_after_hwframe do_syscall_64 __x64_sys_futex do_futex futex_wake wake_up_q try_to_wake_up",
    "entry_SYSCALL_64_after_hwframe do_syscall_64 __x64_sys_bpf bpf_prog_load",
    "do_syscall_64 bpf_prog_0123456789abcdef_restrict_filesystems",
    "do_syscall_64 bpf_prog_0123456789abcdef_on_switching_on",
    "really_probe uncore_pci_probe kprobe_ftrace_handler",
    "[kernel] [kernel]",
    "",
]


@pytest.mark.parametrize("stack", OURS)
def test_handlers(stack: str) -> None:
    assert in_handler(map(Frame, stack.split()))


@pytest.mark.parametrize("stack", NOT_OURS)
def test_what_is_the_program_s(stack: str) -> None:
    assert not in_handler(map(Frame, stack.split()))


def test_all_our_programs_are_known() -> None:
    """Those that BPF may run while a thread of a target is on the CPU."""
    sources = "".join(path.read_text() for path in BPF.glob("*.c"))
    programs = set(re.findall(r"^(?:SEC\([^)]*\)\s*)?int (on_\w+)\(", sources, re.MULTILINE))
    assert {"on_edge", "on_switch", "on_sample"} <= programs
    assert [name for name in programs if not is_handler(f"bpf_prog_{'0a' * 8}_{name[:15]}")] == []


def test_slots() -> None:
    main, leaf = frames("main GOMP_task")
    slot = Frame("[uprobes]+0x0", module="[uprobes]", address=0x10)
    late = Frame("[unknown]+0x7fffffffe043")  # the page is younger than the load map
    assert is_slot(slot) and is_slot(late) and not is_slot(Frame("[unknown]+0x7fff12345043"))
    assert without_slot((main, leaf, slot, late)) == (main, leaf)
    assert without_slot((main, slot, leaf)) == (main, slot, leaf)
    assert without_slot((slot,)) == ()


COUNTING = "libparprof_alloc-c6596774d25ce0be.so"


def test_our_library_in_front_of_the_allocator_is_no_part_of_the_program() -> None:
    """Whether it counts, asks for the time or looks for the next malloc; that one is the program's."""
    main, caller, libc = frames("main reads_input malloc")
    ours, slow = Frame("malloc", module=COUNTING), Frame("pace", module=COUNTING)
    clock = Frame("clock_gettime", module="[vdso]")
    for stack in ((ours,), (ours, slow), (ours, slow, clock)):
        assert without_counting((main, caller, *stack)) == (main, caller)
    for stack in ((), (main,), (main, caller, libc)):
        assert without_counting(stack) == stack
    assert without_counting((slow, clock)) == ()


KERNEL, SYSTEM_CALL = 3, 4


class Made:
    """A row maker of two user stacks and two kernel stacks, by id."""

    USER: dict[int, Path] = {
        1: frames("main f GOMP_task"),
        2: (*frames("main f GOMP_task"), Frame("[uprobes]+0x10", module="[uprobes]", address=0x99)),
        5: (*frames("main f"), Frame("malloc", module=COUNTING), Frame("pace", module=COUNTING)),
        6: (Frame("end_process", module=COUNTING),),
        7: (*frames("main f"), Frame("malloc", module=COUNTING), Frame("[uprobes]+0x10", module="[uprobes]")),
    }
    KERNEL: dict[int, str] = {
        KERNEL: "asm_exc_int3 uprobe_notify_resume bpf_prog_0123456789abcdef_on_edge",
        SYSTEM_CALL: "do_syscall_64 __x64_sys_futex",
    }

    def __init__(self) -> None:
        self.code: dict[int, Frame] = {}
        self.stacks = {0: Stack()}
        for identity, path in self.USER.items():
            self.stacks[identity] = self._stack(path)
        for identity, names in self.KERNEL.items():
            self.stacks[identity] = self._stack(tuple(map(Frame, names.split())))
        self.table = SimpleNamespace(get=self.stacks.__getitem__, context=lambda _: None, raw=lambda _: None)
        self.image = SimpleNamespace(
            agents=AGENTS, runtime="libgomp", merge=None, process=SimpleNamespace(pid=5, comm="x")
        )
        book = SimpleNamespace(
            look_up=lambda _: None, shape=lambda *_: None, kernel_depth=1,
            frames=lambda image, epoch, address, is_return: (self.code[address],),
            kernel_frames=lambda address, is_return: (self.code[address],),
        )  # fmt: skip
        self.maker = RowMaker(cast(Any, book), cores=4)

    def _stack(self, path: Path) -> Stack:
        rows = []
        for frame in reversed(path):
            address = 4096 + len(self.code)
            self.code[address] = frame
            rows.append((address, bool(rows)))
        return Stack(tuple(rows), "complete")

    def row(
        self, user: int, kernel: int, state: ThreadState = ThreadState.WORKING, event: int = 0
    ) -> PathSample:
        key = SampleKey(
            image=1, tid=7, event=event, state=state, n_working=2, user=user, kernel=kernel, waiters=3
        )
        drain = Drain(
            facts={key: Count(samples=5, total=11)},
            stacks=cast(Any, self.table),
            images={1: cast(Any, self.image)},
            thread_names={},
            events=("cpu-clock", "page-faults"),
            frequency_hz=1000,
        )
        (row,) = self.maker.rows(drain)
        return row


@pytest.mark.parametrize("state", list(ThreadState))
@pytest.mark.parametrize(("user", "kernel"), [(1, KERNEL), (2, 0), (2, KERNEL), (2, SYSTEM_CALL)])
def test_samples_of_handlers_are_nothing_else(user: int, kernel: int, state: ThreadState) -> None:
    row = Made().row(user, kernel, state)
    assert row.metrics == Metrics(samples=5, profiling_ns=5e6)
    assert text(row.path) == "main f GOMP_task [profiling]"
    assert row.path[-1] is PROFILING
    assert row.physical == () and row.origin.overhead == ""


def test_other_samples_are_as_before() -> None:
    row = Made().row(1, SYSTEM_CALL)
    assert row.metrics == Metrics(5, 5e6, 5e6, 5e6, blame_ns=15e6)
    assert (text(row.path), row.origin.overhead) == (
        "main f GOMP_task do_syscall_64",
        "create",
    )  # so deep is shown


def test_further_events_in_handlers_are_counted_there() -> None:
    row = Made().row(1, KERNEL, event=1)
    assert row.metrics == Metrics(events={"page-faults": 11})
    assert text(row.path) == "main f GOMP_task [profiling]"


def test_no_part_of_effort_efficiency_or_advice() -> None:
    made = Made()
    work, ours = made.row(1, 0), made.row(1, KERNEL)
    ours.metrics = Metrics(samples=9000, profiling_ns=9e9)
    both = CallingContextTree([work, ours])
    whole = both.root.inclusive
    busy = replace(work, metrics=Metrics(samples=900, work_ns=9e8, idleness_ns=9e8))
    assert whole.effort_ns == work.metrics.effort_ns
    assert whole.cpu_ns == work.metrics.work_ns + 9e9
    assert verdict(whole) is verdict(work.metrics)
    assert verdict(ours.metrics) is Verdict.UNKNOWN
    found = [(one.path, one.lost_percent) for one in causes_of([busy, ours], 4, "none")]
    assert found == [(one.path, one.lost_percent) for one in causes_of([busy], 4, "none")] != []
    assert all("[profiling]" not in names for names, _ in found)


def test_json() -> None:
    made = Made()
    profile = Profile(ProcessInfo(cores=4), 1.0, 1000, [made.row(1, 0), made.row(2, 0)])
    report = json_report.report(profile)
    assert report["totals"]["profiling_s"] == 0.005
    (ours,) = [path for path in report["paths"] if path["frames"][-1] == "[profiling]"]
    assert (ours["profiling_s"], ours["work_s"], ours["idleness_s"], ours["overhead_s"]) == (0.005, 0, 0, 0)
    assert report["functions"][-1]["name"] == "[profiling]"


def test_rows_of_one_origin_share_it_until_the_process_is_gone() -> None:
    """It is compared by identity where recent profiles are kept."""
    made = Made()
    first, second = made.row(1, 0).origin, made.row(1, SYSTEM_CALL).origin
    assert first is second
    assert made.row(1, KERNEL).origin is not first  # no overhead there
    made.maker._book = cast(Any, SimpleNamespace(**vars(made.maker._book), forget=lambda _: None))
    made.maker.forget([2])
    assert made.row(1, 0).origin is first
    made.maker.forget([1])
    again = made.row(1, 0).origin
    assert again == first and again is not first


@pytest.mark.parametrize("kernel", [0, SYSTEM_CALL])
def test_bytes_are_those_of_who_called_the_allocator(kernel: int) -> None:
    """Not of the function of our library that counts them, whose time is its caller's."""
    row = Made().row(5, kernel, event=1)
    assert row.metrics == Metrics(events={"page-faults": 11})
    assert text(row.path) == "main f" + " do_syscall_64" * bool(kernel)
    assert text(Made().row(5, kernel).path) == text(row.path)
    assert all(frame.module != COUNTING for frame in (*row.path, *row.physical))


def test_what_our_library_does_for_nobody_is_ours() -> None:
    row = Made().row(6, 0)
    assert row.metrics == Metrics(samples=5, profiling_ns=5e6)
    assert text(row.path) == "[profiling]"


def test_a_probe_on_our_library_is_ours() -> None:
    row = Made().row(7, 0)
    assert row.metrics == Metrics(samples=5, profiling_ns=5e6)
    assert text(row.path) == "main f [profiling]"
