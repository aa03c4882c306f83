"""Separate files of debug information, as distributions install them."""

from __future__ import annotations

import os
from pathlib import Path

from parprof.dso import Dso
from parprof.elf import ElfError, ElfFile

DEBUG_ROOT = Path("/usr/lib/debug")
_MAX_LINK = 4096


def find_debug_file(dso: Dso, root: Path = DEBUG_ROOT) -> ElfFile | None:
    """The debug file of a stripped one, open; None if there is none. Only a file of the same build id counts.

    Looked for by build id and by ``.gnu_debuglink`` under ``root``, on our side of any container.
    """
    build_id = dso.build_id
    if len(build_id) < 8 or dso.elf is None:
        return None
    paths = [root / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"]
    try:
        link = os.fsdecode(dso.elf.section_data(b".gnu_debuglink", _MAX_LINK).partition(b"\0")[0])
        has_lines = any(bool(dso.elf.section_data(name, 1)) for name in (b".debug_info", b".zdebug_info"))
    except ElfError:
        return None
    if has_lines:
        return None
    if link and "/" not in link and link not in (".", ".."):
        directory = root / Path(dso.path).parent.relative_to("/") if dso.path.startswith("/") else root
        if ".." not in directory.parts:
            paths.append(directory / link)
    for path in paths:
        try:
            found = ElfFile.open(str(path))
        except ElfError:
            continue
        try:
            if found.build_id == build_id:
                return found
        except ElfError:
            pass
        found.close()
    return None
