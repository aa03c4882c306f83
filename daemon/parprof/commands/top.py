"""`parprof top`: a live table of the processes that the daemon watches."""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from parprof.commands.control_socket import add_socket_option
from parprof.errors import UsageError
from parprof.exporters.screen import MIN_WIDTH, Screen, elided
from parprof.metrics import IDLENESS, METRICS, SAMPLES, UNUSED, WORK, Metric, Shown
from parprof.service.control import control_pb2 as pb
from parprof.service.control.amounts import amount
from parprof.service.control.client import Client, ControlError
from parprof.service.control.intervals import Use, sorts, uses
from parprof.service.losses import unexpected
from parprof.untrusted import printable

DEFAULT_INTERVAL_SECONDS = 2.0
MAX_INTERVAL_SECONDS = 60.0
_FIRST_HEADINGS = (("pid", 7, "pid"), ("n_w/n", 7, ""), ("eff%", 5, "efficiency"))
_COST = ("cost%", 5, "cost")
_HOW = (("source", 9, ""), ("runtime", 8, ""))
_WIDE = 100
"""Columns from which on there is room for how n_w is known, too."""
_LEAST_COMMAND = 9
_LEAST_BLAMED, _MOST_BLAMED = 18, 60
"""Columns of optional metrics leave so much for command and function."""
_HEADER_LINES = 4


class TopCommand:
    """Watch all processes that parprofd watches: cores used, cores that stand idle, and what measuring costs.

    free, work, ovhd and spin are in cores, on average over the interval; overhead is part of work. free is what was
    really idle on the machine while the program worked, its share of it; eff% is useful work / (work + free), and
    none of a program that never had a second thread. "to blame" is the function that ran while most of its cores
    stood idle, and its share of that idleness. The first table, and --once, are about all the time since the
    daemon began to watch each process. Keys: u free cores, i idleness, w work, o overhead, s spin, b blame,
    e efficiency, f function to blame, c cost, p pid, n name; q or Ctrl-C ends it. Where there is room, idleness (each
    program against all of its cores), blame for locks, and how n_w is known have a column too.
    """

    name = "top"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "-i",
            "--interval",
            metavar="SECONDS",
            type=float,
            default=DEFAULT_INTERVAL_SECONDS,
            help="time between updates (default: %(default)s)",
        )
        parser.add_argument(
            "--sort",
            metavar="KEY",
            choices=tuple(sorts()),
            default=UNUSED.name,
            help=f"{', '.join(sorts())} (default: %(default)s)",
        )
        parser.add_argument("--once", action="store_true", help="print one table and end")
        parser.add_argument("--json", action="store_true", help="print JSON, one line for each update")
        add_socket_option(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        if not (math.isfinite(args.interval) and 0.1 <= args.interval <= MAX_INTERVAL_SECONDS):
            raise UsageError(f"-i {args.interval}: give 0.1 to {MAX_INTERVAL_SECONDS:.0f} seconds")
        feed = Feed(args.socket)
        try:
            feed.refresh()
            if not args.once and not args.json and sys.stdout.isatty():
                _watch(feed, args.interval, args.sort)
            else:
                _print(feed, args)
        except KeyboardInterrupt:
            pass
        finally:
            feed.close()
        return 0


class Feed:
    """What the daemon says, now and the time before; connects anew when it was restarted."""

    def __init__(self, path: str | None) -> None:
        """Connect.

        Raises:
            ControlError: no daemon answers.
        """
        self._path = path
        self._client: Client | None = Client(path)
        self.status = pb.Status()
        self.now = pb.ProcessList()
        self.before: pb.ProcessList | None = None
        self._has_some = False

    def refresh(self) -> None:
        """Ask again. When nothing has happened since, ``before`` stays.

        Raises:
            ControlError: the daemon does not answer any more; later it may.
        """
        try:
            if self._client is None:
                self._client = Client(self._path)
            self.status = self._client.status()
            answer = self._client.processes()
        except ControlError:
            self.close()
            raise
        if self._has_some and answer.clock_s != self.now.clock_s:
            self.before = self.now
        self.now = answer
        self._has_some = True

    def close(self) -> None:
        """Disconnect; `refresh` connects again."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def uses(self, sort: str) -> list[Use]:
        """What the processes did meanwhile."""
        return uses(self.now, self.before, sort)


def _print(feed: Feed, args: argparse.Namespace) -> None:
    """Tables, or JSON, one after the other."""
    while True:
        if args.json:
            json.dump(as_data(feed, args.sort), sys.stdout)
            print(flush=True)
        else:
            with Screen(sys.stdout) as screen:
                screen.show(table(feed, args.sort, screen.width, None))
            sys.stdout.flush()
        if args.once:
            return
        time.sleep(args.interval)
        feed.refresh()


def keys() -> dict[str, str]:
    """Orders by the key that chooses them: the first letter of each, where that is free."""
    out = {"q": ""}
    for sort in (
        "unused",
        "idleness",
        "work",
        "overhead",
        "spin",
        "efficiency",
        "function",
        "cost",
        "pid",
        "name",
        *sorts(),
    ):
        out.setdefault(sort[0], sort)
    del out["q"]
    return out


def _watch(feed: Feed, interval_s: float, sort: str) -> None:
    console = Console()
    problem = ""
    by_key = keys()
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + interval_s
        while True:
            width = max(console.width, MIN_WIDTH)
            shown = table(feed, sort, width, max(console.height - _HEADER_LINES, 1), problem)
            live.update(shown, refresh=True)
            key = _key(due - time.monotonic())
            if key == "q":
                return
            sort = by_key.get(key, sort)
            if time.monotonic() >= due:
                try:
                    feed.refresh()
                    problem = ""
                except ControlError as error:
                    problem = str(error)
                due = time.monotonic() + interval_s


@contextmanager
def _single_keys() -> Iterator[None]:
    """Let keys be read one by one, where standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """The key that is pressed within this time, else nothing."""
    if not sys.stdin.isatty():
        time.sleep(max(seconds, 0.0))
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], max(seconds, 0.0))
    if not ready:
        return ""
    typed = os.read(sys.stdin.fileno(), 64)
    if not typed:  # the end of the input: there will be no keys
        time.sleep(max(seconds, 0.0))
    return typed[-1:].decode("latin-1")


