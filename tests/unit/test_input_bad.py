"""`parprof input` where programs end early, become others, are short of something, or have stacks of odd kinds."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon_process import keep_compiled
from input_programs import BUILDS, WORKLOADS, build, measure, parprof, points

__all__ = ["build"]
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="for x86-64")

KILLED = """
#include <signal.h>
static volatile long cells[8] __attribute__((aligned(64)));
__attribute__((noinline)) long three(void) { return cells[0] + cells[3] + cells[7]; }
int main(void) { long sum = 0; for (int at = 0; at < 9; at++) sum += three(); raise(SIGKILL); return sum; }
"""


@pytest.mark.parametrize("how", BUILDS)
def test_a_killed_program_is_marked_in_the_file(build: Any, how: str, tmp_path: Path) -> None:
    source, output = tmp_path / "killed.c", tmp_path / "killed.json"
    source.write_text(KILLED)
    done = parprof("input", "-q", "-o", output, "--", build(source, how))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr.decode()
    assert b"note: the command was killed (exit code 137): routines that were running then" in done.stdout
    found = json.loads(output.read_bytes())
    assert any("was killed (exit code 137)" in note for note in found["notes"])
    assert [(one["trms"], one["rms"], one["calls"]) for one in points(found, "three")] == [(3, 3, 9)]
    assert b"was killed (exit code 137)" in parprof("report", output).stdout


NEW_PROCESSOR = """
static volatile long cells[8] __attribute__((aligned(64)));
__attribute__((noinline)) long three(void) { return cells[0] + cells[3] + cells[7]; }
int main(void)
{
    long sum = 0;
    for (int at = 0; at < 9; at++) sum += three();
    __asm__ volatile("vpxord %zmm1, %zmm1, %zmm1"); /* AVX-512, which Valgrind has not */
    return sum;
}
"""


def test_an_instruction_that_valgrind_does_not_know_is_told(build: Any, tmp_path: Path) -> None:
    """A program that was built for this very processor ends under Valgrind, and nowhere else."""
    source = tmp_path / "new_processor.c"
    source.write_text(NEW_PROCESSOR)
    done = parprof("input", "-q", "--", build(source, "valgrind"))
    assert done.returncode == 128 + signal.SIGILL
    assert b"an instruction that Valgrind does not know" in done.stdout and b"-march=native" in done.stdout
    assert b"three (new_processor.c" in done.stdout


RUNS_ON = """
#include <unistd.h>
static volatile long cells[8] __attribute__((aligned(64)));
__attribute__((noinline)) long three(void) { return cells[0] + cells[3] + cells[7]; }
int main(void) { for (long at = 0;; at++) { three(); if (at == 1000) write(1, "on\\n", 3); } }
"""


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal_it_shows_what_it_has(
    build: Any, how: str, number: signal.Signals, tmp_path: Path
) -> None:
    source, output = tmp_path / "runs_on.c", tmp_path / "on.json"
    source.write_text(RUNS_ON)
    program = build(source, how)
    command = [sys.executable, "-m", "parprof", "input", "-q", "-o", output, "--", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"on\n"
        child.send_signal(number)
        told = child.stdout.read()
    assert child.returncode == 128 + number
    assert f"stopped by signal {int(number)}".encode() in told
    found = json.loads(output.read_bytes())
    most = max(points(found, "three"), key=lambda one: one["calls"])  # one call may have been under way
    assert (most["trms"], most["rms"]) == (3, 3) and most["calls"] >= 1000
    assert len(found["notes"]) == 1


BECOMES = """
#include <unistd.h>
static volatile long cells[8] __attribute__((aligned(64)));
__attribute__((noinline)) long three(void) { return cells[0] + cells[3] + cells[7]; }
int main(int argc, char **argv)
{
    for (int at = 0; at < 9; at++) three();
    if (argc > 1) execl(argv[1], argv[1], (char *)0);
    return 6;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_a_program_that_becomes_another(build: Any, how: str, tmp_path: Path) -> None:
    """One that is counted too adds to it; of one that is not, a line says so. Valgrind counts any."""
    source, output = tmp_path / "becomes.c", tmp_path / "becomes.json"
    source.write_text(BECOMES)
    program = build(source, how)
    done = parprof("input", "-q", "-o", output, "--", program, program)
    found = json.loads(output.read_bytes())
    assert done.returncode == 6 and found["notes"] == [], done.stderr.decode()
    assert sum(one["calls"] for one in points(found, "three")) == 18
    done = parprof("input", "-q", "-o", output, "--", program, shutil.which("true") or "")
    found = json.loads(output.read_bytes())
    assert done.returncode == 0 and points(found, "three")[0]["calls"] == 9
    assert [("became a program that is not counted" in note) for note in found["notes"]] == (
        [] if how == "valgrind" else [True]
    )


FORKS = """
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long cells[8] __attribute__((aligned(64))), busy[64] __attribute__((aligned(64)));
static volatile int stop __attribute__((aligned(64)));
__attribute__((noinline)) long three(void) { return cells[0] + cells[3] + cells[7]; }
static void *works(void *unused) { for (long at = 0; !stop; at++) busy[at % 64]++; return unused; }
static void *in_child(void *unused) { three(); return unused; }
int main(void)
{
    pthread_t threads[2], other;
    int status, bad = 0;
    for (int at = 0; at < 2; at++) pthread_create(&threads[at], 0, works, 0);
    for (int at = 0; at < 8; at++) {
        pid_t child = fork();
        if (!child) {
            three();
            pthread_create(&other, 0, in_child, 0);
            pthread_join(other, 0);
            return 5;
        }
        waitpid(child, &status, 0);
        bad |= WEXITSTATUS(status) != 5;
    }
    stop = 1;
    for (int at = 0; at < 2; at++) pthread_join(threads[at], 0);
    return bad;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_fork_beside_threads_that_work(build: Any, how: str, tmp_path: Path) -> None:
    """The child has one thread, then another of its own, and a record of its own."""
    source = tmp_path / "forks.c"
    source.write_text(FORKS)
    found = measure(build(source, how, "-lpthread"))
    assert found["notes"] == [] and found["totals"]["processes"] == 9
    assert [(one["trms"], one["rms"], one["calls"]) for one in points(found, "three")] == [(3, 3, 16)]


STACKS = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
static volatile long cells[8] __attribute__((aligned(64))), sink;
static ucontext_t here[2], other;
__attribute__((noinline)) long three(void) { return cells[0] + cells[3] + cells[7]; }
__attribute__((noinline)) long large(int n)
{
    volatile char room[20 << 20];
    room[0] = n;
    return (n ? large(n - 1) : three()) + room[0];
}
__attribute__((noinline)) long deep(long n) { return n ? deep(n - 1) + 1 : three(); }
static void *large_frames(void *unused) { sink = large(2); return unused; }
static void *deep_frames(void *unused) { sink = deep(1100000); return unused; }
static void coroutine(void) { for (int at = 0; at < 4; at++) { three(); swapcontext(&other, &here[at % 2]); } }
static void *resumes(void *which)
{
    three();
    swapcontext(&here[(long)which], &other);
    three();
    return which;
}
static void in_thread(void *(*body)(void *), void *argument, long stack)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack);
    if (pthread_create(&thread, &attributes, body, argument)) abort();
    pthread_join(thread, 0);
}
int main(int argc, char **argv)
{
    in_thread(large_frames, 0, 100 << 20);
    if (argc > 1) in_thread(deep_frames, 0, 256 << 20);
    getcontext(&other);
    other.uc_stack.ss_size = 1 << 16;
    other.uc_stack.ss_sp = malloc(1 << 16);
    makecontext(&other, coroutine, 0);
    for (long at = 0; at < 4; at++) in_thread(resumes, (void *)(at % 2), 1 << 20);
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_large_frames_and_a_coroutine_that_threads_pass_on(build: Any, how: str, tmp_path: Path) -> None:
    """Frames of 20 MB, farther apart than stacks are; a coroutine that each time another thread goes on with."""
    source = tmp_path / "stacks.c"
    source.write_text(STACKS)
    found = measure(build(source, how, "-lpthread"))
    assert {(one["trms"], one["rms"]) for one in points(found, "three")} == {(3, 3)}
    assert sum(one["calls"] for one in points(found, "three")) == 13
    assert [(one["trms"], one["calls"]) for one in points(found, "large")] == [(3, 3)]


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
def test_calls_deeper_than_are_told_apart(build: Any, how: str, tmp_path: Path) -> None:
    """1,100,000 calls within each other: the program is unharmed, and the report says so."""
    source = tmp_path / "stacks.c"
    source.write_text(STACKS)
    found = measure(build(source, how, "-lpthread"), "deep")
    assert any("deep" in note for note in found["notes"]), found["notes"]
    assert (1 << 20) - 100 <= sum(one["calls"] for one in points(found, "deep")) <= 1 << 20


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
def test_a_limit_of_files_is_not_passed(build: Any, how: str, tmp_path: Path) -> None:
    """A record longer than files may be would end the program by SIGXFSZ."""
    program = build(WORKLOADS / "input_figures.c", how)
    command = [sys.executable, "-m", "parprof", "input", "-q", "--", program, "10"]
    limited = ["prlimit", "--fsize=262144", *map(str, command)]
    done = subprocess.run(limited, capture_output=True, timeout=120)
    assert done.returncode != 128 + signal.SIGXFSZ, done.stderr.decode()


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
def test_without_a_compiler_or_valgrind_the_package_is_named(build: Any, how: str, tmp_path: Path) -> None:
    """On a path with nothing else, where nothing was built yet."""
    program, path = build(WORKLOADS / "input_figures.c", how), tmp_path / "path"
    path.mkdir()
    environment = {**os.environ, "PATH": str(path), "PARPROF_CACHE": str(tmp_path / "cache")}
    tool = "valgrind" if how == "valgrind" else "tsan"
    if how == "valgrind":
        done = parprof("input", "--tool", tool, "--", program, env=environment)
        assert done.returncode and b"apt install valgrind libc6-dbg gcc" in done.stderr, done.stderr.decode()
        (path / "valgrind").symlink_to(shutil.which("valgrind") or "")
    done = parprof("input", "--tool", tool, "--", program, env=environment)
    assert done.returncode and b"apt install gcc libc6-dev" in done.stderr, done.stderr.decode()


def test_a_compiler_that_is_missing_is_told_by_package(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = parprof("cc", "--input", "--", "clang", "-c", "a.c", env=environment)
    assert done.returncode == 127 and b"clang was not found: on Debian `apt install clang`" in done.stderr
    done = parprof("cc", "--input", "--", "my-compiler", "-c", "a.c", env=environment)
    assert done.returncode == 127 and b"my-compiler was not found\n" in done.stderr


def header(
    *, bits: int = 64, kind: int = 2, machine: int = 62, n_segments: int = 0, offset: int = 64
) -> bytes:
    """The header of an ELF file, of zeros but for what is told."""
    ident = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    fields = struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, offset, 0, 0, 64, 56, n_segments, 0, 0, 0)
    return ident + fields


def segment(*, offset: int = 0, size: int = 120, kind: int = 1) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 5, offset, 0x400000, 0x400000, size, size, 4096)


LOADER = b"/lib64/there-is-none.so.2\0"
CANNOT_START: dict[str, tuple[bytes, int, bytes]] = {
    "noise": (random.Random(1).randbytes(3000), 126, b"neither a program nor a script"),
    "noise of ELF": (header(n_segments=9, offset=64) + b"\xff" * 30, 126, b"its file is damaged"),
    "headers alone": (header()[:40], 126, b"its file is damaged"),
    "object": (header(kind=1), 126, b"it is no program, but a part of one"),
    "cut": (header(n_segments=1) + segment(size=1 << 20), 126, b"its file is damaged, it ends before"),
    "of 32 bits": (header(bits=32), 126, b"it is a 32-bit program"),
    "of another processor": (header(machine=183), 126, b"it is built for another processor"),
    "loader": (
        header(n_segments=2) + segment() + segment(kind=3, offset=176, size=len(LOADER)) + LOADER,
        127,
        b"it asks for the loader /lib64/there-is-none.so.2, which is not there",
    ),
    "script": (
        b"#! /no/such/interpreter -x\n",
        127,
        b"a script for the interpreter /no/such/interpreter, which is not",
    ),
}


@pytest.mark.parametrize("kind", CANNOT_START)
def test_a_program_that_cannot_be_started_is_told_why(kind: str, tmp_path: Path) -> None:
    """In one line, with the exit code that shells have for it, by whichever tool it would have been."""
    content, code, why = CANNOT_START[kind]
    program = tmp_path / "program"
    program.write_bytes(content)
    program.chmod(0o755)
    for tool in ("auto", "valgrind"):
        done = parprof("input", "--tool", tool, "-q", "--", program)
        assert done.returncode == code, done.stderr.decode()
        assert why in done.stderr and done.stderr.count(b"\n") == 1 and not done.stdout, done.stderr.decode()


def test_what_is_no_program_at_all_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\x7fELF")
    for path, code, why in (
        (tmp_path, 126, b"is not executable"),
        (tmp_path / "data", 126, b"is not executable"),
    ):
        done = parprof("input", "-q", "--", path)
        assert done.returncode == code and why in done.stderr, done.stderr.decode()


@pytest.mark.parametrize("text", ["echo one; exit 3\n", "#!/bin/sh\necho one; exit 3\n"])
def test_scripts_of_a_shell_run(text: str, tmp_path: Path) -> None:
    """With a first line that says so, and without."""
    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(0o755)
    done = parprof("input", "-q", "--", program)
    assert done.returncode == 3 and done.stdout.startswith(b"one\n"), done.stderr.decode()


def test_a_set_uid_program_is_told_so(tmp_path: Path) -> None:
    """Valgrind does not execute one; its words were all that there was."""
    program = tmp_path / "program"
    shutil.copy(shutil.which("true") or "", program)
    program.chmod(0o4755)
    done = parprof("input", "--tool", "valgrind", "-q", "--", program)
    assert done.returncode == 126 and b"set-uid" in done.stderr, done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("form", ["words", "script"])
def test_a_build_may_have_us_as_its_compiler(form: str, tmp_path: Path) -> None:
    """`make CC="parprof cc ..."` exports CC, CMake that of a script: what is ours was built by it, by ourselves.

    Without end, where it is a script: each asked CC for its version first.
    """
    source, script, program = tmp_path / "three.c", tmp_path / "our-cc", tmp_path / "three"
    source.write_text(KILLED.replace("raise(SIGKILL);", ""))
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m parprof cc --input -- gcc "$@"\n')
    script.chmod(0o755)
    cc = os.fspath(script) if form == "script" else "parprof cc --input -- gcc"
    environment = {**os.environ, "CC": cc, "PARPROF_CACHE": str(tmp_path / "cache")}
    if not os.geteuid():  # those of BPF, which it counts system calls with, are not built by CC
        keep_compiled(tmp_path / "cache")
    with subprocess.Popen(
        [sys.executable, "-m", "parprof", "cc", "--input", "--", "gcc", "-O1", "-o", program, source],
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
    ) as build:
        try:
            _, told = build.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            script.write_text("#!/bin/sh\nexit 1\n")  # ends the chain
            raise
    assert build.returncode == 0, told.decode()
    for tool in ("tsan", "valgrind"):
        done = parprof("input", "--tool", tool, "-q", "--", program, env=environment)
        assert b" three " in done.stdout, done.stderr.decode()
