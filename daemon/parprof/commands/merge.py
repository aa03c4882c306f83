"""`parprof merge`: the profiles of many nodes, ranks or processes as one."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from parprof.commands.comparable import Traits, differences
from parprof.commands.input_views import refuse_saved
from parprof.commands.views import add_loops_option
from parprof.errors import ProfileFormatError, UsageError
from parprof.exporters import pprof, pprof_reader
from parprof.exporters.pprof_header import is_label_name
from parprof.model import Profile
from parprof.profile.merge import Merger
from parprof.untrusted import visible
from parprof.wording import many


class MergeCommand:
    """Add up profiles of many nodes, ranks or processes into one file.

    All totals are kept to the nanosecond, whatever the files have in common or not. Cores are added up of files that
    were recorded at the same time, and times of those that were recorded one after the other.
    """

    name = "merge"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("files", metavar="FILE", nargs="+", help="profiles that parprof wrote")
        parser.add_argument(
            "-o", "--output", metavar="OUT", required=True, help="the file to write; - is standard output"
        )
        parser.add_argument(
            "--label",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            type=_label,
            help="a label for all samples; may be given again",
        )
        parser.add_argument(
            "--label-from-name",
            metavar="REGEX",
            type=_pattern,
            help="labels for the samples of each file, from its path: the named groups of REGEX, such as"
            " '(?P<node>[^/]+)-rank(?P<rank>[0-9]+)'",
        )
        add_loops_option(parser)
        parser.add_argument(
            "--skip-bad", action="store_true", help="leave out files that cannot be read, and say so"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        _check_kept(args.output, args.files)
        if not args.skip_bad:
            refuse_saved(args.files, "add such runs up by `parprof report FILE --with FILE`")
        pprof.check_writable(args.output)
        merger = Merger()
        traits: list[Traits] = []
        skipped = 0
        for path in args.files:
            try:
                labels = {**dict(args.label), **_labels_in(path, args.label_from_name)}
                profile = _read(path)
                merger.add(profile, labels)
                traits.append(Traits.of(profile))
            except ProfileFormatError as error:
                if not args.skip_bad:
                    raise ProfileFormatError(f"{error}; --skip-bad leaves such files out") from error
                skipped += 1
                print(f"parprof: left out: {error}", file=sys.stderr)
        if not merger.count:
            raise ProfileFormatError(f"none of {skipped} files could be read; name files that parprof wrote")
        profile = merger.profile()
        profile.extra = {**profile.extra, "merged_files": str(merger.count), **_left_out(skipped)}
        pprof.write(profile, args.output, loops=args.loops)
        left_out = f", {skipped} left out" if skipped else ""
        for sentence in (*differences(traits), *_given_again(args.files)):
            print(f"parprof: {sentence}", file=sys.stderr)
        print(f"parprof: merged {merger.count} files{left_out}{_in_turn(merger, profile)}", file=sys.stderr)
        return 0


def _check_kept(output: str, files: Sequence[str]) -> None:
    """See that no file is overwritten that is still to be read.

    Raises:
        UsageError: one would be.
    """
    for path in files:
        with suppress(OSError):  # what is not there, or not yet, is reported by who opens it
            if output != "-" and os.path.samefile(output, path):
                raise UsageError(f"-o {visible(output)} is one of the files to merge; name another one")


def _given_again(files: Sequence[str]) -> list[str]:
    """Which files count more than once: a sentence for each."""
    times = Counter(os.path.realpath(path) for path in files if os.path.isfile(path))
    return [
        f"{visible(path)} was given {number} times, and counts as often"
        for path, number in times.items()
        if number > 1
    ]


def _in_turn(merger: Merger, profile: Profile) -> str:
    """How the files lie to each other, where not all were recorded at the same time."""
    runs = len(merger.runs())
    if runs < 2:
        return ""
    cores = many(profile.process.cores, "core")
    return (
        f": at most {cores} at a time, {profile.duration_s:.2f} s in all, in {runs} runs one after the other"
    )


def _left_out(skipped: int) -> dict[str, str]:
    return {"left_out_files": str(skipped)} if skipped else {}


def _read(path: str) -> Profile:
    """A profile, of a file or a pipe.

    Raises:
        ProfileFormatError: it cannot be read, naming the file.
    """
    try:
        with open(path, "rb") as file:
            return pprof_reader.read_from(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProfileFormatError(
            f"cannot read {visible(path)}: {reason}; name a file that parprof wrote"
        ) from error
    except ProfileFormatError as error:
        raise ProfileFormatError(f"cannot read {visible(path)}: {error}") from error


def _labels_in(path: str, pattern: re.Pattern[str] | None) -> dict[str, str]:
    if pattern is None:
        return {}
    match = pattern.search(path)
    if match is None:
        raise ProfileFormatError(f"{visible(path)} does not match --label-from-name; give a REGEX that does")
    return {name: visible(value, 200) for name, value in match.groupdict().items() if value}


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not value:
        raise argparse.ArgumentTypeError(f"{visible(text)!r} is not NAME=VALUE")
    _check_name(name)
    return name, visible(value, 200)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{visible(text)!r} is not a regular expression: {error}") from error
    if not pattern.groupindex:
        raise argparse.ArgumentTypeError(f"{visible(text)!r} has no named group; write one as (?P<node>...)")
    for name in pattern.groupindex:
        _check_name(name)
    return pattern


def _check_name(name: str) -> None:
    if not is_label_name(name):
        raise argparse.ArgumentTypeError(
            f"{visible(name)!r} cannot be a label; use another name, of a-z, 0-9 and _"
        )
