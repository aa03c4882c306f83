"""`parprof status`: what the daemon does now."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from parprof.commands.control_socket import add_socket_option
from parprof.exporters.screen import Screen
from parprof.service.control import control_pb2 as pb
from parprof.service.control import socket_path
from parprof.service.control.client import Client


class StatusCommand:
    """Show whether parprofd runs, since when, what it watches, what that costs, and what it has lost.

    The exit code is 0 when it runs and is well, else 1.
    """

    name = "status"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("--json", action="store_true", help="print it as JSON")
        add_socket_option(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        with Client(args.socket) as client:
            status = client.status()
        if args.json:
            json.dump(as_data(status), sys.stdout)
            print()
        else:
            with Screen(sys.stdout) as screen:
                for label, text in described(status, socket_path(args.socket)):
                    screen.fact(label, text)
        return 1 if status.unhealthy else 0


def described(status: pb.Status, path: str) -> list[tuple[str, str]]:
    """The status in words: pairs of label and text."""
    state = status.unhealthy or (f"not ready: {status.not_ready}" if status.not_ready else "well")
    hidden = status.processes - status.visible_processes
    others = f" ({hidden:,} of them other users')" if hidden else ""
    pairs = [
        ("parprofd", f"{status.version} at {path}, {state}"),
        (
            "since",
            f"{_clock(status.started_time_s)} ({_span(status.watched_s)})",
        ),
        ("watches", f"{status.processes:,} processes{others} at {status.frequency_hz} Hz"),
        ("samples", f"{status.samples:,}"),
        (
            "cost",
            f"{100 * status.cost_ratio:.2f} % of this machine's CPU time in the targets,"
            f" of a budget of {100 * status.budget_ratio:.2f} %; the last drain took {1000 * status.drain_s:.1f} ms",
        ),
        ("lost", _counted(status.lost) or "nothing"),
    ]
    for label, counters in (
        ("could not attach", status.attach_failures),
        ("governor", status.governor_transitions),
        ("pushed", status.pushed),
        ("dropped", status.dropped),
    ):
        if text := _counted(counters):
            pairs.append((label, text))
    pairs += [("protection", line) for line in status.protection]
    return pairs + [("note", note) for note in status.notes]


def as_data(status: pb.Status) -> dict[str, Any]:
    """The status as plain data: seconds and ratios; counters by their labels, joined with a colon."""
    return {
        "version": status.version,
        "healthy": not status.unhealthy,
        "ready": not status.not_ready,
        "problem": status.unhealthy or status.not_ready,
        "time_s": status.time_s,
        "started_time_s": status.started_time_s,
        "watched_s": status.watched_s,
        "processes": status.processes,
        "visible_processes": status.visible_processes,
        "frequency_hz": status.frequency_hz,
        "samples": status.samples,
        "budget_ratio": status.budget_ratio,
        "cost_ratio": status.cost_ratio,
        "drain_s": status.drain_s,
        **{
            name: {":".join(one.labels): one.value for one in getattr(status, name)}
            for name in ("lost", "attach_failures", "governor_transitions", "pushed", "dropped")
        },
        "protection": list(status.protection),
        "notes": list(status.notes),
    }


def _counted(counters: Iterable[pb.Counter]) -> str:
    return ", ".join(f"{one.value:,} {' > '.join(one.labels)}" for one in counters if one.value)


def _clock(time_s: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    except (OverflowError, OSError, ValueError):
        return "an unknown time"


def _span(seconds: float) -> str:
    """A duration in its two largest units.

    >>> _span(93784)
    '1 d 2 h'
    """
    whole = int(max(seconds, 0)) if seconds < 1e12 else 0
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "min"), (second, "s")]
    first = next((at for at, (value, _) in enumerate(parts) if value), 3)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2])
