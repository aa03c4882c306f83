"""`parprof scale` by the clock: predictions of real runs on the cores at hand, against their formulas.

Each figure is the median of three runs: a virtual machine's cores are not the same from one moment to the next.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from busy import busy_loops
from profiling import BUILD

pytestmark = pytest.mark.beside

PROGRAM = BUILD / "span_forms.gomp"
LLVM_PROGRAM = BUILD / "span_forms.omp"


def scale(tmp_path: Path, threads: str, *command: str, program: Path = PROGRAM) -> dict[str, Any]:
    return scale_by(tmp_path, ("--threads", threads), *command, program=program)


def scale_by(
    tmp_path: Path, options: tuple[str, ...], *command: str, program: Path = PROGRAM
) -> dict[str, Any]:
    output = tmp_path / "scale.json"
    parprof = [
        sys.executable,
        "-m",
        "parprof",
        "scale",
        "-q",
        "--json",
        "-o",
        str(output),
        *options,
    ]
    subprocess.run([*parprof, "--", str(program), *command], check=True, timeout=200)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def speedups(tmp_path: Path, *command: str, program: Path = PROGRAM) -> dict[int, float]:
    """The median prediction of three runs for each number of threads."""
    found: dict[int, list[float]] = {2: [], 8: [], 64: []}
    for _ in range(3):
        for one in scale(tmp_path, "2,8,64", *command, program=program)["threads"]:
            found[one["n"]].append(one["speedup"])
    return {threads: statistics.median(values) for threads, values in found.items()}


def triangle(threads: int) -> float:
    return 1.575 / (0.05 + (1 - (1 - 1 / threads) ** 2) / 2 + 1 / threads + 0.025)


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_closed_form_of_static_loops(tmp_path: Path, is_busy: bool) -> None:
    with busy_loops(2 if is_busy else 0):
        found = speedups(tmp_path, "triangle", "16384")
    assert found == {threads: pytest.approx(triangle(threads), rel=0.08) for threads in found}


@pytest.mark.skipif(not LLVM_PROGRAM.exists(), reason="needs clang and libomp-dev")
def test_the_closed_form_of_static_loops_on_llvms_runtime(tmp_path: Path) -> None:
    found = speedups(tmp_path, "triangle", "16384", program=LLVM_PROGRAM)
    assert found == {threads: pytest.approx(triangle(threads), rel=0.08) for threads in found}


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_closed_form_of_a_lock(tmp_path: Path, is_busy: bool) -> None:
    with busy_loops(2 if is_busy else 0):
        found = speedups(tmp_path, "critical", "60000")
    assert found == {threads: pytest.approx(min(threads, 4), rel=0.08) for threads in found}


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_closed_form_of_a_pipeline(tmp_path: Path, is_busy: bool) -> None:
    """n items through 4 stages: a chain of n + 3 steps."""
    n = 3000
    with busy_loops(2 if is_busy else 0):
        found = speedups(tmp_path, "pipeline", str(n))
    formula = 4 * n / (n + 3)
    assert found == {threads: pytest.approx(min(threads, formula), rel=0.08) for threads in found}


@pytest.mark.alone  # the longest of very many paths is the one that was disturbed most
@pytest.mark.parametrize("is_busy", [False, True])
def test_the_closed_form_of_a_wavefront(tmp_path: Path, is_busy: bool) -> None:
    """n x n cells, the longest chain 2n - 1 of them.

    Of K interrupts the longest path may meet 2 sqrt(K), wherever they are (as the longest increasing subsequence). So
    the cells are few and long: of 10,000 with half as much work again the longest path would be a third as long.
    """
    n = 20
    with busy_loops(2 if is_busy else 0):
        found = speedups(tmp_path, "long_wavefront", str(n))
    formula = n * n / (2 * n - 1)
    assert found == {threads: pytest.approx(min(threads, formula), rel=0.08) for threads in found}


@pytest.mark.alone  # as of the wavefront
def test_the_closed_form_of_a_doacross_loop(tmp_path: Path) -> None:
    """n x n cells, rows dealt out in turn: N threads each have n / N rows, the last one N - 1 cells later."""
    n = 64
    found = speedups(tmp_path, "doacross", str(n))
    formula = {threads: n * n / (n / threads * n + threads - 1) for threads in found}
    assert found == {threads: pytest.approx(formula[threads], rel=0.08) for threads in found}


@pytest.mark.alone  # a chunk is long by itself, not because others had the cores
@pytest.mark.parametrize("is_busy", [False, True])
def test_the_closed_form_of_a_dynamic_loop_with_one_large_chunk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_busy: bool
) -> None:
    """Two and eight threads share its work. With 64 the chunk is the bound: it is one strand on one core, which may be
    slower or faster just then, and so the program itself says how long it was. A virtual machine's host may take the
    core meanwhile, which is time of the strand and no CPU time."""
    n = 60_000
    work = n - 1 + n / 16
    for _ in range(3):
        with busy_loops(2 if is_busy else 0):
            runs = scale(tmp_path, "2,8,64", "large_chunk", str(n))["threads"]
        chunks = re.findall(r"cpu ([\d.]+) wall ([\d.]+)", capfd.readouterr().out)
        assert len(chunks) == len(runs) == 3
        for run, (cpu_s, wall_s) in zip(runs, chunks, strict=True):
            least, most = (min(run["n"], run["work_s"] / float(chunk_s)) for chunk_s in (wall_s, cpu_s))
            assert least * 0.97 <= run["speedup"] <= most * 1.03
            assert run["work_s"] == pytest.approx(float(cpu_s) * work / (n / 16), rel=0.4), "on any core"


@pytest.mark.alone
def test_quicksort_is_bounded_by_its_partitions(tmp_path: Path) -> None:
    """schardl-2015 figure 2: parallelism 5.6 for ten million elements; serial and parallel runs agree.

    Medians of seven pairs: a third of the span is the first partition, which takes 5 ms, and one run in five is off
    by more than the 10 %, by what the host of a virtual machine does.
    """
    options = (("--serial",), ("--threads", "4"))
    pairs = [[scale_by(tmp_path, one, "quicksort", "1000000") for one in options] for _ in range(7)]
    assert 4.2 < statistics.median(together["parallelism"] for _, together in pairs) < 5.8
    ratio = statistics.median(together["span_s"] / alone["span_s"] for alone, together in pairs)
    assert ratio == pytest.approx(1, abs=0.10)


@pytest.mark.alone
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_the_prediction_for_two_threads_is_not_below_what_two_threads_reach(tmp_path: Path) -> None:
    """It is a bound: a real run cannot beat it, but for what the clock and the machine do, which makes runs longer."""

    def elapsed(threads: int) -> float:
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        start = time.monotonic()
        subprocess.run([str(PROGRAM), "triangle", "16384"], env=variables, check=True, timeout=100)
        return time.monotonic() - start

    pairs = [(elapsed(1), elapsed(2)) for _ in range(7)]
    alone, together = (min(times) for times in zip(*pairs, strict=True))
    predicted = scale(tmp_path, "2", "triangle", "16384")["threads"][0]["speedup"]
    assert alone / together < predicted * 1.05


@pytest.mark.alone
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_two_threads_reach_what_is_predicted_of_a_guided_loop(tmp_path: Path) -> None:
    """By the threads' own clocks, in the best of real runs.

    Who has the first chunk, which is half of all, may have to wait for its core. Then the other one has the rest and is
    through earlier, or the first has more: of that the prediction knows nothing.
    """

    def real() -> tuple[float, float]:
        variables = {**os.environ, "OMP_NUM_THREADS": "2"}
        command = [str(PROGRAM), "timed_guided", "60000"]
        done = subprocess.run(command, env=variables, check=True, timeout=100, capture_output=True, text=True)
        all_s, most_s = re.findall(r"[\d.]+", done.stdout)
        return float(all_s), float(most_s)

    reached = max(all_s / most_s for all_s, most_s in (real() for _ in range(10)))
    predicted = statistics.median(
        scale(tmp_path, "2", "timed_guided", "60000")["threads"][0]["speedup"] for _ in range(3)
    )
    assert reached == pytest.approx(predicted, rel=0.05)
