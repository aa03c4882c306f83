"""The memory of a running process, as runtime agents look at it: one file of it, and what surrounds that."""

from __future__ import annotations

import os

from parprof.files.dso import Dso
from parprof.files.elf import ElfError
from parprof.process.loadmap import LoadMap

_MAX_ENVIRONMENT = 1 << 20


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read(_MAX_ENVIRONMENT)
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in raw.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def read_exactly(memory: int, address: int, size: int) -> bytes:
    """``size`` bytes at an address. ``memory``: the file with a process's, ``/proc/PID/mem``.

    Raises:
        OSError: not all of them are mapped, or the process is gone.
    """
    data = os.pread(memory, size, address) if 0 <= address < 1 << 63 else b""
    if len(data) != size:
        raise OSError(14, f"{size} bytes at {address:#x} are not all mapped")
    return data


class ProcessMemory:
    """Reads the memory of a process through ``/proc/PID/mem``. ``dso`` is the file that symbols belong to."""

    def __init__(self, load_map: LoadMap, dso: Dso) -> None:
        """Nothing is opened until `read`."""
        self._pid = load_map.pid
        self._dso = dso
        self._load_map = load_map

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at an address.

        Raises:
            OSError: not all of them are mapped, or the process is gone.
        """
        fd = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_exactly(fd, address, size)
        finally:
            os.close(fd)

    def symbol(self, name: str) -> int:
        """Address of a symbol of the file, in the process; 0 if it has none."""
        try:
            found = self._dso.elf.lookup([name]).get(name, ()) if self._dso.elf else ()
        except ElfError:
            return 0
        return self.address(found[0].value) if found else 0

    def address(self, vaddr: int) -> int:
        """Address in the process of an ELF virtual address of the file."""
        return (self._load_map.bias(self._dso) + vaddr) & (1 << 64) - 1
