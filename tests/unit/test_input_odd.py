"""`parprof input` on odd programs, and where something is missing: memory, a compiler, Valgrind, hooks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from input_programs import BUILDS, WORKLOADS, build, measure, parprof, points
from parprof.errors import ProfileFormatError
from parprof.input import records, runtime
from parprof.input.naming import make_profile
from parprof.instruments import valgrind_tool

__all__ = ["build"]
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="for x86-64")


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


FORTRAN = """
module m
contains
subroutine insertion(a)
  real(8), intent(inout) :: a(:)
  integer :: i, j
  real(8) :: k
  do i = 2, size(a)
    k = a(i)
    j = i - 1
    do while (j >= 1)
      if (a(j) <= k) exit
      a(j + 1) = a(j)
      j = j - 1
    end do
    a(j + 1) = k
  end do
end subroutine
end module
program p
  use m
  real(8) :: x(640)
  integer :: n
  do n = 1, 640
    x(n) = -n
  end do
  n = 10
  do while (n <= 640)
    call insertion(x(1:n))
    x(1:n) = -x(1:n)
    n = n * 2
  end do
end program
"""


@pytest.mark.skipif(shutil.which("gfortran") is None, reason="no gfortran")
def test_fortran_has_hooks_without_a_warning(tmp_path: Path) -> None:
    """Flags for C alone are errors of its compiler under -Werror."""
    source, program = tmp_path / "sort.f90", tmp_path / "sort"
    source.write_text(FORTRAN)
    built = parprof(
        "cc", "--input", "--", "gfortran", "-O1", "-g", "-Werror", "-J", tmp_path, "-o", program, source
    )
    assert built.returncode == 0 and not built.stderr, built.stderr.decode()
    found = measure(program)
    assert found["totals"]["processes"] == 1
    assert len(points(found, "__m_MOD_insertion")) == 7


LOOP = """
long values[(1 << 12) + 3];
static volatile long sum;
__attribute__((noinline)) void sums(long n) {
    long found = 0;
    for (long at = 0; at < n; at++) found += values[at];
    sum = found;
}
int main(void) {
    for (long n = 1 << 6; n <= 1 << 12; n *= 2) sums(n + 3);
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_each_round_of_a_loop_is_a_block(build: Any, how: str, tmp_path: Path) -> None:
    """Valgrind puts several rounds of a short loop into one piece of code: they had the cost of one."""
    source = tmp_path / "loop.c"
    source.write_text(LOOP)
    for one in points(measure(build(source, how, "-fno-unroll-loops", "-fno-tree-vectorize")), "sums"):
        assert 0 <= one["cost_max"] - one["trms"] <= 6, one


REPEATED = """
#include <stddef.h>
static char from[1 << 17], to[1 << 17];
static volatile long sum;
#define PLAIN __attribute__((noinline))
PLAIN void bytes(size_t n) {
    char *at = to, *source = from;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(source), "+c"(n) : : "memory");
}
PLAIN void words(size_t n) {
    char *at = to, *source = from;
    n /= 8;
    __asm__ volatile("rep movsq" : "+D"(at), "+S"(source), "+c"(n) : : "memory");
}
PLAIN void fills(size_t n) {
    char *at = to;
    for (size_t cell = 0; cell < n; cell += 8) sum += *(volatile long *)(to + cell);
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(n) : "a"(1) : "memory");
}
int main(void) {
    for (size_t n = 1 << 9; n <= 1 << 16; n *= 2) { bytes(n + 40); bytes(n); words(n); fills(n + 24); }
    return 0;
}
"""


def test_repeated_moves_cost_what_loops_of_vectors_do(build: Any, tmp_path: Path) -> None:
    """libc copies and clears blocks of some kB by them: a block for each byte there would be a step in any law.

    A block for each 128 bytes, as of libc's loops below that size.
    """
    source = tmp_path / "repeated.c"
    source.write_text(REPEATED)
    found = measure(build(source, "valgrind"))
    for name in ("bytes", "words"):
        sizes = points(found, name)
        assert len(sizes) >= 8
        for one in sizes:
            assert 0 <= one["cost_max"] - one["trms"] * 8 / 128 <= 6, (name, one)
    # with its own loop over cells, of which Valgrind makes a block of several rounds
    assert all(one["cost_max"] <= one["trms"] * (1 + 8 / 128) + 8 for one in points(found, "fills"))


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
    assert [(point["trms"], point["calls"]) for point in points(found, "on_signal")] == [(1, 50)]


LIVES = """
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static volatile long cells[64];
static sigjmp_buf there;
__attribute__((noinline)) long after(void) { return cells[1] + cells[9]; }
static void on_fault(int number) { siglongjmp(there, number); }
static void on_tick(int number) { cells[number]++; }
static void *leaves(void *unused) { after(); pthread_exit(unused); }
static void *waits(void *unused) { after(); for (;;) pause(); return unused; }
static void *goes(void *unused) { after(); return unused; }
int main(int argc, char **argv)
{
    struct sigaction fault = {.sa_handler = on_fault}, tick = {.sa_handler = on_tick};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    char *arguments[] = {argv[0], "child", 0};
    pthread_attr_t detached;
    pthread_t thread;
    pid_t child;
    int status;

    if (argc > 1) { after(); return 4; }
    sigaction(SIGSEGV, &fault, 0);
    for (int at = 0; at < 20; at++)
        if (!sigsetjmp(there, 1)) *(volatile int *)8 = 1; else after();
    for (int at = 0; at < 10; at++) { pthread_create(&thread, 0, leaves, 0); pthread_join(thread, 0); }
    for (int at = 0; at < 10; at++) {
        pthread_create(&thread, 0, waits, 0);
        usleep(2000);
        pthread_cancel(thread);
        pthread_join(thread, 0);
    }
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (int at = 0; at < 10; at++) pthread_create(&thread, &detached, goes, 0);
    sigaction(SIGPROF, &tick, 0);
    setitimer(ITIMER_PROF, &often, 0);
    for (long at = 0; at < 500000; at++) cells[at % 64]++;
    setitimer(ITIMER_PROF, &never, 0);
    posix_spawn(&child, argv[0], 0, 0, arguments, environ);
    waitpid(child, &status, 0);
    printf("%d ", WEXITSTATUS(status));
    if (!(child = vfork())) { execv(argv[0], arguments); _exit(9); }
    waitpid(child, &status, 0);
    printf("%d ", WEXITSTATUS(status));
    fflush(stdout);
    if (!(child = fork())) abort();
    waitpid(child, &status, 0);
    printf("%d ", WTERMSIG(status));
    fflush(stdout);
    printf("%d\\n", WEXITSTATUS(system("exit 3")));
    fflush(stdout);
    quick_exit(7);
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_lives_of_threads_and_processes(build: Any, how: str, tmp_path: Path) -> None:
    """Faults that are jumped out of, pthread_exit, cancellation, detached threads, a timer; spawn, vfork, an abort."""
    source = tmp_path / "lives.c"
    source.write_text(LIVES)
    done = parprof("input", "-q", "-o", tmp_path / "out.json", "--", build(source, how, "-lpthread", "-w"))
    assert done.returncode == 7, done.stderr.decode()
    assert done.stdout.startswith(b"4 4 6 3\n")
    found = json.loads((tmp_path / "out.json").read_bytes())
    assert found["notes"] == [] and found["totals"]["processes"] >= 3
    (routine,) = (one for one in found["routines"] if one["name"] == "after")
    assert 50 <= routine["calls"] <= 52  # of detached threads, some may not have begun
    assert {(point["trms"], point["rms"]) for point in routine["points"]} == {(2, 2)}
    mine = (one for one in found["routines"] if one["module"] == routine["module"])  # the shell has one, too
    (main,) = (one for one in mine if one["name"] == "main")
    assert main["calls"] >= 3


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


STRINGS = """
#include <string>
#include <vector>
static volatile long sink;
__attribute__((noinline)) void size(const std::vector<std::string> &all) { for (auto &one : all) sink += one.size(); }
int main() { size(std::vector<std::string>(9, "x")); return 0; }
"""


def test_names_of_c_plus_plus_have_no_defaults(build: Any, tmp_path: Path) -> None:
    """The advice was a sentence of a name: basic_string<char, char_traits ... >, allocator<basic_string< ..."""
    source = tmp_path / "strings.cpp"
    source.write_text(STRINGS)
    found = measure(build(source, "gcc", "-lstdc++"))
    assert [
        one["calls"] for one in found["routines"] if one["name"] == "size(std::vector<std::string> const&)"
    ] == [1]


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


@pytest.mark.parametrize("how", BUILDS)
def test_a_plugin_that_was_loaded_by_a_relative_path_has_its_names(
    build: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader has it by that path: its routines were addresses in [unknown]."""
    source, plug = tmp_path / "loads.c", tmp_path / "plug.c"
    source.write_text(LOADS)
    plug.write_text("long plugged(const long *values) { return values[0] + values[2]; }\n")
    library = build(plug, how, "-shared", "-fPIC")
    program = build(source, how)
    monkeypatch.chdir(library.parent)
    output = tmp_path / "relative.json"
    done = parprof("input", "-q", "-o", output, "--", program, f"./{library.name}")
    assert done.returncode == 5, done.stderr.decode()
    found = json.loads(output.read_bytes())
    (plugged,) = (one for one in found["routines"] if one["name"] == "plugged")
    assert plugged["calls"] == 15 and plugged["file"].endswith("plug.c")


@pytest.mark.skipif(shutil.which("clang") is None, reason="no clang")
def test_clang_has_nothing_to_say_where_it_links(tmp_path: Path) -> None:
    """Flags for what it compiles are unused there: a warning, and under -Werror an error of configure scripts."""
    source, part, program = tmp_path / "a.c", tmp_path / "a.o", tmp_path / "a"
    source.write_text("int main(void) { return 0; }\n")
    for words in (["-c", "-o", part, source], ["-Werror", "-o", program, part]):
        built = parprof("cc", "--input", "--", "clang", *words)
        assert built.returncode == 0 and not built.stderr, built.stderr.decode()


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


ENDS = """
#include <sys/resource.h>
#include <stdio.h>
static volatile long big[32 << 20];
__attribute__((noinline)) long touch(long at) { return ++big[at]; }
int main(void)
{
    struct rlimit none = {1 << 20, 1 << 20};
    long sum = touch(0);
    setrlimit(RLIMIT_AS, &none);
    for (long at = 0; at < 32 << 20; at += 4096) sum += touch(at);
    printf("%ld\\n", sum);
    return 0;
}
"""


def test_memory_that_ends_under_the_shadow_is_said(build: Any, tmp_path: Path) -> None:
    """The program goes on, and what it then reads is not counted."""
    source = tmp_path / "ends.c"
    source.write_text(ENDS)
    done = parprof("input", "-q", "--", build(source, "gcc"))
    assert done.returncode == 0 and done.stdout.startswith(b"8194\n"), done.stderr.decode()
    assert b"there was no memory for what it reads; part of its input was not counted" in done.stdout
    assert b" 8,193 " in done.stdout  # calls are counted all the same


def test_memory_that_ends_under_valgrind_is_said(build: Any, tmp_path: Path) -> None:
    """Valgrind itself needs memory all the time, and gives up. What was counted until then is reported."""
    source = tmp_path / "ends.c"
    source.write_text(ENDS)
    done = parprof("input", "-q", "--", build(source, "valgrind"))
    assert done.returncode == 1 and b"Valgrind's memory management: out of memory" in done.stderr
    assert b"there was no memory for what it reads; part of its input was not counted" in done.stdout
    assert b"did not come to its end (exit code 1)" in done.stdout and b" touch (ends.c:5)" in done.stdout


def test_without_memory_for_the_record_it_says_so(build: Any, tmp_path: Path) -> None:
    program = build(WORKLOADS / "input_figures.c", "valgrind")
    start = runtime.plan("valgrind", [str(program), "10"], tmp_path)
    command = ["sh", "-c", f"ulimit -v 200000; exec {' '.join(start.command)}"]
    done = subprocess.run(command, env={**os.environ, **start.environment}, capture_output=True, timeout=60)
    assert done.returncode == 1 and b"no memory or no space for the record" in done.stderr


def test_without_a_compiler_the_package_is_named(build: Any, tmp_path: Path) -> None:
    program = build(WORKLOADS / "input_figures.c", "gcc")
    environment = {**os.environ, "PATH": str(tmp_path), "PARPROF_CACHE": str(tmp_path / "cache")}
    done = parprof("input", "--tool", "tsan", "--", program, env=environment)
    assert done.returncode and b"apt install gcc" in done.stderr, done.stderr.decode()


@pytest.mark.parametrize("kb", [200_000, 400_000])
def test_without_memory_for_the_record_or_its_threads_it_says_so(build: Any, kb: int) -> None:
    """Where there was some for the record but none for threads, all that it said was the program's exit code."""
    program = build(WORKLOADS / "input_figures.c", "gcc")
    limited = [
        "prlimit",
        f"--as={kb << 10}",
        sys.executable,
        "-m",
        "parprof",
        "input",
        "-q",
        "--",
        str(program),
        "10",
    ]
    done = subprocess.run(limited, capture_output=True, timeout=120)
    assert done.returncode == 1 and b"no memory" in done.stderr and b"ulimit -v" in done.stderr, done.stderr


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
