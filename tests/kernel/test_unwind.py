"""Whole stacks of optimized code without frame pointers: complete, and exactly those that are true."""

from __future__ import annotations

import shutil
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import profiling
from parprof.files.elf import ElfFile
from parprof.kernel.engine import BpfKernel
from parprof.kernel.stacks import STACK_ENDS
from parprof.kernel.store import CHUNK_WORDS
from parprof.session.session import Session
from parprof.session.target import Target
from profiling import recorded

pytestmark = pytest.mark.beside

COMPLETE = 0.995


def ends(session: Session) -> Counter[str]:
    """How the walks ended, without those before the first load map was read and those in exec and exit."""
    counted = session.kernel.statistics()
    return Counter({end: counted[f"stacks_{end}"] for end in STACK_ENDS if counted[f"stacks_{end}"]})


def check_complete(session: Session, minimum: int) -> None:
    found = ends(session)
    total = sum(found.values())
    assert total >= minimum, f"only {total} samples"
    # the dynamic linker, before its first report, runs code that it has only just mapped
    assert found["complete"] >= COMPLETE * total - 3 * len(session.targets), found


class Names:
    """Function names of a program's own code, from its symbol table; other code by its file."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tables: dict[object, tuple[list[int], list[str]]] = {}

    def __call__(self, address: int, is_return: bool, epoch: int) -> str:
        found = self._target.find(address, epoch)
        if found is None:
            return f"?{address:#x}"
        dso, vaddr = found
        if dso.name != "stacks" or dso.elf is None:
            return dso.name
        if dso.key not in self._tables:
            rows = sorted((s.value, s.name) for s in dso.elf.symbols())
            self._tables[dso.key] = ([r[0] for r in rows], [r[1] for r in rows])
        starts, names = self._tables[dso.key]
        return names[bisect_right(starts, vaddr - is_return) - 1]


def shapes(session: Session, target: Target) -> Counter[tuple[str, ...]]:
    """The call paths seen, root first, with C library frames below main left out."""
    names, out = Names(target), Counter[tuple[str, ...]]()
    for key, count in session.facts.items():
        if key.image != target.image or key.kernel:
            continue
        stack = session.kernel.stacks.get(key.user)
        path = [names(address, is_return, key.epoch) for address, is_return in reversed(stack.frames)]
        while path and path[0] in ("libc.so.6", "_start"):
            path.pop(0)
        out[tuple(path)] += count.samples
    return out


TRUE_PATHS = {
    "recursion": ("main", *["descend"] * 21, "spin"),
    "callback": ("main", "sort", "libc.so.6", "compare", "spin"),
    "signal": ("main", "spin_until", "libc.so.6", "handler", "spin"),
    "realign": ("main", "realigned", "spin"),
    "clone": ("main", "spin"),
}


@pytest.mark.parametrize("kind", TRUE_PATHS)
def test_the_path_is_the_true_one(kind: str) -> None:
    with recorded([str(profiling.BUILD / "stacks"), kind, "20", "1.5"]) as (session, target):
        found = shapes(session, target)
        check_complete(session, 800)

        def fold(path: tuple[str, ...]) -> tuple[str, ...]:
            """qsort calls itself in the C library; main may inline the function it calls once."""
            return tuple(
                name for at, name in enumerate(path) if not at or name != "libc.so.6" or path[at - 1] != name
            )

        if kind == "signal":  # the program itself is interrupted anywhere
            found = Counter({("main", *path[path.index("spin_until") :]): n for path, n in found.items()
                             if "handler" in path and path[0] == "main"})  # fmt: skip
        total = sum(found.values())
        assert total > 100
        right = sum(n for path, n in found.items() if fold(path)[-2:] == TRUE_PATHS[kind][-2:]
                    and set(fold(path)) <= {*TRUE_PATHS[kind], "signals", "cloned", "[vdso]"} and path[0] == "main"
                    and path.count("descend") == TRUE_PATHS[kind].count("descend"))  # fmt: skip
        # the rest: samples in the few instructions before and after, and in clock_gettime
        assert right >= 0.95 * total, found.most_common(8)


@pytest.mark.parametrize(
    "command",
    [
        [str(profiling.BUILD / "stacks_cpp"), "2"],
        [str(profiling.BUILD / "omp_truth.gomp.nofp"), "all"],
        [str(profiling.BUILD / "omp_truth.omp.nofp"), "all"],
        ["/usr/bin/python3", "-c", "import json, re\nfor i in range(3600): json.loads(json.dumps([{str(j): [j]} "
         "for j in range(900)])); re.sub('a+', lambda m: 'b', 'aab' * 300)"],
        ["g++", "-O2", "-c", str(profiling.ROOT / "tests/workloads/stacks_cpp.cpp"), "-o", "/dev/null"],
        ["sqlite3", ":memory:", "with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000000) "
         "select count(*), max(i * i % 977), group_concat(i % 7) is null from n;"],
    ],
    ids=["c++", "libgomp", "libomp", "cpython", "compiler", "sqlite3"],
)  # fmt: skip
@pytest.mark.alone  # many programs that start at once keep the tables of the first stacks from being ready
def test_stacks_are_complete(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    with recorded(command, 1999) as (session, _):
        built = session.builder.built
        if not built:
            check_complete(session, 100)
    if built:  # the first time, libraries that come by dlopen run for a moment before their tables are built
        with recorded(command, 1999) as (session, _):
            check_complete(session, 100)


def test_five_hundred_frames() -> None:
    with recorded([str(profiling.BUILD / "stacks"), "recursion", "490", "1"]) as (session, target):
        check_complete(session, 500)
        depths = {path.count("descend") for path in shapes(session, target) if path[-1:] == ("spin",)}
        assert depths == {491}


LARGE_FRAME = """
#include <string.h>
#include <time.h>
static volatile long sink;
__attribute__((noinline)) static void spin(volatile char *a) { for (long i = 0; i < 100000; i++) sink += a[i]; }
__attribute__((noinline)) static void holds(int n)
{
	char a[3200000];

	memset(a, n, sizeof(a));
	while (clock() < CLOCKS_PER_SEC)
		spin(a);
	sink += a[n];
}
__attribute__((noinline)) static void calls(int n) { holds(n); sink++; }
int main(int count, char **words) { calls(count); return !words; }
"""


def test_a_frame_of_megabytes(tmp_path: Path) -> None:
    """Arrays on the stack: as of Fortran's programs."""
    program = tmp_path / "large"
    command = ["gcc", "-O2", "-fomit-frame-pointer", "-x", "c", "-", "-o", program]
    subprocess.run(command, input=LARGE_FRAME, text=True, check=True)
    with recorded([str(program)]) as (session, _):
        check_complete(session, 200)


