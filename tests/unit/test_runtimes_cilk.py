# SPDX-License-Identifier: Apache-2.0
"""What the agents for the three Cilks say: names, versions, and n_w of live processes on the stand-in runtimes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cilk_process import (
    CILK,
    CILK5_SOURCE,
    FLAGS,
    SPAWN_SOURCE,
    count_working,
    go_on,
    let_go,
    memories,
    pack,
    settles_at,
    stepped,
)
from gomp_process import fsbase_of
from logical_stacks import frames, text
from parprof.files.elf import ElfFile
from parprof.logical.bichord import logical_projection
from parprof.logical.folding import Folder
from parprof.plans import MAX_WORKERS, Edge, Root, UnknownLayout, WorkerArray
from parprof.runtimes import Agent, agent_for_library, agents
from parprof.runtimes.cilk5 import Cilk5
from parprof.runtimes.cilkplus import CilkPlus
from parprof.runtimes.opencilk import OpenCilk, layout_of
from parprof.runtimes.tlsslots import tls_slots

STATES = [("serial", None), ("two", 2), ("one", 1), ("serial again", 0)]
"""What the programs of `cilk_process` do in turn, and how many workers work then."""

CILK5_LIBRARIES = ["libcilk.so.0", "libcilk.g.so.0", "libcilk.p.so.0", "libcilk.g.p.so.0"]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cilk")
    libraries = ["libopencilk.so.1", "libcilkrts.so.5"]
    wanted = [*libraries, *CILK5_LIBRARIES, "stripped/libopencilk.so.1", "stripped/libcilkrts.so.5"]
    subprocess.run(
        ["make", "-s", "-C", str(CILK), f"OUT={out}", *(str(out / name) for name in wanted)],
        check=True, capture_output=True,
    )  # fmt: skip
    (out / "spawn.c").write_text(SPAWN_SOURCE)
    (out / "cilk5.c").write_text(CILK5_SOURCE)

    def compile_(source: str, library: str, name: str, *more: str) -> None:
        path = out / library
        subprocess.run(["gcc", *FLAGS, str(out / source), str(path), f"-Wl,-rpath,{path.parent}", *more,
                        "-o", str(out / name)], check=True)  # fmt: skip

    for abi, library in (("cheetah", libraries[0]), ("cilkplus", libraries[1])):
        flag = f'-DCILK_ABI="{abi}_abi.h"'
        compile_("spawn.c", library, abi, flag)
        compile_("spawn.c", f"stripped/{library}", f"{abi}.stripped", flag, "-s")
    for library in CILK5_LIBRARIES:
        compile_("cilk5.c", library, library.replace("lib", "with."))
    # what a library is called tells nothing
    (out / "renamed").mkdir()
    subprocess.run(["cp", out / CILK5_LIBRARIES[3], out / "renamed" / CILK5_LIBRARIES[0]], check=True)
    subprocess.run(["gcc", *FLAGS, str(out / "cilk5.c"), str(out / CILK5_LIBRARIES[3]), "-o", str(out / "with.renamed"),
                    f"-Wl,-rpath,{out}/renamed"], check=True)  # fmt: skip
    (out / "renamed" / CILK5_LIBRARIES[3]).symlink_to(CILK5_LIBRARIES[0])
    subprocess.run(["gcc", *FLAGS, '-DCILK_ABI="cheetah_abi.h"', "-static", "-pthread", str(out / "spawn.c"),
                    str(CILK / "cheetah.c"), "-o", str(out / "cheetah.static")], check=True)  # fmt: skip
    return out


def plan_for(agent: Agent, pid: int) -> tuple[WorkerArray, Any, str]:
    """The agent's plan, the memory that it was made from, and the file."""
    for name, memory, load_map in memories(pid):
        dso = next(dso for dso in load_map.dsos() if dso.name == name)
        try:
            plan = agent.memory(dso, memory)
        except UnknownLayout:
            continue
        if plan is not None:
            assert isinstance(plan, WorkerArray)
            return plan, memory, name
    raise AssertionError("no plan")


