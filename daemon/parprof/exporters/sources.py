"""The program's source for the page: its text where it can be read, and what each line costs.

Which files a profile names is not ours to trust: they are read only if they are regular files that look like source
(never by a last symbolic link), and only around the lines that were sampled. The daemon never does this.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from parprof.attribution import Effort
from parprof.causes.ownership import Owner, Ownership
from parprof.files.mounts import Mounts
from parprof.metrics import Metrics, add_to
from parprof.model import Frame, PathSample, Profile
from parprof.patterns import regex
from parprof.untrusted import visible
from parprof.values import dataclass
from parprof.wording import some

MAX_FILES = 100
MAX_FILE_BYTES = 4 << 20
"""Larger files are not opened."""

MAX_TEXT_BYTES = 2 << 20
"""Of all files together."""

MAX_LINE = 400
_MOST_TOLD = 3
"""Names of files in a sentence."""
_AROUND = 40
"""Lines that are shown before and after one that was sampled."""

_SOURCES = regex(
    r".*\.(?:c|cc|cpp|cxx|c\+\+|cu|h|hh|hpp|hxx|inc|ipp|tcc|m|mm|f|for|f77|f90|f95|f03|f08|py|pyx|pxd|rs|go|java|"
    r"kt|scala|js|mjs|ts|rb|jl|lua|pl|php|d|zig|nim|swift|cs|s|y|l|ll|cilk)",
    re.IGNORECASE,
)
_LOOP = regex(r"loop at .*:(\d+)(?:-(\d+))?")


@dataclass(slots=True)
class _File:
    """What is known of one source file."""

    own: dict[int, Metrics] = field(default_factory=dict)
    everything: dict[int, Metrics] = field(default_factory=dict)
    """With what was called there."""
    loops: set[tuple[int, int]] = field(default_factory=set)

    def cost_ns(self) -> float:
        """What is to be seen in it."""
        return sum(metrics.effort_ns + metrics.spin_ns for metrics in self.own.values())


def sources(profile: Profile, *, read: bool) -> list[dict[str, Any]]:
    """The source files with what their lines cost, the dearest first. ``read``: with their text."""
    files = _lines(profile.samples)
    ended_s = profile.start_time_s + profile.duration_s if profile.start_time_s else 0.0
    left = MAX_TEXT_BYTES
    out = []
    for name in sorted(files, key=lambda one: (-files[one].cost_ns(), one))[:MAX_FILES]:
        file = files[name]
        parts: list[tuple[int, list[str]]] = []
        note = "left out (--no-source)" if not read else ""
        if read:
            parts, note = _text(name, file, ended_s, left)
            left -= sum(len(line) for _, lines in parts for line in lines)
        out.append(
            {
                "file": visible(name),
                "note": note,
                "parts": parts,
                "loops": sorted(file.loops),
                "lines": {line: _numbers(file, line) for line in sorted(file.everything)},
            }
        )
    return out


def changed_since(profile: Profile, files: Iterable[str]) -> str:
    """Which of these files were changed after the recording, in a sentence; empty if none was, as far as can be seen
    without asking a file system that may not answer."""
    if not profile.start_time_s:
        return ""
    mounts = Mounts.read("self")
    ended_s = profile.start_time_s + profile.duration_s
    changed = [
        os.path.basename(name)
        for name in dict.fromkeys(files)
        if _SOURCES.fullmatch(name)
        # no mount on the way: it is on our own root, which answers (that is no mount behind chroot)
        and mounts.is_local_path(os.path.normpath(name).encode("utf-8", "surrogateescape")) is not False
        and _changed_s(name) > ended_s
    ]
    if not changed:
        return ""
    was, its = ("was", "its") if len(changed) == 1 else ("were", "their")
    told = f"{some(changed, _MOST_TOLD)} {was} changed after the recording"
    return f"{told}: {its} lines may not be those that were measured"


def _changed_s(name: str) -> float:
    """When a regular file was changed last; 0: it is none, or not to be seen."""
    try:
        status = os.lstat(name)
    except (OSError, ValueError):
        return 0.0
    return status.st_mtime if stat.S_ISREG(status.st_mode) else 0.0


def _numbers(file: _File, line: int) -> list[float]:
    """Idleness and useful work of a line, itself and with what it calls, in microseconds; and its samples."""
    own, everything = file.own.get(line, Metrics()), file.everything[line]
    values = (
        own.idleness_ns + own.stall_ns,
        everything.idleness_ns + everything.stall_ns,
        Effort.of(own).useful_ns,
        Effort.of(everything).useful_ns,
    )
    return [*(round(value / 1000) for value in values), everything.samples]


def _lines(samples: Sequence[PathSample]) -> dict[str, _File]:
    """By file: what was sampled on its lines. What has no line counts where it was called."""
    ownership = Ownership()
    files: dict[str, _File] = defaultdict(_File)
    for sample in samples:
        seen: set[tuple[str, int]] = set()
        for frame in reversed(sample.path):
            if not frame.file or not frame.line or ownership.of(_function_of(frame)) is Owner.SYSTEM:
                continue
            file = files[frame.file]
            if frame.is_loop:
                if match := _LOOP.fullmatch(frame.name):
                    file.loops.add((int(match[1][:9]), int((match[2] or match[1])[:9])))
                continue
            key = frame.file, frame.line
            if not seen:
                add_to(file.own, frame.line, sample.metrics)
            if key not in seen:
                seen.add(key)
                add_to(file.everything, frame.line, sample.metrics)
    return {name: file for name, file in files.items() if file.everything}


def _function_of(frame: Frame) -> Frame:
    """A frame whose owner says whose a loop is, too: its name does not matter then."""
    return Frame("loop", frame.file, module=frame.module) if frame.is_loop else frame


def _text(name: str, file: _File, ended_s: float, room: int) -> tuple[list[tuple[int, list[str]]], str]:
    """The parts of a file's text around its lines, each with the number of its first line; and what is to be said."""
    if not _SOURCES.fullmatch(name):
        return [], "not shown: its name is not that of a source file"
    try:
        data, changed_s = _read(name)
    except OSError as error:
        return [], f"not shown: {error.strerror or error}"
    except ValueError:  # a NUL, or half a character
        return [], "not shown: there can be no file of that name"
    if b"\0" in data:
        return [], "not shown: it is not text"
    text = [visible(line.expandtabs(4), MAX_LINE) for line in data.decode("utf-8", "replace").split("\n")]
    parts: list[tuple[int, list[str]]] = []
    cut = ""
    for first, last in _windows(file.everything, len(text)):
        lines = text[first - 1 : last]
        room -= sum(map(len, lines))
        if room < 0:
            cut = "cut short: there is too much of it"
            break
        parts.append((first, lines))
    notes = [cut]
    if ended_s and changed_s > ended_s:
        notes.append("changed since the recording: lines may not be those that were measured")
    elif max(file.everything) > len(text):
        notes.append("it has fewer lines than were sampled: it is not the file that was measured")
    return parts, "; ".join(filter(None, notes))