def test_deeper_than_the_limit_is_marked_not_hidden() -> None:
    with recorded([str(profiling.BUILD / "stacks"), "recursion", "2000", "1"]) as (session, _):
        found = ends(session)
        assert found["too_deep"] > 0.9 * sum(found.values())


def test_a_full_store_falls_back_to_frame_pointers() -> None:
    with BpfKernel(["cpu-clock"], 997, sizes={"store": 1}) as kernel:
        session = Session(kernel)
        process = subprocess.Popen([sys.executable, "-S", "-c", "while True: sum(range(1000))"])
        try:
            session.kernel.store.allocate(CHUNK_WORDS - 4000)  # room for load maps and small tables
            session.watch(process.pid)
            profiling.run_while_it_works(session, process.pid, 1)
            session.finish()
            assert session.watched.placer.refused > 0
            assert sum(count.samples for count in session.facts.values()) > 300
        finally:
            process.kill()
            process.wait()
            session.close()


def test_tables_without_a_user_are_kept_for_the_next_one_until_room_is_wanted() -> None:
    with profiling.traced_session() as session:
        process = subprocess.Popen(
            [str(profiling.BUILD / "stacks"), "recursion", "5", "30"], stdout=subprocess.DEVNULL
        )
        try:
            session.watch(process.pid)
            profiling.run_until(session, lambda: not session.watched.placer.is_waiting)
            used = session.kernel.store.used_words
            assert used > 10_000
        finally:
            process.kill()
            process.wait()
        profiling.run_until(session, lambda: all(t.ended for t in session.targets.values()))
        assert 0 < session.kernel.store.used_words < used, "the load map is gone, the tables are not"
        session.watched.placer.free_idle()
        assert session.kernel.store.used_words == 0


