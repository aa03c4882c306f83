"""`parprof scale`: runs a command with several numbers of threads and says how far it can go."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from parprof.causes.ownership import Ownership
from parprof.commands.command_words import add_command_words, command_words
from parprof.commands.measuring import Interrupt
from parprof.commands.spawn import Child
from parprof.errors import ProfileFormatError, TargetError, UsageError
from parprof.exporters.output import check_writable, open_output
from parprof.instruments.places import FilePlace, Places
from parprof.instruments.preload import obstacle, runtime_inside
from parprof.instruments.span import LIBRARY, environment
from parprof.model import Frame
from parprof.scale.calls import addresses_of
from parprof.scale.model import Prediction, Scale, notes_of, predict, predict_serial
from parprof.scale.own_code import own_frames
from parprof.scale.record import Address, Flag, SpanRecord, read_record
from parprof.symbols.symbolizer import Symbolizer

DEFAULT_THREADS = (2, 4, 8, 16, 64)
MAX_THREADS = 512
_MAX_RECORDS = 4096
_POLL_SECONDS = 0.02
_GRACE_SECONDS = 1.0
_NOT_STARTED = 127
"""The dynamic loader's exit code, and a shell's."""


class ScaleCommand:
    """Say how fast a program can get with more cores, and which site stands in the way.

    Runs the command once for each number of threads, on the cores at hand and without root, and computes from the
    order and the lengths of what its threads did the least time that so many cores would take. Programs of
    OpenMP (GNU libgomp, LLVM libomp, libiomp5) and of pthreads need not be rebuilt; for those that are, by `parprof
    cc --scale`, there is a table of call sites, too. The exit code is that of the command's last run.
    """

    name = "scale"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.usage = "parprof scale [options] [--] CMD [ARG ...]"
        runs = parser.add_mutually_exclusive_group()
        runs.add_argument(
            "--threads",
            metavar="N[,N...]",
            type=_threads,
            default=DEFAULT_THREADS,
            help="the numbers of threads, a run for each; default 2,4,8,16,64",
        )
        runs.add_argument(
            "--serial",
            action="store_true",
            help="one run with one thread instead: work and span of its tasks on any number of cores (Cilkprof)",
        )
        kind = parser.add_mutually_exclusive_group()
        kind.add_argument("--json", action="store_true", help="print JSON instead of the report")
        kind.add_argument("--csv", action="store_true", help="print a line for each site of each run instead")
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            default="-",
            help="write that to FILE; default: standard output, after the command's own",
        )
        parser.add_argument("--html", metavar="OUT", help="write a web page with the curve, too")
        parser.add_argument(
            "--pprof", metavar="FILE", help="write work and span by site as a pprof file, too"
        )
        parser.add_argument(
            "--limit",
            metavar="N",
            type=_limit,
            default=15,
            help="show so many sites, and call sites; default 15",
        )
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
        add_command_words(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the command's exit code."""
        command = command_words(args)
        if not command:
            raise UsageError("scale needs a command: parprof scale -- ./program")
        if reason := obstacle(command[0]) or runtime_inside(command[0]):
            raise TargetError(reason)
        for path in (args.output, args.html, args.pprof):
            if path:
                check_writable(path)
        library = os.fspath(LIBRARY.path())
        numbers = (1,) if args.serial else args.threads
        code, records = _run_all(command, library, numbers, args.quiet, is_serial=args.serial)
        scale = named(records, " ".join(command), log_of(args.quiet), is_serial=args.serial)
        present(args, scale)
        return code


