# SPDX-License-Identifier: Apache-2.0
"""Test programs that a compiler makes of the same text, by the same command, are made once: also for later runs.

Only programs to look at, or to run under something: also those that `parprof cc` would build, by the command that it
makes of a compiler's. Where `parprof cc` itself is tested it builds each time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KEPT = Path(__file__).resolve().parent / "workloads/build/kept"
"""May be removed at any time, and is by `make clean`."""
CACHE = KEPT / "cache"
"""A cache of parprof's own (PARPROF_CACHE), for what it compiles itself and finds by the text: nothing else of it is to
outlive a run."""
_OUTPUT, _UNFINISHED = "-o", "unfinished-"
_SECONDS = 120
_MAX_KEPT = 600
"""Files. Old texts make programs that nobody asks for again: with more than so many, all go."""


def compile_once(command: Sequence[str | Path], *linked: Path, text: str | None = None) -> None:
    """What ``command`` does, which has ``-o FILE`` and does not depend on the time or the environment.

    ``linked``: files other than those of the system that it links with, which its preprocessor does not see. ``text``:
    its standard input, as a source file.

    Raises: subprocess.CalledProcessError if it does not compile.
    """
    words = [os.fspath(word) for word in command]
    at = words.index(_OUTPUT)
    without_output, output = words[:at] + words[at + 2 :], Path(words[at + 1])
    found = KEPT / _key(without_output, linked, text)
    try:
        shutil.copy(found, output)
    except FileNotFoundError:
        _run(words, text)
        with suppress(OSError):  # another user's checkout, or one that others tidy up
            _keep(output, found)


def kept_source(source: Path) -> Path:
    """The same text in a file of the same name that is where it was in runs before: debug information has its place."""
    text = source.read_bytes()
    place = KEPT / "sources" / hashlib.sha256(text).hexdigest()[:16] / source.name
    with suppress(OSError):
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            scratch = place.with_suffix(f".{_UNFINISHED}{os.getpid()}")
            scratch.write_bytes(text)
            scratch.rename(place)
        return place
    return source


def _run(words: Sequence[str], text: str | None) -> bytes:
    """What a compiler writes to its standard output."""
    source = None if text is None else text.encode()
    try:
        return subprocess.run(words, input=source, capture_output=True, check=True, timeout=_SECONDS).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr.decode(errors="replace"))
        raise


def _key(command: Sequence[str], linked: Sequence[Path], text: str | None) -> str:
    """All that the output depends on: the text with all that it includes, the tools, the words, the place (for -g)."""
    digest = hashlib.sha256(repr((command, os.getcwd(), _version(command[0]))).encode())
    # clang takes a file that is not linked for a mistake
    preprocessed = [word for word in command if not word.startswith("-Wl,") and Path(word) not in linked]
    digest.update(_run([*preprocessed, "-E"], text))
    for file in linked:
        digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _version(compiler: str) -> tuple[str, str]:
    """Of the compiler, and of the linker: of updates that change no version, the files' times tell."""
    tools = [os.path.realpath(shutil.which(tool) or tool) for tool in (compiler, "ld")]
    told = subprocess.run([compiler, "-v"], capture_output=True, check=True, text=True).stderr
    return told, repr([(tool, os.stat(tool).st_mtime_ns) for tool in tools])


def _keep(output: Path, where: Path) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    if len(os.listdir(KEPT)) >= _MAX_KEPT:
        for file in KEPT.iterdir():
            if file.is_file() and not file.name.startswith(_UNFINISHED):
                file.unlink(missing_ok=True)
    scratch = KEPT / f"{_UNFINISHED}{os.getpid()}"
    shutil.copy(output, scratch)
    scratch.rename(where)
