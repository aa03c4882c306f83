# SPDX-License-Identifier: Apache-2.0
"""Profiles to test with: one with known numbers, and Hypothesis strategies for arbitrary ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from parprof.attribution import attribute
from parprof.attribution.concurrency import RANGES, levels_of
from parprof.metrics import Metrics
from parprof.model import Frame, Origin, PathSample, ProcessInfo, Profile, ThreadState

PERIOD_NS = 1_000_000.0
PROGRAM = "/home/u/heat/heat"
SOURCE = "/home/u/heat/heat.c"


def frame(name: str, line: int = 0, file: str = SOURCE, module: str = PROGRAM) -> Frame:
    """A frame of the program with known source."""
    return Frame(name, file, line, start_line=10, module=module, build_id="b1d", address=0x1000 + line)


def library(name: str) -> Frame:
    """A frame of a library without debug information."""
    return Frame(name, module="/usr/lib/libc.so.6", build_id="11bc", address=0x2000)


def sample(
    path: list[Frame], count: int, n_working: int, spin: bool = False, overhead: str = ""
) -> PathSample:
    """Samples of 1 ms on 4 cores."""
    state = ThreadState.SPINNING if spin else ThreadState.WORKING
    metrics = attribute(count, PERIOD_NS, n_working, 4, state, overhead=bool(overhead))
    levels = () if spin else levels_of(count * PERIOD_NS, n_working, 4)
    return PathSample(tuple(path), metrics, Origin(42, "heat", "worker", "libgomp", overhead), levels=levels)


def heat() -> Profile:
    """Serial output (300 ms on 1 of 4 cores), a parallel step (4000 ms), a barrier and a recursion."""
    main, step = frame("main", 61), [frame("main", 70), frame("solve", 88), frame("step", 42)]
    write = [main, frame("write_boundary", 33), library("fprintf")]
    samples = [
        sample([*write, library("vfprintf")], 200, 1),
        sample([*write, library("write")], 100, 1),
        sample(step, 4000, 4),
        sample([*step[:2], library("barrier")], 100, 4, overhead="sync"),
        sample([*step[:2], library("barrier")], 50, 3, spin=True),
        sample([main, *[frame("fib", 5)] * 3], 60, 2),
    ]
    process = ProcessInfo(42, "heat", "./heat 4096", "libgomp", 4, "exact")
    return Profile(process, 1.5, 1000, samples, start_time_s=1_700_000_000.25)


_counts = st.integers(0, 10**6)
_text = st.text(max_size=12)
_lines = st.integers(0, 2**31)

_MOST_COUNTED, _LONGEST_NS = 10**6, 10**12
_NUMBER_BYTES = 6
_EVENTS = ("cache-misses", "page-faults")


def _number(drawn: bytes, at: int) -> int:
    """One of up to five bytes; often small, or 0. The first byte says how many of the next five count."""
    place = at * _NUMBER_BYTES
    return int.from_bytes(drawn[place + 1 : place + 1 + drawn[place] % _NUMBER_BYTES], "little")


def _metrics(drawn: bytes, events: dict[str, int] | None = None) -> Metrics:
    """Samples, and six times. To draw each number takes Hypothesis longer than what is tested: bytes are one draw."""
    times = [float(min(_number(drawn, at), _LONGEST_NS)) for at in range(1, 7)]
    return Metrics(min(_number(drawn, 0), _MOST_COUNTED), *times, events=events)


def _metrics_and_events(drawn: bytes) -> Metrics:
    """The first byte says which events were counted."""
    which, numbers = drawn[0], drawn[1:]
    return _metrics(
        numbers,
        {event: 1 + _number(numbers, 7 + at) for at, event in enumerate(_EVENTS) if which >> at & 1},
    )


def _bytes(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


metrics = _bytes(7 * _NUMBER_BYTES).map(_metrics)
with_events = _bytes(1 + (7 + len(_EVENTS)) * _NUMBER_BYTES).map(_metrics_and_events)

_FEW = [Frame(name, "x.c", line, start) for name in "abcd" for line in range(4) for start in range(3)]
few_paths = st.binary(max_size=8).map(lambda places: tuple(_FEW[place % len(_FEW)] for place in places))
"""Call paths of few procedures, so that they share nodes and recur. A byte for each frame."""

few_samples = st.lists(st.builds(PathSample, few_paths, metrics), max_size=12)


@st.composite
def locations(draw: st.DrawFn) -> tuple[Frame, ...]:
    """The frames of one address, root first: a procedure and what is inlined into it."""
    place = (draw(st.sampled_from(["", "/bin/x", "/lib/y.so"])), draw(st.sampled_from(["", "ab"])))
    address = draw(st.integers(0, 2**64 - 1))
    names = draw(st.lists(st.tuples(_text, _text, _lines, _lines), min_size=1, max_size=3))
    return tuple(Frame(*name, *place, address, inlined=depth > 0) for depth, name in enumerate(names))


_labels = st.sampled_from([(), (("node", "n1"),), (("job", "17"), ("node", "n2"))])
_origins = st.builds(
    Origin, _counts, _text, _text, _text, _text, image=st.just(0), labels=_labels, tid=_counts
)

any_levels = st.lists(_counts, max_size=len(RANGES) - 1).map(lambda values: (*values, 1))

_path_in_pool = st.binary(max_size=6)
"""A place in the pool for each byte: to draw each frame of each path takes Hypothesis longer than what is tested."""


_Sample = tuple[bytes, Metrics, Origin, bytes, tuple[int, ...]]
"""`PathSample`, its paths as places in the pool."""


def _profile(pool: list[tuple[Frame, ...]], samples: list[_Sample], **more: Any) -> Profile:
    """Its samples' paths lead through the pool, where they meet and recur."""

    def path(places: bytes) -> tuple[Frame, ...]:
        return tuple(frame for place in places for frame in pool[place % len(pool)])

    made = []
    for places, metrics, origin, physical_places, levels in samples:
        logical, physical = path(places), path(physical_places)
        made.append(PathSample(logical, metrics, origin, () if physical == logical else physical, levels))
    return Profile(samples=made, **more)


any_profile = st.builds(
    _profile,
    pool=st.lists(locations(), min_size=1, max_size=8),
    process=st.builds(ProcessInfo, _counts, _text, st.text(st.characters()), _text, st.integers(1, 9), _text),
    duration_s=st.floats(0, 1e6),
    frequency_hz=st.integers(0, 10**5),
    samples=st.lists(
        st.tuples(
            _path_in_pool, with_events, _origins, st.just(b"") | _path_in_pool, st.just(()) | any_levels
        ),
        max_size=8,
    ),
    event=_text,
    lost=st.dictionaries(_text, _counts, max_size=3),
    target_cost_percent=st.floats(0, 100),
    daemon_cost_percent=st.floats(0, 100),
    notes=st.lists(_text, max_size=3),
    extra=st.dictionaries(_text, _text, max_size=3),
    start_time_s=st.integers(0, 2**33).map(lambda quarters: quarters / 4),
)
