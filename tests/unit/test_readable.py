# SPDX-License-Identifier: Apache-2.0
"""Call paths as people want to read them, and the report made of them."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from rich.cells import cell_len

sys.path.insert(0, str(Path(__file__).parent))

from parprof.errors import UsageError
from parprof.exporters.readable import plain_name, readable
from parprof.exporters.table import render
from parprof.exporters.views import View
from parprof.metrics import OUTSIDE, Metrics
from parprof.model import Accounting, Frame, Origin, PathSample, ProcessInfo, Profile
from profiles import any_profile, frame, heat, library, sample

KERNEL = "[kernel]"


def python(name: str, file: str, line: int = 1) -> Frame:
    return Frame(name, file, line, module="python")


def folded(*path: Frame) -> list[str]:
    profile = Profile(ProcessInfo(), 1, 1, [PathSample(path, Metrics(1, 5.0))])
    return [one.name for one in readable(profile).samples[0].path]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("entry_SYSCALL_64_after_hwframe do_syscall_64 __x64_sys_write vfs_write", "[kernel: write]"),
        ("entry_SYSCALL_64_after_hwframe do_syscall_64 ksys_read vfs_read", "[kernel: read]"),
        ("asm_exc_page_fault exc_page_fault handle_mm_fault", "[kernel: page fault]"),
        ("ret_from_fork_asm ret_from_fork io_sq_thread io_sq_tw", "[kernel: polls for io_uring]"),
        ("asm_sysvec_apic_timer_interrupt irqentry_exit", "[kernel: interrupt]"),
        ("something_else", "[kernel]"),
        ("[waits: lock]", "[waits: lock]"),
    ],
)
def test_the_kernel_is_one_frame(names: str, shown: str) -> None:
    listed = [names] if names[0] == "[" else names.split()
    kernel = [Frame(name, module=KERNEL) for name in listed]
    assert folded(frame("main", 1), library("write"), *kernel) == ["main", "write", shown]
    assert folded(frame("main", 1), *kernel) == ["main", shown]


def test_what_the_c_library_does_is_its_first_function() -> None:
    assert folded(frame("main", 1), library("malloc"), library("_int_malloc"), library("sysmalloc")) == [
        "main",
        "malloc",
    ]
    assert folded(frame("main", 1), library("qsort"), library("msort"), frame("compare", 3)) == [
        "main",
        "compare",
    ]


def perl(name: str) -> Frame:
    return Frame(name, module="perl")


def test_of_an_interpreter_whose_scripts_have_no_names_it_is_told_what_it_does() -> None:
    inside = perl("main"), perl("perl_run"), perl("Perl_runops_standard"), perl("Perl_pp_sort")
    assert folded(*inside) == ["main", "Perl_pp_sort"]
    assert folded(*inside, library("memcmp"), library("__memcmp_evex")) == ["main", "Perl_pp_sort", "memcmp"]
    assert folded(*inside[:1]) == ["main"]
    ruby = [Frame(name, module="libruby-3.1.so.3.1") for name in ("ruby_run_node", "rb_ary_sort_bang")]
    assert folded(Frame("main", module="ruby3.1"), *ruby) == ["main", "rb_ary_sort_bang"]
    assert folded(*inside, Frame("work", module="work.so")) == ["main", "work"], "its libraries say more"


def test_of_one_whose_scripts_have_names_they_say_what_it_does() -> None:
    inside = [
        Frame(name, module="python3.11") for name in ("main", "Py_BytesMain", "_PyEval_EvalFrameDefault")
    ]
    node = Frame("main", module="node"), Frame("Builtins_Call", module="node")
    profile = Profile(
        ProcessInfo(),
        1,
        1,
        [
            PathSample((*inside, python("run", "run.py")), Metrics(1, 5.0), origin=Origin(7)),
            PathSample(tuple(inside), Metrics(1, 5.0), origin=Origin(7)),
            PathSample((*node, Frame("run", module="[anon]")), Metrics(1, 5.0), origin=Origin(8)),
            PathSample(node, Metrics(1, 5.0), origin=Origin(8)),
            PathSample(node, Metrics(1, 5.0), origin=Origin(9)),
        ],
    )
    paths = [[one.name for one in sample.path] for sample in readable(profile).samples]
    assert paths[1::2] == [["main"], ["main"]]
    assert paths[4] == ["main", "Builtins_Call"], "another process"


IMPORTLIB = python("_find_and_load", "<frozen importlib._bootstrap>")


def test_imports_are_one_frame_but_for_the_programs_own_code() -> None:
    main = python("<module>", "/home/u/run.py")
    numpy = "/home/u/.venv/lib/python3.11/site-packages/numpy/"
    assert folded(main, IMPORTLIB, python("<module>", numpy + "__init__.py"), IMPORTLIB) == [
        "<module>",
        "[import numpy]",
    ]
    own = python("<module>", "/home/u/tables.py"), python("prepare", "/home/u/tables.py")
    assert folded(main, IMPORTLIB, *own) == ["<module>", "[import tables]", "<module>", "prepare"]
    assert folded(main, IMPORTLIB) == ["<module>", "[import]"]


def test_what_is_compiled_as_it_is_called_is_one_frame() -> None:
    main = python("main", "/home/u/run.py")
    numba = "/home/u/.venv/lib/python3.11/site-packages/numba/core/"
    inside = (
        python("_compile_for_args", numba + "dispatcher.py"),
        python("run_pass", numba + "typed_passes.py"),
    )
    assert folded(main, *inside, library("malloc")) == ["main", "[compile numba]"]
    worker = library("thread_worker"), Frame("gufunc", module="[anon]", address=0x7F0000001000)
    assert folded(main, *inside, *worker) == ["main", "[compile numba]", "gufunc"], "its threads began there"


def test_the_interpreter_itself_is_one_word() -> None:
    inside = Frame("python3.11+0x5cfb6a", module="/usr/bin/python3.11", address=0x5CFB6A)
    assert folded(python("f", "/home/u/run.py"), inside, inside) == ["f", "[python]"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("(anonymous namespace)::share(int)", "share(int)"),
        ("main::{lambda(int)#1}::operator()(int) const", "main::lambda#1"),
        ("__work_MOD_assemble_matrix", "work::assemble_matrix"),
        ("x::both::{{closure}}", "x::both::closure"),
        ("operator()(int)", "operator()(int)"),
    ],
)
def test_names(name: str, shown: str) -> None:
    assert plain_name(name) == shown


@given(any_profile)
def test_no_metric_changes(profile: Profile) -> None:
    assert readable(profile).total() == profile.total()


def text(profile: Profile, **options: object) -> str:
    out = io.StringIO()
    render(profile, View(**options), out)  # type: ignore[arg-type]
    return out.getvalue()


def test_at_most_six_lines_before_the_table() -> None:
    profile = heat()
    profile.notes = [f"note {number}" for number in range(9)]
    profile.lost = {"map-full": 3}
    for width in (80, 120, None):
        before, table = text(profile, width=width).split("\n\n", 1)
        lines = before.splitlines()
        assert len(lines) <= 6
        assert lines[0].startswith("heat 4096: 4 cores, 80 % of their time useful, 18 % idle")
        assert lines[1].startswith("1. serial code in write_boundary (heat.c:33), 17 % of the cores' time")
        assert "3 lost; 9 notes (-v tells more)" in lines[-1]
        assert "calling context" in table
    assert "note 8" not in text(profile)
    assert "note: note 8" in text(profile, details=True)


def test_a_long_command_does_not_hide_how_well_it_runs() -> None:
    profile = heat()
    profile.process = replace(
        profile.process, command="python3 -c 'import numpy\nfor i in range(9):\n" + 50 * " f(i)" + "'"
    )
    first = text(profile, width=None).splitlines()[0]
    assert first.startswith("python3 -c 'import numpy for i in range(9): f(i) f(i)")
    assert first.index("..: 4 cores") <= 80
    assert profile.process.command.split()[-1] in text(profile, details=True)


def test_the_first_line_says_what_others_had() -> None:
    profile = heat()
    profile.accounting = Accounting(4, 10.0, 20.0, 14.0, 4.0, 2.0, 0.0, None)
    assert ", not counting 45 % that it was not given" in text(profile).splitlines()[0]
    profile.accounting = Accounting(4, 10.0, 36.0, 1.0, 1.0, 2.0, 0.0, None)
    assert "not given" not in text(profile)


def test_the_first_line_says_for_how_long_there_was_nothing_to_do() -> None:
    """A server that has one request now and then has half of the cores idle while it serves it: not of its time."""
    profile = heat()
    waits = sample([frame("serve", 5), library("poll")], 1, 1)
    waits.metrics[OUTSIDE] = 30e9
    profile.samples.append(waits)
    profile.accounting = Accounting(4, 10.0, 5.0, 0.0, 0.0, 5.0, 30.0, None)
    assert ", not counting 75 % in which it had nothing to do" in text(profile).splitlines()[0]
    profile.accounting = Accounting(4, 10.0, 1.0, 4.0, 0.0, 5.0, 30.0, None)
    told = "10 % that it was not given and 75 % in which it had nothing to do"
    assert f", not counting {told}" in text(profile).splitlines()[0]
    waits.metrics[OUTSIDE] = 3e9
    assert "nothing to do" not in text(profile)


def test_a_chain_of_calls_is_one_row() -> None:
    path = [frame(name, 5) for name in ("main", "run", "step", "inner")]
    profile = Profile(
        ProcessInfo(cores=4), 1, 1000, [sample(path, 90, 1), sample([*path, frame("leaf", 6)], 60, 1)]
    )
    rows = text(profile).splitlines()
    assert any(row.endswith("main > run > step > inner (heat.c:5)") for row in rows)
    assert sum("heat.c" in row for row in rows[3:]) == 2
    assert sum("heat.c" in row for row in text(profile, unfold=True).splitlines()[3:]) == 5


def test_files_and_pipes_are_not_cut() -> None:
    name = "very::long::" * 30 + "name"
    profile = Profile(ProcessInfo(cores=4), 1, 1000, [sample([frame(name, 5)], 90, 1)])
    assert name in text(profile)
    assert max(map(cell_len, text(profile, width=100).splitlines())) <= 100


def test_columns_go_before_names_are_cut() -> None:
    path = [frame("a_name_of_forty_characters_in_this_report", 5)]
    profile = Profile(ProcessInfo(cores=4), 1, 1000, [sample(path, 90, 1)])
    narrow = text(profile, width=80)
    assert "a_name_of_forty_characters_in_this_report" in narrow
    assert "verdict" not in narrow
    assert "verdict" in text(profile, width=100)


def test_threads() -> None:
    rows = [
        PathSample((frame("busy"),), Metrics(900, 9e8), Origin(1, "x", "x", tid=11)),
        PathSample((frame("busy"),), Metrics(300, 3e8, 6e8), Origin(1, "x", "x", tid=12)),
    ]
    report = text(Profile(ProcessInfo(cores=2), 1, 1000, rows), view="threads")
    assert [line.split()[-3:] for line in report.splitlines()[-2:]] == [
        ["x", "12:", "busy"],
        ["x", "11:", "busy"],
    ]


def test_lines() -> None:
    rows = [
        sample([frame("main", 3), frame("f", 7), library("memcpy")], 90, 1),
        sample([frame("main", 4)], 50, 4),
    ]
    report = text(Profile(ProcessInfo(cores=4), 1, 1000, rows), view="lines").splitlines()
    assert next(line for line in report if line.endswith("heat.c:7 f")).split()[:2] == ["65.9", "65.9"]
    assert next(line for line in report if line.endswith("heat.c:3 main")).split()[:2] == ["0.0", "65.9"]


def test_events_are_columns_and_can_be_sorted_by() -> None:
    profile = heat()
    profile.samples[2].metrics.events = {"page-faults": 1234}
    report = text(profile, sort="page-faults")
    assert "page-faults" in report and "1,234" in report
    rows = [line for line in report.split("\n\n")[1].splitlines() if "heat.c" in line]
    assert [row.split()[-2] for row in rows[:3]] == ["main", "solve", "step"]
    with pytest.raises(UsageError, match="--sort cache-misses: .*samples, activations, page-faults"):
        text(profile, sort="cache-misses")


def test_it_is_said_where_there_is_nothing_to_sort_by() -> None:
    told = "No row has any blame, by which they are sorted: it is recorded with --blame locks."
    assert told in text(heat(), sort="blame").splitlines()
    assert "No row has any stolen, by which they are sorted." in text(heat(), sort="stolen").splitlines()
    assert "No row has" not in text(heat(), sort="work")


def test_levels_of_recursion() -> None:
    path = [frame("main", 2), *[frame("fib", 5)] * 3]
    rows = [sample(path[: depth + 1], 60, 1) for depth in range(1, 4)]
    profile = Profile(ProcessInfo(cores=4), 1, 1000, rows)
    assert text(profile, recursion="levels").count("fib") == text(profile).count("fib") + 2
