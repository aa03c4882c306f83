# SPDX-License-Identifier: Apache-2.0
"""Where libgomp keeps n_w: what its code says, on live processes whose n_w is known, and on broken code."""

from __future__ import annotations

import functools
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gomp_process import ProcessMemory, fsbase_of, mapped_libgomp, read_n_working, threads
from parprof.files.elf import ElfError, ElfFile
from parprof.files.elf_symbols import Symbol
from parprof.plans import TeamBarrier, UnknownLayout
from parprof.runtimes.libgomp import Libgomp
from parprof.runtimes.libgomp_memory import holds_for, release, team_barrier, team_layout

LIBGOMP = Path("/usr/lib/x86_64-linux-gnu/libgomp.so.1")
SOURCE = r"""
#include <omp.h>
#include <stdio.h>
/* Each byte on stdin lets the program go on. It answers with what it does then, for ever until the next byte. */
static volatile int round;
static void say(const char *what) { puts(what); fflush(stdout); }
static void spin(int until) { while (round < until) ; }
static void next(const char *what) { say(what); getchar(); round++; }

int main(void)
{
	next("serial");
#pragma omp parallel num_threads(4)
	{
		int me = omp_get_thread_num();
#pragma omp barrier
		if (!me) {
			next("all");		/* the others spin until round 2 */
			next("two");		/* of these, thread 1 until round 3 */
			next("one");		/* the others wait in the barrier */
		} else
			spin(me == 1 ? 3 : 2);
#ifdef BARRIER
#pragma omp barrier
#endif
		if (!me)
			next(BARRIER_SAID);	/* the others wait at the end */
#ifdef BARRIER
		else if (me < 3)
			spin(5);
#endif
	}
	next("serial again");
#pragma omp parallel num_threads(3)
#pragma omp parallel num_threads(3)
	{
		if (omp_get_ancestor_thread_num(1) == 0)
			next("inner");		/* serialized: a team of one, in each of three */
		else
			spin(7);
	}
	return 0;
}
"""
PROGRAMS = {
    "dynamic": [],
    "barrier": ["-DBARRIER"],
    "stripped": ["-s"],
    "static": ["-static", "-DBARRIER"],
    "static_without_barrier": ["-static"],
    "static_pie": ["-static-pie", "-fPIE"],
    "opened_later": ["-shared", "-fPIC", "-Dmain=plugin_main"],
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    pytest.importorskip("capstone", reason="capstone is not installed")
    here = tmp_path_factory.mktemp("gomp")
    (here / "states.c").write_text(SOURCE)
    for name, options in PROGRAMS.items():
        said = "three" if "-DBARRIER" in options else "still one"
        command = [
            "gcc",
            "-O2",
            "-fopenmp",
            f'-DBARRIER_SAID="{said}"',
            *options,
            here / "states.c",
            "-o",
            here / name,
        ]
        subprocess.run(
            command, check=True, stderr=subprocess.DEVNULL
        )  # ld warns of dlopen in static programs
    return {name: here / name for name in PROGRAMS}


@contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[str]]:
    opener = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]).plugin_main()"]
    command = [*opener, program] if program.name == "opened_later" else [program]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def settles(plan: TeamBarrier, memory: ProcessMemory, fsbase: int, expected: int) -> int:
    """n_w once it has been ``expected`` ten times in a row, else the last one seen."""
    end, run, n = time.monotonic() + 20, 0, 0
    while run < 10 and time.monotonic() < end:
        n = read_n_working(plan, memory, fsbase)
        run = run + 1 if n == expected else 0
        time.sleep(0.002)
    return n


@pytest.mark.parametrize("name", PROGRAMS)
def test_live_process(programs: dict[str, Path], name: str) -> None:
    """Threads that arrive at the barrier stop to count, in all phases of a region and between regions."""
    three = 3 if "-DBARRIER" in PROGRAMS[name] else 1
    expected = {"serial": 1, "all": 4, "two": 2, "one": 1, "three": three, "still one": 1, "serial again": 1}
    seen = []
    with running(programs[name]) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == "serial\n"
        path = mapped_libgomp(child.pid)
        with ElfFile.open(path) as elf:
            memory = ProcessMemory(child.pid, path, elf)
            plan = team_barrier(team_layout(elf), memory)
            assert plan is not None
            fsbase = fsbase_of(child.pid)
            said = "serial"
            while said in expected:
                seen.append(said)
                assert settles(plan, memory, fsbase, expected[said]) == expected[said], said
                child.stdin.write("x")
                child.stdin.flush()
                said = child.stdout.readline().strip()
            assert said == "inner"
            assert settles(plan, memory, fsbase, 3) == 3, "a serialized inner team hides its outer one"
            for tid in threads(child.pid):
                assert fsbase_of(tid)
            memory.close()
    assert len(seen) == 6


