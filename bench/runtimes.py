"""n_w, call paths and cost by runtime and by the form in which programs bring it, against the programs' own log.

    .venv/bin/python bench/runtimes.py [--only REGEX] [--frequency 999] [--repeat 3] [--md] [--python PYTHON]

    source    where n_w comes from, at the end of the run
    judged    samples of threads inside a logged function, 0.1 ms or more from where it begins or ends
    wrong     of these: n_w, up to n, is not the log's, or the thread does not count as working
    rooted    of all samples: their logical call path begins where the program or thread does
    cost      what the programs in the kernel took, of the target's CPU time; as its report says

Programs are those of tests/workloads: all of their phases, or, where they are attached to in mid-run, four of them
for three seconds. The first second of an attach counts, too. Stand-ins take the place of Cilk's runtimes, which Debian
has not (tests/workloads/cilk). Programs of other languages are built here, if what they need is installed (foreign.py):
else their row says what is missing. For those of Python, ``--python`` names one that has their packages; of OpenBLAS,
only the serial code beside its calls is logged. Of several runs the one whose share of wrong samples is the median.
Needs root and a quiet machine: a thread that another program preempts between the runtime's call and the logged
function is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon")]

import foreign  # noqa: E402
from machine import describe  # noqa: E402

import profiling  # noqa: E402
from parprof.profile.assemble import percent_of_rest  # noqa: E402
from parprof.session.sources import Source  # noqa: E402

_MID_RUN = ("skewed,serial,barrier,balanced", "--unit-ms", "40")
_MID_RUN_OF_CILK = ("skewed,serial,tree,balanced", "--unit-ms", "20")
_FOR_MEMORY = ("serial,balanced,skewed,barrier,dynamic,single", "--repeat", "8")
"""libgomp's memory says nothing of critical sections, locks and tasks: programs that have them are judged otherwise,
unless somebody insists."""
_ATTACH_AFTER_S, _ATTACH_SECONDS = 0.3, 3.0
_HEAD = ("runtime", "form", "source", "judged", "wrong %", "rooted %", "cost %")


@dataclass(frozen=True)
class Case:
    runtime: str
    form: str
    program: str
    arguments: tuple[str, ...] = ("all", "--repeat", "4")
    source: Source | None = None
    is_attached: bool = False
    is_foreign: bool = False
    """``program`` is one of foreign.py's."""
    environment: tuple[tuple[str, str], ...] = ()


def _openmp(runtime: str, end: str) -> list[Case]:
    program = f"omp_truth.{end}"
    return [
        Case(runtime, "shared", program),
        Case(runtime, "shared, by samples", program, source=Source.SAMPLED),
        Case(runtime, "attached in mid-run", program, _MID_RUN, is_attached=True),
    ]


def _cilk(runtime: str, program: str, forms: tuple[tuple[str, str], ...]) -> list[Case]:
    rest = [Case(runtime, form, f"{program}.{end}", ("all", "--repeat", "2")) for form, end in forms]
    return [
        Case(runtime, "shared", program, ("all", "--repeat", "2")),
        *rest,
        Case(runtime, "attached in mid-run", program, _MID_RUN_OF_CILK, is_attached=True),
    ]


CASES = (
    *_openmp("libgomp", "gomp"),
    Case("libgomp", "shared, from memory", "omp_truth.gomp", _FOR_MEMORY, Source.MEMORY),
    Case("libgomp", "static program", "omp_truth.gomp.static"),
    Case("libgomp", "linked into the program", "omp_truth.gomp.inside"),
    Case("libgomp", "stripped", "omp_truth.gomp.stripped"),
    Case("libgomp", "stripped, attached in mid-run", "omp_truth.gomp.stripped", _MID_RUN, is_attached=True),
    Case("libgomp", "static program, stripped", "omp_truth.gomp.static.stripped"),
    Case("libgomp", "linked in and stripped", "omp_truth.gomp.inside.stripped"),
    *_openmp("libomp", "omp"),
    *_cilk(
        "OpenCilk",
        "spawn_truth.opencilk",
        (("static program", "static"), ("linked into the program", "inside"), ("stripped", "stripped")),
    ),
    *_cilk("Cilk Plus", "spawn_truth.cilkplus", (("stripped", "stripped"),)),
    *_cilk(
        "Cilk-5",
        "cilk5_truth",
        (
            ("debug and profile library", "g.p"),
            ("linked into the program", "inside"),
            ("stripped", "stripped"),
        ),
    ),
    Case("oneTBB", "shared", "tbb_truth"),
    Case("oneTBB", "stripped", "tbb_truth.stripped"),
    Case("pthreads", "shared", "pthread_truth"),
    Case("pthreads", "attached in mid-run", "pthread_truth", _MID_RUN, is_attached=True),
    Case("OpenBLAS", "stand-in", "blas_phases", ("all",), environment=(("STANDIN_SPIN", "67108864"),)),
    Case("OpenBLAS", "numpy", "openblas", (), is_foreign=True, environment=(("OPENBLAS_NUM_THREADS", "2"),)),
    Case("numba", "its default pool", "numba", (), is_foreign=True),
    Case("rayon", "linked into the program", "rayon", (), is_foreign=True),
    Case("Go", "its routines", "go", (), is_foreign=True),
    Case("Java", "ForkJoinPool", "java", (), is_foreign=True),
)


