"""The kernel side by itself: full maps, reused PIDs, mechanisms, and that nothing is lost uncounted."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import profiling
from parprof.errors import KernelUnsupported
from parprof.kernel.counts import together
from parprof.kernel.engine import BpfKernel
from parprof.kernel.objects import LoadedObject, get_object
from parprof.kernel.records import RECORD_EXIT, RECORD_REPLACED, Budget, WatchConfig
from parprof.model import Facts, ThreadState, add_facts
from parprof.session.session import Session

pytestmark = pytest.mark.beside

AMPLE = Budget(1.0)
"""Nothing is left out, however slow the machine is."""
BURN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", BURN.format(seconds=20)]) as process:
        yield process
        process.kill()


def test_counts_are_complete_and_match_the_clock(burner: subprocess.Popen[bytes]) -> None:
    with BpfKernel(["cpu-clock"], 997, budget=AMPLE) as kernel:
        kernel.watch(burner.pid, 23, WatchConfig())
        cpu = profiling.cpu_seconds(burner.pid)
        time.sleep(1.5)
        cpu = profiling.cpu_seconds(burner.pid) - cpu
        facts = kernel.drain()
        kernel.unwatch(burner.pid)
        samples = samples_in(facts)
        assert samples == pytest.approx(997 * cpu, rel=0.05, abs=15)
        assert {key.image for key in facts} == {23}
        rest = samples_in(kernel.drain())
        assert samples + rest == kernel.statistics()["samples"]
        assert all(kernel.stacks.get(key.user).frames for key in facts if key.user)


def test_what_is_drained_tells_when_it_came(burner: subprocess.Popen[bytes]) -> None:
    """Though it is drained seldom: by the slice of the time in which it was counted, also as slices get longer."""
    length_ns = 50_000_000
    with BpfKernel(["cpu-clock"], 997) as kernel:
        begin_ns = time.monotonic_ns()
        kernel.slice_time(begin_ns, length_ns)
        kernel.watch(burner.pid, 23, WatchConfig())
        os.kill(burner.pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(burner.pid, signal.SIGCONT)
        awake_ns = time.monotonic_ns() - begin_ns
        time.sleep(0.6)
        kernel.slice_time(begin_ns, 2 * length_ns)
        first = kernel.drain_by_time()
        drained_ns = time.monotonic_ns() - begin_ns
        time.sleep(0.5)
        second = kernel.drain_by_time()
        end_ns = time.monotonic_ns() - begin_ns
    assert all(at_ns % length_ns == 0 for at_ns in first) and len(first) >= 8
    assert all(at_ns % (2 * length_ns) == 0 for at_ns in second) and len(second) >= 3
    asleep = [at_ns for at_ns in first if length_ns <= at_ns < awake_ns - length_ns]
    assert not any(samples_in(first[at_ns]) for at_ns in asleep)
    assert max(first) <= drained_ns and max(second) <= end_ns and min(second) >= drained_ns - 3 * length_ns


def samples_in(facts: Facts) -> int:
    return sum(count.samples for count in facts.values())


def test_a_full_table_of_counts_is_counted(burner: subprocess.Popen[bytes]) -> None:
    with BpfKernel(["cpu-clock"], 4999, sizes={"counts": 4}) as kernel:
        kernel.watch(burner.pid, 1, WatchConfig())
        time.sleep(0.5)
        kept = samples_in(kernel.drain())
        lost = kernel.lost()
        assert lost["counts_full"] > 0
        assert kept == pytest.approx(kernel.statistics()["samples"], abs=200)


def test_a_full_table_of_threads_is_counted(tmp_path: Path) -> None:
    with BpfKernel(["cpu-clock"], 999, sizes={"threads": 1}) as kernel:
        process = subprocess.Popen([profiling.BUILD / "pthread_truth", "balanced", "--forever"],
                                   stdout=subprocess.PIPE)  # fmt: skip
        try:
            kernel.watch(process.pid, 1, WatchConfig())
            end_s = profiling.cpu_seconds(process.pid) + 0.5
            while profiling.cpu_seconds(process.pid) < end_s:
                time.sleep(0.01)
            assert kernel.lost()["threads_full"] > 0
            assert samples_in(kernel.drain()) > 100  # still counted, as work
        finally:
            process.kill()
            process.communicate()


def test_a_small_ring_loses_no_sample(burner: subprocess.Popen[bytes]) -> None:
    """Stacks that found no room are sent again with a later sample; what never came is given out as lost."""
    with BpfKernel(["cpu-clock"], 4999, sizes={"stacks": 4096}, budget=AMPLE) as kernel:
        kernel.watch(burner.pid, 1, WatchConfig())
        time.sleep(0.4)  # nobody empties the ring
        facts = kernel.drain()
        time.sleep(0.2)
        add_facts(facts, kernel.drain())
        kernel.unwatch(burner.pid)
        add_facts(facts, kernel.drain())
        add_facts(facts, together(kernel.unresolved()))
        assert samples_in(facts) == kernel.statistics()["samples"]


@pytest.mark.alone  # somebody else could take it
def test_a_reused_pid_is_not_the_same_process() -> None:
    """The entry of a process that is gone must not catch the next owner of its PID."""
    with BpfKernel(["cpu-clock"], 999) as kernel:
        for _ in range(20):
            pid = 29_000 + os.getpid() % 1000
            while os.path.exists(f"/proc/{pid}"):
                pid += 1
            kernel.watch(pid, 77, WatchConfig())
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            with subprocess.Popen([sys.executable, "-S", "-c", BURN.format(seconds=0.3)]) as stranger:
                hit = stranger.pid == pid
            if hit:
                break
            kernel.unwatch(pid)
        else:
            pytest.fail("the kernel gave the PID to somebody else twenty times")
        assert RECORD_REPLACED in [record.kind for record in kernel.control_records()]
        assert kernel.process_state(pid) is None
        assert samples_in(kernel.drain()) == 0


def test_exit_is_reported_and_leaves_no_thread(tmp_path: Path) -> None:
    with BpfKernel(["cpu-clock"], 999) as kernel:
        process = subprocess.Popen([profiling.BUILD / "pthread_truth", "balanced", "--repeat", "3"],
                                   stdout=subprocess.DEVNULL)  # fmt: skip
        kernel.watch(process.pid, 1, WatchConfig())
        process.wait()
        time.sleep(0.1)
        state = kernel.process_state(process.pid)
        assert state is not None and (state.n_working, state.n_unknown) == (0, 0)
        assert RECORD_EXIT in [record.kind for record in kernel.control_records()]


PROBED = [
    (program, "skewed,barrier,tasks", "--repeat", "3") for program in ("omp_truth.gomp", "omp_truth.omp")
]


@pytest.fixture(scope="module")
def first_runs() -> dict[tuple[str, profiling.Command], profiling.Run]:
    """By mechanism: both programs under one session, each to be judged once."""
    return {}


@pytest.mark.alone
@pytest.mark.parametrize("mechanism", profiling.MECHANISMS)
@pytest.mark.parametrize("command", PROBED, ids=lambda command: command[0])
def test_every_way_to_place_probes(
    mechanism: str,
    command: profiling.Command,
    first_runs: dict[tuple[str, profiling.Command], profiling.Run],
    tmp_path: Path,
) -> None:
    if mechanism not in profiling.mechanisms():
        pytest.skip(f"this kernel has not {mechanism}; it uses {profiling.mechanisms()[0]}")
    if (mechanism, command) not in first_runs:
        made = profiling.record_each(PROBED, tmp_path, mechanism)
        first_runs.update({(mechanism, one): run for one, run in made.items()})
    run = first_runs.pop((mechanism, command))
    assert not run.target.failures
    assert run.meanwhile["probe_hits"] > 50
    agreement = profiling.compare(run.session.trace, run.truth)
    assert agreement.judged > 100
    assert agreement.wrong_share < 0.03, agreement.cases


def test_page_faults_are_counted_beside_the_clock(tmp_path: Path) -> None:
    code = (  # Debian's kernels give huge pages to whoever does not refuse them
        "import mmap\nb = mmap.mmap(-1, 64 << 20)\nb.madvise(mmap.MADV_NOHUGEPAGE)\n"
        "for i in range(0, len(b), 4096): b[i] = 1"
    )
    with BpfKernel(["cpu-clock", "page-faults"], 999) as kernel:
        process = subprocess.Popen([sys.executable, "-S", "-c", "input()\n" + code], stdin=subprocess.PIPE)
        kernel.watch(process.pid, 1, WatchConfig())
        process.communicate(b"\n")
        time.sleep(0.1)
        faults = sum(count.total for key, count in kernel.drain().items() if key.event == 1)
        assert 0.98 < faults / ((64 << 20) / 4096) < 1.2


def test_unknown_map_sizes_are_refused() -> None:
    with pytest.raises((KernelUnsupported, KeyError)):
        LoadedObject(get_object(), {"counts": 0})


@pytest.mark.alone  # the program never gives its CPU away
def test_a_switch_that_nobody_told_of_ends_a_wait_for_a_cpu(burner: subprocess.Popen[bytes]) -> None:
    """Where a hypervisor hides its agent's switches, the thread behind the agent seems to wait while it runs: for how
    long it did wait is in the kernel's own account."""
    with BpfKernel(["cpu-clock"], 499) as kernel:
        kernel.watch(burner.pid, 1, WatchConfig())
        # it never waits for a CPU, in the first 0.95 s of being so: then the kernel lets others have theirs
        os.sched_setscheduler(burner.pid, os.SCHED_FIFO, os.sched_param(1))
        time.sleep(0.1)
        before = kernel.process_state(burner.pid)
        for _ in range(10):
            thread = kernel.scopes._object.get("threads", struct.pack("<I", burner.pid), "thread")
            thread.ready_since_ns = time.monotonic_ns() - 10**12
            waited_ns = int(Path(f"/proc/{burner.pid}/schedstat").read_text().split()[1])
            thread.ready_delay_ns = waited_ns - 7_000_000  # so long it waits now
            kernel.scopes._object.put("threads", struct.pack("<I", burner.pid), thread)
            time.sleep(0.02)
        state = kernel.process_state(burner.pid)
        missed = kernel.statistics()["missed_switches"]
        assert before is not None and state is not None and missed > 5
        assert state.ready_ns - before.ready_ns == pytest.approx(7_000_000 * missed, rel=0.01)


