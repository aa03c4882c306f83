# SPDX-License-Identifier: Apache-2.0
"""Code that a JIT compiler made: its names, which may come late, and what to do where there are none."""

from __future__ import annotations

import gc
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from parprof.attribution import attribute
from parprof.exporters.answer import nothing_to_act_on
from parprof.facts.drain import Drain
from parprof.files.dso import ANONYMOUS, Dso
from parprof.kernel.stacks import RawStack, StackTable
from parprof.logical import Located
from parprof.metrics import Metrics
from parprof.model import Count, Frame, Origin, PathSample, ProcessInfo, Profile, SampleKey, ThreadState
from parprof.process import identity
from parprof.process.identity import Process, is_32_bit
from parprof.profile.addresses import AddressBook
from parprof.profile.jit import jit_frame, jit_notes
from parprof.profile.rows import RowMaker

ANON = Dso(("label", ANONYMOUS), ANONYMOUS, problem="no file")
MEMFD = Dso(("file", 1, 2, 3, 4), "/memfd:code (deleted)", problem="no ELF file")
JIT, IN_MEMFD, OUTSIDE = 0x1000, 0x5000, 0x9000


@dataclass
class Image:
    image: int = 1
    process: Process = Process(7, 1, "node", "node", "/usr/bin/node")
    agents: tuple[Any, ...] = ()
    runtime: str = "none"
    names: dict[int, str] = field(default_factory=dict)

    def find(self, address: int, epoch: int) -> tuple[Dso, int] | None:
        return {JIT: (ANON, JIT), IN_MEMFD: (MEMFD, 0x10)}.get(address)

    def parallel_cores(self, allowed: int | None = None) -> int:
        return 1

    def merge(self, user: int, stack: Any) -> None:
        return None

    def jit_names(self, addresses: Iterable[int]) -> dict[int, str]:
        return {address: self.names[address] for address in addresses if address in self.names}


class Namer:
    uses_weights = False

    def name(self, weights: Mapping[Any, int], total: int) -> dict[Any, tuple[Frame, ...]]:
        return {request: (Frame(request[0].name, module=request[0].name),) for request in weights}

    def name_jit_code(self, image: Image, addresses: Collection[int]) -> dict[int, str]:
        return image.jit_names(addresses)

    def name_kernel(self, places: Collection[Any], told: Mapping[int, Frame]) -> dict[Any, Any]:
        return {}

    def trim(self) -> None:
        pass


def drain_of(image: Image, *stacks: tuple[int, int]) -> Drain:
    """Samples of stacks: leaf, and how the walk ended."""
    table, facts = StackTable(), {}
    for number, (leaf, end) in enumerate(stacks, 1):
        table.put(number, RawStack(struct.pack("<Q", leaf), end, b"", 0, 0))
        facts[SampleKey(1, 7, 0, ThreadState.WORKING, 1, number, 0)] = Count(10)
    return Drain(facts, table, cast(Any, {1: image}), {(1, 7): "node"}, ("cpu-clock",), 100)


def leaves(maker: RowMaker, drain: Drain) -> list[str]:
    return sorted(sample.path[-1].name for sample in maker.rows(drain))


@pytest.mark.parametrize(
    ("address", "before"),
    [(JIT, ANONYMOUS), (IN_MEMFD, ANONYMOUS), (OUTSIDE, "[unknown]+0x9000")],
)
def test_names_may_come_later(address: int, before: str) -> None:
    """A compiler writes its map as it compiles; wherever the code is, the map is asked, and asked again."""
    image, maker = Image(), RowMaker(AddressBook(cast(Any, Namer())))
    drain = drain_of(image, (address, 0))
    assert leaves(maker, drain) == [before]
    image.names[address] = "JS:*run"
    maker.trim()
    assert leaves(maker, drain) == ["JS:*run"]


def test_reasons_add_up() -> None:
    """Stacks that are whole, cut, lost, and of a process in exit."""
    image, maker = Image(), RowMaker(AddressBook(cast(Any, Namer())))
    drain = drain_of(image, (JIT, 0), (JIT, 6), (JIT, 1), (JIT, 3))
    facts = dict(drain.facts)
    facts[SampleKey(1, 7, 0, ThreadState.WORKING, 1, 999, 0)] = Count(10)
    facts[SampleKey(1, 7, 0, ThreadState.WORKING, 1, 0, 0)] = Count(10)
    maker.rows(Drain(facts, drain.stacks, drain.images, drain.thread_names, drain.events, 100))
    assert maker.cut == {"no_mapping": 10, "bad_row": 10, "missing": 10}
    assert (maker.cut_short, maker.leaving) == (30, 10)
    assert maker.incomplete > maker.incomplete_though_whole


