# SPDX-License-Identifier: Apache-2.0
"""What other threads ask of the daemon's loop is done while it rests, but does not keep it from its turns."""

from __future__ import annotations

import threading
import time

import pytest

from parprof.errors import TargetError
from parprof.service.requests import Requests
from stopwatch import Stopwatch


class Loop:
    """Stands in for the daemon's: counts what it has done."""

    done = 0

    def act(self) -> int:
        self.done += 1
        return self.done


def test_one_after_the_other_is_done_within_one_rest() -> None:
    requests, loop = Requests[Loop](), Loop()
    resting = threading.Thread(target=requests.answer_until, args=(loop, time.monotonic() + 5), daemon=True)
    resting.start()
    watch = Stopwatch()
    for number in (1, 2, 3):
        assert requests.ask(Loop.act).result(timeout=30) == number
    assert watch.seconds < 5


def test_who_asks_again_and_again_waits_for_the_next_turn() -> None:
    requests, loop = Requests[Loop](), Loop()
    rested = threading.Event()

    def ask() -> None:
        while not rested.is_set():
            requests.ask(Loop.act).result(timeout=30)

    asking = threading.Thread(target=ask)
    asking.start()
    began_s = time.monotonic()
    requests.answer_until(loop, began_s + 0.5)
    assert time.monotonic() - began_s >= 0.5
    assert 1 < loop.done < 20
    rested.set()
    requests.answer(loop)
    requests.refuse()
    asking.join(30)
    assert not asking.is_alive()


def test_without_a_request_it_rests_until_then_and_no_longer() -> None:
    requests = Requests[Loop]()
    watch, began_s = Stopwatch(), time.monotonic()
    requests.answer_until(Loop(), began_s - 1)
    assert watch.seconds < 0.5
    requests.answer_until(Loop(), began_s + 0.2)
    assert 0.2 <= time.monotonic() - began_s


def test_after_the_end_all_is_refused() -> None:
    requests = Requests[Loop]()
    waits = requests.ask(Loop.act)
    requests.refuse()
    for future in (waits, requests.ask(Loop.act)):
        with pytest.raises(TargetError, match="stopping"):
            future.result(timeout=30)
