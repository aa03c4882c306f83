"""What to tell of code that a JIT compiler made and gave no names: how its runtime is to be started instead."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from parprof.facts.drain import MeasuredImage
from parprof.files.dso import ANONYMOUS
from parprof.model import PathSample

_LEAST_SHARE = 0.01
"""Of a process's samples: less is not worth a note."""
_REMEDIES = (
    (
        r"java",
        "start java with -XX:+PreserveFramePointer, and run `jcmd PID Compiler.perfmap` (JDK 17 or later) while it is "
        "profiled, or start it with an agent that writes perf maps (perf-map-agent)",
    ),
    (r"node|nodejs|electron", "start node with --perf-basic-prof"),
    (r"python[\d.]*", "start python with -X perf (3.12 or later)"),
    (r"dotnet", "start dotnet with DOTNET_PerfMapEnabled=1 in its environment"),
)
_ANY_RUNTIME = "have its JIT compiler write /tmp/perf-PID.map"


def jit_notes(samples: Iterable[PathSample], images: Mapping[int, MeasuredImage]) -> list[str]:
    """A note for each process with much nameless code on its call paths."""
    total: Counter[int] = Counter()
    nameless: Counter[int] = Counter()
    for sample in samples:
        total[sample.origin.image] += sample.metrics.samples
        if any(frame.name == ANONYMOUS for frame in sample.path):
            nameless[sample.origin.image] += sample.metrics.samples
    return [
        f"process {image.process.pid}: {nameless[number] / total[number]:.0%} of its samples are in code that was made "
        f"at run time and has no names: {_remedy(image.process.exe)}"
        for number, image in images.items()
        if total[number] and nameless[number] >= _LEAST_SHARE * total[number]
    ]


def _remedy(exe: str) -> str:
    name = os.path.basename(exe)
    return next((text for pattern, text in _REMEDIES if re.fullmatch(pattern, name)), _ANY_RUNTIME)
