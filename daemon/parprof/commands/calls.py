"""`parprof calls`: exact calls of chosen functions."""

from __future__ import annotations

import argparse
import math
import signal
import time

from parprof.calls.wanted import Wanted, parse_wanted
from parprof.commands.measuring import Interrupt, check_budget
from parprof.commands.spawn import Child
from parprof.errors import UsageError
from parprof.exporters.output import check_writable
from parprof.process.identity import inspect

DEFAULT_BUDGET_PERCENT = 5.0
_GRACE_SECONDS = 1.0


class CallsCommand:
    """Count the calls of chosen functions exactly: how many, by whom, and what ran beside them.

    Of a running process (PID), or of a command (-- CMD), which is counted from its first instruction on. Each routine's
    calls are split by the state of the program at the entry: sequential (no other thread works) or concurrent. CPU time
    per call comes from samples of the same seconds; --times measures it. No return probes are used, which exceptions
    would not survive. A short look tells first what counting costs; above the budget it is refused.
    """

    name = "calls"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.usage = (
            "parprof calls PID -f FUNC [options] | parprof calls -f FUNC [options] -- CMD [ARG ...]"
        )
        parser.add_argument("pid", metavar="PID", nargs="?", help="the process; or -- and a command")
        parser.add_argument(
            "-f",
            "--function",
            metavar="FUNC",
            action="append",
            default=[],
            help="what to count: a function's name, a pattern such as 'solve_*', file.c:40 for the function that has "
            "that line, 0xaddress, or file+0xaddress as reports show a function without a name; compilers' "
            "copies of a function count as the function; may be repeated",
        )
        parser.add_argument(
            "-d",
            "--duration",
            metavar="SECONDS",
            type=float,
            help="how long (default: until Ctrl-C or the end)",
        )
        parser.add_argument(
            "--times",
            action="store_true",
            help="also time each call: wall-clock and CPU time, with and without that of timed functions which it "
            "calls. The exits of the functions are probed, too, as instructions of their own, which is safe under "
            "exceptions, longjmp and tail calls, and takes some 10 times as long as counting",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="count whatever it costs; the program may become many times slower",
        )
        parser.add_argument(
            "--budget",
            metavar="PERCENT",
            type=float,
            default=DEFAULT_BUDGET_PERCENT,
            help="what counting may take of the program's CPU time; beyond that it is refused, or ends "
            "(default: %(default)g)",
        )
        parser.add_argument(
            "--n-w-source",
            metavar="SOURCE",
            choices=("exact", "memory", "sampled"),
            help="where the number of working threads comes from, as for `parprof record`",
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE", help="write the result to FILE; - is standard output"
        )
        parser.add_argument("--json", action="store_true", help="the result as JSON")
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress line, no estimate")
        parser.add_argument("command", metavar="CMD", nargs="*", help="the command and its arguments")

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        wanted = _validate(args)
        command = [args.pid, *args.command] if args.pid is not None and not _is_pid(args) else []
        if not command:
            inspect(int(args.pid))
        if args.output not in (None, "-"):
            check_writable(args.output)
        interrupt = Interrupt()
        with interrupt.installed():
            return (
                _of_command(args, wanted, command, interrupt)
                if command
                else _of_process(args, wanted, int(args.pid), interrupt)
            )


def _is_pid(args: argparse.Namespace) -> bool:
    return not args.command and args.pid.isascii() and args.pid.isdigit()


def _validate(args: argparse.Namespace) -> list[Wanted]:
    """Check all that can be checked before anything is started.

    Raises:
        UsageError: something is wrong.
    """
    if args.pid is None:
        raise UsageError(
            "calls needs a process or a command: parprof calls PID -f FUNC, or -f FUNC -- ./program"
        )
    if args.pid.isdigit() and args.command:
        raise UsageError(f"a process ({args.pid}) and a command ({args.command[0]}): give one of them")
    if not args.function:
        raise UsageError(
            "calls needs a function to count: -f NAME, -f 'solve_*', -f file.c:40 or -f 0xaddress"
        )
    if args.duration is not None and not (math.isfinite(args.duration) and args.duration > 0):
        raise UsageError(f"-d {args.duration}: give a positive number of seconds")
    check_budget(args.budget)
    return [parse_wanted(text) for text in args.function]


def _of_process(args: argparse.Namespace, wanted: list[Wanted], pid: int, interrupt: Interrupt) -> int:
    from parprof.commands.counted import count_calls, present

    result = count_calls(
        args,
        wanted,
        lambda session: session.watch(pid),
        lambda session: bool(interrupt.signal) or session.live(pid) is None,
        refuses=True,
    )
    present(args, result)
    return 0


def _of_command(
    args: argparse.Namespace, wanted: list[Wanted], command: list[str], interrupt: Interrupt
) -> int:
    from parprof.commands.counted import count_calls, present
    from parprof.session.session import Session
    from parprof.session.target import Target

    child: Child | None = None
    passed_on = False

    def begin(session: Session) -> Target:
        nonlocal child
        child = Child(command)
        try:
            target = session.watch(child.pid, stop=True)
        except BaseException:
            child.abandon()
            raise
        child.release()
        return target

    def pass_on() -> None:
        """A terminal's Ctrl-C reaches the command too; it is told when it does not end by that."""
        nonlocal passed_on
        late = time.monotonic() - interrupt.time_s > _GRACE_SECONDS
        if (
            child is not None
            and interrupt.signal
            and not passed_on
            and (interrupt.signal != signal.SIGINT or late)
        ):
            passed_on = True
            child.send(interrupt.signal)

    def finished(session: Session) -> bool:
        assert child is not None
        pass_on()
        return child.poll() is not None

    try:
        result = count_calls(args, wanted, begin, finished, refuses=False)
        assert child is not None
        while child.poll() is None:  # counting ended before it
            pass_on()
            time.sleep(0.05)
    finally:
        if child is not None:
            child.abandon()
    child.check_exec()
    present(args, result, shares_output=True)
    return child.wait()
