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
HZ = "49"
SERIAL = "serial,skewed"
"""Phases whose idleness is neither 0 nor short."""
KERNEL_TESTS = (
    "tests/kernel/test_engine.py", "tests/kernel/test_detacher.py", "tests/kernel/test_unwind_rows.py",
    "tests/kernel/test_cpus.py",
)  # fmt: skip
"""Those that judge facts, not times."""


class Failed(Exception):
    """A step did not do what it should."""


def check(condition: object, text: str) -> None:
    """Raises Failed."""
    if not condition:
        raise Failed(text)


class Watched:
    """A command, with what it held while it ran."""

    def __init__(self, command: list[str], **environment: str) -> None:
        """Run it to its end."""
        began = time.monotonic()
        env = {**os.environ, **environment}
        with open("/tmp/command.log", "w+") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
            self.descriptors = 0
            while process.poll() is None:
                with suppress(OSError):
                    self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{process.pid}/fd")))
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
    """Idleness over work of each function that worked for long: measured, true."""
    cores = os.cpu_count() or 1
    measured = by_function(profile)
    out = {}
    for name, (work_ns, idle_ns) in Truth.read(log).expected(cores).items():
        if work_ns > 0.5e9 and name in measured:
            work, idle = measured[name]
            out[name] = [round(idle / work, 2), round(idle_ns / work_ns, 2)]
    return out


def judge(ratios: dict[str, list[float]]) -> None:
    """A slow machine's samples are few: within a quarter, and a fifth of a core."""
    check(ratios, "no function of the log was sampled")
    for name, (measured, true) in ratios.items():
        check(abs(measured - true) <= 0.25 * true + 0.2, f"{name}: idleness/work {measured}, truth {true}")


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


def record(program: str) -> Callable[[Path], dict[str, Any]]:
    """`parprof record` of a program that keeps a log."""

    def step(out: Path) -> dict[str, Any]:
        profile, log = Path(f"/tmp/{program}.pb.gz"), Path(f"/tmp/{program}.log")
        command = [
            "record",
            "-F",
            HZ,
            "-o",
            str(profile),
            "--",
            str(BUILD / program),
            SERIAL,
            "--repeat",
            "40",
            "--threads",
            str(os.cpu_count()),
        ]
        run = Watched([*PARPROF, *command], PARPROF_TRUTH=str(log))
        check(run.status == 0, f"record ended with {run.status}:\n{run.output}")
        detach_s = wait_for_detaching()
        truth = Truth.read(log)
        ratios = compare(profile, log)
        found = {
            "seconds": round(run.seconds, 1), "of_the_program": round((truth.end_ns - truth.start_ns) / 1e9, 1),
            "descriptors": run.descriptors, "detach_s": round(detach_s, 1), "ratios": ratios,
            "report": run.output[:3000],
        }  # fmt: skip
        judge(ratios)
        return found

    return step


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
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *KERNEL_TESTS]
    run = Watched(command)
    (out / "pytest.log").write_text(run.output)
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
        except Exception as error:
            failed += 1
            text = str(error) if isinstance(error, Failed) else traceback.format_exc()
            results[name] = {"passed": False, "problem": text}
        print(f"{name}: {time.monotonic() - began:.0f} s: {json.dumps(results[name])[:1500]}", flush=True)
        (out / "result.json").write_text(json.dumps(results, indent=1))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
