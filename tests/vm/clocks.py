#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jumps of the wall clock, and suspends, while parprof measures. It sets the clock of the machine that it runs on and
puts that to sleep: only for the machines of `scripts/kernels.sh`. Prints what parprof said beside what the program's
own clocks say; docs/kernels.md keeps what came out.

    scripts/kernels.sh -x '.venv/bin/python tests/vm/clocks.py /out' KERNEL
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon")]

from guest import HZ, PARPROF, Failed, check, kernel, wait_for_detaching  # noqa: E402

from daemon_process import DaemonProcess, selecting  # noqa: E402

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile unsigned long sink;
static double computed, slept, longest;

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void compute(double seconds)
{
    double end = now(CLOCK_MONOTONIC) + seconds;
    while (now(CLOCK_MONOTONIC) < end)
        for (int i = 0; i < 2000; i++) sink += i;
}

__attribute__((noinline)) static void naps(double seconds)
{
    struct timespec t = { 0, seconds * 1e9 };
    double begin = now(CLOCK_MONOTONIC), took;
    nanosleep(&t, 0);
    took = now(CLOCK_MONOTONIC) - begin;
    slept += took;
    longest = took > longest ? took : longest;
}

static void *helps(void *unused) { compute(0.5); return unused; }

__attribute__((noinline)) static void serial(void) { compute(0.5); }

__attribute__((noinline)) static void together(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, helps, 0);
    compute(0.5);
    pthread_join(thread, 0);
}

int main(int argc, char **argv)
{
    double begin = now(CLOCK_MONOTONIC), boot = now(CLOCK_BOOTTIME), wall = now(CLOCK_REALTIME);
    int rounds = argc > 1 ? atoi(argv[1]) : 1 << 30;

    puts("ready");
    fflush(stdout);
    for (int i = 0; i < rounds; i++) {
        serial();
        naps(0.7);
        together();
    }
    begin = now(CLOCK_MONOTONIC) - begin;
    printf("elapsed %.3f\nslept %.3f\nlongest %.3f\nasleep %.3f\njumped %.3f\n", begin, slept, longest,
           now(CLOCK_BOOTTIME) - boot - begin, now(CLOCK_REALTIME) - wall - begin);
    return 0;
}
"""
"""Works alone, sleeps, works with a second thread; and what its clocks say of that, in seconds."""
BINARY = Path("/tmp/clocks_day")
ROUNDS = 16
JUMPS = {"forward": 3600, "back": -3600}
Event = Callable[[], None]


def jump(seconds: int) -> Event:
    """Sets the wall clock on, or back."""
    return lambda: time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)


def suspend() -> None:
    """Puts the machine to sleep (S3) for some seconds."""
    subprocess.run(["rtcwake", "-m", "mem", "-s", "6"], check=True, stdout=subprocess.DEVNULL)


EVENTS: dict[str, Event] = {
    "none": lambda: None,
    **{name: jump(seconds) for name, seconds in JUMPS.items()},
    "sleep": suspend,
}


def later(event: Event, after_s: float) -> threading.Thread:
    """Does it from a thread of its own, twice."""

    def run() -> None:
        for _ in range(2):
            time.sleep(after_s)
            event()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def words(output: str) -> dict[str, float]:
    """The program's lines."""
    return {name: float(value) for name, value in re.findall(r"^(\w+) (-?[\d.]+)$", output, re.MULTILINE)}


