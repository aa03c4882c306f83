"""Samples by resource, not time (froyd-2005 section 2.1): page faults, context switches, bytes read,
written and allocated, by call path. Needs root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from parprof.exporters import pprof
from parprof.model import Profile

pytestmark = pytest.mark.beside

ROOT = Path(__file__).resolve().parents[2]


def test_page_faults_and_context_switches_are_counted_by_call_path(tmp_path: Path) -> None:
    """One innermost function, called by two: 24,000 and 8,000 faults, 3,000 and 1,000 naps. On one CPU with a program
    that takes turns with it: every second switch there is the other's."""
    program = ROOT / "tests/workloads/build/events"
    cpu = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as burner:
        try:
            os.sched_setaffinity(burner.pid, {cpu})
            done = subprocess.run(
                [sys.executable, "-m", "parprof", "record", "-q", "--no-report", "-e", "page-faults",
                 "-e", "context-switches", "-o", str(tmp_path / "out"), "--", "taskset", "-c", str(cpu), str(program)],
                capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
            )  # fmt: skip
        finally:
            burner.kill()
    assert done.returncode == 0, done.stderr
    truth = {
        (function, event): int(count) for function, event, count in map(str.split, done.stdout.splitlines())
    }
    assert len(truth) == 4
    found: Counter[tuple[str, str]] = Counter()
    for sample in pprof.read(str(tmp_path / "out")).samples:
        names = [frame.name for frame in sample.path]
        for function in {function for function, _ in truth} & set(names):
            assert names[0] == "main"
            for event, count in sample.metrics.events.items():
                found[function, event] += count
    for key, count in truth.items():
        margin = 0.01 if key[1] == "page-faults" else 0.1  # each 32nd, and each 7th of all on that CPU
        assert found[key] == pytest.approx(count, rel=margin), key


class Recorded(NamedTuple):
    profile: Profile
    truth: dict[tuple[str, str], int]
    """By function and event."""

    def found(self) -> Counter[tuple[str, str]]:
        """What the profile has of each function, with all that it calls."""
        out: Counter[tuple[str, str]] = Counter()
        functions = {function for function, _ in self.truth}
        for sample in self.profile.samples:
            for function in functions & {frame.name for frame in sample.path}:
                for event, count in sample.metrics.events.items():
                    out[function, event] += count
        return out

    def exactly(self, event: str) -> int:
        """The exact total that is told beside the samples."""
        said = "counted" if event == "malloc-bytes" else "exactly"
        (note,) = (note for note in self.profile.notes if note.startswith(f"{event}: {said} "))
        return int(note.split()[2].replace(",", ""))


def quietly(tmp_path: Path) -> tuple[str, ...]:
    """Options for a profile and nothing else."""
    return "-q", "--no-report", "-o", str(tmp_path / "out")


def parprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parprof", *arguments],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
    )  # fmt: skip


def truth_of(text: str) -> dict[tuple[str, str], int]:
    return {(function, event): int(count) for function, event, count in map(str.split, text.splitlines())}


def recorded(tmp_path: Path, command: str, *options: str) -> Recorded:
    program, *arguments = command.split()
    path = ROOT / "tests/workloads/build" / program
    done = parprof("record", *options, *quietly(tmp_path), "--", str(path), *arguments)
    assert done.returncode == 0, done.stderr
    return Recorded(pprof.read(str(tmp_path / "out")), truth_of(done.stdout))


def test_events_of_the_kernel_are_not_charged_as_interrupts(tmp_path: Path) -> None:
    """It counts them as it makes them: 1,000 samples of 32,000 faults were told as 20 ms of the timer's."""
    program = ROOT / "tests/workloads/build/events"
    profiles = []
    for options in ([], ["-e", "page-faults"]):
        command = ["record", "-q", "--no-report", *options, "-o", str(tmp_path / "out"), "--", str(program)]
        subprocess.run([sys.executable, "-m", "parprof", *command], check=True, stdout=subprocess.DEVNULL)
        profiles.append(pprof.read(str(tmp_path / "out")))
    without, with_faults = (float(profile.extra["cost_timer_percent"]) for profile in profiles)
    assert with_faults < 2 * without


def test_each_byte_of_system_calls_is_in_the_tree_if_all_are_sampled(tmp_path: Path) -> None:
    run = recorded(tmp_path, "transfers", "-e", "read-bytes=1", "-e", "write-bytes=1", "--budget", "100")
    assert len(run.truth) == 5
    assert run.found() == run.truth
    total = run.profile.total().events
    for event in ("read-bytes", "write-bytes"):
        assert total[event] == run.exactly(event)
        of_ld_so = total[event] - sum(count for (_, name), count in run.truth.items() if name == event)
        assert 0 <= of_ld_so < 1 << 16  # and of printf


