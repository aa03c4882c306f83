# SPDX-License-Identifier: Apache-2.0
"""Physical stacks to bichords."""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import combinations
from pathlib import Path as FilePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

sys.path.insert(0, str(FilePath(__file__).parent))

from logical_stacks import FOLDER, PROGRAM, folded, frames, physical_projection, stacks, text
from parprof.logical.bichord import Association, Bichord, bichords, logical_projection
from parprof.logical.folding import UNKNOWN_CONTEXT, Folder
from parprof.logical.owners import MOST_FRAMES
from parprof.model import Frame, Path


@pytest.mark.parametrize(
    ("own", "logical"),
    [
        ("main f g", "main f g"),
        ("main f GOMP_parallel f._omp_fn.0 g", "main f g"),
        ("main f @loop GOMP_parallel f._omp_fn.0 @inner g", "main f loop inner g"),
        ("main f GOMP_parallel gomp_team_end f._omp_fn.0 GOMP_barrier gomp_wait syscall", "main f GOMP_barrier"),
        ("main h GOMP_parallel f._omp_fn.0 g", "main h f._omp_fn.0 g"),
        ("main f __kmpc_fork_call __kmp_fork_call __kmp_invoke_microtask .omp_outlined. g", "main f g"),
        ("main f __kmpc_fork_call .omp_outlined. .omp_outlined._debug__* g", "main f g"),
        ("main f __kmpc_fork_call f.omp_outlined f.omp_outlined_debug__* g", "main f g"),
        ("main f __kmpc_omp_taskwait __kmp_execute_tasks .omp_task_entry..4 g", "main f .omp_task_entry..4 g"),
        ("main f GOMP_taskwait f._omp_fn.1 g", "main f g"),
        ("main f GOMP_parallel f._omp_fn.0 GOMP_parallel f._omp_fn.1 g", "main f g"),
        ("main f g* GOMP_parallel g._omp_fn.0", "main f g"),
        ("main f now* GOMP_parallel f._omp_fn.0 g", "main f g"),
        ("main f @loop now* read* GOMP_parallel f._omp_fn.0 @inner g", "main f loop inner g"),
        ("main f now* GOMP_parallel gomp_team_end f._omp_fn.0 GOMP_barrier", "main f GOMP_barrier"),
        ("main f h GOMP_parallel f._omp_fn.0 g", "main f h f._omp_fn.0 g"),
        ("main qsort f", "main qsort f"),
        ("main pthread_mutex_lock syscall", "main pthread_mutex_lock"),
        ("main GOMP_parallel gomp_team_start pthread_create syscall", "main GOMP_parallel"),
        ("gomp_thread_start gomp_barrier_wait", "[libgomp worker]"),
        ("main f libgomp.so.1+0x1e2fd libgomp.so.1+0x20f10", "main f [libgomp]"),
        ("main f libgomp.so.1+0x1e2fd gomp_barrier_wait", "main f gomp_barrier_wait"),
        ("GOMP_x f._omp_fn.0 g", "f._omp_fn.0 g"),
        ("fib GOMP_task fib._omp_fn.0 fib GOMP_task fib._omp_fn.0 fib", "fib fib fib"),
        ("main f std::thread::thread<x> std::thread::_M_start_thread pthread_create", "main f std::thread::thread<x>"),
    ],
)  # fmt: skip
def test_rules(own: str, logical: str) -> None:
    assert folded(own) == logical


@pytest.mark.parametrize(
    ("own", "outer", "before", "logical"),
    [
        ("f._omp_fn.0 g", "gomp_thread_start", "main f", "main f g"),
        ("f._omp_fn.0 @inner g", "gomp_thread_start", "main f @loop", "main f loop inner g"),
        ("gomp_thread_start f._omp_fn.0 g", "", "main f", "main f g"),
        ("f._omp_fn.0 g", "main h GOMP_taskwait", "main f", "main f g"),
        ("f._omp_fn.0 g", "gomp_thread_start", "main f now*", "main f g"),
        ("f._omp_fn.0 @inner g", "gomp_thread_start", "main f @loop now* read*", "main f loop inner g"),
        ("f._omp_fn.0 g", "gomp_thread_start", "main f h", "main f h f._omp_fn.0 g"),
        ("f._omp_fn.0 g", "gomp_thread_start", "main h", "main h f._omp_fn.0 g"),
        (".omp_task_entry. g", "__kmp_launch_thread", "main f", "main f g"),
        ("worker step", "", "main make_pool", "main make_pool worker step"),
        ("gomp_thread_start gomp_wait", "", "main f", "main f gomp_thread_start"),
    ],
)
def test_work_goes_on_where_it_was_created(own: str, outer: str, before: str, logical: str) -> None:
    assert folded(own, outer=outer, before=before) == logical


