"""What a sleeping thread waits for, told from the functions of the kernel in which it sleeps; and where that is another
thread, from the function of the C library, or of a runtime, that called the kernel.

The kernel knows only futexes: locks, conditions, barriers and the ends of threads are made of them in the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import dropwhile, islice, takewhile

from parprof.model import (
    AWAITS_ANSWER,
    AWAITS_CHILD,
    AWAITS_DEADLOCK,
    AWAITS_FILE,
    AWAITS_GIL,
    AWAITS_LOCKED,
    AWAITS_PIPE,
    AWAITS_THAW,
    AWAITS_TIME,
)
from parprof.patterns import regex

_FRAME = "[waits: "


def is_wait(name: str) -> bool:
    """Whether a frame of that name stands for a wait: see `WaitKind.frame_name`."""
    return name.startswith(_FRAME)


class WaitKind(Enum):
    """What is waited for: the word that reports use."""

    LOCK = "lock"
    """What another thread holds; also any futex of which no function tells more."""
    CONDITION = "condition"
    """Something to come: a condition, a semaphore, an item, a turn."""
    BARRIER = "barrier"
    """All others of a team, or its tasks."""
    THREAD = "thread"
    """The end of a thread."""
    GIL = "GIL"
    """The lock of a Python interpreter: that is told by where the futex is, not by functions."""
    DEADLOCK = "deadlock"
    """A mutex whose owner waits for this thread, directly or by way of others."""
    LOCKED = "with a lock"
    """Anything, by a thread that has a mutex which others wait for."""
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

    @property
    def is_for_threads(self) -> bool:
        """Whether a thread of the same program ends it, as a rule."""
        return self in (
            WaitKind.LOCK,
            WaitKind.GIL,
            WaitKind.CONDITION,
            WaitKind.BARRIER,
            WaitKind.THREAD,
            WaitKind.DEADLOCK,
        )

    @property
    def frame_name(self) -> str:
        """Of the frame at the end of the call paths of threads that wait so."""
        return f"{_FRAME}{self.value}]"

    @property
    def is_first(self) -> bool:
        """Whether it is known that others wait for who waits so, and not the other way round."""
        return self in (WaitKind.DEADLOCK, WaitKind.LOCKED)


KIND_AWAITED: Mapping[int, WaitKind] = {
    AWAITS_GIL: WaitKind.GIL,
    AWAITS_TIME: WaitKind.SLEEP,
    AWAITS_ANSWER: WaitKind.NETWORK,
    AWAITS_PIPE: WaitKind.PIPE,
    AWAITS_DEADLOCK: WaitKind.DEADLOCK,
    AWAITS_LOCKED: WaitKind.LOCKED,
    AWAITS_THAW: WaitKind.STOPPED,
    AWAITS_CHILD: WaitKind.CHILD,
    AWAITS_FILE: WaitKind.FILE,
}
"""By what is known of a wait beside the functions of the kernel."""

_BY_PREFIX: tuple[tuple[WaitKind, tuple[str, ...]], ...] = (
    (WaitKind.STOPPED, ("do_signal_stop", "ptrace_stop", "do_jobctl_trap", "ptrace_notify", "__refrigerator")),
    (
        WaitKind.REQUESTS,
        (
            "ep_poll", "do_epoll_", "do_sys_poll", "do_poll", "do_select", "core_sys_select", "io_cqring_wait",
            "io_uring_enter", "do_sigtimedwait", "sigsuspend", "__x64_sys_pause", "__do_sys_pause", "n_tty_read",
            "tty_read", "signalfd_read", "inotify_read", "fanotify_read", "read_events", "do_mq_timedreceive",
            "mq_timedreceive", "do_msgrcv", "ksys_msgrcv", "msgrcv",
        ),
    ),
    (
        WaitKind.LOCK,
        (
            "futex_", "do_futex", "do_semtimedop", "__do_semtimedop", "flock_lock_", "locks_lock_inode", "fcntl_setlk",
            "do_lock_file_wait", "posix_lock_",
        ),
    ),
    (WaitKind.CHILD, ("do_wait", "kernel_wait4", "kernel_waitid", "wait_for_vfork_done")),
    (WaitKind.SLEEP, ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "timerfd_read")),
    (WaitKind.CONDITION, ("eventfd_read",)),
    (WaitKind.PIPE, ("pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write", "fifo_open", "wait_for_partner",
                     "splice_", "ipipe_prep", "opipe_prep", "pipe_wait_", "wait_for_space", "do_msgsnd", "ksys_msgsnd",
                     "msgsnd", "do_mq_timedsend", "mq_timedsend")),
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
_OF_ANY_QUEUE = ("do_wait_intr",)
"""Helpers of whatever has a queue of waiters (timers, event counters, drivers): the caller tells what that is."""
_ACCEPTS = ("unix_accept", "inet_accept", "vsock_accept", "do_accept", "__sys_accept4")
"""Whatever they wait in, it is a connection that is to come."""
_FAULTS = ("exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "handle_mm_fault")
_FILES = (
    "io_schedule", "folio_wait", "wait_on_page", "blkdev_", "submit_bio_wait", "jbd2_", "ext4_", "xfs_", "btrfs_",
    "fuse_",
    "filemap_", "generic_file_", "vfs_fsync", "do_fsync", "balance_dirty_pages", "wb_wait_for", "wait_on_buffer",
    "__wait_on_buffer", "sync_inodes", "iomap_", "overlay_", "ovl_", "f2fs_", "vfs_read", "vfs_write", "rwsem_",
    "lookup_slow", "do_sys_openat2", "do_unlinkat", "request_wait_answer",
)  # fmt: skip
_OWN_MEMORY = (
    "exit_mm", "vm_mmap", "ksys_mmap", "__vm_munmap", "vm_munmap", "do_mprotect", "do_madvise", "do_mremap", "mremap",
    "brk", "__do_sys_brk",
)  # fmt: skip
"""What is waited for there is the process's own map of its memory, which another thread changes: no file."""

