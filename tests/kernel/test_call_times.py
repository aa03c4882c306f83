# SPDX-License-Identifier: Apache-2.0
"""How long calls take, by real probes, against what the programs log of themselves. Needs root."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import profiling
from parprof.calls.counting import CallCounting
from parprof.calls.finder import FunctionFinder
from parprof.calls.nop5 import with_exits
from parprof.calls.wanted import parse_wanted
from parprof.commands.spawn import Child
from parprof.kernel import bpf
from parprof.kernel.call_counts import map_sizes
from parprof.kernel.call_times import ArcTime, RoutineTime, time_sizes
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Budget, Prices
from parprof.probes.prices import machine_prices
from parprof.session.session import Session
from parprof.symbols.symbolizer import Symbolizer

pytestmark = pytest.mark.beside
PROGRAM = profiling.BUILD / "calls_times"
UNLIMITED = Budget(1.0, 10**12)
SLACK_NS = 500_000
"""What is around the program's own look at the clock, on a busy machine."""


class Logged(NamedTuple):
    """A call, as the program itself saw it."""

    thread: int
    begin_ns: int
    end_ns: int
    cpu_ns: int


class Run(NamedTuple):
    """What was measured of a run, and what the program says."""

    functions: tuple[str, ...]
    """As they were asked for."""
    exit_code: int
    times: dict[str, RoutineTime]
    arcs: dict[str, list[tuple[ArcTime, ArcTime]]]
    notes: list[str]
    log: dict[str, list[Logged]]
    left: dict[str, int]
    """Entries of the kernel's tables of calls that go on, once the program has ended."""


def timed(
    tmp_path: Path,
    program: Path,
    phases: Iterable[str],
    *functions: str,
    prices: Prices | None = None,
    meanwhile: Callable[[BpfKernel], object] = lambda _: None,
) -> Run:
    """``prices``: of probes, where others are meant than this machine's. ``meanwhile``: done again and again."""
    output = tmp_path / "log"
    with (
        Symbolizer() as symbolizer,
        BpfKernel(["cpu-clock"], 499, budget=UNLIMITED, sizes={**map_sizes(), **time_sizes()}) as kernel,
        FunctionFinder(
            [parse_wanted(one) for one in functions], symbolizer.resolve, lambda: False, times=True
        ) as finder,
        CallCounting(kernel, finder) as counting,
    ):
        kernel.breaker.set_prices(prices or with_exits(kernel, machine_prices(kernel)))
        session = Session(kernel, one_job=True, on_planned=counting.follow)
        try:
            child = Child(["sh", "-c", f'exec "$0" "$@" >{output}', str(program), *phases])
            session.watch(child.pid, stop=True)
            child.release()
            profiling.run_until(session, lambda: (meanwhile(kernel), child.poll())[1] is not None)
            session.finish()
            names = {
                one.timed_as: one.routine.name for one in counting.sites.values() if one.timed_as is not None
            }
            by_site = {number: one.routine.name for number, one in counting.sites.items()}
            arcs: dict[str, list[tuple[ArcTime, ArcTime]]] = defaultdict(list)
            for (site, *_), took in kernel.calls.times.by_caller().items():
                arcs[by_site[site]].append(took)
            times = {names[number]: took for number, took in kernel.calls.times.by_routine().items()}
            assert not kernel.statistics()["untimed_calls"]
            return Run(
                functions, child.wait(), times, arcs, counting.notes, read_log(output), left_in(kernel)
            )
        finally:
            session.close()


TOGETHER = {
    ("serial", "mixed", "choose"): ("serial", "mixed", "choose"),
    ("forks",): ("forks", "left", "right"),
    ("caller",): ("caller", "callee"),
    ("again",): ("again",),
    ("enters-elsewhere",): ("recurses",),
    ("beside",): ("beside",),
    ("tail",): ("tail", "last"),
    ("jumps", "leaves-thread"): ("jumps", "leaves_thread"),
    ("handler",): ("interrupted", "quick"),
    ("mixed",): ("mixed",),
}
"""Phases that no function of another is called in, with their functions: one run is enough for all."""

