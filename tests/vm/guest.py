#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What depends on the kernel, tried on the one that runs: `scripts/kernels.sh` runs this in its machines.

    .venv/bin/python tests/vm/guest.py OUT [STEP...]

Prints each step as it ends, and writes what was measured to OUT/result.json. The machines are emulated and 10 to 30
times slower than real ones: times say how steps compare, not what they cost. Exits with 1 if a step failed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon")]

from daemon_process import DaemonProcess, selecting  # noqa: E402
from parprof.exporters import pprof  # noqa: E402
from parprof.kernel import objects  # noqa: E402
from parprof.kernel.compiler import PROGRAMS  # noqa: E402
from profiling import by_function  # noqa: E402
from truth import Truth  # noqa: E402

BUILD = ROOT / "tests/workloads/build"
PARPROF = [str(ROOT / ".venv/bin/parprof")]
FEW_CPUS = (os.cpu_count() or 1) <= 8
HZ = "49" if FEW_CPUS else "19"
"""Of many CPUs each is so slow that a sample takes it milliseconds."""
MAPS_ARE_THERE_S = 3.0
"""After a command's start, and so often."""
SERIAL = "serial,skewed"
"""Phases whose idleness is neither 0 nor short."""
KERNEL_TESTS = (
    "tests/kernel/test_engine.py", "tests/kernel/test_detacher.py", "tests/kernel/test_unwind_rows.py",
    "tests/kernel/test_cpus.py",
)  # fmt: skip
"""Those that judge facts, not times."""


class Failed(Exception):
    """A step did not do what it should."""

    def __init__(self, text: str, found: dict[str, Any] | None = None) -> None:
        """``found``: what it measured all the same."""
        super().__init__(text)
        self.found = found or {}


def check(condition: object, text: str, found: dict[str, Any] | None = None) -> None:
    """Raises Failed."""
    if not condition:
        raise Failed(text, found)


def map_bytes(pid: int) -> int:
    """What a process's BPF maps take, as the kernel accounts for them."""
    maps: dict[str, int] = {}
    for entry in Path(f"/proc/{pid}/fdinfo").glob("*"):
        with suppress(OSError):
            facts = dict(line.split(":\t", 1) for line in entry.read_text().splitlines() if ":\t" in line)
            if "map_id" in facts:
                maps[facts["map_id"]] = int(facts["memlock"])
    return sum(maps.values())


def work_of(phases: str) -> list[str]:
    """Arguments of a program that keeps a log: a thread for each CPU."""
    unit_ms, repeat = ("10", "40") if FEW_CPUS else ("40", "20")
    return [phases, "--threads", str(os.cpu_count()), "--unit-ms", unit_ms, "--repeat", repeat]


class Watched:
    """A command, with what it held while it ran."""

    def __init__(
        self, command: list[str], log_file: Path = Path("/tmp/command.log"), **environment: str
    ) -> None:
        """Run it to its end. What it says can be read in ``log_file`` while it runs."""
        began = looked = time.monotonic()
        env = {**os.environ, **environment}
        with open(log_file, "w+") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
            self.descriptors = self.map_bytes = 0
            while process.poll() is None:
                with suppress(OSError):
                    self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{process.pid}/fd")))
                if time.monotonic() - looked > MAPS_ARE_THERE_S:
                    self.map_bytes = max(self.map_bytes, map_bytes(process.pid))
                    looked = time.monotonic()
                time.sleep(0.2)
            log.seek(0)
            self.output = log.read()
        self.status = process.returncode
        self.seconds = time.monotonic() - began