def test_what_creates_work_leaves_no_trace_in_its_context() -> None:
    assert folded("main f GOMP_parallel", keep=False) == "main f"
    assert folded("main f pthread_create", keep=False) == "main f"
    for below in ("", "__pthread_create_2_1 ", "pthread_create "):
        assert folded(f"main f {below}create_thread __GI___clone_internal __clone3", keep=False) == "main f"
    assert folded("main create_thread f pthread_create", keep=False) == "main create_thread f"
    assert (
        folded("main f std::thread::thread<x>* std::thread::_M_start_thread pthread_create", keep=False)
        == "main f"
    )
    assert folded("GOMP_parallel", keep=False) == ""


def test_the_body_gives_its_lines_to_its_function() -> None:
    path = FOLDER.fold(frames("main:3 f:10 @loop GOMP_parallel f._omp_fn.0:12 g:40")).path
    main, f, loop, g = logical_projection(path)
    assert [frame.line for frame in (main, f, loop, g)] == [3, 12, 12, 40]
    assert f.address == loop.address == frames("a b c d f._omp_fn.0")[4].address
    assert loop.inlined and not f.inlined
    assert [bichord.association for bichord in path] == [
        Association.ONE_TO_ONE, Association.ONE_TO_ONE, Association.MANY_TO_ONE, Association.ONE_TO_ONE,
    ]  # fmt: skip
    assert text(path[2].physical) == "loop GOMP_parallel f._omp_fn.0"


def test_associations_of_a_worker() -> None:
    path = FOLDER.fold(frames("f._omp_fn.0 g"), outer=frames("gomp_a gomp_b"), before=frames("main x f")).path
    assert [(b.association.value, text(b.physical), text(b.logical)) for b in path] == [
        ("1-0", "gomp_a", ""),
        ("1-M", "gomp_b", "main x"),
        ("1-1", "f._omp_fn.0", "f"),
        ("1-1", "g", "g"),
    ]


def test_a_frame_is_never_inlined_into_what_is_gone() -> None:
    path = logical_projection(FOLDER.fold(frames("main GOMP_x lambda* deeper*")).path)
    assert [(frame.name, frame.inlined) for frame in path] == [
        ("main", False),
        ("lambda", False),
        ("deeper", True),
    ]


def test_calls_name_who_creates_which_work() -> None:
    done = FOLDER.fold(frames("main f:3 GOMP_parallel f._omp_fn.0:9 g __kmpc_fork_call .omp_outlined. h"))
    assert {function[0]: text(done.creator(function)) for function in done.calls} == {
        "f._omp_fn.0": "main f",
        ".omp_outlined.": "main f g",
    }
    lines = {function[0]: [frame.line for frame in done.creator(function)] for function in done.calls}
    assert lines["f._omp_fn.0"] == [1, 3]  # where it was called, not where its body ran
    assert not FOLDER.fold(frames("main h GOMP_taskwait f._omp_fn.0 g")).calls


def test_unknown_context_joins_nothing() -> None:
    path = FOLDER.fold(frames(".omp_outlined. g"), outer=frames("__kmp_x"), before=(UNKNOWN_CONTEXT,)).path
    assert text(logical_projection(path)) == "[unknown context] .omp_outlined. g"


def is_runtime(path: Path) -> list[bool]:
    return [owner is not None for owner in FOLDER.owners(path)]


def authors(path: Path) -> list[str]:
    owners = FOLDER.owners(path)
    return [f.name for f, owner in zip(path, owners, strict=True) if owner is None and not FOLDER.is_part(f)]


