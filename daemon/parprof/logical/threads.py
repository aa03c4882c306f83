"""POSIX, C11 and C++ threads: which of the C library's functions create threads and synchronize them.

Any time in the threads library is parallel overhead (tallent-2009 sec. 2.2); the functions here are those of it
that create and synchronize. They lie in the C library, so they are told by name.
"""

from __future__ import annotations

from parprof.files.libc import is_of_c_library
from parprof.model import Frame
from parprof.patterns import regex
from parprof.runtimes import Agent

_PLAIN = regex(r"_*(?:GI_+)?(\w+)(?:@.*)?")
"""A name without what glibc puts around it: ``___pthread_mutex_lock``, ``pthread_cond_wait@@GLIBC_2.3.2``."""
_CREATE = regex(r"pthread_create(?:_\d+_\d+)?|thrd_create")
"""With the version of its interface, as glibc names the function itself: ``__pthread_create_2_1``."""
_CLONE = regex(r"clone3?|clone_internal")
"""What the C library calls the system call by, and so the leaf of a stack that creates a thread."""
_SCHEDULERS = regex(r"runtime\.(?:clone|\w*futex\w*)(?:\.abi0)?\Z")
_SYNCHRONIZE = regex(
    r"pthread_(?:mutex|rwlock|spin|cond|barrier)_\w+|pthread_\w*join\w*|"
    r"sem_(?:wait|post|timedwait|clockwait|trywait)|mtx_\w*lock|cnd_\w+|thrd_join"
)
_INTERNAL = regex(r"lll_\w*(?:lock|wait|wake)\w*|futex_\w+")
"""Functions of the C library that locks end in. Other programs may use such names as well."""
_PLUMBING = regex(
    r"std::(?:__\w+::)*(?:thread::(?:_|thread)|__thread_proxy)|execute_native_thread_routine|g_thread_proxy"
)
"""What C++ and GLib put between the creation of a thread and its function."""
_PROGRAMS = regex(
    r"(?:qsort|qsort_r|msort_with_tmp\S*|bsearch|[tlh]search|twalk|lfind|nftw?|scandir|glob|v?(?:[fsd]|sn|as)?w?printf|"
    r"v?[fs]?w?scanf|f(?:read|write|gets|puts|flush|sync|datasync)(?:_unlocked)?|getline|p?(?:read|write)v?(?:64)?|"
    r"strto\w+|ato[filq]+|rand(?:om)?(?:_r)?|[dejlmn]rand48(?:_r)?|strftime|strptime|regexec)(?:_internal)?"
)
"""What a program asks of the C library, and no runtime does in the middle of parallel work: where it seems to, the body
of a region or a task went there by its last call, which leaves no frame of it."""
_PASSED_BY = regex(r"std::(?:__\w+::)*__invoke")


def is_of_scheduler(frame: Frame) -> bool:
    """Whether the leaf of a stack that creates a thread is of a language whose own scheduler runs many routines on few
    threads (Go): what happened to run when it wanted another thread did not create what that will run."""
    return bool(_SCHEDULERS.match(frame.name))


def may_call_clone(frame: Frame) -> bool:
    """Whether this has the name of glibc's function that creates threads."""
    return frame.name == "create_thread"


def calls_clone(frame: Frame, callee: Frame) -> bool:
    """Whether this is glibc's ``create_thread``, which is told by what it calls: a program may use the name, too."""
    return may_call_clone(frame) and bool(_CLONE.fullmatch(THREADS.plain(callee.name)))


def passes_by(frame: Frame) -> bool:
    """Whether a frame belongs to the runtime's if that called it: it only helps or passes calls on."""
    if is_of_c_library(frame.module):
        return not _PROGRAMS.fullmatch(THREADS.plain(frame.name))
    return bool(_PASSED_BY.match(frame.name))


class Threads(Agent):
    """Agent for threads without a runtime above them."""

    name = "threads"

    def owns(self, name: str, module: str, file: str = "") -> bool:
        """Creation and synchronization of threads, and what lies around a thread's function."""
        if _PLUMBING.match(name):
            return True
        plain = self.plain(name)
        return bool(
            _CREATE.fullmatch(plain)
            or _CLONE.fullmatch(plain)
            or _SYNCHRONIZE.fullmatch(plain)
            or (is_of_c_library(module) and _INTERNAL.fullmatch(plain))
        )

    def overhead(self, name: str) -> str:
        """Create, sync or other."""
        plain = self.plain(name)
        if _CREATE.fullmatch(plain) or _CLONE.fullmatch(plain):
            return "create"
        return "sync" if _SYNCHRONIZE.fullmatch(plain) or _INTERNAL.fullmatch(plain) else "other"

    @staticmethod
    def plain(name: str) -> str:
        """The name without what glibc puts around it."""
        match = _PLAIN.fullmatch(name)
        return match[1] if match else name


THREADS = Threads()