class Slots:
    """Stands in for a process whose thread-local offset is ``value``."""

    def __init__(self, value: int, mapped: bool = True) -> None:
        self.value, self.mapped = value, mapped

    def read(self, address: int, size: int) -> bytes:
        return self.value.to_bytes(8, "little", signed=True)[:size]

    def address(self, vaddr: int) -> int:
        return vaddr if self.mapped else 0

    def symbol(self, name: str) -> int:
        return 0


@pytest.fixture(scope="module")
def library() -> Iterator[ElfFile]:
    if not LIBGOMP.exists():
        pytest.skip("libgomp1 is not installed")
    pytest.importorskip("capstone", reason="capstone is not installed")
    with ElfFile.open(str(LIBGOMP)) as elf:
        yield elf


def test_offsets_of_gcc_12(library: ElfFile) -> None:
    if release(library) != "gcc 12":
        pytest.skip(f"libgomp is of {release(library)}, not of gcc 12")
    assert team_barrier(team_layout(library), Slots(-144)) == TeamBarrier(
        -144, 0x10, 0x58, 0x80, 0xC0, 0xC4, 8, 8
    )


def test_not_relocated_yet(library: ElfFile) -> None:
    assert team_barrier(team_layout(library), Slots(0)) is None


@pytest.mark.parametrize("tls", [144, -143, -(1 << 40)])
def test_a_senseless_offset(library: ElfFile, tls: int) -> None:
    with pytest.raises(UnknownLayout, match="makes no sense"):
        team_barrier(team_layout(library), Slots(tls))


def test_an_unmapped_library(library: ElfFile) -> None:
    with pytest.raises(UnknownLayout, match="offset table"):
        team_barrier(team_layout(library), Slots(-144, mapped=False))


def test_another_library_is_refused_by_name() -> None:
    with (
        ElfFile.open("/proc/self/exe") as elf,
        pytest.raises(UnknownLayout, match="libgomp of .* it has no "),
    ):
        team_barrier(team_layout(elf), Slots(-144))


class Patched(ElfFile):
    """A file with some bytes of its code changed. Its symbols stay, and are looked up once."""

    patches: dict[int, bytes]

    @functools.cached_property
    def _known(self) -> dict[tuple[str, ...], dict[str, tuple[Symbol, ...]]]:
        return {}

    def lookup(self, names: Iterable[str]) -> dict[str, tuple[Symbol, ...]]:
        wanted = tuple(names)
        if wanted not in self._known:
            self._known[wanted] = super().lookup(wanted)
        return dict(self._known[wanted])

    def read(self, vaddr: int, size: int) -> bytes:
        out = bytearray(super().read(vaddr, size))
        for at, new in self.patches.items():
            for index, byte in enumerate(new):
                if 0 <= at + index - vaddr < len(out):
                    out[at + index - vaddr] = byte
        return bytes(out)


def places(library: ElfFile) -> list[int]:
    """The code that is read: three functions, the wait and the one at a region's end."""
    found = library.lookup(["omp_get_num_threads", "GOMP_barrier", "omp_in_final"])
    starts = [symbols[0].value for symbols in found.values()]
    jump = library.read(found["GOMP_barrier"][0].value, 32).index(b"\xe9", 8) + found["GOMP_barrier"][0].value
    target = jump + 5 + int.from_bytes(library.read(jump + 1, 4), "little", signed=True)
    return [*starts, target, target + 0x30]


def test_changed_code_is_refused_or_means_the_same(library: ElfFile) -> None:
    """No change of the code crashes, hangs, or moves the barrier or the team; some are bound to be seen."""
    if release(library) != "gcc 12":
        pytest.skip(f"libgomp is of {release(library)}, not of gcc 12")
    chance = random.Random(5)
    right = team_barrier(team_layout(library), Slots(-144))
    assert right is not None
    starts, refused = places(library), 0
    with Patched.open(str(LIBGOMP)) as patched:
        for _ in range(1500):
            start = chance.choice(starts)
            new = chance.randbytes(chance.choice((1, 1, 1, 4, 32)))
            patched.patches = {start + chance.randrange(40): new}
            try:
                plan = team_barrier(team_layout(patched), Slots(-144))
            except UnknownLayout as error:
                refused += 1
                assert "libgomp of gcc 12" in str(error)
            else:
                assert plan is not None
                assert (plan.tls, plan.team) == (right.tls, right.team)
                assert plan.awaited - plan.total == 0x40 and plan.total % 0x40 == 0
    assert refused > 300


