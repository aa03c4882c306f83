"""Code that a JIT compiler made: frames from the names that it gave, and what to tell of what has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from parprof.causes.nameless import how_to_name, is_nameless
from parprof.facts.drain import MeasuredImage
from parprof.files.dso import ANONYMOUS, Dso
from parprof.model import Frame, PathSample
from parprof.patterns import regex

_LEAST_SHARE = 0.01
"""Of a process's samples: less is not worth a note."""


_V8 = regex(r"(?:JS|LazyCompile|Function|Script|Eval):[*~^+]*(\S*) (\S+?):(\d+)(?::\d+)?\Z")
"""``JS:*parse /srv/app.js:12:17``, the mark for how well it is optimized; a script's own code has no name."""


def is_made_code(dso: Dso) -> bool:
    """Whether it is a nameless file that a JIT compiler keeps its code in (Erlang, .NET), not a program in one."""
    return dso.is_memory and dso.key[0] != "label" and dso.elf is None


def jit_frame(name: str, address: int) -> Frame:
    """The frame of a function by the name in a perf map.

    V8 has a name for each version of a function, by how far it optimized it: to their reader they are one.
    """
    match = _V8.fullmatch(name)
    if match is None:
        return Frame(name, module=ANONYMOUS, address=address)
    function, file, line = match.groups()
    return Frame(function or "(anonymous)", file, start_line=int(line), module=ANONYMOUS, address=address)


def jit_notes(samples: Iterable[PathSample], images: Mapping[int, MeasuredImage]) -> list[str]:
    """A note for each process with much nameless code on its call paths."""
    total: Counter[int] = Counter()
    nameless: Counter[int] = Counter()
    for sample in samples:
        total[sample.origin.image] += sample.metrics.samples
        if is_nameless(sample):
            nameless[sample.origin.image] += sample.metrics.samples
    return [
        f"process {image.process.pid}: {nameless[number] / total[number]:.0%} of its samples are in code that was made "
        f"at run time and has no names: {how_to_name(image.process.exe)}"
        for number, image in images.items()
        if total[number] and nameless[number] >= _LEAST_SHARE * total[number]
    ]
