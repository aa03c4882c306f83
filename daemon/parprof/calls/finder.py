"""Finds the functions that are meant in the files that a process maps; a child process looks into each file once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import SequenceMatcher

from parprof.calls.search import NAMELESS, Copy, Found, FoundFunction, addresses_from_json, found_from_json
from parprof.calls.wanted import Wanted, names_many
from parprof.errors import TargetError
from parprof.files.dso import ANONYMOUS, Dso, FileKey
from parprof.model import Frame
from parprof.process.loadmap import LoadMap
from parprof.resources import Closing
from parprof.symbols.names import without_clone_suffixes
from parprof.untrusted import visible
from parprof.workers.client import WorkerClient, WorkerFailed

FILE_SECONDS = 20.0
"""How long one file may take."""
_NEAR = 0.85
"""How alike a name of a library is that is told though the program itself has none."""
_INSTEAD = (
    "count what calls it (`parprof attach` names that, and has its time), or compile it with "
    "__attribute__((noinline)) or -fno-inline"
)
_MADE = (
    "this process also runs code that is made at run time (JIT: JavaScript, Java, ...), in whose functions there can "
    "be no probe; `parprof attach` has their time from samples"
)
_INTERPRETED = (
    "a function of Python's has no code of its own either: `parprof attach` has its time from samples"
)
_LEAST_MADE = 1 << 15
"""Bytes of code in no file that are a JIT compiler's, and not trampolines (libffi)."""
NameAddresses = Callable[[Iterable[tuple[Dso, int, bool]]], dict[tuple[Dso, int, bool], tuple[Frame, ...]]]
"""`parprof.symbols.symbolizer.Symbolizer.resolve`."""


class _Client(WorkerClient):
    module = "parprof.calls.worker"
    doing = "looking for functions"


