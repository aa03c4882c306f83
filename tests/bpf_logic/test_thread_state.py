"""The pure thread-state rules of bpf/thread_state.h, built with gcc, against a model in plain Python."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
MAX_NESTING = 64
STACK_SPAN = 64 << 20
MAX_DROPPED = 8

SHIM = """
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef int s32;
typedef unsigned long long u64; typedef long long s64;
#include "thread_state.h"
unsigned long thread_size(void) { return sizeof(struct thread); }
int enter(struct thread *t, u64 sp, int work) { return frame_enter(t, sp, work); }
void leave(struct thread *t, u64 sp) { frame_leave(t, sp); }
void observe(struct thread *t, u64 sp) { frame_observe(t, sp); }
int learn(struct thread *t, int work, int region) { return learn_base(t, work, region); }
int works(struct thread *t) { return is_working(t); }
u32 depth(struct thread *t) { return t->depth; }
void has_context(struct thread *t, u64 context) { frame_has_context(t, context); }
void region(struct thread *t, u64 function) { frame_is_region(t, function); }
int own_region(struct thread *t, u64 function) { return is_own_region(t, function); }
u64 context(struct thread *t) { u64 i = context_frame(t); return i < MAX_NESTING ? t->context[i] : 0; }
void barrier(struct thread *t) { frame_is_barrier(t); }
int awaits_team(struct thread *t) { return waits_for_team(t); }
void caught(struct thread *t, u64 sp) { frame_caught(t, sp); }
void begin(struct thread *t, int work) { begin_or_end(t, work); }
void set(struct thread *t, int base, int blocked, int unknown, int is_main)
{ t->base_work = base; t->blocked = blocked; t->unknown = unknown; t->is_main = is_main; }
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("bpf_logic")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC", "-I", str(ROOT / "bpf"),
         "-o", str(folder / "shim.so"), str(folder / "shim.c")],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(folder / "shim.so"))


class Thread:
    """The C entry, as an object."""

    def __init__(self, library: ctypes.CDLL, base: int = 1, unknown: int = 0, is_main: int = 0) -> None:
        self.library = library
        self.raw = ctypes.create_string_buffer(library.thread_size())
        library.set(self.raw, base, 0, unknown, is_main)

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *a: getattr(self.library, name)(self.raw, *[ctypes.c_uint64(x) for x in a])


class Model:
    """Frames as a list, outermost first; what the C code does without branches."""

    def __init__(self) -> None:
        self.base = True
        self.frames: list[tuple[int, bool]] = []

    def drop_below(self, sp: int) -> None:
        for _ in range(MAX_DROPPED):
            if self.frames and self.frames[-1][0] < sp:
                self.frames.pop()

    def enter(self, sp: int, work: bool) -> bool:
        self.drop_below(sp + 1)
        if len(self.frames) >= MAX_NESTING:
            return False
        self.frames.append((sp, work))
        return True

    def observe(self, sp: int) -> None:
        if self.frames and 0 <= sp - self.frames[-1][0] < STACK_SPAN:
            self.drop_below(sp)

    def works(self) -> bool:
        return self.frames[-1][1] if self.frames else self.base


TOP = 0x7FFF_0000_0000
operations = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "observe"]), st.integers(0, 200), st.booleans()),
    max_size=200,
)


@settings(max_examples=300, deadline=None)
@given(operations)
def test_matches_the_model(library: ctypes.CDLL, steps: list[tuple[str, int, bool]]) -> None:
    thread, model = Thread(library), Model()
    for name, slot, work in steps:
        sp = TOP - 16 * slot
        if name == "enter":
            assert bool(thread.enter(sp, int(work))) == model.enter(sp, work)
        elif name == "leave":
            thread.leave(sp)
            model.drop_below(sp)
        else:
            thread.observe(sp)
            model.observe(sp)
        assert thread.depth() == len(model.frames)
        assert bool(thread.works()) == model.works()


def test_region_with_barrier_and_tail_call(library: ctypes.CDLL) -> None:
    t = Thread(library)
    assert t.works()
    t.enter(TOP, 0)  # GOMP_parallel
    assert not t.works()
    t.enter(TOP - 100, 1)  # outlined function
    assert t.works()
    t.enter(TOP - 200, 0)  # GOMP_barrier
    assert not t.works()
    t.enter(TOP - 200, 1)  # something tail-called in its place
    assert t.works() and t.depth() == 3
    t.leave(TOP - 92)  # the outlined function returned; the inner returns were missed
    assert not t.works() and t.depth() == 1
    t.leave(TOP + 8)
    assert t.works() and t.depth() == 0


def test_a_barrier_shows_that_the_region_has_a_body_without_a_probe(library: ctypes.CDLL) -> None:
    t = Thread(library)
    t.enter(TOP, 0)  # GOMP_parallel
    t.region(0x1234)
    assert not t.works()
    t.enter(TOP - 200, 0)  # GOMP_barrier, of the body
    assert not t.works()
    t.leave(TOP - 192)
    assert t.works()
    t.enter(TOP - 50, 0)  # the barrier at the region's end, whose return nobody sees
    assert not t.works()
    t.leave(TOP + 8)
    assert t.works() and t.depth() == 0
    t.enter(TOP, 0)  # the next one is judged anew
    t.region(0x1234)
    assert not t.works()


def test_code_that_runs_shows_a_body_without_a_probe(library: ctypes.CDLL) -> None:
    """A worker of the runtime, which waits when nothing is known of it."""
    t = Thread(library, base=0)
    t.caught(TOP - 300)
    assert t.works()
    t.observe(TOP - 400)  # in what that code calls
    assert t.works()
    t.enter(TOP - 350, 0)  # a barrier that it waits at
    assert not t.works()
    t.leave(TOP - 342)
    assert t.works()
    t.enter(TOP - 100, 0)  # the runtime's own, where there is no work left
    assert not t.works() and t.depth() == 1
    t.leave(TOP - 92)
    assert not t.works()