@pytest.mark.parametrize(
    ("program", "agent", "kind"),
    [
        ("cheetah", OpenCilk(), Root.POINTER), ("cheetah.static", OpenCilk(), Root.POINTER),
        ("cheetah.stripped", OpenCilk(), Root.THREAD_LOCAL),
        ("cilkplus", CilkPlus(), Root.POINTER), ("cilkplus.stripped", CilkPlus(), Root.POINTER),
    ],
)  # fmt: skip
def test_working_workers_of_a_live_process(build: Path, program: str, agent: Agent, kind: Root) -> None:
    with stepped(build / program) as process:
        for state, expected in STATES:
            go_on(process, state)
            plan, memory, _ = plan_for(agent, process.pid)
            if program in ("cheetah", "cheetah.stripped"):
                # the program's file has a slot for the thread-local, and comes before the library
                assert plan.root_kind is Root.THREAD_LOCAL
            else:
                assert plan.root_kind is kind
            fsbase = fsbase_of(process.pid) if plan.root_kind is Root.THREAD_LOCAL else 0
            if expected is None:
                assert count_working(plan, memory, fsbase) is None
            else:
                assert settles_at(plan, memory, expected, fsbase) == expected
            let_go(process)


@pytest.mark.parametrize("g", [0, 0x1E240, 0x5000], ids=["null", "not relocated", "all zero"])
def test_cilk_plus_before_it_starts(g: int) -> None:
    """Its variable is initialized, by a relocation, with the address of a state that is all zero."""
    memory = MadeUp("v2.1", [])
    memory.blocks = {0x1000: g.to_bytes(8, "little"), 0x5000: bytes(2048)}
    memory.symbol = lambda name: 0x1000  # type: ignore[method-assign]
    plan = CilkPlus().memory(file_with(), memory)
    assert isinstance(plan, WorkerArray) and plan.root == 0x1000


def test_both_ways_into_cheetah_agree(build: Path) -> None:
    with stepped(build / "cheetah") as process:
        for state, _ in STATES[:2]:
            go_on(process, state)
            if state != "two":
                let_go(process)
        found = {}
        for name, memory, load_map in memories(process.pid):
            dso = next(dso for dso in load_map.dsos() if dso.name == name)
            plan = OpenCilk().memory(dso, memory)
            if isinstance(plan, WorkerArray):
                found[name] = plan.root_kind, count_working(plan, memory, fsbase_of(process.pid))
        assert found == {"cheetah": (Root.THREAD_LOCAL, 2), "libopencilk.so.1": (Root.POINTER, 2)}
        let_go(process)


@pytest.mark.parametrize("library", [*CILK5_LIBRARIES, "renamed"])
def test_working_workers_of_cilk5(build: Path, library: str) -> None:
    with stepped(build / library.replace("lib", "with.").replace("renamed", "with.renamed")) as process:
        for state, expected in STATES:
            go_on(process, state)
            plan, memory, name = plan_for(Cilk5(), process.pid)
            file = build / (f"renamed/{CILK5_LIBRARIES[0]}" if library == "renamed" else library)
            assert (name, plan.root_kind) == (file.name, Root.LEARNED)
            with ElfFile.open(str(file)) as elf:
                context = next(
                    table.symbol(entry).value for table in elf.symbol_tables for entry in table.entries()
                    if table.name(entry) == "the_context"
                )  # fmt: skip
            states = int.from_bytes(memory.read(memory.address(context) + 8, 8), "little")
            if expected is None:
                assert states == 0
            else:  # the first worker's state, as a slow function gets it
                ws = int.from_bytes(memory.read(states, 8), "little")
                assert settles_at(plan, memory, expected, learned=ws) == expected
            let_go(process)


def test_a_library_of_cilk5_that_does_not_tell_how_it_was_built() -> None:
    memory = MadeUp("v2.1", [])
    memory.symbol = lambda name: 0x1000 if name == "Cilk_scheduler" else 0  # type: ignore[method-assign]
    with pytest.raises(UnknownLayout, match="does not tell"):
        Cilk5().memory(file_with(), memory)


