"""A filter of system calls for this process, for ever: `SECCOMP_SET_MODE_FILTER`, see seccomp(2).

The kernel runs a small program of classic BPF before each system call; it sees the call's number and the values of its
arguments, not what they point to. Assembled here, because it is some twenty lines, and a library for it would be one
more that runs in the children. Only for x86-64: numbers of system calls differ elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

ALLOW = 0x7FFF0000
KILL = 0x80000000
"""The whole process ends by `SIGSYS`, whatever it does about signals."""
_ERRNO = 0x00050000

NUMBERS = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
    "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24,
    "mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35, "alarm": 37, "setitimer": 38, "getpid": 39, "socket": 41,
    "connect": 42, "accept": 43, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "shutdown": 48, "bind": 49,
    "listen": 50, "getsockname": 51, "getpeername": 52, "socketpair": 53, "setsockopt": 54, "getsockopt": 55,
    "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "kill": 62, "uname": 63, "fcntl": 72, "fsync": 74,
    "ftruncate": 77, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrusage": 98, "sysinfo": 99, "times": 100,
    "ptrace": 101, "getuid": 102, "getgid": 104, "setuid": 105, "setgid": 106, "geteuid": 107, "getegid": 108,
    "setreuid": 113, "setregid": 114, "setgroups": 116, "setresuid": 117, "setresgid": 119, "capset": 126,
    "rt_sigqueueinfo": 129, "sigaltstack": 131, "personality": 135, "statfs": 137, "fstatfs": 138, "pivot_root": 155,
    "prctl": 157, "chroot": 161, "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "gettid": 186, "tkill": 200, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "tgkill": 234, "kexec_load": 246, "add_key": 248, "request_key": 249,
    "keyctl": 250, "openat": 257, "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271,
    "unshare": 272, "set_robust_list": 273, "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298,
    "recvmmsg": 299, "prlimit64": 302, "open_by_handle_at": 304, "sendmmsg": 307, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "getrandom": 318, "memfd_create": 319,
    "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323, "membarrier": 324, "statx": 332,
    "rseq": 334, "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "pidfd_open": 434, "pidfd_getfd": 438,
    "faccessat2": 439, "process_madvise": 440, "mount_setattr": 442,
}  # fmt: skip
"""Of x86-64: those that `parprof.workers.permitted` has something to say of."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT, _ARGUMENT_SIZE = 0, 4, 16, 8
_MACHINE_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
"""In numbers of system calls with 32-bit pointers: the same calls by other names."""
_MOST_INSTRUCTIONS = 4096
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _MODE_FILTER = 21, 22, 2


class Argument(NamedTuple):
    """What is done depends on the lower half of an argument: ``allowed`` values, after ``mask``, or ``otherwise``."""

    position: int
    allowed: tuple[int, ...]
    otherwise: int
    mask: int = 0xFFFFFFFF


Policy = Mapping[str, int | Argument]
"""Name of a system call -> what comes of it."""


def failing(number: int) -> int:
    """The call fails with this ``errno``."""
    return _ERRNO | number


def program(policy: Policy, otherwise: int) -> bytes:
    """The filter as the kernel takes it: what ``policy`` names, and ``otherwise`` for all else."""
    code = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, _MACHINE_X86_64),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, KILL),
    ]
    for name, action in policy.items():
        then = [(_RETURN, 0, 0, action)] if isinstance(action, int) else list(_looks_at(action))
        code += [(_EQUAL, 0, len(then), NUMBERS[name]), *then]
    code.append((_RETURN, 0, 0, otherwise))
    if len(code) > _MOST_INSTRUCTIONS:
        raise ValueError("the filter is too long")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _looks_at(argument: Argument) -> Iterator[tuple[int, int, int, int]]:
    """Instructions that end in any case, so that no jump goes further than over one system call's."""
    yield _LOAD, 0, 0, _ARGUMENTS_AT + _ARGUMENT_SIZE * argument.position
    yield _AND, 0, 0, argument.mask
    for value in argument.allowed:
        yield _EQUAL, 0, 1, value
        yield _RETURN, 0, 0, ALLOW
    yield _RETURN, 0, 0, argument.otherwise


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def missing(machine: str | None = None) -> str:
    """Why there can be no filter here; empty if there can."""
    machine = machine or os.uname().machine
    if machine != "x86_64" or sys.maxsize < 1 << 32:
        return f"none for {machine}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return "the kernel has none (CONFIG_SECCOMP)"
    # what the kernel answers to a null pointer tells whether it would have looked at a filter
    libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return "" if ctypes.get_errno() == errno.EFAULT else "the kernel has none (CONFIG_SECCOMP_FILTER)"


def install(code: bytes) -> None:
    """Put the filter in force for this process, whose only thread this is, and for all that it starts.

    By prctl and not by seccomp(2), which service managers' own filters may not let through.

    Raises:
        OSError: it is not in force. So it is without ``PR_SET_NO_NEW_PRIVS`` before.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise OSError(errno.EBUSY, "other threads would go on without the filter")
    libc = ctypes.CDLL(None, use_errno=True)
    filled = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filled), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"the filter of system calls is refused: {os.strerror(number)}")
