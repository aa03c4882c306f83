"""n_w where programs really live: in containers, with late or bundled runtimes, under another process."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import profiling
from truth import Truth


@pytest.mark.parametrize("edges_ahead", [True, False])
def test_a_runtime_that_is_loaded_late(edges_ahead: bool, tmp_path: Path) -> None:
    """Also where nobody expected one, so that the program for its work edges was not loaded before."""
    run = profiling.record(
        "late_runtime", ["all", "--repeat", "3"], tmp_path / "log", edges_ahead=edges_ahead
    )
    assert run.target.plan.runtime == "libgomp"
    agreement = profiling.compare(run.session.trace, run.truth)
    assert agreement.judged > 500
    assert agreement.wrong_share <= 0.02, agreement.cases


def _root_with(program: Path, root: Path) -> None:
    """A directory tree with the program and the libraries it needs."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for word in listed.split():
        if word.startswith("/"):
            (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, root / word[1:])
    shutil.copy(program, root / "program")
    (root / "proc").mkdir()


@pytest.mark.parametrize("unlinked", [False, True])
def test_in_a_container(unlinked: bool, tmp_path: Path) -> None:
    """A chroot in namespaces of its own; also when its files were removed after it started."""
    root = tmp_path / "root"
    _root_with(profiling.BUILD / "omp_truth.gomp", root)
    outer = subprocess.Popen(
        ["unshare", "--propagation", "unchanged", "--mount", "--pid", "--fork", "--kill-child",
         "chroot", str(root), "/program",
         "skewed,serial", "--forever"],
        stdout=subprocess.PIPE, env={**os.environ, "PARPROF_TRUTH": "/log"},
    )  # fmt: skip
    try:
        assert outer.stdout and outer.stdout.readline().startswith(b"ready")
        pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
        if unlinked:
            shutil.rmtree(root / "lib", ignore_errors=True)
            (root / "program").unlink()
        with profiling.traced_session() as session:
            target = session.watch(pid)
            end = time.monotonic() + 2
            profiling.run_until(session, lambda: time.monotonic() > end)
            session.finish()
            assert (target.plan.runtime, target.failures) == ("libgomp", [])
            os.kill(pid, 15)
            outer.wait(20)
            trace = session.trace
    finally:
        if outer.poll() is None:
            outer.kill()
        outer.communicate()
    # the log has the thread ids of its own PID namespace: compare the totals of working threads only
    truth = Truth.read(root / "log")
    judged = [r for r in trace if r.state == 0 and not truth.near_edge(r.time_ns, profiling.EDGE_MARGIN_NS)
              and truth.working_at(r.time_ns)]  # fmt: skip
    wrong = [r for r in judged if min(r.n_working, 2) != min(truth.working_at(r.time_ns), 2)]
    assert len(judged) > 300
    assert len(wrong) <= 0.03 * len(judged)


def _intel_library() -> Path | None:
    try:
        files = importlib.metadata.files("intel-openmp") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())).resolve() for f in files if f.name == "libiomp5.so"), None)


def test_intel_libiomp5(tmp_path: Path) -> None:
    library = _intel_library()
    if library is None or shutil.which("clang") is None:
        pytest.skip("PyPI intel-openmp or clang is not installed")
    program = tmp_path / "omp_truth.iomp"
    subprocess.run(
        ["clang", "-std=gnu11", "-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls",
         "-fopenmp=libiomp5", str(profiling.ROOT / "tests/workloads/omp_truth.c"), f"-L{library.parent}",
         f"-Wl,-rpath,{library.parent}", "-o", str(program)],
        check=True,
    )  # fmt: skip
    run = profiling.record(program, ["all", "--repeat", "3"], tmp_path / "log")
    assert run.target.plan.runtime == "libiomp5"
    agreement = profiling.compare(run.session.trace, run.truth)
    assert agreement.judged > 1000
    assert agreement.wrong_share <= 0.01, agreement.cases