def report(profile: Path) -> dict[str, Any]:
    """What `parprof report --json` has of it, shortened."""
    done = subprocess.run(
        [*PARPROF, "report", str(profile), "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    totals = found["totals"]
    return {
        "elapsed_s": found["elapsed_s"], "duration_s": found["duration_s"], "accounted": totals["accounted"],
        "work_s": totals["work_s"], "idleness_s": totals["idleness_s"], "stall_s": totals["stall_s"],
        "wait_s": totals["wait_s"], "concurrency": found["concurrency"], "lost": found["lost"],
        "longest_path_wait_s": max((path["wait_s"] for path in found["paths"]), default=0.0),
        "longest_path_stall_s": max((path["stall_s"] for path in found["paths"]), default=0.0),
        "causes": [(cause["kind"], cause["function"], cause["lost_s"]) for cause in found["causes"][:4]],
    }  # fmt: skip


def record(name: str) -> Callable[[Path], dict[str, Any]]:
    """`parprof record` with a trace."""

    def step(out: Path) -> dict[str, Any]:
        profile, trace = out / f"{name}.pb.gz", out / f"{name}.pftrace"
        thread = later(EVENTS[name], 12)
        done = subprocess.run(
            [*PARPROF, "record", "-F", HZ, "-o", str(profile), "--trace", str(trace), "--", str(BINARY), str(ROUNDS)],
            capture_output=True, text=True,
        )  # fmt: skip
        thread.join()
        check(done.returncode == 0, f"record ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return {"told": words(done.stdout), **report(profile), "says": (done.stdout + done.stderr)[:1500]}

    return step


def attach(
    name: str, *, daemon: DaemonProcess | None = None, pid: int = 0
) -> Callable[[Path], dict[str, Any]]:
    """`parprof attach -d 20`, with an engine of its own or by the daemon."""

    def step(out: Path) -> dict[str, Any]:
        profile = out / f"attach-{name}{'-daemon' if daemon else ''}.pb.gz"
        own = None if pid else subprocess.Popen([str(BINARY)], stdout=subprocess.PIPE)
        try:
            where = str(daemon.socket) if daemon else "/nowhere"
            thread = later(EVENTS[name], 8)
            began = time.monotonic()
            done = subprocess.run(
                [*PARPROF, "attach", str(own.pid if own else pid), "-d", "20", "-F", HZ, "-o", str(profile)],
                capture_output=True, text=True, env={**os.environ, "PARPROF_SOCKET": where},
            )  # fmt: skip
            took_s = time.monotonic() - began
            thread.join()
            check(done.returncode == 0, f"attach ended with {done.returncode}:\n{done.stdout}{done.stderr}")
            return {"command_s": took_s, **report(profile), "says": (done.stdout + done.stderr)[:1500]}
        finally:
            if own:
                own.kill()
                own.wait()

    return step


def top_json(daemon: DaemonProcess, seconds: float) -> list[Any]:
    """Some updates of `parprof top`."""
    process = subprocess.Popen(
        [*PARPROF, "top", "--json", "-i", "4"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PARPROF_SOCKET": str(daemon.socket)},
    )  # fmt: skip
    threading.Timer(seconds, process.terminate).start()
    output, _ = process.communicate()
    return [json.loads(line) for line in output.splitlines()]


def with_daemon(out: Path) -> dict[str, Any]:
    """The daemon with scrapes, `top`, its status page, and an attach by it, over jumps and sleeps."""
    daemon = DaemonProcess(Path("/tmp/daemon"), selecting(comm=["clocks_day*"]))
    program = subprocess.Popen([str(BINARY)], stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {}
    names = ("parprof_work_seconds_total", "parprof_idleness_seconds_total", "parprof_stall_seconds_total",
             "parprof_wait_seconds_total", "parprofd_snapshot_timestamp_seconds")  # fmt: skip
    pid = program.pid

    def look() -> dict[str, float]:
        page = daemon.page()
        return {
            "monotonic": time.monotonic(), "wall": time.time(),
            **{name: page.value(name, **({} if name.startswith("parprofd") else {"pid": str(pid)}))
               for name in names},
        }  # fmt: skip

    try:
        daemon.ready()
        daemon.wait("the program's series", lambda: daemon.page().samples_of(pid) > 1, 300)
        for name, event in EVENTS.items():
            before = look()
            thread = later(event, 8)
            tops = top_json(daemon, 22)
            thread.join()
            time.sleep(4)
            after = look()
            found[name] = {
                "change": {key: round(after[key] - before[key], 2) for key in before},
                "top": [
                    {key: row[key] for key in ("interval_s", "work", "idleness", "stall", "efficiency")}
                    for one in tops
                    for row in one["processes"]
                ],
            }  # fmt: skip
            page = daemon.get("/")[1].decode()
            found[name]["page"] = [
                re.findall("watching for[^.]*", page),
                re.findall("for [0-9.]+ (?:s|min|h)", page),
                re.findall("<polyline[^>]*>", page)[:8],
            ]
            found[f"attach {name}"] = attach(name, daemon=daemon, pid=pid)(out)
        program.kill()
        program.wait()
        daemon.process.send_signal(signal.SIGTERM)
        check(daemon.process.wait(120) == 0, f"parprofd ended badly:\n{daemon.log()}")
        return found
    finally:
        print(daemon.log()[-3000:])
        for process in (program, daemon.process):
            if process.poll() is None:
                process.kill()


STEPS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{f"record {name}": record(name) for name in EVENTS},
    **{f"attach {name}": attach(name) for name in EVENTS if name != "none"},
    "daemon": with_daemon,
}


def main() -> int:
    """Run the steps."""
    if os.uname().nodename != "vm" or "QEMU" not in Path("/sys/class/dmi/id/sys_vendor").read_text():
        sys.exit("only in the machines of scripts/kernels.sh: it sets the clock")
    wanted = sys.argv[2:] or list(STEPS)
    kernel(Path(sys.argv[1]))
    out = Path("/tmp/clocks")  # a folder of the machine outside does not survive a suspend
    out.mkdir()
    BINARY.with_suffix(".c").write_text(PROGRAM)
    subprocess.run(["gcc", "-O1", "-g", "-pthread", str(BINARY) + ".c", "-o", str(BINARY)], check=True)
    failed, results = 0, {}
    for name in wanted:
        try:
            results[name] = STEPS[name](out)
            wait_for_detaching()
            print(f"{name}: done", json.dumps(results[name], indent=1), flush=True)
        except (Failed, AssertionError, OSError, subprocess.SubprocessError) as error:
            failed += 1
            traceback.print_exc()
            print(f"{name}: FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
