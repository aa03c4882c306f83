"""`parprof input` on programs whose input and growth are known, with both tools and both compilers."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from input_programs import BUILDS, WORKLOADS, build, measure, parprof, points, sizes

__all__ = ["build"]
N = 600
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="for x86-64")


@pytest.fixture(scope="session", params=BUILDS)
def figures(build: Any, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    found = measure(build(WORKLOADS / "input_figures.c", request.param), str(N))
    assert found["tool"] == ("valgrind" if request.param == "valgrind" else "tsan")
    return request.param, found


def test_the_papers_figures(figures: tuple[str, dict[str, Any]]) -> None:
    """Figures 1 to 3, exact."""
    _, found = figures
    assert sizes(found, "figure_1a") == (2, 1, 1, 0)
    assert sizes(found, "figure_1b") == (2, 1, 1, 0)
    assert sizes(found, "h") == (1, 1, 1, 0)
    assert sizes(found, "consumer") == (N, 1, N, 0)
    assert sizes(found, "consume_data") == (1, 1, 1, 0)
    assert sizes(found, "producer") == sizes(found, "produce_data") == (0, 0, 0, 0)
    assert sizes(found, "external_read") == (N // 2, 1, 0, N // 2)


def test_two_threads_that_write_one_cell_in_turn(figures: tuple[str, dict[str, Any]]) -> None:
    """Each reads what the other wrote, but for the first value, which its own thread wrote."""
    _, found = figures
    (point,) = points(found, "take_turns")
    assert (point["calls"], point["trms"], point["rms"]) == (2, N, 1)
    assert point["induced"] == 2 * N - 1


def test_what_came_through_system_calls_is_said(figures: tuple[str, dict[str, Any]]) -> None:
    how, found = figures
    seen, known = found["coverage"]["seen_read_bytes"], found["coverage"]["all_read_bytes"]
    assert seen >= N // 2 * 16 and seen <= known < seen + 8192
    assert seen == N // 2 * 16 or how == "valgrind"  # which sees the loader, too
    seen, known = found["coverage"]["seen_sent_bytes"], found["coverage"]["all_sent_bytes"]
    assert 0 <= seen <= known < 100  # what printf sends is not seen by the hooks


def test_cost_is_in_basic_blocks(figures: tuple[str, dict[str, Any]]) -> None:
    _, found = figures
    assert found["cost_unit"] == "blocks" and found["notes"] == []
    (point,) = points(found, "consume_data")
    assert point["cost_sum"] == N and point["calls"] == N


@pytest.fixture(scope="session", params=BUILDS)
def algorithms(build: Any, request: pytest.FixtureRequest) -> dict[str, Any]:
    return measure(build(WORKLOADS / "input_algorithms.c", request.param))


LAWS = {
    "linear_scan": "n",
    "binary_search": "n",
    "merge_sort": "n log n",
    "insertion_sort": "n^2",
    "matrix_multiply": "n^1.5",
    "triangle": "n^1.5",
    "insert_all": "n",
    "read_rows": "n",
    "misleading": "n",
}


def test_known_algorithms_get_their_law(algorithms: dict[str, Any]) -> None:
    found = {one["name"]: one["fit"] for one in algorithms["routines"]}
    assert {name: found[name]["model"] for name in LAWS} == LAWS
    assert all(found[name]["r2"] > 0.99 for name in LAWS)
    for name in ("merge_sort", "insertion_sort", "matrix_multiply"):
        expected = {"merge_sort": 1.15, "insertion_sort": 2.0, "matrix_multiply": 1.5}[name]
        assert found[name]["exponent"] == pytest.approx(expected, abs=0.1)


def test_two_sizes_and_noise_get_none(algorithms: dict[str, Any]) -> None:
    found = {one["name"]: one["fit"] for one in algorithms["routines"]}
    assert (found["two_sizes"]["model"], found["two_sizes"]["reason"]) == (None, "2 sizes")
    assert (found["noise"]["model"], found["noise"]["reason"]) == (None, "noise")


def test_rms_lies_where_trms_tells(algorithms: dict[str, Any]) -> None:
    """Input through a buffer, as in figures 4 and 5: by rms there is one size, or exponential growth."""
    routines = {one["name"]: one for one in algorithms["routines"]}
    rows, other = routines["read_rows"], routines["misleading"]
    assert rows["fit_rms"]["model"] is None and len({point["rms"] for point in rows["points"]}) <= 2
    assert rows["profile_richness"] >= 3 and rows["external_percent"] > 98
    assert other["fit_rms"]["model"] not in ("constant", "log n", "n", "n log n")
    assert 0.9 < other["input_volume"] < 1


RECURSIONS = """
#include <stdlib.h>
static volatile long sink;
__attribute__((noinline)) void scan(const long *a, long n) {
    long sum = 0;
    for (int turn = 0; turn < 400; turn++) for (long at = 0; at < n; at++) sum += a[at] ^ turn;
    sink = sum;
}
__attribute__((noinline)) void merge(long *a, long n, long half, long *to) {
    long left = 0, right = half;
    for (long at = 0; at < n; at++)
        to[at] = right >= n || (left < half && a[left] <= a[right]) ? a[left++] : a[right++];
    for (long at = 0; at < n; at++) a[at] = to[at];
}
__attribute__((noinline)) void sort(long *a, long n, long *to) {
    if (n < 2) return;
    sort(a, n / 2, to);
    sort(a + n / 2, n - n / 2, to);
    merge(a, n, n / 2, to);
}
long odd(const long *a, long n);
__attribute__((noinline)) long even(const long *a, long n) { return n ? odd(a, n - 1) + a[n - 1] : 0; }
__attribute__((noinline)) long odd(const long *a, long n) { return n ? even(a, n - 1) - a[n - 1] : 0; }
int main(void) {
    for (long n = 16; n < 3000; n += n / 3) {
        long *a = malloc(8 * n), *to = malloc(8 * n);
        for (long at = 0; at < n; at++) a[at] = at * 7919 % n;
        scan(a, n);
        sort(a, n, to);
        sink = even(a, n);
        free(a);
        free(to);
    }
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_calls_within_each_other_cost_what_they_cost_once(build: Any, how: str, tmp_path: Path) -> None:
    """Each block counted for each call around it, a sort that takes 15 % had 100 %, and was named first."""
    source = tmp_path / "recursions.c"
    source.write_text(RECURSIONS)
    found = measure(build(source, how, "-fno-optimize-sibling-calls"))
    routines = {one["name"]: one for one in found["routines"]}
    parts = {name: routines[name]["cost_percent"] for name in ("sort", "merge", "even", "odd")}
    assert 5 < parts["merge"] < 25 and parts["even"] < 3
    sorting, alternating = parts["sort"] + parts["merge"], parts["even"] + parts["odd"]
    assert routines["sort"]["inclusive_percent"] == pytest.approx(sorting, abs=0.1)
    assert routines["even"]["inclusive_percent"] == pytest.approx(alternating, abs=0.1)
    assert found["advice"].startswith("scan ")


def test_the_advice_names_what_will_hurt_first(algorithms: dict[str, Any]) -> None:
    assert algorithms["advice"].startswith("insertion_sort (input_algorithms.c:")
    assert (
        "grows as n^2" in algorithms["advice"]
        and "10 x the input will take 99 x as long" in algorithms["advice"]
    )


def test_trms_is_never_below_rms(algorithms: dict[str, Any]) -> None:
    for routine in algorithms["routines"]:
        for point in routine["points"]:
            assert point["trms"] >= point["rms"] and point["trms_sum"] >= point["rms_sum"]
            assert point["induced"] + point["external"] <= point["trms_sum"]


def test_runs_add_up_and_are_read_again(build: Any, tmp_path: Path) -> None:
    program = build(WORKLOADS / "input_figures.c", "gcc")
    first, second, page = tmp_path / "first.json", tmp_path / "second.json.gz", tmp_path / "page.html"
    assert parprof("input", "-q", "-o", first, "--", program, "100").returncode == 0
    done = parprof("input", "-q", "--with", first, "-o", second, "--html", page, "--", program, "200")
    assert done.returncode == 0 and b"2 runs" in done.stdout
    report = parprof("report", second)
    assert report.returncode == 0 and report.stdout in done.stdout
    as_json = json.loads(parprof("report", "--json", second).stdout)
    assert sorted(point["trms"] for point in points(as_json, "consumer")) == [100, 200]
    assert b"<svg" in page.read_bytes() and b"Content-Security-Policy" in page.read_bytes()
    again = tmp_path / "again.html"
    assert parprof("report", "--html", again, second).returncode == 0
    assert again.read_bytes() == page.read_bytes()


def test_threads_are_told_apart(build: Any, tmp_path: Path) -> None:
    """Two threads that read one cell in turn; with all merged, one routine has both."""
    program, output = build(WORKLOADS / "input_figures.c", "gcc"), tmp_path / "threads.json"
    done = parprof("input", "--by-thread", "-q", "-o", output, "--", program, "60")
    assert done.returncode == 0 and b" in thread 0" in done.stdout
    found = json.loads(output.read_bytes())
    turns = [one for one in found["routines"] if one["name"] == "take_turns"]
    assert [one["calls"] for one in turns] == [1, 1] and len({one["thread"] for one in turns}) == 2
    assert sorted(one["points"][0]["induced"] for one in turns) == [59, 60]
    assert json.loads(parprof("report", "--json", output).stdout) == found


def test_a_routine_is_plotted(build: Any) -> None:
    program = build(WORKLOADS / "input_algorithms.c", "gcc")
    done = parprof("input", "-q", "--routine", "^insertion", "--", program)
    text = done.stdout.decode()
    assert "insertion_sort (input_algorithms.c:" in text and "n (input, cells)" in text
    assert "merge_sort" not in text
    missing = parprof("input", "-q", "--routine", "insertoin_srt", "--", program)
    assert missing.returncode == 2
    assert b"matches none of" in missing.stderr and b"near it: insertion_sort" in missing.stderr


def test_without_parprof_the_program_just_runs(build: Any) -> None:
    program = build(WORKLOADS / "input_figures.c", "gcc")
    assert subprocess.run([program, "10"], capture_output=True, timeout=60).returncode == 0


CALLED = """
#include <stdlib.h>
static volatile long sink;
__attribute__((noinline)) long sum(const long *from, long n) { long s = 0; while (n--) s += from[n]; return sink = s; }
__attribute__((noinline)) long few(const long *from, long n) { return sum(from, n) + 1; }
__attribute__((noinline)) long pairs(const long *from, long n) {
    long s = 0; for (long i = 0; i < n; i++) s += sum(from, n); return s + 1;
}
__attribute__((noinline)) long deep(const long *from, long n) { return n ? deep(from, n - 1) + 1 : few(from, 3); }
int main(void) {
    long *values = malloc(8000);
    for (long at = 0; at < 1000; at++) values[at] = at;
    for (long n = 10; n <= 100; n += 10) { sink = few(values, n); sink = pairs(values, n); }
    sink = deep(values, 50);
    return 0;
}
"""


@pytest.mark.parametrize("how", ["valgrind", "gcc"])
def test_contexts_tell_callers_apart(build: Any, how: str, tmp_path: Path) -> None:
    source, output = tmp_path / "called.c", tmp_path / "called.json"
    source.write_text(CALLED)
    program = build(source, how)
    done = parprof("input", "--contexts", "-q", "-o", output, "--routine", "^(sum|few|deep)$", "--", program)
    assert done.returncode == 0, done.stderr.decode()
    assert b"sum (called.c:4) called by pairs < main" in done.stdout
    found = json.loads(output.read_bytes())
    own = [one for one in found["routines"] if one["name"] in ("sum", "few", "deep")]
    calls = {
        (one["name"], tuple(one["callers"][one["callers"].index("main") :])): one["calls"] for one in own
    }
    assert calls == {
        ("sum", ("main", "few")): 10,
        ("sum", ("main", "pairs")): 550,
        ("sum", ("main", "deep", "few")): 1,
        ("few", ("main",)): 10,
        ("few", ("main", "deep")): 1,
        ("deep", ("main",)): 51,
    }
    assert json.loads(parprof("report", "--json", output).stdout) == found
    plain = measure(program)
    assert sum(one["calls"] for one in plain["routines"] if one["name"] == "sum") == 561
    assert all(one["callers"] == [] for one in plain["routines"])


def test_existing_objects_of_gcc_need_no_new_link(tmp_path: Path) -> None:
    """Programs that gcc made with -fsanitize=thread, and objects of both compilers. Blocks were not asked for."""
    source, program = tmp_path / "plain.c", tmp_path / "plain"
    source.write_text(CALLED)
    subprocess.run(["gcc", "-O1", "-g", "-fsanitize=thread", "-o", program, source], check=True)
    found = [measure(program)]
    for compiler in ("gcc", "clang"):
        unit = tmp_path / f"{compiler}.o"
        subprocess.run([compiler, "-O1", "-g", "-fsanitize=thread", "-c", "-o", unit, source], check=True)
        done = parprof("cc", "--input", "--", compiler, "-o", tmp_path / compiler, unit)
        assert done.returncode == 0, done.stderr.decode()
        found.append(measure(tmp_path / compiler))
    for one in found:
        assert (
            one["tool"] == "tsan"
            and one["cost_unit"] == "ns"
            and "-fsanitize-coverage=trace-pc" in one["notes"][0]
        )
        assert sum(point["calls"] for point in points(one, "sum")) == 561
        assert {point["trms"] for point in points(one, "pairs")} == set(range(10, 101, 10))


def test_selects_of_sqlite_are_linear_in_what_they_read(tmp_path: Path) -> None:
    """The paper's mysql_select: rows come through a cache of pages, so that rms ends to grow with the table."""
    rows = (100, 200, 400, 800, 1600, 3200, 6400)
    database, queries = tmp_path / "tables.db", tmp_path / "queries.sql"
    with sqlite3.connect(database) as connection:
        for n in rows:
            connection.execute(f"create table t{n}(a integer primary key, b text)")
            connection.executemany(f"insert into t{n}(b) values(?)", [(f"row {at} " * 4,) for at in range(n)])
    connection.close()
    queries.write_text("".join(f"select * from t{n};\n" for n in rows))
    output = tmp_path / "sqlite.json"
    command = ["sqlite3", "-cmd", "pragma cache_size=20", database, f".read {queries}"]
    done = parprof("input", "--tool", "valgrind", "-q", "-o", output, "--", *command)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(output.read_bytes())
    selects = [
        one
        for one in found["routines"]
        if len(one["points"]) in (7, 8) and one["inclusive_percent"] > 50 and one["external_percent"] > 50
    ]
    assert selects
    for select in selects:
        assert select["fit"]["model"] == "n", select["name"]
        assert select["fit"]["exponent"] == pytest.approx(1.0, abs=0.1)
        largest = select["points"][-3:]
        assert largest[2]["trms"] > 3 * largest[0]["trms"] and largest[2]["rms"] < 1.2 * largest[0]["rms"]


def test_children_are_counted_too(build: Any, tmp_path: Path) -> None:
    program = build(WORKLOADS / "input_figures.c", "valgrind")
    done = parprof("input", "-q", "-o", tmp_path / "o.json", "--", "sh", "-c", f"{program} 20; true")
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads((tmp_path / "o.json").read_bytes())
    assert sizes(found, "consumer")[0] == 20 and found["totals"]["processes"] >= 2
