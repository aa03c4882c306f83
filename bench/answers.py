#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How good the answers are: runs programs with planted problems (tests/planted.py) and judges what is said of them.

Run it as root after `make -C tests/workloads planted`, with the project's Python; `chrt -r 1` in front helps on a busy
machine. Names of programs restrict it to these. ``--save`` also keeps the recordings that tests/unit/test_planted.py
judges::

    # .venv/bin/python bench/answers.py
    # .venv/bin/python bench/answers.py --times 10 --hz 99
    # chrt -r 1 .venv/bin/python bench/answers.py --save openmp_serial
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "tests")]

from parprof.causes.cause import Cause  # noqa: E402
from parprof.causes.ranking import find_causes  # noqa: E402
from parprof.exporters.pprof_reader import read_as  # noqa: E402
from parprof.facts.reading import decode  # noqa: E402
from parprof.profile.assemble import make_profile  # noqa: E402
from planted import COMBINED, RECORDINGS, SINGLE, Program  # noqa: E402


def record(program: Program, facts: Path, times: int = 1, rate_hz: int = 999) -> list[Cause]:
    """Run it once. ``times``: how often each of its problems comes, all of them in turn."""
    problems = program.command[1:]
    if program.command[0].endswith("python3"):  # python3 -S SCRIPT PROBLEM
        problems = problems[2:]
    repeated = [*program.command, *problems * (times - 1)]
    command = [
        sys.executable,
        "-m",
        "parprof",
        "record",
        "-q",
        "-F",
        str(rate_hz),
        "--cores",
        "2",
        "-o",
        "/dev/null",
    ]
    command += ["--save-facts", str(facts), "--", *repeated]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
    subprocess.run(
        command, env=environment, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if not facts.exists():
        sys.exit(
            f"{program.name} could not be recorded: are you root, and was `make -C tests/workloads planted` run?"
        )
    return find_causes(make_profile(*read_as(facts, decode)))


def save(program: Program, facts: Path) -> None:
    """Keep a recording, without the names of this machine's directories."""
    text = gzip.decompress(facts.read_bytes()).decode()
    text = text.replace(str(ROOT / "tests"), "").replace(str(ROOT), "")
    assert str(ROOT) not in text, "a name of this machine is left"
    RECORDINGS.mkdir(exist_ok=True)
    (RECORDINGS / f"{program.name}.facts").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def said(causes: list[Cause]) -> str:
    """Causes in a line each."""
    return "".join(
        f"\n    {cause.kind:<14} {cause.function or '(the program)'} {cause.lost_percent:.1f} %: {cause.what}"
        for cause in causes
    )


def main() -> None:
    """Judge those that are named, or all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--times", type=int, default=1, help="run each problem so often (default: once, 0.2 to 0.5 s)"
    )
    parser.add_argument("--hz", type=int, default=999, help="samples a second (default: 999)")
    parser.add_argument("--save", action="store_true", help="keep the recordings")
    options = parser.parse_args()
    for title, programs in (("single", SINGLE), ("combined", COMBINED)):
        right = judged = 0
        for program in programs:
            if options.names and program.name not in options.names:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                facts = Path(scratch) / "facts"
                causes = record(program, facts, options.times, options.hz)
                answered = program.is_answered(causes)
                if options.save:
                    save(program, facts)
            judged += 1
            right += answered
            print(f"{'right' if answered else 'WRONG'} {program.name}{said(causes)}", flush=True)
        print(f"{title}: {right} of {judged} right")


if __name__ == "__main__":
    main()
