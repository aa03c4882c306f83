# SPDX-License-Identifier: Apache-2.0
"""Live processes on the stand-in Cilk runtimes, stepped through known states, and n_w by a WorkerArray in Python."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parprof.files.dso_cache import DsoCache
from parprof.plans import Memory, Root, WorkerArray
from parprof.process.loadmap import LoadMap
from parprof.process.memory import ProcessMemory

CILK = Path(__file__).resolve().parents[1] / "workloads/cilk"
FLAGS = ["-std=gnu11", "-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-mno-red-zone",
         "-Wall", "-Wextra", "-Werror", f"-I{CILK}"]  # fmt: skip
_STEPS = r"""
#include <stdio.h>
#include <sched.h>
static volatile int step, child_runs, child_done;
/* Each byte on stdin lets the program go on. It says what it does then. */
static void next(const char *what) { puts(what); fflush(stdout); if (getchar() != EOF) step++; else step = 99; }
static void wait_for_step(int until) { while (step < until) sched_yield(); }
static void wait_for(volatile int *flag) { while (!*flag) sched_yield(); }
"""
SPAWN_SOURCE = (
    '#include "spawn.h"\n'
    + _STEPS
    + r"""
CILK_HELPER(held, held_helper, (long *done))
{
	HELPER_ENTER;
	child_runs = 1;
	wait_for_step(2);
	*done = 1;
	child_done = 1;
	HELPER_LEAVE;
}

/* The child runs where it was spawned, until step 2; the rest is stolen. */
CILK_FUNCTION(void, held, (void))
{
	long done = 0;

	CILK_ENTER;
	CILK_SPAWN(held_helper, &done, 0, 0);
	wait_for(&child_runs);
	next("two");
	wait_for(&child_done);
	next("one");
	CILK_SYNC;
	CILK_LEAVE;
	if (!done)
		puts("wrong");
}

int main(void)
{
	next("serial");
	held();
	next("serial again");
	return cilk_standin_steals() != 1;
}
"""
)
CILK5_SOURCE = (
    '#include "cilk5.h"\n'
    + _STEPS
    + r"""
struct held_frame { struct cilk_frame header; long done; };
static slow_clone _cilk_held_slow;
static const struct proc_info held_sig[] = { { .size = sizeof(struct held_frame), .inlet = _cilk_held_slow } };

CILK5_OUT_OF_LINE static long child(struct worker_state *ws)
{
	(void)ws;
	child_runs = 1;
	wait_for_step(2);
	child_done = 1;
	return 1;
}

CILK5_OUT_OF_LINE static long held(struct worker_state *ws)
{
	CILK5_INIT(held);
	CILK5_SPAWN(1, &f->done, child(ws), 0);
	return 0; /* was not stolen */
}

CILK5_OUT_OF_LINE static void _cilk_held_slow(struct worker_state *ws, struct cilk_frame *frame)
{
	struct held_frame *f = (struct held_frame *)frame;

	if (frame->entry == 1) {
		wait_for(&child_runs);
		next("two");
		wait_for(&child_done);
		next("one");
		CILK5_SYNC(2);
	}
	Cilk_set_result(ws, f->done);
	Cilk_free_frame(ws, frame);
}

CILK5_OUT_OF_LINE static long _cilk_held_import(struct worker_state *ws) { return held(ws); }

int main(void)
{
	long done;

	next("serial");
	done = Cilk_start(_cilk_held_import, 3);
	next("serial again");
	return done != 1;
}
"""
)


@contextmanager
def stepped(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of steps with three workers; it goes to its end, which must be right, when the caller is done."""
    process = subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"CILK_NWORKERS": "3"}
    )
    try:
        yield process
        out, _ = process.communicate(b"", 60)
        assert process.returncode == 0, out
    finally:
        process.kill()
        process.wait()


def go_on(process: subprocess.Popen[bytes], expected: str) -> None:
    """Wait until the program says that it has come to a state."""
    assert process.stdout is not None
    said = process.stdout.readline().decode().strip()
    assert said == expected


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Let the program leave the state that it is in."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def memories(pid: int) -> Iterator[tuple[str, ProcessMemory, LoadMap]]:
    """The files that a process maps, each with the memory as an agent sees it, and the load map."""
    load_map = LoadMap.read(pid, None, DsoCache())
    for dso in load_map.dsos():
        yield dso.name, ProcessMemory(load_map, dso), load_map


def count_working(plan: WorkerArray, memory: Memory, fsbase: int = 0, learned: int = 0) -> int | None:
    """Workers that work, as bpf/memory.bpf.c counts them; None while the runtime has not started."""

    def word(address: int, size: int = 8) -> int:
        return int.from_bytes(memory.read(address, size), "little")

    at = learned if plan.root_kind is Root.LEARNED else word(
        (plan.root + (fsbase if plan.root_kind is Root.THREAD_LOCAL else 0)) & (1 << 64) - 1
    )  # fmt: skip
    for hop in plan.hops:
        at = word(at + hop) if at else 0
    if not at:
        return None
    working = 0
    array, count = word(at + plan.array), word(at + plan.count, 4)
    if not array or not count:
        return None
    for index in range(count):
        entry = array + index * plan.stride
        entry = word(entry) if plan.pointers else entry
        for hop in plan.worker_hops:
            entry = word(entry + hop) if entry else 0
        if entry:
            value = word(entry + plan.value, plan.size)
            working += value == plan.equals if plan.equals is not None else value != 0
    return working


def settles_at(
    plan: WorkerArray, memory: Memory, expected: int, fsbase: int = 0, learned: int = 0
) -> int | None:
    """Read until that many work; who has just left user code needs an instant. Gives the last count."""
    for _ in range(2000):
        found = count_working(plan, memory, fsbase, learned)
        if found == expected:
            break
        time.sleep(0.005)
    return found


def pack(size: int, **fields: tuple[int, str, int]) -> bytes:
    """Bytes of a structure from (offset, struct format, value)."""
    out = bytearray(size)
    for offset, form, value in fields.values():
        struct.pack_into(f"<{form}", out, offset, value)
    return bytes(out)