Timed = Callable[[Sequence[str]], Run]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[Sequence[str], Run]:
    phases = dict.fromkeys(phase for phases in TOGETHER for phase in phases)
    functions = dict.fromkeys(one for functions in TOGETHER.values() for one in functions)
    run = timed(tmp_path_factory.mktemp("together"), PROGRAM, phases, *functions)
    return dict.fromkeys(TOGETHER, run)


@pytest.fixture
def timed_once(together: dict[Sequence[str], Run], tmp_path: Path) -> Timed:
    """The common run of some phases, which is judged once for each; whoever wants another has one of its own."""

    def take(phases: Sequence[str]) -> Run:
        return together.pop(phases, None) or timed(tmp_path, PROGRAM, phases, *TOGETHER[phases])

    return take


def left_in(kernel: BpfKernel) -> dict[str, int]:
    loaded = kernel.calls.times._object
    out = {}
    for name in ("open_calls", "open_by_thread", "call_threads"):
        definition = loaded.definitions[name]
        entries = bpf.map_read_all(loaded.maps[name], definition["key_size"], definition["value_size"], 1024)
        out[name] = len(list(entries))
    return out


def read_log(path: Path) -> dict[str, list[Logged]]:
    out: dict[str, list[Logged]] = defaultdict(list)
    for line in path.read_text().splitlines():
        name, *numbers = line.split()
        if len(numbers) == 4:
            out[name].append(Logged(*map(int, numbers)))
    return out


def elapsed_ns(calls: Iterable[Logged]) -> int:
    """How long at least one of them went on."""
    total = end_ns = 0
    for one in sorted(calls, key=lambda one: one.begin_ns):
        total += max(one.end_ns - max(one.begin_ns, end_ns), 0)
        end_ns = max(end_ns, one.end_ns)
    return total


def outer(calls: list[Logged]) -> list[Logged]:
    """Those that are not within another of the same thread."""
    return [
        one
        for one in calls
        if not any(
            other is not one
            and other.thread == one.thread
            and other.begin_ns <= one.begin_ns
            and one.end_ns <= other.end_ns
            for other in calls
        )
    ]


def about(truth_ns: float) -> object:
    return pytest.approx(truth_ns, rel=0.03, abs=SLACK_NS)


def about_cpu(truth_ns: float) -> object:
    """Interrupts and what a hypervisor takes meanwhile are in ours, and not in the kernel's own CPU time."""
    return pytest.approx(truth_ns, rel=0.06, abs=SLACK_NS)


def check(times: RoutineTime, log: list[Logged]) -> None:
    """All that the program knows of a routine: elapsed time within 3 %."""
    assert times.all.ended == len(log) and not times.open and not times.unseen
    assert times.elapsed_ns == about(elapsed_ns(log))
    assert times.all.elapsed_ns == about(sum(one.end_ns - one.begin_ns for one in log))
    assert times.all.cpu_ns == about_cpu(sum(one.cpu_ns for one in log))
    assert times.all.first_cpu_ns == about_cpu(sum(one.cpu_ns for one in outer(log)))
    assert times.all.longest_ns == about(max(one.end_ns - one.begin_ns for one in log))


def test_elapsed_and_cpu_time_are_what_the_program_says(timed_once: Timed) -> None:
    """Of routines that are called serially, concurrently, and both."""
    names = ("serial", "mixed", "choose")
    run = timed_once(names)
    assert run.exit_code == 0 and set(run.times) == set(run.functions) >= set(names)
    for name in names:
        check(run.times[name], run.log[name])
    assert run.times["serial"].elapsed_ns > 1.3 * run.times["serial"].all.cpu_ns, "it sleeps, too"
    mixed = run.times["mixed"]
    assert (mixed.sequential.ended, mixed.concurrent.ended) == (1, 2)


