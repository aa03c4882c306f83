"""What glimpses of context switches stand for: parprof.kernel.glimpses."""

from __future__ import annotations

import pytest

from parprof.kernel.counts import ByTime, together
from parprof.kernel.glimpses import NUMBERS, Glimpses
from parprof.model import NO_EVENT, Count, SampleKey, ThreadState

MS = 1_000_000


def stall(glimpse: int, user: int = 7) -> SampleKey:
    return SampleKey(1, 5, NO_EVENT, ThreadState.STALLED, 0, user, 9, glimpse=glimpse)


def seen(glimpse: int, ms: float, user: int = 7, at_ms: int = 0) -> ByTime:
    return {at_ms * MS: {stall(glimpse, user): Count(3, round(ms * MS))}}


def totals_ms(by_time: ByTime) -> dict[int, float]:
    """By user stack."""
    return {key.user: count.total / MS for key, count in together(by_time).items()}


class Busy:
    """Glimpses of a program that has a core to itself, but for ``idle_ms`` from some time on."""

    def __init__(self) -> None:
        self.glimpses = Glimpses()
        self.idle_ms = 0

    def at(self, ms: int) -> tuple[int, int]:
        return ms * MS, (ms - self.idle_ms) * MS


def test_what_nobody_saw_belongs_to_the_glimpses_around_it() -> None:
    """Followed until 300 ms; glimpses from 700 to 800 and from 1,100 to 1,150; the end is at 1,400."""
    busy = Busy()
    one = busy.glimpses
    one.leave(*busy.at(300))
    one.begin(*busy.at(700))
    assert totals_ms(one.weigh(seen(1, 40, user=7))) == {}
    one.leave(*busy.at(800))
    assert totals_ms(one.weigh(seen(1, 10, user=7, at_ms=3))) == {}
    one.begin(*busy.at(1100))
    first = one.weigh(seen(2, 10, user=8))
    assert totals_ms(first) == {7: pytest.approx(50 * (400 + 100 + 150) / 100)}
    assert sorted(first) == [0, 3 * MS], "each when it came"
    one.leave(*busy.at(1150))
    one.finish(*busy.at(1400))
    assert totals_ms(one.weigh({})) == {8: pytest.approx(10 * (150 + 50 + 250) / 50)}
    assert one.statistics() == {
        "glimpses": 2,
        "glimpsed_us": 150_000,
        "unfollowed_us": 950_000,
        "unglimpsed_us": 0,
        "looks": 0,
    }
    assert totals_ms(one.weigh(seen(2, 10, user=9))) == {9: 90.0}, "what came late"


def test_all_of_the_time_is_stood_for() -> None:
    busy = Busy()
    one = busy.glimpses
    one.leave(*busy.at(7))
    one.leave(*busy.at(17))  # a second process
    out = []
    for number, length in enumerate((20, 5, 60, 1, 33), 1):
        one.begin(*busy.at(number * 100))
        out.append(one.weigh(seen(number, length)))
        one.leave(*busy.at(number * 100 + length))
    one.finish(*busy.at(777))
    out.append(one.weigh({}))
    assert sum(sum(totals_ms(one).values()) for one in out) == pytest.approx(770)


def test_a_long_sleep_is_nothing_that_a_glimpse_stands_for() -> None:
    busy = Busy()
    busy.glimpses.leave(*busy.at(100))
    busy.glimpses.begin(*busy.at(200))
    busy.glimpses.leave(*busy.at(250))
    busy.idle_ms = 60_000
    busy.glimpses.finish(*busy.at(60_350))
    assert totals_ms(busy.glimpses.weigh(seen(1, 10))) == {7: pytest.approx(10 * (1 + 1.25 * 200 / 50))}
    unseen_ms = busy.glimpses.statistics()["unglimpsed_us"] / 1000
    assert unseen_ms == pytest.approx(60_000, rel=0.01), "but for chance"