def _windows(lines: Iterable[int], length: int) -> list[tuple[int, int]]:
    """First and last lines of the parts to show."""
    out: list[tuple[int, int]] = []
    for line in sorted(lines):
        first, last = max(line - _AROUND, 1), min(line + _AROUND, length)
        if line > length:
            break
        if out and first <= out[-1][1] + 1:
            out[-1] = out[-1][0], last
        else:
            out.append((first, last))
    return out


def _read(name: str) -> tuple[bytes, float]:
    """A regular file, and when it was changed last.

    Raises:
        OSError: it cannot be read, it is no regular file, or it is too large.
    """
    handle = os.open(
        name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    )  # opens nothing: no device or pipe notices
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise OSError("it is too large")
        if not _may_read(status):
            raise OSError("who called sudo may not read it")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with open(os.open(f"/proc/self/fd/{handle}", flags), "rb") as file:
            return file.read(MAX_FILE_BYTES), status.st_mtime
    finally:
        os.close(handle)


def _may_read(status: os.stat_result) -> bool:
    """Whether the person who runs this may read a file: by sudo, root's rights are borrowed."""
    user = os.environ.get("SUDO_UID", "")
    if os.geteuid() != 0 or not user.isdigit() or user == "0":
        return True
    return status.st_uid == int(user) or bool(status.st_mode & stat.S_IROTH)