def test_two_callees_of_one_caller_at_once(timed_once: Timed) -> None:
    """malony-1987 sec. 3.3.3, problems 2 and 4."""
    run = timed_once(("forks",))
    for name in ("forks", "left", "right"):
        check(run.times[name], run.log[name])
    (whole,), (left,), (right,) = (run.log[name] for name in ("forks", "left", "right"))
    assert run.times["forks"].all.direct_ns == about(
        whole.end_ns - whole.begin_ns - left.end_ns + left.begin_ns
    ), "what its own thread did beside `left`; the other thread's `right` takes nothing off"
    together = elapsed_ns([left, right])
    assert together < left.end_ns - left.begin_ns + right.end_ns - right.begin_ns, "they overlapped"


def test_a_caller_beside_its_callee(timed_once: Timed) -> None:
    """Problem 3: the caller's own time goes on, for it did."""
    run = timed_once(("caller",))
    for name in ("caller", "callee"):
        check(run.times[name], run.log[name])
    (caller,) = run.log["caller"]
    assert run.times["caller"].direct_ns == about(caller.end_ns - caller.begin_ns)
    assert run.times["caller"].all.direct_cpu_ns == about_cpu(caller.cpu_ns)
    assert run.times["callee"].concurrent.ended == 1


@pytest.mark.parametrize("phase", ["again", "moves"])
def test_recursion_counts_once(timed_once: Timed, tmp_path: Path, phase: str) -> None:
    """Sec. 4.4.1, situations 1 and 2: the call may even end on another CPU."""
    run = timed_once((phase,)) if (phase,) in TOGETHER else timed(tmp_path, PROGRAM, [phase], "again")
    log = run.log["again"]
    check(run.times["again"], log)
    (outermost,) = outer(log)
    took = run.times["again"].sequential
    assert took.ended == 5 and took.outermost_ns == about(outermost.end_ns - outermost.begin_ns)
    assert took.elapsed_ns > 2.5 * took.outermost_ns, "each is told to its caller"
    assert took.direct_ns == about(outermost.end_ns - outermost.begin_ns)


def test_recursion_in_another_thread_is_recursion(timed_once: Timed, tmp_path: Path) -> None:
    """Situations 3 and 4: who was called sequentially has begun for all threads."""
    for run, inner in (
        (timed_once(("enters-elsewhere",)), 1),
        (timed(tmp_path, PROGRAM, ["concurrent-recursion"], "recurses"), 2),
    ):
        times, log = run.times["recurses"], run.log["recurses"]
        check(times, log)
        whole = max(one.end_ns - one.begin_ns for one in log)
        assert (times.sequential.ended, times.concurrent.ended) == (1, inner)
        assert times.sequential.outermost_ns == about(whole) and times.concurrent.outermost_ns == 0
        assert times.concurrent.first_ns > 0, "of its own thread it is the first: CPU time counts"


def test_recursion_of_a_thread_that_was_called_beside_others(timed_once: Timed) -> None:
    """Situation 5."""
    run = timed_once(("beside",))
    times, log = run.times["beside"], run.log["beside"]
    check(times, log)
    (first,) = outer(log)
    assert times.concurrent.ended == 2 and times.concurrent.outermost_ns == about(
        first.end_ns - first.begin_ns
    )


def test_a_tail_call_ends_the_caller(timed_once: Timed) -> None:
    run = timed_once(("tail",))
    for name in ("tail", "last"):
        check(run.times[name], run.log[name])


def test_longjmp_and_the_end_of_a_thread_end_calls(timed_once: Timed) -> None:
    """Where they land, not when something else is called: the program sleeps after the last."""
    run = timed_once(("jumps", "leaves-thread"))
    check(run.times["jumps"], run.log["jumps"])
    assert run.times["jumps"].unwound == 11
    left = run.times["leaves_thread"]
    assert left.all.ended + left.unseen == 1 and not left.open


