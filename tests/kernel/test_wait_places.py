# SPDX-License-Identifier: Apache-2.0
"""Below which functions threads sleep, where what is nearest to them on the stack does not tell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.kernel.engine import BpfKernel
from parprof.metrics import STALL, WAIT
from parprof.model import ThreadState
from parprof.session.session import Session
from parprof.session.target import Target

pytestmark = pytest.mark.beside

WAITS = """
#include <stdio.h>
#include <time.h>
#define NEVER_INLINED __attribute__((noinline, noclone))
/* has more of the stack for itself than a place is known by, as functions have that write a line of a log */
NEVER_INLINED void nap(long us)
{
    char line[BYTES];
    struct timespec pause = {0, us * 1000};
    snprintf(line, sizeof line, "%ld", us);
    nanosleep(&pause, 0);
    __asm__ volatile("" ::"r"(line) : "memory");
}
/* as has who calls it */
NEVER_INLINED void log_line(long us)
{
    char line[BYTES];
    __asm__ volatile("" ::"r"(line) : "memory");
    nap(us);
    __asm__ volatile("" ::"r"(line) : "memory");
}
NEVER_INLINED void left(void) { log_line(5000); __asm__ volatile(""); }
NEVER_INLINED void right(void) { log_line(15000); __asm__ volatile(""); }
int main(void)
{
    for (int i = 0; i < 120; i++) {
        left();
        right();
    }
    return 0;
}
"""


@pytest.mark.parametrize("frame_bytes", [300, 600, 5000])
def test_waits_of_a_helper_are_each_callers_own(tmp_path: Path, frame_bytes: int) -> None:
    """GIVEN two functions that sleep by turns in a third one THEN each has its own time."""
    program = tmp_path / "naps"
    build = ["gcc", "-O2", "-g", f"-DBYTES={frame_bytes}", "-xc", "-", "-o", program]
    subprocess.run(build, input=WAITS.encode(), check=True)
    slept = Counter[str]()
    for row in profiling.rows_of_program(program):
        names = [frame.name for frame in row.path]
        who = next((name for name in ("left", "right") if name in names), "nobody")
        slept[who] += round(row.metrics[WAIT] / 1e6)
    assert slept["nobody"] <= 20
    assert slept["left"] == pytest.approx(120 * 5, rel=0.15), slept
    assert slept["right"] == pytest.approx(120 * 15, rel=0.15), slept


def test_the_place_of_a_wait_in_vfork() -> None:
    """The C library keeps the return address in a register meanwhile: make and shells wait there for their children."""
    rows = profiling.rows_of_program(profiling.BUILD / "vforks")
    waits = [row for row in rows if row.metrics[WAIT] and row.path[-1].name == "[waits: child]"]
    assert sum(row.metrics[WAIT] for row in waits) / 1e9 > 0.6
    for row in waits:
        assert [frame.name for frame in row.path if not frame.is_loop][:2] == ["main", "start_child"], (
            row.path
        )


SLEEPS = """
import time
input()
end = time.monotonic() + 0.02
while time.monotonic() < end: pass
time.sleep(600)
"""


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_stall_that_lasts_is_cut_where_it_is_asked_for(is_stopped: bool) -> None:
    """GIVEN that a cut comes to the kernel late THEN no part of the stall is lost, nor counts as one while stopped."""
    late_ns = 50_000_000
    with BpfKernel(["cpu-clock"], 99, system_wide=True) as kernel:
        session = Session(kernel)
        child = subprocess.Popen([sys.executable, "-S", "-c", SLEEPS], stdin=subprocess.PIPE)
        assert child.stdin is not None
        process = psutil.Process(child.pid)
        try:
            profiling.run_until(session, lambda: process.status() == psutil.STATUS_SLEEPING)
            target = session.watch(child.pid)
            session.find_waits(target, True)
            child.stdin.write(b"\n")
            child.stdin.flush()
            number = target.scope.number
            profiling.run_until(session, lambda: bool(kernel.scopes.stall(number, time.monotonic_ns())))
            if is_stopped:
                os.kill(child.pid, signal.SIGSTOP)
                profiling.run_until(session, lambda: process.status() == psutil.STATUS_STOPPED)
            cuts_ns = []
            for _ in range(3):
                due_ns = time.monotonic_ns() + 2 * late_ns
                profiling.run_until(session, lambda due_ns=due_ns: time.monotonic_ns() > due_ns)  # type: ignore[misc]
                cuts_ns.append(time.monotonic_ns() - late_ns)
                session.find_waits(target, True, cuts_ns[-1])
                if len(cuts_ns) == 1:
                    session.take()
            facts = session.take().facts
        finally:
            session.close()
            child.kill()
            child.communicate()
    stalled_ns = sum(count.total for key, count in facts.items() if key.state is ThreadState.STALLED)
    expected_ns = 0 if is_stopped else cuts_ns[-1] - cuts_ns[0]
    assert stalled_ns == pytest.approx(expected_ns, abs=100)


def test_who_goes_on_while_nobody_follows_switches_is_stopped_no_more() -> None:
    """Else all time in which nobody works would be none of the program's, up to its end."""
    with BpfKernel(["cpu-clock"], 499, waits=True) as kernel:
        session = Session(kernel)
        child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        process = psutil.Process(child.pid)
        try:
            target = session.watch(child.pid)
            profiling.run_while_it_works(session, child.pid, 0.1)
            os.kill(child.pid, signal.SIGSTOP)
            profiling.run_until(session, lambda: process.status() == psutil.STATUS_STOPPED)
            profiling.run_until(session, lambda: is_stopped(target))
            kernel.breaker.leave_switches()
            os.kill(child.pid, signal.SIGCONT)
            profiling.run_while_it_works(session, child.pid, 0.1)
            assert not is_stopped(target)
        finally:
            session.close()
            child.kill()
            child.communicate()


