"""`parprof input`: runs a command and tells how the cost of its routines grows with their input."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from rich.console import Console

from parprof.commands.command_words import add_command_words, command_words
from parprof.commands.input_views import add_earlier, add_earlier_option, add_routine_option, show
from parprof.commands.measuring import Interrupt
from parprof.commands.spawn import Child
from parprof.commands.views import positive
from parprof.errors import ParprofError, ProfileFormatError, UsageError
from parprof.exporters.output import check_writable, open_output
from parprof.input import records, runtime, saved, terminal
from parprof.input.answer import check_pattern
from parprof.input.model import InputProfile
from parprof.input.naming import make_profile
from parprof.kernel.byte_counts import ByteCounter

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 1.0
_SHOW_SECONDS = 0.5
_UNKNOWN_INSTRUCTION = (
    "SIGILL: it trapped, or came to an instruction that Valgrind does not know, as of AVX-512 (-march=native): "
    "build it for fewer (-march=x86-64-v3), or for --tool tsan"
)


class InputCommand:
    """Run a command and tell how the cost of its routines grows with the input that they read.

    Each activation's input is counted, with what other threads and system calls bring. Under Valgrind, programs run as
    they are, some 20 times slower and one thread at a time. Programs built by `parprof cc --input` run faster, their
    threads in parallel. The exit code is the command's own (128 + N when signal N ended it).
    """

    name = "input"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.usage = "parprof input [options] [--] CMD [ARG ...]"
        parser.add_argument(
            "--tool",
            choices=("auto", "valgrind", "tsan"),
            default="auto",
            help="valgrind: any program; tsan: one built by `parprof cc --input`; auto: tsan where the program is "
            "built so, else valgrind (default: %(default)s)",
        )
        add_earlier_option(parser)
        parser.add_argument(
            "--contexts",
            action="store_true",
            help="tell a routine's activations apart by the calls that led to them, recursion folded",
        )
        parser.add_argument(
            "--by-thread",
            action="store_true",
            help="tell the activations of each thread apart, instead of merging all threads'",
        )
        add_routine_option(parser)
        parser.add_argument(
            "--limit",
            metavar="N",
            type=positive,
            default=terminal.MAX_ROUTINES,
            help="routines to list (default: %(default)s)",
        )
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            help="write the profile to FILE, JSON (compressed where its name ends in .gz)",
        )
        parser.add_argument("--html", metavar="OUT", help="also write a page of plots to OUT")
        parser.add_argument(
            "--json", action="store_true", help="print JSON instead, after what the command prints"
        )
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress line")
        add_command_words(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the command's exit code."""
        command = command_words(args)
        if not command:
            raise UsageError("input needs a command: parprof input -- ./program")
        if command[0].isdecimal() and len(command) == 1:
            raise UsageError(
                "input cannot attach to a running process: every load must be seen; give a command to run"
            )
        check_pattern(args.routine)
        for path in (args.output, args.html):
            if path is not None:
                check_writable(path)
        earlier = [saved.read(path) for path in args.earlier]
        with tempfile.TemporaryDirectory(prefix="parprof-input-") as scratch:
            start = runtime.plan(args.tool, command, Path(scratch), contexts=args.contexts)
            child = Child(start.command, start.environment)
            with _counter(start, child.pid) as counter:
                code, stopped_by = _run(start, child, Path(scratch), quiet=args.quiet)
                profile = _collect(Path(scratch), command, child, code, stopped_by, by_thread=args.by_thread)
                if counter is not None:
                    profile.all_read_bytes, profile.all_sent_bytes = counter.brought(), counter.taken()
                    profile.counted_by = "bpf"
        add_earlier(profile, earlier)
        if args.output is not None:
            with open_output(args.output) as file:
                saved.write(profile, file, compressed=args.output.endswith(".gz"))
        _show(profile, args)
        return code


