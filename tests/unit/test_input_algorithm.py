"""The size of inputs as instrument/input_algorithm.h has it, against the sets of coppa-2013's figure 10."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_oracle import ENTER, EXIT, FORGET, KERNEL_WRITE, LEAVE, READ, WRITE, Event, Naive, Sizes

HERE = Path(__file__).resolve().parent
N_CELLS, N_THREADS = 4, 3
ROW = struct.Struct("<II17Q")
POINT, THREAD = 1, 4

Run = Callable[[list[Event]], dict[int, Sizes]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs events through the C; the result is by routine."""
    library = tmp_path_factory.mktemp("input") / "trace.so"
    command = [
        "gcc",
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Wno-unused-function",
        "-Werror",
        "-fPIC",
    ]
    instrument = HERE.parents[1] / "instrument"
    source = HERE / "input_trace.c"
    subprocess.run([*command, "-shared", f"-I{instrument}", "-o", library, source], check=True)
    c = ctypes.CDLL(str(library))
    c.rows.restype = ctypes.c_void_p

    def run_events(events: list[Event]) -> dict[int, Sizes]:
        data = b"".join(struct.pack("<IIQ", *event) for event in events)
        c.run(data, ctypes.c_uint64(len(events)))
        n = ctypes.c_uint64()
        start = c.rows(ctypes.byref(n))
        out = {}
        for at in range(n.value):
            kind, _, *words = ROW.unpack(ctypes.string_at(start + at * ROW.size, ROW.size))
            if kind == POINT:
                routine, trms, rms, calls, _, _, induced, external, blocks, *_ = words
                assert calls == 1
                out[routine] = Sizes(trms, rms, induced, external, blocks)
        return out

    return run_events


KINDS = (ENTER, ENTER, LEAVE, READ, READ, READ, WRITE, WRITE, KERNEL_WRITE, EXIT, FORGET)


def events_of(data: bytes) -> list[Event]:
    """An event for each byte: to draw three numbers for each would take Hypothesis most of the time of the test.

    Each activation is one of a routine of its own, so that each can be told.
    """
    events = []
    for at, byte in enumerate(data):
        rest, kind = divmod(byte, len(KINDS))
        cell, thread = divmod(rest, N_THREADS)
        what = 1000 + at if KINDS[kind] == ENTER else 1 + cell % N_CELLS
        events.append((KINDS[kind], thread, what))
    return events


def test_each_event_comes_of_some_byte() -> None:
    found = {
        (kind, thread, 0 if kind == ENTER else what) for kind, thread, what in events_of(bytes(range(256)))
    }
    cells = range(1, N_CELLS + 1)
    assert found == {
        (kind, thread, what)
        for kind in KINDS
        for thread in range(N_THREADS)
        for what in ([0] if kind == ENTER else cells)
    }


EVENTS = st.binary(min_size=60, max_size=160).map(events_of)


@settings(max_examples=600, deadline=None)
@given(events=EVENTS)
def test_it_agrees_with_the_naive_sets(run: Run, events: list[Event]) -> None:
    naive = Naive()
    for event in events:
        naive.take(event)
    expected = naive.finish()
    found = run(events)
    assert found == expected
    for sizes in found.values():
        assert sizes.trms >= sizes.rms
        assert sizes.induced + sizes.external <= sizes.trms


F, G, H = 1, 2, 3
X = 1


def test_figure_1a(run: Run) -> None:
    """f reads x twice, and g in another thread writes it between: rms 1, trms 2."""
    found = run(
        [
            (ENTER, 0, F),
            (READ, 0, X),
            (ENTER, 1, G),
            (WRITE, 1, X),
            (LEAVE, 1, 0),
            (READ, 0, X),
            (LEAVE, 0, 0),
        ]
    )
    assert found[F][:4] == (2, 1, 1, 0)
    assert found[G][:4] == (0, 0, 0, 0)


def test_figure_1b(run: Run) -> None:
    """f reads x; g writes it; f calls h, which reads it; f reads it again: rms 1 and 1, trms of f 2, of h 1."""
    events = [(ENTER, 0, F), (READ, 0, X), (ENTER, 1, G), (WRITE, 1, X), (LEAVE, 1, 0)]
    events += [(ENTER, 0, H), (READ, 0, X), (LEAVE, 0, 0), (READ, 0, X), (LEAVE, 0, 0)]
    found = run(events)
    assert found[F][:4] == (2, 1, 1, 0)
    assert found[H][:4] == (1, 1, 1, 0)


def test_producer_and_consumer(run: Run) -> None:
    """Figure 2."""
    events = [(ENTER, 0, F), (ENTER, 1, G)]
    events += [(WRITE, 0, X), (READ, 1, X)] * 500
    found = run([*events, (LEAVE, 0, 0), (LEAVE, 1, 0)])
    assert found[G][:4] == (500, 1, 500, 0)


def test_buffered_read(run: Run) -> None:
    """Figure 3: both cells of the buffer are filled, one is read."""
    step = [(KERNEL_WRITE, 0, 1), (KERNEL_WRITE, 0, 2), (READ, 0, 1)]
    found = run([(ENTER, 0, F), *step * 300, (LEAVE, 0, 0)])
    assert found[F][:4] == (300, 1, 0, 300)


def test_a_thread_in_the_place_of_one_that_ended_is_another(run: Run) -> None:
    """What the former thread in its slot wrote is input from a thread; what it read is not read yet."""
    events = [(ENTER, 0, F), (WRITE, 0, 1), (READ, 0, 2), (EXIT, 0, 0)]
    found = run([*events, (ENTER, 0, G), (READ, 0, 1), (READ, 0, 2), (READ, 0, 1), (LEAVE, 0, 0)])
    assert found[G][:4] == (2, 2, 1, 0)


def test_each_of_many_turns_is_counted(run: Run) -> None:
    """Stamps are few here (two in a block, 131,071 blocks): they come again, and nothing is missed."""
    turns = 140_000
    found = run([(ENTER, 0, F), (ENTER, 1, G), *[(WRITE, 0, X), (READ, 1, X)] * turns])
    assert found[G][:4] == (turns, 1, turns, 0)
    assert found[F][:4] == (0, 0, 0, 0)


def test_too_many_sizes_are_put_together(run: Run) -> None:
    """After 65,536 points of a thread further sizes are rounded by less than 1 %; their sums stay exact."""
    events = [event for at in range(65536) for event in ((ENTER, 0, 10 + at), (LEAVE, 0, 0))]
    reads = [(READ, 0, cell) for cell in range(1, 302)]
    found = run([(ENTER, 0, F), *reads, (LEAVE, 0, 0), *events, (ENTER, 0, G), *reads, (LEAVE, 0, 0)])
    assert found[F][:2] == (301, 301)
    assert found[G][:2] == (300, 300)
    assert len(found) == 65538