def test_a_core_that_a_child_would_have_while_we_hold_it_is_not_idle(tmp_path: Path) -> None:
    """GIVEN a job one of whose processes works WHEN another is stopped at exec for its probes, and we take long."""
    fifo, held_s = tmp_path / "fifo", 0.3
    os.mkfifo(fifo)
    busy = f"{sys.executable} -S -c 'while True: pass'"
    command = ["sh", "-c", f"{busy} & read line < {fifo}; {busy}"]
    with BpfKernel(["cpu-clock"], 499, waits=True) as kernel:
        kernel.await_programs()
        session = Session(kernel, one_job=True)
        child = Child(command)
        with suppress(PermissionError):  # others do not take its cores
            os.sched_setscheduler(child.pid, os.SCHED_RR, os.sched_param(1))
        try:
            scope = session.watch(child.pid, follow=True, stop=True).scope
            child.release()
            profiling.run_until(session, lambda: session.samples() > 50)
            with fifo.open("w") as file:
                file.write("go on\n")
            before = scope.state()
            time.sleep(held_s)
            assert is_any_stopped(child.pid)
            profiling.run_until(session, lambda: not is_any_stopped(child.pid))
            due_s = time.monotonic() + 0.1
            profiling.run_until(session, lambda: time.monotonic() > due_s)
            after = scope.state()
        finally:
            family = [*psutil.Process(child.pid).children(True), psutil.Process(child.pid)]
            for one in family:
                one.kill()
            session.close()
            child.wait()
    assert before is not None and after is not None
    assert after.idle_away_ns - before.idle_away_ns > 0.7 * held_s * 1e9


def is_any_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process or one of its children."""
    process = psutil.Process(pid)
    return any(one.status() == psutil.STATUS_STOPPED for one in [process, *process.children(True)])


def is_stopped(target: Target) -> bool:
    """Whether the programs take somebody of it to be."""
    state = target.scope.state()
    return state is not None and state.is_stopped


LASTS = """
#include <unistd.h>
#define NEVER_INLINED __attribute__((noinline, noclone))
static volatile long sum;
NEVER_INLINED void waits_here(char *byte) { (void)!read(0, byte, 1); __asm__ volatile(""); }
int main(void)
{
    char byte;
    waits_here(&byte);
    for (;;) sum++;
}
"""


def test_a_wait_that_lasted_when_we_came_has_its_place_though_it_is_over(tmp_path: Path) -> None:
    """And the stall that it ends."""
    program = tmp_path / "lasts"
    subprocess.run(["gcc", "-O1", "-g", "-xc", "-", "-o", program], input=LASTS.encode(), check=True)
    child = subprocess.Popen([program], stdin=subprocess.PIPE)
    process = psutil.Process(child.pid)
    with BpfKernel(["cpu-clock"], 499, waits=True) as kernel:
        session = Session(kernel)
        try:
            profiling.run_until(session, lambda: process.status() == psutil.STATUS_SLEEPING)
            image = session.watch(child.pid).image
            assert kernel.placeless_wait(child.pid, image) is not None, "nobody saw it fall asleep"
            profiling.run_until(session, lambda: kernel.placeless_wait(child.pid, image) is None)
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            profiling.run_while_it_works(session, child.pid, 0.1)
            session.drain()
            rows, _ = profiling.rows_of(session)
        finally:
            session.close()
            child.kill()
            child.communicate()
    for metric in (WAIT, STALL):
        places = {row.path[1].name if len(row.path) > 1 else "" for row in rows if row.metrics[metric]}
        assert places == {"waits_here"}, (metric, [row.path for row in rows if row.metrics[metric]])
