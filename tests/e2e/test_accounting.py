"""Where all core time went, of a program that tells how long it waited, and where: tests/workloads/waits.c.

All of it is compared with the program's own clock, so that a busy machine makes nothing wrong.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parprof.process.cgroups import CGROUP_ROOT
from profiling import BUILD, truth_environment
from reports import attach_command, record_command, report_of
from truth import Truth

_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT, _WALL = 17, 0x4206, 0x4207, 0x40000000
Waits = Callable[[str], tuple[dict[str, Any], dict[str, float]]]
pytestmark = pytest.mark.beside


@pytest.fixture
def waits(tmp_path: Path) -> Waits:
    """Records a mode of the program: its report, and what it told."""

    def run(mode: str) -> tuple[dict[str, Any], dict[str, float]]:
        profile = tmp_path / "waits.pb.gz"
        command = [*record_command(profile), str(BUILD / "waits"), mode]
        told: dict[str, float] = {}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin and process.stdout
            for line in process.stdout:
                name, _, seconds = line.partition(" ")
                if name == "sleeps_here" and mode == "stall":
                    time.sleep(0.4)
                    process.stdin.write("x")
                    process.stdin.flush()
                if name == "pid" and mode == "debugged":
                    told["held"] = hold_up(int(seconds), 0.5)
                elif name == "pid":
                    continue_when_stopped(int(seconds))
                if name.endswith("_here") or name.startswith("waits_") or name in ("compute", "cpu", "awake"):
                    told[name] = float(seconds)
        assert process.returncode == 0
        return report_of(profile), told

    return run


def continue_when_stopped(pid: int) -> None:
    """Half a second after it has stopped itself."""
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)


def hold_up(pid: int, seconds: float) -> float:
    """As a debugger does: for how long, at most."""
    libc = ctypes.CDLL(None, use_errno=True)
    begun = time.monotonic()
    for request in (_PTRACE_SEIZE, _PTRACE_INTERRUPT):
        assert libc.ptrace(request, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(pid, _WALL)
    time.sleep(seconds)
    assert libc.ptrace(_PTRACE_DETACH, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    return time.monotonic() - begun


def recorded(profile: Path, *command: str) -> dict[str, Any]:
    """The report of a command."""
    subprocess.run([*record_command(profile), *command], check=True)
    return report_of(profile)


def of(report: dict[str, Any], function: str, metric: str) -> float:
    """What a function has, with all that it calls."""
    found = [row for row in report["functions"] if row["name"] == function]
    return float(found[0]["inclusive"][metric]) if found else 0.0


def check_account(report: dict[str, Any], bursts_s: float = 0.0) -> None:
    """The terms add up to n x time, and the time to the levels.

    A program that woke up thousands of times, with ``bursts_s`` of CPU time by its own clock, may have had as much of
    it between samples, with the other cores idle: then the interrupts of the sampling timer wait in the scheduler.
    """
    available_s = report["process"]["cores"] * report["elapsed_s"]
    between_s = report["process"]["cores"] * max(bursts_s - report["totals"]["work_s"], 0.0)
    assert -0.05 <= 1.0 - report["totals"]["accounted"] <= 0.05 + between_s / available_s
    assert sum(report["concurrency"]) == pytest.approx(report["elapsed_s"], abs=0.001)


def check_elapsed(report: dict[str, Any], computed_s: float, awake_s: float) -> None:
    """Time in which the program was held up is none of its time, and all other is.

    ``computed_s``: of that what it took at least. ``awake_s``: for how long it ran or waited for a CPU, from its fork
    to before its end, by the kernel's account.
    """
    assert computed_s - 0.01 <= report["elapsed_s"] <= awake_s + 0.15


def use_a_bare_libc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of which nobody has debug information, as on most machines."""
    maps = Path("/proc/self/maps").read_text()
    (name,) = {line.split()[-1] for line in maps.splitlines() if line.endswith("/libc.so.6")}
    sections = ["--remove-section=.gnu_debuglink", "--remove-section=.note.gnu.build-id"]
    subprocess.run(["objcopy", *sections, name, folder / "libc.so.6"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


@pytest.mark.alone
@pytest.mark.parametrize("is_bare", [False, True])
def test_waits_for_threads_are_told_apart(
    is_bare: bool, waits: Waits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a function of its own; below it stands for what, with the time that it took by the program's clock."""
    if is_bare:
        use_a_bare_libc(tmp_path, monkeypatch)
    report, told = waits("kinds")
    kinds = {
        "waits_for_mutex": "lock",
        "waits_for_rwlock": "lock",
        "waits_for_condition": "condition",
        "waits_for_semaphore": "condition",
        "waits_at_barrier": "barrier",
        "waits_for_thread": "thread",
    }
    for function, kind in kinds.items():
        mine = [row for row in report["paths"] if function in row["frames"] and row["wait_s"]]
        assert {row["frames"][-1] for row in mine if row["wait_s"] > 0.1} == {f"[waits: {kind}]"}, function
        assert sum(row["wait_s"] for row in mine) == pytest.approx(told[function], rel=0.05, abs=0.02)


def test_threads_that_wait_for_the_interpreter_wait_for_the_gil(tmp_path: Path) -> None:
    """CPython makes it of a condition, which is told by where that lies; Debian's has no symbols."""
    script = Path(__file__).resolve().parents[1] / "workloads/planted/gil.py"
    report = recorded(tmp_path / "gil.pb.gz", "/usr/bin/python3", "-S", str(script), "threads")
    rows = [row for row in report["paths"] if "count_words" in row["frames"] and row["wait_s"] > 0.02]
    assert {row["frames"][-1] for row in rows} == {"[waits: GIL]"}


def test_stall_is_charged_to_where_the_last_thread_went_to_sleep(waits: Waits) -> None:
    report, told = waits("stall")
    cores = report["process"]["cores"]
    assert of(report, "sleeps_here", "wait_s") >= told["sleeps_here"] - 0.01
    for function in ("sleeps_here", "reads_here"):
        assert of(report, function, "stall_s") / cores == pytest.approx(told[function], rel=0.03, abs=0.02)
    assert report["concurrency"][0] == pytest.approx(told["sleeps_here"] + told["reads_here"], rel=0.03)
    assert of(report, "compute", "stall_s") == 0
    check_account(report)
    waiting = [path["frames"][-2:] for path in report["paths"] if "reads_here" in path["frames"]]
    assert "[waits: pipe]" in [frames[-1] for frames in waiting]


@pytest.mark.alone
def test_processes_of_a_job_share_its_cores(waits: Waits) -> None:
    report, told = waits("tree")
    totals = report["totals"]
    assert report["scope"]["kind"] == "tree"
    workers = [one for one in report["scope"]["processes"] if one["work_s"] + one["ready_s"] > 0.3]
    assert len(workers) == 2
    assert sum(report["concurrency"][2:]) == pytest.approx(0.8, abs=0.1)
    assert totals["idleness_s"] + totals["stall_s"] < 0.1 * report["process"]["cores"] * told["compute"]
    check_account(report)


def test_one_long_wait_is_found_among_thousands_of_short_ones(waits: Waits) -> None:
    report, told = waits("rare")
    assert of(report, "long_wait_here", "wait_s") == pytest.approx(told["long_wait_here"], rel=0.05)
    # the program's clock has the time in which it was awake, too, but had no CPU
    assert 3999 * 20e-6 <= of(report, "short_waits_here", "wait_s") <= told["short_waits_here"]
    check_account(report, told["cpu"])


def test_waiting_for_requests_is_no_part_of_effort(waits: Waits) -> None:
    report, told = waits("requests")
    cores = report["process"]["cores"]
    assert of(report, "polls_here", "outside_s") / cores == pytest.approx(told["polls_here"], rel=0.03)
    assert of(report, "polls_here", "stall_s") == 0
    assert report["totals"]["efficiency"] > 0.9 / cores
    check_account(report)


def test_a_stopped_process_does_not_stall(waits: Waits) -> None:
    report, told = waits("stopped")
    assert told["stops_here"] > 0.5
    assert report["totals"]["stall_s"] < 0.2 * told["stops_here"]
    check_elapsed(report, told["compute"], told["awake"])
    check_account(report)


def test_a_process_in_a_debugger_does_not_stall(waits: Waits) -> None:
    """Time in which it was held up is none of its time."""
    report, told = waits("debugged")
    assert report["totals"]["stall_s"] < 0.1
    check_elapsed(report, told["compute"] - told["held"], told["awake"])
    check_account(report)


@pytest.mark.parametrize("mode", ["dies", "execs"])
def test_a_thread_that_dies_asleep_has_waited(waits: Waits, mode: str) -> None:
    """Until its process ended, or became another program, which is cut off there."""
    report, told = waits(mode)
    assert of(report, "blocks_here", "wait_s") == pytest.approx(told["blocks_here"], rel=0.03, abs=0.05)
    # From the exit of the one that worked until the sleeper is awake, to die, nobody works: 7 to 33 us.
    assert of(report, "blocks_here", "stall_s") < 0.001
    if mode == "execs":
        assert of(report, "polls_here", "wait_s") == pytest.approx(told["polls_here"], rel=0.03, abs=0.05)
    check_account(report)


def test_a_fork_does_not_double_a_wait(waits: Waits) -> None:
    report, told = waits("forks")
    assert of(report, "sleeps_here", "wait_s") == pytest.approx(told["sleeps_here"], rel=0.03, abs=0.05)
    assert of(report, "sleeps_here", "wait_s") >= 0.6 - 0.01
    check_account(report)


def test_what_we_hold_a_child_for_is_no_stall_of_its_parent(tmp_path: Path) -> None:
    """A child is stopped at exec until its probes are there; the shell that waits for it began to sleep later."""
    busy = "import time; end = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass"
    found = recorded(tmp_path / "child.pb.gz", "sh", "-c", f"'{sys.executable}' -S -c '{busy}'; true")
    assert found["totals"]["stall_s"] < 0.1 * found["elapsed_s"] * found["process"]["cores"]
    check_account(found)


def test_attach_to_all_of_a_cgroup(tmp_path: Path) -> None:
    """Processes that have nothing to do with each other, but for where they were put."""
    root = next(
        (one for one in (CGROUP_ROOT, CGROUP_ROOT / "unified") if (one / "cgroup.procs").exists()), None
    )
    if root is None:
        pytest.skip("no cgroup v2 is mounted")
    group, profile = root / f"parprof-test-{os.getpid()}", tmp_path / "group.pb.gz"
    group.mkdir()
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in busy:
            (group / "cgroup.procs").write_text(str(process.pid))
        subprocess.run(attach_command(profile, busy[0].pid, "--scope", "cgroup", "-d", 1), check=True)
        found = report_of(profile)
    finally:
        for process in busy:
            process.kill()
            process.wait()
        group.rmdir()
    assert found["scope"]["kind"] == "cgroup"
    assert {one["pid"] for one in found["scope"]["processes"]} == {process.pid for process in busy}
    check_account(found)


def test_attach_to_a_parent_measures_its_children_with_it(tmp_path: Path) -> None:
    """They were there before us; without --children it is said that they are not measured."""
    profile = tmp_path / "tree.pb.gz"
    busy = "while :; do :; done"
    attach = [sys.executable, "-m", "parprof", "attach", "-F", "498", "-d", "1", "-o", str(profile)]
    with subprocess.Popen(["sh", "-c", f"{busy} & {busy} & wait"], start_new_session=True) as parent:
        try:
            time.sleep(0.3)
            alone = subprocess.run([*attach, str(parent.pid)], capture_output=True, text=True, check=True)
            together = [*attach, "--children", str(parent.pid)]
            subprocess.run(together, capture_output=True, text=True, check=True)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
    assert "2 child processes that are not measured: --children includes them" in alone.stderr
    report = report_of(profile)
    workers = [one for one in report["scope"]["processes"] if one["work_s"] + one["ready_s"] > 0.3]
    assert len(workers) == 2
    assert report["totals"]["idleness_s"] + report["totals"]["stall_s"] < 0.04 * report["elapsed_s"]
    check_account(report)


@pytest.mark.parametrize("computes", [False, True])
def test_a_wait_is_cut_at_both_ends_of_a_measurement(computes: bool, tmp_path: Path) -> None:
    """It began before that, and goes on behind it: none of it is missing, and no more than was measured is there."""
    source, program, profile = tmp_path / "long.c", tmp_path / "long", tmp_path / "long.pb.gz"
    source.write_text(
        "#include <pthread.h>\n#include <unistd.h>\nstatic volatile int sink;\n"
        "static __attribute__((noinline)) void sleeps_here(void) { sleep(60); sink++; }\n"
        "static void *thread(void *none) { sleeps_here(); return none; }\n"
        "int main(int argc, char **argv) { pthread_t other; (void)argv;\n"
        "  if (argc == 1) { sleeps_here(); return 0; }\n"
        "  pthread_create(&other, 0, thread, 0);\n  for (;;) sink++; }\n"
    )
    subprocess.run(["gcc", "-O2", "-g", "-pthread", source, "-o", program], check=True)
    with subprocess.Popen([program, *(["computes"] if computes else [])]) as process:
        try:
            time.sleep(0.3)
            subprocess.run(attach_command(profile, process.pid, "-d", 1), check=True)
        finally:
            process.kill()
    report = report_of(profile)
    elapsed_s, cores = report["elapsed_s"], report["process"]["cores"]
    assert of(report, "sleeps_here", "wait_s") == pytest.approx(elapsed_s, rel=0.01)
    stall_s = 0 if computes else cores * elapsed_s
    assert of(report, "sleeps_here", "stall_s") == pytest.approx(stall_s, rel=0.01)
    check_account(report)


@pytest.mark.alone
def test_functions_are_alone_at_work_for_as_long_as_they_say(tmp_path: Path) -> None:
    """On 2 cores the other one is idle for as long as one thread works alone: the program's log has both.

    The sampled histogram agrees with that of each change of n_w.
    """
    log, profile = tmp_path / "truth.log", tmp_path / "truth.pb.gz"
    record = record_command(profile, "-F", 498, "--cores", 2)
    phases = ("serial,balanced,skewed,lock", "--unit-ms", "60", "--repeat", "4")
    subprocess.run([*record, str(BUILD / "pthread_truth"), *phases], env=truth_environment(log), check=True)
    report = report_of(profile)
    found = {row["name"]: row["concurrency"]["inclusive"] for row in report["functions"]}
    totals = report["totals"]
    # A thread that is preempted counts as working for as long as it waits, but is not sampled then.
    near = 0.08 if totals["ready_s"] + totals["stolen_s"] < 0.05 * totals["work_s"] else 0.3
    judged = 0
    for function, (work_ns, alone_ns) in Truth.read(log).expected(cores=2).items():
        if work_ns < 0.2e9:
            continue
        judged += 1
        one = found[function]
        work_s = one["sequential_s"] + one["concurrent_s"]
        assert one["sequential_s"] / work_s == pytest.approx(alone_ns / work_ns, abs=near), function
        assert one["elapsed_s"] == pytest.approx(one["sequential_s"] + one["concurrent_s"] / 2, rel=0.01)
        assert sum(level["share"] for level in one["levels"]) == pytest.approx(1, abs=1e-4)
    assert judged >= 4
    (job,) = report["scope"]["processes"]
    exact = report["concurrency"]
    sampled = job["concurrency"]
    assert sampled["sequential_s"] / sampled["elapsed_s"] == pytest.approx(
        exact[1] / sum(exact[1:]), abs=near
    )
    shown = subprocess.run(
        [sys.executable, "-m", "parprof", "report", "--view", "concurrency", str(profile)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "each change seen" in " ".join(shown.stdout.split()) and "serial_work" in shown.stdout


def test_a_program_in_a_script_is_told_by_its_own_runtime(tmp_path: Path) -> None:
    """What a barrier is, is a question of what ran, not of the shell that started it."""
    script = f"'{BUILD / 'omp_truth.gomp'}' serial,balanced --repeat 2; true"
    process = recorded(tmp_path / "script.pb.gz", "sh", "-c", script)["process"]
    assert (process["comm"], process["runtime"]) == ("sh", "libgomp")
    assert process["n_w_source"] in {"exact", "memory", "sampled"}


@pytest.mark.parametrize("form", ["inside", "static"])
def test_threads_of_a_runtime_without_symbols_are_below_main(form: str, tmp_path: Path) -> None:
    """No probe tells who creates them in a static program: it has no name for that, either."""
    program = BUILD / f"omp_truth.gomp.{form}.stripped"
    report = recorded(tmp_path / "stripped.pb.gz", str(program), "balanced", "--repeat", "3")
    assert report["process"]["runtime"] == "libgomp (linked in, stripped)"
    assert of(report, "main", "work_s") > 0.95 * report["totals"]["work_s"] > 0.1


def test_a_librarys_threads_work_for_who_called_it(tmp_path: Path) -> None:
    """They were started while the library was loaded; the program calls it in two places, for 0.9 s and for 0.3 s."""
    report = recorded(tmp_path / "blas.pb.gz", str(BUILD / "blas_truth"))
    for function, seconds in (("often", 0.9), ("seldom", 0.3)):  # two threads work for as long
        assert of(report, function, "work_s") == pytest.approx(2 * seconds, rel=0.15), function
    assert of(report, "load", "work_s") < 0.05
    assert of(report, "[OpenBLAS worker]", "work_s") < 0.05
    assert of(report, "blas_thread_init", "work_s") < 0.05


@pytest.mark.alone
@pytest.mark.parametrize("rate_hz", [499, 3999])
def test_a_librarys_threads_that_spin_hide_no_idleness(rate_hz: int, tmp_path: Path) -> None:
    """Serial phases of 5, 20 and 80 ms between calls: all that time a core has nothing to do but to look for work.

    A thread's state is that of its last sample or switch, 2 ms old here; but whose pool it is tells that its threads do
    not work while their only caller does something else. What others have of the idle core meanwhile, on a busy
    machine, is told apart from idleness, and is as much a part of it.
    """
    log, profile = tmp_path / "log", tmp_path / "blas.pb.gz"
    subprocess.run(
        [*record_command(profile, "-F", rate_hz), str(BUILD / "blas_phases")],
        env=truth_environment(log, STANDIN_SPIN=str(1 << 26)),
        check=True,
    )
    report, truth = report_of(profile), Truth.read(log)
    assert report["process"]["n_w_source"] == "scheduler"
    for function in ("serial_5", "serial_20", "serial_80"):
        alone = sum(one.cpu_ns for one in truth.intervals if one.function == function) / 1e9
        assert alone > 0.9
        unused = of(report, function, "idleness_s") + of(report, function, "stolen_s")
        assert unused == pytest.approx(alone, rel=0.05), function


def test_a_name_that_no_function_has_is_told(tmp_path: Path) -> None:
    profile = tmp_path / "spins.pb.gz"
    command = [sys.executable, "-m", "parprof", "record", "--no-report", "-o", str(profile)]
    command += ["--wait-function", "wait_fro_work", "--", str(BUILD / "spins_truth"), "call"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    note = "no function in the program's files has such a name; did you mean wait_for_work?"
    assert note in told
    shown = subprocess.run(
        [*command[:3], "report", "-v", str(profile)], capture_output=True, text=True, check=True
    )
    assert note in " ".join(shown.stdout.split())


@pytest.mark.alone
def test_what_threads_wait_for_is_told_though_switches_were_too_dear(tmp_path: Path) -> None:
    """Two threads that nap 10,000 times a second each: following that all the time takes more than the budget."""
    profile = tmp_path / "naps.pb.gz"
    record = [sys.executable, "-m", "parprof", "record", "-q", "--no-report", "--cores", "2", "-o"]
    subprocess.run([*record, str(profile), "--", str(BUILD / "naps"), "2", "0.5", "5", "0"], check=True)
    report = report_of(profile)
    shown = subprocess.run(
        [sys.executable, "-m", "parprof", "report", "-v", str(profile)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    text = " ".join(shown.split())
    assert "context switches were too dear" in text and re.search(
        r"then seen in glimpses alone, \d+ of", text
    )
    first = report["causes"][0]
    assert first["kind"] == "stall" and first["path"][:2] == ["main", "run"], report["causes"]
    said = r"advice: blocked in main > run\b[^:]*:\d+\): nobody works for .{,40} while this waits for another thread"
    assert re.search(said, text), text[:500]
    then_s, first_s = (of(report, function, "stall_s") for function in ("naps_then", "naps_first"))
    assert then_s > 3 * first_s
    assert of(report, "[nobody works]", "stall_s") < 0.5 * then_s
    check_account(report)


def test_who_wakes_the_others_at_a_barrier_does_not_wait(tmp_path: Path) -> None:
    """A team of one comes last each time, and makes the call that wakes nobody: that is overhead, and no wait."""
    source, program, out = tmp_path / "alone.c", tmp_path / "alone", tmp_path / "out"
    source.write_text(
        "#include <omp.h>\nint main(void) {\n"
        "  for (double end = omp_get_wtime() + 1; omp_get_wtime() < end;) {\n"
        "    for (int i = 0; i < 1000; i++) {\n#pragma omp parallel num_threads(1)\n"
        '      { __asm__ volatile(""); }\n    } } }\n'
    )
    subprocess.run(["gcc", "-O2", "-g", "-fopenmp", source, "-o", program], check=True)
    command = [*record_command(out, "--n-w-source", "memory"), str(program)]
    assert subprocess.run(command).returncode == 0
    totals = report_of(out)["totals"]
    assert totals["spin_s"] < 0.3 * totals["work_s"], totals
