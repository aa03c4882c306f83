#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the recordings ``jvm-VERSION.bytes`` beside it: what is read of a real JVM to name some of its functions, byte
by byte. Run it as root with the project's Python and the ``bin`` folders of JDKs::

    # .venv/bin/python tests/recordings/jvm.py /usr/lib/jvm/java-17-openjdk-amd64/bin

A recording is JSON, packed by zlib: ``{"symbols": {name: address}, "words": {what: word}, "said": {what: functions},
"bytes": {address: hexadecimal}}``. ``words``: as `parprof.languages.hotspot.worker` has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "daemon"))

from parprof.kernel.stacks import METHOD, METHOD_BITS  # noqa: E402
from parprof.languages.hotspot.memory import JvmMemory, Unreadable  # noqa: E402
from parprof.languages.hotspot.structures import SYMBOLS  # noqa: E402
from parprof.languages.hotspot.worker import Jvm  # noqa: E402

_SECONDS = 4.0
_FEW = 1 << 10
"""Places in a compiled method that are looked through."""
_PLACE = 2
"""Where the interpreted frame is said to be in the bytecode of `Phases.roots`."""


class Recorded(JvmMemory):
    """Keeps what is read."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.known: dict[int, bytes] = {}

    def read(self, address: int, size: int) -> bytes:
        data = super().read(address, size)
        if len(data) > len(self.known.get(address, b"")):
            self.known[address] = data
        return data


def symbols_of(pid: int) -> dict[str, int]:
    """Where the JVM of a process says what of itself."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    line = next(line for line in maps if line.endswith("/libjvm.so"))
    start = int(line.partition("-")[0], 16)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", line.split()[-1]], capture_output=True, text=True, check=True
    )
    rows = (row.split() for row in listed.stdout.splitlines())
    names = ((name.partition("@")[0], int(address, 16)) for address, _, name in rows)
    return {name: start + address for name, address in names if name in SYMBOLS}


def find(jvm: Jvm) -> dict[str, int]:
    """Words that stand for what tests want to see."""
    layout, code = jvm._layout, jvm._code
    assert layout is not None and code is not None
    words = {"interpreter": layout.interpreter[0] + 64, "nowhere": layout.heaps[0].end + 64}
    for heap in layout.heaps:
        jvm.begin(jvm._memory._fd)
        for segment in range(heap.end - heap.start >> heap.shift):
            try:
                if jvm._memory.number(heap.segments + segment, 1):
                    continue
                blob = heap.start + (segment << heap.shift) + layout.block_header
                rows = jvm.rows(blob + jvm._memory.number(blob + layout.blob_size, 4) // 4)
                compiled = code._known.get(blob)
                if compiled is None:
                    if rows and "StubRoutines" in rows[0][0]:
                        words["stub"] = blob + layout.block_header + 256
                    continue
                if rows and rows[-1][0] == "Phases.roots" and compiled.places:
                    words["compiled"] = compiled.code + compiled.places[len(compiled.places) // 2]
                    words["interpreted"] = METHOD | _PLACE << METHOD_BITS | compiled.method
                for place in compiled.places if len(compiled.places) < _FEW else ():
                    rows = jvm.rows(compiled.code + place)
                    if len(rows) > 1 and rows[0][0].startswith("Phases."):
                        words.setdefault("inlined", compiled.code + place)
            except Unreadable:
                break
    return words


def record(java: Path, classes: str) -> None:
    """Run the program and write what was read of it."""
    child = subprocess.Popen(
        [java / "java", "-cp", classes, "Phases", "serial", "60"], stdout=subprocess.DEVNULL
    )
    time.sleep(_SECONDS)
    fd = os.open(f"/proc/{child.pid}/mem", os.O_RDONLY)
    try:
        symbols = symbols_of(child.pid)
        search = Jvm(JvmMemory(fd), symbols)
        assert search.facts()
        words = find(search)
        memory = Recorded(fd)
        jvm = Jvm(memory, symbols)
        assert jvm.facts()
        said = {what: jvm.rows(word) for what, word in words.items()}
    finally:
        child.kill()
        child.wait()
        os.close(fd)
    version = subprocess.run([java / "java", "-version"], capture_output=True, text=True, check=True).stderr
    number = version.partition('"')[2].partition(".")[0].partition('"')[0]
    content = {
        "symbols": symbols,
        "words": words,
        "said": said,
        "bytes": {f"{address:x}": data.hex() for address, data in sorted(memory.known.items())},
    }
    file = HERE / f"jvm-{number}.bytes"
    file.write_bytes(zlib.compress(json.dumps(content).encode(), 9))
    print(file.name, file.stat().st_size, json.dumps(said, indent=1), sep="\n")


def main() -> None:
    """One recording for each JDK."""
    for java in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as classes:
            source = ROOT / "tests/workloads/java/Phases.java"
            subprocess.run([java / "javac", "-d", classes, source], check=True)
            record(java, classes)


if __name__ == "__main__":
    main()
