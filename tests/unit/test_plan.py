# SPDX-License-Identifier: Apache-2.0
"""Where a program has its parallel runtime, and what is to be probed for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parprof.files.dso import Dso
from parprof.plans import Edge
from parprof.probes.facts_book import FactsBook
from parprof.probes.plan import Plan, learned_site, make_plan
from parprof.process.loadmap import LoadMap
from parprof.runtimes.libomp import Libomp
from parprof.session.sources import look_for_memory
from region_programs import gcc, running

SOURCE = r"""
#include <stdio.h>
volatile int sum;
__attribute__((visibility("default"))) int main(void)
{
#pragma omp parallel num_threads(2)
	{
#pragma omp atomic
		sum++;
#pragma omp barrier
	}
	puts("ready");
	fflush(stdout);
	return getchar() == 'x';
}
"""
STAND_IN = "\n".join([  # for the archive, which cannot be linked into a library
    "__attribute__((noinline)) void GOMP_parallel(void (*body)(void *), void *data, unsigned n, unsigned flags)",
    "{ (void)n; (void)flags; body(data); }",
    *(f"__attribute__((noinline)) void gomp_part_{number}(void) {{ __asm__ volatile (\"pause\"); }}"
      for number in range(9)),
    "__attribute__((noinline)) void GOMP_barrier(void) { gomp_part_8(); }",
])  # fmt: skip
OPEN = "import ctypes, sys; [ctypes.CDLL(name, ctypes.RTLD_GLOBAL) for name in sys.argv[1:]][-1].main()"
SHARED, STATIC, INSIDE, PLUGIN, RENAMED = (
    "shared", "static", "static in a dynamic program", "static in a plug-in", "renamed"
)  # fmt: skip
Commands = dict[str, list[str]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """How to run each kind; its code is in the last file."""
    here = tmp_path_factory.mktemp("plan")
    source, stand_in, compiled = here / "program.c", here / "stand_in.c", here / "program.o"
    source.write_text(SOURCE)
    stand_in.write_text(STAND_IN)
    gcc("-O2", "-fopenmp", "-fPIC", "-c", source, "-o", compiled)
    gcc(compiled, "-fopenmp", "-o", here / SHARED)
    gcc(compiled, "-fopenmp", "-static", "-o", here / STATIC)
    gcc(compiled, gcc("-print-file-name=libgomp.a"), "-lpthread", "-ldl", "-o", here / INSIDE)
    gcc("-O2", "-fPIC", "-shared", "-fvisibility=hidden", compiled, stand_in, "-o", here / PLUGIN)
    gcc("-fopenmp", "-shared", compiled, "-o", here / RENAMED)
    library = here / "libmine.so"  # found by its SONAME when the next file needs it
    shutil.copy(gcc("-print-file-name=libgomp.so.1"), library)
    alone = {name: [str(here / name)] for name in (SHARED, STATIC, INSIDE)}
    opened = [sys.executable, "-c", OPEN]
    return {
        **alone,
        PLUGIN: [*opened, str(here / PLUGIN)],
        RENAMED: [*opened, str(library), str(here / RENAMED)],
    }


def functions_of(plan: Plan, load_map: LoadMap) -> dict[Edge, set[str]]:
    """The names of the functions that have a site, by what it means."""
    out: dict[Edge, set[str]] = {}
    for dso in load_map.dsos():
        if dso.elf is None:
            continue
        ours = [site for site in plan.sites if site.path == f"/proc/self/fd/{dso.fd()}"]
        for symbol in dso.elf.symbols() if ours else ():
            start = dso.elf.file_offset(symbol.value)
            for site in ours:
                if start is not None and start <= site.offset < start + max(symbol.size, 1):
                    out.setdefault(Edge(site.kind), set()).add(symbol.name)
    return out


@pytest.mark.parametrize("how", [SHARED, STATIC, INSIDE, PLUGIN, RENAMED])
def test_the_runtime_is_found_wherever_it_was_linked(how: str, programs: Commands) -> None:
    with running(*programs[how]) as load_map:
        plan = make_plan(load_map)
        assert plan.runtime == "libgomp"
        found = functions_of(plan, load_map)
        assert "main._omp_fn.0" in found[Edge.WORK] and plan.outlined == 1
        assert "GOMP_parallel" in found[Edge.REGION]
        assert "GOMP_barrier" in found[Edge.WAIT]
        (own,) = (dso for dso in load_map.dsos() if dso.name == Path(programs[how][-1]).name)
        assert own.elf is not None
        address = own.elf.lookup(["main"])["main"][0].value + load_map.bias(own)
        assert plan.runtime_ranges, "a thread found in the runtime waits there"
        assert not any(start <= address < end for start, end in plan.runtime_ranges), "but not in main"
        assert plan.rare_sites
        assert plan.libc_ranges or how == STATIC


def test_what_is_planned_needs_not_be_learned(programs: Commands) -> None:
    """A region tells its body's address all the same: code without a name is what nobody has looked at yet."""
    with running(*programs[SHARED]) as load_map:
        plan = make_plan(load_map)
        (own,) = (dso for dso in load_map.dsos() if dso.name == Path(programs[SHARED][-1]).name)
        assert own.elf is not None
        found = own.elf.lookup(["main._omp_fn.0", "main"])
        assert learned_site(plan.agents[0], own, found["main._omp_fn.0"][0].value) is None
        assert learned_site(plan.agents[0], own, found["main"][0].value) is not None