def test_libraries_that_come_and_go(tmp_path: Path) -> None:
    """dlopen and dlclose a thousand times a second: no crash, no mix-up, the session keeps up."""
    program = tmp_path / "churn"
    (tmp_path / "lib.c").write_text(
        "int NAME(int x) { for (int i = 0; i < 60000; i++) x = x * 31 + i; return x; }"
    )
    for name in ("alpha", "beta"):
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", f"-DNAME={name}", "-o", str(tmp_path / f"{name}.so"),
                        str(tmp_path / "lib.c")], check=True)  # fmt: skip
    (tmp_path / "churn.c").write_text(
        '#include <dlfcn.h>\n#include <time.h>\n#include <stdio.h>\n'
        'int main(int c, char **v) { const char *n[] = {"alpha", "beta"}; char path[4096];\n'
        'for (int i = 0; clock() < 3 * CLOCKS_PER_SEC; i++) {\n'
        'snprintf(path, sizeof path, "%s/%s.so", v[1], n[i % 2]);\n'
        'void *h = dlopen(path, RTLD_NOW); int (*f)(int) = (int (*)(int))dlsym(h, n[i % 2]); f(i); f(i); f(i);\n'
        'dlclose(h); } return 0; }'
    )  # fmt: skip
    subprocess.run(["gcc", "-O1", "-o", str(program), str(tmp_path / "churn.c")], check=True)
    with recorded([str(program), str(tmp_path)]) as (session, target):
        names = Names(target)
        seen = Counter[str]()
        for key, count in session.facts.items():
            frames = session.kernel.stacks.get(key.user).frames
            seen[names(*frames[0], key.epoch) if frames else "none"] += count.samples
        # Which of the two libraries it was is known when its map was read, and unknown otherwise.
        assert target.mapped.maps.epoch > 1000
        assert seen["alpha.so"] + seen["beta.so"] + sum(n for name, n in seen.items() if name[0] == "?") > 500
        others = {"libc.so.6", "ld-linux-x86-64.so.2", "churn", "[vdso]", "[uprobes]", "none"}
        assert {name for name in seen if name[0] != "?"} <= {"alpha.so", "beta.so", *others}


MAPPER = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
int main(int c, char **v) {
    long n = atol(v[1]);
    volatile long x = 0;
    char *p = mmap(0, 4096 * n + 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < n; i += 2) mprotect(p + i * 4096, 4096, PROT_READ | PROT_EXEC);
    puts("ready");
    fflush(stdout);
    while (time(0)) x++;
    return 0;
}
"""


@pytest.fixture(scope="module")
def mapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("mapper") / "maps"
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", program], input=MAPPER, text=True, check=True)
    return program


@pytest.fixture(scope="module")
def common_session() -> Iterator[Session]:
    with profiling.traced_session(997) as session:
        yield session


@pytest.mark.parametrize("pages", [0, 2, 3, 4, 5, 6, 7, 8, 60_000])
def test_any_number_of_mappings(pages: int, mapper: Path, common_session: Session) -> None:
    """The vDSO is one of the last mappings: the search must find it whatever their number."""
    session = common_session
    process = subprocess.Popen([mapper, str(pages)], stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        target = session.watch(process.pid)
        profiling.run_until(session, lambda: not session.watched.placer.is_waiting)
        session.kernel.drain()
        before = ends(session)
        profiling.run_while_it_works(session, process.pid, 0.6)
        found = ends(session) - before
        assert found["complete"] > 200
        assert found["complete"] >= COMPLETE * sum(found.values()), found
    finally:
        process.kill()
        process.communicate()
    profiling.run_until(session, lambda: target.ended)


@pytest.mark.parametrize("program", ["kernels_asm", "kernels_asm.stripped"])
def test_functions_in_assembly_are_left(program: str) -> None:
    """No call frame information, and some align their stack: as the kernels of BLAS libraries, and of encoders, which
    say not even where a function begins."""
    with ElfFile.open(str(profiling.BUILD / "kernels_asm")) as elf:
        symbols = sorted((symbol.value, symbol.name) for symbol in elf.symbols())
    with recorded([str(profiling.BUILD / program), "1.5"]) as (session, target):
        callers: Counter[tuple[str, str]] = Counter()

        def name(address: int, epoch: int) -> str:
            dso, vaddr = target.find(address, epoch) or (None, 0)
            at = bisect_right(symbols, (vaddr, "~")) - 1
            return symbols[at][1] if dso is not None and dso.name == program else ""

        for key, count in session.facts.items():
            frames = session.kernel.stacks.get(key.user).frames
            if key.event == 0 and len(frames) > 2:
                leaf, above, top = (name(frames[at][0], key.epoch) for at in range(3))
                callers[leaf, f"{above} {top}"] += count.samples
        check_complete(session, 500)
    for kernel in ("plain", "saving", "aligned", "kept", "kept_by_rbp"):
        of_kernel = {above: count for (leaf, above), count in callers.items() if leaf == kernel}
        assert sum(of_kernel.values()) > 150, callers
        assert of_kernel.get("caller main", 0) >= 0.99 * sum(of_kernel.values()), of_kernel
