"""From snapshots to what a peer may be told of them."""

from __future__ import annotations

from collections.abc import Iterable

from parprof import __version__
from parprof.service.control import control_pb2 as pb
from parprof.service.control.access import Peer, may_see
from parprof.service.control.amounts import to_wire
from parprof.service.kernel_stacks import functions_for_users
from parprof.service.model import FunctionUse, ProcessSnapshot, Service, Snapshot
from parprof.untrusted import visible

MAX_LISTED = 4096
_MAX_TEXT = 256
_MAX_NOTES = 16
_MAX_FUNCTIONS = 8


def status(service: Service, peer: Peer) -> pb.Status:
    """How the daemon is. Names of users' files are in its notes, so these are for root alone."""
    snapshot = service.snapshot()
    return pb.Status(
        version=__version__,
        time_s=snapshot.time_s,
        started_time_s=snapshot.started_s,
        watched_s=snapshot.watched_s,
        unhealthy=_text(service.is_healthy()),
        not_ready=_text(service.is_ready()),
        processes=len(snapshot.processes),
        visible_processes=len(_visible(snapshot, peer)),
        frequency_hz=_small(snapshot.frequency_hz),
        samples=_count(snapshot.samples),
        budget_ratio=snapshot.budget_ratio,
        cost_ratio=snapshot.cost_ratio,
        drain_s=snapshot.drain_seconds,
        lost=_counters([((reason,), count) for reason, count in snapshot.lost.items()]),
        attach_failures=_counters(snapshot.attach_failures.items()),
        governor_transitions=_counters(snapshot.governor_transitions.items()),
        pushed=_counters(snapshot.pushed.items()),
        notes=[_text(note) for note in snapshot.notes[:_MAX_NOTES]] if peer.is_root else [],
        protection=[_text(line) for line in snapshot.protection],
        dropped=_counters([((kind,), count) for kind, count in snapshot.dropped.items()]),
    )


def processes(service: Service, peer: Peer) -> pb.ProcessList:
    """The processes that a peer may see, those with most effort first."""
    snapshot = service.snapshot()
    found = sorted(_visible(snapshot, peer), key=lambda it: (-it.totals.effort_ns, it.pid))
    return pb.ProcessList(
        time_s=snapshot.time_s,
        clock_s=snapshot.clock_s,
        processes=[_process(one, peer, snapshot) for one in found[:MAX_LISTED]],
        omitted=max(len(found) - MAX_LISTED, 0),
    )


def _visible(snapshot: Snapshot, peer: Peer) -> list[ProcessSnapshot]:
    return [one for one in snapshot.processes if may_see(peer, one.pid, one.labels.uid)]


def _process(one: ProcessSnapshot, peer: Peer, snapshot: Snapshot) -> pb.Process:
    labels = one.labels
    functions = one.functions if peer.is_root else functions_for_users(one.functions)
    return pb.Process(
        pid=one.pid,
        comm=_text(labels.comm),
        command=_text(one.command),
        uid=_small(labels.uid),
        runtime=_text(one.runtime),
        n_w_source=_text(one.n_w_source),
        cores=_small(one.cores),
        n_working=_small(one.n_working),
        working=_small(one.threads.get("working", 0)),
        spinning=_small(one.threads.get("spinning", 0)),
        blocked=_small(one.threads.get("blocked", 0)),
        started_time_s=one.started_s,
        watched_s=snapshot.watched_process_s(one),
        cost_ratio=one.cost_ratio,
        frequency_hz=_small(one.frequency_hz),
        cgroup=_text(labels.cgroup),
        unit=_text(labels.unit),
        container=_text(labels.container),
        pod=_text(labels.pod),
        totals=to_wire(one.totals),
        notes=[_text(note) for note in one.notes[:_MAX_NOTES]],
        serial=not one.is_parallel,
        functions=[_function(use) for use in functions[:_MAX_FUNCTIONS] if use.metrics.idleness_ns],
    )


def _function(use: FunctionUse) -> pb.Function:
    return pb.Function(
        name=_text(use.name), module=_text(use.module), idleness_s=use.metrics.idleness_ns / 1e9
    )


def _counters(counts: Iterable[tuple[tuple[str, ...], int]]) -> list[pb.Counter]:
    return [
        pb.Counter(labels=[_text(label) for label in labels], value=_count(value))
        for labels, value in sorted(counts)
    ]


def _text(text: str) -> str:
    return visible(text, _MAX_TEXT)


def _count(value: int) -> int:
    """A count as the wire can hold it: the kernel's may dip below zero for an instant."""
    return min(max(value, 0), 2**64 - 1)


def _small(value: int) -> int:
    return min(max(value, 0), 2**32 - 1)