@pytest.mark.alone  # the program never gives its CPU away
def test_a_sample_ends_a_wait_of_which_nobody_told_that_it_was_over(burner: subprocess.Popen[bytes]) -> None:
    """Where a hypervisor's agent hides the wake-up and the switch, the sample is the first to show that it runs."""
    with BpfKernel(["cpu-clock"], 499, waits=True, budget=AMPLE) as kernel:
        kernel.watch(burner.pid, 1, WatchConfig())
        kernel.threads.add(burner.pid, 1, burner.pid, works=True, unknown=False)
        os.sched_setscheduler(burner.pid, os.SCHED_FIFO, os.sched_param(1))
        time.sleep(0.1)  # its first sample says that it works
        kernel.drain()
        for _ in range(10):
            thread = kernel.scopes._object.get("threads", struct.pack("<I", burner.pid), "thread")
            thread.blocked, thread.wait_since_ns = 1, time.monotonic_ns() - 10**8
            kernel.scopes._object.put("threads", struct.pack("<I", burner.pid), thread)
            time.sleep(0.02)
        waits = [count for key, count in kernel.drain().items() if key.state is ThreadState.BLOCKED]
        missed = kernel.statistics()["missed_switches"]
        assert missed > 5 and sum(count.samples for count in waits) == missed
        assert 1e8 * missed <= sum(count.total for count in waits) < 1.1e8 * missed


