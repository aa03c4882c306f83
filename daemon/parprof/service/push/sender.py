"""Sends what is in a queue to one store, again and again until it is there or is not wanted."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

from parprof.http_client import NoAnswer
from parprof.service.push.backend import Backend, Delivery
from parprof.service.push.backoff import backoff_s, retry_after_s
from parprof.service.push.spool import Spool, SpooledRequest
from parprof.service.push.transport import StoreClient
from parprof.untrusted import visible

MAX_ANSWERS = 10
"""A request that was answered with a failure so often is given up, or it would hold up all others for ever."""


class Counts:
    """Outcomes, counted by several threads."""

    def __init__(self) -> None:
        """All of them are 0."""
        self._mutex = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, outcome: str) -> None:
        """One more."""
        with self._mutex:
            self._counts[outcome] += 1

    def get(self) -> dict[str, int]:
        """How many there were so far."""
        with self._mutex:
            return dict(self._counts)


class Sender:
    """A thread that empties a queue. Outcomes: ``sent``, ``retried``, ``dropped_rejected``, ``dropped_failed``."""

    def __init__(
        self,
        backend: Backend,
        client: StoreClient,
        spool: Spool,
        counts: Counts,
        log: Callable[[str], None],
        generator: random.Random | None = None,
    ) -> None:
        """Nothing is sent before `start`. ``log`` is told once when sending fails and once when it works again."""
        self.problem = ""
        """What is wrong, one line; empty while nothing is."""
        self._backend = backend
        self._client = client
        self._spool = spool
        self._counts = counts
        self._log = log
        self._random = generator or random.Random()
        self._failures = 0
        self._answers = 0
        self._last = ""
        self._wake = threading.Condition()
        self._stopping = False
        self._news = False
        self._thread = threading.Thread(target=self._run, name=f"push-{backend.name}", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there is something in the queue."""
        with self._wake:
            self._news = True
            self._wake.notify_all()

    def stop(self) -> None:
        """End what is under way; what was not sent stays in the queue."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._client.close()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; whether it did."""
        if self._thread.ident is not None:
            self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                entry = self._spool.oldest()
                if entry is None:
                    self._wait_for_news()
                    continue
                if entry.name != self._last:
                    self._last, self._answers = entry.name, 0
                seconds = self._attempt(entry)
                self._spool.release()
                self._wait(seconds)
        finally:
            self._spool.release()
            self._client.close()

    def _attempt(self, entry: SpooledRequest) -> float:
        """Send a request once. Returns the seconds to wait before the next."""
        asked_s = 0.0
        try:
            reply = self._client.post(entry.request)
            verdict, problem = self._backend.judge(reply)
        except NoAnswer as error:
            if self._stopping:
                return 0.0
            verdict, problem = Delivery.RETRY, str(error)
        except Exception as error:  # a mistake of ours: it costs this request, not all that follow
            verdict, problem = Delivery.RETRY, f"{type(error).__name__}: {visible(str(error), 200)}"
            self._answers += 1
        else:
            if verdict is Delivery.RETRY:
                self._answers += 1
                asked_s = retry_after_s(reply.headers.get("retry-after", ""))
        if verdict is Delivery.RETRY and self._answers < MAX_ANSWERS:
            self._counts.count("retried")
            self._failures += 1
            self._say(problem)
            return max(asked_s, backoff_s(self._failures, self._random))
        self._spool.done(entry.name)
        if verdict is Delivery.SENT:
            self._counts.count("sent")
            self._failures = 0
            self._say("")
            return 0.0
        self._counts.count("dropped_rejected" if verdict is Delivery.REJECTED else "dropped_failed")
        self._say(problem)
        if verdict is Delivery.REJECTED:
            self._failures = 0
            return 0.0
        return max(asked_s, backoff_s(self._failures, self._random))

    def _say(self, problem: str) -> None:
        if problem and not self.problem:
            self._log(f"push to {self._backend.name}: {problem}")
        elif self.problem and not problem:
            self._log(f"push to {self._backend.name}: works again")
        self.problem = problem

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping, seconds)

    def _wait_for_news(self) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._news)
            self._news = False
