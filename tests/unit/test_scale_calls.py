"""Work and span by call site on the paper's examples. The clock is the programs' own, so results are exact."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parprof import pprof_pb2 as pb
from parprof.__main__ import main
from parprof.errors import ProfileFormatError
from parprof.scale.record import Flag, SpanRecord, read_record
from scale_programs import COMPILERS, WORKLOADS, variables, with_hooks

SOURCE = WORKLOADS / "span_calls.c"
BYTES_A_LEVEL_AND_SITE, FIXED_BYTES = 48, 1 << 21
Row = dict[str, Any]
pytestmark = pytest.mark.usefixtures("span_test_clock")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale-calls")


def built(directory: Path, compiler: str = "gcc") -> str:
    return with_hooks("span_calls", directory, compiler)


@cache
def line_of(text: str) -> str:
    (at,) = (n for n, line in enumerate(SOURCE.read_text().splitlines(), 1) if text in line)
    return f"span_calls.c:{at}"


def document(directory: Path, threads: int, *words: str, compiler: str = "gcc") -> dict[str, Any]:
    output = directory / "out.json"
    options = ["-q", "--threads", str(threads), "--json", "-o", str(output)]
    assert main(["scale", *options, "--", built(directory, compiler), *words]) == 0
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def rows(found: dict[str, Any]) -> list[Row]:
    return [one for one in found["sites"] if one["kind"] == "call"]


def row_at(found: dict[str, Any], text: str) -> Row:
    """The one call on the line with this text."""
    (row,) = (one for one in rows(found) if one["site"] == line_of(text))
    return row


def row_of(found: dict[str, Any], callee: str) -> Row:
    """Of a function that is called from one place."""
    (row,) = (one for one in rows(found) if one["callee"] == callee)
    return row


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@cache
def calls_of_fib(n: int) -> int:
    return 1 if n < 2 else 1 + calls_of_fib(n - 1) + calls_of_fib(n - 2)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_fibonacci_has_the_golden_ratio(directory: Path, compiler: str, threads: int) -> None:
    """The paper's figure 7: the work of the two recursive calls of the outermost fib (its "top caller")."""
    found = document(directory, threads, "fib", "20", compiler=compiler)
    spawned, called = row_at(found, "/* the spawned */"), row_at(found, "/* the called */")
    outermost = row_at(found, 'printf("%ld\\n", fib(n))')
    assert {one["callee"] for one in (spawned, called, outermost)} == {"fib"}
    assert spawned["caller"] == called["caller"] == "fib"
    assert spawned["count"] == called["count"] == 10_945
    assert outermost["count"] == 1
    of_spawned, of_called = spawned["on_work"]["top_caller"], called["on_work"]["top_caller"]
    assert of_spawned["work_s"] / of_called["work_s"] == pytest.approx((1 + 5**0.5) / 2, rel=0.03)
    assert (of_spawned["count"], ns(of_spawned["work_s"])) == (1, 10 * calls_of_fib(19))
    assert (of_called["count"], ns(of_called["work_s"])) == (1, 10 * calls_of_fib(18))

    # of a site's calls those count that no other of the site is above: fib(19), fib(17), ...; fib(18), fib(17), ...
    of_spawned, of_called = spawned["on_work"]["top_call_site"], called["on_work"]["top_call_site"]
    assert (of_spawned["count"], of_called["count"]) == (10, 19)
    assert ns(of_spawned["work_s"]) == 10 * sum(calls_of_fib(n) for n in range(19, 0, -2))
    assert ns(of_called["work_s"]) == 10 * sum(calls_of_fib(n) for n in range(18, -1, -1))
    assert ns(of_spawned["span_s"]) == 10 * sum(range(19, 0, -2))

    whole = outermost["on_span"]["top_call_site"]
    assert (ns(whole["work_s"]), ns(whole["span_s"])) == (10 * calls_of_fib(20), 200)
    assert whole["parallelism"] == pytest.approx(calls_of_fib(20) / 20)