def inlined_beside_calls(path: Path) -> list[int]:
    """Where frames are that the line table has around the call of a part of the function that they are inlined into:
    they may be left out, see `test_what_is_inlined_beside_the_call_of_a_region`."""
    out: list[int] = []
    runtimes = is_runtime(path)
    for at, frame in enumerate(path):
        before = at - 1
        while FOLDER.is_part(frame) and before >= 0 and runtimes[before]:
            before -= 1
        inner = before
        while 0 < inner and (path[inner].is_loop or is_at_its_callers(path, inner)):
            inner -= 1
        out += range(inner + 1, before + 1)
    return sorted(set(out))


def is_at_its_callers(path: Path, at: int) -> bool:
    """Whether a frame is inlined, at the very address of the one around it."""
    return path[at].inlined and path[at].address == path[at - 1].address


def without(path: Path, gone: Collection[int]) -> Path:
    return tuple(frame for at, frame in enumerate(path) if at not in gone)


@example(frames("main qsort c a* GOMP_taskwait c._omp_fn.7"), False, (), ())
@given(stacks(), st.booleans(), stacks(3), stacks(4))
def test_any_stack(own: Path, is_cut: bool, outer: Path, creator: Path) -> None:
    before = logical_projection(FOLDER.fold(creator, keep_runtime_leaf=False).path) if is_cut else None
    path = FOLDER.fold(own, outer=outer if is_cut else (), before=before).path
    assert physical_projection(path) == ((*outer, *own) if is_cut else own)
    logical = logical_projection(path)
    assert not any(is_runtime(logical)[:-1])
    assert is_runtime(logical)[-1:] == is_runtime(own)[-1:]
    for bichord in path:
        assert bichord == Bichord.of(bichord.physical, bichord.logical)
    if before is None:
        # nothing of the author's is doubled, nor lost but what is inlined beside the call of a part
        beside = inlined_beside_calls(own)
        assert any(
            authors(logical) == authors(without(own, gone))
            for count in range(len(beside) + 1)
            for gone in combinations(beside, count)
        )
    else:
        assert [f.name for f in logical[: len(before)]] == [f.name for f in before]


@given(stacks())
def test_folding_twice_is_folding_once(own: Path) -> None:
    once = logical_projection(FOLDER.fold(own).path)
    assert logical_projection(FOLDER.fold(once).path) == once


@given(stacks())
def test_inlined_frames_lie_where_their_function_does(own: Path) -> None:
    logical = logical_projection(FOLDER.fold(own).path)
    for caller, frame in zip(logical, logical[1:], strict=False):
        if frame.inlined:
            assert frame.address == caller.address


@pytest.mark.parametrize("depth", [500, 20_000])
def test_deep_recursion(depth: int) -> None:
    step = [Frame("f", module=PROGRAM, address=1), Frame("GOMP_task", module="libgomp.so.1", address=2),
            Frame("f._omp_fn.0", module=PROGRAM, address=3)]  # fmt: skip
    path = FOLDER.fold(tuple(step * depth)).path
    assert len(path) == depth
    assert {bichord.association for bichord in path} == {Association.MANY_TO_ONE}


def test_bichords() -> None:
    one, two, three = frames("a b c")
    assert [b.association.value for b in bichords((one, two), (two, three))] == ["1-1", "1-1"]
    assert [b.association.value for b in bichords((one, two, three), (one, two, three))] == ["1-M", "M-1"]
    for physical, logical in (((), (one,)), ((one, two), (one, two))):
        with pytest.raises(ValueError):
            Bichord.of(physical, logical)


def test_what_is_known_of_frames_that_come_and_go_is_bounded() -> None:
    """Each interpreter has frames of its own; the daemon sees one after the other, for months."""
    folder = Folder()
    for number in range(2 * MOST_FRAMES + 10):
        frame, body = Frame("f", line=number), Frame("g", line=number)
        assert folder.owners((frame,)) == [None]
        assert folder.plain(frame).physical == (frame,)
        assert folder.moved(frame, body).name == folder.moved(frame, body).name
        if number % MOST_FRAMES == 0:
            assert folder.owner(Frame(f"f{number}")) is None
    assert max(map(len, (folder._told, folder._plain, folder._moved))) <= MOST_FRAMES
