"""Load maps over time: an address is never taken for another library's."""

from __future__ import annotations

from typing import cast

import pytest

from parprof.process.epochs import LoadMaps
from parprof.process.loadmap import LoadMap


class Library:
    def __init__(self, name: str) -> None:
        self.key = ("file", name)


class Map:
    """A load map with one library at address 1."""

    def __init__(self, library: Library | None) -> None:
        self.library = library

    def find(self, address: int) -> tuple[Library, int] | None:
        return (self.library, address) if self.library and address == 1 else None

    def keeping(self, former: Map) -> Map:
        return self if self.library else former


A, B = Library("a"), Library("b")


def found(maps: LoadMaps, epoch: int) -> Library | None:
    place = maps.find(1, epoch)
    return cast(Library, place[0]) if place else None


def make(*entries: tuple[int, Library | None]) -> LoadMaps:
    maps = LoadMaps()
    for epoch, library in entries:
        maps.begin(epoch)
        maps.add(epoch, cast(LoadMap, Map(library)))
    return maps


def test_the_epoch_that_was_read_decides() -> None:
    maps = make((0, A), (4, B))
    assert (found(maps, 0), found(maps, 4), found(maps, 9)) == (A, B, B)
    assert maps.newest is not None and maps.epoch == 4


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_between_two_maps_that_differ_nothing_is_guessed(epoch: int) -> None:
    assert found(make((0, A), (4, B)), epoch) is None


def test_between_two_maps_that_agree_there_is_no_doubt() -> None:
    assert found(make((0, A), (4, A)), 2) is A


def test_the_announcement_belongs_to_what_it_announces() -> None:
    maps = make((0, None), (4, B))
    assert (found(maps, 3), found(maps, 2), found(maps, 0)) == (B, None, None)


def test_a_map_read_again_in_the_same_epoch_replaces_it() -> None:
    assert found(make((2, None), (2, A)), 2) is A


def test_samples_older_than_all_that_was_kept_are_unknown() -> None:
    maps = make(*((epoch, A if epoch % 2 else B) for epoch in range(10, 1010)))
    assert found(maps, 3) is None
    assert found(maps, 1009) is A


def test_what_was_mapped_for_a_moment_is_still_known() -> None:
    """A program may map and unmap code behind ld.so's back: its samples are named later."""
    assert found(make((2, A), (2, None)), 2) is A


def test_what_samples_showed_is_known_and_is_not_taken_for_what_is_mapped() -> None:
    maps = make((0, None), (4, None), (8, A))
    read = maps.newest
    maps.note(3, cast(LoadMap, Map(B)))
    assert [found(maps, epoch) for epoch in (2, 3, 4, 6, 8)] == [None, B, B, B, A]
    assert maps.newest is read
