"""The libraries that are loaded into programs, built ahead for machines without a compiler.

``python -m parprof.prebuilt DIRECTORY`` puts them there; an installation's directory is `PREBUILT`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parprof.errors import KernelUnsupported
from parprof.input.runtime import RUNTIME
from parprof.instruments import alloc, span


def main(directory: str) -> int:
    """Build all of them. Returns the exit code."""
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for library in (span.LIBRARY, alloc.LIBRARY, RUNTIME):
            library.build(target / library.prebuilt_name)
    except (KernelUnsupported, OSError) as error:
        print(f"parprof: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m parprof.prebuilt DIRECTORY")
    sys.exit(main(sys.argv[1]))
