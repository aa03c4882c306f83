# SPDX-License-Identifier: Apache-2.0
"""A FUSE file system with copies of some files, which stops to answer when it is told to.

``python hanging_fuse.py DIRECTORY FILE...``

It speaks the kernel's protocol on ``/dev/fuse`` itself. A line on standard input says what to do: ``hang`` (take
requests and answer none), ``answer`` (those that wait, and all after them). The end of the input ends it, and then
every process that waits gets an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import sys
from pathlib import Path

LOOKUP, FORGET, GETATTR, STATFS, INIT = 1, 2, 3, 17, 26
OPEN, READ, RELEASE, FLUSH, ACCESS, INTERRUPT, BATCH_FORGET = 14, 15, 18, 25, 34, 36, 42
_MNT_DETACH, _MS_NOSUID, _MS_NODEV = 2, 2, 4
_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")


class Server:
    """Files by node number: 1 is the directory."""

    def __init__(self, device: int, files: dict[bytes, bytes]) -> None:
        self.device = device
        self.nodes = {number: content for number, content in enumerate(files.values(), 2)}
        self.names = {name: number for number, name in enumerate(files, 2)}
        self.hangs = False
        self.waiting: list[tuple[int, bytes]] = []

    def attributes(self, node: int) -> bytes:
        size = len(self.nodes.get(node, b""))
        mode = 0o040755 if node == 1 else 0o100755
        times = (1_600_000_000,) * 3 + (0,) * 3
        return struct.pack(
            "<6Q10I", node, size, (size + 511) // 512, *times[:3], *times[3:], mode, 1, 0, 0, 0, 4096, 0
        )

    def answer(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        reply = unique, _OUT.pack(_OUT.size + len(body), -error, unique) + body
        if self.hangs:
            self.waiting.append(reply)
        else:
            self._write(reply)

    def _write(self, reply: tuple[int, bytes]) -> None:
        try:
            os.write(self.device, reply[1])
        except OSError as error:
            if error.errno != errno.ENOENT:  # it was interrupted and waits no more
                raise

    def release(self) -> None:
        self.hangs = False
        for reply in self.waiting:
            self._write(reply)
        self.waiting.clear()

    def serve_one(self) -> bool:
        try:
            request = os.read(self.device, 1 << 20)
        except OSError as error:
            return error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT)
        _, what, unique, node, *_ = _IN.unpack_from(request)
        body = request[_IN.size :]
        if what == INIT:
            major, minor, readahead, _ = struct.unpack_from("<4I", body)
            self.answer(
                unique, struct.pack("<4I2H2I2H8I", 7, 31, readahead, 0, 12, 9, 1 << 16, 1, 16, 0, *[0] * 8)
            )
        elif what == LOOKUP:
            found = self.names.get(body.rstrip(b"\0"))
            if found is None:
                self.answer(unique, error=errno.ENOENT)
            else:  # names and attributes are valid for no time: each use asks again
                self.answer(unique, struct.pack("<4Q2I", found, 0, 0, 0, 0, 0) + self.attributes(found))
        elif what == GETATTR:
            self.answer(unique, struct.pack("<Q2I", 0, 0, 0) + self.attributes(node))
        elif what == OPEN:
            self.answer(unique, struct.pack("<Q2I", 0, 0, 0))
        elif what == READ:
            _, offset, size = struct.unpack_from("<2QI", body)
            self.answer(unique, self.nodes[node][offset : offset + size])
        elif what in (FLUSH, RELEASE, ACCESS):
            self.answer(unique)
        elif what == STATFS:
            self.answer(unique, struct.pack("<5Q4I6I", 1, 0, 0, 1, 0, 4096, 255, 4096, 0, *[0] * 6))
        elif what not in (FORGET, INTERRUPT, BATCH_FORGET):
            self.answer(unique, error=errno.ENOSYS)
        return True


def main() -> None:
    directory = os.fsencode(sys.argv[1])
    files = {os.fsencode(Path(name).name): Path(name).read_bytes() for name in sys.argv[2:]}
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"parprof-test", directory, b"fuse.hanging", _MS_NOSUID | _MS_NODEV, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    server = Server(device, files)
    print("ready", flush=True)
    poller = select.poll()
    poller.register(device, select.POLLIN)
    poller.register(0, select.POLLIN)
    try:
        while True:
            for fd, _ in poller.poll():
                if fd == device:
                    if not server.serve_one():
                        return
                    continue
                words = os.read(0, 100).split()
                if not words:
                    return
                if words[-1] == b"hang":
                    server.hangs = True
                else:
                    server.release()
                print("done", flush=True)
    finally:
        libc.umount2(directory, _MNT_DETACH)


if __name__ == "__main__":
    main()
