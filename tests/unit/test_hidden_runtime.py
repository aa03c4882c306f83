# SPDX-License-Identifier: Apache-2.0
"""A runtime that was linked into a stripped file: what tells it, and what must not."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parprof.files.elf import ElfError, ElfFile
from parprof.probes.file_facts import FileFacts, find_facts, from_json, to_json
from parprof.probes.hidden_runtime import hidden_runtime
from parprof.probes.plan import make_plan
from parprof.session.sources import Source, can_probe_edges, first_source, look_for_memory
from region_programs import gcc, running

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
volatile int sum;
__attribute__((noinline)) void body(void) { sum++; }
int main(void)
{
#pragma omp parallel num_threads(2)
	body();
	puts("ready");
	fflush(stdout);
	return getchar() == 'x';
}
"""
MESSAGES = (
    "Thread creation failed: %s", "Out of memory allocating %lu bytes", "Could not get CPU affinity set",
    "Duplicate node", "device finalization failed", "no device active", "Logical CPU %lu out of range",
)  # fmt: skip
SIGN = r"\nlibgomp: "
INSIDE, STATIC = "linked into the program", "static program"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """With their symbols; beside them, named ``.stripped``, without."""
    here = tmp_path_factory.mktemp("hidden")
    source = here / "program.c"
    source.write_text(PROGRAM)
    compiled = here / "program.o"
    gcc("-O2", "-fopenmp", "-c", source, "-o", compiled)
    gcc(compiled, gcc("-print-file-name=libgomp.a"), "-lpthread", "-ldl", "-o", here / INSIDE)
    gcc(compiled, "-fopenmp", "-static", "-o", here / STATIC)
    out = {name: here / name for name in (INSIDE, STATIC)}
    for path in out.values():
        subprocess.run(["strip", "-s", path, "-o", f"{path}.stripped"], check=True)
    return out


def facts_of(path: Path, name: str = "") -> FileFacts:
    with ElfFile.open(str(path)) as elf:
        facts = find_facts(elf, name or path.name)
    assert from_json(json.loads(json.dumps(to_json(facts)))) == facts
    return facts


def addresses(path: Path, *names: str) -> list[int]:
    with ElfFile.open(str(path)) as elf:
        return [elf.lookup([name])[name][0].value for name in names]


@pytest.mark.parametrize("how", [INSIDE, STATIC])
def test_it_is_told_and_its_code_with_it(how: str, programs: dict[str, Path]) -> None:
    facts = facts_of(Path(f"{programs[how]}.stripped"))
    assert facts.static_agent is not None and facts.static_agent.name == "libgomp" and facts.is_hidden
    ((start, end),) = facts.runtime_code
    for at in addresses(programs[how], "gomp_thread_start", "gomp_team_start", "gomp_barrier_handle_tasks"):
        assert start <= at < end
    for at in addresses(programs[how], "main", "body"):
        assert not start <= at < end
    waits = addresses(
        programs[how], "gomp_team_barrier_wait_end", "gomp_mutex_lock_slow", "gomp_sem_wait_slow"
    )
    assert all(any(start <= at < end for start, end in facts.wait_code) for at in waits)
    works = addresses(programs[how], "gomp_thread_start", "gomp_team_start")
    assert not any(start <= at < end for at in works for start, end in facts.wait_code)


@pytest.mark.parametrize("how", [INSIDE, STATIC])
def test_one_that_has_its_symbols_is_not_hidden(how: str, programs: dict[str, Path]) -> None:
    facts = facts_of(programs[how])
    assert facts.static_agent is not None and not facts.is_hidden


@pytest.mark.parametrize("how", [INSIDE, STATIC])
def test_its_threads_are_judged_by_what_they_run(how: str, programs: dict[str, Path]) -> None:
    with running(f"{programs[how]}.stripped") as load_map:
        plan = make_plan(load_map)
        assert plan.runtime == "libgomp (linked in, stripped)"
        assert (plan.sites, plan.user_ranges) == ([], [])
        assert plan.wait_ranges
        memory = look_for_memory(plan.agents, load_map)
        assert (memory.plan, memory.problem) == (None, "")
        has_edges = can_probe_edges(plan.sites, plan.agents, plan.outlined)
        assert first_source(plan.agents, memory, None, has_edges) is Source.SAMPLED
        (note,) = (note for note in plan.notes if "libgomp" in note)
        assert f"{how}.stripped has libgomp linked in, and is stripped" in note and "do not strip" in note
        # else its threads' work would have no call path: no probe tells of one
        assert not plan.runtime_ranges


def stand_in(path: Path, code: str, *options: str) -> Path:
    """A stripped library. It starts threads, as each runtime does."""
    source = path.with_suffix(".c")
    head = f'#include <pthread.h>\n#include <stdio.h>\n#define SIGN "{SIGN}"\n'
    starts = "int starts(pthread_t *t, void *(*f)(void *)) { return pthread_create(t, 0, f, 0); }\n"
    source.write_text(f"{head}{code}\n{starts}")
    gcc("-O1", "-fPIC", "-shared", "-s", "-fno-toplevel-reorder", *options, source, "-o", path)
    return path


def waiting(number: int) -> str:
    return f'void wait{number}(volatile int *flag) {{ while (!*flag) __asm__ volatile ("pause"); }}\n'


