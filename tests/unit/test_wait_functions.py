# SPDX-License-Identifier: Apache-2.0
"""Functions that the user says wait: found by name in each file, in a child, however odd file and answer are."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parprof.errors import UsageError
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.kernel.records import MAX_SPIN_RANGES
from parprof.probes import plan
from parprof.probes.facts_book import FactsBook
from parprof.probes.facts_worker import function_name
from parprof.probes.named_functions import MAX_FOUND, find_wait_functions, near_names
from parprof.probes.plan import Plan, plan_spins
from parprof.probes.wait_functions import SpinRules, WaitFunctions, check_pattern
from parprof.process.loadmap import LoadMap

SOURCE = """
namespace pool { volatile int flag; struct Queue { int pop(int); };
__attribute__((noinline)) int Queue::pop(int n) { while (!flag) n += flag; return n; }
namespace { __attribute__((noinline, used)) void idle() { while (!flag) flag = 0; } } }
extern "C" { int not_code = 1; int wait_for_work(int n) { pool::Queue q; return q.pop(n); }
int wait_elsewhere(int n) { return n + 1; } }
"""


PROGRAM = """
#include <unistd.h>
int wait_for_work(int);
int main(void) { char c; write(1, "\\n", 1); return read(0, &c, 1) ? wait_for_work(1) : 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("wait") / "libwait.so"
    command = ["g++", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(output)]
    subprocess.run(command, input=SOURCE.encode(), check=True)
    return output


def elf_of(path: Path) -> ElfFile:
    fd = os.open(path, os.O_RDONLY)
    return ElfFile(lambda offset, size: os.pread(fd, size, offset), os.fstat(fd).st_size, str(path))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("wait_for_work", {"wait_for_work"}),
        ("wait_.*", {"wait_for_work", "wait_elsewhere"}),
        ("pool::Queue::pop", {"pool::Queue::pop(int)"}),
        (r"pool::Queue::pop\(int\)", {"pool::Queue::pop(int)"}),
        ("_ZN4pool5Queue3popEi", {"pool::Queue::pop(int)"}),
        (r"pool::\(anonymous namespace\)::idle", {"pool::(anonymous namespace)::idle()"}),
        ("pop", set()),
        ("not_code", set()),
    ],
)
def test_whole_names_match_as_people_and_linkers_know_them(
    pattern: str, names: set[str], library: Path
) -> None:
    elf = elf_of(library)
    found = find_wait_functions(elf, pattern)
    assert {one.name for one in found} == names
    symbols = {symbol.value: symbol.size for symbol in elf.symbols()}
    assert all(symbols[one.start] == one.end - one.start for one in found)
    assert all(function_name(elf, one.end - 1) == one.name for one in found)


def test_there_are_only_so_many() -> None:
    assert len(find_wait_functions(elf_of(Path("/lib/x86_64-linux-gnu/libc.so.6")), ".*")) == MAX_FOUND


def test_the_nearest_names(library: Path) -> None:
    assert near_names(elf_of(library), "wait_for_wrok")[0] == "wait_for_work"
    assert near_names(elf_of(library), "qqq") == []


@pytest.mark.parametrize("pattern", ["", "(", "x" * 2000, "a\n["])
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="--wait-function"):
        check_pattern(pattern)


class Answers:
    """Stands in for `FactsBook`."""

    def __init__(self, answer: dict[str, Any], only: Dso | None = None) -> None:
        self.answer = answer
        self.only = only
        self.asked: list[tuple[str, str]] = []

    def ask(self, dso: Dso, request: dict[str, Any]) -> Future[dict[str, Any]] | None:
        self.asked += [(dso.name, key) for key in request]
        future: Future[dict[str, Any]] = Future()
        future.set_result(self.answer if self.only in (None, dso) else {})
        return future


@pytest.mark.parametrize(
    "answer",
    [{}, {"waits": 7}, {"waits": [7]}, {"waits": [["f", 2, 1]]}, {"waits": [["f", 0, 1 << 64]]},
     {"waits": [["f", "0", 1]]}, {"waits": [[b"f", 0, 1]]}, {"waits": [["f", -1, 1]]}, {"near": 5},
     {"near": [5]}],
)  # fmt: skip
def test_nonsense_is_nothing(answer: dict[str, Any], cache: DsoCache) -> None:
    dsos = LoadMap.read(os.getpid(), None, cache).dsos()
    functions = WaitFunctions("f", Answers(answer))  # type: ignore[arg-type]
    functions.ask(dsos)
    assert functions.answered() == [] and not any(functions.of(dso) for dso in dsos)
    assert functions.notes() == ["--wait-function f: no function in the program's files has such a name"]


def test_each_file_is_asked_for_once(cache: DsoCache) -> None:
    dsos = [dso for dso in LoadMap.read(os.getpid(), None, cache).dsos() if dso.elf is not None]
    answers = Answers({"waits": [["a\nb", 16, 32]]})
    functions = WaitFunctions("f", answers)  # type: ignore[arg-type]
    for _ in range(2):
        functions.ask(dsos)
    assert len(answers.asked) == len(dsos)
    assert functions.answered() == dsos and functions.answered() == []
    assert functions.of(dsos[0])[0].name == "a\\x0ab" and functions.notes() == []


def test_more_than_the_programs_can_be_told_of_is_said(
    cache: DsoCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_map = LoadMap.read(os.getpid(), None, cache)
    dso = next(dso for dso in load_map.dsos() if dso.elf is not None)
    loops = {(start, start + 4): "loop" for start in range(0, 80, 16)}
    found = SimpleNamespace(found=lambda one: loops if one is dso else {})
    monkeypatch.setattr(plan, "SPINS", found)
    for count, note in (
        (3, ""),
        (MAX_SPIN_RANGES - 1, "more than 16 loops and functions"),
        (20, "20 functions match"),
    ):
        named = [[f"f{at}", 0x1000 + 16 * at, 0x1004 + 16 * at] for at in range(count)]
        functions = WaitFunctions("f.*", Answers({"waits": named}, dso))  # type: ignore[arg-type]
        functions.ask([dso])
        functions.answered()
        made = Plan()
        plan_spins(made, load_map, SpinRules(functions=functions))
        bias = load_map.bias(dso)
        told = {start - bias for start, _ in made.spin_ranges}
        assert len(told) <= MAX_SPIN_RANGES
        assert {start for _, start, _ in named[:MAX_SPIN_RANGES]} <= told, "what the user says comes first"
        assert [note] == [text[: len(note)] for text in made.notes] if note else not made.notes
        assert made.spinning == [f"loop ({dso.name})"]


def test_the_child_finds_them(library: Path, tmp_path: Path, cache: DsoCache) -> None:
    """All the way: a file of a process, the child, its answer."""
    program = tmp_path / "program"
    command = ["gcc", "-w", "-o", str(program), "-x", "c", "-", "-x", "none", str(library)]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}"], input=PROGRAM.encode(), check=True)
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    book = FactsBook(tmp_path / "cache")
    try:
        assert process.stdout is not None and process.stdout.readline()
        dsos = LoadMap.read(process.pid, None, cache).dsos()
        functions = WaitFunctions("wait_for_work", book)
        functions.ask(dsos)
        for _, future in functions._coming:
            future.result(60)
        assert [dso.name for dso in functions.answered()] == ["libwait.so"]
        missing = WaitFunctions("wait_fro_work", book)
        missing.ask(dsos)
        for _, future in missing._coming:
            future.result(60)
        assert missing.notes()[0].endswith("has such a name; did you mean wait_for_work?")
    finally:
        book.close()
        process.communicate(b"", 20)