def table(feed: Feed, sort: str, width: int, rows: int | None, problem: str = "") -> Group:
    """The screen: two lines about the daemon, then the processes."""
    found = feed.uses(sort)
    out = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    metrics = _columns(found, width)
    room = _room(len(metrics), width)
    longest = max((cell_len(_blamed(use, _MOST_BLAMED)) for use in found[:rows]), default=0)
    blamed = min(max(longest, _LEAST_BLAMED), _MOST_BLAMED, room - _LEAST_COMMAND - 1)
    command = room - blamed - 1
    headings = [
        *_FIRST_HEADINGS,
        *((metric.heading, 5, metric.name) for metric in metrics),
        _COST,
        *(_HOW if width >= _WIDE else ()),
    ]
    for heading, size, key in headings:
        out.add_column(heading, justify="right", width=size, no_wrap=True, header_style=_style(key == sort))
    for heading, size, key in (("to blame", blamed, "function"), ("command", command, "name")):
        out.add_column(heading, width=size, no_wrap=True, overflow="crop", header_style=_style(key == sort))
    for use in found[:rows]:
        cells = _cells(use, metrics)
        cells += _how(use) if width >= _WIDE else []
        cells += [_blamed(use, blamed), elided(printable(use.process.comm) or "?", command)]
        out.add_row(*map(Text, cells))
    lines = [
        Text(elided(line, width), no_wrap=True) for line in _header(feed, found, len(found[:rows]), problem)
    ]
    if problem:
        lines[-1].stylize("bold red")
    return Group(*lines, Text(""), out)


def _columns(found: list[Use], width: int) -> list[Metric]:
    """The metrics that the table has always, and those of which there is anything, as far as there is room."""
    shown = [metric for metric in METRICS.by_name().values() if metric.has(Shown.TOP)]
    out = [UNUSED, *(metric for metric in shown if not metric.optional and metric is not IDLENESS)]
    for metric in shown:
        fits = _room(len(out) + 1, width) >= _LEAST_BLAMED + 1 + _LEAST_COMMAND
        if metric not in out and fits and any(use[metric] for use in found):
            out.append(metric)
    return out


