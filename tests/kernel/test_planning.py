# SPDX-License-Identifier: Apache-2.0
"""What is found out of files holds up nobody: not other processes, not many libraries, not huge files."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import profiling
from compiled import compile_once
from parprof.commands.spawn import Child
from parprof.probes.facts_book import BOOK
from parprof.session.target import FilesUnknown

pytestmark = pytest.mark.beside

LIBRARIES = 200
SYMBOLS = 500_000
PROGRAM = """
#include <stdio.h>
volatile double sum;
__attribute__((noinline)) void loop(void) {
#pragma omp parallel for
    for (int i = 0; i < 64; i++) for (int k = 0; k < 20000; k++) sum += k;
}
int main(void) { puts("ready"); fflush(stdout); for (;;) loop(); }
"""
_TEN_FUNCTIONS = "".join(f".globl f\\\\n\\\\(){digit}\\nf\\\\n\\\\(){digit}: ret\\n" for digit in range(10))
MANY_FUNCTIONS = f"""
__asm__(
    ".pushsection .text\\n.altmacro\\n.macro ten_functions n\\n{_TEN_FUNCTIONS}.endm\\n.set number, 0\\n"
    ".rept {SYMBOLS // 10}\\nten_functions %number\\n.set number, number + 1\\n.endr\\n.popsection\\n"
);
"""
LIBRARY = """
static __attribute__((noinline)) void spin_000(void) {
    for (volatile int i = 0; i < 2000000; i++) ;
    asm volatile("");
}
void run(void) { spin_000(); asm volatile(""); }
"""
LOADER = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int c, char **v) {
    for (int i = 0; i < atoi(v[2]); i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/lib%d.so", v[1], i);
        void *library = dlopen(path, RTLD_NOW);
        if (!library) { fputs(dlerror(), stderr); return 1; }
        ((void (*)(void))dlsym(library, "run"))();
    }
    usleep(1000000);
    return 0;
}
"""


def compile_c(out: Path, source: str, *flags: str) -> Path:
    compile_once(["gcc", "-O2", "-g", *flags, "-x", "c", "-", "-x", "none", "-o", out], text=source)
    return out


def make_libraries(folder: Path) -> None:
    """Compiled once: they differ in their build id and the name of a function."""
    build_id = bytes(range(0xE0, 0xF4))
    flags = ("-shared", "-fPIC", f"-Wl,--build-id=0x{build_id.hex()}")
    model = compile_c(folder / "model.so", LIBRARY, *flags).read_bytes()
    assert model.count(build_id) == 1 and b"spin_000" in model
    for number in range(LIBRARIES):
        another = build_id[:-1] + bytes([number])
        content = model.replace(build_id, another).replace(b"spin_000", b"spin_%03d" % number)
        (folder / f"lib{number}.so").write_bytes(content)


@contextmanager
def running(program: Path) -> Iterator[int]:
    process = subprocess.Popen([program], stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "2"})
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With a cache of its own."""
    BOOK.close()
    monkeypatch.setattr(BOOK._disk, "_base", tmp_path / "cache")
    monkeypatch.setattr(BOOK, "_known", type(BOOK._known)())
    yield
    BOOK.close()


def test_others_are_sampled_while_a_file_is_looked_into(tmp_path: Path) -> None:
    with (
        running(compile_c(tmp_path / "first", PROGRAM, "-fopenmp")) as first,
        profiling.traced_session() as session,
    ):
        profiling.watch_in_time(session, first)
        os.kill(BOOK.worker_pid, signal.SIGSTOP)
        try:
            with running(compile_c(tmp_path / "second", PROGRAM + "int another;", "-fopenmp")) as second:
                with pytest.raises(FilesUnknown):
                    session.watch(second, wait=False)
                before = session.samples()
                end = time.monotonic() + 2.0
                while time.monotonic() < end:
                    session.step(0.05)
                assert session.samples() - before > 150, "of the first"
                assert session.live(second) is None
                os.kill(BOOK.worker_pid, signal.SIGCONT)
                target = profiling.watch_in_time(session, second)
                assert target.n_w_source == "exact" and target.plan.outlined == 1
        finally:
            if BOOK.worker_pid:
                os.kill(BOOK.worker_pid, signal.SIGCONT)


def test_libraries_that_come_one_after_another(tmp_path: Path) -> None:
    """Like a Python program that imports for seconds: it is followed, and no sample is lost meanwhile."""
    loader = compile_c(tmp_path / "loader", LOADER, "-ldl")
    make_libraries(tmp_path)
    with profiling.traced_session() as session:
        child = Child([str(loader), str(tmp_path), str(LIBRARIES)])
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        dearest_s = 0.0
        while child.poll() is None:
            started_s = time.thread_time()
            session.step(0.05)
            dearest_s = max(dearest_s, time.thread_time() - started_s)
        session.finish()
        assert child.wait() == 0
        lost = session.kernel.lost()
        newest = [target for target in session.targets.values() if target.load_map][-1].load_map
        samples = session.samples()
    assert samples > 100 and not {"stack_ring", "stack_missing", "control_ring"} & lost.keys(), lost
    # the program may be faster than we read its map again and again, but it lives on for a second
    assert newest is not None and sum(dso.name.startswith("lib") for dso in newest.dsos()) >= LIBRARIES
    assert dearest_s < 1.0


def test_a_program_of_many_symbols(tmp_path: Path) -> None:
    """The child walks over them once; we never do."""
    program = compile_c(tmp_path / "program", PROGRAM + MANY_FUNCTIONS, "-fopenmp", "-Wl,--build-id")
    spent_s = []
    with running(program) as pid:
        for found in (True, False):
            before = BOOK.found
            BOOK._known.clear()
            with profiling.traced_session() as session:
                started_s = time.thread_time()
                target = profiling.watch_in_time(session, pid)
                spent_s.append(time.thread_time() - started_s)
                assert target.n_w_source == "exact" and target.plan.outlined == 1
            assert (BOOK.found > before) is found, "the second time it is on disk"
    assert max(spent_s) < 1.5 and spent_s[1] < 0.6, spent_s