def test_a_stripped_library_alone_leads_nowhere(build: Path) -> None:
    with stepped(build / "cheetah.stripped") as process:
        go_on(process, "serial")
        name, memory, load_map = next(m for m in memories(process.pid) if m[0].startswith("libopencilk"))
        dso = next(dso for dso in load_map.dsos() if dso.name == name)
        with pytest.raises(UnknownLayout, match=r"v2\.1 without symbols"):
            OpenCilk().memory(dso, memory)
        let_go(process)


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("libopencilk.so", "opencilk"), ("libopencilk.so.1", "opencilk"), ("libcilkrts.so.5", "cilkplus"),
        ("libcilkrts.so.5.0.0", "cilkplus"), ("libcilk.so.0", "cilk5"), ("libcilk.so.0.0.0", "cilk5"),
        ("libcilk.g.so.0", "cilk5"), ("libcilk.p.so.0", "cilk5"), ("libcilk.g.p.so.0", "cilk5"),
        ("libcilkscreen.so", None), ("mylibcilk.so.0", None), ("libcilkview.so", None),
    ],
)  # fmt: skip
def test_recognised_by_base_name(library: str, name: str | None) -> None:
    agent = agent_for_library(library)
    assert (agent.name if agent else None) == name


@pytest.mark.parametrize(
    ("agent", "library", "expected"),
    [
        (OpenCilk(), "libopencilk.so.1", {
            "longjmp_to_user_code": Edge.BEGIN, "boss_wait_helper": Edge.BEGIN, "longjmp_to_runtime": Edge.END,
            "scheduler_thread_proc": Edge.END, "extract_top_spawning_closure": Edge.STEAL}),
        (CilkPlus(), "libcilkrts.so.5", {
            "fiber_proc_to_resume_user_code_for_random_steal": Edge.BEGIN, "cilkrts_resume": Edge.BEGIN,
            "__cilkrts_bind_thread_1": Edge.BEGIN, "longjmp_into_runtime": Edge.END,
            "scheduler_thread_proc_for_system_worker": Edge.END, "detach_for_steal": Edge.STEAL}),
        (Cilk5(), "libcilk.so.0", {
            "invoke_main_slow": Edge.WORK, "Cilk_child_main": Edge.END, "Cilk_scheduler": Edge.END,
            "finish_promote": Edge.STEAL}),
    ],
)  # fmt: skip
def test_hooks_in_the_libraries(build: Path, agent: Agent, library: str, expected: dict[str, Edge]) -> None:
    with ElfFile.open(str(build / library)) as elf:
        names = {symbol.name for symbol in elf.symbols()}
    found = {name: h.edge for name in names for h in agent.hooks if h.pattern.fullmatch(name)}
    assert found == expected
    assert agent.marker in names
    assert all(len(h.why) > 10 for h in agent.hooks)


def test_nothing_is_probed_on_return_where_work_moves() -> None:
    for agent in agents():
        if agent.cactus:
            assert not agent.return_probes
            assert not any(h.edge in (Edge.WORK, Edge.WAIT, Edge.REGION) for h in agent.hooks)
            assert not agent.outlined.fullmatch("sort.outline_.split.otd1")
            assert not agent.outlined.fullmatch("sort_spawn_helper")
    assert {agent.name for agent in agents() if agent.cactus} == {"opencilk", "cilkplus"}


@pytest.mark.parametrize(
    ("names", "version"),
    [
        ({"tls_worker", "__cilkrts_sync"}, "v1"),
        ({"__cilkrts_tls_worker", "__cilkrts_use_extension"}, "v2.0"),
        ({"__cilkrts_tls_worker"}, "v2.0"),
        ({"__cilkrts_tls_worker", "__cilkrts_use_extension", "__cilkrts_current_fh"}, "v2.1"),
        ({"__cilkrts_tls_worker", "__cilkrts_local_hyper_table_alloc"}, "v2.1"),
        ({"__cilkrts_sync"}, None),
    ],
)
def test_cheetah_versions(names: set[str], version: str | None) -> None:
    layout = layout_of(names)
    assert (layout.version if layout else None) == version


OFFSETS = {
    "v1": ("tls_worker", 32, 40, 48, 8, 32, 40),
    "v2.0": ("__cilkrts_use_extension", 24, 48, 56, 16, 32, 48),
    "v2.1": ("__cilkrts_current_fh", 0, 16, 24, 8, 24, 40),
}
"""A symbol, then worker.self, .g, .l, l.state, g.nworkers, .workers: tests' own copy of cheetah's offsets."""