def test_waits_count_from_when_the_time_of_their_scope_begins() -> None:
    """Where somebody ran when we came that time begins with the first thread that is seen to work: those that slept
    before that have not slept for longer than the time was."""
    naps = "import time\nprint('ready', flush=True)\ntime.sleep(0.5)\nfor _ in range(500): time.sleep(0.01)"
    command = [sys.executable, "-S", "-c", naps]
    with (
        BpfKernel(["cpu-clock"], 99, waits=True, budget=AMPLE) as kernel,
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout and process.stdout.readline()
        time.sleep(0.1)
        kernel.watch(process.pid, 1, WatchConfig())
        kernel.threads.add(process.pid, 1, process.pid, works=True, unknown=False)
        time.sleep(1)
        ended_ns = kernel.freeze()
        scope = kernel.scopes.state(1)
        facts = kernel.drain()
        add_facts(facts, kernel.unended({1: 1}, ended_ns).facts)
        process.kill()
    assert scope is not None
    time_ns = sum(scope.until(ended_ns).level_ns)
    waited_ns = sum(count.total for key, count in facts.items() if key.state is ThreadState.BLOCKED)
    assert 0.3e9 < waited_ns <= time_ns < 0.8e9


def test_what_is_frozen_stays_as_it_is(burner: subprocess.Popen[bytes]) -> None:
    with BpfKernel(["cpu-clock"], 499) as kernel:
        kernel.watch(burner.pid, 1, WatchConfig())
        while kernel.statistics()["samples"] < 10:  # its first one says that it works
            time.sleep(0.01)
        before = time.monotonic_ns()
        assert before <= kernel.freeze() <= time.monotonic_ns()
        state, scope = kernel.process_state(burner.pid), kernel.scopes.state(1)
        assert samples_in(kernel.drain()) > 5
        time.sleep(0.1)
        assert not kernel.drain()
        after = kernel.process_state(burner.pid)
        assert state is not None and after is not None
        assert after._replace(spent_ns=state.spent_ns) == state  # the hooks themselves still run
        assert kernel.scopes.state(1) == scope
        assert scope is not None and scope.n_working == 1


def test_programs_for_work_edges_are_loaded_where_there_are_some(burner: subprocess.Popen[bytes]) -> None:
    with BpfKernel(["cpu-clock"], 97, edges_wanted=lambda: False) as kernel:
        session = Session(kernel)
        target = session.watch(burner.pid)
        kernel.await_programs()
        assert target.probing.plan.loader_sites and not target.probing.has_edges
        loaded = kernel._object.loaded_programs().keys()
        assert "on_load_map" in loaded and not {"on_edge", "on_edge_unwind", "on_edge_python"} & loaded
        session.close()


def test_programs_load_while_signals_come() -> None:
    """The verifier gives up as soon as a signal waits: a terminal that is resized, a child's end, a timer's tick."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with BpfKernel(["cpu-clock"], 97) as kernel:
            assert kernel.statistics()["samples"] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
