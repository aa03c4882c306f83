"""n_w, as the kernel keeps it, against the programs' own log: wrong in at most 1 % of working samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import pytest

import profiling
from parprof.session.sources import Source
from profiling import recorded

PHASES = [
    "serial",
    "balanced",
    "skewed",
    "barrier",
    "dynamic",
    "critical",
    "lock",
    "tasks",
    "nested",
    "oversubscribed",
]
LIMIT = 0.01
BUSY_LIMIT = 0.1
PHASE_LIMIT = 0.03
"""For one phase of a few hundred samples, where a single preemption in the wrong place is 1 %."""


OPENMP = ("omp_truth.gomp", "omp_truth.omp")
THREADS_PHASES = ("serial", "balanced", "skewed", "barrier", "lock", "cond", "io", "oversubscribed")
REPEATS = "5"
ALL_PHASES = [(program, "all", "--repeat", REPEATS) for program in (*OPENMP, "pthread_truth")]
WORK_OF = {
    "serial": ("serial_work",),
    "balanced": ("balanced_work",),
    "skewed": ("skewed_long", "skewed_short"),
    "barrier": ("barrier_long", "barrier_short"),
    "dynamic": ("dynamic_work",),
    "critical": ("critical_work", "outside_critical_work"),
    "lock": ("locked_work", "unlocked_work"),
    "cond": ("produce_work", "consume_work"),
    "io": ("io_client_work", "io_server_work"),
    "tasks": ("task_work",),
    "nested": ("nested_outer_work", "nested_work"),
    "oversubscribed": ("oversubscribed_work",),
}
"""The functions in which threads work in each phase, and in no other."""
ODD_PROGRAMS = [
    (f"omp_truth.gomp.{kind}", "all", "--repeat", "2") for kind in ("stripped", "static", "inside")
]


WAIT_POLICIES = [
    (f"OMP_WAIT_POLICY={policy}", program, "all") for policy in ("active", "passive") for program in OPENMP
]


Phase = Callable[[str, str], profiling.Run]
"""A run of a program in which a phase of it can be judged."""


def is_usable(run: profiling.Run) -> bool:
    return not run.lost.keys() - {"user_stack"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> profiling.CommonRuns:
    commands = (*ALL_PHASES, *WAIT_POLICIES, *ODD_PROGRAMS)
    return profiling.CommonRuns(commands, lambda: tmp_path_factory.mktemp("runs"), is_usable=is_usable)


@pytest.fixture(scope="module")
def whole(runs: profiling.CommonRuns) -> dict[str, profiling.Run]:
    """A run with all phases of each program: for those that judge one phase of it, each once."""
    return {command[0]: runs.take(command) for command in ALL_PHASES}


@pytest.fixture(scope="module")
def judged() -> set[tuple[str, str]]:
    """The phases of which the common run was judged already, by program."""
    return set()


@pytest.fixture
def run_of_phase(
    whole: dict[str, profiling.Run],
    judged: set[tuple[str, str]],
    runs: profiling.CommonRuns,
) -> Phase:
    """A run with a phase that nobody has judged yet: whoever wants another than the common one has one of its own."""

    def take(program: str, phase: str) -> profiling.Run:
        if (program, phase) in judged or not is_usable(whole[program]):
            return runs.take((program, phase, "--repeat", REPEATS))
        judged.add((program, phase))
        return whole[program]

    return take


def agree(
    make: Callable[[], profiling.Run],
    minimum: int,
    limit: float = LIMIT,
    functions: Collection[str] | None = None,
) -> profiling.Run:
    run = profiling.agree(make, minimum, limit, BUSY_LIMIT, functions)
    counted = sum(count.samples for count in run.session.facts.values())
    left_out = run.statistics["left_out_samples"]
    """Those for which others stand: on a slow machine 999 a second take more than the budget."""
    told = run.statistics["samples"] + left_out
    # each time that samples are thinned out more or less, some that were left out may stand for too many
    assert abs(counted - told) <= left_out // 20, "samples were counted in the kernel that no drain returned"
    return run


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("program", OPENMP)
def test_openmp_phase(program: str, phase: str, run_of_phase: Phase) -> None:
    run = agree(lambda: run_of_phase(program, phase), 60, PHASE_LIMIT, WORK_OF[phase])
    assert run.target.n_w_source == "exact"


@pytest.mark.parametrize("command", ALL_PHASES, ids=" ".join)
def test_all_phases_together(
    command: profiling.Command, whole: dict[str, profiling.Run], runs: profiling.CommonRuns
) -> None:
    first = [whole[command[0]]] if is_usable(whole[command[0]]) else []
    agree(lambda: first.pop() if first else runs.take(command), 1500)


@pytest.mark.parametrize("command", WAIT_POLICIES, ids=" ".join)
def test_wait_policies(command: profiling.Command, runs: profiling.CommonRuns) -> None:
    agree(lambda: runs.take(command), 200, 0.02)


@pytest.mark.parametrize("command", ODD_PROGRAMS, ids=" ".join)
def test_without_symbols_and_static(command: profiling.Command, runs: profiling.CommonRuns) -> None:
    # a stripped program's bodies are probed from their second run on; before that a sample catches them
    run = agree(lambda: runs.take(command), 200, 0.03 if "stripped" in command[0] else LIMIT)
    assert run.target.plan.runtime == "libgomp" and run.target.n_w_source == "exact"


@pytest.mark.parametrize("phase", THREADS_PHASES)
def test_pthreads(phase: str, run_of_phase: Phase) -> None:
    run = agree(lambda: run_of_phase("pthread_truth", phase), 60, PHASE_LIMIT, WORK_OF[phase])
    assert run.target.n_w_source == "scheduler"


ATTACHED = [
    profiling.Attachment(program, ("skewed,serial,barrier,balanced", "--unit-ms", "40"), after_s, 2.4)
    for after_s in (0.30, 0.43)
    for program in ("omp_truth.gomp", "omp_truth.omp", "omp_truth.gomp.stripped")
]
"""For the first second, and for two rounds of its phases after that: some 2,000 samples."""


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> profiling.CommonAttachments:
    return profiling.CommonAttachments(ATTACHED, lambda: tmp_path_factory.mktemp("attached"), is_usable)


@pytest.mark.parametrize("to", ATTACHED, ids=lambda to: f"{to.program} {to.after_s}")
def test_attach_in_the_middle(to: profiling.Attachment, attached: profiling.CommonAttachments) -> None:
    # the first regions after the attach are guessed
    run = agree(lambda: attached.take(to), 300, 0.03)
    settled = profiling.compare(run.session.trace, run.truth, since_ns=run.begun_ns + 10**9)
    assert settled.wrong_share <= (BUSY_LIMIT if profiling.was_busy(run) else 0.015), (
        f"{settled.wrong} of {settled.judged} wrong: {settled.cases}"
    )


def test_a_sample_on_the_way_back_from_a_probe_is_no_work() -> None:
    """Code of the kernel's own, in the program's memory, runs between a function's end and its caller."""
    command = [str(profiling.BUILD / "regions"), "--work-us", "100", "--gap-us", "300", "--seconds", "4"]
    with recorded(command, 3989, Source.EXACT) as (session, target):
        found: Counter[int] = Counter()
        symbols = {
            symbol.name: symbol
            for dso in (target.load_map.dsos() if target.load_map else [])
            if dso.name == "regions" and dso.elf is not None
            for symbol in dso.elf.symbols()
        }
        gap = symbols["gap_work"]
        for key, count in session.facts.items():
            frames = session.kernel.stacks.get(key.user).frames
            if key.event or not frames:
                continue
            dso, vaddr = target.find(frames[0][0], key.epoch) or (None, 0)
            if dso is not None and dso.name == "regions" and 0 <= vaddr - gap.value < gap.size:
                found[key.n_working] += count.samples
    assert sum(found.values()) > 3000
    assert found[1] >= 0.99 * sum(found.values()), found