class MadeUp:
    """A stand-in for a process's memory: three workers, of which those in ``states`` 13 run."""

    def __init__(self, version: str, states: list[int]) -> None:
        _, self_, g, l_, state, count, workers = OFFSETS[version]
        self.blocks = {
            0x1000: (0x2000).to_bytes(8, "little"),
            0x2000: pack(128, n=(count, "I", len(states)), w=(workers, "Q", 0x3000)),
            0x3000: b"".join((0x10000 + 0x1000 * i).to_bytes(8, "little") for i in range(len(states))),
        }
        for i, value in enumerate(states):
            self.blocks[0x10000 + 0x1000 * i] = pack(
                128, s=(self_, "I", i), g=(g, "Q", 0x2000), l=(l_, "Q", 0x20000 + 0x1000 * i)
            )
            self.blocks[0x20000 + 0x1000 * i] = pack(64, s=(state, "H", value))

    def read(self, address: int, size: int) -> bytes:
        for start, block in self.blocks.items():
            if start <= address and address + size <= start + len(block):
                return block[address - start : address - start + size]
        raise OSError(14, "unmapped")

    def symbol(self, name: str) -> int:
        return 0x1000 if name == "default_cilkrts" else 0

    def address(self, vaddr: int) -> int:
        return vaddr


def file_with(*names: str) -> Any:
    """A stand-in for a file with these symbols."""
    table = SimpleNamespace(
        entries=lambda: iter(range(1, len(names) + 1)), name=lambda entry: names[entry - 1]
    )
    return SimpleNamespace(name="libopencilk.so", elf=SimpleNamespace(symbol_tables=[table], segments=[]))


@pytest.mark.parametrize("version", OFFSETS)
def test_cheetah_layouts(version: str) -> None:
    memory = MadeUp(version, [13, 10, 13])
    plan = OpenCilk().memory(file_with(OFFSETS[version][0]), memory)
    assert isinstance(plan, WorkerArray)
    assert count_working(plan, memory) == 2


@pytest.mark.parametrize("version", OFFSETS)
@pytest.mark.parametrize("other", OFFSETS)
def test_the_layout_of_another_version_is_refused(version: str, other: str) -> None:
    if version == other:
        return
    with pytest.raises(UnknownLayout):
        OpenCilk().memory(file_with(OFFSETS[version][0]), MadeUp(other, [10, 13, 11]))


def test_a_pool_that_is_too_large_is_not_read() -> None:
    """Its n_w would leave out the workers that were not looked at."""
    memory = MadeUp("v2.1", [13, 13])
    memory.blocks[0x2000] = pack(128, n=(24, "I", MAX_WORKERS), w=(40, "Q", 0x3000))
    assert OpenCilk().memory(file_with("__cilkrts_current_fh"), memory) is not None
    memory.blocks[0x2000] = pack(128, n=(24, "I", MAX_WORKERS + 1), w=(40, "Q", 0x3000))
    with pytest.raises(UnknownLayout, match=f"a pool of {MAX_WORKERS + 1} workers"):
        OpenCilk().memory(file_with("__cilkrts_current_fh"), memory)


def damage(change: Callable[[MadeUp], None]) -> MadeUp:
    memory = MadeUp("v2.1", [13, 13])
    change(memory)
    return memory


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.blocks.pop(0x10000), lambda m: m.blocks.pop(0x20000),
        lambda m: m.blocks.update({0x2000: pack(128, n=(24, "I", 1 << 20), w=(40, "Q", 0x3000))}),
        lambda m: m.blocks.update({0x20000: pack(64, s=(8, "H", 99))}),
    ],
)  # fmt: skip
def test_damaged_structures_are_refused(change: Callable[[MadeUp], None]) -> None:
    with pytest.raises(UnknownLayout, match="libopencilk"):
        OpenCilk().memory(file_with("__cilkrts_current_fh"), damage(change))


