"""Why the kernel does not permit what it was asked: read where it stands, and named with the remedy."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from parprof.errors import KernelUnsupported, ParprofError, PrivilegeError

CAPABILITIES = {
    2: "CAP_DAC_READ_SEARCH", 12: "CAP_NET_ADMIN", 19: "CAP_SYS_PTRACE", 21: "CAP_SYS_ADMIN", 38: "CAP_PERFMON",
    39: "CAP_BPF", 40: "CAP_CHECKPOINT_RESTORE",
}  # fmt: skip
_DAC_READ_SEARCH, _SYS_PTRACE, _SYS_ADMIN, _PERFMON, _BPF = 2, 19, 21, 38, 39
FOR_OWN_PROCESSES = (_BPF, _PERFMON)
"""What it takes to profile programs that run as the same user."""
FOR_OTHERS = (_SYS_PTRACE, _DAC_READ_SEARCH)
"""And those of others: their memory and maps, their files."""
_IN_SYS_ADMIN = FOR_OWN_PROCESSES
LOCKDOWN = Path("/sys/kernel/security/lockdown")
STATUS = Path("/proc/self/status")
_PARANOID_UPSTREAM = 2
"""The highest level of kernel.perf_event_paranoid in the kernel's own source."""
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def missing_capabilities(needed: tuple[int, ...], status: Path = STATUS) -> list[str]:
    """Those of these capabilities that we do not have; CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(status), re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    if effective >> _SYS_ADMIN & 1:
        needed = tuple(bit for bit in needed if bit not in _IN_SYS_ADMIN)
    return [CAPABILITIES[bit] for bit in needed if not effective >> bit & 1]


def _locked_down(lockdown: Path) -> KernelUnsupported | None:
    if "[confidentiality]" not in _read(lockdown):
        return None
    return KernelUnsupported(
        "the kernel is locked down (lockdown=confidentiality): BPF programs may not read what they must; "
        "boot with lockdown=integrity or none"
    )


def _has_seccomp_filter(status: Path) -> bool:
    return re.search(r"^Seccomp:\s*2", _read(status), re.MULTILINE) is not None


def bpf_not_permitted(lockdown: Path = LOCKDOWN, status: Path = STATUS) -> ParprofError:
    """The error to raise when a BPF map or program was refused with EPERM."""
    locked = _locked_down(lockdown)
    if locked is not None:
        return locked
    missing = missing_capabilities((_BPF, _PERFMON), status)
    if missing:
        return PrivilegeError(
            f"loading BPF programs is not permitted ({', '.join(missing)} missing): run as root or with CAP_BPF and "
            "CAP_PERFMON"
        )
    if _has_seccomp_filter(status):
        return PrivilegeError(
            "loading BPF programs is not permitted, although we have the capabilities: the seccomp filter that we run "
            "under may forbid bpf(2); allow it (containers: --security-opt seccomp=unconfined)"
        )
    return KernelUnsupported(
        f"Linux {os.uname().release} does not permit BPF maps of our size, although we have the capabilities: kernels "
        "before 5.11 charge them to RLIMIT_MEMLOCK, and parprof needs Linux 5.15 or later"
    )


def program_refused(
    error: KernelUnsupported, *, permitted: bool, lockdown: Path = LOCKDOWN, status: Path = STATUS
) -> ParprofError:
    """The error to raise when the kernel refused a program: ``error``, unless there is a reason beside the program.

    ``permitted``: it was not for want of a permission. A kernel that is locked down lets maps be made, and then does
    not know the helpers by which programs read memory.
    """
    return _locked_down(lockdown) or (error if permitted else bpf_not_permitted(lockdown, status))


def perf_not_permitted(paranoid: Path = PARANOID, status: Path = STATUS) -> PrivilegeError:
    """The error to raise when a perf event was refused with EACCES or EPERM."""
    if missing_capabilities((_PERFMON,), status):
        level = _read(paranoid).strip()
        stands = f"kernel.perf_event_paranoid is {level}, " if level else ""
        return PrivilegeError(
            f"perf events are not permitted ({stands}CAP_PERFMON missing): run as root or with CAP_PERFMON"
        )
    level = _read(paranoid).strip()
    if level.isdigit() and int(level) > _PARANOID_UPSTREAM and missing_capabilities((_SYS_ADMIN,), status):
        return PrivilegeError(
            f"perf events are not permitted (kernel.perf_event_paranoid is {level}, with which Debian's kernels want "
            "CAP_SYS_ADMIN): run as root, or, as root: sysctl kernel.perf_event_paranoid=2"
        )
    if _has_seccomp_filter(status):
        return PrivilegeError(
            "perf events are not permitted, although we have CAP_PERFMON: the seccomp filter that we run under may "
            "forbid perf_event_open(2); allow it (containers: --security-opt seccomp=unconfined)"
        )
    return PrivilegeError(
        "perf events are not permitted, although we have CAP_PERFMON: a security module of the kernel may forbid them "
        "(dmesg, the audit log)"
    )


def memory_closed(scope: Path = PTRACE_SCOPE, status: Path = STATUS) -> str:
    """What keeps us from the memory of processes of our own user that we did not start; empty if nothing does."""
    level = _read(scope).strip()
    if level in ("", "0") or not missing_capabilities((_SYS_PTRACE,), status):
        return ""
    return f"kernel.yama.ptrace_scope is {level}, CAP_SYS_PTRACE missing"


def tracefs_problem(directories: Sequence[Path]) -> tuple[str, str]:
    """Why no events can be defined in tracefs, and what to do about it; both empty if they can."""
    there = [
        directory / "uprobe_events" for directory in directories if (directory / "uprobe_events").exists()
    ]
    if not there:
        if any((directory / "events").exists() for directory in directories):
            return "tracefs has no uprobe_events", "a kernel with CONFIG_UPROBE_EVENTS=y"
        return (
            f"no tracefs that we may look into is mounted at {directories[0]}",
            f"as root: mount -t tracefs tracefs {directories[0]}; containers: -v {directories[0]}:{directories[0]}",
        )
    for path in there:
        with suppress(OSError):
            if os.statvfs(path).f_flag & os.ST_RDONLY:
                return f"{path} is mounted read-only", "mount it read-write"
            if os.access(path, os.W_OK, effective_ids=True):
                return "", ""
    return f"we may not write {there[0]}", "run as root"
