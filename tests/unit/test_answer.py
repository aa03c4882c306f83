"""What is said where there is nothing to act on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parprof.attribution import attribute
from parprof.exporters.answer import headline
from parprof.metrics import OUTSIDE
from parprof.model import Accounting, Frame, Origin, PathSample, ProcessInfo, Profile, ThreadState

WELL = "effectively parallel; focus on serial performance"


def profile(account: Accounting | None) -> Profile:
    """Two threads that both worked whenever they were sampled."""
    samples = [
        PathSample(
            (Frame("main"), Frame("step")), attribute(400, 1e6, 2, 2, ThreadState.WORKING), Origin(7, tid=tid)
        )
        for tid in (7, 8)
    ]
    out = Profile(ProcessInfo(7, "bar", "./bar", cores=2), 1.0, 1000, samples)
    out.accounting = account
    return out


ACCOUNT = Accounting(2, 1.0, 0.8, 0.0, 0.0, 0.0, 0.0, None)


@pytest.mark.parametrize("account", [None, ACCOUNT, replace(ACCOUNT, ready_s=0.5)])
def test_a_program_that_had_its_cores_is_well(account: Accounting | None) -> None:
    assert headline(profile(account), []) == WELL


@pytest.mark.parametrize("amounts", [{"ready_s": 0.7}, {"stolen_s": 0.7}, {"ready_s": 0.3, "stolen_s": 0.9}])
def test_a_program_that_had_few_of_its_cores_is_not_said_to_be_well(amounts: dict[str, float]) -> None:
    """Threads that take turns look as if both worked, if others have the core that one of them would have idle."""
    line = headline(profile(replace(ACCOUNT, **amounts)), [])
    share = 100 * sum(amounts.values()) / 2
    assert line.startswith("busy machine") and f"for {share:.0f} % of their time" in line
    assert "measure when it is quiet" in line


def test_a_server_that_had_nothing_to_do_is_not_said_to_lose_its_cores() -> None:
    """What it did as it began is one thread's, and all that is sampled."""
    work = attribute(100, 1e6, 1, 2, ThreadState.WORKING)
    work[OUTSIDE] = 12e9
    served = profile(None)
    served.samples = [PathSample((Frame("main"),), work, Origin(7, tid=7))]
    line = headline(served, [])
    assert line.startswith(
        "for 98 % of the cores' time there was nothing to do; of the rest 50 % is lost, but"
    )