def test_a_handler_on_another_stack_ends_nothing(timed_once: Timed) -> None:
    run = timed_once(("handler",))
    check(run.times["interrupted"], run.log["interrupted"])
    assert run.times["quick"].all.ended == 1 and not run.times["quick"].unseen


def test_what_timing_takes_is_taken_off(tmp_path: Path) -> None:
    """2,003 calls that do nothing: a few microseconds each at most, where both traps take ten times that."""
    run = timed(tmp_path, PROGRAM, ["quick"], "quick")
    took = run.times["quick"].all
    assert took.ended == 2003 and took.cpu_ns / 2003 < 8000


def test_a_caller_takes_no_less_than_its_callees(tmp_path: Path) -> None:
    """Where probes take more than all else, what they took is not known as well: here much too much is taken off."""
    run = timed(tmp_path, PROGRAM, ["choose"], "choose", "main", prices=Prices(dear_ns=1_200_000))
    choose, main = run.times["choose"].all, run.times["main"].all
    assert choose.ended == 23 and main.ended == 1
    assert main.elapsed_ns >= choose.elapsed_ns > 3e6, "ten calls of 2 ms"
    assert main.cpu_ns >= choose.cpu_ns > 3e6


NAPS = """
#include <stdio.h>
#include <time.h>
#include <unistd.h>
__attribute__((noinline, noclone)) void naps(void)
{
	for (int i = 1; i <= 50; i++) {
		while (clock() < i * CLOCKS_PER_SEC / 100)
			;
		usleep(20000);
	}
}
int main(void)
{
	naps();
	printf("naps 0 0 0 %ld\\n", clock() * (1000000000 / CLOCKS_PER_SEC));
	return 0;
}
"""


def test_switches_that_nobody_told_of_change_no_cpu_time(tmp_path: Path) -> None:
    """Some hypervisors' agents hide switches: here those of six tenths of a second, in which it mostly sleeps."""
    source, program = tmp_path / "naps.c", tmp_path / "naps"
    source.write_text(NAPS)
    subprocess.run(["gcc", "-O1", source, "-o", program], check=True)
    missed = []

    def miss_some(kernel: BpfKernel) -> None:
        times = kernel.calls.times
        if not missed and any(one.open for one in times.by_routine().values()):
            times._switches.detach()
            time.sleep(0.6)
            times._switches.attach()
            missed.append(True)

    run = timed(tmp_path, program, [], "naps", meanwhile=miss_some)
    naps, (log,) = run.times["naps"].all, run.log["naps"]
    assert missed and naps.ended == 1
    assert naps.cpu_ns == about_cpu(log.cpu_ns)


def test_times_of_arcs(timed_once: Timed) -> None:
    run = timed_once(("mixed",))
    sequential = [one for one, _ in run.arcs["mixed"] if one.ended]
    concurrent = [one for _, one in run.arcs["mixed"] if one.ended]
    log = sorted(run.log["mixed"], key=lambda one: one.begin_ns)
    assert [one.elapsed_ns for one in sequential] == [about(log[0].end_ns - log[0].begin_ns)]
    assert sum(one.ended for one in concurrent) == 2
    assert sum(one.cpu_ns for one in concurrent) == about_cpu(sum(one.cpu_ns for one in log[1:]))


def test_a_program_that_throws_through_it_ends_as_without_us(tmp_path: Path) -> None:
    """999 exceptions through the timed function, each of which ends a call where it is caught."""
    run = timed(tmp_path, profiling.BUILD / "calls_throw", [], "risky", "main")
    assert run.exit_code == 0
    risky = run.times["thrower::Thrower::risky(int)"]
    assert risky.all.ended == 1999 and risky.unwound == 999 and not risky.unseen and not risky.open
    assert run.times["main"].all.ended == 1


