# SPDX-License-Identifier: Apache-2.0
"""Names of loops by their source lines, their place in call paths, and what reports make of them."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled import compile_once
from parprof.cct.tree import CallingContextTree
from parprof.cct.views import flat_view, fold_recursion, without_loops
from parprof.exporters import json_report, pprof, table
from parprof.exporters.pprof_reader import decode
from parprof.exporters.views import View
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.loops.kept import KeptLoops
from parprof.loops.names import LoopName, LoopPlace, name_loops
from parprof.loops.nest import Loop, LoopNest
from parprof.loops.scopes import LoopScopes, insert
from parprof.model import Frame, Frames, PathSample, Profile
from parprof.model import Path as CallPath
from parprof.symbols.symbolizer import Symbolizer
from profiles import few_samples, frame, heat
from symbol_programs import need_symbolic, open_dso

pytestmark = pytest.mark.usefixtures("new_cache_directory")

SOURCE = Path(__file__).with_name("loops_fixture.c")
FUNCTIONS = (
    "simple", "nested", "while_loop", "do_loop", "breaks", "vector", "sequence", "inlined", "forever", "switched",
    "straight", "recursive",
)  # fmt: skip
Range = tuple[int, int]


@pytest.fixture(scope="module")
def cache() -> Iterator[DsoCache]:
    with DsoCache() as out:
        yield out


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptLoops]:
    with KeptLoops() as out:
        yield out


def marked() -> dict[str, Range]:
    """Name of each loop in the source -> its first and last line."""
    lines = SOURCE.read_text().splitlines()
    first = {m[1]: n for n, line in enumerate(lines, 1) for m in re.finditer(r"// ([\w.]+)\{", line)}
    last = {m[1]: n for n, line in enumerate(lines, 1) for m in re.finditer(r"// \}([\w.]+)", line)}
    assert first.keys() == last.keys()
    return {name: (first[name], last[name]) for name in first}


def build(directory: Path, compiler: str, *options: str) -> Path:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    pytest.importorskip("capstone", reason="capstone is not installed")
    compile_once([compiler, "-fPIC", "-shared", *options, SOURCE, "-o", directory / "a.so"])
    return directory / "a.so"


def paths_in(dso: Dso, symbolizer: Symbolizer, scopes: LoopScopes) -> dict[str, list[Frames]]:
    """Function -> the frames at each of its bytes."""
    assert dso.elf is not None
    symbols = {s.value: s for s in dso.elf.symbols() if s.size and s.name in FUNCTIONS}.values()
    requests = {s.name: [(dso, at, False) for at in range(s.value, s.value + s.size)] for s in symbols}
    flat = [request for group in requests.values() for request in group]
    frames = symbolizer.resolve(flat)
    scopes.prepare(dict.fromkeys(flat, 1), frames, 1)
    return {name: [scopes.scopes(r, frames[r]) for r in group] for name, group in requests.items()}


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3", "-Os"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_loops_are_on_their_lines(
    tmp_path: Path, cache: DsoCache, symbolizer: Symbolizer, kept: KeptLoops, compiler: str, level: str
) -> None:
    need_symbolic()
    dso = open_dso(cache, build(tmp_path, compiler, level, "-g"))
    scopes = LoopScopes(symbolizer.resolve, kept, seconds=60)
    found = paths_in(dso, symbolizer, scopes)
    assert not scopes.notes
    truth = marked()
    for function in FUNCTIONS:
        loops = {f for frames in found[function] for f in frames if f.is_loop}
        ranges = set()
        for loop in loops:
            matched = re.fullmatch(r"loop at loops_fixture\.c:(\d+)(?:-(\d+))?", loop.name)
            assert matched and loop.file.endswith(SOURCE.name) and loop.start_line == int(matched[1])
            ranges.add((int(matched[1]), int(matched[2] or matched[1])))
        expected = {lines for name, lines in truth.items() if name.startswith(f"{function}.")}
        assert len(ranges) == len(expected)
        for (first, last), (begin, end) in zip(sorted(ranges), sorted(expected), strict=True):
            # the line of a lone `for (;;)`, `do` or brace has no code but at -O0
            late = first - begin <= (function in ("forever", "do_loop"))
            assert first >= begin and late and end - 2 <= last <= end, (function, ranges, expected)


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_loops_are_between_functions_and_what_they_do(
    tmp_path: Path, cache: DsoCache, symbolizer: Symbolizer, kept: KeptLoops, compiler: str, level: str
) -> None:
    need_symbolic()
    dso = open_dso(cache, build(tmp_path, compiler, level, "-g"))
    found = paths_in(dso, symbolizer, LoopScopes(symbolizer.resolve, kept, seconds=60))
    outer, inner, leaf = (marked()[f"inlined.{loop}"] for loop in "abc")
    chains = {
        tuple((f.name.partition(":")[0] if f.is_loop else f.name, f.start_line) for f in reversed(frames))
        for frames in found["inlined"]
    }
    names = {tuple(name if "loop at" not in name else line for name, line in chain) for chain in chains}
    assert ("inlined",) in names
    assert ("inlined", outer[0]) in names
    assert ("inlined", outer[0], "helper", inner[0]) in names
    assert ("inlined", leaf[0], "leaf") in names
    assert not any("leaf" in chain and chain[-1] != "leaf" for chain in names)
    for frames in found["inlined"]:
        assert [f.inlined for f in frames] == [True] * (len(frames) - 1) + [False]
        assert len({(f.address, f.module, f.build_id) for f in frames}) == 1
        for inner_frame, outer_frame in zip(frames, frames[1:], strict=False):
            assert not inner_frame.is_loop or inner_frame.line == outer_frame.line


def test_without_lines_loops_have_addresses(
    tmp_path: Path, cache: DsoCache, symbolizer: Symbolizer, kept: KeptLoops
) -> None:
    for options in (["-O2"], ["-O2", "-s"]):
        dso = open_dso(cache, build(tmp_path, "gcc", *options))
        assert dso.elf is not None
        symbol = dso.elf.lookup(["nested"])["nested"][0]
        scopes = LoopScopes(symbolizer.resolve, kept)
        requests = [(dso, at, False) for at in range(symbol.value, symbol.value + symbol.size)]
        frames = symbolizer.resolve(requests)
        scopes.prepare(dict.fromkeys(requests, 1), frames, 1)
        deepest = max((scopes.scopes(r, frames[r]) for r in requests), key=len)
        assert [f.name for f in deepest if not f.is_loop] == ["nested"]
        loops = [f for f in deepest if f.is_loop]
        assert len(loops) == 2
        for loop in loops:
            matched = re.fullmatch("loop at (0x[0-9a-f]+)", loop.name)
            assert matched and symbol.value <= int(matched[1], 0) < symbol.value + symbol.size
            assert (loop.file, loop.line, loop.start_line, loop.module) == ("", 0, 0, dso.name)


def test_only_hot_functions_are_looked_at_and_for_limited_time(
    tmp_path: Path, cache: DsoCache, kept: KeptLoops
) -> None:
    dso = open_dso(cache, build(tmp_path, "gcc", "-O2"))
    assert dso.elf is not None
    places = {name: (dso, found[0].value + 1, True) for name, found in dso.elf.lookup(FUNCTIONS).items()}
    asked: list[int] = []

    def resolve(requests: Iterable[tuple[Dso, int, bool]]) -> dict[tuple[Dso, int, bool], Frames]:
        found: dict[tuple[Dso, int, bool], Frames] = {
            request: (Frame("f", "f.c", 7),) for request in requests
        }
        asked.append(len(found))
        return found

    frames = {place: (Frame("f", "f.c", 7),) for place in places.values()}
    scopes = LoopScopes(resolve, kept)
    scopes.prepare({places["simple"]: 1000, places["nested"]: 4, places["vector"]: 5}, frames, 1000)
    assert len(asked) == 2  # simple and vector
    scopes.prepare({places["simple"]: 1000, places["nested"]: 5}, frames, 1000)
    assert len(asked) == 3  # what is known is not looked at again
    assert not scopes.notes
    hurried = LoopScopes(resolve, kept, seconds=0)
    hurried.prepare(dict.fromkeys(places.values(), 1), frames, 1)
    assert len(asked) == 3
    assert hurried.notes == [f"the loops of {len(places)} of {len(places)} hot functions were not looked for"]
    assert hurried.scopes(places["simple"], frames[places["simple"]]) == frames[places["simple"]]


def test_files_that_are_none_have_no_loops(kept: KeptLoops) -> None:
    label = Dso(("label", "[anon]"), "[anon]", problem="no file")
    gone = Dso(("file", 1, 2, 3, 4), "/gone")
    requests = {(label, 0x1000, False): 5, (gone, 0x1000, True): 5}
    frames = {request: (Frame("f"),) for request in requests}
    scopes = LoopScopes(lambda requests: {}, kept)
    scopes.prepare(requests, frames, 10)
    assert all(scopes.scopes(request, frames[request]) == frames[request] for request in requests)


# names


def nest_of(loops: list[tuple[int, list[int], int]], innermost: list[int]) -> LoopNest:
    """One instruction of a byte, and one block, for each entry of ``innermost``."""
    made: list[Loop] = []
    for header, branches, parent in loops:
        depth = made[parent].depth + 1 if parent >= 0 else 0
        made.append(Loop(len(made), header, tuple(branches), parent, depth))
    addresses = list(range(len(innermost)))
    return LoopNest(made, [], addresses, addresses, innermost, len(innermost))


def place(*levels: tuple[str, int], file: str = "/x/a.c") -> LoopPlace:
    return tuple((name, file, line) for name, line in levels)


def names(nest: LoopNest, places: list[LoopPlace]) -> list[str]:
    return [name.name for name in name_loops(nest, lambda addresses: {at: places[at] for at in addresses})]


def test_lines_that_were_moved_into_a_loop_do_not_count() -> None:
    lines = [3, 4, 4, 6, 7, 5, 9]  # 4 is on both sides of the beginning
    nest = nest_of([(2, [5], -1)], [-1, -1, 0, 0, 0, 0, -1])
    assert names(nest, [place(("f", line)) for line in lines]) == ["loop at a.c:5-7"]
    lines[1] = 3  # nothing says that 4 is not the loop's
    assert names(nest, [place(("f", line)) for line in lines]) == ["loop at a.c:4-7"]


def test_a_loop_belongs_to_the_function_that_holds_it() -> None:
    caller, callee = ("f", 10), ("g", 30)
    nest = nest_of([(0, [3], -1)], [0, 0, 0, 0])
    inlined = [place(("f", 11), callee)] * 2
    assert names(nest, [place(caller), *inlined, place(caller)]) == ["loop at a.c:10-11"]
    assert names(nest, [*inlined, *inlined]) == ["loop at a.c:30"]
    assert names(nest, [*inlined, place(caller), *inlined[:1]]) == ["loop at a.c:10-11"]


def test_of_many_files_that_with_most_instructions_counts() -> None:
    nest = nest_of([(0, [3], -1)], [0, 0, 0, 0])
    other = place(("f", 90), file="/x/macro.h")
    assert names(nest, [place(("f", 10)), place(("f", 12)), other, place(("f", 10))]) == ["loop at a.c:10-12"]
    assert names(nest, [()] * 4) == ["loop at 0x0"]
    assert names(nest, [place(("f", 0), file="")] * 4) == ["loop at 0x0"]


def test_loops_on_the_same_lines_are_one_scope() -> None:
    frames = (replace(frame("f", 7), inlined=False),)
    names = [LoopName(f"loop at f.c:{line}", (("f", 0),), "f.c", line, line) for line in (5, 5, 7, 5)]
    assert [f.name for f in insert(frames, names)] == [
        "loop at f.c:5", "loop at f.c:7", "loop at f.c:5", "f"
    ]  # fmt: skip


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=4),
)
def test_insertion_keeps_the_frames(lines: list[int], contexts: list[list[int]]) -> None:
    """However little the loops fit the frames."""
    frames = tuple(Frame(f"f{n}", "a.c", n, inlined=i + 1 < len(lines)) for i, n in enumerate(lines))
    loops = [
        LoopName(f"loop at {i}", tuple((f"f{n}", n) for n in context)) for i, context in enumerate(contexts)
    ]
    out = insert(frames, loops)
    assert tuple(f for f in out if not f.is_loop) == frames
    assert [f.name for f in reversed(out) if f.is_loop] == [loop.name for loop in loops]
    assert not out[-1].is_loop


# reports


def looped(path: CallPath, places: dict[int, int]) -> CallPath:
    """A path with so many loops behind the frame at each index."""
    out: list[Frame] = []
    for index, here in enumerate(path):
        out.append(here)
        for number in range(places.get(index, 0)):
            name = f"loop at x.c:{number}-{number + 5}"
            out.append(replace(here, name=name, start_line=number, inlined=True, is_loop=True))
    return tuple(out)


with_loops = st.builds(
    lambda samples, places: [replace(s, path=looped(s.path, places)) for s in samples],
    few_samples,
    st.dictionaries(st.integers(0, 7), st.integers(0, 3)),
)


def plain(samples: list[PathSample]) -> list[PathSample]:
    return [replace(s, path=tuple(f for f in s.path if not f.is_loop)) for s in samples]


@given(with_loops)
def test_views_of_functions_are_the_same_without_loops(samples: list[PathSample]) -> None:
    mine, other = CallingContextTree(samples), CallingContextTree(plain(samples))
    rows = [
        (n.procedure, n.start_line, n.lines, n.sites)
        for n, entering in without_loops(mine).walk()
        if entering
    ]
    assert rows == [(n.procedure, n.start_line, n.lines, n.sites) for n, entering in other.walk() if entering]
    assert flat_view(mine) == flat_view(other)
    assert mine.root.inclusive == other.root.inclusive


@given(with_loops)
def test_loops_do_not_recur(samples: list[PathSample]) -> None:
    tree = CallingContextTree(samples)
    folded, _ = fold_recursion(tree)
    stack: list[object] = []
    for node, entering in folded.walk():
        if entering:
            assert node.procedure.is_loop or node.procedure not in stack
            stack.append(node.procedure)
        else:
            stack.pop()
    assert folded.root.inclusive == tree.root.inclusive


def with_scopes() -> Profile:
    """The profile `heat` with loops in ``main`` and ``step``."""
    profile = heat()
    samples = []
    for sample in profile.samples:
        path: list[Frame] = []
        for here in sample.path:
            path.append(here)
            lines = {"main": [(60, 72)], "step": [(40, 44), (41, 43)]}.get(here.name, [])
            path += [
                replace(here, name=f"loop at heat.c:{a}-{b}", start_line=a, inlined=True, is_loop=True)
                for a, b in lines
            ]
        samples.append(replace(sample, path=tuple(path)))
    return replace(profile, samples=samples)


def shown(profile: Profile, view: str) -> str:
    out = io.StringIO()
    table.render(profile, View(view, width=80, unfold=True), out)
    return out.getvalue().partition("calling context" if view == "context" else "function")[2]


def test_the_context_view_shows_loops_and_the_others_do_not() -> None:
    profile = with_scopes()
    text = shown(profile, "context")
    assert re.search(r"main \(heat.c:61\)\n.* └ loop at heat.c:60-72 \(line 61\)\n.* ├ write_boundary", text)
    assert re.search(
        r"└ loop at heat.c:40-44(?: \(line 42\))?\n.*└ loop at heat.c:41-43(?: \(line 42\))?\n", text
    )
    for view in ("callers", "flat"):
        assert shown(profile, view) == shown(heat(), view)


def test_json_has_no_loops() -> None:
    assert json_report.report(with_scopes()) == json_report.report(heat())


def test_loops_survive_pprof_and_are_inlined_functions_for_others() -> None:
    profile = with_scopes()
    assert decode(pprof.encode(profile).SerializeToString()).samples == profile.samples
    message = pprof.encode(profile, loops=True)
    assert decode(message.SerializeToString()).samples == profile.samples
    texts = message.string_table
    loops = [f for f in message.function if texts[f.system_name] == "parprof:loop"]
    assert sorted(texts[f.name] for f in loops) == [
        "loop at heat.c:40-44", "loop at heat.c:41-43", "loop at heat.c:60-72"
    ]  # fmt: skip
    last = {location.line[-1].function_id for location in message.location}
    assert not last & {f.id for f in loops}


def test_a_function_with_the_name_of_the_mark_is_none() -> None:
    odd = PathSample((Frame("parprof:loop"), Frame("loop at x.c:5")), heat().samples[0].metrics)
    profile = replace(heat(), samples=[odd])
    assert decode(pprof.encode(profile).SerializeToString()).samples == [odd]
