# SPDX-License-Identifier: Apache-2.0
"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import copy
import gc
import importlib
import pkgutil
import re

import pytest

import parprof
from parprof.patterns import LatePattern, regex


def test_it_is_what_re_would_have_made() -> None:
    late, made = (
        regex(r"(\d+) (?P<unit>[a-z]+)", re.IGNORECASE),
        re.compile(r"(\d+) (?P<unit>[a-z]+)", re.IGNORECASE),
    )
    found = late.search("in 12 MS")
    assert found and found["unit"] == "MS"
    assert late.sub("x", "1 s, 2 s") == "x, x" and late.findall("3 m") == [("3", "m")]
    assert (late.pattern, late.flags, late.groupindex) == (made.pattern, made.flags, made.groupindex)
    bytewise = regex(rb"\0+")
    assert bytewise.split(b"a\0\0b") == [b"a", b"b"]


def test_it_is_compiled_once_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    make = re.compile

    def spy(text: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(text)
        return make(text, flags)

    late = regex("a")
    monkeypatch.setattr(re, "compile", spy)
    assert compiled == []
    assert late.match("a") and not late.match("b") and late.fullmatch("a")
    assert compiled == ["a"]


def test_what_it_does_not_have_is_an_error_and_copies_work() -> None:
    with pytest.raises(AttributeError):
        regex("a").matches  # type: ignore[attr-defined]  # noqa: B018
    assert copy.copy(regex("b+")).fullmatch("bb")


def test_all_of_ours_compile() -> None:
    """One with an error would be noticed only by who comes to use it."""
    for module in pkgutil.walk_packages(parprof.__path__, "parprof."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.unfreeze()  # what test modules have imported was, and would not be seen
    late = [one for one in gc.get_objects() if isinstance(one, LatePattern)]
    gc.freeze()
    assert len(late) > 150
    for one in late:
        assert isinstance(one.pattern, str | bytes)