def detaching() -> int:
    """Processes that still detach probes."""
    done = subprocess.run(["pgrep", "-fc", "detach_worker.py"], capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


def wait_for_detaching(seconds: float = 300) -> float:
    """Until all probes are gone; how long that took."""
    began = time.monotonic()
    while detaching():
        check(time.monotonic() - began < seconds, f"probes are still being detached after {seconds:.0f} s")
        time.sleep(0.2)
    return time.monotonic() - began


def compare(profile: Path, log: Path) -> dict[str, list[float]]:
    """Idleness over work of each function that worked for long: measured, true.

    Of many CPUs most wait for the emulator when their timers are due, and take few samples, the fewest while most of
    them work. Functions that have less than half of their work in samples are left out.
    """
    cores = os.cpu_count() or 1
    measured = by_function(profile)
    out = {}
    for name, (work_ns, idle_ns) in Truth.read(log).expected(cores).items():
        work, idle = measured.get(name, (0.0, 0.0))
        if work_ns > 0.5e9 and work > (0 if FEW_CPUS else work_ns / 2):
            out[name] = [round(idle / work, 2), round(idle_ns / work_ns, 2)]
    return out


def judge(found: dict[str, Any]) -> None:
    """A slow machine's samples are few: within a quarter, and a fifth of a core."""
    check(found["ratios"] or not FEW_CPUS, "no function of the log was sampled", found)
    for name, (measured, true) in found["ratios"].items():
        close = abs(measured - true) <= 0.25 * true + 0.2
        check(close, f"{name}: idleness/work {measured}, truth {true}", found)


def kernel(out: Path) -> dict[str, Any]:
    """What runs here."""
    compiled = out / "object.json"
    if compiled.is_file():
        objects.object_cache().write(objects.cache_name(), compiled.read_bytes())
    return {"release": os.uname().release, "version": os.uname().version, "cpus": os.cpu_count(), "compiled_outside":
        compiled.is_file()}  # fmt: skip


def command_check(out: Path) -> dict[str, Any]:
    """`parprof check`."""
    run = Watched([*PARPROF, "check"])
    check(run.status == 0, f"check says no:\n{run.output}")
    return {"seconds": round(run.seconds, 1), "says": run.output}


def programs(out: Path) -> dict[str, Any]:
    """Each BPF program: instructions that the verifier looked at, and seconds."""
    found: dict[str, Any] = {}
    with closing(objects.load_object()) as loaded:
        for name in PROGRAMS:
            began = time.monotonic()
            fd = loaded.program(name)
            seconds = time.monotonic() - began
            facts = Path(f"/proc/self/fdinfo/{fd}").read_text()
            told = re.search(r"verified_insns:\s*(\d+)", facts)
            found[name] = {"instructions": int(told[1]) if told else None, "seconds": round(seconds, 1)}
            print(f"  {name}: {found[name]}", flush=True)
    return found


def recorded(program: str, phases: str, profile: Path, log: Path, **environment: str) -> Watched:
    """`parprof record` of a program that keeps a log."""
    command = [*PARPROF, "record", "-F", HZ, "-o", str(profile), "--", str(BUILD / program), *work_of(phases)]
    run = Watched(command, PARPROF_TRUTH=str(log), **environment)
    check(run.status == 0, f"record ended with {run.status}:\n{run.output}")
    return run


def record(program: str) -> Callable[[Path], dict[str, Any]]:
    """`recorded`: a phase with one thread, and one with unequal shares."""

    def step(out: Path) -> dict[str, Any]:
        profile, log = Path(f"/tmp/{program}.pb.gz"), Path(f"/tmp/{program}.log")
        run = recorded(program, SERIAL, profile, log)
        detach_s = wait_for_detaching()
        truth = Truth.read(log)
        ratios = compare(profile, log)
        found = {
            "seconds": round(run.seconds, 1), "of_the_program": round((truth.end_ns - truth.start_ns) / 1e9, 1),
            "descriptors": run.descriptors, "map_bytes": run.map_bytes, "detach_s": round(detach_s, 1),
            "ratios": ratios, "report": run.output[:3000],
        }  # fmt: skip
        judge(found)
        return found

    return step


def every_cpu(out: Path) -> dict[str, Any]:
    """A thread bound to each CPU: all of them are sampled alike, and all are in n_w."""
    profile, log, cpus = Path("/tmp/cpus.pb.gz"), Path("/tmp/cpus.log"), os.cpu_count() or 1
    run = recorded("omp_truth.gomp", "balanced", profile, log, OMP_PROC_BIND="true", OMP_PLACES="threads")
    work_s: dict[int, float] = {}
    for sample in pprof.read(str(profile)).samples:
        if any(frame.name == "balanced_work" for frame in sample.path):
            tid = sample.origin.tid
            work_s[tid] = work_s.get(tid, 0.0) + sample.metrics.work_ns / 1e9
    wall_s = sum(interval.wall_ns for interval in Truth.read(log).intervals) / 1e9
    ratios = compare(profile, log)
    levels = subprocess.run(
        [*PARPROF, "report", str(profile), "--view", "concurrency"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = re.search(r"\(n_w\) in ([\d.]+) s, ([\d.]+) on average", levels.stdout)
    found = {
        "seconds": round(run.seconds, 1), "threads": len(work_s), "least_s": round(min(work_s.values()), 2),
        "most_s": round(max(work_s.values()), 2), "all_s": round(sum(work_s.values()), 1),
        "by_changes_of_n_w_s": round(float(told[1]) * float(told[2]), 1) if told else 0.0,
        "true_all_s": round(wall_s, 1), "ratios": ratios, "levels": levels.stdout[:3000], "report": run.output[:3000],
    }  # fmt: skip
    alike = len(work_s) == cpus and min(work_s.values()) > max(work_s.values()) / 4
    check(alike or not FEW_CPUS, "some CPUs were not sampled like the others", found)
    check(
        abs(found["by_changes_of_n_w_s"] / wall_s - 1) < 0.1, "n_w over time is not what the log says", found
    )
    judge(found)
    return found


def attach(out: Path) -> dict[str, Any]:
    """`parprof attach` to a program in the middle of its work, which goes on afterwards."""
    command = [str(BUILD / "omp_truth.gomp"), "skewed", "--forever"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PARPROF_TRUTH": "/tmp/attach.log"}
    )
    try:
        assert process.stdout
        check(process.stdout.readline().startswith(b"ready"), "the program did not begin")
        profile = Path("/tmp/attach.pb.gz")
        run = Watched([*PARPROF, "attach", str(process.pid), "-d", "10", "-F", HZ, "-o", str(profile)])
        check(run.status == 0, f"attach ended with {run.status}:\n{run.output}")
        detach_s = wait_for_detaching()
        time.sleep(2)
        process.terminate()
        check(process.wait(60) == 0, "the program did not survive")
        samples = pprof.read(str(profile)).samples
        work_s = sum(sample.metrics.work_ns for sample in samples) / 1e9
        check(work_s > 2, f"only {work_s:.1f} s of work were seen")
        names = {frame.name for sample in samples for frame in sample.path}
        check("skewed_long" in names, f"skewed_long is not among {sorted(names)[:20]}")
        return {"seconds": round(run.seconds, 1), "descriptors": run.descriptors, "detach_s": round(detach_s, 1),
                "work_s": round(work_s, 1), "report": run.output[:3000]}  # fmt: skip
    finally:
        process.kill()


def daemon(out: Path) -> dict[str, Any]:
    """parprofd with a program and a scrape."""
    daemon = DaemonProcess(Path("/tmp/daemon"), selecting(comm=["omp_truth*"]))
    program = None
    try:
        began = time.monotonic()
        daemon.ready()
        ready_s = time.monotonic() - began
        program = subprocess.Popen(
            [str(BUILD / "omp_truth.gomp"), "skewed", "--forever"], stdout=subprocess.DEVNULL
        )
        pid = program.pid
        daemon.wait("the program's series", lambda: daemon.page().samples_of(pid) > 1, 300)
        page = daemon.page()
        found = {
            "ready_s": round(ready_s, 1), "work_s": round(page.samples_of(pid), 1),
            "idleness_s": round(page.value("parprof_idleness_seconds_total", pid=str(pid)), 1),
            "descriptors": len(os.listdir(f"/proc/{daemon.process.pid}/fd")),
            "map_bytes": map_bytes(daemon.process.pid),
        }  # fmt: skip
        program.kill()
        program.wait()
        daemon.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        check(daemon.process.wait(120) == 0, f"parprofd ended badly:\n{daemon.log()}")
        return {
            **found,
            "stop_s": round(time.monotonic() - began, 1),
            "detach_s": round(wait_for_detaching(), 1),
        }
    finally:
        for process in (program, daemon.process):
            if process is not None and process.poll() is None:
                process.kill()


def demo(out: Path) -> dict[str, Any]:
    """The README's demo, with fewer steps: floating point takes long here."""
    program = Path("/tmp/heat")
    source = (ROOT / "examples/heat.c").read_text()
    small = Path("/tmp/heat.c")
    small.write_text(re.sub(r"\bN = 1024", "N = 256", re.sub(r"STEPS = \d+", "STEPS = 400", source)))
    subprocess.run(["gcc", "-O2", "-g", "-fopenmp", str(small), "-o", str(program)], check=True)
    run = Watched([*PARPROF, "record", "-F", HZ, "-o", "/tmp/demo.pb.gz", "--", str(program)])
    check(run.status == 0, f"record ended with {run.status}:\n{run.output}")
    check("checksum_serial" in run.output, f"checksum_serial is not named:\n{run.output}")
    return {"seconds": round(run.seconds, 1), "report": run.output[:3000]}


def tests(out: Path) -> dict[str, Any]:
    """The kernel tests that judge facts."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-vv",
        "--durations=0",
        "-p",
        "no:cacheprovider",
        *KERNEL_TESTS,
    ]
    run = Watched(command, out / "pytest.log")
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", run.output)
    }
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", run.output, re.MULTILINE)
    print("\n".join(run.output.splitlines()[-15:]))
    check(run.status == 0, f"failed: {failed}")
    return {"seconds": round(run.seconds, 1), **{f"{word}_tests": number for word, number in counts.items()}}


STEPS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "kernel": kernel,
    "check": command_check,
    "programs": programs,
    "record gomp": record("omp_truth.gomp"),
    "record omp": record("omp_truth.omp"),
    "record pthread": record("pthread_truth"),
    "every cpu": every_cpu,
    "attach": attach,
    "daemon": daemon,
    "demo": demo,
    "tests": tests,
}


def main() -> int:
    """Run the steps."""
    out, wanted = Path(sys.argv[1]), sys.argv[2:] or list(STEPS)
    results: dict[str, Any] = {}
    failed = 0
    for name in wanted:
        began = time.monotonic()
        try:
            results[name] = {"passed": True, **STEPS[name](out)}
        except Failed as error:
            failed += 1
            results[name] = {"passed": False, "problem": str(error), **error.found}
        except Exception:
            failed += 1
            results[name] = {"passed": False, "problem": traceback.format_exc()}
        print(f"{name}: {time.monotonic() - began:.0f} s: {json.dumps(results[name])[:1500]}", flush=True)
        (out / "result.json").write_text(json.dumps(results, indent=1))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