def test_a_long_sleep_in_a_glimpse_is_one() -> None:
    busy = Busy()
    busy.glimpses.leave(*busy.at(100))
    busy.glimpses.begin(*busy.at(500))
    busy.idle_ms = 999
    busy.glimpses.leave(*busy.at(1500))
    busy.glimpses.finish(*busy.at(1700))
    assert totals_ms(busy.glimpses.weigh(seen(1, 999))) == {7: pytest.approx(999 * (1 + 1.25 * 600 / 1000))}


def test_what_a_glimpse_took_itself_is_no_part_of_the_program() -> None:
    busy = Busy()
    busy.glimpses.leave(*busy.at(100))
    busy.glimpses.begin(*busy.at(200))
    busy.glimpses.leave(*busy.at(250), paid_ns=10 * MS)
    busy.idle_ms = 1000
    busy.glimpses.finish(*busy.at(1350))
    assert totals_ms(busy.glimpses.weigh(seen(1, 10))) == {7: pytest.approx(10 * (1 + 1.25 * 200 / 40))}


def test_what_no_glimpse_saw_is_given_out_at_once() -> None:
    one = Glimpses()
    assert totals_ms(one.weigh(seen(0, 40))) == {7: 40.0}
    assert {key.glimpse for key in together(one.weigh(seen(0, 40)))} == {0}


def test_a_glimpse_that_ends_with_the_measurement() -> None:
    busy = Busy()
    busy.glimpses.leave(*busy.at(100))
    busy.glimpses.begin(*busy.at(200))
    busy.glimpses.finish(*busy.at(250))
    assert totals_ms(busy.glimpses.weigh(seen(1, 10))) == {7: 30.0}


def test_a_glimpse_that_shows_that_all_can_be_followed() -> None:
    """What comes after that is not its; and the next time that nobody looks is not."""
    busy = Busy()
    one = busy.glimpses
    one.leave(*busy.at(100))
    one.begin(*busy.at(200))
    one.finish(*busy.at(300))
    assert totals_ms(one.weigh(seen(1, 10))) == {7: 20.0}
    one.leave(*busy.at(900))
    one.begin(*busy.at(1000))
    one.finish(*busy.at(1100))
    assert totals_ms(one.weigh(seen(2, 10))) == {7: 20.0}


def test_a_glimpse_that_is_over_as_it_begins_is_none() -> None:
    busy = Busy()
    busy.glimpses.leave(*busy.at(100))
    busy.glimpses.begin(*busy.at(200))
    busy.glimpses.leave(200 * MS + 5, 200 * MS + 5)
    busy.glimpses.finish(*busy.at(300))
    assert totals_ms(busy.glimpses.weigh(seen(1, 1))) == {}
    assert busy.glimpses.statistics()["glimpses"] == 0


def test_numbers_begin_anew() -> None:
    busy = Busy()
    busy.glimpses.leave(*busy.at(1))
    for turn in range(1, NUMBERS + 3):
        assert busy.glimpses.next_number() == (turn - 1) % NUMBERS + 1
        busy.glimpses.begin(*busy.at(2 * turn))
        busy.glimpses.leave(*busy.at(2 * turn + 1))
    assert busy.glimpses.next_number() == 3


def test_the_waits_at_its_end_are_taken_once() -> None:
    busy = Busy()
    one = busy.glimpses
    assert one.take_cut(5 * MS) is None
    one.leave(*busy.at(1))
    one.begin(*busy.at(10))
    assert one.take_cut(12 * MS) is None, "it lasts"
    one.leave(*busy.at(20))
    cut = one.take_cut(30 * MS)
    assert cut is not None and (cut[0].number, cut[1]) == (1, 20 * MS)
    assert one.take_cut(40 * MS) is None
    one.begin(*busy.at(50))
    one.finish(*busy.at(60))
    cut = one.take_cut(90 * MS)
    assert cut is not None and (cut[0].number, cut[1]) == (2, 90 * MS), "its waits were seen all the time"
    one.leave(*busy.at(100))
    one.begin(*busy.at(110))
    one.leave(*busy.at(120))
    one.finish(*busy.at(200))
    cut = one.take_cut(200 * MS)
    assert cut is not None and (cut[0].number, cut[1]) == (3, 120 * MS)
