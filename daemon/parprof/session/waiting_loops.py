"""What is told of code in which the threads of one process only wait, though they run."""

from __future__ import annotations

from collections.abc import Collection

from parprof.files.dso import FileKey
from parprof.probes.wait_code import lies_in
from parprof.process.loadmap import LoadMap
from parprof.session.probing import Probing
from parprof.wording import some

_MOST_NAMED = 8
"""Functions in one note."""


class WaitingLoops:
    """Of one process image: loops that only wait, known of its files, and functions that the user says wait."""

    def __init__(self, probing: Probing) -> None:
        self._probing = probing
        self._has_spun = False
        """Whether one of its threads was found in such a loop."""
        self.asked_about: set[FileKey] = set()
        """The files in which its threads were so often at one place that it was asked whether they wait there."""

    @property
    def are_told_by_samples(self) -> bool:
        """Whether threads wait in code that no runtime tells of: their state is that of their last sample.

        Loops that only wait are known of many files, the C library's `pthread_spin_lock` of most machines' sooner or
        later: what counts is that one of its threads was found there.
        """
        plan = self._probing.plan
        return bool(plan.wait_functions) or (self._has_spun and bool(plan.spinning))

    def note(self, address: int) -> None:
        """One of its threads was found not to work, though it ran, at this address."""
        self._has_spun = self._has_spun or self.are_at(address)

    def are_at(self, address: int) -> bool:
        """Whether threads only wait for others at an address, as far as that is known by now."""
        return lies_in(address, self._probing.plan.spin_ranges)

    def learn(self, found: Collection[FileKey], load_map: LoadMap | None) -> None:
        """There are new ones, in these files."""
        if not self.asked_about.isdisjoint(found):
            self._has_spun = True
        if load_map is not None:
            self._probing.learn_spins(load_map)

    def remarks(self) -> list[str]:
        """What the reader of a report must know of them."""
        plan = self._probing.plan
        texts = []
        if self._has_spun and (places := plan.spinning):
            texts.append(
                f"loops in {', '.join(places)} only look at memory until other threads write to it: "
                "a thread found there waits, and counts as spinning"
            )
        if named := plan.wait_functions:
            texts.append(
                f"as --wait-function says, threads wait in {some(named, _MOST_NAMED)}: they count as spinning there"
            )
        return texts
