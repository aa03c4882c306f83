"""What the programs tell, and what is done about it: processes that come, change and go, and what became too dear."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from parprof.errors import ParprofError
from parprof.kernel import records
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import ControlRecord, Cost
from parprof.process.identity import parent_of
from parprof.session.arrivals import Arrivals
from parprof.session.early_mappings import EarlyMappings
from parprof.session.lifecycle import End, Lives, State
from parprof.session.storms import Storms
from parprof.session.target import Target


class Happenings:
    """Of one session."""

    def __init__(
        self,
        kernel: BpfKernel,
        lives: Lives[Target],
        arrivals: Arrivals,
        early: EarlyMappings,
        on_seen: Callable[[int], None] | None,
        *,
        wants_glimpses: bool,
    ) -> None:
        """``on_seen``: see `Session`. ``wants_glimpses``: see `Pace.glimpses`."""
        self.wants_glimpses = wants_glimpses
        self._kernel = kernel
        self._lives = lives
        self._arrivals = arrivals
        self._early = early
        self._on_seen = on_seen
        self._storms = Storms()
        self._lost_records = 0

    def act(self) -> None:
        """Do what the programs have told that is to be done."""
        batch = list(self._kernel.control_records())
        self._early.await_next()
        for record in self._arrivals.let_pass(batch):
            self._act(record)
        self._cut_off()

    def look_after_storm(self, now_s: float) -> None:
        """See whether there is room for context switches again, that others on the machine made too many of."""
        if self.wants_glimpses and self._storms.is_over(now_s):
            with suppress(ParprofError, OSError):  # it goes on without them
                self._kernel.glimpse()

    def resynchronise(self) -> None:
        """After a lost control record: look again at everything that a record could have told."""
        lost = self._kernel.lost().get("control_ring", 0)
        if lost == self._lost_records:
            return
        self._lost_records = lost
        self._kernel.verdicts.forget()
        self._kernel.forget_learned(self._lives.by_image.keys())
        for pid, image in self._kernel.images().items():
            if image not in self._lives.by_image:
                kind = records.RECORD_EXEC if self._lives.live(pid) else records.RECORD_FORK
                self._act(ControlRecord(kind, pid, pid, image, parent_of(pid), False, 0, 0, ""))
        for target in self._lives.unheard():
            if target.is_gone():
                self._lives.end(target, End.EXITED)
        for target in self._lives.living():
            target.careful_refresh()

    def _cut_off(self) -> None:
        """Go on without what the breaker has cut off."""
        for cut in self._kernel.breaker.take():
            if not cut.pid and cut.cost is Cost.SWITCH:
                self._storms.note(time.monotonic())
                continue
            target = self._lives.live(cut.pid)
            if target is not None and target.image == cut.image:
                try:
                    target.probing.cut_off(cut)
                except (ParprofError, OSError) as error:
                    target.note_failure(_told(error))

    def _act(self, record: ControlRecord) -> None:
        if record.kind == records.RECORD_SEEN:
            if self._on_seen is not None:
                self._on_seen(record.pid)
            return
        try:
            if record.kind == records.RECORD_GLIMPSE:
                if self.wants_glimpses:
                    self._kernel.glimpse()
            elif record.kind in (records.RECORD_EXEC, records.RECORD_FORK):
                self._arrivals.new_image(record)
            else:
                self._act_on_target(record)
        except (ParprofError, OSError) as error:  # one target's failure never stops the others
            target = self._lives.live(record.pid)
            if target is not None:
                target.note_failure(_told(error))

    def _act_on_target(self, record: ControlRecord) -> None:
        newest = record.kind == records.RECORD_EXIT
        target = self._lives.newest(record.pid) if newest else self._lives.live(record.pid)
        if target is None or target.image != record.image:
            return
        if record.kind == records.RECORD_LEARNED:
            target.learn(record.address)
        elif record.kind == records.RECORD_LOAD_MAP:
            target.mapped.maps.begin(record.address)
            if record.stopped:
                target.start_again(started_libraries=True)
            elif target.has_new_libraries(record.address):
                target.mapped.is_stale = True
        elif record.kind == records.RECORD_STALE_MAP:
            target.mapped.is_stale = True
        elif record.kind == records.RECORD_ABSENT_ROWS:
            target.mapped.lacks_rows(record.address)
        elif record.kind == records.RECORD_EXIT:
            self._leader_ended(target)
        elif record.kind == records.RECORD_REPLACED:
            self._lives.end(target, End.REPLACED)

    def _leader_ended(self, target: Target) -> None:
        """The first thread of a process has ended, as a rule with all others."""
        if target.life.state in (State.YOUNG, State.GONE) and target.is_gone():
            self._lives.end(target, End.EXITED)
            return
        target.observe()
        if target.life.state is State.YOUNG:  # some thread of it lives, or it is just about to end
            self._lives.linger(target)


def _told(error: ParprofError | OSError) -> str:
    """An error in a note: ours are sentences for people."""
    return str(error) if isinstance(error, ParprofError) else f"{type(error).__name__}: {error}"
