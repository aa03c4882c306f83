# SPDX-License-Identifier: Apache-2.0
"""Calls that samples tell apart: from the frames that are new in samples to counts by call path."""

from __future__ import annotations

import io
import struct
from dataclasses import replace

import pytest

from parprof.commands.showing import print_report
from parprof.exporters.readable import readable
from parprof.exporters.views import View
from parprof.kernel import activations
from parprof.kernel.activations import Activations, outer_part
from parprof.kernel.counts import together
from parprof.kernel.stacks import INTERRUPTED, RawStack, StackTable
from parprof.metrics import ACTIVATIONS, Metrics
from parprof.model import ACTIVATION, Count, Facts, Frame, PathSample, SampleKey, ThreadState
from parprof.profile.called import called
from profiles import heat

LEAF, MIDDLE, OUTER = 0x1003, 0x2005, 0x3007
KEY = SampleKey(3, 41, 0, ThreadState.WORKING, 2, 77, 5, epoch=1, context=9, waiters=1, away=1)


def stack(*words: int, python: bytes = b"", cut: int = 0) -> RawStack:
    return RawStack(struct.pack(f"<{len(words)}Q", *words), 0, python, 0, cut)


def table(raw: RawStack) -> StackTable:
    stacks = StackTable()
    stacks.put(77, raw)
    return stacks


def by_words(facts: Facts, stacks: StackTable) -> dict[tuple[int, ...], int]:
    found = {}
    for key, count in facts.items():
        raw = stacks.raw(key.user)
        assert raw is not None
        found[raw.words] = count.samples
    return found


def test_each_new_frame_is_counted_under_the_stack_as_seen_from_it() -> None:
    stacks = table(stack(LEAF, MIDDLE, OUTER))
    counting = Activations(stacks)
    counting.note(0, KEY, 1, 23, 1)
    counting.note(0, KEY, 3, 7, 1)
    counting.note(0, KEY._replace(state=ThreadState.SPINNING, kernel=6, n_working=1), 1, 2, 1)
    facts = together(counting.ready(1))
    assert by_words(facts, stacks) == {
        (LEAF, MIDDLE, OUTER): 23 + 7 + 2,
        (MIDDLE - 1, OUTER): 7,
        (OUTER - 1,): 7,
    }
    for key in facts:
        assert (key.event, key.image, key.tid, key.epoch, key.context) == (ACTIVATION, 3, 41, 1, 9)
        assert (key.kernel, key.waiters, key.away) == (0, 0, 0)
    assert together(counting.ready(2)) == {} and counting.left_out == 0


def test_the_kernels_copy_of_a_probed_instruction_is_nobodys_call() -> None:
    """A thread that was sent there is in the function that is probed."""
    stacks = table(stack(0x7FFFFFFFE080, LEAF | INTERRUPTED, MIDDLE))
    counting = Activations(stacks)
    counting.note(0, KEY, 1, 5, 1)
    counting.note(0, KEY, 2, 3, 1)
    assert by_words(together(counting.ready(1)), stacks) == {(LEAF | INTERRUPTED, MIDDLE): 3}


def test_stacks_that_end_in_the_same_callers_share_theirs() -> None:
    stacks = table(stack(LEAF, MIDDLE, OUTER))
    stacks.put(78, stack(LEAF + 8, MIDDLE, OUTER))
    counting = Activations(stacks)
    counting.note(0, KEY, 2, 1, 1)
    counting.note(0, KEY._replace(user=78), 2, 1, 1)
    assert by_words(together(counting.ready(1)), stacks)[MIDDLE - 1, OUTER] == 2


def test_they_wait_for_their_stack_and_are_counted_if_it_never_comes() -> None:
    stacks = StackTable()
    counting = Activations(stacks)
    counting.note(0, KEY, 2, 5, 1)
    assert together(counting.ready(1)) == {}
    stacks.put(77, stack(LEAF, MIDDLE))
    assert sum(count.samples for count in together(counting.ready(2)).values()) == 10
    counting.note(0, KEY._replace(user=78), 2, 5, 3)
    assert [together(counting.ready(drain)) for drain in range(3, 12)] == [{}] * 9
    assert counting.left_out == 10


def test_what_is_not_on_the_works_own_part_of_the_stack_is_left_alone() -> None:
    stacks = table(stack(LEAF, MIDDLE, OUTER, cut=2))
    counting = Activations(stacks)
    counting.note(0, KEY, 3, 1, 1)
    facts = together(counting.ready(1))
    assert by_words(facts, stacks) == {(LEAF, MIDDLE, OUTER): 1, (MIDDLE - 1, OUTER): 1}
    cuts = {raw.cut for key in facts if (raw := stacks.raw(key.user))}
    assert cuts == {2, 1}


def test_of_a_stack_with_frames_of_an_interpreter_only_the_whole_is_counted() -> None:
    stacks = table(stack(LEAF, MIDDLE, OUTER, python=bytes(16)))
    counting = Activations(stacks)
    counting.note(0, KEY, 3, 4, 1)
    assert [(key.user, count.samples) for key, count in together(counting.ready(1)).items()] == [(77, 4)]


def test_more_frames_than_the_stack_has_and_no_stack_do_no_harm() -> None:
    counting = Activations(table(stack(LEAF)))
    counting.note(0, KEY, 65_535, 1, 1)
    counting.note(0, KEY._replace(user=0), 3, 1, 1)
    assert list(together(counting.ready(1)).values()) == [Count(1)]