@dataclass(frozen=True)
class Outcome:
    source: str
    judged: int
    wrong_share: float
    rooted_share: float
    cost_percent: float


def measure(case: Case, command: foreign.Command, frequency_hz: int, log: Path) -> Outcome:
    arguments = list(command.arguments)
    if case.is_attached:
        to = profiling.Attachment(case.program, tuple(arguments), _ATTACH_AFTER_S, _ATTACH_SECONDS)
        run = profiling.attach(to, log, frequency_hz, case.source)
    else:
        with profiling.output_in(log.with_suffix(".out")):
            run = profiling.record(
                command.program, arguments, log, frequency_hz, source=case.source, **dict(case.environment)
            )
    found = profiling.compare(run.session.trace, run.truth)
    rows, maker = profiling.rows_of(run.session)
    cpu_ns = sum(row.metrics.cpu_ns for row in rows)
    paid_ns = sum(run.target.spent_ns)
    return Outcome(
        run.target.n_w_source,
        found.judged,
        found.wrong_share,
        1 - maker.incomplete / max(maker.samples, 1),
        percent_of_rest(paid_ns, cpu_ns),
    )


def command_of(case: Case, folder: Path, python: str) -> foreign.Command:
    """How to run the program of a row.

    Raises:
        NotHere: the text says what is missing.
    """
    if case.is_foreign:
        return foreign.command(case.program, folder, python)
    if not (profiling.BUILD / case.program).exists():
        raise foreign.NotHere(f"{case.program} was not built here")
    return foreign.Command(Path(case.program), case.arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="rows whose runtime, form or program matches"
    )
    parser.add_argument("--frequency", type=int, default=999, metavar="HZ")
    parser.add_argument("--repeat", type=int, default=3, metavar="RUNS")
    parser.add_argument("--md", action="store_true", help="print a Markdown table")
    parser.add_argument(
        "--python", default=sys.executable, help="one that has numpy and numba (default: %(default)s)"
    )
    args = parser.parse_args()
    print(describe() + "\n")
    line = (
        "| " + " | ".join(["{}"] * len(_HEAD)) + " |"
        if args.md
        else "{:<10} {:<30} {:<10} {:>7} {:>8} {:>9} {:>7}"
    )
    print(line.format(*_HEAD))
    if args.md:
        print(line.format(*["---"] * len(_HEAD)))
    for case in CASES:
        if not re.search(args.only, f"{case.runtime} {case.form} {case.program}"):
            continue
        with tempfile.TemporaryDirectory(prefix="parprof-runtimes-") as name:
            folder = Path(name)
            try:
                command = command_of(case, folder, args.python)
            except foreign.NotHere as missing:
                print(
                    line.format(case.runtime, case.form, f"not measured: {missing}", *["-"] * 4), flush=True
                )
                continue
            runs = [measure(case, command, args.frequency, folder / f"log{at}") for at in range(args.repeat)]
        one = sorted(runs, key=lambda run: run.wrong_share)[len(runs) // 2]
        print(
            line.format(
                case.runtime,
                case.form,
                one.source,
                f"{one.judged:,}",
                f"{100 * one.wrong_share:.2f}",
                f"{100 * one.rooted_share:.1f}",
                f"{one.cost_percent:.2f}",
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
