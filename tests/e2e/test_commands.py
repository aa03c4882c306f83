"""The commands, as users call them, on real programs. Needs root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemon_process import eventually, loaded_ids
from reports import report_of
from truth import Truth

pytestmark = pytest.mark.beside

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "tests/workloads/build"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}


def parprof(
    *arguments: str | int | Path, timeout: float = 60, **extra: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parprof", *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, env={**ENVIRONMENT, **extra}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def inclusive(file: Path) -> dict[str, dict[str, float]]:
    return {row["name"]: row["inclusive"] for row in report_of(file)["functions"]}


@pytest.fixture
def forever(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A workload that runs until the test is over; the parameter is its command line."""
    program, *arguments = request.param
    with subprocess.Popen([BUILD / program, *arguments, "--forever"], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline().startswith(b"ready")
        time.sleep(0.2)
        yield process
        process.kill()


IDLENESS_PER_WORK = {
    "serial_work": 1.0, "balanced_work": 0.0, "skewed_long": 2 / 3, "barrier_long": 2 / 3, "locked_work": 7 / 9,
}  # fmt: skip


def check_ratio(name: str, row: dict[str, float], expected: tuple[float, float]) -> None:
    """Idleness / work. On a busy machine threads wait for a core, and the log moves away from what was planned; and the
    cores that others have while a thread of the program wants one are told apart from idle ones, but not in the log."""
    true, promised = expected[1] / expected[0], IDLENESS_PER_WORK[name]
    measured = (row["idleness_s"] + row.get("stolen_s", 0)) / row["work_s"]
    assert min(true, promised) - 0.1 < measured < max(true, promised) + 0.1, (name, true)


def busy_s() -> float:
    """What all CPUs of the machine have done so far, for whomever."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(one) for one in (*fields[1:4], *fields[6:9])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("program", ["omp_truth.gomp", "omp_truth.omp"])
def test_record_attributes_idleness_to_functions(program: str, tmp_path: Path) -> None:
    out, log = tmp_path / "out.pb.gz", tmp_path / "log"
    phases = "serial,balanced,skewed,barrier,lock"
    before_s = busy_s()
    done = parprof("record", "-F", "999", "--view", "flat", "--cores", "2", "-o", out, "--",
                   BUILD / program, phases, "--repeat", "8", PARPROF_TRUTH=str(log))  # fmt: skip
    taken_s = busy_s() - before_s
    assert done.returncode == 0, done.stderr
    assert "serial_work" in done.stderr and "serial_work" not in done.stdout
    functions, expected = inclusive(out), Truth.read(log).expected(cores=2)
    for name in IDLENESS_PER_WORK:
        check_ratio(name, functions[name], expected[name])
        assert functions[name]["work_s"] == pytest.approx(expected[name][0] / 1e9, rel=0.25, abs=0.02)
    others_s = taken_s - sum(interval.cpu_ns for interval in Truth.read(log).intervals) / 1e9
    stolen_s = sum(functions[name].get("stolen_s", 0) for name in IDLENESS_PER_WORK)
    assert stolen_s <= others_s, "no more than others had"


@pytest.mark.parametrize("program", ["omp_truth.gomp", "pthread_truth"])
def test_saved_facts_make_the_same_report(program: str, tmp_path: Path) -> None:
    facts = tmp_path / "facts"
    done = parprof("record", "--report", "-", "--save-facts", facts, "-o", tmp_path / "out.pb.gz",
                   "--", BUILD / program, "serial,skewed", "--repeat", "2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"wrote {facts}" in done.stderr
    again = parprof("report", facts)
    assert again.returncode == 0, again.stderr
    assert "serial_work" in again.stdout
    assert done.stdout.endswith(again.stdout), "the program's own output aside, both print the same"


def test_facts_of_a_running_process(tmp_path: Path) -> None:
    command = [BUILD / "pthread_truth", "serial", "--forever"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline().startswith(b"ready")
        done = parprof("attach", process.pid, "-d", "1", "-q", "--save-facts", tmp_path / "facts", "-o",
                       tmp_path / "out.pb.gz")  # fmt: skip
        process.kill()
    assert done.returncode == 0, done.stderr
    assert parprof("report", tmp_path / "facts").stdout == done.stdout != ""


def test_facts_and_profile_want_files_of_their_own(tmp_path: Path) -> None:
    for option in ("-o", "--save-facts"):
        assert option in parprof("record", "--help").stdout
    done = parprof("record", "-o", tmp_path / "x", "--save-facts", tmp_path / "x", "--", "true")
    assert done.returncode == 2 and "give each one of its own" in done.stderr
    done = parprof("record", "--save-facts", tmp_path / "none/x", "--", "true")
    assert done.returncode == 1 and "its directory does not exist" in done.stderr


def test_record_pthreads(tmp_path: Path) -> None:
    out, log = tmp_path / "out.pb.gz", tmp_path / "log"
    done = parprof("record", "-F", "999", "--cores", "2", "-o", out, "--", BUILD / "pthread_truth",
                   "serial,skewed,lock", "--repeat", "8", PARPROF_TRUTH=str(log))  # fmt: skip
    assert done.returncode == 0, done.stderr
    functions, expected = inclusive(out), Truth.read(log).expected(cores=2)
    for name in ("serial_work", "skewed_long", "locked_work"):
        check_ratio(name, functions[name], expected[name])
    process = report_of(out)["process"]
    assert (process["n_w_source"], process["runtime"], process["cores"]) == ("scheduler", "none", 2)


@pytest.mark.alone
@pytest.mark.parametrize(
    "forever", [["omp_truth.gomp", "serial,balanced"], ["omp_truth.omp", "serial,balanced"]], indirect=True
)
def test_attach_names_the_serial_function(forever: subprocess.Popen[bytes], tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    done = parprof("attach", forever.pid, "-d", "1", "-o", out, "--view", "flat")
    assert done.returncode == 0, done.stderr
    functions = sorted(inclusive(out).items(), key=lambda item: -item[1]["idleness_s"])
    named = [name for name, _ in functions if name.endswith("_work")]
    assert named[0] == "serial_work"
    assert report_of(out)["process"]["n_w_source"] == "exact"
    assert forever.poll() is None, "the target did not survive"


def wait_for_probes(pid: int) -> None:
    maps = Path(f"/proc/{pid}/maps")
    eventually("its probes", lambda: "[uprobes]" in maps.read_text())


@pytest.mark.parametrize("forever", [["omp_truth.gomp", "skewed"]], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_measurement_with_results(
    forever: subprocess.Popen[bytes], number: signal.Signals, tmp_path: Path
) -> None:
    out = tmp_path / "out.pb.gz"
    with subprocess.Popen([sys.executable, "-m", "parprof", "attach", str(forever.pid), "-o", str(out)],
                          env=ENVIRONMENT, stdout=subprocess.PIPE) as process:  # fmt: skip
        wait_for_probes(forever.pid)  # before which no sample counts
        time.sleep(1)
        process.send_signal(number)
        text = process.communicate(timeout=20)[0].decode()
        assert process.returncode == 0
    assert "skewed_long" in text
    assert report_of(out)["totals"]["samples"] > 100
    assert forever.poll() is None


@pytest.mark.parametrize("forever", [["omp_truth.gomp", "skewed"]], indirect=True)
def test_killed_profiler_leaves_the_target_alone(forever: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-m", "parprof", "attach", str(forever.pid), "-o", os.devnull],
                          env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:  # fmt: skip
        wait_for_probes(forever.pid)
        process.kill()
    time.sleep(0.5)
    assert forever.poll() is None
    assert "uprobes" not in Path(f"/proc/{forever.pid}/maps").read_text() or forever.poll() is None
    forever.send_signal(signal.SIGTERM)
    assert forever.wait(20) == 0


def test_exit_code_is_the_commands_own(tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    assert parprof("record", "-o", out, "--", "sh", "-c", "exit 7").returncode == 7
    assert parprof("record", "-o", out, "--", "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV
    assert out.exists()


def test_what_valgrind_translates_is_not_probed(tmp_path: Path) -> None:
    """It would translate a breakpoint, too, and the program would end there."""
    program, out = tmp_path / "team", tmp_path / "out.pb.gz"
    subprocess.run(["gcc", "-fopenmp", "-O1", "-xc", "-", "-o", program], input=b"""
        #include <stdio.h>
        int main(int argc, char **argv) {
            for (int i = 0; argc > 1 ? i < 50 : 1; i++) {
                #pragma omp parallel for num_threads(2)
                for (int j = 0; j < 20000; j++) __asm__ volatile("");
                if (i == 2) { puts("ready"); fflush(stdout); }
            }
        }""", check=True)  # fmt: skip
    under = ("valgrind", "--tool=none", "-q", program)
    done = parprof("record", "-o", out, "--", *under, "ends")
    assert done.returncode == 0, done.stderr
    with subprocess.Popen(under, stdout=subprocess.PIPE) as target:
        try:
            assert target.stdout and target.stdout.readline() == b"ready\n"
            done = parprof("attach", "-v", "-d", "1", "-o", out, target.pid)
            assert done.returncode == 0, done.stderr
            assert target.poll() is None
        finally:
            target.kill()
    assert "its code is translated by none-" in done.stdout + done.stderr


def test_children_are_followed(tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    done = parprof("record", "-F", "999", "-o", out, "--", "sh", "-c",
                   f"{BUILD / 'omp_truth.gomp'} serial --repeat 10; true")  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = inclusive(out)["serial_work"]
    assert row["idleness_s"] / row["work_s"] == pytest.approx(1.0, abs=0.1)


def test_exec_under_us(tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    done = parprof("record", "-F", "999", "-o", out, "--", "sh", "-c",
                   f"exec {BUILD / 'omp_truth.gomp'} serial,skewed --repeat 5")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert report_of(out)["process"]["comm"].startswith("omp_truth")
    assert inclusive(out)["serial_work"]["idleness_s"] > 0


def test_profile_to_standard_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parprof", "record", "-o", "-", "--", "true"], env=ENVIRONMENT, capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout[:2] == b"\x1f\x8b"


BAD = [
    (["attach", "999999999"], 1, "no process"),
    (["attach", "2"], 1, "kernel thread"),
    (["attach", "banana"], 2, "not a process id"),
    (["attach", "1", "-d", "-3"], 2, "-d"),
    (["attach", "1", "-e", "nonsense"], 2, "unknown event"),
    (["attach", "1", "-F", "0"], 2, "-F"),
    (["attach", "1", "-o", "/nowhere/at/all"], 1, "/nowhere/at/all"),
    (["record", "-o", "/nowhere/x", "--", "true"], 1, "/nowhere/x"),
    (["record", "-o", "/dev/null", "--", "/no/such/program"], 127, "not found"),
    (["record", "-o", "/dev/null"], 2, "needs a command"),
    (["report", "/dev/null"], 1, "/dev/null"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD)
def test_bad_input_is_one_clear_line(arguments: list[str], code: int, words: str) -> None:
    done = parprof(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and words in lines[0], done.stderr


def test_zombie_and_thread_are_refused(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        time.sleep(0.3)
        done = parprof("attach", child.pid)
    assert done.returncode == 1 and "ended" in done.stderr
    with ThreadPoolExecutor(1) as pool:
        done = parprof("attach", pool.submit(threading.get_native_id).result())
    assert done.returncode == 1 and "thread of process" in done.stderr


def test_without_privileges() -> None:
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-m", "parprof",
         "record", "-o", "/dev/null", "--", "true"],
        env={**ENVIRONMENT, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "Permission denied" in done.stderr and "parprof:" not in done.stderr:
        pytest.skip("this interpreter cannot be run by an unprivileged user")
    assert done.returncode == 1
    assert "root" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_sleeper_gives_no_samples_and_the_report_says_so(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as sleeper:
        time.sleep(0.2)
        done = parprof("attach", sleeper.pid, "-d", "0.5", "-o", tmp_path / "out.pb.gz")
        sleeper.kill()
    assert done.returncode == 0, done.stderr
    assert "no samples" in done.stdout.lower()


def test_go_pprof_reads_it(tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    parprof("record", "-o", out, "--", BUILD / "omp_truth.gomp", "serial", "--repeat", "20")
    done = subprocess.run(
        ["go", "tool", "pprof", "-top", "-sample_index=idleness", str(out)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PPROF_TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "serial_work" in done.stdout or "burn" in done.stdout


@pytest.mark.alone  # it counts all programs of the kernel
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = _bpf_objects()
    parprof("record", "-o", tmp_path / "o", "--", BUILD / "omp_truth.gomp", "serial")
    parprof("attach", "999999999")
    time.sleep(0.5)
    assert _bpf_objects() <= before


def _bpf_objects() -> int:
    """BPF programs in the kernel."""
    return len(loaded_ids()[0])


def test_check_reports_this_machine() -> None:
    done = parprof("check", "--json")
    assert done.returncode == 0, done.stdout
    assert {"BPF programs", "uprobes", "clock event"} <= {row["topic"] for row in json.loads(done.stdout)}
    text = parprof("check").stdout
    assert max(map(len, text.splitlines())) <= 80


def test_in_a_pid_namespace_of_its_own(tmp_path: Path) -> None:
    """The kernel numbers processes as the namespace that we live in does."""
    out = tmp_path / "p.pb.gz"
    command = f"{sys.executable} -m parprof record -q -o {out} -- {BUILD}/omp_truth.gomp skewed --repeat 4"
    done = subprocess.run(
        ["unshare", "-p", "-f", "-m", "sh", "-c", f"mount -t proc proc /proc && exec {command}"],
        capture_output=True, text=True, timeout=120, env=ENVIRONMENT,
    )  # fmt: skip
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"no namespace can be made here: {done.stderr.strip()[:100]}")
    assert done.returncode == 0, done.stderr
    told = report_of(out)
    assert told["process"]["pid"] < 1000
    assert told["process"]["runtime"] == "libgomp"
    assert inclusive(out)["skewed_long"]["samples"] > 10
