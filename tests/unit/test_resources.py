# SPDX-License-Identifier: Apache-2.0
"""Our limit of open files goes up, that of what we start does not; memory that threads free can be used again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import os, resource
from parprof import resources
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 3000))
resources.allow_many_files()
resources.allow_many_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (3000, 3000)
from parprof.commands.spawn import Child
child = Child(["sh", "-c", "ulimit -Sn"])
child.release()
assert child.wait() == 0
"""


def test_the_limit_of_a_command_is_what_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["200"]), done.stderr


HEAPS = """
import ctypes, re, threading
from parprof import resources
if {shares}:
    resources.share_heap()
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
here = threading.Barrier(9)
def allocate():
    here.wait()
    assert libc.malloc(4000)
    here.wait()
for _ in range(8):
    threading.Thread(target=allocate).start()
here.wait()
here.wait()
text, size = ctypes.c_char_p(), ctypes.c_size_t()
file = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, file)
libc.fclose(file)
print(len(re.findall(rb"<heap nr", text.value)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have one heap")
@pytest.mark.parametrize("shares", [False, True])
def test_threads_share_one_heap(shares: bool) -> None:
    code = HEAPS.format(shares=shares)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (int(done.stdout) == 1) is shares
