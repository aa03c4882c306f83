"""`parprof attach`: profiles a running process."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from parprof.commands.control_socket import add_socket_option
from parprof.commands.measuring import (
    DEFAULT_BUDGET_PERCENT,
    Interrupt,
    add_measuring_options,
    add_trace_options,
    check_budget,
    measure,
    present,
    validate,
    wants_allocations,
)
from parprof.errors import TargetError, UsageError
from parprof.exporters.output import check_writable
from parprof.metrics import ACTIVATIONS
from parprof.process.cgroups import cgroup_members
from parprof.process.identity import descendants, inspect
from parprof.service.control import may_have_daemon
from parprof.untrusted import printable
from parprof.wording import many

if TYPE_CHECKING:
    from parprof.model import Profile
    from parprof.session.session import Session
    from parprof.session.target import Target

_PATIENCE_SECONDS = 15.0
_SAY_SO_SECONDS = 0.5


class AttachCommand:
    """Profile a running process until its exit, Ctrl-C, or the given seconds; it runs on unharmed."""

    name = "attach"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("pid", metavar="PID", help="the process")
        parser.add_argument(
            "-d", "--duration", metavar="SECONDS", type=float, help="how long (default: until Ctrl-C)"
        )
        parser.add_argument(
            "--scope",
            choices=("process", "tree", "cgroup"),
            default="process",
            help="what is measured, as one job that shares its cores: the process alone (the default); with its "
            "children and theirs; or with all processes of its cgroup; the last two with what is forked meanwhile",
        )
        parser.add_argument(
            "--children", dest="scope", action="store_const", const="tree", help="the same as --scope tree"
        )
        parser.add_argument(
            "--span",
            action="store_true",
            help="instead of a profile: work and span of its parallel regions from their barriers, and so how far it "
            "can scale, as `parprof scale` says for a command; for OpenMP programs whose phases are coarse",
        )
        add_measuring_options(parser, "parprof.pb.gz")
        add_trace_options(parser)
        add_socket_option(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        if not (args.pid.isascii() and args.pid.isdigit()):
            raise UsageError(
                f"{args.pid!r} is not a process id: give a number, such as `pgrep -n NAME` prints"
            )
        pid = int(args.pid)
        if args.duration is not None and not (math.isfinite(args.duration) and args.duration > 0):
            raise UsageError(f"-d {args.duration}: give a positive number of seconds")
        inspect(pid)
        if args.socket is not None and (args.span or not _daemon_can(args)):
            raise UsageError(
                "--socket: this is not what the daemon can measure; leave it out, or see `man parprof`"
            )
        if args.span:
            return self._measure_span(pid, args)
        if args.scope == "cgroup":
            cgroup_members(pid)  # or say at once why not
        interrupt = Interrupt()
        wanted = args.socket is not None
        if _daemon_can(args) and (wanted or may_have_daemon()) and self._ask_daemon(pid, args, interrupt):
            return 0
        events = validate(args)
        over_s = math.inf

        def begin(session: Session) -> Target:
            nonlocal over_s
            patience = _Patience(interrupt, args.quiet)
            others, alone = _others(pid, args.scope), args.scope == "process"
            mine = () if alone else others
            target = session.watch(pid, follow=not alone, patient=patience, children=mine)
            if not alone:
                _join_latecomers(session, _others(pid, args.scope), patience)
            elif others and not args.quiet:
                _tell_of_children(pid, len(others))
            if wants_allocations(events):
                from parprof.commands.allocations import follow_running

                follow_running(session)
            if args.duration is not None:
                over_s = time.monotonic() + args.duration
                session.wake_up_at(over_s)
            return target

        def finished(session: Session) -> bool:
            return bool(interrupt.signal) or time.monotonic() >= over_s or session.live(pid) is None

        with interrupt.installed():
            present(args, *measure(args, events, begin, finished, running=pid))
        return 0

    @staticmethod
    def _measure_span(pid: int, args: argparse.Namespace) -> int:
        from parprof.commands.spanned import attach_span

        if args.scope != "process":
            raise UsageError("--span is of one process: give it without --children and --scope")
        if args.trace is not None:
            raise UsageError("--span makes no profile, and so no trace: give --trace without it")
        check_budget(args.budget)
        interrupt = Interrupt()
        with interrupt.installed():
            return attach_span(args, pid, interrupt)

    @staticmethod
    def _ask_daemon(pid: int, args: argparse.Namespace, interrupt: Interrupt) -> bool:
        """Have the daemon do it; False if there is none, and none was asked for by name."""
        from parprof.commands.late_loops import LateLoops
        from parprof.commands.progress import Progress
        from parprof.service.control.client import NoDaemon, profile_from_daemon

        mine = inspect(pid)
        check_writable(args.output)
        if args.html is not None:
            check_writable(args.html)
        try:
            with interrupt.installed(), LateLoops(pid) as loops:
                with Progress(sys.stderr, enabled=not args.quiet) as progress:
                    profile = profile_from_daemon(
                        pid,
                        args.duration,
                        path=args.socket,
                        on_progress=progress.show_daemon,
                        finished=lambda: bool(interrupt.signal),
                        frequency_hz=args.frequency,
                    )
                if (
                    profile.process.comm == mine.comm
                ):  # the daemon may not tell arguments; who may see them does
                    profile.process = replace(profile.process, command=mine.command)
                loops.add(profile, _to_standard_error if not args.quiet else None)
                differs = _what_differs(profile, args.frequency)
                profile.notes.append(differs)
                if not args.quiet:
                    print(f"parprof: {differs}", file=sys.stderr)
                present(args, profile)
            return True
        except NoDaemon:
            if args.socket is not None:
                raise
            return False


def _what_differs(profile: Profile, asked_hz: int) -> str:
    """Between what the daemon measured and what attach alone would have, in a sentence."""
    from parprof.service.losses import LOST_MEANWHILE

    rate = f"at {profile.frequency_hz:g} Hz" if profile.frequency_hz else "at rates that changed meanwhile"
    as_asked = "" if profile.frequency_hz == asked_hz else f" instead of {asked_hz}"
    total = profile.total()
    is_without = total.samples > 0 and not total[ACTIVATIONS]  # a daemon of before, or it could not
    more = ["counts calls"] if is_without else []
    lost = profile.extra.get(LOST_MEANWHILE)
    if lost is None:  # a daemon of before
        more.append("says what was lost of this process alone")
    elif lost:
        more.append(
            f"tells how much of what the daemon lost meanwhile ({printable(lost)}) was of this process"
        )
    steps = len(profile.intervals)
    more.append(f"tells what was when in finer steps than {steps}" if steps > 1 else "tells what was when")
    if profile.accounting is None:
        more.append("accounts for the whole of n x time")
    also = " and ".join(filter(None, (", ".join(more[:-1]), more[-1])))
    return f"measured by parprofd, {rate}{as_asked}; attach alone (PARPROF_SOCKET=/nowhere) also {also}"


def _to_standard_error(line: str) -> None:
    print(f"parprof: {line}", file=sys.stderr)


def _others(pid: int, scope: str) -> list[int]:
    """The processes that are to be measured with one, or (where it is to be measured alone) its children."""
    if scope != "cgroup":
        return descendants(pid)
    own = {os.getpid(), *descendants(os.getpid())}
    return [member for member in cgroup_members(pid) if member != pid and member not in own]


def _join_latecomers(session: Session, others: Iterable[int], patience: _Patience) -> None:
    """Profile those, too, that were forked between our first look and the beginning."""
    for other in others:
        with suppress(TargetError):  # it has ended since
            if not session.is_watched(other):
                session.watch(other, follow=True, patient=patience)


def _tell_of_children(pid: int, number: int) -> None:
    what = "a child process that is" if number == 1 else f"{number} child processes that are"
    print(f"parprof: process {pid} has {what} not measured: --children includes them", file=sys.stderr)


class _Patience:
    """Waits for tables that have to be built, for a while and until Ctrl-C; says so if it takes long."""

    def __init__(self, interrupt: Interrupt, quiet: bool) -> None:
        self._interrupt = interrupt
        self._said = quiet
        self._begun_s = time.monotonic()

    def __call__(self, files: int) -> bool:
        waited_s = time.monotonic() - self._begun_s
        if not self._said and waited_s > _SAY_SO_SECONDS:
            self._said = True
            print(
                f"parprof: reading {many(files, 'file')} for the first time, to know their stacks",
                file=sys.stderr,
            )
        return waited_s < _PATIENCE_SECONDS and not self._interrupt.signal


def _daemon_can(args: argparse.Namespace) -> bool:
    """Whether the daemon can do what is asked for."""
    return not (
        args.budget != DEFAULT_BUDGET_PERCENT
        or args.event
        or args.cores
        or args.scope != "process"
        or args.blame
        or args.n_w_source
        or args.save_facts
        or args.trace
        or not args.wait
    )
