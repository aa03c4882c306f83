"""Man pages, and completions for bash, zsh and fish, made from the parsers: ``python -m parprof.manuals DIR``.

DIR is a ``share`` directory, such as /usr/local/share; each file goes where its reader looks for it below that.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from parprof.__main__ import make_parser
from parprof.manuals.completions import completions
from parprof.manuals.pages import pages
from parprof.service.config import text as service


def files() -> dict[str, str]:
    """All files by their path below ``share``."""
    parser, daemon = make_parser(), service.make_parser()
    return pages(parser, daemon) | completions(parser, daemon)


def main(arguments: list[str] | None = None) -> int:
    """Write them all."""
    parser = argparse.ArgumentParser(prog="python -m parprof.manuals", description=main.__doc__)
    parser.add_argument("directory", metavar="DIR", type=Path, help="a share directory")
    directory = parser.parse_args(arguments).directory
    for name, text in files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
