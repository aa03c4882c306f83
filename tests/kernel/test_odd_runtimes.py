# SPDX-License-Identifier: Apache-2.0
"""Libraries and symbols that say what is not so, runtimes that were replaced, and two copies of one: n_w is right."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import daemon_process as dp
import profiling
from compiled import compile_once
from parprof.commands.spawn import Child
from parprof.files.dso_cache import DsoCache
from parprof.probes.plan import make_plan
from parprof.process.loadmap import LoadMap
from parprof.session.session import Session
from parprof.session.sources import Source
from truth import Truth

WORKLOADS = profiling.ROOT / "tests/workloads"
NAME, OTHER_NAME = b"libgomp.so.1\0", b"libgomp-so.1\0"


def odd_library(folder: Path, name: str, *kinds: str) -> Path:
    library = folder / name
    command = ["gcc", "-O2", "-fPIC", "-shared", "-Wall", "-Werror", *(f"-D{kind}" for kind in kinds)]
    compile_once([*command, WORKLOADS / "odd_runtime.c", "-o", library])
    return library


NO_RUNTIMES = [
    ("libgomp.so.1", ""), ("libgomp.so.1", "DATA"), ("libgomp.so.1", "LIES"), ("libhelper.so", "DATA"),
    ("libhelper.so", "LIES"), ("libomp.so.5", "LIES"), ("libtbb.so.12", ""),
]  # fmt: skip
"""Names of libraries, and what is odd in them."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], profiling.Command]:
    """Those of `NO_RUNTIMES`, each with a program that has it."""
    phases = ("pthread_truth", "balanced,skewed,lock", "--repeat", "2")
    return {
        (name, kind): (
            f"LD_PRELOAD={odd_library(tmp_path_factory.mktemp('library'), name, *filter(None, [kind]))}",
            *phases,
        )
        for name, kind in NO_RUNTIMES
    }


BESIDE_A_RUNTIME = ("DATA", "LIES")
"""What is odd in a library that is linked behind the real one."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, profiling.Command]:
    """Those of `BESIDE_A_RUNTIME`."""
    folder = tmp_path_factory.mktemp("programs")
    found = {}
    for kind in BESIDE_A_RUNTIME:
        library, program = odd_library(folder, f"libhelper{kind}.so", kind), folder / f"omp_truth.{kind}"
        subprocess.run(
            ["gcc", "-O2", "-g", "-fopenmp", "-fno-optimize-sibling-calls", WORKLOADS / "omp_truth.c", "-o", program,
             "-lgomp", "-Wl,--no-as-needed", library], check=True)  # fmt: skip
        found[kind] = (str(program), "all", "--repeat", "2")
    return found


@pytest.fixture(scope="module")
def runs(
    libraries: dict[tuple[str, str], profiling.Command],
    programs: dict[str, profiling.Command],
    tmp_path_factory: pytest.TempPathFactory,
) -> profiling.CommonRuns:
    return profiling.CommonRuns(
        (*libraries.values(), *programs.values()),
        lambda: tmp_path_factory.mktemp("runs"),
        is_usable=lambda run: not run.lost.keys() - {"user_stack"},
    )


@pytest.mark.parametrize(("name", "kind"), NO_RUNTIMES)
def test_a_library_that_is_no_runtime(
    name: str, kind: str, libraries: dict[tuple[str, str], profiling.Command], runs: profiling.CommonRuns
) -> None:
    """Threads of a program that has none are judged by the scheduler, and the report says what was not believed."""
    run = profiling.agree(lambda: runs.take(libraries[name, kind]), 100, 0.03, 0.1)
    assert (run.target.plan.runtime, run.target.n_w_source) == ("none", "scheduler")
    told = [note for note in run.target.notes() if note.startswith(f"{name} is called as")]
    assert bool(told) == (name != "libhelper.so"), run.target.notes()


@pytest.mark.parametrize("kind", BESIDE_A_RUNTIME)
def test_variables_with_names_of_functions_beside_a_real_runtime(
    kind: str, programs: dict[str, profiling.Command], runs: profiling.CommonRuns
) -> None:
    """They come behind it, so the program does not call them; it has its edges all the same."""
    run = profiling.agree(lambda: runs.take(programs[kind]), 100, 0.02, 0.1)
    assert (run.target.plan.runtime, run.target.n_w_source) == ("libgomp", "exact")


def real_libgomp() -> Path:
    told = subprocess.run(
        ["gcc", "-print-file-name=libgomp.so.1"], capture_output=True, text=True, check=True
    )
    return Path(told.stdout.strip()).resolve()


def wait_for_mapping(pid: int, library: Path) -> None:
    deadline = time.monotonic() + 20
    while str(library) not in Path(f"/proc/{pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def renamed(source: Path, target: Path) -> Path:
    """A copy of a file that is, or needs, libgomp of another name."""
    data = source.read_bytes()
    assert NAME in data
    target.write_bytes(data.replace(NAME, OTHER_NAME))
    return target


def run_two_copies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: Source | None = None
) -> tuple[Session, Truth]:
    program, log = folder / "two_copies", folder / "log"
    compile_once(["gcc", "-O2", "-Wall", "-Werror", WORKLOADS / "two_copies.c", "-o", program])
    renamed(real_libgomp(), folder / OTHER_NAME[:-1].decode())
    plugin = profiling.BUILD / "plugin_truth.so"
    other = renamed(plugin, folder / "other_truth.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("PARPROF_TRUTH", str(log))
    with profiling.traced_session(source=source) as session:
        child = Child(
            [str(program), str(plugin), str(other), "balanced,skewed,barrier,single", "--repeat", "3"]
        )
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        assert child.wait() == 0
        # with the memory of one, that of the other cannot be read
        assert not session.kernel.lost().keys() - {"user_stack", "memory" if source else ""}
    logs = [Truth.read(folder / f"log.{number}") for number in range(2)]
    return session, Truth([interval for one in logs for interval in one.intervals])


def test_two_copies_of_libgomp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        session, truth = run_two_copies(folder, monkeypatch)
        target = [one for one in session.targets.values() if one.plan.agents][-1]
        agreement = profiling.compare(session.trace, truth)
        if agreement.wrong_share <= 0.02:
            break
    assert target.plan.runtime == "libgomp"
    assert target.n_w_source == "exact"
    assert agreement.judged > 300
    assert agreement.wrong_share <= 0.02, agreement.cases


@pytest.mark.parametrize("how", ["renamed over", "removed", "other file"])
def test_a_runtime_that_is_replaced_while_it_is_mapped(how: str, tmp_path: Path) -> None:
    """The probes go into the file that the process maps, wherever that is now."""
    library = tmp_path / "libgomp.so.1"
    shutil.copy(real_libgomp(), library)
    log = tmp_path / "log"
    environment = {**profiling.truth_environment(log), "LD_LIBRARY_PATH": str(tmp_path)}
    command = [profiling.BUILD / "omp_truth.gomp", "balanced,skewed,barrier", "--forever"]
    with dp.started(*command, env=environment) as process:
        wait_for_mapping(process.pid, library)
        if how == "removed":
            library.unlink()
        else:
            new = odd_library(tmp_path, "new.so", "DATA") if how == "other file" else tmp_path / "new.so"
            if how == "renamed over":
                shutil.copy(real_libgomp(), new)
            os.replace(new, library)
        with profiling.traced_session() as session:
            target = session.watch(process.pid)
            profiling.run_while_it_works(session, process.pid, 1)
            session.finish()
        process.terminate()  # its log is whole then
        assert process.wait(20) == 0
    assert (target.plan.runtime, target.source) == ("libgomp", Source.EXACT)
    begun = session.trace[0].time_ns + 200_000_000
    agreement = profiling.compare(session.trace, Truth.read(log), since_ns=begun)
    assert agreement.judged > 200
    assert agreement.wrong_share <= 0.1, agreement.cases


@pytest.mark.beside
@pytest.mark.parametrize("first", ["real", "odd"])
def test_two_containers_with_different_files_of_one_path(first: str, tmp_path: Path) -> None:
    """What is known of the file that one has there is not believed of the other's."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("cannot make namespaces here")
    place = tmp_path / "libgomp.so.1"
    place.touch()
    files = {"real": real_libgomp(), "odd": odd_library(tmp_path, "odd.so", "LIES")}
    phases = ("balanced,skewed", "--forever")
    programs = {
        "real": ["env", f"LD_LIBRARY_PATH={tmp_path}", profiling.BUILD / "omp_truth.gomp", *phases],
        "odd": ["env", f"LD_PRELOAD={place}", profiling.BUILD / "pthread_truth", *phases],
    }
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    order = sorted(files, key=lambda name: name != first)
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(
                dp.started(
                    "unshare", "--mount", "sh", "-c", script, "-", files[name], place, *programs[name],
                    env=profiling.truth_environment(tmp_path / f"log.{name}"),
                )
            )
            for name in order
        }  # fmt: skip
        for process in processes.values():
            wait_for_mapping(process.pid, place)
        with profiling.traced_session() as session:
            targets = {name: session.watch(processes[name].pid) for name in order}
            session.finish()
    told = {name: (target.plan.runtime, target.source) for name, target in targets.items()}
    assert told == {"real": ("libgomp", Source.EXACT), "odd": ("none", Source.SCHEDULER)}
    assert targets["real"].plan.sites and not targets["real"].failures


