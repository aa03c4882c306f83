"""Names of addresses that a target wrote down, when there is no process any more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from parprof.instruments.places import FilePlace, Places
from parprof.symbols.symbolizer import Symbolizer

SOURCE = """
int called(int x);
int caller(int x)
{
	for (int i = 0; i < x; i++)
		x += called(i);
	return x;
}
int main(void) { return caller(3); }
int called(int x) { return x; }
"""
CALL_LINE = 6


@pytest.fixture
def places() -> Iterator[Places]:
    with Symbolizer() as symbolizer, Places(symbolizer) as places:
        yield places


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.c").write_text(SOURCE)
    path = tmp_path / "program"
    subprocess.run(
        ["gcc", "-O1", "-g", "-fno-inline", "-Wl,--build-id", str(tmp_path / "program.c"), "-o", str(path)],
        check=True,
    )
    return path


def build_id(program: Path) -> str:
    notes = subprocess.run(["readelf", "-n", str(program)], capture_output=True, text=True, check=True).stdout
    return notes.partition("Build ID: ")[2].split()[0]


def after_the_call(program: Path) -> int:
    """The return address of the call in the loop."""
    code = subprocess.run(
        ["objdump", "-d", "--disassemble=caller", str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    at = next(number for number, line in enumerate(code) if "call" in line and "<called>" in line)
    return int(code[at + 1].split(":")[0], 16)


def test_a_return_address_is_the_line_of_its_call_and_its_loop(places: Places, program: Path) -> None:
    place = FilePlace(str(program), build_id(program), after_the_call(program))
    frames = places.resolve([place])[place]
    assert frames[-1].name == "caller" and frames[-1].line == CALL_LINE
    assert frames[0].is_loop and "program.c:5" in frames[0].name


def test_a_file_that_has_changed_gives_no_names(places: Places, program: Path) -> None:
    place = FilePlace(str(program), "ab" * 20, after_the_call(program))
    (frame,) = places.resolve([place])[place]
    assert frame.name == f"program+{place.vaddr:#x}"
    assert places.notes == {str(program): "names are missing: the file has changed since it ran"}


@pytest.mark.parametrize(
    "module", ["", "relative/path", "/nonexistent/file", "/dev/zero", "/etc/passwd", "/a\0b", "/"]
)
def test_what_is_no_program_gives_no_names_and_no_error(places: Places, module: str) -> None:
    place = FilePlace(module, "", 0x1234)
    (frame,) = places.resolve([place])[place]
    assert frame.name.endswith("+0x1234") and "\0" not in frame.name


def test_hostile_addresses_are_no_error(places: Places, program: Path) -> None:
    wanted = [FilePlace(str(program), "", vaddr) for vaddr in (0, 1, 2**63, 2**64 - 1)]
    assert set(places.resolve(wanted)) == set(wanted)