def test_a_body_that_is_learned_is_disassembled_by_a_child(
    programs: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And probed at its entry where that does not answer: always right, at times dear."""
    asked: list[int] = []

    def silent(self: FactsBook, dso: Dso, vaddr: int, size: int, seconds: float) -> None:
        asked.append(vaddr)

    with running(*programs[SHARED]) as load_map:
        agent = make_plan(load_map).agents[0]
        (libc,) = (dso for dso in load_map.dsos() if dso.name == "libc.so.6")
        assert libc.elf is not None
        names = ("getpid", "getppid", "strtok_r", "qsort_r", "abs", "ffs", "labs")
        bodies = [found[0].value for found in libc.elf.lookup(names).values()]
        found = [learned_site(agent, libc, body) for body in bodies]
        monkeypatch.setattr(FactsBook, "function", silent)
        entries = [learned_site(agent, libc, body) for body in bodies]
    assert asked and all(found) and all(entries)
    for body, site in zip(bodies, entries, strict=True):
        assert site is not None and (body not in asked or site.offset == libc.elf.file_offset(body))


def test_the_memory_of_a_runtime_in_the_program_is_not_trusted(programs: Commands) -> None:
    """It does not say what it uses of the runtime; but it can be read."""
    with running(*programs[INSIDE]) as load_map:
        memory = look_for_memory(make_plan(load_map).agents, load_map)
        assert memory.plan is not None and not memory.holds
        assert not memory.problem


def test_a_libomp_of_another_name_is_no_libgomp(tmp_path: Path) -> None:
    """It offers gcc's functions, too."""
    names = ("GOMP_parallel", "GOMP_barrier", "__kmp_invoke_microtask", "__kmpc_fork_call")
    source = tmp_path / "omp.c"
    source.write_text("#include <stdio.h>\n" + "".join(f"void {name}(void) {{}}\n" for name in names)
                      + 'int main(void) { puts("ready"); fflush(stdout); return getchar() == 120; }\n')  # fmt: skip
    subprocess.run(["gcc", "-rdynamic", source, "-o", tmp_path / "program"], check=True)
    with running(tmp_path / "program") as load_map:
        assert [type(agent) for agent in make_plan(load_map).agents] == [Libomp]


def test_a_program_without_a_runtime(tmp_path: Path) -> None:
    source = tmp_path / "plain.c"
    source.write_text(
        '#include <stdio.h>\nint main(void) { puts("ready"); fflush(stdout); return getchar() == 120; }\n'
    )
    subprocess.run(["gcc", source, "-o", tmp_path / "plain"], check=True)
    with running(tmp_path / "plain") as load_map:
        plan = make_plan(load_map)
        assert (plan.runtime, plan.sites, plan.runtime_ranges, plan.user_ranges) == ("none", [], [], [])
        assert all(start < end for start, end in plan.libc_ranges) and plan.libc_ranges