def test_unknown_version_is_refused() -> None:
    with pytest.raises(UnknownLayout, match="none of v1"):
        OpenCilk().memory(file_with("something"), MadeUp("v2.1", [13]))
    nothing = MadeUp("v2.1", [13])
    nothing.symbol = lambda name: 0  # type: ignore[method-assign]
    assert OpenCilk().memory(file_with("something"), nothing) is None


def test_thread_local_slots(build: Path) -> None:
    with ElfFile.open(str(build / "cheetah")) as elf:
        assert tls_slots(elf, "__cilkrts_tls_worker").offset
        assert tls_slots(elf, "no_such_variable").offset == 0
    with ElfFile.open(str(build / "stripped/libopencilk.so.1")) as elf:
        slots = tls_slots(elf, "__cilkrts_tls_worker")
        assert slots.module and not slots.offset


@pytest.mark.parametrize(
    ("agent", "name", "author"),
    [
        (OpenCilk(), "sort.outline_.split.otd1", "sort"), (OpenCilk(), "ns::f(int).outline_.split", "ns::f(int)"),
        (OpenCilk(), "sort", "sort"), (OpenCilk(), "outline_", "outline_"),
        (OpenCilk(), "sort.outline_det.achd16.otd1", "sort"), (OpenCilk(), "sort.outline_det.achd.peel.otd1", "sort"),
        (OpenCilk(), "sort.outline_pfor.cond.ls1", "sort"), (OpenCilk(), "sort_spawn_helper", "sort"),
        (OpenCilk(), "sort.outline_pfor.cond.ls1.outline_.split.otd1", "sort"),
        (OpenCilk(), ".outline_a", ".outline_a"),
        (CilkPlus(), "_cilk_spn_0", "_cilk_spn_0"),
        (CilkPlus(), "sort_spawn_helper", "sort"), (CilkPlus(), "__cilk_spawn_helper", "__cilk_spawn_helper"),
        (CilkPlus(), "__cilk_spawn_helperV0", "__cilk_spawn_helperV0"), (CilkPlus(), "sort", "sort"),
        (Cilk5(), "_cilk_sort_slow", "sort"), (Cilk5(), "_cilk_a_slow_b_slow", "a_slow_b"),
        (Cilk5(), "cilk_sort_slow", "cilk_sort_slow"),
    ],
)  # fmt: skip
def test_author_names(agent: Agent, name: str, author: str) -> None:
    assert agent.author_name(name) == author


@pytest.mark.parametrize(
    ("name", "encloser"),
    [
        ("_cilk_spn_0", ""), ("_cilk_for_12", ""), ("_cilk_spn_0.constprop.0", ""), ("_cilk_spn_fan", None),
        ("my_cilk_for_1", None), ("sort_spawn_helper", None),
    ],
)  # fmt: skip
def test_parts_that_gcc_numbers(name: str, encloser: str | None) -> None:
    assert CilkPlus().encloser(name) == encloser


@pytest.mark.parametrize(
    ("agent", "physical", "logical"),
    [
        (OpenCilk(), "main f f.outline_det.achd16.otd1 g", "main f g"),
        (OpenCilk(), "main f f.outline_pfor.cond.ls1 f.outline_pfor.cond.ls1 g", "main f g"),
        (OpenCilk(), "main f f.outline_pfor.cond.ls1 f.outline_pfor.cond.ls1.outline_.split.otd1 g", "main f g"),
        (OpenCilk(), "main f f.outline_.split.otd1 f f.outline_.split.otd1 g", "main f f g"),
        (OpenCilk(), "main f cilkify* __cilkrts_internal_invoke_cilkified_root worker_scheduler", "main f cilkify"),
        (OpenCilk(), "main f __cilk_sync_nothrow* __cilkrts_sync", "main f __cilk_sync_nothrow"),
        (CilkPlus(), "main f _cilk_spn_0 g", "main f g"),
        (CilkPlus(), "main f _cilk_spn_1 f _cilk_spn_1 g", "main f f g"),
        (CilkPlus(), "main f __cilkrts_cilk_for_32 cilk_for_recursive<unsigned> _cilk_for_0 g", "main f g"),
    ],
)  # fmt: skip
def test_helpers_of_compilers_are_folded_into_their_functions(
    agent: Agent, physical: str, logical: str
) -> None:
    modules = {"cilk_for_recursive<unsigned>": "libcilkrts.so.5"}
    path = [replace(frame, module=modules.get(frame.name, "program")) for frame in frames(physical)]
    assert text(logical_projection(Folder([agent]).fold(tuple(path)).path)) == logical


