"""What planning has to know of files: found by a child, kept on disk, remembered."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof import cache
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.probes import facts_book
from parprof.probes.facts_book import NOTHING, FactsBook
from parprof.probes.file_facts import (
    FileFacts,
    ProbedFunction,
    ProbePlace,
    find_facts,
    from_json,
    function_from_json,
    to_json,
)
from parprof.process.loadmap import LoadMap
from parprof.runtimes.libgomp_memory import TeamLayout
from stopwatch import Stopwatch

SOURCE = """
#include <pthread.h>
#include <stdio.h>
static void *run(void *x) { return x; }
int main(void) {
    pthread_t thread;
    int sum = 0;
    #pragma omp parallel for reduction(+:sum)
    for (int i = 0; i < 1000; i++) sum += i;
    pthread_create(&thread, 0, run, 0);
    puts("ready"); fflush(stdout);
    return getchar() == 120 ? sum : 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program"
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-O2", "-fopenmp", "-Wl,--build-id", source, "-o", path, "-lpthread"], check=True)
    return path


@pytest.fixture
def dsos() -> Iterator[Callable[[Path], list[Dso]]]:
    """The files of a program that runs."""
    with DsoCache() as cache:
        running: list[subprocess.Popen[str]] = []

        def start(path: Path) -> list[Dso]:
            process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            running.append(process)
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            return LoadMap.read(process.pid, None, cache).dsos()

        yield start
        for process in running:
            process.communicate("\n", timeout=20)


def named(facts: FileFacts, name: str) -> ProbedFunction:
    (found,) = (function for function in facts.functions if function.name == name)
    return found


def test_facts_are_found_once_and_kept(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    files = [dso for dso in dsos(program) if dso.elf is not None]
    with FactsBook(tmp_path) as book:
        found = [book.facts(dso) for dso in files]
        assert book.worker_pid != 0
        assert book.found == len(files)
        assert [book.facts(dso) for dso in files] == found and book.found == len(files)
    own = found[[dso.name for dso in files].index("program")]
    assert "GOMP_parallel" in own.imports and own.creates_threads
    body = named(own, "main._omp_fn.0")
    assert body.whole.vaddr >= body.vaddr > 0
    library = found[[dso.name.startswith("libgomp") for dso in files].index(True)]
    assert named(library, "GOMP_parallel").first.vaddr
    assert len(library.code_layout) == len(TeamLayout._fields) and not library.layout_problem
    assert library.wait_code and not library.imports and not library.creates_threads
    libc = found[[dso.name.startswith("libc.") for dso in files].index(True)]
    assert named(libc, "pthread_create")
    for dso, facts in zip(files, found, strict=True):
        assert dso.elf is not None and find_facts(dso.elf, dso.name) == facts, (
            "the child says the same as we would"
        )
    kept = [dso for dso in files if dso.content_name()]
    assert any(dso.build_id for dso in kept)
    with FactsBook(tmp_path) as again:
        for dso in kept:
            assert again.facts(dso) == found[files.index(dso)]
        assert (again.found, again.worker_pid) == (0, 0), "they were on disk"


def test_files_without_build_id_are_known_by_their_version(
    tmp_path: Path, dsos: Callable[[Path], list[Dso]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program"
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    command = ["gcc", "-O2", "-fopenmp", "-Wl,--build-id=none", source, "-o", path, "-lpthread"]
    subprocess.run(command, check=True)

    def own(start: Callable[[Path], list[Dso]]) -> Dso:
        return next(dso for dso in start(path) if dso.name == "program")

    first = own(dsos)
    monkeypatch.setattr(cache, "_SETTLED_NS", 10**18)
    assert not first.build_id and first.content_name() == "", "another change may have the same time"
    monkeypatch.setattr(cache, "_SETTLED_NS", 0)
    with FactsBook(tmp_path / "cache") as book:
        found = book.facts(first)
        assert found.imports and book.found == 1
    with FactsBook(tmp_path / "cache") as again:
        assert again.facts(own(dsos)) == found and again.found == 0
        shutil.copy(path, tmp_path / "other")
        os.replace(tmp_path / "other", path)
        assert again.facts(own(dsos)) == found and again.found == 1, "another file"
        os.utime(path, ns=(0, 0))
        with FactsBook(tmp_path / "cache") as third:
            assert third.facts(own(dsos)) == found and third.found == 1, "another version of it"


def test_facts_are_those_of_a_name_and_of_the_rules(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]], monkeypatch: pytest.MonkeyPatch
) -> None:
    dso = dsos(program)[0]
    other = dsos(Path(shutil.copy(program, tmp_path / "other")))[0]
    assert dso.build_id == other.build_id
    with FactsBook(tmp_path / "cache") as book:
        book.facts(dso)
        book.facts(other)
        assert book.found == 2
    with FactsBook(tmp_path / "cache") as book:
        monkeypatch.setattr(facts_book, "rules", lambda: "of another parprof")
        book.facts(dso)
        assert book.found == 1


@pytest.mark.parametrize("damage", [b"", b"{}", b"[" * 100000, b'{"imports": 5}', b"\xff"])
def test_a_damaged_file_is_found_again(
    damage: bytes, program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    dso = dsos(program)[0]
    with FactsBook(tmp_path) as book:
        found = book.facts(dso)
    (kept,) = (tmp_path / "facts").iterdir()
    kept.write_bytes(damage)
    for looked in (1, 0):
        with FactsBook(tmp_path) as book:
            assert book.facts(dso) == found
            assert book.found == looked


def test_a_cache_that_cannot_be_written_is_done_without(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    (tmp_path / "facts").write_text("no directory")
    for _ in range(2):
        with FactsBook(tmp_path) as book:
            assert book.facts(dsos(program)[0]).imports
            assert book.found == 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system without room for a file."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount one")
    path = tmp_path / "full"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "none", path]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (path / "facts").mkdir(0o700)
        (path / "filler").write_bytes(bytes(4096))
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_takes_nothing_is_told_of_once(
    how: str,
    full_disk: Path,
    program: Path,
    dsos: Callable[[Path], list[Dso]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "_problems", {})
    if how == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", full_disk], check=True)
    with FactsBook(full_disk) as book:
        for dso in dsos(program):
            if dso.elf is not None and dso.name == "program":
                assert book.facts(dso).imports
            else:
                book.facts(dso)
    reason = "No space left on device" if how == "full" else "Read-only file system"
    assert cache.problems() == [f"no cache on disk: {reason}"]
    assert not list((full_disk / "facts").iterdir()), "nothing half written stays"


def test_two_that_look_into_the_same_file(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    dso = next(dso for dso in dsos(program) if dso.name == "program")
    with FactsBook(tmp_path) as one, FactsBook(tmp_path) as other:
        while waiting := one.coming([dso]) + other.coming([dso]):
            assert waiting <= 2
            time.sleep(0.01)
        found = one.facts(dso)
        assert found.imports and other.facts(dso) == found
    with FactsBook(tmp_path) as third:
        assert third.facts(dso) == found and third.found == 0
    assert len(list((tmp_path / "facts").iterdir())) == 1


def test_a_child_that_is_killed_meanwhile_loses_nothing(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    files = [dso for dso in dsos(program) if dso.elf is not None]
    with FactsBook(tmp_path / "whole") as book:
        expected = [book.facts(dso) for dso in files]
    with FactsBook(tmp_path / "killed") as book:
        book.coming(files)
        os.kill(worker_of(book), signal.SIGKILL)
        while book.coming(files):
            time.sleep(0.01)
        assert [book.facts(dso) for dso in files] == expected


def test_a_child_that_is_killed_is_started_again(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    files = [dso for dso in dsos(program) if dso.elf is not None]
    with FactsBook(tmp_path) as book:
        assert book.facts(files[0]).imports
        before = book.worker_pid
        os.kill(before, signal.SIGKILL)
        assert all(book.facts(dso) is not NOTHING for dso in files[1:])
        assert book.worker_pid not in (0, before)
        book.trim(idle_seconds=0)
        assert book.worker_pid == 0


def test_a_file_that_ends_the_child_is_given_up(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]], monkeypatch: pytest.MonkeyPatch
) -> None:
    dso = dsos(program)[0]
    asked = []

    def refuse(*_: object) -> dict[str, object]:
        asked.append(1)
        raise facts_book.WorkerFailed("it crashed")

    with FactsBook(tmp_path) as book:
        monkeypatch.setattr(facts_book._Client, "ask", refuse)
        assert book.facts(dso) == NOTHING
        assert len(asked) == 2
        monkeypatch.undo()
        assert book.facts(dso) == NOTHING, "twice is enough"
    with FactsBook(tmp_path) as book:
        assert book.facts(dso).imports, "nothing of that was kept on disk"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=6),
    max_leaves=20,
)
FACTS = st.fixed_dictionaries({field.name: JSON for field in fields(FileFacts)})


@given(JSON | FACTS)
def test_what_is_no_fact_is_refused(raw: object) -> None:
    for read in (from_json, function_from_json):
        try:
            read(raw)
        except ValueError:
            continue


ADDRESSES = st.integers(0, (1 << 64) - 1)
PLACES = st.builds(ProbePlace, ADDRESSES, st.booleans(), st.booleans())
FUNCTIONS = st.builds(ProbedFunction, st.text(max_size=20), ADDRESSES, PLACES, PLACES, st.none() | PLACES)


@given(st.frozensets(st.text(max_size=9), max_size=4), st.lists(FUNCTIONS, max_size=4), st.booleans())
def test_facts_survive_json(imports: frozenset[str], functions: list[ProbedFunction], static: bool) -> None:
    facts = FileFacts(imports, tuple(functions), None, static, ((1, 2),), not static)
    assert from_json(json.loads(json.dumps(to_json(facts)))) == facts


def test_nobody_waits_for_facts_that_are_coming(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    files = [dso for dso in dsos(program) if dso.elf is not None]
    with FactsBook(tmp_path) as book:
        assert book.coming(files) > 0 and book.is_busy
        os.kill(worker_of(book), signal.SIGSTOP)
        watch = Stopwatch()
        waiting = book.coming(files)
        assert waiting > 0 and watch.seconds < 1.0, "though the child does not move"
        os.kill(worker_of(book), signal.SIGCONT)
        while book.coming(files):
            time.sleep(0.01)
        assert not book.is_busy and len(book._coming) <= len(files)
        found = [book.facts(dso) for dso in files]
        assert book.found == len(files) and any(facts.imports for facts in found)
    with FactsBook(tmp_path) as again:
        again.coming(dso for dso in files if dso.content_name())
        assert not again.is_busy and again.worker_pid == 0, "they were on disk"


def test_facts_of_more_files_than_there_is_room_for_come_one_after_the_other(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program with more than 64 new files nothing was ever planned: those that were known kept their room."""
    files = [dso for dso in dsos(program) if dso.elf is not None]
    monkeypatch.setattr(facts_book, "_MAX_COMING", 2)
    looks: list[str] = []
    opens = cache.DiskCache.open
    monkeypatch.setattr(cache.DiskCache, "open", lambda self, name: looks.append(name) or opens(self, name))
    with FactsBook(tmp_path) as book:
        deadline = time.monotonic() + 30
        turns = 0
        while book.coming(files):
            assert time.monotonic() < deadline, "it comes to an end"
            turns += 1
            time.sleep(0.005)
        assert book.found == len(files) > 3 and not book._coming and not book._missing
        assert len(looks) <= 3 * len(files), f"whether they are on disk is not asked at each of {turns} turns"


def test_a_file_that_kills_the_child_is_given_up_without_waiting(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]], monkeypatch: pytest.MonkeyPatch
) -> None:
    dso = dsos(program)[0]
    with FactsBook(tmp_path, file_seconds=0.2) as book:
        monkeypatch.setattr(facts_book._Client, "module", "time")  # it starts, says nothing and ends
        for _ in range(200):
            if not book.coming([dso]):
                break
            time.sleep(0.05)
        assert book.coming([dso]) == 0 and book.facts(dso) == NOTHING
        assert book._failures[dso.key] == 2


def test_closing_does_not_wait_for_a_child_that_hangs(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    files = [dso for dso in dsos(program) if dso.elf is not None]
    book = FactsBook(tmp_path)
    book.coming(files)
    os.kill(worker_of(book), signal.SIGSTOP)
    watch = Stopwatch()
    book.close()
    assert watch.seconds < 5.0
    with book:
        assert any(book.facts(dso).imports for dso in files), "it is started again"


def test_closing_does_not_wait_for_questions_either(
    program: Path, tmp_path: Path, dsos: Callable[[Path], list[Dso]]
) -> None:
    dso = next(dso for dso in dsos(program) if dso.elf is not None)
    book = FactsBook(tmp_path)
    asked = [book.ask(dso, {"address": address}) for address in range(3)]
    os.kill(worker_of(book), signal.SIGSTOP)
    watch = Stopwatch()
    book.close()
    assert watch.seconds < 5.0, "it took the 20 s that a file may take"
    assert all(one is not None and one.done() for one in asked)


def worker_of(book: FactsBook) -> int:
    """The child, as soon as there is one."""
    for _ in range(500):
        if book.worker_pid:
            return book.worker_pid
        time.sleep(0.01)
    raise AssertionError("no child was started")


@pytest.mark.parametrize(
    ("name", "kind", "is_namesake"),
    [
        ("libgomp.so.1", "", True), ("libgomp.so.1", "DATA", True), ("libgomp.so.1", "LIES", True),
        ("libtbb.so.12", "LIES", True), ("libmpi.so.40", "", False), ("libhelper.so", "DATA", False),
    ],
)  # fmt: skip
def test_what_symbols_say_is_not_taken_for_granted(
    name: str, kind: str, is_namesake: bool, tmp_path: Path
) -> None:
    """GIVEN a file that says it is a runtime THEN it is none without code for what programs call."""
    library = tmp_path / name
    source = Path(__file__).parents[1] / "workloads/odd_runtime.c"
    subprocess.run(["gcc", "-fPIC", "-shared", f"-D{kind or 'PLAIN'}", source, "-o", library], check=True)
    facts = find_facts(ElfFile.open(str(library)), name)
    assert (facts.is_namesake, facts.static_agent, facts.functions) == (is_namesake, None, ())
    assert from_json(json.loads(json.dumps(to_json(facts)))) == facts