class FunctionFinder(Closing):
    """What each file has of the functions that are meant. For one thread."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        resolve: NameAddresses,
        nop5_is_cheap: Callable[[], bool],
        *,
        times: bool = False,
    ) -> None:
        """``resolve``: names addresses, to find lines. ``nop5_is_cheap``: asked when there is something to look for.

        ``times``: also look for where the functions are left.
        """
        self.wanted = tuple(wanted)
        self._resolve = resolve
        self._nop5_is_cheap = nop5_is_cheap
        self.times = times
        self._client = _Client()
        self._known: dict[FileKey, Found] = {}
        self._answered: set[str] = set()
        self._suggestions: dict[str, list[str]] = {}
        self._indirect: set[str] = set()
        self._inlined: dict[str, str] = {}
        self._line_files: set[str] = set()
        self.problems: dict[str, str] = {}
        """Path of a file -> why it was not searched."""
        self.runs_made_code = False
        """Whether the process runs code that is made at run time, which is in no file."""
        self.is_interpreted = False
        """Whether it runs functions of Python's."""
        self.searched = 0
        """Files that were, and that name functions."""
        self._nameless = ""
        """The program's own file, if that names none."""

    def find(self, load_map: LoadMap) -> list[tuple[Dso, Found]]:
        """The files that are mapped, and what they have."""
        dsos = [dso for dso in load_map.dsos() if dso.key[0] in ("file", "unopened")]
        self.runs_made_code = self.runs_made_code or _made_bytes(load_map) >= _LEAST_MADE
        for dso in dsos:
            if dso.key[0] == "unopened":
                self.problems[dso.path] = dso.problem
            elif dso.key not in self._known:
                self.problems.pop(dso.path, None)
        opened = [dso for dso in dsos if dso.key[0] == "file"]
        found = [(dso, self._in_file(dso, load_map, dsos[0])) for dso in opened]
        return [(dso, one) for dso, one in found if one.routines or one.landings]

    def _in_file(self, dso: Dso, load_map: LoadMap, executable: Dso) -> Found:
        known = self._known.get(dso.key)
        if known is None:
            known = self._known[dso.key] = self._look_into(dso, load_map, executable)
        return known

    def _look_into(self, dso: Dso, load_map: LoadMap, executable: Dso) -> Found:
        if dso.elf is None:
            self.problems[dso.path] = dso.problem or "it cannot be read now"
            return Found()
        named = [one for one in self.wanted if one.name]
        addressed = self._addresses(dso, load_map, executable)
        request = {
            "patterns": [one.name for one in named],
            "addresses": [address for _, address in addressed],
            "nop5": self._nop5_is_cheap(),
            "times": self.times,
        }
        try:
            answer = self._ask(dso, request)
            found = found_from_json(answer.get("found"))
        except (WorkerFailed, TargetError, OSError) as error:
            self.problems[dso.path] = str(error)
            return Found()
        except ValueError:
            self.problems[dso.path] = visible(str(answer.get("problem") or "no sensible answer"), 500)
            return Found()
        if dso is executable and not found.functions:
            self._nameless = dso.name
        apart = [part for one in found.routines for part in self._apart(dso, one)]
        found = found._replace(routines=tuple(_in_module(one, dso.name) for one in apart))
        self._note(dso, found, [*named, *(one for one, _ in addressed)])
        return found

    def _apart(self, dso: Dso, routine: FoundFunction) -> list[FoundFunction]:
        """Functions that have one name, as far as their lines tell them apart; compilers' copies go with their own."""
        if _of_that_name(routine.copies) < 2:
            return [routine]
        frames = self._resolve((dso, copy.vaddr, False) for copy in routine.copies)
        by_line: dict[tuple[str, int], list[Copy]] = {}
        for copy in routine.copies:
            frame = frames[dso, copy.vaddr, False][-1]
            by_line.setdefault((frame.file, frame.start_line), []).append(copy)
        return [_with_line(routine, copies, line) for (_, line), copies in by_line.items()]

    def _ask(self, dso: Dso, request: dict[str, object]) -> dict[str, object]:
        fd = dso.file().lend()
        try:
            return self._client.ask(request, [fd], time.monotonic() + FILE_SECONDS)
        finally:
            os.close(fd)

    def _note(self, dso: Dso, found: Found, asked: Sequence[Wanted]) -> None:
        self.searched += found.functions > 0
        self._answered |= {asked[index].text for index in found.answered if index < len(asked)}
        self._indirect |= {asked[index].text for index in found.indirect if index < len(asked)}
        for index in found.inlined:
            if index < len(asked):
                self._inlined.setdefault(asked[index].text, dso.name)
        for index, names in found.suggestions:
            if index < len(asked):
                self._suggestions.setdefault(asked[index].text, []).extend(visible(name) for name in names)

    def _addresses(self, dso: Dso, load_map: LoadMap, executable: Dso) -> list[tuple[Wanted, int]]:
        """What is asked for by address or line that may be in this file, as ELF addresses."""
        out = []
        for one in self.wanted:
            if one.address is not None and one.module:
                if one.module == dso.name:
                    out.append((one, one.address))
            elif one.address is not None:
                at = load_map.find(one.address) or (executable, one.address)
                if at[0].key == dso.key:
                    out.append((one, at[1]))
            elif one.file and one.text not in self._answered:
                address = self._of_line(dso, one)
                if address is not None:
                    out.append((one, address))
        return out

    def _of_line(self, dso: Dso, wanted: Wanted) -> int | None:
        """The function that begins last before a line of a file."""
        try:
            functions = addresses_from_json(self._ask(dso, {"list": True}).get("functions"))
        except (WorkerFailed, TargetError, OSError, ValueError):
            return None
        best: tuple[int, int] | None = None
        for (_, vaddr, _), frames in self._resolve((dso, vaddr, False) for vaddr in functions).items():
            frame = frames[-1]
            if not _is_file(frame.file, wanted.file):
                continue
            self._line_files.add(wanted.text)
            start = frame.start_line or frame.line
            if 0 < start <= wanted.line and (best is None or start > best[0]):
                best = start, vaddr
        return best[1] if best else None

    def awaits_files(self) -> bool:
        """Whether files that are yet to be loaded may have some of what was asked for: all of it, or more of it."""
        return any(one.text not in self._answered or names_many(one.text) for one in self.wanted)

    def missing(self) -> list[str]:
        """What was asked for that no file has so far, or not all of it: a sentence for each, with what to do."""
        return [
            self._why_missing(one)
            for one in self.wanted
            if one.text not in self._answered or (one.text in self._indirect and not names_many(one.text))
        ]

    def _why_missing(self, wanted: Wanted) -> str:
        text = visible(wanted.text)
        if wanted.text in self._indirect:
            # beside it there may be a function of that name for programs of old, as the C library has for memcpy
            return (
                f"{text} is one of several functions, chosen when the program starts (IFUNC), and is not counted by "
                "that name: name the one that `parprof attach` shows"
            )
        if wanted.address is not None:
            return f"{text}: no function is there; an address as in /proc/PID/maps or of the file, or file+0xaddress"
        if wanted.file:
            if wanted.text in self._line_files:
                return f"{text}: no function begins at or before that line"
            return f"{text}: no function of that file is known; compile with -g, or name a function"
        return f"{self._why_no_function(wanted)}{self._beyond_reach()}"

    def _beyond_reach(self) -> str:
        """What else may have that name, but no probe."""
        beyond = [_MADE] * self.runs_made_code + [_INTERPRETED] * self.is_interpreted
        return "".join(f"; {one}" for one in beyond)

    def _why_no_function(self, wanted: Wanted) -> str:
        text = visible(wanted.text)
        if not self.searched:
            return f"no function {text}: the program's files are stripped of names; give an address, 0x..."
        no_code = f"no function {text} has code of its own in the {self.searched} files of the program"
        if (module := self._inlined.get(wanted.text)) is not None:
            return (
                f"{no_code}, but debug information of {module} has the name: a function that is inlined wherever it is "
                f"called; {_INSTEAD}"
            )
        nearest = list(dict.fromkeys(self._suggestions.get(wanted.text, ())))[:3]
        if self._nameless:
            near = [one for one in nearest if SequenceMatcher(None, wanted.text, one).ratio() >= _NEAR]
            libraries = f"; its libraries have {' and '.join(near)}" if near else ""
            return (
                f"{no_code}; {self._nameless} has no names of its own (stripped): name its functions as reports do, "
                f"{self._nameless}+0x...{libraries}"
            )
        if nearest:
            return f"{no_code}; did you mean {' or '.join(nearest)}?"
        return f"{no_code}; it may be in a file without names, or inlined everywhere: then {_INSTEAD}"

    def unsearched(self) -> list[str]:
        """Files in which functions that are meant may be, and why they were not searched."""
        return [f"{path} was not searched: {why}" for path, why in self.problems.items()]

    def too_many(self) -> int:
        """How many routines are meant in the file that has most of them."""
        return max((found.matched for found in self._known.values()), default=0)

    def close(self) -> None:
        """End the child."""
        with suppress(OSError):
            self._client.close()


