"""`parprof input` on programs whose input and growth are known, with both tools and both compilers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from input_programs import BUILDS, WORKLOADS, build, measure, parprof, points, sizes
from parprof.errors import ProfileFormatError
from parprof.input import records, runtime
from parprof.input.naming import make_profile
from parprof.instruments import valgrind_tool

__all__ = ["build"]
N = 600
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="for x86-64")


@pytest.fixture(scope="session", params=BUILDS)
def figures(build: Any, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    found = measure(build(WORKLOADS / "input_figures.c", request.param), str(N))
    assert found["tool"] == ("valgrind" if request.param == "valgrind" else "tsan")
    return request.param, found


def test_the_papers_figures(figures: tuple[str, dict[str, Any]]) -> None:
    """Figures 1 to 3, exact."""
    _, found = figures
    assert sizes(found, "figure_1a") == (2, 1, 1, 0)
    assert sizes(found, "figure_1b") == (2, 1, 1, 0)
    assert sizes(found, "h") == (1, 1, 1, 0)
    assert sizes(found, "consumer") == (N, 1, N, 0)
    assert sizes(found, "consume_data") == (1, 1, 1, 0)
    assert sizes(found, "producer") == sizes(found, "produce_data") == (0, 0, 0, 0)
    assert sizes(found, "external_read") == (N // 2, 1, 0, N // 2)


def test_two_threads_that_write_one_cell_in_turn(figures: tuple[str, dict[str, Any]]) -> None:
    """Each reads what the other wrote, but for the first value, which its own thread wrote."""
    _, found = figures
    (point,) = points(found, "take_turns")
    assert (point["calls"], point["trms"], point["rms"]) == (2, N, 1)
    assert point["induced"] == 2 * N - 1


def test_what_came_through_system_calls_is_said(figures: tuple[str, dict[str, Any]]) -> None:
    how, found = figures
    seen, known = found["coverage"]["seen_read_bytes"], found["coverage"]["all_read_bytes"]
    assert seen >= N // 2 * 16 and seen <= known < seen + 8192
    assert seen == N // 2 * 16 or how == "valgrind"  # which sees the loader, too
    seen, known = found["coverage"]["seen_sent_bytes"], found["coverage"]["all_sent_bytes"]
    assert 0 <= seen <= known < 100  # what printf sends is not seen by the hooks


def test_cost_is_in_basic_blocks(figures: tuple[str, dict[str, Any]]) -> None:
    _, found = figures
    assert found["cost_unit"] == "blocks" and found["notes"] == []
    (point,) = points(found, "consume_data")
    assert point["cost_sum"] == N and point["calls"] == N


@pytest.fixture(scope="session", params=BUILDS)
def algorithms(build: Any, request: pytest.FixtureRequest) -> dict[str, Any]:
    return measure(build(WORKLOADS / "input_algorithms.c", request.param))


LAWS = {
    "linear_scan": "n",
    "binary_search": "n",
    "merge_sort": "n log n",
    "insertion_sort": "n^2",
    "matrix_multiply": "n^1.5",
    "triangle": "n^1.5",
    "insert_all": "n",
    "read_rows": "n",
    "misleading": "n",
}


def test_known_algorithms_get_their_law(algorithms: dict[str, Any]) -> None:
    found = {one["name"]: one["fit"] for one in algorithms["routines"]}
    assert {name: found[name]["model"] for name in LAWS} == LAWS
    assert all(found[name]["r2"] > 0.99 for name in LAWS)
    for name in ("merge_sort", "insertion_sort", "matrix_multiply"):
        expected = {"merge_sort": 1.15, "insertion_sort": 2.0, "matrix_multiply": 1.5}[name]
        assert found[name]["exponent"] == pytest.approx(expected, abs=0.1)


def test_two_sizes_and_noise_get_none(algorithms: dict[str, Any]) -> None:
    found = {one["name"]: one["fit"] for one in algorithms["routines"]}
    assert (found["two_sizes"]["model"], found["two_sizes"]["reason"]) == (None, "2 sizes")
    assert (found["noise"]["model"], found["noise"]["reason"]) == (None, "noise")


def test_rms_lies_where_trms_tells(algorithms: dict[str, Any]) -> None:
    """Input through a buffer, as in figures 4 and 5: by rms there is one size, or exponential growth."""
    routines = {one["name"]: one for one in algorithms["routines"]}
    rows, other = routines["read_rows"], routines["misleading"]
    assert rows["fit_rms"]["model"] is None and len({point["rms"] for point in rows["points"]}) <= 2
    assert rows["profile_richness"] >= 3 and rows["external_percent"] > 98
    assert other["fit_rms"]["model"] not in ("constant", "log n", "n", "n log n")
    assert 0.9 < other["input_volume"] < 1


def test_the_advice_names_what_will_hurt_first(algorithms: dict[str, Any]) -> None:
    assert algorithms["advice"].startswith("insertion_sort (input_algorithms.c:")
    assert (
        "grows as n^2" in algorithms["advice"]
        and "10 x the input will take 99 x as long" in algorithms["advice"]
    )


def test_trms_is_never_below_rms(algorithms: dict[str, Any]) -> None:
    for routine in algorithms["routines"]:
        for point in routine["points"]:
            assert point["trms"] >= point["rms"] and point["trms_sum"] >= point["rms_sum"]
            assert point["induced"] + point["external"] <= point["trms_sum"]


ODD = """
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>
static jmp_buf there;
static volatile long cells[64];
static atomic_long shared;
static long racy;
static char stack[1 << 16];
__attribute__((noinline)) void leave(int depth) { if (!depth) longjmp(there, 1); leave(depth - 1); cells[depth]++; }
__attribute__((noinline)) void leap(void) { if (!setjmp(there)) leave(20); }
__attribute__((noinline)) long after(const long *values) { return values[0] + values[1] + values[2]; }
static void on_signal(int number) { cells[number % 64]++; }
static void *race(void *unused) {
    for (int at = 0; at < 20000; at++) { atomic_fetch_add(&shared, 1); racy++; cells[at % 64]++; }
    return unused;
}
int main(int argc, char **argv) {
    static long values[3] __attribute__((aligned(64))) = {1, 2, 3};
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    pthread_t threads[4];
    long sum = 0;
    sigaltstack(&other, 0);
    sigaction(SIGUSR1, &action, 0);
    for (int at = 0; at < 50; at++) { leap(); raise(SIGUSR1); sum += after(values); }
    for (int turn = 0; turn < 5; turn++) {
        for (int at = 0; at < 4; at++) pthread_create(&threads[at], 0, race, 0);
        for (int at = 0; at < 4; at++) pthread_join(threads[at], 0);
    }
    if (!fork()) { cells[0] = after(values); printf("child\\n"); fflush(stdout); _exit(0); }
    wait(0);
    printf("%ld %ld\\n", sum, atomic_load(&shared));
    if (argc > 1) { fflush(stdout); for (;;) cells[0] += after(values); }
    return 3;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_odd_programs_run_as_without_it(build: Any, how: str, tmp_path: Path) -> None:
    """longjmp, signals on another stack, races, atomics, threads that end, fork: counted, and unharmed."""
    source = tmp_path / "odd.c"
    source.write_text(ODD)
    program = build(source, how, "-lpthread")
    done = parprof("input", "-q", "-o", tmp_path / "out.json", "--", program)
    assert done.returncode == 3, done.stderr.decode()
    assert done.stdout.startswith(b"child\n300 400000\n")
    found = json.loads((tmp_path / "out.json").read_bytes())
    assert found["totals"]["processes"] == 2 and found["totals"]["threads"] >= 22
    (routine,) = (one for one in found["routines"] if one["name"] == "after")
    assert routine["calls"] == 51
    assert {(point["trms"], point["rms"]) for point in routine["points"]} == {(3, 3)}
    (leap,) = (one for one in found["routines"] if one["name"] == "leap")
    assert leap["calls"] == 50


THROWS = """
#include <stdexcept>
static volatile long cells[64];
__attribute__((noinline)) long deep(int n) { if (!n) throw std::runtime_error("no"); return deep(n - 1) + cells[n]; }
__attribute__((noinline)) long guarded(int n) { try { return deep(n); } catch (std::exception &) { return cells[0]; } }
__attribute__((noinline)) long after() { return cells[1] + cells[32]; }
int main() {
    long sum = 0;
    for (int at = 0; at < 200; at++) { sum += guarded(at % 40 + 1); sum += after(); }
    return sum;
}
"""


@pytest.mark.parametrize("how", ["valgrind", "gcc", "clang"])
def test_routines_left_by_an_exception_end(build: Any, how: str, tmp_path: Path) -> None:
    source = tmp_path / "throws.cpp"
    source.write_text(THROWS)
    found = measure(build(source, how, "-lstdc++"))
    calls = {one["name"]: one["calls"] for one in found["routines"]}
    assert (calls["deep(int)"], calls["guarded(int)"], calls["after()"]) == (4300, 200, 200)
    (point,) = points(found, "after()")
    assert (point["trms"], point["rms"]) == (2, 2)


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
def test_a_killed_program_leaves_what_it_had(build: Any, how: str, tmp_path: Path) -> None:
    source = tmp_path / "odd.c"
    source.write_text(ODD)
    program = build(source, how, "-lpthread")
    scratch = tmp_path / "records"
    scratch.mkdir()
    start = runtime.plan("auto", [str(program), "on"], scratch)
    with subprocess.Popen(
        start.command, env={**os.environ, **start.environment}, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        while b"400000" not in child.stdout.readline():
            assert child.poll() is None
        time.sleep(0.2)
        child.send_signal(signal.SIGKILL)
    found = [records.read(path) for path in records.find(scratch)]
    (killed,) = (record for record in found if not record.is_closed)
    profile = make_profile([killed], "odd on")
    (after,) = (one for identity, one in profile.routines.items() if identity.name == "after")
    assert after.total().calls > 50 and after.total().trms_sum == 3 * after.total().calls


def test_a_killed_program_is_told(build: Any, tmp_path: Path) -> None:
    source = tmp_path / "abort.c"
    source.write_text(
        "#include <stdlib.h>\nstatic volatile long x; __attribute__((noinline)) long f(void) { return x; }\n"
        "int main(void) { for (int at = 0; at < 9; at++) f(); abort(); }\n"
    )
    done = parprof("input", "-q", "--", build(source, "gcc"))
    assert done.returncode == 128 + signal.SIGABRT
    assert b"note: the command was killed (exit code 134)" in done.stdout and b" f (abort.c:2)" in done.stdout


def test_tasks_of_libgomp_pass_their_arguments_on(build: Any, tmp_path: Path) -> None:
    """What the runtime copies for a task was written by the thread that made the task."""
    source = tmp_path / "tasks.c"
    source.write_text(
        "static volatile long sum;\n"
        "__attribute__((noinline)) void body(long a, long b) { __atomic_fetch_add(&sum, a + b, 5); }\n"
        "int main(void) {\n#pragma omp parallel num_threads(2)\n#pragma omp single\n"
        "  for (long at = 0; at < 500; at++) {\n#pragma omp task firstprivate(at)\n    body(at, 1);\n  }\n"
        "  return sum != 125250;\n}\n"
    )
    found = measure(build(source, "gcc", "-fopenmp"))
    outlined = [one for one in found["routines"] if one["name"].startswith("main._omp_fn")]
    tasks = next(one for one in outlined if one["calls"] == 500)
    assert all(point["rms"] >= 1 for point in tasks["points"])


def test_runs_add_up_and_are_read_again(build: Any, tmp_path: Path) -> None:
    program = build(WORKLOADS / "input_figures.c", "gcc")
    first, second, page = tmp_path / "first.json", tmp_path / "second.json.gz", tmp_path / "page.html"
    assert parprof("input", "-q", "-o", first, "--", program, "100").returncode == 0
    done = parprof("input", "-q", "--with", first, "-o", second, "--html", page, "--", program, "200")
    assert done.returncode == 0 and b"2 runs" in done.stdout
    report = parprof("report", second)
    assert report.returncode == 0 and report.stdout in done.stdout
    as_json = json.loads(parprof("report", "--json", second).stdout)
    assert sorted(point["trms"] for point in points(as_json, "consumer")) == [100, 200]
    assert b"<svg" in page.read_bytes() and b"Content-Security-Policy" in page.read_bytes()
    again = tmp_path / "again.html"
    assert parprof("report", "--html", again, second).returncode == 0
    assert again.read_bytes() == page.read_bytes()


def test_threads_are_told_apart(build: Any, tmp_path: Path) -> None:
    """Two threads that read one cell in turn; with all merged, one routine has both."""
    program, output = build(WORKLOADS / "input_figures.c", "gcc"), tmp_path / "threads.json"
    done = parprof("input", "--by-thread", "-q", "-o", output, "--", program, "60")
    assert done.returncode == 0 and b" in thread 0" in done.stdout
    found = json.loads(output.read_bytes())
    turns = [one for one in found["routines"] if one["name"] == "take_turns"]
    assert [one["calls"] for one in turns] == [1, 1] and len({one["thread"] for one in turns}) == 2
    assert sorted(one["points"][0]["induced"] for one in turns) == [59, 60]
    assert json.loads(parprof("report", "--json", output).stdout) == found


def test_a_routine_is_plotted(build: Any) -> None:
    program = build(WORKLOADS / "input_algorithms.c", "gcc")
    done = parprof("input", "-q", "--routine", "^insertion", "--", program)
    text = done.stdout.decode()
    assert "insertion_sort (input_algorithms.c:" in text and "n (input, cells)" in text
    assert "merge_sort" not in text
    missing = parprof("input", "-q", "--routine", "insertoin_srt", "--", program)
    assert missing.returncode == 2
    assert b"matches none of" in missing.stderr and b"near it: insertion_sort" in missing.stderr


def test_a_program_not_built_for_it_is_told_how(build: Any) -> None:
    done = parprof("input", "--tool", "tsan", "--", build(WORKLOADS / "input_figures.c", "valgrind"))
    assert done.returncode == 2
    assert b"not built for --tool tsan: compile and link it by `parprof cc --input -- gcc ...`" in done.stderr


def test_an_unknown_hook_is_refused_by_name(tmp_path: Path) -> None:
    source = tmp_path / "hooks.c"
    source.write_text(
        "void __tsan_func_entry(void *); void __tsan_of_the_future(void);\n"
        "int main(void) { __tsan_func_entry(0); __tsan_of_the_future(); return 0; }\n"
    )
    program = tmp_path / "hooks"
    future = tmp_path / "libfuture.so"
    (tmp_path / "future.c").write_text("void __tsan_of_the_future(void) {}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", future, tmp_path / "future.c"], check=True)
    command = ["gcc", "-o", program, source, future, f"-L{runtime.library_directory()}", "-ltsan"]
    subprocess.run(command, check=True)
    done = parprof("input", "--", program)
    assert done.returncode == 2 and b"calls __tsan_of_the_future, which the runtime" in done.stderr


def test_without_valgrind_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(valgrind_tool, "HEADERS", tmp_path / "none")
    with pytest.raises(Exception, match="apt install valgrind libc6-dbg gcc"):
        valgrind_tool.start(tmp_path)


def test_a_process_cannot_be_attached_to() -> None:
    done = parprof("input", "--", "1")
    assert done.returncode == 2 and b"cannot attach" in done.stderr
    assert parprof("input").returncode == 2
    assert parprof("input", "--", "/no/such/program").returncode == 127


def test_without_parprof_the_program_just_runs(build: Any) -> None:
    program = build(WORKLOADS / "input_figures.c", "gcc")
    assert subprocess.run([program, "10"], capture_output=True, timeout=60).returncode == 0


GIVES_BACK = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
enum { N = 2 << 20, TURNS = 24 };
static volatile long sink;
__attribute__((noinline)) void fill(long *to, long n) { for (long at = 0; at < n; at++) to[at] = at; }
__attribute__((noinline)) long sum(const long *from, long n) {
    long s = 0; for (long at = 0; at < n; at++) s += from[at]; return s;
}
static long high_mb(void) {
    char line[256]; long kb = 0; FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file)) if (!strncmp(line, "VmHWM:", 6)) kb = atol(line + 6);
    fclose(file); return kb >> 10;
}
int main(int argc, char **argv) {
    char *place = (char *)(0x100000000000);
    for (long turn = 0; turn < TURNS; turn++) { /* each time elsewhere */
        long *values = mmap(place + turn * 8l * N, 8l * N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fill(values, N); sink = sum(values, N);
        if (turn % 2) munmap(values, 8l * N); else madvise(values, 8l * N, MADV_DONTNEED);
    }
    long *grown = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(grown, 1000);
    mprotect((char *)grown + (1 << 20), 1 << 20, PROT_NONE); /* so it has to move */
    grown = mremap(grown, 1 << 20, 4 << 20, MREMAP_MAYMOVE);
    sink = sum(grown, 1000);
    printf("%ld\\n", high_mb());
    return 0;
}
"""


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
def test_memory_that_is_given_back_costs_none(build: Any, how: str, tmp_path: Path) -> None:
    """24 times 16 MB, one after the other, would have a shadow of twice as much each."""
    source = tmp_path / "gives_back.c"
    source.write_text(GIVES_BACK)
    program = build(source, how)
    done = parprof("input", "-q", "-o", tmp_path / "out.json", "--", program)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout.split()[0]) < 48 + (60 if how == "valgrind" else 12)
    found = json.loads((tmp_path / "out.json").read_bytes())
    (main,) = points(found, "main")
    assert main["trms"] < 500  # of libc; it wrote all else that it reads, also what moved
    assert [point["trms"] // 100 for point in points(found, "sum")] == [10, 20971]


CALLED = """
#include <stdlib.h>
static volatile long sink;
__attribute__((noinline)) long sum(const long *from, long n) { long s = 0; while (n--) s += from[n]; return sink = s; }
__attribute__((noinline)) long few(const long *from, long n) { return sum(from, n) + 1; }
__attribute__((noinline)) long pairs(const long *from, long n) {
    long s = 0; for (long i = 0; i < n; i++) s += sum(from, n); return s + 1;
}
__attribute__((noinline)) long deep(const long *from, long n) { return n ? deep(from, n - 1) + 1 : few(from, 3); }
int main(void) {
    long *values = malloc(8000);
    for (long at = 0; at < 1000; at++) values[at] = at;
    for (long n = 10; n <= 100; n += 10) { sink = few(values, n); sink = pairs(values, n); }
    sink = deep(values, 50);
    return 0;
}
"""


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
def test_contexts_tell_callers_apart(build: Any, how: str, tmp_path: Path) -> None:
    source, output = tmp_path / "called.c", tmp_path / "called.json"
    source.write_text(CALLED)
    program = build(source, how)
    done = parprof("input", "--contexts", "-q", "-o", output, "--routine", "^(sum|few|deep)$", "--", program)
    assert done.returncode == 0, done.stderr.decode()
    assert b"sum (called.c:4) called by pairs < main" in done.stdout
    found = json.loads(output.read_bytes())
    own = [one for one in found["routines"] if one["name"] in ("sum", "few", "deep")]
    calls = {
        (one["name"], tuple(one["callers"][one["callers"].index("main") :])): one["calls"] for one in own
    }
    assert calls == {
        ("sum", ("main", "few")): 10,
        ("sum", ("main", "pairs")): 550,
        ("sum", ("main", "deep", "few")): 1,
        ("few", ("main",)): 10,
        ("few", ("main", "deep")): 1,
        ("deep", ("main",)): 51,
    }
    assert json.loads(parprof("report", "--json", output).stdout) == found
    plain = measure(program)
    assert sum(one["calls"] for one in plain["routines"] if one["name"] == "sum") == 561
    assert all(one["callers"] == [] for one in plain["routines"])


LOADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ucontext.h>
#include <stdlib.h>
static volatile long sink;
static ucontext_t main_stack, other_stack;
__attribute__((noinline)) long after(const long *values) { return values[0] + values[1] + values[2]; }
static void other(void) { for (;;) { sink = after((long[]){1, 2, 3}); swapcontext(&other_stack, &main_stack); } }
int main(int argc, char **argv) {
    static long values[3] = {1, 2, 3};
    for (int turn = 0; turn < 3; turn++) {
        void *plug = dlopen(argv[1], RTLD_NOW);
        long (*plugged)(const long *) = dlsym(plug, "plugged");
        for (int at = 0; at < 5; at++) sink = plugged(values);
        dlclose(plug);
    }
    getcontext(&other_stack);
    other_stack.uc_stack.ss_size = 1 << 16;
    other_stack.uc_stack.ss_sp = malloc(1 << 16);
    makecontext(&other_stack, other, 0);
    for (int at = 0; at < 100; at++) { swapcontext(&main_stack, &other_stack); sink = after(values); }
    return 5;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_plugins_and_stacks_that_move(build: Any, how: str, tmp_path: Path) -> None:
    """A library that is loaded three times, and a coroutine on memory of malloc's."""
    source, plug, output = tmp_path / "loads.c", tmp_path / "plug.c", tmp_path / "loads.json"
    source.write_text(LOADS)
    plug.write_text("long plugged(const long *values) { return values[0] + values[2]; }\n")
    library = build(plug, how, "-shared", "-fPIC")
    done = parprof("input", "-q", "-o", output, "--", build(source, how), library)
    assert done.returncode == 5, done.stderr.decode()
    found = json.loads(output.read_bytes())
    calls = {one["name"]: one["calls"] for one in found["routines"]}
    assert (calls["plugged"], calls["after"]) == (15, 200)
    assert {(point["trms"], point["rms"]) for point in points(found, "plugged")} == {(2, 2)}
    assert {point["trms"] for point in points(found, "after")} == {3}


def test_memory_that_ends_under_the_shadow_is_said(build: Any, tmp_path: Path) -> None:
    """The program goes on, and what it then reads is not counted."""
    source = tmp_path / "ends.c"
    source.write_text(
        "#include <sys/resource.h>\n#include <stdio.h>\nstatic volatile long big[32 << 20];\n"
        "__attribute__((noinline)) long touch(long at) { return ++big[at]; }\n"
        "int main(void) {\n  struct rlimit none = {1 << 20, 1 << 20}; long sum = touch(0);\n"
        "  setrlimit(RLIMIT_AS, &none);\n  for (long at = 0; at < 32 << 20; at += 4096) sum += touch(at);\n"
        '  printf("%ld\\n", sum);\n  return 0;\n}\n'
    )
    done = parprof("input", "-q", "--", build(source, "gcc"))
    assert done.returncode == 0 and done.stdout.startswith(b"8194\n"), done.stderr.decode()
    assert b"there was no memory for what it reads; part of its input was not counted" in done.stdout
    assert b" 8,193 " in done.stdout  # calls are counted all the same


def test_without_a_compiler_the_package_is_named(build: Any, tmp_path: Path) -> None:
    program = build(WORKLOADS / "input_figures.c", "gcc")
    environment = {**os.environ, "PATH": str(tmp_path), "PARPROF_CACHE": str(tmp_path / "cache")}
    done = parprof("input", "--tool", "tsan", "--", program, env=environment)
    assert done.returncode and b"apt install gcc" in done.stderr, done.stderr.decode()


def test_without_memory_for_the_shadow_it_says_so(build: Any) -> None:
    program = build(WORKLOADS / "input_figures.c", "gcc")
    command = f"ulimit -v 150000; exec {program} 10"
    with tempfile.TemporaryDirectory() as scratch:
        start = runtime.plan("tsan", [str(program), "10"], Path(scratch))
        environment = {**os.environ, **start.environment}
        done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr  # it runs on, uncounted
        (path,) = records.find(Path(scratch))
        with pytest.raises(ProfileFormatError, match="no memory"):
            records.read(path)


def test_selects_of_sqlite_are_linear_in_what_they_read(tmp_path: Path) -> None:
    """The paper's mysql_select: rows come through a cache of pages, so that rms ends to grow with the table."""
    rows = (100, 200, 400, 800, 1600, 3200, 6400)
    database, queries = tmp_path / "tables.db", tmp_path / "queries.sql"
    with sqlite3.connect(database) as connection:
        for n in rows:
            connection.execute(f"create table t{n}(a integer primary key, b text)")
            connection.executemany(f"insert into t{n}(b) values(?)", [(f"row {at} " * 4,) for at in range(n)])
    connection.close()
    queries.write_text("".join(f"select * from t{n};\n" for n in rows))
    output = tmp_path / "sqlite.json"
    command = ["sqlite3", "-cmd", "pragma cache_size=20", database, f".read {queries}"]
    done = parprof("input", "--tool", "valgrind", "-q", "-o", output, "--", *command)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(output.read_bytes())
    selects = [
        one
        for one in found["routines"]
        if len(one["points"]) in (7, 8) and one["inclusive_percent"] > 50 and one["external_percent"] > 50
    ]
    assert selects
    for select in selects:
        assert select["fit"]["model"] == "n", select["name"]
        assert select["fit"]["exponent"] == pytest.approx(1.0, abs=0.1)
        largest = select["points"][-3:]
        assert largest[2]["trms"] > 3 * largest[0]["trms"] and largest[2]["rms"] < 1.2 * largest[0]["rms"]


def test_children_are_counted_too(build: Any, tmp_path: Path) -> None:
    program = build(WORKLOADS / "input_figures.c", "valgrind")
    done = parprof("input", "-q", "-o", tmp_path / "o.json", "--", "sh", "-c", f"{program} 20; true")
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads((tmp_path / "o.json").read_bytes())
    assert sizes(found, "consumer")[0] == 20 and found["totals"]["processes"] >= 2
