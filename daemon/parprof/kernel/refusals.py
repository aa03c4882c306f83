"""Why the kernel does not permit what it was asked: read where it stands, and named with the remedy."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from parprof.errors import KernelUnsupported, ParprofError, PrivilegeError

CAPABILITIES = {
    2: "CAP_DAC_READ_SEARCH", 12: "CAP_NET_ADMIN", 19: "CAP_SYS_PTRACE", 21: "CAP_SYS_ADMIN", 38: "CAP_PERFMON",
    39: "CAP_BPF",
}  # fmt: skip
_SYS_ADMIN, _PERFMON, _BPF = 21, 38, 39
LOCKDOWN = Path("/sys/kernel/security/lockdown")
STATUS = Path("/proc/self/status")


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def missing_capabilities(needed: tuple[int, ...], status: Path = STATUS) -> list[str]:
    """Those of these capabilities that we do not have; CAP_SYS_ADMIN stands for all."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(status), re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    if effective >> _SYS_ADMIN & 1:
        return []
    return [CAPABILITIES[bit] for bit in needed if not effective >> bit & 1]


def bpf_not_permitted(lockdown: Path = LOCKDOWN, status: Path = STATUS) -> ParprofError:
    """The error to raise when a BPF map or program was refused with EPERM."""
    if "[confidentiality]" in _read(lockdown):
        return KernelUnsupported(
            "the kernel is locked down (lockdown=confidentiality): BPF programs may not read what they must; "
            "boot with lockdown=integrity or none"
        )
    missing = missing_capabilities((_BPF, _PERFMON), status)
    if missing:
        return PrivilegeError(
            f"loading BPF programs is not permitted ({', '.join(missing)} missing): run as root or with CAP_BPF and "
            "CAP_PERFMON"
        )
    if re.search(r"^Seccomp:\s*2", _read(status), re.MULTILINE):
        return PrivilegeError(
            "loading BPF programs is not permitted, although we have the capabilities: the seccomp filter that we run "
            "under may forbid bpf(2); allow it (containers: --security-opt seccomp=unconfined)"
        )
    return KernelUnsupported(
        f"Linux {os.uname().release} does not permit BPF maps of our size, although we have the capabilities: kernels "
        "before 5.11 charge them to RLIMIT_MEMLOCK, and parprof needs Linux 5.15 or later"
    )
