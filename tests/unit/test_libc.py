# SPDX-License-Identifier: Apache-2.0
"""What the files of the C library are called, and that a plan knows all of them that are mapped."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

import pytest

from parprof.files.dso_cache import DsoCache
from parprof.files.libc import (
    is_libc,
    is_loader,
    is_of_c_library,
    is_of_c_or_mathematics,
    is_start_up,
    tells_once,
)
from parprof.kernel.layout import make_structure
from parprof.kernel.process_entries import fill_config
from parprof.kernel.records import MAX_LIBC_RANGES, WatchConfig
from parprof.kernel.stacks import Stack
from parprof.logical.physical import physical_path
from parprof.logical.threads import passes_by
from parprof.model import Frame
from parprof.probes.plan import make_plan
from parprof.process.loadmap import LoadMap

NAMES = {
    "libc.so.6": "libc start-up family",
    "libc-2.31.so": "libc start-up family",
    "libpthread.so.0": "libc start-up family",
    "libpthread-2.31.so": "libc start-up family",
    "libc.musl-x86_64.so.1": "libc start-up family",
    "ld-musl-x86_64.so.1": "libc loader once start-up family",
    "libc.so": "libc loader once start-up family",
    "ld-linux-x86-64.so.2": "loader start-up family",
    "ld-2.31.so": "loader start-up family",
    "librt.so.1": "family",
    "librt-2.31.so": "family",
    "linux-vdso.so.1": "family",
    "[vdso]": "family",
    "libm.so.6": "",
    "libm-2.31.so": "",
    "libcilkrts.so.5": "",
    "libcrypto.so.3": "",
    "mylibc.so.6": "",
    "heat": "",
    "ldd": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    found = {
        "libc": is_libc(name),
        "loader": is_loader(name),
        "once": tells_once(name),
        "start-up": is_start_up(name),
        "family": is_of_c_library(name),
    }
    assert " ".join(kind for kind, is_one in found.items() if is_one) == NAMES[name]
    assert is_of_c_or_mathematics(name) is (found["family"] or name.startswith("libm"))
    assert passes_by(Frame("f", module=name)) is found["family"]


@pytest.mark.parametrize("module", ["libpthread-2.31.so", "ld-musl-x86_64.so.1"])
def test_what_lies_around_a_threads_function_is_not_shown(module: str) -> None:
    frames = {2: (Frame("body", module="heat"),), 1: (Frame(f"{module}+0x10", module=module),)}
    stack = Stack(((2, False), (1, True)), "complete")
    path = physical_path(stack, Stack((), "complete"), lambda at, _: frames[at], lambda at, _: ())
    assert [frame.name for frame in path] == ["body"]


def mapped(path: Path) -> mmap.mmap:
    """The file as a loader maps its code; nothing in it runs."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)


@pytest.mark.parametrize("name", ["libpthread-2.31.so", "ld-musl-x86_64.so.1"])
def test_the_threads_library_counts_beside_libc(name: str, tmp_path: Path) -> None:
    shutil.copy("/bin/true", tmp_path / name)
    cache = DsoCache()
    code = mapped(tmp_path / name)
    try:
        load_map = LoadMap.read(os.getpid(), None, cache)
        plan = make_plan(load_map)
        found = [one for one in load_map.mappings if one.dso.name == name]
        libc = [one for one in load_map.mappings if one.dso.name.startswith("libc.")]
        assert len(found) == 1 and libc
        assert (found[0].start, found[0].end) in plan.libc_ranges
        assert (libc[0].start, libc[-1].end) in plan.libc_ranges
        assert len(plan.libc_ranges) == 2
    finally:
        code.close()
        cache.close()


def test_the_programs_are_told_of_both() -> None:
    arrays = [[name, f"u64[{MAX_LIBC_RANGES}]"] for name in ("libc_start", "libc_end")]
    raw = make_structure("config", [*arrays, ["flags", "u32"]])()
    fill_config(raw, WatchConfig(libc_ranges=((1, 2), (3, 4))))
    assert (list(raw.libc_start), list(raw.libc_end)) == ([1, 3], [2, 4])
