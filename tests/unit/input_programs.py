"""Builds programs for the tools of `parprof input`, runs them under it, and reads what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compiled import compile_once, kept_source
from parprof.__main__ import main
from parprof.input.runtime import compile_command

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
BUILDS = ("valgrind", "gcc", "clang")
COMPILERS = {"valgrind": "gcc", "valgrind clang": "clang"}


def parprof(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "parprof", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=240, **options)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds a program for a tool: a name of `BUILDS`, or "valgrind clang". Once, also for later runs, by the very
    command that `parprof cc --input` starts."""
    directory = tmp_path_factory.mktemp("programs")

    def make(source: Path, how: str, *flags: str) -> Path:
        program = directory / f"{source.stem}-{how.replace(' ', '-')}{len(flags)}"
        if not program.exists():
            text = source if source.parent == WORKLOADS else kept_source(source)
            command = [COMPILERS.get(how, how), "-O1", "-g", "-o", str(program), str(text), *flags]
            if not how.startswith("valgrind"):
                command = compile_command(command)
            linked = (Path(word) for word in command if word != str(text) and Path(word).is_file())
            compile_once(command, *linked)
        return program

    return make


def measure(program: Path, *arguments: str, tool: str = "auto") -> dict[str, Any]:
    """What `parprof input` says of a run, as JSON. In this process: one of its own takes longer than most programs."""
    output = program.with_suffix(".json")
    assert main(["input", "--tool", tool, "-q", "-o", str(output), "--", str(program), *arguments]) == 0
    found: dict[str, Any] = json.loads(output.read_bytes())
    return found


def points(found: dict[str, Any], name: str) -> list[dict[str, int]]:
    (routine,) = (one for one in found["routines"] if one["name"] == name)
    return list(routine["points"])


def sizes(found: dict[str, Any], name: str) -> tuple[int, int, int, int]:
    """trms, rms, thread-induced and external of a routine whose activations are all alike."""
    (point,) = points(found, name)
    calls = point["calls"]
    return point["trms"], point["rms"], point["induced"] // calls, point["external"] // calls