_COMPLETIONS = ("wait_for_completion", "wait_for_common", "__wait_for_common")
"""In these a parent waits whose child was created by vfork."""


def wait_kind(functions: Iterable[str]) -> WaitKind:
    """What a thread waits for that sleeps in these functions of the kernel, innermost first.

    >>> wait_kind(["__schedule", "schedule", "pipe_read", "vfs_read", "ksys_read"])
    <WaitKind.PIPE: 'pipe'>
    """
    names = [
        name.removeprefix("__x64_sys_") if "sys_pause" not in name else name
        for name in functions
        if not name.startswith(_OF_ANY_QUEUE)
    ]
    if any(name.startswith(_ACCEPTS) for name in names):
        return WaitKind.REQUESTS
    if _awaits_vfork(names):
        return WaitKind.CHILD
    for name in names:
        for kind, prefixes in _BY_PREFIX:
            if name.startswith(prefixes):
                return kind
    if any(name.startswith(_FAULTS) for name in names):
        return WaitKind.FAULT
    if any(name.startswith("rwsem_") for name in names) and any(
        name.startswith(_OWN_MEMORY) for name in names
    ):
        return WaitKind.OTHER
    return WaitKind.FILE if any(name.startswith(_FILES) for name in names) else WaitKind.OTHER


def _awaits_vfork(names: Sequence[str]) -> bool:
    """Whether a child is waited for until it calls exec: the function for that is inlined in many kernels."""
    at = next((at for at, name in enumerate(names) if name.startswith("kernel_clone")), None)
    return at is not None and (not at or any(name.startswith(_COMPLETIONS) for name in names[:at]))


