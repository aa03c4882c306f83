"""Execution traces: from records to slices, to Perfetto's packets, and to the minimum time."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as official

from parprof.kernel.trace import ENDED, QUEUES, RUNS, WORKS, ThreadRecord
from parprof.plans import Edge
from parprof.timeline import perfetto_pb2
from parprof.timeline.callpaths import DEEPER, MAX_DEPTH, Stay, call_slices, until_the_next
from parprof.timeline.minimum import MinimumTime, minimum_time
from parprof.timeline.perfetto import TraceWriter
from parprof.timeline.slices import CounterStep, Slice, end_replaced, n_working, runs, states
from parprof.timeline.sync import Instant, sync_points
from parprof.timeline.trace import TraceResult

ON, OFF, SPINS, SPINS_OFF, ASLEEP = WORKS | RUNS, WORKS | QUEUES, RUNS, QUEUES, 0
MS = 1_000_000


def at(ms: float, tid: int, does: int, **fields: int) -> ThreadRecord:
    return ThreadRecord(int(ms * MS), tid, 1, does, **fields)


def edge(ms: float, kind: Edge, depth: int, function: int = 0) -> ThreadRecord:
    return at(ms, 1, ON, edge=kind, depth=depth, function=function)


def test_states_follow_each_other_without_gaps() -> None:
    records = [
        at(0, 1, ASLEEP),
        at(2, 1, OFF, waker=7),
        at(3, 1, ON),
        at(4, 1, ON),
        at(9, 1, SPINS),
        at(12, 1, ENDED),
    ]
    found = states(records, 99 * MS)
    assert [(one.begin_ns // MS, one.end_ns // MS, one.name) for one in found] == [
        (0, 2, "waiting"), (2, 3, "ready, no CPU"), (3, 9, "working"), (9, 12, "spinning"),
    ]  # fmt: skip


def test_the_threads_of_a_program_end_with_its_exec() -> None:
    before, after = at(1, 5, ON), at(4, 5, ON)._replace(image=2)
    found = end_replaced([before, after], {1: 50, 2: 50})
    assert found == [before, before._replace(time_ns=4 * MS, does=ENDED), after]
    assert n_working(found) == [CounterStep(1 * MS, 1), CounterStep(4 * MS, 0), CounterStep(4 * MS, 1)]
    other = end_replaced([before, after], {1: 50, 2: 60})
    assert n_working(other) == [CounterStep(1 * MS, 1), CounterStep(4 * MS, 2)]


def test_regions_hold_the_work_and_the_waits_in_them() -> None:
    names = {1: "solve._omp_fn.0", 2: "GOMP_barrier", 3: "solve._omp_fn.1"}
    records = [
        edge(1, Edge.REGION, 1, 1), edge(2, Edge.WORK, 2, 1), edge(3, Edge.CREATE_TASK, 2, 3),
        edge(4, Edge.WAIT, 3, 2), edge(6, Edge.WAIT, 2), edge(8, Edge.WORK, 1), edge(9, Edge.REGION, 0),
    ]  # fmt: skip
    found, instants = sync_points(records, 99 * MS, lambda address: names[address])
    assert [(one.begin_ns // MS, one.end_ns // MS, one.name) for one in found] == [
        (1, 9, "region solve._omp_fn.0"), (2, 8, "work solve._omp_fn.0"), (4, 6, "wait GOMP_barrier"),
    ]  # fmt: skip
    assert instants == [Instant(3 * MS, "create task solve._omp_fn.1")]


def test_a_return_that_nobody_saw_ends_with_what_comes_after_it() -> None:
    records = [edge(1, Edge.WORK, 1, 1), edge(2, Edge.WAIT, 2, 1), edge(5, Edge.WORK, 1, 1), at(7, 1, ENDED)]
    found, _ = sync_points(records, 99 * MS, lambda address: "f")
    assert [(one.begin_ns // MS, one.end_ns // MS) for one in found] == [(1, 5), (2, 5), (5, 7)]


def test_work_that_moves_between_stacks_begins_and_ends() -> None:
    records = [
        edge(1, Edge.BEGIN, 0, 1),
        edge(3, Edge.STEAL, 0, 1),
        edge(4, Edge.END, 0, 1),
        edge(6, Edge.BEGIN, 0, 1),
    ]
    found, instants = sync_points(records, 9 * MS, lambda address: "f")
    assert [(one.begin_ns // MS, one.end_ns // MS) for one in found] == [(1, 4), (6, 9)]
    assert instants == [Instant(3 * MS, "steal f")]


def test_a_call_lasts_from_sample_to_sample_but_not_over_a_gap() -> None:
    stays = [Stay(0, 10, ("main", "f")), Stay(10, 20, ("main", "f")), Stay(50, 60, ("main", "f"))]
    assert call_slices(stays, 5) == [
        Slice(0, 20, "main"),
        Slice(0, 20, "f"),
        Slice(50, 60, "main"),
        Slice(50, 60, "f"),
    ]
    deep = call_slices([Stay(0, 10, tuple(map(str, range(MAX_DEPTH + 9))))], 5)
    assert len(deep) == MAX_DEPTH + 1
    assert deep[-1].name == DEEPER


@pytest.mark.parametrize(
    ("changes", "lasts"),
    [
        ([(0, ON)], [(1, 5), (1, 5)]),
        ([(0, ON), (3, SPINS)], [(1, 5), (1, 5)]),
        ([(0, ON), (3, OFF), (4, ON)], [(1, 2), (1, 2), (4, 5), (4, 5)]),
        ([(0, ON), (3, ASLEEP), (4, ON)], [(1, 2), (1, 2), (4, 5), (4, 5)]),
        ([(2, ON)], [(1, 2), (1, 2), (4, 5), (4, 5)]),
        ([], [(1, 2), (1, 2), (4, 5), (4, 5)]),
    ],
)
def test_where_a_sample_is_late_a_thread_that_kept_its_cpu_was_in_its_calls(
    changes: list[tuple[int, int]], lasts: list[tuple[int, int]]
) -> None:
    """Two samples, of 1 and of 4 ms, a millisecond long each."""
    stays = [Stay(begin * MS, (begin + 1) * MS, ("main", "f")) for begin in (1, 4)]
    kept = until_the_next(stays, runs([at(ms, 1, does) for ms, does in changes], 9 * MS), 10 * MS)
    assert [(one.begin_ns // MS, one.end_ns // MS) for one in call_slices(kept, MS / 2)] == lasts


def test_a_sample_does_not_stand_for_just_any_time() -> None:
    stays = [Stay(0, 1, ("f",)), Stay(10, 11, ("f",)), Stay(21, 22, ("f",))]
    assert [one.end_ns for one in until_the_next(stays, [(0, 30)], 10)] == [10, 11, 22]


def test_what_others_took_is_no_part_of_the_minimum_time() -> None:
    records = [at(0, 1, ON), at(10, 1, OFF), at(40, 1, ON), at(50, 1, ENDED)]
    found = minimum_time(records, 2, 50 * MS)
    assert (found.elapsed_ns, found.minimum_ns) == (50 * MS, 20 * MS)


@pytest.mark.parametrize("threads", [2, 3, 4, 40])
def test_more_threads_than_cores_take_turns_on_all_cores_with_the_machine_to_itself(threads: int) -> None:
    """Here they had one core of two, and each has 12 ms of work, a millisecond at a time."""
    records = [at(0, 1, ON), *(at(0, tid, OFF, waker=1) for tid in range(2, threads + 1))]
    for turn in range(1, 12 * threads):
        before, after = (turn - 1) % threads + 1, turn % threads + 1
        records += [at(turn, before, OFF), at(turn, after, ON)]
    found = minimum_time(records, 2, 12 * threads * MS)
    assert found.minimum_ns == pytest.approx(6 * threads * MS, rel=0.1)


def test_what_a_program_s_own_threads_took_is() -> None:
    """Two threads on one core: neither could go on without taking it from the other."""
    records = [
        at(0, 1, ON),
        at(0, 2, OFF, waker=1),
        at(10, 1, OFF),
        at(10, 2, ON),
        at(20, 2, ENDED),
        at(20, 1, ON),
    ]
    assert minimum_time(records, 1, 30 * MS).minimum_ns == 30 * MS
    # a second core, which others have: half of the queueing would not have been
    assert minimum_time(records, 2, 30 * MS).minimum_ns == 20 * MS


def test_who_is_woken_goes_on_where_its_waker_is() -> None:
    """Thread 1 waits for 2, which others keep from its CPU for 30 ms of the 40."""
    records = [
        at(0, 1, ON), at(1, 2, OFF, waker=1), at(1, 2, ON), at(2, 1, ASLEEP), at(5, 2, OFF), at(35, 2, ON),
        at(40, 1, OFF, waker=2), at(40, 1, ON), at(41, 2, ENDED),
    ]  # fmt: skip
    assert minimum_time(records, 2, 45 * MS).minimum_ns == 15 * MS


def test_who_ends_wakes_those_who_wait_for_that_after_its_end_was_told() -> None:
    records = [
        at(0, 1, ON), at(1, 2, ON, waker=1), at(2, 1, ASLEEP), at(5, 2, OFF), at(35, 2, ON), at(40, 2, ENDED),
        at(40.1, 1, ON, waker=2),
    ]  # fmt: skip
    assert minimum_time(records, 2, 45 * MS).minimum_ns == pytest.approx(14.9 * MS)


def test_what_comes_from_outside_takes_as_long_as_it_took() -> None:
    records = [at(0, 1, ON), at(5, 1, ASLEEP), at(30, 1, OFF, waker=0), at(30, 1, ON)]
    assert minimum_time(records, 2, 32 * MS).minimum_ns == 32 * MS
    # a timer's interrupt that came while another thread of the program ran
    records = [
        at(0, 1, ON),
        at(0, 2, ON),
        at(5, 1, ASLEEP),
        at(10, 2, OFF),
        at(20, 2, ON),
        at(30, 1, ON, waker=2),
    ]
    assert minimum_time(records, 2, 32 * MS).minimum_ns == 22 * MS
    assert minimum_time(records, 2, 32 * MS, {((1, 1), 30 * MS)}).minimum_ns == 32 * MS


def test_who_spins_goes_on_when_the_others_get_there() -> None:
    """2 holds a lock for 30 ms of which it has a CPU for 10; 1 spins meanwhile."""
    records = [
        at(0, 1, ON), at(0, 2, ON), at(1, 1, SPINS), at(5, 2, OFF), at(25, 2, ON), at(30, 1, ON),
    ]  # fmt: skip
    assert minimum_time(records, 2, 35 * MS).minimum_ns == 15 * MS


def test_time_in_which_we_had_stopped_the_program_does_not_count() -> None:
    records = [at(0, 1, ON), at(2, 1, ASLEEP), at(30, 1, OFF, waker=77), at(30, 1, ON)]
    found = minimum_time(records, 2, 35 * MS, ours=77)
    assert (found.elapsed_ns, found.minimum_ns) == (7 * MS, 7 * MS)


def test_a_program_that_execs_goes_on_where_it_was() -> None:
    first = [at(0, 1, ON), at(10, 1, OFF), at(30, 1, ON)]
    second = [one._replace(image=2) for one in (at(35, 1, ON), at(40, 1, ENDED))]
    found = minimum_time(end_replaced([*first, *second], {1: 1, 2: 1}), 2, 40 * MS)
    assert found.minimum_ns == 20 * MS


@pytest.mark.parametrize("records", [[], [at(3, 1, ASLEEP)]])
def test_nobody_worked(records: list[ThreadRecord]) -> None:
    found = minimum_time(records, 2, 9 * MS)
    assert (found.elapsed_ns, found.minimum_ns, found.saved_percent) == (0, 0, 0.0)


def test_a_trace_says_what_it_lacks() -> None:
    whole = TraceResult(MinimumTime(2_000_000_000, 5e8), 3, 0, 2_500_000_000, "")
    assert whole.sentence("out") == (
        "trace of 3 threads over 2.500 s: out; with the machine to itself 0.500 s of 2.000 s would remain "
        "(75.0 % less: minimum time)"
    )
    cut = replace(whole, bound="16 MiB of file", lost=1234)
    assert "cut short there by its bound of 16 MiB of file, 1,234 records of it lost; with" in cut.sentence(
        "out"
    )
    assert "over 1.000 s: out, cut short there" in (shorter := replace(cut, ended_ns=10**9).sentence("out"))
    assert "0.500 s of all 2.000 s that were recorded would remain" in shorter
    blind = replace(whole, is_blind=True).sentence("out")
    assert "no minimum time" in blind and "0.500" not in blind


def written(limit_bytes: int = 1 << 20, slices: int = 2) -> tuple[bytes, int]:
    writer = TraceWriter()
    process = writer.add_process(50, "solver")
    thread = writer.add_thread(50, 51, "worker", process)
    nested = [Slice(10, 90, "region f"), *(Slice(20 + i, 21 + i, "work f") for i in range(slices))]
    writer.add_slices(thread, nested)
    writer.add_instants(writer.add_track("notes", thread), [Instant(15, "here")])
    writer.add_counter("n_w", "threads", [CounterStep(10, 2), CounterStep(90, -1)])
    file = io.BytesIO()
    cut_ns = writer.write(file, limit_bytes)
    return file.getvalue(), cut_ns


def test_the_packets_are_perfetto_s_own() -> None:
    """Read with Perfetto's schema, not ours: each field has the number and the meaning that it has there."""
    data, cut = written()
    trace = official.Trace.FromString(data)
    assert cut == 0
    assert trace.SerializeToString(deterministic=True) == perfetto_pb2.Trace.FromString(
        data
    ).SerializeToString(deterministic=True)
    names = {one.iid: one.name for packet in trace.packet for one in packet.interned_data.event_names}
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }
    events = [p for p in trace.packet if p.HasField("track_event")]
    kinds = official.TrackEvent.Type.Name
    assert [(p.timestamp, kinds(p.track_event.type), names.get(p.track_event.name_iid)) for p in events] == [
        (10, "TYPE_SLICE_BEGIN", "region f"), (10, "TYPE_COUNTER", None), (15, "TYPE_INSTANT", "here"),
        (20, "TYPE_SLICE_BEGIN", "work f"), (21, "TYPE_SLICE_END", None), (21, "TYPE_SLICE_BEGIN", "work f"),
        (22, "TYPE_SLICE_END", None), (90, "TYPE_SLICE_END", None), (90, "TYPE_COUNTER", None),
    ]  # fmt: skip
    assert [p.track_event.counter_value for p in events if p.track_event.HasField("counter_value")] == [2, -1]
    (worker,) = [one for one in tracks.values() if one.HasField("thread")]
    assert (worker.thread.pid, worker.thread.tid, worker.thread.thread_name) == (50, 51, "worker")
    assert tracks[worker.parent_uuid].process.process_name == "solver"
    clocks = next(p.clock_snapshot for p in trace.packet if p.HasField("clock_snapshot"))
    assert {one.clock_id for one in clocks.clocks} == {1, 3, 6}
    assert clocks.primary_trace_clock == 3  # CLOCK_MONOTONIC, as all our times
    (defaults,) = [p.trace_packet_defaults for p in trace.packet if p.HasField("trace_packet_defaults")]
    assert defaults.timestamp_clock_id == 3  # CLOCK_MONOTONIC


def test_a_trace_that_grows_too_large_ends_and_so_does_all_that_is_open() -> None:
    data, cut = written(1500, slices=60)
    assert len(data) < 1600
    assert 20 < cut < 80
    events = [p.track_event for p in official.Trace.FromString(data).packet if p.HasField("track_event")]
    kinds = [event.type for event in events]
    assert kinds.count(official.TrackEvent.TYPE_SLICE_BEGIN) == kinds.count(
        official.TrackEvent.TYPE_SLICE_END
    )