SINKS = """
#include <setjmp.h>
#include <stdio.h>
#include <time.h>
static jmp_buf above;
static long busy_ns;
static volatile long sink;
static long cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}
__attribute__((noinline, noclone)) void sinks(int level)
{
	long begun_ns = cpu_ns(), now_ns;

	do
		now_ns = cpu_ns();
	while (now_ns - begun_ns < 20000);
	busy_ns += now_ns - begun_ns;
	if (!level)
		longjmp(above, 1);
	sinks(level - 1);
	sink++;
}
int main(void)
{
	for (volatile int i = 0; i < 5; i++)
		if (!setjmp(above))
			sinks(199);
	printf("sinks 0 0 0 %ld\\n", busy_ns);
	return 0;
}
"""


def test_calls_that_are_left_together_pay_for_one_trap(tmp_path: Path) -> None:
    """No exit of theirs was probed: 200 calls end at one landing. Traps of exits are told to be dear here."""
    source, program = tmp_path / "sinks.c", tmp_path / "sinks"
    source.write_text(SINKS)
    subprocess.run(["gcc", "-O0", "-fcf-protection=none", source, "-o", program], check=True)
    run = timed(tmp_path, program, [], "sinks", prices=Prices(dear_ns=300_000))
    sinks, ((_, _, _, busy_ns),) = run.times["sinks"], run.log["sinks"]
    assert sinks.all.ended == sinks.unwound == 1000
    assert sinks.all.direct_cpu_ns > 0.75 * busy_ns, "5 landings take 1.5 of 20 ms at most"
    assert sinks.direct_ns > 0.75 * busy_ns


PANICS = """
#define PLAIN __attribute__((noinline, noclone))
static volatile long sink;
static void *back[5];

PLAIN void cleanup(void) __asm__("CLEANUP");
PLAIN void cleanup(void) { sink++; }
PLAIN void panics(void) { __builtin_longjmp(back, 1); }
PLAIN void inner(int level)
{
	if (!level)
		panics();
	inner(level - 1);
	sink++;
}
PLAIN void caught(int level)
{
	if (__builtin_setjmp(back))
		cleanup();
	else
		inner(level);
	sink++;
}
int main(void) { for (int i = 0; i < 7; i++) caught(i); return 0; }
"""


@pytest.mark.parametrize(
    "cleanup",
    [
        "_RNvNvNtCsjrHSEGnQ3l9_3std9panicking12catch_unwind7cleanup",
        "_RINvNvNtCsjrHSEGnQ3l9_3std9panicking12catch_unwind8do_catchuE",
        "_RNvCsfLfy6EI15iL_7___rustc20___rust_panic_cleanup",
        "_ZN3std9panicking3try7cleanup17h0123456789abcdefE",
        "__rust_panic_cleanup",
    ],
)
def test_calls_that_a_panic_leaves_end_where_it_is_caught(tmp_path: Path, cleanup: str) -> None:
    """Rust's: each of the functions of several versions that are called there, in the frame that catches."""
    source, program = tmp_path / "panics.c", tmp_path / "panics"
    source.write_text(PANICS.replace("CLEANUP", cleanup))
    subprocess.run(["gcc", "-O1", source, "-o", program], check=True)
    run = timed(tmp_path, program, [], "caught", "inner")
    assert run.exit_code == 0
    caught, inner = run.times["caught"], run.times["inner"]
    assert caught.all.ended == 7 and not caught.unwound
    assert inner.all.ended == inner.unwound == 28 and not inner.unseen and not inner.open