@pytest.fixture
def heap_of_its_own() -> None:
    """Each look at all objects leaves out what a thousand tests before have left, now and in tests after this one."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("heap_of_its_own")
def test_hours_of_new_stacks_are_forgotten() -> None:
    """What is remembered depends on how much is in use, not on the time that the daemon runs."""
    image, maker = Image(), RowMaker(AddressBook(cast(Any, Namer())))
    used, new = 40, 150
    seen: list[int] = []
    before = places_remembered()
    for minute in range(60):
        fresh = range(0x100000 + new * minute, 0x100000 + new * (minute + 1))
        drain = drain_of(image, *((address, 0) for address in (*range(JIT, JIT + used), *fresh)))
        drain.stacks.put(9999, RawStack(struct.pack("<Q", 0xFFFFFFFF81000000), 0, b"", 0, 0))
        facts = {key._replace(kernel=9999): count for key, count in drain.facts.items()}
        maker.rows(Drain(facts, drain.stacks, drain.images, drain.thread_names, drain.events, 100))
        maker.trim()
        if minute % 7 == 3:  # to look takes a quarter of a second
            seen.append(places_remembered() - before)
    assert max(seen) > 2 * new, "more than a minute's"
    assert max(seen) < 8 * (used + new)


def places_remembered() -> int:
    gc.collect()
    return sum(isinstance(one, Located) for one in gc.get_objects())


@pytest.mark.parametrize(
    ("exe", "said"),
    [
        ("/usr/bin/node", "--perf-basic-prof"),
        ("/usr/lib/jvm/bin/java", "PreserveFramePointer"),
        ("/usr/bin/python3.12", "-X perf"),
        ("/usr/lib/erlang/erts-13/bin/beam.smp", "+JPperf true"),
        ("/usr/bin/luajit", "/tmp/perf-PID.map"),
    ],
)
def test_the_reader_is_told_how_to_get_names(exe: str, said: str) -> None:
    image = Image(process=Process(7, 1, "x", "x", exe))

    def samples(*names: str) -> list[PathSample]:
        return [
            PathSample((Frame("main"), Frame(name)), Metrics(samples=1), Origin(7, image=1)) for name in names
        ]

    images = cast(Any, {1: image})
    (note,) = jit_notes(samples(ANONYMOUS, "f", "g"), images)
    assert said in note and "process 7: 33% of its samples" in note
    assert not jit_notes(samples(*["f"] * 200, ANONYMOUS), images)
    assert not jit_notes(samples("f"), images)


@pytest.mark.parametrize(
    ("name", "function", "file", "line"),
    [
        ("JS:*loadAll /srv/app.js:3:17", "loadAll", "/srv/app.js", 3),
        ("LazyCompile:~loadAll /srv/app.js:3", "loadAll", "/srv/app.js", 3),
        (
            "JS:^requireBuiltin node:internal/bootstrap/realm:420:24",
            "requireBuiltin",
            "node:internal/bootstrap/realm",
            420,
        ),
        ("Script:~ /srv/app.js:1:1", "(anonymous)", "/srv/app.js", 1),
        ("JS:* /srv/a b.js:3:17", "JS:* /srv/a b.js:3:17", "", 0),
        ("long M.parse(int)", "long M.parse(int)", "", 0),
    ],
)
def test_functions_are_told_by_what_their_compiler_calls_them(
    name: str, function: str, file: str, line: int
) -> None:
    """All versions of a function, more and less optimized ones, are the same to their reader."""
    frame = jit_frame(name, JIT)
    assert (frame.name, frame.file, frame.start_line, frame.module) == (function, file, line, ANONYMOUS)


def test_this_is_no_32_bit_process() -> None:
    assert not is_32_bit(1)
    assert not is_32_bit(0)


def test_a_process_in_the_middle_of_an_exec_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel writes the auxiliary vector last."""
    begins = [bytes(8), bytes(8), struct.pack("<II", 33, 0xF7F0_0000)]
    monkeypatch.setattr(identity, "_begin_of_auxv", lambda pid: begins.pop(0))
    assert is_32_bit(1)
    assert not begins


@pytest.mark.parametrize(
    ("name", "told"), [("parse", "no place that stands out"), (ANONYMOUS, "start java with")]
)
def test_a_loss_that_has_no_names_is_answered_by_how_to_get_them(name: str, told: str) -> None:
    """A hundred places that lose a little each, or code in which nobody knows places."""
    process = ProcessInfo(7, "java", "/usr/bin/java -cp x Main", cores=4)
    samples = [
        PathSample(
            (Frame("main"), Frame(f"{name}{number}" if name == "parse" else name, module=ANONYMOUS)),
            attribute(2, 1e6, 2, 4, ThreadState.WORKING), Origin(7, tid=number % 4),
        )
        for number in range(400)
    ]  # fmt: skip
    profile = Profile(process, 1.0, 499, samples)
    line = nothing_to_act_on(profile, profile.total())
    assert told in line and line.startswith("50 % of the cores' time is lost")