def _made_bytes(load_map: LoadMap) -> int:
    """Of code that is in no file, or in a nameless one that is no ELF file."""
    made = (
        one
        for one in load_map.mappings
        if one.dso.key == ("label", ANONYMOUS)
        or (one.dso.is_memory and one.dso.key[0] == "file" and one.dso.elf is None)
    )
    return sum(one.end - one.start for one in made)


def _of_that_name(copies: Iterable[Copy]) -> int:
    """How many are no compiler's copies of another."""
    return sum(copy.symbol == without_clone_suffixes(copy.symbol) for copy in copies)


def _with_line(routine: FoundFunction, copies: Sequence[Copy], line: int) -> FoundFunction:
    """Those of a function's copies that begin at a line; 0: nobody knows where they begin."""
    alike = _of_that_name(copies)
    together = f"{alike} functions have this name: they are counted together"
    return FoundFunction(
        routine.name, tuple(copies), (*routine.notes, *[together] * (alike > 1 and not line))
    )


def _in_module(routine: FoundFunction, module: str) -> FoundFunction:
    """A function without a name goes by its file and where it begins, as in reports."""
    return routine._replace(name=module + routine.name) if routine.name.startswith(NAMELESS) else routine


def _is_file(path: str, wanted: str) -> bool:
    """Whether a path ends as was asked for.

    >>> _is_file("/src/a/solve.c", "solve.c"), _is_file("/src/a/resolve.c", "solve.c")
    (True, False)
    """
    return path == wanted or path.endswith("/" + wanted.lstrip("/"))