def test_a_child_has_its_samples_from_its_begin(tmp_path: Path) -> None:
    """By default: what it may pay at first is enough for some."""
    script = "; ".join(str(ROOT / "tests/workloads/build" / one) for one in ("transfers", "allocations"))
    events = ("-e", "write-bytes", "-e", "malloc-bytes=64KiB")
    shell = parprof("record", *events, *quietly(tmp_path), "--", "sh", "-c", script)
    assert shell.returncode == 0, shell.stderr
    run = Recorded(pprof.read(str(tmp_path / "out")), truth_of(shell.stdout))
    found = run.found()
    for event, function in (("write-bytes", "writes"), ("malloc-bytes", "allocates_much")):
        total = run.profile.total().events[event]
        assert total > 0.8 * run.exactly(event)
        share = run.truth[function, event] / sum(
            count for (_, name), count in run.truth.items() if name == event
        )
        assert found[function, event] / total == pytest.approx(share, abs=0.25)


def test_a_sample_for_each_so_many_bytes(tmp_path: Path) -> None:
    """Two calls that together are the distance of the samples: each has its share all the same."""
    run = recorded(tmp_path, "transfers", "-e", "read-bytes", "-e", "write-bytes=64KiB", "--budget", "100")
    found, size = run.found(), 512 << 10
    for key, count in run.truth.items():
        samples = count / (size if key[1] == "read-bytes" else 64 << 10)
        assert found[key] == pytest.approx(count, rel=5 / samples**0.5), key
    cpus = os.cpu_count() or 1
    total = run.profile.total().events
    assert abs(total["read-bytes"] - run.exactly("read-bytes")) <= cpus * size
    assert abs(total["write-bytes"] - run.exactly("write-bytes")) <= cpus * (64 << 10)


def attached(tmp_path: Path, *options: str, command: str = "transfers rests") -> Profile:
    """To a program that goes on and on."""
    program, how = command.split()
    with subprocess.Popen([ROOT / "tests/workloads/build" / program, how]) as target:
        try:
            done = parprof("attach", "-d", "1", *options, *quietly(tmp_path), str(target.pid))
        finally:
            target.kill()
    assert done.returncode == 0, done.stderr
    return pprof.read(str(tmp_path / "out"))


def test_bytes_of_a_running_process(tmp_path: Path) -> None:
    """All of those of some time: those of each call by its size."""
    profile = attached(tmp_path, "-e", "read-bytes=1", "-e", "write-bytes=1", "--budget", "100")
    sizes = {("reads_much", "read-bytes"): 384, ("reads_little", "read-bytes"): 128, ("copies", "read-bytes"): 64,
             ("writes", "write-bytes"): 128, ("copies", "write-bytes"): 64}  # fmt: skip
    run = Recorded(profile, sizes)
    found = run.found()
    turns = {key: found[key] / (size << 10) for key, size in sizes.items()}
    assert all(count == int(count) > 100 for count in turns.values()), turns
    assert max(turns.values()) - min(turns.values()) <= 4  # two threads, cut at both ends
    for event, total in profile.total().events.items():
        assert total == run.exactly(event)


@pytest.mark.alone
def test_what_the_budget_has_no_time_for_is_said(tmp_path: Path) -> None:
    """Either single samples are left out, or all that would come after."""
    profile = attached(tmp_path, "-e", "write-bytes=1", command="transfers hastes")
    total = profile.total().events.get("write-bytes", 0)
    (note,) = (note for note in profile.notes if note.startswith("write-bytes: "))
    found = re.fullmatch(
        r"write-bytes: (exactly|at least) ([\d,]+) bytes in [\d,]+ calls(?:; ([\d,]+) .*)?", note
    )
    assert found, note
    counted, left_out = (int((number or "0").replace(",", "")) for number in found.groups()[1:])
    assert total + left_out == counted
    cut = any("no longer counted" in note for note in profile.notes)
    assert left_out or cut
    assert cut == (found[1] == "at least")


OF_LIBC = 1 << 16
"""What libc itself allocates at most."""


def test_each_allocated_byte_is_in_the_tree_if_all_are_sampled(tmp_path: Path) -> None:
    run = recorded(tmp_path, "allocations", "-e", "malloc-bytes=1", "--budget", "100")
    assert len(run.truth) == 5
    found, total = run.found(), run.profile.total().events["malloc-bytes"]
    # a probe's program may be preempted where it walks, and two others find no room then: counted as left out
    assert found == {key: pytest.approx(count, rel=1e-3) for key, count in run.truth.items()}
    assert 0 <= run.exactly("malloc-bytes") - total < 1e-3 * total
    assert 0 <= run.exactly("malloc-bytes") - sum(run.truth.values()) < OF_LIBC
    paths = {
        tuple(frame.name for frame in sample.path) for sample in run.profile.samples if sample.metrics.events
    }
    assert {path[-1] for path in paths} >= {function for function, _ in run.truth}, (
        "who called, and nothing of ours"
    )
    modules = {frame.module for sample in run.profile.samples for frame in sample.path}
    assert not [module for module in modules if "parprof" in module]