def _style(is_chosen: bool) -> str:
    """Of a heading."""
    return "bold underline" if is_chosen else "bold"


def _room(metrics: int, width: int) -> int:
    """What so many columns leave for function and command."""
    sizes: list[int] = [size for _, size, _ in (*_FIRST_HEADINGS, _COST, *(_HOW if width >= _WIDE else ()))]
    return width - sum(sizes) - len(sizes) - 6 * metrics


def _header(feed: Feed, found: list[Use], shown: int, problem: str) -> list[str]:
    status = feed.status
    lost = _lost(status)
    first = (
        f"parprofd {status.version}, {len(found)} processes: {sum(use[WORK] for use in found):.1f} cores work,"
        f" {sum(use[UNUSED] for use in found):.1f} stand idle"
    )
    if problem:
        return [printable(first), printable(problem)]
    span = "since each was first watched"
    if feed.before is not None:
        span = f"last {max(feed.now.clock_s - feed.before.clock_s, 0.0):.1f} s"
    parts = [span, f"cost {100 * status.cost_ratio:.2f} %", f"lost {lost:,}"]
    if omitted := len(found) - shown + feed.now.omitted:
        parts.append(f"{omitted:,} more not shown")
    if not found:
        parts.append("none of yours is watched")
    return [printable(first), "; ".join(parts)]


def _lost(status: pb.Status) -> int:
    """What is worth to be looked into; `parprof status` tells all of it, by reason."""
    return unexpected({one.labels[0]: one.value for one in status.lost})


def _cells(use: Use, metrics: list[Metric]) -> list[str]:
    process, efficiency = use.process, use.efficiency
    return [
        str(process.pid),
        f"{process.n_working}/{process.cores}",
        "-" if efficiency is None else f"{100 * efficiency:.1f}",
        *(_cores(use[metric]) for metric in metrics),
        f"{100 * process.cost_ratio:.2f}",
    ]


def _how(use: Use) -> list[str]:
    return [elided(printable(use.process.n_w_source), 9), elided(printable(use.process.runtime), 8)]


def _blamed(use: Use, width: int) -> str:
    """The function to blame and its share, which is never cut off; nothing where none is."""
    if not use.blamed:
        return ""
    share = f" {100 * use.blamed_share:.0f}%"
    return elided(printable(use.blamed), width - len(share)) + share


def _cores(value: float) -> str:
    """Five characters, up to 99999 cores."""
    return f"{value:.2f}" if value < 99.995 else f"{value:.1f}" if value < 999.95 else f"{value:.0f}"


def as_data(feed: Feed, sort: str) -> dict[str, Any]:
    """The table as plain data. Metrics in cores; ``totals`` in seconds since the process was first watched."""
    return {
        "time_s": feed.now.time_s,
        "cost_ratio": feed.status.cost_ratio,
        "lost": _lost(feed.status),
        "omitted": feed.now.omitted,
        "processes": [_process(use) for use in feed.uses(sort)],
    }


def _process(use: Use) -> dict[str, Any]:
    process, totals = use.process, use.process.totals
    return {
        "pid": process.pid,
        "comm": process.comm,
        "command": process.command,
        "uid": process.uid,
        "runtime": process.runtime,
        "n_w_source": process.n_w_source,
        "cores": process.cores,
        "n_working": process.n_working,
        "threads": {
            "working": process.working,
            "spinning": process.spinning,
            "blocked": process.blocked,
        },
        "interval_s": use.interval_s,
        "serial": process.serial,
        "efficiency": use.efficiency,
        "to_blame": {"function": use.blamed, "share": use.blamed_share} if use.blamed else None,
        **{metric.name: use[metric] for metric in METRICS if metric is not SAMPLES},
        "cost_ratio": process.cost_ratio,
        "totals": {metric.report_key: amount(totals, metric) for metric in METRICS},
    }
