"""Separate files of debug information, as distributions install them, and what tells such files apart."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from parprof.files.dso import Dso
from parprof.files.elf import ElfError, ElfFile
from parprof.files.open_file import FileStatus

DEBUG_ROOT = Path("/usr/lib/debug")
_MAX_LINK = 4096
_MIN_BUILD_ID = 8


def lacks_lines(dso: Dso) -> bool:
    """Whether a file has no debug information of its own, but a build id to find it by."""
    if len(dso.build_id) < _MIN_BUILD_ID or dso.elf is None:
        return False
    try:
        return not dso.elf.has_debug_info
    except ElfError:
        return False


def open_build(file: str | int, build_id: str) -> ElfFile | None:
    """A file, if it is an ELF file of that build."""
    try:
        found = ElfFile.open(file)
    except ElfError:
        return None
    try:
        if found.build_id == build_id:
            return found
    except ElfError:
        pass
    found.close()
    return None


def find_debug_file(dso: Dso, root: Path = DEBUG_ROOT) -> ElfFile | None:
    """The debug file of a stripped one, open; None if there is none. Only a file of the same build id counts.

    Looked for by build id and by ``.gnu_debuglink`` under ``root``, on our side of any container.
    """
    if dso.elf is None or not lacks_lines(dso):
        return None
    build_id = dso.build_id
    paths = [root / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"]
    try:
        link = os.fsdecode(dso.elf.section_data(b".gnu_debuglink", _MAX_LINK).partition(b"\0")[0])
    except ElfError:
        return None
    if link and "/" not in link and link not in (".", ".."):
        directory = root / Path(dso.path).parent.relative_to("/") if dso.path.startswith("/") else root
        if ".." not in directory.parts:
            paths.append(directory / link)
    for path in paths:
        found = open_build(str(path), build_id)
        if found is not None:
            return found
    return None


def identity(status: FileStatus, changes: bool = True) -> str:
    """What tells a file from others that carry the same build id, rightly or not.

    A stripped file and its original share their build id, and anybody can make a file with the build id of
    another: so place and times count too. Devices without a block device (overlays, btrfs) get another number
    at each mount, which does not count; inodes are the same in all containers of an image. ``changes`` is
    whether the time of the last change of its attributes counts, which cannot be forged.
    """
    device = status.device if os.major(status.device) else 0
    facts = [device, status.inode, status.size, status.mtime_ns]
    if changes:
        facts.append(status.ctime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