RAISES = """
	.text
	.globl main, camlMain__search_12, camlMain__guarded_15, caml_raise_exn
	.type main, @function
	.type camlMain__search_12, @function
	.type camlMain__guarded_15, @function
	.type caml_raise_exn, @function
caml_raise_exn:
	movq handler(%rip), %rsp
	popq handler(%rip)
	ret
	.size caml_raise_exn, . - caml_raise_exn
camlMain__search_12:
	subq $8, %rsp
	testq %rdi, %rdi
	je 1f
	decq %rdi
	call camlMain__search_12
	addq $8, %rsp
	ret
1:	call caml_raise_exn
	.size camlMain__search_12, . - camlMain__search_12
camlMain__guarded_15:
	subq $8, %rsp
	leaq 2f(%rip), %rax
	pushq %rax
	pushq handler(%rip)
	movq %rsp, handler(%rip)
	call camlMain__search_12
	popq handler(%rip)
	addq $8, %rsp
2:	addq $8, %rsp
	ret
	.size camlMain__guarded_15, . - camlMain__guarded_15
main:
	pushq %rbx
	xorl %ebx, %ebx
3:	movq %rbx, %rdi
	call camlMain__guarded_15
	incq %rbx
	cmpq $7, %rbx
	jne 3b
	xorl %eax, %eax
	popq %rbx
	ret
	.size main, . - main
	.bss
handler: .quad 0
	.section .note.GNU-stack, "", @progbits
"""


def test_calls_that_an_exception_of_ocaml_leaves_end_where_it_is_caught(tmp_path: Path) -> None:
    """As its compiler makes them: the runtime returns to where the handler's stack pointer leads."""
    source, program = tmp_path / "raises.s", tmp_path / "raises"
    source.write_text(RAISES)
    subprocess.run(["gcc", source, "-o", program], check=True)
    run = timed(tmp_path, program, [], "Main.guarded", "Main.search")
    assert run.exit_code == 0
    guarded, search = run.times["camlMain__guarded_15"], run.times["camlMain__search_12"]
    assert guarded.all.ended == 7 and not guarded.unwound
    assert search.all.ended == search.unwound == 28 and not search.unseen and not search.open


UNSEEN = """
static void *landing[5];
static volatile long sink;
#define NEVER_INLINED __attribute__((noinline, noclone))
NEVER_INLINED void inner(void)
{
	for (int i = 0; i < 300000; i++)
		sink += i;
	__builtin_longjmp(landing, 1);
}
NEVER_INLINED void between(void) { inner(); sink++; }
NEVER_INLINED void caught(void) { if (!__builtin_setjmp(landing)) between(); sink++; }
int main(void) { for (int i = 0; i < 7; i++) caught(); return 0; }
"""


def test_who_keeps_the_time_of_calls_that_end_unseen_is_known(tmp_path: Path) -> None:
    """A jump that is no function of the C library's: where it lands nobody can know."""
    source, program = tmp_path / "unseen.c", tmp_path / "unseen"
    source.write_text(UNSEEN)
    subprocess.run(["gcc", "-O1", source, "-o", program], check=True)
    run = timed(tmp_path, program, [], "caught", "between", "inner")
    assert run.exit_code == 0
    caught, between, inner = (run.times[name] for name in ("caught", "between", "inner"))
    assert inner.unseen == between.unseen == caught.all.ended == 7
    assert caught.unseen_within == 7 and between.unseen_within == 7 and not inner.unseen_within


def test_recursion_a_hundred_thousand_deep(tmp_path: Path) -> None:
    run = timed(tmp_path, profiling.BUILD / "calls_truth", ["deep"], "deep")
    assert run.exit_code == 0
    deep = run.times["deep"]
    assert deep.all.ended == 100_001 and not deep.unseen and not deep.open
    # less what 100,000 probes took nothing certain is left of the outermost call: so with that
    assert deep.all.longest_ns <= deep.all.first_gross_ns == pytest.approx(deep.inside_ns, abs=100)


def test_nothing_is_left_in_the_kernel_of_threads_that_ended(tmp_path: Path) -> None:
    run = timed(tmp_path, PROGRAM, ["mixed", "leaves-thread"], "mixed", "leaves_thread", "main")
    assert run.exit_code == 0 and run.left == {"open_calls": 0, "open_by_thread": 0, "call_threads": 0}
