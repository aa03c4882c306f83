"""Which samples are parallel overhead, and of which kind (tallent-2009 sec. 2.2)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parprof.files.libc import is_of_c_library
from parprof.logical.folding import Folder
from parprof.model import Frame, Path
from parprof.patterns import regex

TAG = regex(r"(?:hpctoolkit:)?parallel[-_]overhead")
"""Matches the beginning of a file's base name, or of a procedure's name, that tags code as overhead."""
TAGGED = "tagged"
KINDS = frozenset(("create", "sync", "schedule", "other"))


class OverheadKinds:
    """Tells the kind of overhead of user stacks."""

    def __init__(self, folder: Folder, tag: re.Pattern[str] = TAG) -> None:
        self._folder = folder
        self._tag = tag
        self._tags: dict[tuple[str, str], str] = {}

    def kind(self, path: Path) -> str:
        """The kind of overhead of a sample with this physical call path (user frames, root first), or empty.

        Innermost frames of a runtime: the innermost function that has a kind of its own, else other. Else code
        that the program tagged, inlined or not, and what it calls of the C library.
        """
        owners = self._folder.owners(path)
        runtime = False
        for frame, agent in zip(reversed(path), reversed(owners), strict=True):
            if agent is None:
                break
            runtime = True
            kind = "other" if frame.is_loop else agent.overhead(frame.name)
            if kind != "other":
                return kind
        return "other" if runtime else self._tagged(path)

    def _tagged(self, path: Sequence[Frame]) -> str:
        for frame in reversed(path):
            if kind := self._tag_of(frame):
                return kind
            if not frame.inlined and not is_of_c_library(frame.module):
                break
        return ""

    def _tag_of(self, frame: Frame) -> str:
        """``tagged``, or the kind that the tag itself names behind a colon: ``parallel-overhead:sync``."""
        key = frame.name, frame.file
        kind = self._tags.get(key)
        if kind is None:
            kind = ""
            for text in (frame.name, frame.file.rpartition("/")[2]):
                if match := self._tag.match(text):
                    named = text[match.end() :].removeprefix(":")
                    kind = named if named in KINDS else TAGGED
                    break
            self._tags[key] = kind
        return kind
