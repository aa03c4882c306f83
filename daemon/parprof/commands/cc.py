"""`parprof cc`: a compiler's command, with what a mode needs in the program."""

from __future__ import annotations

import argparse
import os

from parprof.commands.command_words import add_command_words, command_words
from parprof.errors import CommandError, UsageError
from parprof.input import runtime as input_runtime
from parprof.instruments import span, startable
from parprof.instruments.toolchain import PLAIN_VARIABLE

_PACKAGES = {"cc": "gcc", "c++": "g++", "clang++": "clang"}
_COMPILERS = {"gcc", "g++", "gfortran", "clang", *_PACKAGES}


class CcCommand:
    """Run a compiler so that the program can be measured from inside.

    Put it before the compiler in a makefile: `make CC="parprof cc --scale -- gcc"`.
    """

    name = "cc"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.usage = "parprof cc (--input | --scale) [--] COMPILER [ARG ...]"
        mode = parser.add_mutually_exclusive_group(required=True)
        mode.add_argument(
            "--input", action="store_true", help="for `parprof input`: memory accesses, calls and blocks"
        )
        mode.add_argument(
            "--scale",
            action="store_true",
            help="for the call sites of `parprof scale`: hooks in each function",
        )
        add_command_words(parser, "the compiler and its arguments")

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns only where the compiler cannot be started."""
        command = command_words(args)
        if not command:
            mode = "--input" if args.input else "--scale"
            raise UsageError(f"cc needs a compiler: parprof cc {mode} -- gcc -O2 -o program program.c")
        try:
            startable.find(command[0])
        except CommandError as error:
            raise CommandError(f"{error}{_package(command[0])}", is_missing=error.exit_code == 127) from None
        if os.environ.get(PLAIN_VARIABLE):  # we are CC, and what is ours is built
            os.execvp(command[0], command)
        compile_command = input_runtime.compile_command if args.input else span.compile_command
        words = compile_command(command)
        os.execvp(words[0], words)


def _package(compiler: str) -> str:
    """What to install, if the name tells."""
    return f": on Debian `apt install {_PACKAGES.get(compiler, compiler)}`" if compiler in _COMPILERS else ""
