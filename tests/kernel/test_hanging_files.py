# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries on a file system that another process serves: profiled like any, and never waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import profiling
from hanging_mount import served, tell
from parprof.symbols.symbolizer import Symbolizer

pytestmark = pytest.mark.beside

PARPROF = [sys.executable, "-m", "parprof"]


@contextmanager
def spinning(program: Path) -> Iterator[int]:
    process = subprocess.Popen([program, "recursion", "20", "60"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.alone
def test_a_program_on_fuse_has_whole_stacks_and_names(tmp_path: Path) -> None:
    with served(tmp_path, profiling.BUILD / "stacks"), spinning(tmp_path / "stacks") as pid:
        with profiling.traced_session(997) as session:
            target = session.watch(pid)
            profiling.run_until(session, lambda: not session.watched.placer.is_waiting)
            before = Counter(session.kernel.statistics())
            profiling.run_while_it_works(session, pid, 1)
            session.finish()
            counted = Counter(session.kernel.statistics()) - before
            total = sum(count for name, count in counted.items() if name.startswith("stacks_"))
            assert total > 300 and counted["stacks_complete"] >= 0.99 * total, counted
            names = set[str]()
            with Symbolizer() as symbolizer:
                for key in session.facts:
                    for address, is_return in session.kernel.stacks.get(key.user).frames:
                        if found := target.mapped.newest and target.mapped.newest.find(address):
                            names |= {frame.name for frame in symbolizer.frames(*found, is_return)}
            assert {"main", "descend", "spin"} <= names


def test_probes_in_a_library_on_fuse(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("log") / "truth"
    library = subprocess.run(["gcc", "-print-file-name=libgomp.so.1"], capture_output=True, text=True).stdout
    with served(tmp_path, Path(library.strip()).resolve(), Path(library.strip())):
        run = profiling.record("omp_truth.gomp.nofp", ["all"], log, LD_LIBRARY_PATH=str(tmp_path))
        assert run.target.load_map is not None
        found = [dso for dso in run.target.load_map.dsos() if "libgomp" in dso.name]
        assert [dso.path for dso in found] == [str(tmp_path / "libgomp.so.1")]
        assert not run.target.failures
        assert run.statistics["probe_hits"] > 10


@pytest.mark.parametrize("how", ["seconds", "ctrl-c"])
def test_attach_to_a_program_whose_file_system_hangs(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    out = tmp_path_factory.mktemp("out") / "a.pb.gz"
    with served(tmp_path, profiling.BUILD / "stacks") as server, spinning(tmp_path / "stacks") as pid:
        tell(server, "hang")
        seconds = "1" if how == "seconds" else "600"
        command = [*PARPROF, "attach", "-v", str(pid), "-d", seconds, "-o", str(out)]
        environment = {**os.environ, "PYTHONPATH": str(profiling.ROOT / "daemon")}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        if how == "ctrl-c":
            time.sleep(6)
            process.send_signal(signal.SIGINT)
        report, messages = process.communicate(timeout=60)
        assert process.returncode == 0, messages
        note = f"{tmp_path}/stacks: its file system does not answer"
        assert "".join(note.split()) in "".join(report.split())  # its lines are wrapped
        assert "stacks+0x" in report
        tell(server, "answer")


@pytest.mark.parametrize(("function", "code"), [("descend", 1), ("usleep", 0)])
def test_calls_of_functions_in_files_that_do_not_answer(tmp_path: Path, function: str, code: int) -> None:
    """It ends within seconds, and says what was not searched; what other files have is counted all the same."""
    with served(tmp_path, profiling.BUILD / "stacks") as server, spinning(tmp_path / "stacks") as pid:
        tell(server, "hang")
        begun_s = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(profiling.ROOT / "daemon")}
        done = subprocess.run(
            [*PARPROF, "calls", str(pid), "--times", "-f", function, "-f", "0x1234", "-d", "1"],
            capture_output=True, text=True, timeout=100, env=environment,
        )  # fmt: skip
        took_s = time.monotonic() - begun_s
        tell(server, "answer")
    assert done.returncode == code, done.stderr
    note = f"{tmp_path}/stacks was not searched: its file system does not answer"
    assert "".join(note.split()) in "".join((done.stdout + done.stderr).split())  # its lines are wrapped
    assert took_s < 30