def _show(profile: InputProfile, args: argparse.Namespace) -> None:
    """Print or write what the arguments ask for; all routines where none is found, as nobody likes to run it again.

    Raises:
        UsageError: --routine matches nothing.
        OutputError: the page cannot be written.
    """

    def show_only(pattern: str) -> None:
        show(
            profile,
            pattern=pattern,
            limit=args.limit,
            as_json=args.json,
            html=args.html,
            is_page_all=False,
        )

    try:
        show_only(args.routine)
    except UsageError:
        show_only("")
        raise


def _counter(start: runtime.Start, pid: int) -> AbstractContextManager[ByteCounter | None]:
    """Counts what system calls bring the child, where that can be done; Valgrind reads much for itself."""
    if start.tool == "tsan" and os.geteuid() == 0:
        with suppress(ParprofError, OSError):
            return ByteCounter(pid)
    return nullcontext()


def _run(start: runtime.Start, child: Child, directory: Path, *, quiet: bool) -> tuple[int, int]:
    """Run it to its end: its exit code, and the signal that we were stopped by."""
    interrupt = Interrupt()
    console = Console(file=sys.stderr)
    began_s = shown_s = time.monotonic()
    passed_on = False
    with (
        interrupt.installed(),
        console.status("") if console.is_terminal and not quiet else _Silent() as status,
    ):
        child.release()
        while child.poll() is None:
            now_s = time.monotonic()
            late = interrupt.signal != signal.SIGINT or now_s - interrupt.time_s > _GRACE_SECONDS
            if interrupt.signal and not passed_on and late:
                passed_on = True
                child.send(interrupt.signal)
            if now_s - shown_s > _SHOW_SECONDS:
                shown_s = now_s
                status.update(
                    f"{now_s - began_s:6.0f} s  {_points(directory):,} points  by {start.tool}  (Ctrl-C ends it)"
                )
            time.sleep(_POLL_SECONDS)
    code = child.wait()
    child.check_exec()
    return code, interrupt.signal


class _Silent:
    """A progress line that nobody sees."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, line: str) -> None:
        """Nothing."""


def _points(directory: Path) -> int:
    """About how many sizes of input were seen: the rows of the records."""
    return sum(records.count_rows(path) for path in records.find(directory))


def _collect(
    directory: Path, command: list[str], child: Child, code: int, stopped_by: int, *, by_thread: bool
) -> InputProfile:
    """The profile of what the processes left.

    Raises:
        ParprofError: they left nothing.
    """
    found, problems = [], []
    for path in records.find(directory):
        try:
            found.append(records.read(path))
        except ProfileFormatError as error:
            problems.append(str(error))
    if not any(record.points for record in found):
        why = problems[0] if problems else f"the command ended with {code}"
        if any(record.flags & records.Lacking.OUT_OF_MEMORY for record in found):
            why = "there was no memory for what its threads read (`ulimit -v`, a cgroup's limit)"
        raise ParprofError(f"{os.path.basename(command[0])} left no record: {why}")
    with_points = [record for record in found if record.points]
    profile = make_profile(with_points, " ".join(command), by_thread=by_thread)
    own = [record for record in found if record.pid == child.pid]
    # Valgrind closes its record before it dies of a signal, with what was pending
    is_open = not all(record.is_closed for record in found)
    pending = "routines that were running then " + (
        "are left out" if is_open else "have what they read until then"
    )
    if stopped_by:
        profile.note(f"stopped by signal {stopped_by}: {pending}")
    elif child.ended_by or (code > 128 and is_open):
        profile.note(f"the command was killed (exit code {code}): {pending}")
        if child.ended_by == signal.SIGILL and own and own[-1].back_end is records.BackEnd.VALGRIND:
            profile.note(_UNKNOWN_INSTRUCTION)
    elif own and not own[-1].is_closed:  # earlier ones: it became another program, which is counted, too
        profile.note(
            f"process {child.pid} did not come to its end (exit code {code}): it became a program that is not "
            "counted, or what it ran under gave up; routines that were running then are left out"
        )
    return profile