def saying(number: int, message: str, what: str = "puts") -> str:
    return f'void part{number}(void) {{ {what}("{message}"); }}\n'


RUNTIME = saying(99, SIGN) + "".join(saying(n, text) + waiting(n) for n, text in enumerate(MESSAGES))


def test_in_a_library_of_another(tmp_path: Path) -> None:
    """Its functions are not exported (``--exclude-libs ALL``)."""
    facts = facts_of(stand_in(tmp_path / "libsolver.so", RUNTIME, "-fvisibility=hidden"))
    assert facts.static_agent is not None and facts.static_agent.name == "libgomp" and facts.is_hidden
    assert len(facts.wait_code) == len(MESSAGES) - 1  # the last one is behind the last message


def test_behind_much_other_code(tmp_path: Path) -> None:
    """As in a browser, or a package that has all of a compiler inside."""
    much = '__asm__(".text\\n.skip 80 << 20, 0x90\\n");\n'
    library = stand_in(tmp_path / "libsolver.so", much + RUNTIME, "-fvisibility=hidden")
    with ElfFile.open(str(library)) as elf:
        found = hidden_runtime(elf)
    assert found is not None and found.agent.name == "libgomp" and found.code[0] > 80 << 20
    shutil.rmtree(tmp_path)


ALL = "".join(f'puts("{message}"); ' for message in (SIGN, *MESSAGES))
NOT_THOSE = {
    "data": "const char *const texts[] = {SIGN, " + ", ".join(f'"{text}"' for text in MESSAGES) + "};",
    "one that prints them": f"void help(void) {{ {ALL} }}",
    "one that prints them, and spins elsewhere": f"void help(void) {{ {ALL} }}\n" + "".join(map(waiting, range(5))),
    "one that prints each somewhere": "".join(saying(n, text) for n, text in enumerate((SIGN, *MESSAGES))),
    "the sign alone": saying(0, SIGN) + "".join(map(waiting, range(5))),
    "messages that are longer": "".join(saying(n, f"see {text}") + waiting(n) for n, text in enumerate(MESSAGES))
    + saying(99, SIGN),
}  # fmt: skip


@pytest.mark.parametrize("code", NOT_THOSE.values(), ids=NOT_THOSE)
@pytest.mark.parametrize("name", ["libother.so", "libgomp.so.1"])
def test_texts_alone_are_no_runtime(name: str, code: str, tmp_path: Path) -> None:
    facts = facts_of(stand_in(tmp_path / name, code, "-fvisibility=hidden"))
    assert (facts.static_agent, facts.is_hidden, facts.runtime_code) == (None, False, ())
    assert facts.is_namesake == (name == "libgomp.so.1")


def test_our_own_interpreter_is_none() -> None:
    """All that we know of runtimes is in its memory, and none of it in its file."""
    assert facts_of(Path(sys.executable).resolve()).static_agent is None


def test_beside_a_copy_that_is_probed(programs: dict[str, Path], tmp_path: Path) -> None:
    """GIVEN two copies in one process, one of them hidden THEN the threads of each are judged by their own."""
    library = stand_in(tmp_path / "libsolver.so", RUNTIME)
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    gcc("-O2", "-fopenmp", source, library, "-Wl,--no-as-needed", library, "-o", tmp_path / "both")
    with running(tmp_path / "both") as load_map:
        plan = make_plan(load_map)
        assert (plan.runtime, plan.outlined) == ("libgomp", 1)
        memory = look_for_memory(plan.agents, load_map)
        assert first_source(plan.agents, memory, None, can_probe_edges(plan.sites)) is Source.EXACT
        assert "libgomp.so.1" in memory.spoilt_by and "libsolver.so" in memory.spoilt_by
        (hidden,) = (dso for dso in load_map.dsos() if dso.name == library.name)
        ((start, end),) = facts_of(library).runtime_code
        bias = load_map.bias(hidden)
        assert plan.unprobed_ranges == [(bias + start, bias + end)]
        assert not any(low <= bias + start < high for low, high in plan.runtime_ranges)


def test_damaged_files_end_in_no_other_way(programs: dict[str, Path], tmp_path: Path) -> None:
    whole = Path(f"{programs[INSIDE]}.stripped").read_bytes()
    chance = random.Random(7)
    damaged = tmp_path / "damaged"
    for _ in range(60):
        raw = bytearray(whole[: chance.randrange(64, len(whole))] if chance.random() < 0.3 else whole)
        for _ in range(chance.randrange(1, 40)):
            at = (
                chance.randrange(min(len(raw), 4096)) if chance.random() < 0.7 else chance.randrange(len(raw))
            )
            raw[at] = chance.randrange(256)
        damaged.write_bytes(raw)
        try:
            with ElfFile.open(str(damaged)) as elf:
                hidden_runtime(elf)
        except ElfError:
            continue


def test_a_large_file_that_is_none_is_left_after_one_look(tmp_path: Path) -> None:
    """Only what is constant is read, once, in pieces, and not all of that where there is too much."""
    library = stand_in(tmp_path / "large.so", 'const char texts[200 << 20] = "x";')
    read = 0
    with ElfFile.open(str(library)) as elf:
        plain = elf._read

        def counting(offset: int, size: int) -> bytes:
            nonlocal read
            read += size
            return plain(offset, size)

        elf._read = counting
        assert hidden_runtime(elf) is None
    assert read < 130 << 20
    shutil.rmtree(tmp_path)
