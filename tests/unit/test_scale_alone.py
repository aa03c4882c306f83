"""Regions with one thread: one that is a strand ends in a way of its own, what is more than that in the general one."""

from __future__ import annotations

from pathlib import Path

import pytest

import scale_programs
from parprof.scale.record import SiteKind
from scale_programs import COMPILERS, sites

SOURCE = """
extern void parprof_span_work(unsigned long);
static int sum;
static void plain(void)
{
#pragma omp parallel
	parprof_span_work(10);
}
int main(void)
{
	for (int i = 0; i < 1000; i++) {
		parprof_span_work(1);
		plain();
#if %(other)d == 1
#pragma omp parallel
#pragma omp critical
		parprof_span_work(20);
#elif %(other)d == 2
#pragma omp parallel
		{
#pragma omp task
			parprof_span_work(20);
#pragma omp taskwait
		}
#elif %(other)d == 3
#pragma omp parallel
		{
			parprof_span_work(12);
#pragma omp barrier
			parprof_span_work(8);
		}
#elif %(other)d == 4
#pragma omp parallel
		{
			parprof_span_work(5);
#pragma omp parallel num_threads(3)
			parprof_span_work(5);
		}
#elif %(other)d == 5
#pragma omp parallel for schedule(dynamic)
		for (int chunk = 0; chunk < 4; chunk++)
			parprof_span_work(5);
#elif %(other)d == 6
#pragma omp parallel
		{
			parprof_span_work(20);
#pragma omp taskwait depend(in : sum)
		}
#elif %(other)d == 7
#pragma omp parallel
		{
			parprof_span_work(12);
#pragma omp single
			parprof_span_work(8);
		}
#else
#pragma omp parallel num_threads(2)
		parprof_span_work(10);
#endif
	}
}
"""
OTHERS = {
    "critical": 1, "task": 2, "barrier": 3, "nested": 4, "loop": 5, "waits": 6, "single": 7, "two threads": 8,
}  # fmt: skip


def ns(seconds: float) -> int:
    """The test's clock makes a cycle a nanosecond."""
    return round(seconds * 1e9)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_plain_regions_between_others(tmp_path: Path, compiler: str, other: str) -> None:
    """They use the same frames by turns; neither kind leaves anything to the other."""
    record = scale_programs.run_linked(SOURCE % {"other": OTHERS[other]}, compiler, tmp_path, 1)
    assert ns(record.work_s) == 1000 * (1 + 10 + 20)
    assert record.regions == 1000 * (3 if other == "nested" else 2)
    assert record.tasks == (1000 if other == "task" else 0)
    length = {"two threads": 10, "nested": 5 + 5}.get(other, 20)
    assert ns(record.span_s) == 1000 * (1 + 10 + length)
    assert ns(record.bound_s) == 1000 * (1 + 10 + 20)  # one core
    (plain,) = (
        site for site in sites(record, SiteKind.REGION) if site.count == 1000 and ns(site.work_s) == 10_000
    )
    assert ns(plain.span_s) == ns(plain.bound_s) == 10_000
    assert plain.span_count == 1000 and plain.at_once == 1
    assert record.widest_team == {"two threads": 2, "nested": 3}.get(other, 1)
    serial_s = sum(site.bound_s for site in sites(record, SiteKind.SERIAL))
    assert ns(serial_s) == 1000
    if other not in ("two threads", "nested"):
        assert ns(record.scheduled_s) == 1000 * (10 + 20)