def test_a_breakpoint_in_the_code_is_refused(library: ElfFile) -> None:
    """Not guessed at: this is why the file is read and not the process, where probes may sit."""
    with Patched.open(str(LIBGOMP)) as patched:
        for start in places(library)[:3]:
            patched.patches = {start: b"\xcc"}
            with pytest.raises(UnknownLayout):
                team_barrier(team_layout(patched), Slots(-144))


def test_truncated_files(tmp_path: Path, library: ElfFile) -> None:
    whole = LIBGOMP.read_bytes()
    refused = 0
    for size in range(64, len(whole), 20011):
        (tmp_path / "short").write_bytes(whole[:size])
        try:
            with ElfFile.open(str(tmp_path / "short")) as elf:
                team_barrier(team_layout(elf), Slots(-144))
        except (UnknownLayout, ElfError):
            refused += 1
    assert refused > 3


@pytest.mark.parametrize(
    ("imported", "environment", "spoiler"),
    [
        ({"GOMP_parallel", "GOMP_barrier", "GOMP_loop_end"}, {}, ""),
        ({"GOMP_parallel", "GOMP_single_copy_start", "GOMP_sections_end", "omp_test_lock"}, {}, ""),
        ({"GOMP_parallel", "GOMP_atomic_start"}, {}, ""),
        ({"GOMP_parallel", "GOMP_critical_name_start"}, {}, "GOMP_critical_name_start"),
        ({"GOMP_parallel", "omp_set_nest_lock"}, {}, "omp_set_nest_lock"),
        ({"GOMP_parallel", "GOMP_task", "GOMP_taskwait"}, {}, "GOMP_task"),
        ({"GOMP_parallel", "GOMP_target_ext"}, {}, "GOMP_target_ext"),
        ({"GOMP_parallel", "GOMP_doacross_ull_wait"}, {}, "GOMP_doacross_ull_wait"),
        ({"GOMP_parallel", "GOMP_cancel"}, {}, "GOMP_cancel"),
        ({"GOMP_parallel", "omp_set_max_active_levels"}, {}, "omp_set_max_active_levels"),
        ({"GOMP_parallel"}, {"OMP_NESTED": "TRUE"}, "OMP_NESTED"),
        ({"GOMP_parallel"}, {"OMP_NUM_THREADS": "4,2"}, "OMP_NUM_THREADS"),
        ({"GOMP_parallel"}, {"OMP_MAX_ACTIVE_LEVELS": "2"}, "OMP_MAX_ACTIVE_LEVELS"),
        ({"GOMP_parallel"}, {"OMP_MAX_ACTIVE_LEVELS": "1", "OMP_NUM_THREADS": "4"}, ""),
    ],
)  # fmt: skip
def test_when_it_holds(imported: set[str], environment: dict[str, str], spoiler: str) -> None:
    assert holds_for(imported, environment).partition(":")[0] == spoiler


def test_every_wait_of_the_agent_is_judged() -> None:
    """A function that waits is at the barrier, or it spoils n_w: no third kind."""
    at_barrier = {"GOMP_barrier", "GOMP_barrier_cancel", "GOMP_loop_end", "GOMP_loop_end_cancel", "GOMP_sections_end",
                  "GOMP_sections_end_cancel", "GOMP_single_copy_start", "GOMP_workshare_task_reduction_unregister",
                  "GOMP_parallel_end", "GOMP_atomic_start"}  # fmt: skip
    only_with_tasks = {"GOMP_taskwait", "GOMP_taskwait_depend", "GOMP_taskgroup_end"}
    with ElfFile.open(str(LIBGOMP)) as elf:
        waits = {
            s.name
            for s in elf.symbols()
            for h in Libgomp.hooks
            if h.edge == 2 and h.pattern.fullmatch(s.name)
        }
    assert len(waits) > 15
    for name in waits - at_barrier - only_with_tasks:
        assert holds_for({name}), name
