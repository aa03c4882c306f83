"""How many processors a program believes in, whatever it asks; and that it may bind its threads to any of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parprof.__main__ import main
from scale_programs import COMPILERS

pytestmark = pytest.mark.usefixtures("span_test_clock")

COUNTS = """
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/sysinfo.h>
#include <unistd.h>
extern int omp_get_num_procs_(void); /* a Fortran program's */
int main(void)
{
	cpu_set_t of_process, of_thread;
	sched_getaffinity(0, sizeof(of_process), &of_process);
	pthread_getaffinity_np(pthread_self(), sizeof(of_thread), &of_thread);
	printf("%d %d ", omp_get_num_procs(), omp_get_num_procs_());
	printf("%ld %ld ", sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_NPROCESSORS_CONF));
	printf("%d %d ", get_nprocs(), get_nprocs_conf());
	printf("%d %d\\n", CPU_COUNT(&of_process), CPU_COUNT(&of_thread));
}
"""
BINDS = """
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *work(void *cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET((long)cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		return (void *)1;
	return (void *)(long)pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}
int main(void)
{
	long count = sysconf(_SC_NPROCESSORS_ONLN), wrong = 0;
	cpu_set_t one, none;
	for (long cpu = 0; cpu < count; cpu++) {
		pthread_attr_t how;
		pthread_t thread;
		void *failed = (void *)1;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		pthread_attr_init(&how);
		wrong += pthread_attr_setaffinity_np(&how, sizeof(one), &one) != 0;
		if (!pthread_create(&thread, &how, work, (void *)cpu))
			pthread_join(thread, &failed);
		wrong += failed != 0;
		pthread_attr_destroy(&how);
	}
	CPU_ZERO(&none);
	printf("%ld of %ld; ", wrong, count);
	printf("none: %d\\n", pthread_setaffinity_np(pthread_self(), sizeof(none), &none) == EINVAL);
	CPU_SET(1000, &none);
	printf("not there: %d\\n", sched_setaffinity(0, sizeof(none), &none) == -1 && errno == EINVAL);
}
"""
BOUND = """
int main(void)
{
	int sum = 0;
#pragma omp parallel reduction(+ : sum)
	sum += 1;
	return sum != 12;
}
"""


def built(tmp_path: Path, source: str, compiler: str = "gcc") -> str:
    program = tmp_path / "program"
    command = [compiler, "-O1", "-fopenmp", "-pthread", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source.encode(), check=True, timeout=120)
    return str(program)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_all_answers_are_the_runs_number(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], compiler: str
) -> None:
    """A Fortran program, and one that asks for a thread's, had the machine's own."""
    assert main(["scale", "-q", "--threads", "48", "--", built(tmp_path, COUNTS, compiler)]) == 0
    assert capfd.readouterr().out.splitlines()[0] == " ".join(["48"] * 8)


def test_threads_may_be_bound_to_each_of_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Those that are not there were EINVAL, at which programs end, or could make no thread."""
    assert main(["scale", "-q", "--threads", "48", "--", built(tmp_path, BINDS)]) == 0
    assert capfd.readouterr().out.splitlines()[:2] == ["0 of 48; none: 1", "not there: 1"]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("places", ["cores", "{0}:12", ""])
def test_runtimes_bind_their_threads(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    compiler: str,
    places: str,
) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    if places:
        monkeypatch.setenv("OMP_PLACES", places)
    assert main(["scale", "-q", "--threads", "12", "--", built(tmp_path, BOUND, compiler)]) == 0
    assert "at best" in capfd.readouterr().out
