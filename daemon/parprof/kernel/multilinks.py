"""What multi-uprobe links can do here, found by trying, in milliseconds, with a program that does nothing.

Whether there are session links, of which one program sees entry and return; and whether a link of one process serves
all of its threads.

Before Linux 6.10, and in some stable releases of 6.6 to 6.9, such a link runs its program in the main thread alone: it
compares the current *task* with the one of the PID. Later releases of the same branches are mended.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from parprof.errors import KernelUnsupported
from parprof.kernel import bpf
from parprof.kernel.detacher import detacher

_CALLS = 8
_NOTHING = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
"""A program that returns 0."""
_MAP_ARRAY = 2


def _counting(count: int) -> bytes:
    """A program that adds 1 to the only value of a map, and returns 0.

    The kernel's own statistics would tell how often a program ran, but want CAP_SYS_ADMIN.
    """
    address_of_value = struct.pack("<BBhi", 0x18, 0x21, 0, count) + bytes(8)
    one = struct.pack("<BBhi", 0xB7, 2, 0, 1)
    add = struct.pack("<BBhi", 0xDB, 0x21, 0, 0)
    return address_of_value + one + add + _NOTHING


def place_of(address: int) -> tuple[str, int]:
    """Path of the file that we have mapped at an address, and the offset in it.

    Raises:
        OSError: there is none.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        start, end = (int(part, 16) for part in fields[0].split("-"))
        if start <= address < end and len(fields) == 6:
            return fields[5], address - start + int(fields[2], 16)
    raise OSError(0, "no file is mapped there")


def have_sessions() -> bool:
    """Whether there are session links: from Linux 6.13 on."""
    with suppress(OSError, KernelUnsupported), ExitStack() as stack:
        program = bpf.program_load("kprobe", _NOTHING, "try_session", bpf.ATTACH_UPROBE_SESSION)
        stack.callback(os.close, program)
        link = bpf.link_uprobe_multi(  # at the ELF header: mapped, never executed
            program,
            "/proc/self/exe",
            [0],
            [0],
            attach_type=bpf.ATTACH_UPROBE_SESSION,
            returns=False,
            pid=os.getpid(),
        )
        detacher.close([link])
        return True
    return False


def serve_all_threads() -> bool:
    """Probe a function of our own libc, call it in a thread that is not the first, and count."""
    libc = ctypes.CDLL(None)
    with suppress(OSError, KernelUnsupported), ExitStack() as stack:
        count = bpf.map_create(_MAP_ARRAY, 4, 8, 1, 0, "try_multi")
        stack.callback(os.close, count)
        program = bpf.program_load("kprobe", _counting(count), "try_multi", bpf.ATTACH_UPROBE_MULTI)
        stack.callback(os.close, program)
        path, offset = place_of(ctypes.cast(libc.getppid, ctypes.c_void_p).value or 0)
        link = bpf.link_uprobe_multi(
            program, path, [offset], [0], attach_type=bpf.ATTACH_UPROBE_MULTI, returns=False, pid=os.getpid()
        )
        stack.callback(detacher.close, [link])
        thread = threading.Thread(target=lambda: [libc.getppid() for _ in range(_CALLS)])
        thread.start()
        thread.join()
        counted = bpf.map_lookup(count, bytes(4), 8)
        return counted is not None and int.from_bytes(counted, "little") >= _CALLS
    return False