def _threads(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split(","):
        if not part.isdecimal() or not 1 <= int(part) <= MAX_THREADS:
            raise argparse.ArgumentTypeError(f"{part!r} is no number of threads from 1 to {MAX_THREADS}")
        numbers.append(int(part))
    return tuple(sorted(set(numbers)))


def _limit(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of sites")
    return int(text)


def log_of(is_quiet: bool) -> Callable[[str], None]:
    """Where lines on progress go: standard error, if anywhere."""

    def log(line: str) -> None:
        if not is_quiet:
            print(f"parprof: {line}", file=sys.stderr, flush=True)

    return log


def _run_all(
    command: Sequence[str], library: str, numbers: Sequence[int], is_quiet: bool, *, is_serial: bool
) -> tuple[int, list[SpanRecord]]:
    """The exit code of the last run, and the record of each."""
    log = log_of(is_quiet)
    records: list[SpanRecord] = []
    code = 0
    interrupt = Interrupt()
    with interrupt.installed():
        for number in numbers:
            with _record_directory() as directory:
                start_s = time.monotonic()
                variables = environment(library, directory, number, _preloaded(), is_serial)
                code = _run(command, variables, interrupt)
                found = best_record(directory)
            if found is None:
                raise TargetError(_why_no_record(command[0], library, code))
            log(f"{number} threads: {time.monotonic() - start_s:.1f} s, exit code {code}")
            records.append(found)
            if interrupt.signal:
                break
    return code, records


def _why_no_record(command: str, library: str, code: int) -> str:
    if code == _NOT_STARTED:
        return f"{command} did not start (exit code {code}): a library that it needs is not there (ldd tells which)"
    return (
        f"{command} left no record: it, or what it runs, does not load {library} "
        "(static, setuid, another libc or word size)"
    )


def _preloaded() -> str:
    return os.environ.get("LD_PRELOAD", "")


def _record_directory() -> tempfile.TemporaryDirectory[str]:
    """In memory where that can be: a record is shared memory with a name."""
    memory = "/dev/shm"
    return tempfile.TemporaryDirectory(
        prefix="parprof-span-", dir=memory if os.access(memory, os.W_OK | os.X_OK) else None
    )


def _run(command: Sequence[str], variables: dict[str, str], interrupt: Interrupt) -> int:
    child = Child(command, variables)
    passed_on = False
    try:
        child.release()
        while child.poll() is None:
            time.sleep(_POLL_SECONDS)
            waited = time.monotonic() - interrupt.time_s
            if (
                interrupt.signal
                and not passed_on
                and (interrupt.signal != signal.SIGINT or waited > _GRACE_SECONDS)
            ):
                passed_on = True
                child.send(interrupt.signal)
    finally:
        child.abandon()
    child.check_exec()
    return child.wait()


def best_record(directory: str) -> SpanRecord | None:
    """Of all processes of a run, the one with regions that did most work; None if there is no record at all.

    If none has regions, one that was killed counts first: it may have been in its first. The record says if the others
    took more time together.
    """
    found: list[SpanRecord] = []
    for path in sorted(Path(directory).glob("*.span"))[:_MAX_RECORDS]:
        with suppress(ProfileFormatError, OSError):
            found.append(read_record(os.fspath(path)))
    ended = {
        record.pid for record in found if record.flags & Flag.CLOSED and not record.flags & Flag.REPLACED
    }
    best = max(found, key=lambda record: _rank(record, ended), default=None)
    if best is None or not best.flags & Flag.CLOSED:
        return best
    others_s = sum(_used_s(record) for record in found if record is not best)
    return replace(best, flags=best.flags | Flag.ELSEWHERE) if others_s > _used_s(best) else best


def _used_s(record: SpanRecord) -> float:
    """CPU time; of one that was killed, what it did at least."""
    return max(record.cpu_s, record.work_s)


def _rank(record: SpanRecord, ended: Set[int]) -> tuple[bool, bool, float]:
    """``ended``: these did so by themselves."""
    is_over = record.pid in ended or bool(record.flags & (Flag.FORKED | Flag.REPLACED))
    was_killed = not is_over and record.work_s > 0
    return record.regions > 0, was_killed, record.work_s


def named(
    records: Sequence[SpanRecord], command: str, log: Callable[[str], None], *, is_serial: bool = False
) -> Scale:
    """The answer of some runs' records, with names and lines."""
    with Symbolizer(log=log) as symbolizer, Places(symbolizer) as places:
        addresses = {
            each
            for record in records
            for site in record.sites
            for address in (site.address, site.origin)
            for each in address.chain
        }
        addresses.update(
            address for record in records for call in record.calls for address in addresses_of(call)
        )
        found = places.resolve(_place(address) for address in addresses if address.vaddr)

        ownership = Ownership()

        def resolve(address: Address) -> tuple[Frame, ...]:
            return own_frames([found.get(_place(each), ()) for each in address.chain], ownership)

        cores = len(os.sched_getaffinity(0))
        predictions = sorted(
            (
                predict_serial(record, resolve) if is_serial else predict(record, resolve, cores)
                for record in records
            ),
            key=_threads_of,
        )
        notes = [
            *notes_of(predictions, is_serial),
            *(f"{path}: {note}" for path, note in places.notes.items()),
        ]
    return Scale(command, tuple(predictions), tuple(notes), is_serial)


def _threads_of(prediction: Prediction) -> int:
    return prediction.threads


def _place(address: Address) -> FilePlace:
    return FilePlace(address.module, address.build_id, address.vaddr)


def present(args: argparse.Namespace, scale: Scale) -> None:
    """Write what was asked for."""
    from parprof.exporters import scale_json, scale_page, scale_pprof, scale_table

    if args.json:
        text = scale_json.to_json(scale)
    elif args.csv:
        text = scale_table.to_csv(scale)
    else:
        text = scale_table.text(scale, args.limit)
    with open_output(args.output) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    if args.html:
        with open_output(args.html) as file:
            file.write(scale_page.page(scale).html().encode("utf-8", "backslashreplace"))
    if args.pprof:
        with open_output(args.pprof) as file:
            scale_pprof.write(scale, file)
