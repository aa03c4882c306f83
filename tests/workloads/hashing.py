# SPDX-License-Identifier: Apache-2.0
"""Work for the threads of pools, of a known length: in C code, which gives up the GIL for nearly all of its time, and
seldom."""

import hashlib
import time

BLOCK = bytes(1 << 23)


def burn(seconds):
    """Hash for so much CPU time of this thread; how much it was."""
    start = time.thread_time()
    while time.thread_time() < start + seconds:
        hashlib.sha256(BLOCK).digest()
    return time.thread_time() - start