@pytest.mark.beside
def test_the_memory_of_one_copy_does_not_stand_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes too dear: what threads run tells of both. Who asks for memory is told that it is wrong."""
    session, _ = run_two_copies(tmp_path, monkeypatch, Source.MEMORY)
    target = [one for one in session.targets.values() if one.plan.agents][-1]
    assert not target.probing.memory.holds
    (told,) = [note for note in target.notes() if note.startswith("n_w from memory is not right here: ")]
    assert "libgomp.so.1.0.0" in told and "libgomp-so.1" in told


@pytest.mark.beside
@pytest.mark.parametrize(
    ("what", "protection"), [("data", "PROT_READ"), ("text", "PROT_READ | mmap.PROT_EXEC")]
)
def test_a_file_that_a_program_reads_is_no_library(what: str, protection: str, tmp_path: Path) -> None:
    """The real one, mapped to be looked at, and one that is no ELF file, mapped as code."""
    file = tmp_path / "libgomp.so.1"
    file.write_bytes(real_libgomp().read_bytes() if what == "data" else b"GOMP_parallel\0" * 1000)
    script = (
        f"import mmap, sys; file = open({str(file)!r}, 'rb')\n"
        f"kept = mmap.mmap(file.fileno(), 0, prot=mmap.{protection}, flags=mmap.MAP_PRIVATE)\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with (
        subprocess.Popen(
            ["/usr/bin/python3", "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
        closing(DsoCache()) as cache,
    ):
        assert process.stdout and process.stdout.readline() == b"ready\n"
        load_map = LoadMap.read(process.pid, None, cache)
        plan = make_plan(load_map)
        assert (file.name in {dso.name for dso in load_map.dsos()}) == (what == "text")
        assert plan.runtime == "none"
        assert not plan.sites
        told = [note for note in plan.notes if note.startswith(f"{file.name} is called as libgomp is")]
        assert bool(told) == (what == "text")
        process.communicate(b"")
