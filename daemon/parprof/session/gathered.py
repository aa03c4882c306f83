"""What a session has drained and nobody has taken yet, with what only the living processes can tell of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from parprof.facts.intervals import Intervals
from parprof.kernel.counts import ByTime, together
from parprof.model import Count, Facts, SampleKey, add_facts
from parprof.session.target import Target

_MAX_THREAD_NAMES = 1 << 14


class Gathered:
    """Facts, by how many cores they were counted with where that changes, and the names of their threads."""

    def __init__(self, targets: Mapping[int, Target], intervals: Intervals | None = None) -> None:
        """``targets``: by image, those that come later, too. ``intervals``: are told of all facts, too."""
        self._targets = targets
        self._intervals = intervals
        self.facts: Facts = {}
        self.by_cores: dict[SampleKey, dict[int, Count]] = {}
        """See `Drain.by_cores`."""
        self.thread_names: dict[tuple[int, int], str] = {}

    def add(self, by_time: ByTime) -> Facts:
        """These have come. Returns them, whenever that was."""
        facts = together(by_time)
        changed = {image for image in {key.image for key in facts} if self._has_changed(image)}
        if changed:
            self._divide({key: count for key, count in facts.items() if key.image in changed})
        if self._intervals is not None:
            allowed = {image: self._targets[image].cores for image in changed}
            for at_ns, some in by_time.items():
                self._intervals.add(at_ns, some, allowed)
        for key, count in facts.items():
            if key.event == 0 and key.image in self._targets:
                self._targets[key.image].clock_samples += count.samples
            if (key.image, key.tid) not in self.thread_names:
                self.thread_names[key.image, key.tid] = self._thread_name(key.image, key.tid)
        add_facts(self.facts, facts)
        return facts

    def _has_changed(self, image: int) -> bool:
        """Whether it may use another number of cores than at first."""
        target = self._targets.get(image)
        return target is not None and target.allowed.changes > 0

    def divide(self, image: int) -> None:
        """What it is allowed is about to change for the first time: until now it had what it has now."""
        self._divide({key: count for key, count in self.facts.items() if key.image == image})
        if self._intervals is not None:
            self._intervals.divide(image, self._targets[image].cores)

    def _divide(self, facts: Facts) -> None:
        """Note that these were counted with what their processes are allowed now."""
        for key, count in facts.items():
            divided = self.by_cores.setdefault(key, {})
            divided.setdefault(self._targets[key.image].cores, Count()).add(count)

    def _thread_name(self, image: int, tid: int) -> str:
        target = self._targets.get(image)
        if target is not None and not target.ended:
            with suppress(OSError):
                return Path(f"/proc/{target.pid}/task/{tid}/comm").read_bytes()[:-1].decode(errors="replace")
        if target is not None and tid == target.pid:  # it is gone, but was known
            return target.process.comm
        return f"tid {tid}"

    def samples(self) -> int:
        """Clock samples."""
        return sum(count.samples for key, count in self.facts.items() if key.event == 0)

    def clear(self) -> None:
        """They have been taken: what comes now is counted anew. Names of threads stay."""
        self.facts, self.by_cores = {}, {}

    def forget(self, images: Collection[int]) -> None:
        """These images are gone, and their facts have been dealt with."""
        self.thread_names = {key: name for key, name in self.thread_names.items() if key[0] not in images}

    def trim(self) -> None:
        """Give back what may be of threads that are gone, in processes that live on."""
        if len(self.thread_names) > _MAX_THREAD_NAMES:
            self.thread_names.clear()
