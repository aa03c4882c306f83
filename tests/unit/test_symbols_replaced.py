# SPDX-License-Identifier: Apache-2.0
"""Programs that were replaced or deleted while they run: names come from the file that is mapped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from parprof.elf import ElfFile
from parprof.loadmap import DsoCache, LoadMap
from parprof.symbols import Symbolizer

SOURCE = "#include <unistd.h>\nint NAME(void) { char c; return read(0, &c, 1); }\nint main(void) { return NAME(); }\n"


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


@pytest.fixture
def child(programs: tuple[Path, Path]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([programs[0]], stdin=subprocess.PIPE)
    while os.readlink(f"/proc/{process.pid}/exe") != str(programs[0]):
        pass
    yield process
    process.communicate(b"x")


def name_in(pid: int, path: Path, address: int, cache: DsoCache) -> str:
    """What the function at an address of the program itself is called."""
    mappings = LoadMap.read(pid, None, cache).mappings
    dso = next(mapping.dso for mapping in mappings if mapping.dso.name.startswith(path.name))
    with Symbolizer() as symbolizer:
        return symbolizer.frames(dso, address, False)[-1].name


@pytest.mark.parametrize("how", ["replaced", "deleted", "replaced after a look", "written over"])
def test_names_of_the_mapped_file(
    how: str, programs: tuple[Path, Path], child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    running, installed = programs
    with ElfFile.open(str(running)) as elf:
        address = elf.lookup(["running_function"])["running_function"][0].value
    with DsoCache() as cache:
        if how == "replaced after a look":
            assert name_in(child.pid, running, address, cache) == "running_function"
        if how == "deleted":
            running.unlink()
        elif how == "written over":
            with pytest.raises(OSError, match="busy"):  # a program; libraries crash if one does that to them
                running.write_bytes(installed.read_bytes())
        else:
            installed.rename(running)
        name = name_in(child.pid, running, address, cache)
    if os.geteuid() == 0 or how in ("replaced after a look", "written over"):
        assert name == "running_function"
    else:  # no way to the file, but no lie
        assert name.startswith("running+0x")


def test_replaced_library_name_of_another_container(
    programs: tuple[Path, Path], child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A file of the same path on our side is not taken for that inside of a root directory."""
    running, installed = programs
    shutil.copy(installed, tmp_path / "copy")
    with ElfFile.open(str(running)) as elf:
        address = elf.lookup(["running_function"])["running_function"][0].value
    os.rename(tmp_path / "copy", running)
    with DsoCache() as cache:
        assert name_in(child.pid, running, address, cache) in ("running_function", f"running+{address:#x}")
