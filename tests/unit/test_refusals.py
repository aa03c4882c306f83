# SPDX-License-Identifier: Apache-2.0
"""What is said when the kernel does not permit BPF, by what stands in its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from parprof.errors import KernelUnsupported, ParprofError, PrivilegeError
from parprof.kernel import capability
from parprof.kernel.refusals import (
    FOR_OTHERS,
    FOR_OWN_PROCESSES,
    bpf_not_permitted,
    memory_closed,
    missing_capabilities,
    perf_not_permitted,
    program_refused,
    tracefs_problem,
)

ALL, NONE, PERFMON, SYS_ADMIN, SYS_PTRACE = (1 << 41) - 1, 0, 1 << 38, 1 << 21, 1 << 19
REFUSED = KernelUnsupported("the kernel refused BPF program on_edge: Invalid argument: unknown func")


def status(directory: Path, capabilities: int, seccomp: int = 0) -> Path:
    path = directory / "status"
    path.write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\nSeccomp:\t{seccomp}\n")
    return path


@pytest.mark.parametrize(
    ("lockdown", "capabilities", "seccomp", "kind", "words"),
    [
        ("none integrity [confidentiality]", ALL, 0, KernelUnsupported, "lockdown=integrity"),
        ("none [integrity] confidentiality", NONE, 0, PrivilegeError, "CAP_BPF, CAP_PERFMON missing"),
        ("", PERFMON, 0, PrivilegeError, "(CAP_BPF missing)"),
        ("[none] integrity confidentiality", ALL, 2, PrivilegeError, "seccomp=unconfined"),
        ("", ALL, 0, KernelUnsupported, "Linux 5.15 or later"),
    ],
)
def test_each_reason_is_named(
    lockdown: str, capabilities: int, seccomp: int, kind: type[ParprofError], words: str, tmp_path: Path
) -> None:
    (tmp_path / "lockdown").write_text(lockdown + "\n")
    error = bpf_not_permitted(tmp_path / "lockdown", status(tmp_path, capabilities, seccomp))
    assert type(error) is kind and words in str(error)


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert missing_capabilities((39,), tmp_path / "no") == ["CAP_BPF"]
    assert isinstance(bpf_not_permitted(tmp_path / "no", tmp_path / "no"), PrivilegeError)


def test_a_kernel_that_is_locked_down_makes_maps_and_refuses_programs(tmp_path: Path) -> None:
    """By not knowing the helpers that read memory: the verifier's words would send people to another kernel."""
    lockdown = tmp_path / "lockdown"
    lockdown.write_text("none integrity [confidentiality]\n")
    error = program_refused(REFUSED, permitted=True, lockdown=lockdown, status=status(tmp_path, ALL))
    assert "lockdown=integrity" in str(error)
    lockdown.write_text("none [integrity] confidentiality\n")
    known = status(tmp_path, ALL)
    assert program_refused(REFUSED, permitted=True, lockdown=lockdown, status=known) is REFUSED
    known = status(tmp_path, ALL ^ PERFMON ^ SYS_ADMIN)
    error = program_refused(REFUSED, permitted=False, lockdown=lockdown, status=known)
    assert isinstance(error, PrivilegeError) and "(CAP_PERFMON missing)" in str(error)


def test_what_the_administrator_of_all_may_and_may_not(tmp_path: Path) -> None:
    """CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON, and opens nobody's memory or files."""
    known = status(tmp_path, SYS_ADMIN)
    assert missing_capabilities(FOR_OWN_PROCESSES, known) == []
    assert missing_capabilities(FOR_OTHERS, known) == ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]


@pytest.mark.parametrize(
    ("capabilities", "seccomp", "words"),
    [
        (NONE, 0, "kernel.perf_event_paranoid is 3, CAP_PERFMON missing"),
        (PERFMON, 0, "kernel.perf_event_paranoid is 3, with which Debian's"),
        (SYS_ADMIN, 2, "perf_event_open(2)"),
        (SYS_ADMIN, 0, "a security module"),
    ],
)
def test_why_perf_events_are_refused(capabilities: int, seccomp: int, words: str, tmp_path: Path) -> None:
    paranoid = tmp_path / "paranoid"
    paranoid.write_text("3\n")
    assert words in str(perf_not_permitted(paranoid, status(tmp_path, capabilities, seccomp)))
    assert "paranoid is" not in str(perf_not_permitted(tmp_path / "no", status(tmp_path, NONE)))


def test_memory_that_yama_closes(tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    assert memory_closed(scope, status(tmp_path, NONE)) == ""
    scope.write_text("0\n")
    assert memory_closed(scope, status(tmp_path, NONE)) == ""
    scope.write_text("1\n")
    assert memory_closed(scope, status(tmp_path, SYS_PTRACE)) == ""
    assert memory_closed(scope, status(tmp_path, NONE)) == (
        "kernel.yama.ptrace_scope is 1, CAP_SYS_PTRACE missing"
    )


def test_why_there_are_no_events_of_tracefs(tmp_path: Path) -> None:
    first, second = tmp_path / "tracing", tmp_path / "debug"
    assert "is mounted at" in tracefs_problem((first, second))[0]
    (second / "events").mkdir(parents=True)
    assert "CONFIG_UPROBE_EVENTS" in tracefs_problem((first, second))[1]
    (second / "uprobe_events").write_text("")
    assert tracefs_problem((first, second)) == ("", "")


@pytest.mark.parametrize(
    ("missing", "ok", "fatal", "words"),
    [
        ({39, 38, 19, 2}, False, True, "run as root; CAP_BPF and CAP_PERFMON are enough for record"),
        ({38}, False, True, "run as root"),
        (
            {19, 2},
            True,
            False,
            "attach to those of others, and parprofd: CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH too",
        ),
        (set(), True, False, ""),
    ],
)
def test_check_says_which_commands_work(
    missing: set[int], ok: bool, fatal: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = status(tmp_path, sum(1 << bit for bit in {39, 38, 19, 2} - missing))
    monkeypatch.setattr(capability, "missing_capabilities", lambda needed: missing_capabilities(needed, has))
    found = capability._privileges()
    assert (found.ok, found.fatal) == (ok, fatal)
    assert words in found.remedy and bool(words) == bool(found.remedy)
