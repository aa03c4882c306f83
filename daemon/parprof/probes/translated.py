"""Programs whose code is not executed where it is mapped: under Valgrind and its like, it is read and translated.

A breakpoint there is translated too, and ends the program: nothing in such a process may be probed.
"""

from __future__ import annotations

import os

from parprof.files.libc import is_libc, is_loader
from parprof.probes.facts_book import file_facts
from parprof.process.loadmap import LoadMap
from parprof.untrusted import visible

_DELETED = " (deleted)"


def translator(load_map: LoadMap) -> str:
    """Name of the file that translates the program's code; empty where the CPU executes the code itself.

    The kernel started that file, which needs no loader; yet a loader is mapped, and a program that wants one. A static
    program that loads libraries maps a loader, but no other program; one that is started by way of the loader
    (``ld.so PROGRAM``) has that for its executable.
    """
    dsos = load_map.dsos()
    if not any(is_loader(dso.name) for dso in dsos):
        return ""
    try:  # by name: to ask for the file's status may take for ever, where its file system hangs
        executable = visible(os.fsencode(os.readlink(f"/proc/{load_map.pid}/exe"))).removesuffix(_DELETED)
    except OSError:
        return ""
    for dso in dsos:
        if dso.path.removesuffix(_DELETED) == executable:
            if is_loader(dso.name) or not file_facts(dso).is_static:
                return ""
            hosts_program = any(file_facts(one).wants_loader for one in dsos if not is_libc(one.name))
            return dso.name if hosts_program else ""
    return ""