@pytest.mark.parametrize(
    "words",
    [("fib", "15"), ("quicksort", "20000"), ("multiply", "4"), ("loop", "64"), ("barriers", "1000"),
     ("jumps", "100"), ("threads", "1000")],
)  # fmt: skip
def test_the_local_amounts_add_up(directory: Path, words: tuple[str, str]) -> None:
    found = document(directory, 4, *words)
    local_work = sum(one["on_work"]["local"]["work_s"] for one in rows(found))
    local_span = sum(one["on_span"]["local"]["span_s"] for one in rows(found))
    assert local_work == pytest.approx(found["work_s"], rel=0.005)
    assert local_span == pytest.approx(found["span_s"], rel=0.005)


@pytest.mark.parametrize("threads", [1, 4])
def test_the_bottleneck_of_quicksort_is_its_partition(directory: Path, threads: int) -> None:
    """The paper's figure 2."""
    found = document(directory, threads, "quicksort", "100000")
    partition = row_of(found, "partition")
    assert rows(found)[0] == partition
    assert partition["on_span"]["local"]["span_s"] > 0.95 * found["span_s"]
    assert partition["on_span"]["top_call_site"]["parallelism"] == pytest.approx(1)
    (outermost,) = (one for one in rows(found) if one["callee"] == "sort" and one["count"] == 1)
    assert 2 < outermost["on_work"]["top_call_site"]["parallelism"] < 12
    assert outermost["on_span"]["count"] == 1


def test_a_base_case_is_on_the_critical_path_twice_for_each_level(directory: Path) -> None:
    """The paper's figure 10: base is never called by the outermost multiply."""
    found = document(directory, 4, "multiply", "8")
    base, recursive = row_of(found, "base"), row_at(found, "multiply(size / 2)")
    assert (base["count"], base["on_span"]["count"]) == (512, 8)
    assert base["on_work"]["top_caller"] == {"count": 0, "work_s": 0, "span_s": 0, "parallelism": 0}
    assert recursive["on_work"]["top_caller"]["count"] == 8
    assert recursive["on_work"]["top_call_site"]["parallelism"] == pytest.approx(64 / 4)


@pytest.mark.parametrize(("threads", "span"), [(2, (63 + 4) * 500), (64, 4000)])
def test_a_loop_has_its_longest_chunk_or_its_even_share(directory: Path, threads: int, span: int) -> None:
    item = row_of(document(directory, threads, "loop", "64"), "item")
    assert item["count"] == 64
    assert ns(item["on_work"]["local"]["work_s"]) == (63 + 4) * 1000
    assert ns(item["on_span"]["local"]["span_s"]) == pytest.approx(span, abs=2)
    assert item["on_span"]["count"] == (1 if threads == 64 else 64)


def test_a_call_may_span_a_barrier(directory: Path) -> None:
    found = document(directory, 4, "barriers", "1000")
    phases = row_of(found, "phases")
    assert phases["count"] == 4 and phases["on_span"]["count"] == 1
    assert ns(phases["on_work"]["top_call_site"]["work_s"]) == 4000 + 5000
    steps = [one for one in rows(found) if one["callee"] == "step"]
    assert sorted(ns(one["on_span"]["local"]["span_s"]) for one in steps) == [1000, 2000]


def test_calls_that_longjmp_leaves_end_with_those_around_them(directory: Path) -> None:
    found = document(directory, 1, "jumps", "100")
    catches = row_of(found, "catches")
    assert catches["count"] == row_of(found, "thrown")["count"] == 10
    assert ns(catches["on_work"]["top_call_site"]["work_s"]) == 10 * 200
    assert ns(row_of(found, "jumps")["on_work"]["top_call_site"]["work_s"]) == 10 * 200