def test_a_sample_for_each_so_many_allocated_bytes(tmp_path: Path) -> None:
    """A large and a small malloc that take turns have their shares, in two threads."""
    run = recorded(tmp_path, "allocations", "-e", "malloc-bytes=8000", "--budget", "100")
    found = run.found()
    for key, count in run.truth.items():
        assert found[key] == pytest.approx(count, rel=5 / (count / 8000) ** 0.5), key
    assert abs(run.profile.total().events["malloc-bytes"] - run.exactly("malloc-bytes")) <= 3 * 8000


def test_samples_of_allocations_that_come_too_fast_stand_for_more(tmp_path: Path) -> None:
    run = recorded(tmp_path, "allocations", "-e", "malloc-bytes=100")
    counted = int(run.profile.extra["samples"])
    assert counted < run.exactly("malloc-bytes") / 100 / 20
    assert run.profile.total().events["malloc-bytes"] == pytest.approx(run.exactly("malloc-bytes"), rel=0.5)


@pytest.mark.parametrize("how", ["exit", "fork"])
def test_the_total_of_a_program_that(tmp_path: Path, how: str) -> None:
    """One that ends by _exit lacks what its main thread had not told, one that forks has nothing twice."""
    run = recorded(tmp_path, f"allocations {how}", "-e", "malloc-bytes=4096", "--budget", "100")
    missing = sum(run.truth.values()) - run.exactly("malloc-bytes")
    assert -OF_LIBC < missing < (2 * 4096 if how == "exit" else 1)


def test_programs_whose_allocations_cannot_be_seen_are_refused(tmp_path: Path) -> None:
    static = ROOT / "tests/workloads/build/omp_truth.gomp.static"
    done = parprof("record", "-e", "malloc-bytes", *quietly(tmp_path), "--", str(static))
    assert done.returncode == 1 and "linked statically" in done.stderr and done.stderr.count("\n") == 1


IN_A_TURN = {"allocates_much": 3000, "allocates_little": 1000, "clears": 1000, "grows": 3000, "aligns": 1000}
"""Bytes that each function of the workload allocates."""


def test_allocations_of_a_running_process(tmp_path: Path) -> None:
    """All of the family, of which some call others: each allocation once."""
    profile = attached(tmp_path, "-e", "malloc-bytes=1", "--budget", "100", command="allocations rests")
    run = Recorded(profile, {(function, "malloc-bytes"): count for function, count in IN_A_TURN.items()})
    found = run.found()
    turns = {function: found[function, "malloc-bytes"] / count for function, count in IN_A_TURN.items()}
    assert min(turns.values()) > 100
    assert max(turns.values()) - min(turns.values()) <= 4, turns  # two threads, cut at both ends
    assert sum(found.values()) == profile.total().events["malloc-bytes"] == run.exactly("malloc-bytes")


def test_allocations_again_and_again_from_one_place(tmp_path: Path) -> None:
    """A loop that calls nothing but calloc, or realloc: no call is made by the one before."""
    source, program = tmp_path / "again.c", tmp_path / "again"
    source.write_text(
        "#include <stdlib.h>\n#include <unistd.h>\n"
        "#define LOOP(what) for (int i = 0; i < 1000; i++) { char *volatile p = what; free(p); }\n"
        "__attribute__((noinline)) static void takes(void) { LOOP(malloc(4096)) }\n"
        "__attribute__((noinline)) static void clears(void) { LOOP(calloc(4, 1024)) }\n"
        "__attribute__((noinline)) static void grows(void)\n"
        "{ char *volatile p = 0; for (int i = 0; i < 1000; i++) p = realloc(p, 4096); free(p); }\n"
        "int main(void) { for (;;) { takes(); clears(); grows(); usleep(3000); } }\n"
    )
    subprocess.run(["gcc", "-O2", "-g", "-fno-builtin", source, "-o", program], check=True)
    options = ("-e", "malloc-bytes=4096", "--budget", "100")
    profile = attached(tmp_path, *options, command=f"{program} rests")
    functions = ("takes", "clears", "grows")
    found = Recorded(profile, {(function, "malloc-bytes"): 0 for function in functions}).found()
    turns = [found[function, "malloc-bytes"] / 4096 / 1000 for function in functions]
    assert min(turns) > 10 and max(turns) - min(turns) <= 1.5, turns


@pytest.mark.alone
def test_allocations_that_are_too_dear_to_probe(tmp_path: Path) -> None:
    """The breaker takes the probes away at once, and the profile says what is missing."""
    profile = attached(tmp_path, "-e", "malloc-bytes", command="allocations hastes")
    assert [note for note in profile.notes if "allocations are no longer probed" in note]
    assert [note for note in profile.notes if note.startswith("malloc-bytes: at least ")]
    assert float(profile.extra["cost_allocations_percent"]) < 5


def test_allocations_of_a_process_whose_allocator_nobody_knows(tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    source = tmp_path / "source.c"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) usleep(1000); }\n")
    subprocess.run(["gcc", "-static", "-s", "-o", stripped, source], check=True)
    with subprocess.Popen([stripped]) as target:
        try:
            done = parprof("attach", "-d", "1", "-e", "malloc-bytes", *quietly(tmp_path), str(target.pid))
        finally:
            target.kill()
    assert done.returncode == 1 and "no malloc is to be found in it" in done.stderr
