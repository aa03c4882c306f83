"""Code that a JIT compiler made and gave no names: how much of a loss is there, and how names are had."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from parprof.attribution.effort import lost_ns
from parprof.files.dso import ANONYMOUS
from parprof.model import PathSample

_REMEDIES = (
    (
        r"java",
        "start java with -XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit (JDK 17 or "
        "later), or with the first of these alone, and run `jcmd PID Compiler.perfmap` while it is profiled",
    ),
    (r"node|nodejs|electron", "start node with --perf-basic-prof --interpreted-frames-native-stack"),
    (r"python[\d.]*", "start python with -X perf (3.12 or later)"),
    (r"erl|beam\.smp|iex|elixir", "start the Erlang emulator with +JPperf true (in ERL_FLAGS, too)"),
    (r"ruby[\d.]*", "start ruby with --yjit-perf (3.3 or later)"),
    (r"php[\d.]*", "start php with -d opcache.jit_debug=16"),
    (r"mono(?:-sgen|-boehm)?", "start mono with --jitmap (in MONO_ENV_OPTIONS, too)"),
    (r"dotnet", "start dotnet with DOTNET_PerfMapEnabled=1 in its environment"),
)
_ANY_RUNTIME = "have its JIT compiler write /tmp/perf-PID.map"
MOSTLY_NAMELESS = 0.5
"""Of a loss: with so much of it in such code, names are what its reader needs first."""


def is_nameless(sample: PathSample) -> bool:
    """Whether there is such code on a call path."""
    return any(frame.name == ANONYMOUS for frame in sample.path)


def _is_cut(sample: PathSample) -> bool:
    """Whether its stack ends in the middle, and nothing of it has a source."""
    path = sample.path
    return bool(path) and path[0].name == "[truncated]" and not any(frame.file for frame in path)


def nameless_share(samples: Iterable[PathSample], program: str = "") -> float:
    """How much of the core time that is lost is on call paths with such code, 0 to 1.

    ``program``: what was run. If its functions can be given names, stacks that are cut short are so by such code.
    """
    lost = nameless = 0.0
    counts_cut = knows_how_to_name(program)
    for sample in samples:
        here = lost_ns(sample.metrics)
        lost += here
        if here and (is_nameless(sample) or (counts_cut and _is_cut(sample))):
            nameless += here
    return nameless / lost if lost else 0.0


def knows_how_to_name(program: str) -> bool:
    """Whether there is a way that is this program's own."""
    return how_to_name(program) != _ANY_RUNTIME


def how_to_name(program: str) -> str:
    """What to do so that the code of a program, by its path or name, has names the next time."""
    name = os.path.basename(program)
    return next((text for pattern, text in _REMEDIES if re.fullmatch(pattern, name)), _ANY_RUNTIME)
