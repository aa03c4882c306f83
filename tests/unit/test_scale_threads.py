"""Work and span of programs of POSIX threads. The clock is the programs' own, so results are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from parprof.scale.record import Flag, SiteKind
from scale_programs import run, sites

N = 1000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.mark.parametrize(
    ("form", "work", "span", "bound"),
    [
        ("triangle", 12.5, 6, 6),
        # each round waits for its longest
        ("rounds", 54.5, 42, 42),
        # a lock is no bound of the longest path, but of the time
        ("locked", 10.5, 4, 6),
        ("turns", 6.5, 6, 6),
        ("leaves", 12.5, 6, 6),
        ("ends", 11.5, 5, 5),
        ("joins", 6.5, 4, 4),
        ("idles", 2.5, 2.5, 2.5),
    ],
)
def test_the_span_of_threads(directory: Path, form: str, work: float, span: float, bound: float) -> None:
    """Before and after the four threads, n; beside them, n / 2. In units of n."""
    record = run(directory, 8, "span_threads", form, str(N))
    assert round(record.work_s * 1e9) == work * N
    assert round(record.span_s * 1e9) == span * N
    assert round(record.bound_s * 1e9) == bound * N
    # the test's clock stands still in the runtime; code of the first thread alone is in the phase of the threads, too
    serial_s = sum(site.bound_s for site in sites(record, SiteKind.SERIAL))
    assert round((record.scheduled_s + serial_s) * 1e9) == bound * N
    assert record.flags & Flag.CLOSED and not record.flags & Flag.INSIDE
    (thread,) = sites(record, SiteKind.THREAD)
    assert thread.count == 4


def test_fewer_cores_than_threads(directory: Path) -> None:
    """On two cores the phase takes at least half its work: (10 + 0.5) / 2."""
    record = run(directory, 2, "span_threads", "triangle", str(N))
    assert round(record.bound_s * 1e9) == 2 * N + 10.5 * N / 2
