"""What a sleeping thread waits for, told from the functions of the kernel in which it sleeps."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class WaitKind(Enum):
    """What is waited for: the word that reports use."""

    LOCK = "lock"
    """A futex: a lock, a condition, a barrier, the end of a thread; the functions above tell which."""
    GIL = "GIL"
    """The lock of a Python interpreter: that is told by where the futex is, not by functions."""
    FILE = "file"
    """Files and block devices."""
    FAULT = "page fault"
    PIPE = "pipe"
    NETWORK = "network"
    SLEEP = "sleep"
    CHILD = "child"
    """The end of a child process."""
    STOPPED = "stopped"
    """By a signal or a debugger."""
    REQUESTS = "requests"
    """Something to do from outside: a connection, an event, a signal, a key."""
    OTHER = "other"

    @property
    def is_outside(self) -> bool:
        """Whether it is no fault of the program that it waits so: a server without requests has nothing to do.

        The rule (docs/concepts.md): `REQUESTS`, and `STOPPED`.
        """
        return self in (WaitKind.REQUESTS, WaitKind.STOPPED)


_BY_PREFIX: tuple[tuple[WaitKind, tuple[str, ...]], ...] = (
    (WaitKind.STOPPED, ("do_signal_stop", "ptrace_stop", "do_jobctl_trap", "ptrace_notify")),
    (
        WaitKind.REQUESTS,
        (
            "ep_poll", "do_epoll_", "do_sys_poll", "do_poll", "do_select", "core_sys_select", "inet_csk_accept",
            "inet_accept", "unix_accept", "do_accept", "__sys_accept4", "vsock_accept", "io_cqring_wait",
            "io_uring_enter", "do_sigtimedwait", "sigsuspend", "__x64_sys_pause", "__do_sys_pause", "n_tty_read",
            "tty_read", "signalfd_read", "inotify_read", "eventfd_read", "timerfd_read", "fanotify_read",
            "read_events", "do_mq_timedreceive",
        ),
    ),
    (WaitKind.LOCK, ("futex_", "do_futex", "do_semtimedop", "__do_semtimedop", "flock_lock_", "locks_lock_inode")),
    (WaitKind.CHILD, ("do_wait", "kernel_wait4", "kernel_waitid", "wait_for_vfork_done")),
    (WaitKind.SLEEP, ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")),
    (WaitKind.PIPE, ("pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write", "fifo_open", "wait_for_partner",
                     "splice_", "ipipe_prep", "opipe_prep")),
    (
        WaitKind.NETWORK,
        (
            "tcp_", "udp_", "udpv6_", "unix_stream_", "unix_dgram_", "__skb_wait_for_more", "sk_wait_data",
            "sk_stream_wait", "inet_stream_connect", "__inet_stream_connect", "inet_wait_for_connect", "unix_wait_for",
            "vsock_", "rpc_", "nfs_", "xprt_", "p9_", "sock_", "inet_",
        ),
    ),
)  # fmt: skip
"""In the order in which they are looked for: the innermost function that one of them begins with decides, so a page
fault in the middle of a read is the file's."""
_FAULTS = ("exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "handle_mm_fault")
_FILES = (
    "io_schedule", "folio_wait", "wait_on_page", "blkdev_", "submit_bio_wait", "jbd2_", "ext4_", "xfs_", "btrfs_",
    "fuse_",
    "filemap_", "generic_file_", "vfs_fsync", "do_fsync", "balance_dirty_pages", "wb_wait_for", "wait_on_buffer",
    "__wait_on_buffer", "sync_inodes", "iomap_", "overlay_", "ovl_", "f2fs_", "vfs_read", "vfs_write", "rwsem_",
    "lookup_slow", "do_sys_openat2", "do_unlinkat", "request_wait_answer",
)  # fmt: skip


def wait_kind(functions: Iterable[str]) -> WaitKind:
    """What a thread waits for that sleeps in these functions of the kernel, innermost first.

    >>> wait_kind(["__schedule", "schedule", "pipe_read", "vfs_read", "ksys_read"])
    <WaitKind.PIPE: 'pipe'>
    """
    names = [name.removeprefix("__x64_sys_") if "sys_pause" not in name else name for name in functions]
    for name in names:
        for kind, prefixes in _BY_PREFIX:
            if name.startswith(prefixes):
                return kind
    if any(name.startswith(_FAULTS) for name in names):
        return WaitKind.FAULT
    return WaitKind.FILE if any(name.startswith(_FILES) for name in names) else WaitKind.OTHER
