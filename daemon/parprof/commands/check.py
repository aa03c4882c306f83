"""`parprof check`: what this machine can do and can't."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from dataclasses import asdict

from parprof.kernel.capability import findings


class CheckCommand:
    """Try what profiling needs on this machine, and say what is missing and how to get it.

    The exit code is 0 when profiling works here, else 1.
    """

    name = "check"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns the exit code."""
        found = findings()
        if args.json:
            json.dump([asdict(finding) for finding in found], sys.stdout, indent=1)
            print()
        else:
            print(f"Linux {os.uname().release} {os.uname().machine}")
            for finding in found:
                mark = "ok" if finding.ok else "NO"
                text = finding.says + (f"\n-> {finding.remedy}" if finding.remedy else "")
                lines = [part for line in text.split("\n") for part in textwrap.wrap(line, 58)]
                print(f" {mark:3} {finding.topic:14} {lines[0]}")
                for line in lines[1:]:
                    print(f"{'':20}{line}")
        return 1 if any(finding.fatal for finding in found) else 0