def test_room_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "_MOST_STACKS", 2)
    counting = Activations(table(stack(*range(0x1000, 0x1006))))
    counting.note(0, KEY, 6, 3, 1)
    assert len(together(counting.ready(1))) == 1 + 2
    assert counting.left_out == 3 * 3


def test_what_is_forgotten_makes_room_and_is_counted_again_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a daemon that somebody attaches to for days."""
    monkeypatch.setattr(activations, "_MOST_STACKS", 2)
    stacks = table(stack(LEAF, MIDDLE, OUTER))
    counting = Activations(stacks)
    counting.note(0, KEY, 3, 1, 1)
    assert len(together(counting.ready(1))) == 3
    stacks.touch([77], 9)
    for _ in range(2):  # those that are only seen from within were not sampled since
        stacks.trim(5, 0)
        counting.trim()
    assert stacks.raw(77) is not None
    stacks.put(78, stack(LEAF, MIDDLE + 8, OUTER + 8))
    counting.note(0, KEY._replace(user=78), 3, 1, 9)
    found = together(counting.ready(9))
    assert by_words(found, stacks).keys() == {
        (LEAF, MIDDLE + 8, OUTER + 8), (MIDDLE + 7, OUTER + 8), (OUTER + 7,)
    }  # fmt: skip
    counting.forget()
    counting.note(0, KEY, 3, 1, 10)
    assert len(by_words(together(counting.ready(10)), stacks)) == 3
    assert counting.left_out == 0


def test_an_interrupted_frame_is_no_return_address() -> None:
    outer = outer_part(stack(LEAF, MIDDLE | INTERRUPTED, OUTER), 1)
    assert outer.words == (MIDDLE | INTERRUPTED, OUTER)


def test_the_outer_part_of_a_language_s_own_stack_is_its_own_too() -> None:
    """All functions that an interpreter runs look alike: who has met one must not stand for the others."""
    assert outer_part(stack(LEAF, MIDDLE, OUTER)._replace(is_own=True), 1).is_own
    assert not outer_part(stack(LEAF, MIDDLE, OUTER), 1).is_own


MAIN, SOLVE = Frame("main", "a.c", 3), Frame("solve", "a.c", 9)
LOOP = Frame("loop at a.c:8", "a.c", 9, is_loop=True, inlined=True)
INLINED = Frame("dot", "a.c", 20, inlined=True)


def test_a_frame_is_the_function_without_its_loops_and_what_is_inlined_into_it() -> None:
    assert called((MAIN, SOLVE, LOOP, INLINED), (MAIN, SOLVE, LOOP, INLINED)) == (
        (MAIN, SOLVE),
        (MAIN, SOLVE),
    )


def test_what_the_logical_path_does_not_show_is_nobodys_call() -> None:
    runtime = Frame("GOMP_parallel", module="/lib/libgomp.so.1")
    assert called((MAIN,), (MAIN, runtime)) is None
    assert called((), ()) is None
    assert called((MAIN, Frame("[unknown]+0x7")), (MAIN, Frame("[unknown]+0x7"))) is None
    start = Frame("start_thread", module="/lib/libc.so.6")
    assert called((start,), (start,)) is None


def test_the_details_say_few_long_calls_or_many_short_ones() -> None:
    profile = heat()
    sample = max(profile.samples, key=lambda one: one.metrics.work_ns)
    sample.metrics[ACTIVATIONS] = 23
    for view in ("context", "flat"):
        out = io.StringIO()
        print_report(profile, View(view=view, details=True, width=200), file=out)
        headings = [line for line in out.getvalue().splitlines() if "samples" in line and "calls" in line]
        assert headings and "ms/call" in headings[0]
        (row,) = (line for line in out.getvalue().splitlines() if " 23 " in line)
        assert sample.path[-1].name in row
    plain = io.StringIO()
    print_report(profile, View(width=200), file=plain)
    assert "ms/call" not in plain.getvalue()


def test_the_row_of_a_loop_and_its_function_has_the_functions_calls() -> None:
    metrics = Metrics(samples=90, work_ns=9e7)
    samples = [
        PathSample((MAIN, SOLVE), Metrics.of({ACTIVATIONS: 23})),
        PathSample((MAIN, SOLVE, LOOP), metrics),
    ]
    out = io.StringIO()
    print_report(replace(heat(), samples=samples), View(details=True, width=200), file=out)
    (row,) = (line for line in out.getvalue().splitlines() if "main > solve > loop at" in line)
    assert "      23      3.9 " in row


def test_calls_of_functions_that_a_report_folds_away_are_not_their_callers() -> None:
    inner = Frame("_IO_padn", module="/lib/x86_64-linux-gnu/libc.so.6", address=0x70)
    outer = Frame("fprintf", module="/lib/x86_64-linux-gnu/libc.so.6", address=0x90)
    samples = [
        PathSample((MAIN, outer, inner), Metrics.of({ACTIVATIONS: 23})),
        PathSample((MAIN, outer), Metrics.of({ACTIVATIONS: 5})),
    ]
    shown = readable(replace(heat(), samples=samples))
    assert {sample.path for sample in shown.samples} == {(MAIN, outer)}
    assert shown.total()[ACTIVATIONS] == 5
    assert samples[0].metrics[ACTIVATIONS] == 23
