"""Whether profiles are of the same thing: what is put together or compared must be, or the reader must know."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from parprof.model import Profile
from parprof.untrusted import visible
from parprof.values import dataclass
from parprof.wording import some

_MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class Traits:
    """What should be the same."""

    command: str
    cores: int
    event: str
    """What was sampled."""
    events: frozenset[str]
    """What was counted besides."""

    @classmethod
    def of(cls, profile: Profile) -> Traits:
        """Those of a profile."""
        events = frozenset(name for sample in profile.samples for name in sample.metrics.events)
        process = profile.process
        return cls(process.command or process.comm, process.cores, profile.event, events)

    @property
    def program(self) -> str:
        """The command's first word, wherever it lies."""
        return os.path.basename(self.command.partition(" ")[0])


def differences(profiles: Sequence[Traits]) -> list[str]:
    """In what they differ, a sentence for each."""
    found = (
        ("programs", "", {visible(one.program) for one in profiles}),
        ("commands", "", {visible(one.command) for one in profiles}),
        ("cores n", "shares of effort are of different machines", {str(one.cores) for one in profiles}),
        (
            "sampled events",
            "their samples stand for different things",
            {visible(one.event) for one in profiles},
        ),
        ("counted events", "what one has not counted reads 0", {_listed(one.events) for one in profiles}),
    )
    out: list[str] = []
    for what, consequence, values in found:
        if len(values) < 2 or (what == "commands" and out):
            continue
        shown = sorted(values)
        told = f"the {what} differ: {some(shown, _MOST_TOLD, ' / ')}"
        out.append(f"{told}: {consequence}" if consequence else told)
    return out


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(visible, names))) or "none"
