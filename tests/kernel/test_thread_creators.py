# SPDX-License-Identifier: Apache-2.0
"""Who created a thread is known of programs without a parallel runtime, which execute no probe for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.errors import TargetError
from parprof.files.dso_cache import DsoCache
from parprof.kernel.engine import BpfKernel
from parprof.process.loadmap import LoadMap
from parprof.session.session import Session
from parprof.session.sources import Source

pytestmark = pytest.mark.beside

CREATORS = """
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <time.h>
#define NEVER_INLINED __attribute__((noinline, noclone))
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
NEVER_INLINED void *burn(void *seconds)
{
    while (cpu_s() < (double)(intptr_t)seconds / 100)
        __asm__ volatile("");
    return 0;
}
NEVER_INLINED pthread_t create(int centiseconds)
{
    pthread_t thread;
    pthread_create(&thread, 0, burn, (void *)(intptr_t)centiseconds);
    return thread;
}
NEVER_INLINED void ingest(void) { pthread_join(create(90), 0); }
NEVER_INLINED void index_all(void) { pthread_join(create(30), 0); }
NEVER_INLINED void serve(void)
{
    for (int i = 0; i < 200; i++) {
        pthread_join(create(1), 0);
        __asm__ volatile("");
    }
}
/* two by turns, which have the same frames but for who called `create` */
NEVER_INLINED void left(void) { pthread_join(create(1), 0); }
NEVER_INLINED void right(void) { pthread_join(create(2), 0); }
NEVER_INLINED void by_turns(void)
{
    for (int i = 0; i < 100; i++) {
        left();
        right();
        __asm__ volatile("");
    }
}
/* what comes as fast as this need not be walked each time */
NEVER_INLINED void brief(void)
{
    for (int i = 0; i < 2000; i++)
        pthread_join(create(0), 0);
}
int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "wait")) {
        char byte;
        return write(1, "+", 1) != 1 || read(0, &byte, 1) < 0;
    }
    ingest();
    index_all();
    serve();
    by_turns();
    brief();
    return 0;
}
"""
WHO = ("ingest", "index_all", "serve", "left", "right", "brief", "nobody")


LOADER = "ld-linux-x86-64.so.2"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The system's, in files of our own: others may probe those of the system meanwhile."""
    directory = tmp_path_factory.mktemp("libraries")
    for name in (LOADER, "libc.so.6", "libgomp.so.1"):
        found = subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        shutil.copy(found if "/" in found else f"/lib64/{name}", directory / name)
    return directory


def build(path: Path, source: str, libraries: Path, *options: str) -> Path:
    own = (
        [f"-Wl,--dynamic-linker={libraries / LOADER},-rpath,{libraries}"] if "-static" not in options else []
    )
    subprocess.run(
        ["gcc", "-O2", "-g", "-pthread", *options, "-xc", "-", "-o", path, *own],
        input=source.encode(),
        check=True,
    )
    return path


@pytest.fixture(scope="module", params=["shared", "static"])
def program(request: pytest.FixtureRequest, libraries: Path) -> Path:
    options = ["-static"] if request.param == "static" else []
    return build(libraries / f"creators.{request.param}", CREATORS, libraries, *options)


@pytest.fixture
def bystander(program: Path) -> Iterator[int]:
    """A process of the same files that nobody asked to have watched."""
    with subprocess.Popen([program, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.read(1) == b"+"
        yield process.pid
        process.communicate(b"-")


def breakpoints(pid: int) -> set[str]:
    """Files of which a process has other code in its memory than they hold: somebody has put a breakpoint there."""
    cache = DsoCache()
    found = set[str]()
    try:
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for mapping in LoadMap.read(pid, None, cache).mappings:
                path = Path(mapping.dso.path)
                if path.is_file():
                    code = os.pread(memory.fileno(), mapping.end - mapping.start, mapping.start)
                    if code != path.read_bytes()[mapping.file_offset :][: len(code)]:
                        found.add(path.name)
    finally:
        cache.close()
    return found


def created_by(session: Session) -> Counter[str]:
    """Work in milliseconds of `burn`, by the function below which its thread was created."""
    out = Counter[str]()
    for row in profiling.rows_of(session)[0]:
        names = [frame.name for frame in row.path]
        if "burn" in names:
            above = names[: names.index("burn")]
            creator = next((name for name in WHO if name in above), "nobody")
            is_whole = above[:1] == ["main"] and above[-1] in ("create", "pthread_create")
            out[creator if is_whole or creator == "nobody" else f"{creator} by way of {above}"] += round(
                row.metrics.work_ns / 1e6
            )
    return out


def test_threads_hang_below_their_creators_without_a_probe(program: Path, bystander: int) -> None:
    # 997 samples a second take the whole budget on a slow machine: then one stands for up to 64, and tells less
    with BpfKernel(["cpu-clock"], 997, budget=profiling.UNLIMITED) as kernel:
        session = Session(kernel)
        kernel.await_programs()  # until then creators are lost, and counted
        try:
            child = Child([str(program)])
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            probed, own = set[str](), set[str]()

            def look() -> bool:
                probed.update(breakpoints(bystander))
                with suppress(TargetError, OSError):  # it has ended
                    own.update(breakpoints(child.pid))
                return child.poll() is not None

            profiling.run_until(session, look)
            session.finish()
            assert child.poll() == 0
            found = created_by(session)
            assert not probed
            assert own <= {LOADER}, "that one serves to plan in time"
            assert kernel.statistics()["known_creations"] > 100, "a place is not walked each time"
            assert set(found) <= set(WHO), found
            # what is sampled of a thread before its creator is known would be nobody's: nothing is
            assert found["nobody"] <= 0.005 * found.total(), found
            assert abs(found["ingest"] - 900) < 60 and abs(found["index_all"] - 300) < 40, found
            assert abs(found["serve"] - 2000) < 130, found
            assert abs(found["left"] - 1000) < 100 and abs(found["right"] - 2000) < 130, found
        finally:
            session.close()


TEAM = """
#include <stdio.h>
int main(void)
{
    for (long i = 0;; i++) {
        #pragma omp parallel num_threads(2)
        for (int j = 0; j < 1000000; j++)
            __asm__ volatile("");
        if (i == 1) {
            puts("ready");
            fflush(stdout);
        }
    }
}
"""


def test_who_maps_the_same_runtime_executes_no_breakpoint(libraries: Path) -> None:
    """Under Valgrind, which translates what it reads, one would be the end."""
    program = build(libraries / "team", TEAM, libraries, "-fopenmp")
    watched, other = (subprocess.Popen([program], stdout=subprocess.PIPE) for _ in range(2))
    try:
        for process in (watched, other):
            assert process.stdout and process.stdout.readline().startswith(b"ready")
        with profiling.traced_session(source=Source.EXACT) as session:
            session.watch(watched.pid)
            profiling.run_while_it_works(session, watched.pid, 0.3)
            assert breakpoints(watched.pid) == {LOADER, "libc.so.6", "libgomp.so.1", program.name}
            assert not breakpoints(other.pid)
    finally:
        for process in (watched, other):
            process.kill()
            process.communicate()
