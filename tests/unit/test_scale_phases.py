"""Phases of a running process become a record like that of a run; the rest is `parprof scale`'s."""

from __future__ import annotations

import pytest

from parprof.scale.answer import sentence
from parprof.scale.model import Scale, predict
from parprof.scale.phases import NOWHERE, Phase, record_of
from parprof.scale.record import Address, SiteKind


def at(line: int) -> Address:
    return Address("/bin/solve", "ab", line)


def test_a_phase_takes_its_longest_share() -> None:
    """Four threads: 1 s serial; 4 s of which one thread has 2; 4 s evenly."""
    phases = (
        Phase(True, at(10), NOWHERE, 1.0, 1.0, 5),
        Phase(False, at(10), at(20), 4.0, 2.0, 5),
        Phase(False, at(10), NOWHERE, 4.0, 1.0, 5),
    )
    record = record_of(phases, pid=7, command="solve", threads=4, regions=5, cpu_s=10.0, elapsed_s=4.5)
    assert (record.work_s, record.span_s, record.bound_s) == (9.0, 4.0, 4.0)
    assert [(one.kind, one.address.vaddr, one.uneven_s) for one in record.sites] == [
        (SiteKind.SERIAL, 11, 0.0),
        (SiteKind.PHASE, 20, 1.0),
        (SiteKind.REGION, 11, 0.0),
    ]
    main = predict(record, lambda where: ())
    assert main.speedup == pytest.approx(9 / 4) and not main.is_partial
    used = main.work_s / (main.threads * main.bound_s)
    assert used + main.lost.serial + main.lost.uneven == pytest.approx(1)
    assert main.lost.serial == pytest.approx(1 * 3 / 4 / 4)
    fixed = {site.kind: site.speedup_if_fixed for site in main.sites}
    assert fixed[SiteKind.PHASE] == pytest.approx(9 / 3) and fixed[SiteKind.SERIAL] == pytest.approx(9 / 3.25)
    assert sentence(Scale("solve", (main,), ())).startswith("on 4 cores at best x2.25")


def test_nothing_is_no_error() -> None:
    record = record_of((), pid=7, command="solve", threads=0, regions=0, cpu_s=0.0, elapsed_s=0.0)
    assert predict(record, lambda where: ()).speedup == 1
