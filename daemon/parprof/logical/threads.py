"""POSIX, C11 and C++ threads: which of the C library's functions create threads and synchronize them.

Any time in the threads library is parallel overhead (tallent-2009 sec. 2.2); the functions here are those of it
that create and synchronize. They lie in the C library, so they are told by name.
"""

from __future__ import annotations

import re

from parprof.files.libc import is_of_c_library
from parprof.model import Frame
from parprof.runtimes import Agent

_PLAIN = re.compile(r"_*(?:GI_+)?(\w+)(?:@.*)?")
"""A name without what glibc puts around it: ``___pthread_mutex_lock``, ``pthread_cond_wait@@GLIBC_2.3.2``."""
_CREATE = re.compile(r"pthread_create|thrd_create")
_SYNCHRONIZE = re.compile(
    r"pthread_(?:mutex|rwlock|spin|cond|barrier)_\w+|pthread_\w*join\w*|"
    r"sem_(?:wait|post|timedwait|clockwait|trywait)|mtx_\w*lock|cnd_\w+|thrd_join"
)
_INTERNAL = re.compile(r"lll_\w*(?:lock|wait|wake)\w*|futex_\w+")
"""Functions of the C library that locks end in. Other programs may use such names as well."""
_PLUMBING = re.compile(
    r"std::(?:__\w+::)*(?:thread::(?:_|thread)|__thread_proxy)|execute_native_thread_routine|g_thread_proxy"
)
"""What C++ and GLib put between the creation of a thread and its function."""
_PASSED_BY = re.compile(r"std::(?:__\w+::)*__invoke")


def passes_by(frame: Frame) -> bool:
    """Whether a frame belongs to the runtime's if that called it: it only helps or passes calls on."""
    return is_of_c_library(frame.module) or bool(_PASSED_BY.match(frame.name))


class Threads(Agent):
    """Agent for threads without a runtime above them."""

    name = "threads"

    def owns(self, name: str, module: str, file: str = "") -> bool:
        """Creation and synchronization of threads, and what lies around a thread's function."""
        if _PLUMBING.match(name):
            return True
        plain = self._plain(name)
        return bool(
            _CREATE.fullmatch(plain)
            or _SYNCHRONIZE.fullmatch(plain)
            or (is_of_c_library(module) and _INTERNAL.fullmatch(plain))
        )

    def overhead(self, name: str) -> str:
        """Create, sync or other."""
        plain = self._plain(name)
        if _CREATE.fullmatch(plain):
            return "create"
        return "sync" if _SYNCHRONIZE.fullmatch(plain) or _INTERNAL.fullmatch(plain) else "other"

    @staticmethod
    def _plain(name: str) -> str:
        match = _PLAIN.fullmatch(name)
        return match[1] if match else name


THREADS = Threads()
