"""Pushes profiles: what the daemon's loop gives away goes to the disk, and from there to each store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from parprof.errors import UsageError
from parprof.model import Profile
from parprof.resources import Closing
from parprof.service.model import Labels, PushQueue
from parprof.service.push.config import PushConfig, StoreConfig
from parprof.service.push.labels import process_labels
from parprof.service.push.sender import Counts, Sender
from parprof.service.push.shape import Payload
from parprof.service.push.spool import Spool
from parprof.service.push.transport import StoreClient

MAX_WAITING = 8
"""Profiles that wait in memory to be written to the disk. The loop asks `Pusher.has_room` before it makes one."""
CLOSE_SECONDS = 1.8
"""How long `Pusher.close` takes at most, whatever servers and disks do."""


class Pusher(Closing):
    """All stores. One thread writes to the disk, and one for each store sends from there.

    Outcomes, by name of the store: ``sent``, ``retried``, and ``dropped_*`` for each reason: ``rejected`` by
    the store, ``failed`` too often there, ``full`` queue, ``old``, ``damaged`` file, ``disk`` full, ``large``
    beyond the queue, ``busy`` (this process could not keep up), ``unfit`` for what the store takes.
    """

    def __init__(self, config: PushConfig, log: Callable[[str], None]) -> None:
        """Open the queues, and begin to send what they hold from before. ``log`` is called from threads.

        Raises:
            UsageError: an address or the directory cannot be used.
        """
        self._config = config
        self._log = log
        self._waiting: deque[tuple[Profile, Labels]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._writing = False
        self._stores: list[_Store] = []
        try:
            for store in config.stores:
                self._stores.append(_Store(store, config, log))
        except BaseException:
            for made in self._stores:
                made.spool.close()
            raise
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)
        if self._stores:
            self._thread.start()
        for one in self._stores:
            one.sender.start()

    def has_room(self) -> bool:
        """Whether a profile that is submitted now will not push out another one."""
        return len(self._waiting) < MAX_WAITING

    def submit(self, profile: Profile, labels: Labels) -> None:
        """Push a profile, which nobody may change from now on. Never waits. One without samples is left out."""
        if not profile.samples or not self._stores:
            return
        with self._wake:
            if self._stopping or len(self._waiting) >= MAX_WAITING:
                self._count("dropped_busy")
                if self._stopping:
                    return
                self._waiting.popleft()
            self._waiting.append((profile, labels))
            self._wake.notify_all()

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        """How many profiles came to what end, by store and outcome, since this process began."""
        return {
            (store.name, outcome): count
            for store in self._stores
            for outcome, count in store.counts.get().items()
        }

    def queues(self) -> Mapping[str, PushQueue]:
        """What waits on the disk, and what is wrong, by store."""
        return {
            store.name: PushQueue(len(store.spool), store.spool.size_bytes, store.sender.problem)
            for store in self._stores
        }

    def flush(self, seconds: float) -> bool:
        """Wait until all that was submitted is on the disk or sent; whether it is."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def close(self) -> None:
        """Write what waits in memory to the disk as far as there is time, and end all threads."""
        until_s = time.monotonic() + CLOSE_SECONDS
        with self._wake:
            if self._stopping:
                return
            self._stopping = True
            self._wake.notify_all()
        for store in self._stores:
            store.sender.stop()
        if self._stores:
            self._thread.join(CLOSE_SECONDS * 0.6)
        with self._wake:
            while self._waiting:
                self._waiting.popleft()
                self._count("dropped_busy")
        is_idle = not self._thread.is_alive()
        for store in self._stores:
            # A thread that hangs (a disk, a name server) keeps its queue open; it ends with the process.
            if store.sender.join(until_s - time.monotonic()) and is_idle:
                store.spool.close()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._writing = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._stopping or self._waiting)
                if not self._waiting:
                    return
                profile, labels = self._waiting.popleft()
                self._writing = True
            payload = Payload(profile)
            for store in self._stores:
                store.put(payload, labels)

    def _count(self, outcome: str) -> None:
        for store in self._stores:
            store.counts.count(outcome)


class _Store:
    """A store: its queue, and who sends from there."""

    def __init__(self, store: StoreConfig, config: PushConfig, log: Callable[[str], None]) -> None:
        self.name = store.backend.name
        self.counts = Counts()
        self._backend = store.backend
        self._config = config
        self._log = log
        self._has_complained = False
        try:
            client = StoreClient(store.endpoint)
        except UsageError as error:
            raise UsageError(f"push.{self.name}: {error}") from error
        self.spool = Spool(config.spool / self.name, config.spool_bytes, config.max_age_s, self.counts.count)
        self.sender = Sender(store.backend, client, self.spool, self.counts, log)

    def put(self, payload: Payload, labels: Labels) -> None:
        config = self._config
        profile = payload.profile
        try:
            flat = process_labels(profile, labels, config.process_labels, config.labels, config.service)
            request = self._backend.encode(payload, flat)
        except Exception as error:  # whatever is wrong with one profile, others follow
            self.counts.count("dropped_unfit")
            if not self._has_complained:
                self._has_complained = True
                self._log(f"push to {self.name}: {error}")
            return
        if self.spool.put(request):
            self.sender.wake()
