# SPDX-License-Identifier: Apache-2.0
"""Programs that were replaced or deleted while they run: names come from the file that is mapped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.process.loadmap import LoadMap
from parprof.symbols.symbolizer import Symbolizer

SOURCE = """
#include <unistd.h>
int NAME(void) { char c; return write(1, "", 1) + read(0, &c, 1); }
int main(void) { return NAME(); }
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)


@pytest.fixture
def programs(tmp_path: Path) -> tuple[Path, Path]:
    """Two programs of the same layout whose functions have other names, and the same build id."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    out = []
    for name in ("running", "installed"):
        (tmp_path / f"{name}.c").write_text(SOURCE.replace("NAME", f"{name}_function"))
        command = [
            "gcc",
            "-g",
            "-Wl,--build-id=0x" + "ab" * 20,
            tmp_path / f"{name}.c",
            "-o",
            tmp_path / name,
        ]
        subprocess.run(list(map(str, command)), check=True)
        out.append(tmp_path / name)
    return out[0], out[1]


def start(*command: object) -> subprocess.Popen[bytes]:
    """A process that is in our function when this returns."""
    child = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout
    if not child.stdout.read(1):
        child.communicate()
        pytest.skip("cannot make namespaces here")
    return child


def name_in(pid: int, path: Path, address: int, cache: DsoCache) -> str:
    """What the function at an address of the program itself is called."""
    mappings = LoadMap.read(pid, None, cache).mappings
    dso = next(mapping.dso for mapping in mappings if mapping.dso.name.startswith(path.name))
    with Symbolizer() as symbolizer:
        return symbolizer.frames(dso, address, False)[-1].name


def address_in(program: Path) -> int:
    with ElfFile.open(str(program)) as elf:
        return elf.lookup(["running_function"])["running_function"][0].value


@pytest.mark.parametrize("how", ["replaced", "deleted", "replaced after a look"])
def test_names_of_the_mapped_file(how: str, programs: tuple[Path, Path]) -> None:
    running, installed = programs
    address = address_in(running)
    child = start(running)
    try:
        with DsoCache() as cache:
            if how == "replaced after a look":
                assert name_in(child.pid, running, address, cache) == "running_function"
            if how == "deleted":
                running.unlink()
            else:
                installed.rename(running)
            name = name_in(child.pid, running, address, cache)
    finally:
        child.communicate(b"x")
    if os.geteuid() == 0:
        assert name == "running_function"
    else:  # perhaps no way to the file, but no lie
        assert name in ("running_function", f"running+{address:#x}", f"running (deleted)+{address:#x}")


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_names_of_the_container(programs: tuple[Path, Path], tmp_path: Path) -> None:
    """The file of that path on our side is another one."""
    running, installed = programs
    script = 'mount --bind "$1" "$2" && exec "$2"'
    child = start("unshare", "--mount", "sh", "-c", script, "-", running, installed)
    try:
        with DsoCache() as cache:
            assert name_in(child.pid, installed, address_in(running), cache) == "running_function"
    finally:
        child.communicate(b"x")
