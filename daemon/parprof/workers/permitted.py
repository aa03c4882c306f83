"""Which system calls the children that read hostile input may make.

Three answers. What computing, reading what one holds and answering needs is allowed. What no parser does by mistake,
and what an intruder does first, ends the child at once: the parent notices and says so. All else fails as if the
kernel did not have it (ENOSYS), which libraries know how to do without, so that a newer C library with newer system
calls costs nothing but a detour.
"""

from __future__ import annotations

import errno
import os

from parprof.workers.seccomp import ALLOW, KILL, Argument, Policy, failing

OTHERWISE = failing(errno.ENOSYS)
_CLONE_THREAD = 0x10000
_TCGETS, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x5401, 0x541B, 0x5421, 0x5450, 0x5451
_PR_SET_NAME, _PR_SET_VMA = 15, 0x53564D41
_AF_INET, _AF_INET6, _AF_NETLINK = 2, 10, 16

_COMPUTES = (
    "brk", "mmap", "mprotect", "munmap", "mremap", "madvise", "futex", "membarrier", "set_robust_list", "rseq",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "alarm", "setitimer",
    "nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "times", "getrusage",
    "sched_yield", "sched_getaffinity", "sysinfo", "uname", "getrandom", "getpid", "gettid", "getuid", "geteuid",
    "getgid", "getegid", "exit", "exit_group",
)  # fmt: skip
_READS_AND_ANSWERS = (
    "read", "readv", "pread64", "write", "writev", "pwrite64", "lseek", "close", "dup", "fcntl", "fsync", "ftruncate",
    "memfd_create", "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat",
    "faccessat2", "readlink", "readlinkat", "getdents64", "getcwd", "poll", "ppoll", "select", "pselect6", "sendto",
    "sendmsg", "recvfrom", "recvmsg", "shutdown", "getsockopt", "getsockname", "getpeername",
)  # fmt: skip
_ENDS_IT = (
    # other programs, other processes
    "execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise",
    "kcmp", "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    # the network
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendmmsg", "recvmmsg",
    # parts of the kernel with a history
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "add_key",
    "request_key", "keyctl", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load",
    # who and where one is
    "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "capset", "personality",
    "unshare", "setns", "chroot", "pivot_root", "mount", "umount2", "open_tree", "move_mount", "fsopen", "fsmount",
    "mount_setattr", "open_by_handle_at", "swapon", "reboot", "iopl", "ioperm",
)  # fmt: skip


def for_parsers() -> Policy:
    """For a child that reads from descriptors it is given and answers on a socket it has.

    Files are opened only to be read: modules that Python imports late. Opening one to write it is refused and not the
    end, because Python tries to keep what it compiled. Of an ioctl only what Python and resolvers ask of files of their
    own: that of a terminal could type for the user.
    """
    me = os.getpid()
    to_write = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_TMPFILE & ~os.O_DIRECTORY
    return {
        **dict.fromkeys((*_COMPUTES, *_READS_AND_ANSWERS), ALLOW),
        **dict.fromkeys(_ENDS_IT, KILL),
        "open": Argument(1, (os.O_RDONLY,), failing(errno.EACCES), to_write),
        "openat": Argument(2, (os.O_RDONLY,), failing(errno.EACCES), to_write),
        "ioctl": Argument(1, (_TCGETS, _FIONREAD, _FIONBIO, _FIOCLEX, _FIONCLEX), failing(errno.ENOTTY)),
        "prctl": Argument(0, (_PR_SET_NAME, _PR_SET_VMA), failing(errno.EINVAL)),
        "prlimit64": Argument(0, (0, me), failing(errno.EPERM)),
        "clone": Argument(0, (_CLONE_THREAD,), KILL, _CLONE_THREAD),
        "kill": Argument(0, (me,), KILL),
        "tgkill": Argument(0, (me,), KILL),  # how abort() ends a process
    }


def for_fetchers() -> Policy:
    """For a child that talks to servers, too. No sockets of this machine's own services."""
    families = _AF_INET, _AF_INET6, _AF_NETLINK  # the last tells getaddrinfo which addresses this machine has
    return {
        **for_parsers(),
        **dict.fromkeys(("connect", "bind", "setsockopt", "sendmmsg", "recvmmsg"), ALLOW),
        "socket": Argument(0, families, failing(errno.EAFNOSUPPORT)),
    }
