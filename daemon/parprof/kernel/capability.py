"""What this kernel and machine can do and can't, found by trying, each with its remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from parprof.errors import ParprofError
from parprof.kernel import bpf, perf_events
from parprof.kernel.compiler import pid_namespace
from parprof.kernel.cpus import online_cpus
from parprof.kernel.objects import LoadedObject, load_object
from parprof.kernel.refusals import (
    FOR_OTHERS,
    FOR_OWN_PROCESSES,
    memory_closed,
    missing_capabilities,
    perf_not_permitted,
    tracefs_problem,
)
from parprof.kernel.traced_events import TRACEFS
from parprof.values import dataclass
from parprof.workers import seccomp


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `parprof check`. ``remedy`` is empty where all is well; ``fatal``: profiling cannot work."""

    topic: str
    ok: bool
    says: str
    remedy: str = ""
    fatal: bool = False


def _privileges() -> Finding:
    missing = missing_capabilities(FOR_OWN_PROCESSES)
    if missing:
        return Finding(
            "privileges",
            False,
            f"missing {', '.join(missing)}",
            "run as root; CAP_BPF and CAP_PERFMON are enough for record, and for attach to processes of one's own",
            fatal=True,
        )
    missing = missing_capabilities(FOR_OTHERS)
    if missing:
        return Finding(
            "privileges",
            True,
            "enough for record, and for attach to processes of one's own",
            f"attach to those of others, and parprofd: {', '.join(missing)} too",
        )
    return Finding("privileges", True, "root" if os.geteuid() == 0 else "all that any command needs")


def _memory() -> Iterator[Finding]:
    """Only where something is wrong."""
    closed = memory_closed()
    if closed:
        yield Finding(
            "memory",
            False,
            f"that of processes which we did not start is closed to us: {closed}",
            "as root: sysctl kernel.yama.ptrace_scope=0; else attach does not name Python functions, and n_w comes "
            "from probes alone",
        )


def _pid_namespace() -> Finding:
    if os.readlink("/proc/self") != str(os.getpid()):
        return Finding(
            "PID namespace",
            False,
            "/proc is that of another PID namespace than ours",
            "mount the right one: mount -t proc proc /proc",
            fatal=True,
        )
    if pid_namespace() == 0:
        return Finding("PID namespace", True, "the initial one")
    return Finding(
        "PID namespace",
        True,
        "one of our own: the processes in it are seen",
        "for those of the whole machine: start the container with --pid=host",
    )


def _btf() -> Finding:
    if Path("/sys/kernel/btf/vmlinux").exists():
        return Finding("BTF", True, "present")
    return Finding(
        "BTF",
        False,
        "absent (/sys/kernel/btf/vmlinux): BPF programs cannot be compiled here",
        "a kernel with CONFIG_DEBUG_INFO_BTF=y",
    )


def _programs() -> Iterator[Finding]:
    try:
        loaded = load_object()
    except ParprofError as error:
        yield _refused(error)
        return
    try:
        for name in loaded.program_names():
            loaded.program(name)
        yield Finding("BPF programs", True, "compile and load; no kernel headers needed")
        yield _tracepoints(loaded)
        yield _uprobes(loaded)
    except ParprofError as error:
        yield _refused(error)
    finally:
        loaded.close()


def _refused(error: ParprofError) -> Finding:
    says, _, remedy = str(error).partition(": ")
    if says.startswith("the kernel refused BPF program"):
        says, remedy = str(error), "Linux 5.15 or later; please report"
    return Finding("BPF programs", False, says, remedy, fatal=True)


def _tracepoints(loaded: LoadedObject) -> Finding:
    try:
        os.close(bpf.raw_tracepoint_open("sched_switch", loaded.program("on_switch")))
    except OSError as error:
        return Finding(
            "tracepoints", False, error.strerror or "refused", "a kernel with CONFIG_BPF_EVENTS=y", fatal=True
        )
    return Finding("tracepoints", True, "scheduler tracepoints attach")


def _uprobes(loaded: LoadedObject) -> Finding:
    from parprof.kernel.uprobes import Prober, Site

    prober = Prober(loaded)
    try:
        # offset 0 of our own executable is its ELF header: mapped, never executed
        prober.attach([Site(f"/proc/{os.getpid()}/exe", 0, 4, returns=True)], os.getpid()).close()
    except ParprofError as error:
        return Finding(
            "uprobes",
            False,
            str(error),
            "CONFIG_UPROBE_EVENTS=y; without, n_w comes from the scheduler alone",
        )
    finally:
        prober.close()
    words = {
        "session": "session links (cheapest)",
        "multi": "multi links",
        "traced": "events of tracefs; Linux 6.13 or later has better",
    }
    if prober.mechanism in words:
        return Finding("uprobes", True, words[prober.mechanism])
    problem, remedy = tracefs_problem(TRACEFS)
    says = "single perf events: slow to detach, in the background"
    if problem:
        return Finding("uprobes", True, f"{says}; {problem}", remedy)
    return Finding("uprobes", True, f"{says}; Linux 6.13 or later has better")


def _clock() -> Finding:
    if perf_events.is_available("cycles") is None:
        return Finding("clock event", True, "cycles (hardware counter)")
    refusal = perf_events.is_available("cpu-clock")
    if refusal is None:
        return Finding(
            "clock event",
            True,
            "cpu-clock: there is no PMU here",
            "give the virtual machine a virtual PMU for cycles and cache events",
        )
    if refusal.errno in (errno.EACCES, errno.EPERM):
        says, _, remedy = str(perf_not_permitted()).partition(": ")
        return Finding("clock event", False, says, remedy, fatal=True)
    return Finding("clock event", False, refusal.strerror or "refused", "please report", fatal=True)


def _events() -> Finding:
    able = [name for name in perf_events.EVENTS if perf_events.is_available(name) is None]
    missing = [name for name in perf_events.EVENTS if name not in able]
    return Finding("events", True, f"{', '.join(able)}" + (f"; not: {', '.join(missing)}" if missing else ""))


def _rate() -> Finding:
    return Finding("sampling", True, f"up to {perf_events.maximum_rate_hz()} Hz on {len(online_cpus())} CPUs")


def _symbols() -> Finding:
    try:
        import symbolic  # noqa: F401
    except ImportError as error:
        return Finding(
            "symbols", False, f"{error}", "pip install symbolic: names only from symbol tables without it"
        )
    return Finding("symbols", True, "names, lines and inlined frames")


def children() -> Finding:
    """How the children that read foreign files are confined."""
    missing = seccomp.missing()
    if missing:
        return Finding(
            "children",
            False,
            f"those that read foreign files are nobody; no filter of system calls: {missing}",
            "a kernel with CONFIG_SECCOMP_FILTER=y, on x86-64; profiling works without",
        )
    return Finding("children", True, "those that read foreign files are nobody, with few system calls")


def findings() -> list[Finding]:
    """Try everything; never raises for a missing feature."""
    checks: list[Callable[[], Finding]] = [_privileges, _pid_namespace, _btf]
    out = [check() for check in checks]
    out.extend(_memory())
    out.extend(_programs())
    out.extend(check() for check in (_clock, _events, _rate, _symbols, children))
    return out
