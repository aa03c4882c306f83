"""What this kernel and machine can do and can't, found by trying, each with its remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parprof.errors import ParprofError
from parprof.kernel import bpf, perf_events
from parprof.kernel.objects import LoadedObject, load_object
from parprof.kernel.refusals import missing_capabilities

_NEEDED = (39, 38, 19, 2)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `parprof check`. ``remedy`` is empty where all is well; ``fatal``: profiling cannot work."""

    topic: str
    ok: bool
    says: str
    remedy: str = ""
    fatal: bool = False


def _privileges() -> Finding:
    missing = missing_capabilities(_NEEDED)
    if missing:
        return Finding("privileges", False, f"missing {', '.join(missing)}", "run as root", fatal=True)
    return Finding("privileges", True, "root" if os.geteuid() == 0 else "the needed capabilities")


def _pid_namespace() -> Finding:
    if os.stat("/proc/self/ns/pid").st_ino == 4026531836:
        return Finding("PID namespace", True, "the initial one")
    remedy = "start the container with --pid=host"
    return Finding(
        "PID namespace", False, "not the initial one: PIDs differ from the kernel's", remedy, fatal=True
    )


def _btf() -> Finding:
    if Path("/sys/kernel/btf/vmlinux").exists():
        return Finding("BTF", True, "present")
    return Finding("BTF", False, "absent", "a kernel with CONFIG_DEBUG_INFO_BTF=y", fatal=True)


def _programs() -> Iterator[Finding]:
    try:
        loaded = load_object()
    except ParprofError as error:
        says, _, remedy = str(error).partition(": ")
        yield Finding("BPF programs", False, says, remedy, fatal=True)
        return
    try:
        for name in loaded.program_names():
            loaded.program(name)
        yield Finding("BPF programs", True, "compile and load; no kernel headers, no tracefs needed")
        yield _tracepoints(loaded)
        yield _uprobes(loaded)
    except ParprofError as error:
        yield Finding("BPF programs", False, str(error), "Linux 5.15 or later; please report", fatal=True)
    finally:
        loaded.close()


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
        "single": "single perf events: slow to detach, in the background; Linux 6.13 or later has better",
    }
    return Finding("uprobes", True, words[prober.mechanism])


def _clock() -> Finding:
    if perf_events.is_available("cycles") is None:
        return Finding("clock event", True, "cycles (hardware counter)")
    refusal = perf_events.is_available("cpu-clock")
    if refusal is None:
        return Finding(
            "clock event", True, "cpu-clock: there is no PMU here",
            "give the virtual machine a virtual PMU for cycles and cache events",
        )  # fmt: skip
    return Finding("clock event", False, refusal.strerror or "refused", "run as root", fatal=True)


def _events() -> Finding:
    able = [name for name in perf_events.EVENTS if perf_events.is_available(name) is None]
    missing = [name for name in perf_events.EVENTS if name not in able]
    return Finding("events", True, f"{', '.join(able)}" + (f"; not: {', '.join(missing)}" if missing else ""))


def _rate() -> Finding:
    return Finding(
        "sampling", True, f"up to {perf_events.maximum_rate_hz()} Hz on {len(perf_events.online_cpus())} CPUs"
    )


def _symbols() -> Finding:
    try:
        import symbolic  # noqa: F401
    except ImportError as error:
        return Finding(
            "symbols", False, f"{error}", "pip install symbolic: names only from symbol tables without it"
        )
    return Finding("symbols", True, "names, lines and inlined frames")


def findings() -> list[Finding]:
    """Try everything; never raises for a missing feature."""
    checks: list[Callable[[], Finding]] = [_privileges, _pid_namespace, _btf]
    out = [check() for check in checks]
    out.extend(_programs())
    out.extend(check() for check in (_clock, _events, _rate, _symbols))
    return out
