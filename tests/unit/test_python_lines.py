"""Line tables of CPython's code objects, against what each interpreter says of its own standard library."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.languages.cpython.linetables import LineTable

PYENV = Path.home() / ".pyenv/versions"
INTERPRETERS = [
    Path("/usr/bin/python3"),
    *(PYENV / v / "bin/python3" for v in ("3.9.18", "3.10.13", "3.11.7", "3.12.1", "3.13.0")),
]
MODULES = ("argparse", "asyncio.base_events", "dataclasses", "enum", "inspect", "typing", "unittest.mock")
HELPER = """
import dis, importlib.util, json, sys, types
def lines(code):
    if sys.version_info >= (3, 10):
        return [(a, b, n or 0) for a, b, n in code.co_lines() if b > a]
    starts = list(dis.findlinestarts(code)) + [(len(code.co_code), 0)]
    return [(a, b, n) for (a, n), (b, _) in zip(starts, starts[1:])]
def walk(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    print(json.dumps([code.co_firstlineno, table.hex(), lines(code)]))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            walk(constant)
print(sys.version_info[1])
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    walk(compile(open(spec.origin, encoding="utf-8").read(), spec.origin, "exec"))
"""


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=str)
def test_every_instruction_of_some_modules(interpreter: Path) -> None:
    if not interpreter.exists():
        pytest.skip(f"{interpreter} is not installed")
    done = subprocess.run(
        [str(interpreter), "-c", HELPER, *MODULES], capture_output=True, text=True, check=True
    )
    minor, *rows = done.stdout.splitlines()
    unit = 2 if minor == "10" else 1
    functions = instructions = 0
    for row in rows:
        first_line, table, expected = json.loads(row)
        lines = LineTable(int(minor), bytes.fromhex(table), first_line)
        for start, end, line in expected:
            for offset in range(start, end, 2):
                assert lines.line(offset // unit) == line, (first_line, offset)
                instructions += 1
        functions += 1
    assert functions > 500 and instructions > 20_000


def test_before_the_first_instruction_and_behind_the_last() -> None:
    def function() -> int:
        return 1

    code = function.__code__
    table = LineTable(min(sys.version_info[1], 13), code.co_linetable, code.co_firstlineno)
    assert table.line((1 << 32) - 2) == code.co_firstlineno
    assert table.line(1 << 20) == 0


@given(st.sampled_from([9, 10, 11, 12, 13]), st.binary(max_size=300), st.integers(0, 1 << 31), st.data())
def test_any_bytes_are_survived(minor: int, table: bytes, first_line: int, data: st.DataObject) -> None:
    lines = LineTable(minor, table, first_line)
    for instruction in (0, 2, 40, 4096, (1 << 32) - 2, data.draw(st.integers(0, (1 << 32) - 1))):
        assert 0 <= lines.line(instruction) <= 1 << 31


def test_what_was_decoded_is_small() -> None:
    """A service has thousands of functions, and a machine hundreds of such services."""
    table = bytes([0x80, 0x00] * 50_000)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    lines = LineTable(11, table, 7)
    assert lines.line(3) == 7
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 12 * 50_000
