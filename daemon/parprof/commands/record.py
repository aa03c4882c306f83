"""`parprof record`: runs a command and profiles it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import TYPE_CHECKING

from parprof.commands.command_words import add_command_words, command_words
from parprof.commands.measuring import (
    Interrupt,
    add_measuring_options,
    add_trace_options,
    measure,
    present,
    validate,
    wants_allocations,
)
from parprof.commands.spawn import Child
from parprof.errors import UsageError
from parprof.process.identity import is_alive

if TYPE_CHECKING:
    from parprof.commands.allocations import Allocations
    from parprof.kernel.perf_events import EventChoice
    from parprof.session.session import Session
    from parprof.session.target import Target

_GRACE_SECONDS = 1.0
"""A terminal's Ctrl-C reaches the command too; when it has not ended by then, it is passed on."""


class RecordCommand:
    """Run a command and profile it, and its children, from the first instruction to the exit.

    The exit code is the command's own (128 + N when signal N ended it).
    """

    name = "record"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.usage = "parprof record [options] [--] CMD [ARG ...]"
        add_measuring_options(parser, "parprof.pb.gz")
        add_trace_options(parser)
        add_command_words(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the command's exit code."""
        command = command_words(args)
        if not command:
            raise UsageError("record needs a command: parprof record -- ./program")
        events = validate(args)
        allocations = _allocations(command[0], events, args.budget)
        interrupt = Interrupt()
        child = None

        def begin(session: Session) -> Target:
            nonlocal child
            child = Child(command, allocations.environment() if allocations else None)
            try:
                if allocations:
                    allocations.follow(session.kernel)
                target = session.watch(child.pid, follow=True, stop=True)
            except BaseException:
                child.abandon()
                raise
            child.release()
            return target

        passed_on = False
        outliving: list[Target] = []

        def finished(session: Session) -> bool:
            nonlocal passed_on
            assert child is not None
            if (
                interrupt.signal
                and not passed_on
                and (
                    interrupt.signal != signal.SIGINT or time.monotonic() - interrupt.time_s > _GRACE_SECONDS
                )
            ):
                passed_on = True
                child.send(interrupt.signal)
            if child.poll() is None:
                return False
            outliving.extend(
                target
                for target in session.targets.values()
                # Asked of /proc, too: the records of those that ended beside the command may be still to be read.
                if session.live(target.pid) and target.pid != child.pid and is_alive(target.process)
            )
            return True

        with interrupt.installed():
            try:
                profile, facts = measure(args, events, begin, finished)
            finally:
                if child is not None:
                    child.abandon()
            assert child is not None
            child.check_exec()
            present(args, profile, facts, shares_output=True)
            if outliving and not args.quiet:
                print(f"parprof: {_still_running(outliving)}", file=sys.stderr)
            return child.wait()


def _allocations(program: str, events: EventChoice, budget_percent: float) -> Allocations | None:
    """How the command's allocations are sampled; None: nobody asked for that.

    Raises:
        TargetError, KernelUnsupported: they cannot be.
    """
    if not wants_allocations(events):
        return None
    from parprof.commands.allocations import Allocations

    return Allocations.of(events, program, budget_percent)


def _still_running(targets: list[Target]) -> str:
    """What is to be said of children that the command left behind."""
    pids = sorted({target.pid for target in targets})
    named = ", ".join(map(str, pids[:5])) + (", ..." if len(pids) > 5 else "")
    verb = "runs" if len(pids) == 1 else "run"
    return f"process {named} of the command still {verb}, unobserved from here on: parprof attach {pids[0]}"
