"""`parprof merge`: the profiles of many nodes, ranks or processes as one."""

from __future__ import annotations

import argparse
import gzip
import io
import re
import sys

from parprof import pprof_pb2 as pb
from parprof.commands.merging import OWN_LABELS, Labels, Merger
from parprof.errors import ProfileFormatError
from parprof.exporters import pprof, pprof_reader
from parprof.model import Profile
from parprof.untrusted import visible

_LABEL_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]{0,63}")


class MergeCommand:
    """Add up profiles of many nodes, ranks or processes into one file.

    All totals are kept to the nanosecond, whatever the files have in common or not. Cores are added up and the
    duration is that of the longest one, as the files stand for processes that ran side by side.
    """

    name = "merge"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("files", metavar="FILE", nargs="+", help="profiles that parprof wrote")
        parser.add_argument(
            "-o", "--output", metavar="OUT", required=True, help="the file to write; - is standard output"
        )
        parser.add_argument(
            "--label", metavar="NAME=VALUE", action="append", default=[], type=_label,
            help="a label for all samples; may be given again",
        )  # fmt: skip
        parser.add_argument(
            "--label-from-name", metavar="REGEX", type=_pattern,
            help="labels for the samples of each file, from its path: the named groups of REGEX, such as"
            " '(?P<node>[^/]+)-rank(?P<rank>[0-9]+)'",
        )  # fmt: skip
        parser.add_argument(
            "--skip-bad", action="store_true", help="leave out files that cannot be read, and say so"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        pprof.check_writable(args.output)
        merger = Merger()
        skipped = 0
        for path in args.files:
            try:
                labels = {**dict(args.label), **_labels_in(path, args.label_from_name)}
                profile, own = _read(path)
                merger.add(profile, own, labels)
            except ProfileFormatError as error:
                if not args.skip_bad:
                    raise ProfileFormatError(f"{error}; --skip-bad leaves such files out") from error
                skipped += 1
                print(f"parprof: left out: {error}", file=sys.stderr)
        if not merger.files:
            raise ProfileFormatError(f"none of {skipped} files could be read; name files that parprof wrote")
        merger.write(args.output, skipped)
        left_out = f", {skipped} left out" if skipped else ""
        print(f"parprof: merged {merger.files} files{left_out}", file=sys.stderr)
        return 0


def _read(path: str) -> tuple[Profile, list[Labels]]:
    """A profile, and those labels of each sample that are not parprof's own.

    Raises:
        ProfileFormatError: it cannot be read, naming the file.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(pprof_reader.MAX_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProfileFormatError(
            f"cannot read {visible(path)}: {reason}; name a file that parprof wrote"
        ) from error
    try:
        profile = pprof_reader.read_from(io.BytesIO(data))
    except ProfileFormatError as error:
        raise ProfileFormatError(f"cannot read {visible(path)}: {error}") from error
    message = pb.Profile.FromString(gzip.decompress(data))
    text = message.string_table
    wanted = {
        number for number, one in enumerate(text) if _LABEL_NAME.fullmatch(one) and one not in OWN_LABELS
    }
    return profile, [
        tuple((text[one.key], text[one.str]) for one in sample.label if one.key in wanted and one.str)
        for sample in message.sample
    ]


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
    if not _LABEL_NAME.fullmatch(name) or name in OWN_LABELS:
        raise argparse.ArgumentTypeError(
            f"{visible(name)!r} cannot be a label; use another name, of a-z, 0-9 and _"
        )
