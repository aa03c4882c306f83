# SPDX-License-Identifier: Apache-2.0
"""Who has a mutex, from what lies behind the word that a thread sleeps at: parprof.process.mutexes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from parprof.process.mutexes import _MUTEX, holder_of

AT = 0x7F0000001000
WAITS = ["202", hex(AT), "0x80", "0x2", "0x0", "0x0", "0x0", "0x7f0000002000", "0x7f0000003000"]


def told(data: bytes, words: list[str] = WAITS) -> int:
    return holder_of(words, lambda address, size: data[:size] if address == AT else b"")


def test_the_owner_of_a_mutex() -> None:
    assert told(_MUTEX.pack(2, 0, 812, 1, 0)) == 812
    assert told(_MUTEX.pack(2, 3, 812, 1, 1 | 0x80)) == 812  # recursive, shared by processes


@pytest.mark.parametrize(
    "data",
    [
        _MUTEX.pack(1, 0, 812, 1, 0),  # nobody waits by now
        _MUTEX.pack(2, 0, 0, 1, 0),
        _MUTEX.pack(2, 0, -1, 1, 0),
        _MUTEX.pack(2, 0, 812, 0, 0),
        _MUTEX.pack(2, 0, 812, 1, 0x20),  # with priorities: its word has the owner
        _MUTEX.pack(2, 0, 812, 1, 99),
        b"\2\0\0\0",  # the end of what is mapped
    ],
)
def test_what_is_no_such_mutex(data: bytes) -> None:
    assert told(data) == 0


def test_other_calls_and_waits() -> None:
    mutex = _MUTEX.pack(2, 0, 812, 1, 0)
    assert told(mutex, ["running"]) == 0
    assert told(mutex, ["0", *WAITS[1:]]) == 0
    assert told(mutex, [*WAITS[:2], "0x81", *WAITS[3:]]) == 0  # wakes
    assert told(mutex, [*WAITS[:3], "0x0", *WAITS[4:]]) == 0  # a condition

    def refuses(address: int, size: int) -> bytes:
        raise OSError(5, "not mapped")

    assert holder_of(WAITS, refuses) == 0


SOURCE = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *wants(void *nothing) { printf("%ld\\n", syscall(SYS_gettid)); fflush(stdout);
	pthread_mutex_lock(&mutex); return nothing; }
int main(void) { pthread_t thread; pthread_mutex_lock(&mutex); pthread_create(&thread, 0, wants, 0);
	pause(); return 0; }
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("gcc"), reason="reads another process; builds it")
def test_this_machines_libc(tmp_path: Path) -> None:
    program = tmp_path / "locked"
    subprocess.run(
        ["gcc", "-x", "c", "-", "-pthread", "-o", program], input=SOURCE.encode(), check=True, timeout=60
    )
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            task = f"/proc/{process.pid}/task/{int(process.stdout.readline())}"
            words = Path(task, "syscall").read_text().split()
            while words[0] != "202":
                words = Path(task, "syscall").read_text().split()
            with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
                assert holder_of(words, lambda at, size: os.pread(memory.fileno(), size, at)) == process.pid
        finally:
            process.kill()
