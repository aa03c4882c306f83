# SPDX-License-Identifier: Apache-2.0
"""Front ends of languages: a second one is a folder, and neither the session nor the profile has to know it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfError
from parprof.jit.reader import JitReader
from parprof.kernel.stacks import CodeAt, SentCode, Stack
from parprof.languages import Data, Instance, Loader
from parprof.languages.cpython.loader import CPythonLoader
from parprof.languages.front_ends import FrontEnds, loaders
from parprof.logical.physical import physical_path
from parprof.model import Frame, StackMerge, StackRow
from parprof.process.identity import inspect
from parprof.process.loadmap import LoadMap
from parprof.session.lifecycle import State
from parprof.session.scopes import Scope
from parprof.session.stops import Stops
from parprof.session.target import Target, Watched

DIGEST = 77
SCRIPT = "import sys; print(flush=True); sys.stdin.read()"


class ToyLoader(Loader):
    """A second language, whose interpreter is libc: every program runs it."""

    name = "toy"
    counters = ("toy_resolved",)

    def __init__(self) -> None:
        self.looked_into: list[str] = []

    def may_be(self, dso: Dso, is_program: bool) -> bool:
        return dso.name.startswith("libc.so")

    def load(self, dso: Dso) -> ToyData | None:
        self.looked_into.append(dso.name)
        return ToyData(dso.name)


class ToyData(Data):
    def __init__(self, library: str) -> None:
        self.library = library

    def attach(self, load_map: LoadMap, dso: Dso) -> ToyInstance:
        assert dso.name == self.library
        return ToyInstance(load_map.pid, load_map.bias(dso))


class ToyInstance(Instance):
    def __init__(self, pid: int, bias: int) -> None:
        self.pid, self.bias = pid, bias
        self.resolved: dict[int, tuple[str, ...]] = {}
        self._is_open = True

    def kernel_facts(self) -> Mapping[str, int]:
        return {"current": self.bias}

    def for_child(self, pid: int) -> ToyInstance:
        return ToyInstance(pid, self.bias)

    def take(self, functions: Iterable[SentCode]) -> None:
        """Toys have none."""

    def resolve(self, stacks: Iterable[tuple[int, tuple[CodeAt, ...]]]) -> None:
        for digest, frames in stacks:
            self.resolved[digest] = tuple(f"toy_{frame.code}" for frame in frames)

    def asleep(self, tid: int) -> tuple[bytes, int]:
        return b"", 0

    def awaits_end(self, digest: int) -> bool:
        return False

    def merge(self, digest: int, stack: Stack) -> StackMerge | None:
        names = self.resolved.get(digest)
        if names is None:
            return None

        def merge_rows(rows: list[StackRow], whole: bool) -> tuple[list[Frame], bool]:
            toys = [Frame(name, module="toy") for name in names]
            return toys + [frame for _, _, here in rows[1:] for frame in here], whole

        return merge_rows

    def counts(self) -> Mapping[str, int]:
        return {"toy_resolved": len(self.resolved)}

    @property
    def is_open(self) -> bool:
        return self._is_open

    def close(self) -> None:
        self._is_open = False


class Kernel:
    """Stands in for the kernel: what it was told of interpreters."""

    def __init__(self) -> None:
        self.interpreters: dict[int, Mapping[str, int]] = {}

    def set_interpreter(self, pid: int, facts: Mapping[str, int], structure: str) -> None:
        assert structure == "interpreter"
        if facts:
            self.interpreters[pid] = facts
        else:
            self.interpreters.pop(pid)


def target_of(kernel: Kernel, cache: DsoCache, pid: int, front_ends: FrontEnds) -> Target:
    placer: Any = SimpleNamespace(update=lambda *_: None, forget=lambda _: None)
    watched = Watched(kernel, cache, placer, JitReader(), front_ends=front_ends)  # type: ignore[arg-type]
    scope = Scope(SimpleNamespace(state=lambda _: None), 1)  # type: ignore[arg-type]
    return Target(watched, inspect(pid), 1, follow=True, stop=True, scope=scope, program=5)


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process.pid
    finally:
        process.communicate(b"", 20)


def test_a_second_language_from_its_process_to_the_call_path(cache: DsoCache, child: int) -> None:
    kernel, toy = Kernel(), ToyLoader()
    target = target_of(kernel, cache, child, FrontEnds([toy]))
    assert target.read_load_map()
    assert isinstance(target.language, ToyInstance) and target.language.pid == child
    assert kernel.interpreters == {child: {"current": target.language.bias}}

    target.language.resolve([(DIGEST, (CodeAt(1, 0, 0, False), CodeAt(2, 0, 0, True)))])
    native = Stack(((0x10, False), (0x20, True)), "complete")
    names = {0x10: "interpret", 0x20: "main"}
    path = physical_path(
        native,
        Stack(),
        lambda address, _: (Frame(names[address]),),
        lambda *_: (),
        target.language.merge(DIGEST, native),
    )
    assert [frame.name for frame in path] == ["main", "toy_2", "toy_1"]
    assert target.language.counts() == {"toy_resolved": 1}

    target.close()
    assert not kernel.interpreters and not target.language.is_open


def test_a_forked_child_speaks_its_parents_language(cache: DsoCache, child: int) -> None:
    kernel = Kernel()
    parent = target_of(kernel, cache, child, FrontEnds([ToyLoader()]))
    assert parent.read_load_map()
    forked = target_of(kernel, cache, os.getpid(), FrontEnds([]))
    forked.inherit(parent)
    assert isinstance(forked.language, ToyInstance) and forked.language.pid == os.getpid()
    assert kernel.interpreters.keys() == {child, os.getpid()}
    for target in (parent, forked):
        target.close()
    assert not kernel.interpreters


def test_what_runs_an_interpreter_is_stopped_at_each_start(cache: DsoCache, child: int) -> None:
    added: list[int] = []
    stops = Stops(SimpleNamespace(add=added.append, remove=lambda _: None))  # type: ignore[arg-type]
    for front_ends, expected in ((FrontEnds([ToyLoader()]), []), (FrontEnds([]), [5])):
        target = target_of(Kernel(), cache, child, front_ends)
        target.life.state, target._awaits_libraries = State.ENDED, False
        assert target.read_load_map()
        stops.judge(target)
        assert added == expected
        target.close()


def test_each_file_is_looked_into_once(cache: DsoCache, child: int) -> None:
    toy = ToyLoader()
    front_ends = FrontEnds([toy])
    for _ in range(3):
        found = front_ends.find(LoadMap.read(child, None, cache))
        assert isinstance(found, ToyInstance)
    assert len(toy.looked_into) == 1


def test_a_file_that_cannot_be_read_is_no_interpreter(cache: DsoCache, child: int) -> None:
    class Broken(ToyLoader):
        def load(self, dso: Dso) -> ToyData | None:
            super().load(dso)
            raise ElfError("cut short")

    broken = Broken()
    front_ends = FrontEnds([broken])
    for _ in range(2):
        assert front_ends.find(LoadMap.read(child, None, cache)) is None
    assert len(broken.looked_into) == 1


def test_all_processes_of_one_interpreter_have_python_frames(cache: DsoCache, child: int) -> None:
    """The second process that maps a file has its functions, too."""
    front_ends = FrontEnds()
    found = [front_ends.find(LoadMap.read(pid, None, cache)) for pid in (child, child, os.getpid())]
    assert None not in found
    facts = [one.kernel_facts() for one in found if one is not None]
    assert facts[0] == facts[1] and facts[0].keys() == facts[2].keys()
    for one in found:
        assert one is not None
        one.close()


def test_names_in_the_table_are_apart() -> None:
    names = [loader.name for loader in loaders()]
    counters = [name for loader in loaders() for name in loader.counters]
    assert len(set(names)) == len(names) and len(set(counters)) == len(counters)


@pytest.mark.parametrize(
    ("name", "may_be"),
    [
        ("libpython3.11.so.1.0", True),
        ("python_plugin.so", True),
        ("_ctypes.cpython-311-x86_64-linux-gnu.so", False),
        ("_multiarray_umath.cpython-313t-x86_64-linux-gnu.so", False),
        ("pythonic.abi3.so", False),
        ("libm.so.6", False),
    ],
)
def test_extension_modules_are_no_interpreters(name: str, may_be: bool) -> None:
    dso = Dso(("label", name), name)
    assert CPythonLoader().may_be(dso, is_program=False) is may_be
    assert CPythonLoader().may_be(dso, is_program=True)
