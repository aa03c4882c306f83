# SPDX-License-Identifier: Apache-2.0
"""A process works until the kernel has taken its memory apart, which of a large one takes milliseconds."""

from __future__ import annotations

import struct
import subprocess
import time
from collections import Counter

import pytest

import profiling
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Budget
from parprof.model import SampleKey, ThreadState
from parprof.session.session import Session

HZ = 999
MEMORY_MB = 1000
BRIEF = str(profiling.BUILD / "brief")


class Watched:
    """A command, watched from its first instruction on."""

    def __init__(self, *command: str, budget: Budget) -> None:
        with BpfKernel(["cpu-clock"], HZ, waits=True, budget=budget) as kernel:
            kernel.await_programs()
            session = Session(kernel, one_job=True)
            try:
                child = profiling.Child(list(command))
                session.watch(child.pid, follow=True, stop=True)
                child.release()
                profiling.run_until(session, lambda: child.poll() is not None)
                session.finish()
                self.n_working_at_end: Counter[int] = Counter()
                """Samples by n_w, of those in exit."""
                for key, count in session.facts.items():
                    if is_in_exit(key):
                        self.n_working_at_end[key.n_working] += count.samples
                (scope,) = session.scopes.values()
                self.levels_s = [ns / 1e9 for ns in scope.times(kernel.has_ticked).level_ns]
                self.left = {target.pid for target in session.targets.values() if not target.ended}
                self.threads = len(list(kernel._object.entries("threads", "thread")))
                self.statistics = kernel.statistics()
            finally:
                session.close()

    @property
    def ended_s(self) -> float:
        """How long the end took, by samples."""
        return sum(self.n_working_at_end.values()) / HZ


def is_in_exit(key: SampleKey) -> bool:
    """Only there, and in exec, is there no user stack: of these samples few."""
    return key.event == 0 and key.state is ThreadState.WORKING and not key.user


def test_it_works_while_its_memory_is_taken_apart() -> None:
    """Nobody else does meanwhile: the shell waits for it, and goes on after that."""
    seen = Watched("sh", "-c", f"{BRIEF} 5 memory {MEMORY_MB}; {BRIEF} 5", budget=profiling.UNLIMITED)
    assert seen.ended_s > 0.03, "the kernel was done too soon to be seen"
    assert seen.n_working_at_end[1] > 0.9 * sum(seen.n_working_at_end.values())
    assert seen.levels_s[0] < 0.2 * seen.ended_s
    assert seen.threads == 1, "the template"
    assert not seen.left


def test_it_is_counted_beside_others() -> None:
    command = f"{BRIEF} 60000 & {BRIEF} 5 memory {MEMORY_MB}; kill $!"
    seen = Watched("sh", "-c", command, budget=profiling.UNLIMITED)
    assert seen.ended_s > 0.03, "the kernel was done too soon to be seen"
    assert seen.n_working_at_end[2] > 0.8 * sum(seen.n_working_at_end.values())
    assert seen.threads == 1


@pytest.mark.beside
@pytest.mark.parametrize("mode", [("thread",), ("then", "true"), ()])
def test_nothing_is_left_of_it(mode: tuple[str, ...]) -> None:
    seen = Watched(BRIEF, "5", *mode, budget=profiling.UNLIMITED)
    assert seen.threads == 1
    assert not seen.left


@pytest.mark.beside
def test_where_switches_are_not_followed_nothing_is_left_either() -> None:
    """GIVEN a budget that is used up at once THEN the end of processes is told all the same."""
    command = f"for i in 1 2 3 4 5 6 7 8; do {BRIEF} 20; done"
    seen = Watched("sh", "-c", command, budget=Budget(0.0001, 20_000))
    assert seen.statistics["ticks"] > 0
    assert seen.threads == 1
    assert not seen.left


@pytest.mark.beside
@pytest.mark.parametrize(("n_working", "counted"), [(0xFFFF, 0), (0xFFFE, 0), (3, 3), (200, 200)])
def test_one_fewer_than_none_is_none(n_working: int, counted: int) -> None:
    """Two CPUs may tell of a change and its opposite the other way round: it counted as 65,535 for microseconds."""
    with profiling.traced_session() as session:
        child = subprocess.Popen(["sleep", "60"])
        try:
            target = session.watch(child.pid)
            loaded, key = session.kernel._object, struct.pack("<I", target.scope.number)
            raw = loaded.get("scopes", key, "scope")
            begun_ns = time.monotonic_ns() - 1_000_000_000
            raw.word = begun_ns // 16 << 16 & (1 << 64) - 1 | n_working
            loaded.put("scopes", key, raw)
            state = target.scope.state()
            assert state is not None and state.n_working == counted
            session.kernel.find_waits(child.pid, time.monotonic_ns())  # which accounts for the time up to now
            state = target.scope.state()
            assert state is not None
            assert state.level_ns[min(counted, 127)] > 900_000_000
            assert state.working_ns == pytest.approx(counted * 1e9, rel=0.2, abs=1e8)
        finally:
            child.kill()
            child.wait()