_INNERMOST = 12
"""So many frames above the system call are looked at; what a compiler has inlined counts."""
_LEADING = regex(r"\A_+(?:GI_+)?")
"""What the C library's own names of its functions begin with."""
_OF_TYPE = regex(r"\A<([^<>]*)>::")
"""How functions of types begin in Rust."""
_JAVA = r"(?:\S+ )?java\.util\.concurrent\."
"""How its functions begin, as HotSpot names them: the type that they return is before that."""
_MADE_OF_LOCKS = (
    (WaitKind.BARRIER, regex(rf"Barrier\._?wait\Z|{_JAVA}(?:CyclicBarrier|Phaser)[.$]")),
    (
        WaitKind.CONDITION,
        regex(
            r"Condition\.wait(?:_for)?\Z|_?queue_SimpleQueue_get|queue\.cpython-\S+\+0x|"
            rf"{_JAVA}(?:(?:CountDownLatch|Semaphore)[.$]|locks\.\w+\.acquireSharedInterruptibly)"
        ),
    ),
    (WaitKind.THREAD, regex(r"Thread\.(?:join|_wait_for_tstate_lock)\Z|ThreadHandle_join")),
)
"""In Python and in Java all are made of locks; the outermost frame that is one of these decides."""
_MADE_OF_OTHERS = (
    (
        WaitKind.BARRIER,
        regex(
            r"(?:gomp|GOMP|kmp|kmpc)_\w*barrier|pthread_barrier_wait|"
            r"(?:.*::)?[Bb]arrier(?:<.*>)?::(?:arrive_and_)?wait\b|std::.*__barrier_phase_t"
        ),
    ),
    (
        WaitKind.LOCK,
        regex(
            r"take_gil|PyThread_acquire_lock|PyMutex_Lock|kmpc?_\w*(?:lock|critical)|ObjectMonitor::\w*[eE]nter|"
            rf"{_JAVA}locks\.(?:AbstractQueued(?:Long)?Synchronizer\.(?:acquire|parkAndCheck)|"
            r"(?:Reentrant|Stamped)\w*Lock(?:\$\w+)?\.(?:\w*[lL]ock|acquire\w*)\()|"
            r"caml_(?:thread_)?leave_blocking_section|st_masterlock_acquire|caml_thread_yield|"
            r"\(wrapper [^)]*\) (?:\S*mono_monitor_(?:try_)?enter|System\.Threading\.Monitor:\w*[eE]nter)"
        ),
    ),
    (WaitKind.SLEEP, regex(r"JavaThread::sleep|JVM_Sleep|os::sleep\(")),
    (WaitKind.THREAD, regex(r"(?:.*::)?(?:thread|JoinHandle(?:<.*>)?|JoinInner(?:<.*>)?)::join\b")),
)  # fmt: skip
"""These wait in functions of the next table in their turn, and decide wherever they are among the innermost frames."""
_BY_FUNCTION = (
    (
        WaitKind.CONDITION,
        regex(
            r"(?:pthread_cond_\w*wait|cnd_\w*wait|sem_\w*wait|new_sem_wait|GOMP_(?:ordered|doacross)_\w+)|"
            r"(?:.*::)?(?:condition_variable\w*|[Cc]ond[Vv]ar)(?:<.*>)?::wait|"
            r"(?:.*::)?\w*(?:[Ss]emaphore|[Ll]atch)\w*(?:<.*>)?::\w*(?:acquire|wait)|"
            r".*__atomic_futex_unsigned|std::__atomic_(?:base(?:<.*>)?::wait|wait_address)|"
            r"(?:.*::)?(?:Parker|Thread|thread|functions)::park\b|(?:.*::)?(?:mpsc|mpmc|channel)::|"
            r"runtime\.(?:notet?sleepg?|mPark|stopm|semasleep)\b|g_cond_wait|absl::CondVar::Wait|ethr_event_t?wait\b"
        ),
    ),
    (
        WaitKind.THREAD,
        regex(r"pthread_\w*join|thrd_join"),
    ),
    (
        WaitKind.LOCK,
        regex(
            r"pthread_(?:mutex|rwlock|spin)_\w*lock|lll_\w*lock|mtx_\w*lock|"
            r"(?:GOMP_(?:critical|atomic)\w*_start|omp_set_\w*lock|gomp_mutex_lock)|"
            r"(?:.*::)?(?:\w*(?:[Mm]utex|RwLock)\w*(?:<.*>)?::\w*(?:lock|Lock|read|write)|Once\w*(?:<.*>)?::call)\w*|"
            r"runtime\.lock(?:2|WithRank)?\b|g_\w*mutex_lock"
        ),
    ),
)  # fmt: skip
"""The innermost frame that is one of these decides."""
_IN_POLL = (
    (
        WaitKind.LOCK,
        regex(r"(?:ProcSleep|LockAcquire(?:Extended)?|\w*LockTableWait\w*|VirtualXactLock|WaitForLockers\w*)\Z"),
    ),
    (
        WaitKind.CONDITION,
        regex(r"(?:ConditionVariable(?:Timed)?Sleep|WaitForParallelWorkersTo\w+|shm_mq_\w+)\Z"),
    ),
    (WaitKind.SLEEP, regex(r"(?:pg_|apr_|time_|py)?(?:[mun]|nano)?sleep\Z")),
)  # fmt: skip
"""Functions that wait for none of those events that poll() and its like tell of: processes that have locks in memory
which they share let each other go on by a signal (PostgreSQL)."""
_OF_TEAM = regex(
    r"GOMP_(?:parallel|loop_end|sections_end|single_copy|taskwait|taskgroup_end|teams)|gomp_thread_start|"
    r"kmp_(?:join_call|fork_call|launch_thread|launch_worker)|kmpc_(?:omp_taskwait|end_taskgroup|fork_call)"
)
"""A thread waits for its team where nothing but the runtime and the C library is inside of one of these."""
_INSIDE = regex(
    r".*\+0x|\[|\Z|futex|syscall|lll_|gomp_|GOMP_|kmp_|kmpc_|pthread_|sem_|new_sem_|start_thread|clone"
)
"""Their functions, and what has no name."""
_RUNTIME = regex(r"lib(?:gomp|omp|iomp)\S*\+0x|gomp_|kmp_")
"""Those of OpenMP's runtimes alone."""
_C_LIBRARY = regex(r"futex|syscall|lll_|pthread_|sem_|new_sem_|lib(?:c|pthread)[.-]\S*\+0x")
_PARKS = regex(
    r"<*(?:rayon_core::registry::WorkerThread>?::wait_until|tokio::runtime::(?:scheduler|blocking::pool|park)::|"
    r"(?:\w+::)*context::Context>?::wait_until)"
)
"""Into functions of pools of threads in Rust a condition or a parker is inlined as a rule, and leaves no name; what a
mutex does to sleep is never."""
_OF_TBB = regex(r"libtbb(?:12)?[._-]\S*\+0x|(?:\S+ )?tbb::")
_MUTEX_OF_TBB = regex(r".*(?:wait_on_address|mutex)")
"""oneTBB calls the kernel itself: its threads sleep so for work, and for its own mutexes by this function."""
_STRIPPED_PYTHON = regex(r"(?:lib)?python\d\S*\+0x")
"""A stripped interpreter itself waits on a condition for one thing: its lock, the GIL."""