def test_no_line_is_shown_that_nobody_was_seen_at() -> None:
    """A closure names the slow version alone: its first line is where the procedure is defined."""
    path = tuple(
        replace(frame, start_line=7) for frame in frames("main _cilk_a_slow:7 _cilk_b_slow:9 leaf:7")
    )
    shown = logical_projection(Folder([Cilk5()]).fold(path).path)
    assert [(frame.name, frame.line) for frame in shown] == [("main", 1), ("a", 0), ("b", 9), ("leaf", 7)]


@pytest.mark.parametrize(
    ("agent", "name", "module", "owned"),
    [
        (OpenCilk(), "__cilk_prepare_spawn", "program", True), (OpenCilk(), "__cilk_sync", "program", True),
        (OpenCilk(), "__cilk_sync_nothrow", "program", True), (OpenCilk(), "__cilk_parent_epilogue", "program", True),
        (OpenCilk(), "__cilk_helper_epilogue", "program", True), (OpenCilk(), "cilkify", "program", True),
        (OpenCilk(), "__cilk_helper_epilogue_exn", "program", True), (OpenCilk(), "uncilkify", "program", True),
        (OpenCilk(), "get_worker_from_stack", "program", True), (OpenCilk(), "cilkify_all", "program", False),
        (OpenCilk(), "sysdep_save_fp_ctrl_state", "program", True), (OpenCilk(), "sysdep_mine", "program", False),
        (Cilk5(), "CILK_MB", "program", True),
        (OpenCilk(), "anything", "libopencilk.so.1", True), (OpenCilk(), "worker_scheduler", "program", True),
        (OpenCilk(), "__cilkrts_enter_frame", "program", True), (OpenCilk(), "sort", "program", False),
        (OpenCilk(), "sort.outline_.split.otd1", "program", False), (OpenCilk(), "worker_schedulers", "program", False),
        (CilkPlus(), "longjmp_into_runtime", "libcilkrts.so.5", True), (CilkPlus(), "sort_spawn_helper", "p", False),
        (Cilk5(), "_cilk_cilk_main_import", "program", True), (Cilk5(), "invoke_main_slow", "program", True),
        (Cilk5(), "_cilk_sort_slow", "program", False), (Cilk5(), "Cilk_sync", "program", True),
    ],
)  # fmt: skip
def test_whose_frames(agent: Agent, name: str, module: str, owned: bool) -> None:
    assert agent.owns(name, module) == owned


@pytest.mark.parametrize(
    ("agent", "name", "kind"),
    [
        (OpenCilk(), "__cilkrts_detach", "create"), (OpenCilk(), "__cilkrts_sync", "sync"),
        (OpenCilk(), "extract_top_spawning_closure", "schedule"), (OpenCilk(), "worker_scheduler", "schedule"),
        (OpenCilk(), "hyper_table_lookup", "other"), (OpenCilk(), "__cilk_prepare_spawn", "create"),
        (OpenCilk(), "sysdep_save_fp_ctrl_state", "create"), (OpenCilk(), "__cilk_parent_epilogue", "sync"),
        (OpenCilk(), "__cilk_helper_epilogue_exn", "sync"), (CilkPlus(), "__cilkrts_cilk_for_64", "create"),
        (CilkPlus(), "__cilkrts_enter_frame_1", "create"), (CilkPlus(), "worker_scheduler_function", "schedule"),
        (CilkPlus(), "__cilkrts_leave_frame", "sync"), (CilkPlus(), "random_steal", "schedule"),
        (Cilk5(), "Cilk_sync", "sync"), (Cilk5(), "Cilk_scheduler", "schedule"), (Cilk5(), "Cilk_alloc", "other"),
    ],
)  # fmt: skip
def test_kinds_of_overhead(agent: Agent, name: str, kind: str) -> None:
    assert agent.overhead(name) == kind