def test_code_that_runs_in_a_wait_of_the_runtimes_holds_for_that_moment(library: ctypes.CDLL) -> None:
    """A thief of Cilk's in its scheduler, say, which calls what the program has of its own."""
    t = Thread(library, base=0)
    t.enter(TOP - 100, 0)
    t.caught(TOP - 300)
    assert t.works() and t.depth() == 1
    t.enter(TOP - 200, 0)
    assert not t.works()


def test_who_waits_for_the_team_is_told_from_who_waits_for_a_lock(library: ctypes.CDLL) -> None:
    t = Thread(library)
    assert not t.awaits_team()
    t.enter(TOP, 0)  # GOMP_parallel
    t.region(0x1234)
    assert t.awaits_team()
    t.enter(TOP - 100, 1)  # its body
    assert not t.awaits_team()
    t.enter(TOP - 200, 0)  # a barrier of it
    t.barrier()
    assert t.awaits_team()
    t.enter(TOP - 300, 1)  # a task that is run meanwhile
    assert not t.awaits_team()
    t.leave(TOP - 292)
    assert t.awaits_team()
    t.leave(TOP - 192)
    t.enter(TOP - 200, 0)  # in its place, a lock
    assert not t.works() and not t.awaits_team()
    t.leave(TOP - 92)
    assert t.awaits_team()  # at the region's end
    t.caught(TOP - 50)
    assert not t.awaits_team(), "it works, though no probe told of that"
    worker = Thread(library, base=0)
    assert worker.awaits_team()


def test_nesting_deeper_than_remembered_keeps_the_outer_frames(library: ctypes.CDLL) -> None:
    t = Thread(library)
    for level in range(MAX_NESTING):
        assert t.enter(TOP - 16 * level, level % 2)
    assert not t.enter(TOP - 16 * MAX_NESTING, 1)
    assert t.depth() == MAX_NESTING
    for _ in range(MAX_NESTING // MAX_DROPPED):
        t.leave(TOP - 16 * 10 + 8)
    assert t.depth() == 10


def test_another_stack_says_nothing(library: ctypes.CDLL) -> None:
    t = Thread(library)
    t.enter(TOP, 0)
    t.observe(TOP - (1 << 30))  # a signal stack below
    assert t.depth() == 1
    t.observe(TOP + STACK_SPAN)  # one far above
    assert t.depth() == 1
    t.observe(TOP + 8)
    assert t.depth() == 0


@pytest.mark.parametrize(
    ("is_main", "work", "region", "known", "base"),
    [
        (0, 1, 0, 1, 0),  # a worker gets work: it was waiting before
        (0, 0, 0, 0, 1),  # a worker waits: it was working, but its region began before we came
        (0, 0, 1, 0, 1),
        (1, 0, 1, 1, 1),  # the main thread begins a region: it was serial
        (1, 0, 0, 0, 1),  # a barrier proves nothing
    ],
)
def test_what_an_event_proves_after_attach(
    library: ctypes.CDLL, is_main: int, work: int, region: int, known: int, base: int
) -> None:
    t = Thread(library, base=1 - base, unknown=1, is_main=is_main)
    assert t.learn(work, region) == known
    assert t.works() == base


def test_the_innermost_frame_with_a_context_counts(library: ctypes.CDLL) -> None:
    thread = Thread(library, base=0)
    thread.enter(1000, 1)
    assert thread.context() == 0
    thread.has_context(7)
    thread.enter(900, 0)
    assert thread.context() == 7
    thread.enter(800, 1)
    thread.has_context(9)
    assert thread.context() == 9
    thread.leave(801)
    assert thread.context() == 7
    thread.enter(700, 1)
    assert thread.context() == 7, "a new frame has no context of the one that was there before"
    thread.leave(1001)
    assert thread.context() == 0


def test_a_tail_call_is_part_of_the_work_that_makes_it(library: ctypes.CDLL) -> None:
    thread = Thread(library, base=0)
    thread.enter(1000, 1)
    thread.has_context(7)
    thread.enter(1000, 0)
    assert thread.depth() == 1
    assert thread.works() == 0
    assert thread.context() == 7
    thread.enter(900, 1)
    thread.has_context(9)
    assert thread.context() == 9


def test_a_region_runs_its_body_in_the_thread_that_starts_it(library: ctypes.CDLL) -> None:
    thread = Thread(library)
    thread.enter(1000, 0)
    thread.region(0x5000)
    thread.enter(900, 1)
    assert thread.own_region(0x5000) == 1
    assert thread.own_region(0x6000) == 0
    thread.leave(901)
    thread.enter(900, 0)
    assert thread.own_region(0x5000) == 1
    thread.leave(1001)
    thread.enter(1000, 0)
    thread.enter(900, 1)
    assert thread.own_region(0x5000) == 0


def test_the_highest_of_64_frames_is_found(library: ctypes.CDLL) -> None:
    for marked in (0, 1, 31, 32, 62, 63):
        thread = Thread(library)
        for index in range(MAX_NESTING):
            thread.enter(100_000 - index, 1)
            if index == marked:
                thread.has_context(1001 + 2 * index)
        assert thread.context() == 1001 + 2 * marked


def test_begin_and_end_are_idempotent(library: ctypes.CDLL) -> None:
    thread = Thread(library, base=0)
    for work in (1, 1, 0, 0, 1):
        thread.begin(work)
        assert thread.works() == work
        assert thread.depth() == 0