def thread_wait_kind(functions: Iterable[str]) -> WaitKind:
    """What a thread waits for that sleeps on a futex in these functions of its process, innermost first.

    >>> thread_wait_kind(["libc.so.6+0x89d60", "pthread_cond_wait", "std::condition_variable::wait(...)", "pop"])
    <WaitKind.CONDITION: 'condition'>
    >>> thread_wait_kind(["libc.so.6+0x89d60", "pthread_cond_timedwait", "take_gil", "PyEval_RestoreThread"])
    <WaitKind.LOCK: 'lock'>
    """
    names = [_OF_TYPE.sub(r"\1::", _LEADING.sub("", name)) for name in islice(functions, _INNERMOST)]
    if (kind := _first(_MADE_OF_LOCKS, names[::-1])) is not None:
        return kind
    if (kind := _first(_MADE_OF_OTHERS, names)) is not None:
        return kind
    caller = next(dropwhile(_C_LIBRARY.match, names), "")
    if _STRIPPED_PYTHON.match(caller):
        return WaitKind.LOCK
    if _OF_TBB.match(caller):
        theirs = takewhile(_OF_TBB.match, dropwhile(_C_LIBRARY.match, names))
        return WaitKind.LOCK if any(map(_MUTEX_OF_TBB.match, theirs)) else WaitKind.CONDITION
    if _PARKS.match(caller):
        return WaitKind.CONDITION
    inside = list(takewhile(_INSIDE.match, names))
    is_idle = len(inside) == len(names) and any(map(_RUNTIME.match, inside))
    if is_idle or any(map(_OF_TEAM.match, inside)):
        return WaitKind.BARRIER
    return _first(_BY_FUNCTION, names) or WaitKind.LOCK


def polled_kind(functions: Iterable[str]) -> WaitKind:
    """What a thread waits for that sleeps in poll(), select() or epoll_wait() in these functions of its process,
    innermost first.

    >>> polled_kind(["epoll_wait", "WaitEventSetWait", "WaitLatch", "ProcSleep", "postgres+0x409ae0", "heap_update"])
    <WaitKind.LOCK: 'lock'>
    >>> polled_kind(["epoll_wait", "WaitEventSetWait", "secure_read", "pq_getbyte", "PostgresMain"])
    <WaitKind.REQUESTS: 'requests'>
    """
    names = [_LEADING.sub("", name) for name in islice(functions, _INNERMOST)]
    return _first(_IN_POLL, names) or WaitKind.REQUESTS


def _first(table: Sequence[tuple[WaitKind, re.Pattern[str]]], names: Sequence[str]) -> WaitKind | None:
    """The kind of the innermost frame that is in a table."""
    found = (kind for name in names for kind, pattern in table if pattern.match(name))
    return next(found, None)
