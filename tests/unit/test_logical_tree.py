# SPDX-License-Identifier: Apache-2.0
"""The logical calling context tree: sharing as in the appendix of tallent-2009, totals, projections."""

from __future__ import annotations

import sys
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(FilePath(__file__).parent))

from logical_stacks import FOLDER, frames, stacks
from parprof.cct.tree import CallingContextTree
from parprof.logical.bichord import Association, Bichord, LogicalPath, logical_projection, physical_projection
from parprof.logical.tree import LogicalCct, Note, sharable
from parprof.metrics import Metrics
from parprof.model import Frame, Path
from profiles import metrics


def frame(name: str) -> Frame:
    return Frame(name)


def bichord(physical: str, logical: str) -> Bichord:
    """Names, outermost first."""
    return Bichord.of(tuple(map(Frame, physical.split())), tuple(map(Frame, logical.split())))


ROOT = bichord("root", "root")
# The unwinds of the appendix, outermost frame first. (p' is a sample point: in the tree, metrics make it one.)
UNWINDS = {
    1: [bichord("pa", "l1")],
    2: [bichord("pa pb", "l1")],
    3: [bichord("pa pb pc", "l1")],
    5: [bichord("pa'", "l1")],
    6: [bichord("pa pf pe", "l1")],
    7: [bichord("pa", "l1"), bichord("pb", "l1"), bichord("pc", "l1")],
    8: [bichord("pa", "lj")],
    9: [bichord("pa", "l1 l2")],
}


def number_of_notes(*unwinds: int) -> int:
    tree = LogicalCct()
    for unwind in unwinds:
        tree.insert((ROOT, *UNWINDS[unwind]), Metrics(1))
    return sum(1 for _ in tree.walk()) - 1


@pytest.mark.parametrize(
    ("unwinds", "expected"),
    [
        ((1, 2), 2),  # 1-1 is the base case of M-1: the outer note is shared
        ((2, 1), 2),
        ((2, 3), 3),
        ((1, 2, 3), 3),
        ((1, 5), 2),  # nothing in common
        ((3, 6), 5),  # only the prefix
        ((1, 8), 2),  # another logical context
        ((2, 8), 3),
        ((1, 9), 2),  # 1-1 is the base case of 1-M, too
        ((2, 9), 4),  # M-1 and 1-M are of different classes
        ((9, 1, 2), 3),
        ((2, 9, 1, 9), 4),  # the base case is shared with one of the two, and the other stays found
        ((1, 7), 3),  # a whole bichord
        ((3, 7), 5),  # a bichord shared in part ends what two paths have in common
    ],
)
def test_sharing_as_in_the_appendix(unwinds: tuple[int, ...], expected: int) -> None:
    assert number_of_notes(*unwinds) == expected


def test_sharable() -> None:
    a, b, one, two = map(Frame, "ab12")
    note = Note(Association.MANY_TO_ONE, a, one, 1)
    assert sharable(note, note)
    assert sharable(note, note._replace(association=Association.ONE_TO_ONE))
    assert not sharable(note, note._replace(association=Association.ONE_TO_MANY))
    assert not sharable(note, note._replace(association=Association.MANY_TO_NONE))
    assert not sharable(note, note._replace(physical=b))
    assert not sharable(note, note._replace(logical=two))
    assert not sharable(note, note._replace(number=2))


def test_association_classes() -> None:
    like = {(x.value, y.value) for x in Association for y in Association if x != y and x.is_like(y)}
    assert like == {
        ("1-0", "M-0"), ("M-0", "1-0"), ("1-1", "M-1"), ("M-1", "1-1"), ("1-1", "1-M"), ("1-M", "1-1"),
    }  # fmt: skip


_frames = st.sampled_from("abc").map(Frame)
_many = st.lists(_frames, min_size=1, max_size=3).map(tuple)
_bichords = st.one_of(
    st.builds(Bichord.of, _many, st.just(())),
    st.builds(Bichord.of, _many, st.tuples(_frames)),
    st.builds(Bichord.of, st.tuples(_frames), _many),
)
_paths = st.lists(_bichords, max_size=4).map(tuple)
_folded = stacks(4).map(lambda own: FOLDER.fold(own).path)
_samples = st.lists(st.tuples(st.one_of(_paths, _folded), metrics), max_size=12)


def grouped(samples: list[tuple[LogicalPath, Metrics]]) -> dict[LogicalPath, Metrics]:
    out: dict[LogicalPath, Metrics] = {}
    for path, charged in samples:
        out.setdefault(path, Metrics()).add(charged)
    return out


def table(tree: CallingContextTree) -> dict[tuple[tuple[str, int], ...], tuple[Metrics, Metrics]]:
    out = {}
    path: list[tuple[str, int]] = []
    for node, entering in tree.walk():
        if entering:
            path.append((node.procedure.name, node.procedure.is_loop))
            out[tuple(path)] = (node.exclusive, node.inclusive)
        else:
            path.pop()
    return out


def conventional(samples: list[tuple[Path, Metrics]]) -> CallingContextTree:
    tree = CallingContextTree()
    for path, charged in samples:
        tree.insert_path(path, charged)
    return tree


@given(_samples)
def test_nothing_is_lost_or_mixed_up_by_sharing(samples: list[tuple[LogicalPath, Metrics]]) -> None:
    tree = LogicalCct()
    for path, charged in samples:
        tree.insert(path, charged)
    found = list(tree.samples())
    assert grouped(found) == grouped(samples)
    assert len(found) == len({path for path, _ in samples})


@given(_samples)
def test_projections(samples: list[tuple[LogicalPath, Metrics]]) -> None:
    tree = LogicalCct()
    for path, charged in samples:
        tree.insert(path, charged)
    physical, logical = tree.physical(), tree.logical()
    assert (
        physical.root.inclusive
        == logical.root.inclusive
        == conventional([((), charged) for _, charged in samples]).root.inclusive
    )
    assert table(physical) == table(conventional([(physical_projection(p), m) for p, m in samples]))
    assert table(logical) == table(conventional([(logical_projection(p), m) for p, m in samples]))


def test_deep_and_many() -> None:
    deep = tuple(bichord(f"p{i} q{i}", f"l{i}") for i in range(500))
    tree = LogicalCct()
    for row in range(100_000):
        tree.insert(deep[: row % 500 + 1], Metrics(1))
    assert tree.logical().root.inclusive.samples == tree.physical().root.inclusive.samples == 100_000
    assert sum(1 for _ in tree.walk()) == 1000
    assert max(len(path) for path, _ in tree.samples()) == 500


def test_two_stacks_of_a_program() -> None:
    tree = LogicalCct()
    for text in ("main f GOMP_parallel f._omp_fn.0 g", "main f GOMP_parallel f._omp_fn.0 h"):
        tree.insert(FOLDER.fold(frames(text)).path, Metrics(1))
    assert [path[-1][0] for path in table(tree.logical())] == ["main", "f", "g", "h"]
    assert len(table(tree.physical())) == 6