def test_threads_of_posix(directory: Path) -> None:
    """n; then the longest of n, 2 n, 3 n, 4 n; then n."""
    found = document(directory, 8, "threads", "1000")
    around = row_of(found, "threads")["on_span"]["top_call_site"]
    assert (ns(around["work_s"]), ns(around["span_s"])) == (12_000, 6_000)
    body = row_of(found, "thread_body")
    assert (body["count"], body["on_span"]["count"]) == (4, 1)


def record_of(program: str, directory: Path, records: Path, *words: str) -> SpanRecord:
    records.mkdir()
    environment = variables(records, 1)
    subprocess.run([program, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    (path,) = records.glob("*.span")
    return read_record(os.fspath(path))


def test_deep_recursion_has_one_row(directory: Path, tmp_path: Path) -> None:
    record = record_of(built(directory), directory, tmp_path / "records", "deep", "50000")
    (call,) = (one for one in record.calls if one.on_work.count == 50_000)
    assert call.on_work.top_call_site.count == call.on_work.top_caller.count == 1
    assert ns(call.on_work.top_call_site.work_s) == 50_000
    assert not record.flags & Flag.CALLS_FULL


def test_a_call_that_forks_goes_on_in_both_processes(directory: Path, tmp_path: Path) -> None:
    """What a strand's hooks have said before the fork is known in the child, whose record begins there."""
    subprocess.run(
        [built(directory), "forks", "1000"], env=variables(tmp_path, 1), check=True, stdout=subprocess.DEVNULL
    )
    found = [read_record(os.fspath(path)) for path in tmp_path.glob("*.span")]
    parent, child = sorted(found, key=lambda record: bool(record.flags & Flag.FORKED))

    def calls(record: SpanRecord) -> list[tuple[int, int]]:
        return sorted((call.on_work.count, ns(call.on_work.local_work_s)) for call in record.calls)

    assert calls(parent) == [(1, 0), (1, 1000)]  # main, forks
    assert calls(child) == [(1, 0), (1, 0), (1, 2000)]


PEAK = """
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words)
{
	struct rusage used;
	int status = count;
	pid_t child = fork();
	if (!child) { execv(words[1], words + 1); _exit(127); }
	wait4(child, &status, 0, &used);
	fprintf(stderr, "%ld", used.ru_maxrss);
	return status != 0;
}
"""
"""Tells the most memory that a command had. What Python starts begins with as much as Python has."""


@pytest.fixture(scope="module")
def peak(directory: Path) -> str:
    output = os.fspath(directory / "peak")
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", output], input=PEAK, text=True, check=True)
    return output


def most_memory(peak: str, program: str, environment: dict[str, str], *words: str) -> int:
    done = subprocess.run(
        [peak, program, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
    )
    return int(done.stderr) * 1024


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize(
    ("words", "depth", "sites"),
    [(("deep", "50000"), 50_000, 3), (("deep", "100000"), 100_000, 3), (("fib", "28"), 28, 4)],
)
def test_space_is_within_depth_by_sites(
    directory: Path, peak: str, tmp_path: Path, threads: int, words: tuple[str, str], depth: int, sites: int
) -> None:
    """The paper's bound, for each thread, beside what the library has anyway; a million calls of fib take no more."""
    plain = tmp_path / "plain"
    subprocess.run(["gcc", "-O2", "-fopenmp", str(SOURCE), "-o", str(plain)], check=True)
    environment = variables(tmp_path, threads)
    of_plain = most_memory(peak, os.fspath(plain), environment, *words)
    taken = most_memory(peak, built(directory), environment, *words) - of_plain
    assert {len(read_record(os.fspath(path)).calls) for path in tmp_path.glob("*.span")} <= {0, sites}
    assert (
        taken <= BYTES_A_LEVEL_AND_SITE * depth * sites * (1 if words[0] == "deep" else threads) + FIXED_BYTES
    )
    if words[0] == "fib":
        few = most_memory(peak, built(directory), environment, "fib", "20")
        assert taken + of_plain <= few + FIXED_BYTES / 2, "47 times as many calls"


def test_a_program_without_hooks_has_no_call_sites(directory: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    subprocess.run(["gcc", "-O2", "-fopenmp", str(SOURCE), "-o", str(plain)], check=True)
    record = record_of(str(plain), directory, tmp_path / "records", "fib", "10")
    assert record.calls == () and not record.flags & Flag.CALLS


def test_with_hooks_the_program_runs_alone(directory: Path) -> None:
    done = subprocess.run([built(directory), "fib", "10"], capture_output=True, text=True, check=True)
    assert done.stdout == "55\n"


def test_the_report_has_the_table(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["scale", "-q", "--threads", "2", "--", built(directory), "quicksort", "20000"])
    lines = capfd.readouterr().out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(" span%  local span"))
    first = lines[at + 1]
    assert re.fullmatch(r" +9\d\.\d .* 1\.00  partition at span_calls\.c:\d+ in sort", first), first


def test_call_sites_are_in_all_outputs(directory: Path, tmp_path: Path) -> None:
    """With one work and one span, which the columns of each add up to."""
    page, profile, table = tmp_path / "page.html", tmp_path / "profile.pb.gz", tmp_path / "table.csv"
    words = [
        "--csv",
        "-o",
        str(table),
        "--html",
        str(page),
        "--pprof",
        str(profile),
        "--",
        built(directory),
    ]
    assert main(["scale", "-q", "--threads", "2", *words, "quicksort", "20000"]) == 0
    lines = list(csv.DictReader(io.StringIO(table.read_text())))
    calls = [line for line in lines if line["kind"] == "call"]
    (partition,) = (line for line in calls if line["callee"] == "partition")
    assert float(partition["span_calls_parallelism"]) == pytest.approx(1)
    sums = [sum(float(line[name]) for line in calls) for name in ("work_s", "span_s")]
    others = [line for line in lines if line["kind"] != "call"]
    assert sums == [pytest.approx(sum(float(line[name]) for line in others)) for name in ("work_s", "span_s")]
    assert "<h2>Call sites</h2>" in page.read_text() and "partition at " in page.read_text()

    message = pb.Profile.FromString(gzip.decompress(profile.read_bytes()))
    names = [message.string_table[one.type] for one in message.sample_type]
    assert names == ["count", "work", "span", "bound", "calls", "call_work", "call_span"]
    totals = [sum(one.value[at] for one in message.sample) for at in range(len(names))]
    assert totals[1:3] == [pytest.approx(total, rel=1e-3) for total in totals[5:7]]
    functions = {message.string_table[one.name] for one in message.function}
    assert {"partition", "main"} <= functions


def test_cc_runs_the_compiler_with_the_hooks(tmp_path: Path) -> None:
    (tmp_path / "one.c").write_text("int main(void) { return 0; }\n")
    command = ["parprof", "cc", "--scale", "--", "gcc", "-c", "one.c", "-o", "one.o"]
    subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, check=True)
    symbols = subprocess.run(["nm", str(tmp_path / "one.o")], capture_output=True, text=True, check=True)
    assert "U __cyg_profile_func_enter" in symbols.stdout


def flags_in(path: Path) -> Flag:
    try:
        return read_record(os.fspath(path)).flags
    except ProfileFormatError:  # it has yet to begin
        return Flag(0)


def test_a_target_that_is_killed_leaves_no_call_sites(directory: Path, tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    environment = variables(records, 1, clock="auto")
    with subprocess.Popen(
        [built(directory), "fib", "42"], env=environment, stdout=subprocess.DEVNULL
    ) as child:
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            time.sleep(0.05)
            if any(flags_in(path) & Flag.CALLS for path in records.glob("*.span")):
                break
        child.send_signal(signal.SIGKILL)
    (path,) = records.glob("*.span")
    record = read_record(os.fspath(path))
    assert record.flags & Flag.CALLS and not record.flags & Flag.CLOSED
    assert record.calls == ()
