"""libparprof_alloc, which counts what a command allocates and hands on samples of it: how a command gets it.

Only what the dynamic loader binds can be counted so: what calls an allocator of its own is refused, with the reason.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import closing

from parprof.errors import KernelUnsupported
from parprof.files.elf import ElfFile
from parprof.files.elf_image import ElfError
from parprof.instruments.preload import obstacle
from parprof.instruments.toolchain import Library
from parprof.kernel.allocation_probe import PRELOADED
from parprof.values import dataclass

LIBRARY = Library(
    PRELOADED,
    ("alloc.c",),
    ("../bpf/strata.h",),
    (
        "-fvisibility=hidden",
        "-g0",  # a sample ends in malloc, not in what is inlined into it
        "-fno-builtin",
        "-ftls-model=initial-exec",
        "-Wl,-z,nodelete",
        "-Wl,-z,defs",
        "-ldl",
        "-lpthread",
    ),
)
_SAMPLE_NS = 2500
"""What a sample takes, the trap and the walk of a stack of some frames (docs/events.md)."""
PROBED = "parprof_allocated"
"""The function of it that samples are handed on by."""


@dataclass(frozen=True, slots=True)
class Preloaded:
    """What a command is started with."""

    library: str
    probe_offset: int
    """Of `PROBED`, in the library's file."""

    def environment(self, sample_bytes: int, budget_ratio: float, preloaded: str = "") -> Mapping[str, str]:
        """The command's variables.

        ``budget_ratio``: how much of its time a thread may spend on samples; 1: there is no limit. ``preloaded``: what
        LD_PRELOAD is without us.
        """
        pause_ns = round(_SAMPLE_NS / budget_ratio) if budget_ratio < 1 else 0
        return {
            "LD_PRELOAD": f"{self.library}:{preloaded}" if preloaded else self.library,
            "PARPROF_ALLOC_BYTES": str(sample_bytes),
            "PARPROF_ALLOC_PAUSE_NS": str(pause_ns),
        }


def preloaded() -> Preloaded:
    """The library, built if need be.

    Raises:
        KernelUnsupported: it cannot be built; the text says what is missing.
    """
    library = os.fspath(LIBRARY.path())
    with closing(ElfFile.open(library)) as elf:
        found = elf.lookup([PROBED]).get(PROBED)
        offset = elf.file_offset(found[0].value) if found else None
    if offset is None:
        raise KernelUnsupported(f"{library} is damaged: remove it, so that it is built anew")
    return Preloaded(library, offset)


def why_not(command: str) -> str:
    """Why a command's allocations cannot be counted by what is preloaded into it; empty: they can.

    Scripts are not looked into: their interpreters decide.
    """
    return obstacle(command) or _own_allocator(command)


def _own_allocator(command: str) -> str:
    path = shutil.which(command) or command
    try:
        with closing(ElfFile.open(path)) as elf:
            defines = "malloc" in elf.lookup(["malloc"])
    except (OSError, ElfError):
        return ""
    if not defines:
        return ""
    return (
        f"{path} has an allocator of its own (it defines malloc itself), which nothing can be put in front of: "
        "build it with that of the C library, or with a shared one"
    )
