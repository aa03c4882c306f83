# SPDX-License-Identifier: Apache-2.0
"""`parprof calls`, as users call it, on real programs. Needs root."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from busy import busy_loops
from parprof.process.identity import used_cpu_s
from parprof.process.threads import waited_for_cpu_s

pytestmark = pytest.mark.beside

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "tests/workloads/build"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
PROGRAM = BUILD / "calls_truth"


def parprof(*arguments: str | int | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parprof", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, env=ENVIRONMENT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def running(*phases: str) -> Iterator[subprocess.Popen[str]]:
    """The program in these phases, from its line on standard input on."""
    with subprocess.Popen(
        [PROGRAM, "wait", *phases], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def result_of(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def test_a_command_is_counted_from_its_first_call_on(tmp_path: Path) -> None:
    out = tmp_path / "calls.json"
    done = parprof(
        "calls", "-f", "leaf", "-f", "set_up", "--json", "-o", out, "--", PROGRAM, "sequential", "concurrent"
    )
    assert done.returncode == 0, done.stderr
    loaded = result_of(out)
    rows = {row["name"]: row for row in loaded["routines"]}
    assert rows["leaf"]["sequential"]["entries"] == 1009 and rows["leaf"]["concurrent"]["entries"] == 1006
    assert sum(rows["leaf"]["sequential"]["per_cpu"]) == 1009
    assert sum(rows["leaf"]["concurrent"]["per_cpu"]) == 1006
    arcs = {(arc["caller"], arc["callee"]): arc for arc in loaded["arcs"]}
    assert arcs["set_up", "leaf"]["sequential"]["count"] == 1009
    assert arcs["sweep", "leaf"]["concurrent"]["count"] == 1006
    assert arcs["set_up", "leaf"]["file"].endswith("calls_truth.c") and arcs["set_up", "leaf"]["line"] > 0
    assert rows["set_up"]["callees"]["ss"] == {"count": 1009}, "Cedar's record of the caller"
    assert loaded["schema"] == 1 and loaded["process"]["n_w_source"] == "scheduler"
    assert loaded["lost"].pop("user_stack", 0) <= 2, "samples in exec and exit, which have no stack"
    assert not loaded["lost"]


def test_the_table_begins_with_what_to_do() -> None:
    done = parprof("calls", "-f", "leaf", "-o", "-", "--", PROGRAM, "sequential")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("advice: leaf ")
    time = r"(?:[\d.]+ us )?"  # of a call, where a sample hit one
    assert re.search(rf"1,009 +1,009 +{time}leaf \(calls_truth\.c:\d+\)", done.stdout)
    assert re.search(r"<- set_up \(calls_truth\.c:\d+\)", done.stdout)


def test_the_programs_own_code_is_the_exit_code() -> None:
    done = parprof("calls", "-f", "leaf", "--", PROGRAM, "sequential", "exit")
    assert done.returncode == 3 and "1,009" in done.stderr
    missing = parprof("calls", "-f", "leaf", "--", "/nonexistent/program")
    assert missing.returncode == 127


def test_a_program_that_throws_lives() -> None:
    done = parprof("calls", "-f", "thrower::*", "--", BUILD / "calls_throw")
    assert done.returncode == 0 and "caught 999" in done.stdout
    assert "1,999" in done.stderr and "thrower::Thrower::risky(int)" in done.stderr


def test_times_of_a_program_that_throws_through_the_timed_function(tmp_path: Path) -> None:
    """Without a return probe: it lives, and its calls end where they are caught."""
    out = tmp_path / "calls.json"
    options = ("--times", "--force", "-f", "thrower::*", "-f", "main")
    # it sleeps between two calls: else main has less time of its own than what its 5,000 probes took is wrong by
    done = parprof("calls", *options, "--json", "-o", out, "--", BUILD / "calls_throw", "20")
    assert done.returncode == 0 and "caught 999" in done.stdout, done.stderr
    rows = {row["name"]: row["times"] for row in result_of(out)["routines"]}
    risky = rows["thrower::Thrower::risky(int)"]
    assert risky["sequential"]["ended"] == 1999 and risky["unwound"] == 999 and not risky["unseen"]
    assert 0 < risky["elapsed_s"] < rows["main"]["elapsed_s"]
    assert rows["main"]["sequential"]["ended"] == 1


def test_times_of_a_running_program_that_throws_within_the_budget(tmp_path: Path) -> None:
    """Its calls come after the look, of which nothing is thrown away where calls are timed: all are exact."""
    program, out = tmp_path / "calls_throw", tmp_path / "calls.json"
    source = ROOT / "tests/workloads/calls_throw.cpp"
    subprocess.run(["g++", "-std=c++17", "-O2", "-g", source, "-o", program], check=True)
    command = [sys.executable, "-m", "parprof", "calls", "--times", "--budget", "40", "-f", "thrower::*"]
    command += ["--json", "-o", str(out)]
    with subprocess.Popen(
        [program, "1500"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        time.sleep(0.2)
        with subprocess.Popen(
            [*command, str(process.pid)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        ) as counting:
            assert counting.stderr and process.stdin and process.stdout
            assert "counting" in (estimate := counting.stderr.readline()), estimate
            process.stdin.close()
            assert "caught 999" in process.stdout.read()
            _, messages = counting.communicate(timeout=30)
        assert process.wait() == 0 and counting.returncode == 0, messages
    (row,) = result_of(out)["routines"]
    times = row["times"]
    assert row["calls"] == 1999 and times["sequential"]["ended"] == 1999
    assert (times["unwound"], times["unseen"], times["open"]) == (999, 0, 0)


def test_times_of_a_running_process() -> None:
    with running("storm=1000") as process:
        begin(process)
        done = parprof("calls", process.pid, "--times", "--force", "-f", "leaf", "-d", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"elapsed +direct +cpu +direct cpu +beside +each +cpu each +longest +routine", done.stdout
    )
    assert re.search(r"ms .* leaf$", done.stdout, re.M)


def cpus_had(pid: int, seconds: float) -> float:
    """How much of the CPUs a program has meanwhile."""
    begun_s, cpu_s = time.monotonic(), used_cpu_s(pid)
    time.sleep(seconds)
    return (used_cpu_s(pid) - cpu_s) / (time.monotonic() - begun_s)


@pytest.mark.alone
@pytest.mark.parametrize("others", [0, 2])
def test_millions_of_calls_a_second_are_refused_with_an_estimate(others: int) -> None:
    """What it would cost is right within a factor of two, whatever else runs."""
    with busy_loops(others), running("storm=1", "storm=1000") as process:
        begun_cpu_s = used_cpu_s(process.pid)
        begin(process)
        assert process.stdout
        calls = float(process.stdout.readline())
        bare_cpu_rate = calls / (used_cpu_s(process.pid) - begun_cpu_s)
        begun_s, waited_s = time.monotonic(), waited_for_cpu_s(process.pid)
        refused = parprof("calls", process.pid, "-f", "leaf", "-d", "2")
        is_alone = waited_for_cpu_s(process.pid) - waited_s < 0.05 * (time.monotonic() - begun_s)
        assert refused.returncode == 1 and refused.stdout == "" and "--force" in refused.stderr
        found = re.search(
            r"([\d,]+) calls/s x .* (?:run (?:at least )?([\d.]+) times|take ([\d.]+) %)", refused.stderr
        )
        assert found, refused.stderr
        rate = float(found[1].replace(",", ""))
        # told as a share where it is less than all that the program takes: traps are cheap on new machines
        slowdown = float(found[2]) if found[2] else 1 + float(found[3]) / 100
        if is_alone:  # of others it is not known yet whether it waited at the look's begin or end
            assert bare_cpu_rate / 2 < rate < bare_cpu_rate * 2, "it keeps a CPU busy"
        command = [
            sys.executable,
            "-m",
            "parprof",
            "calls",
            str(process.pid),
            "-f",
            "leaf",
            "-d",
            "2",
            "--force",
        ]
        with subprocess.Popen(
            [*command, "--json"], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as forced:
            assert forced.stdout and forced.stderr
            assert "counting" in forced.stderr.readline()
            cpus = cpus_had(process.pid, 1.5)
            loaded = json.loads(forced.stdout.read())
        assert forced.returncode == 0
        counted_cpu_rate = loaded["routines"][0]["calls"] / loaded["duration_s"] / cpus
        assert bare_cpu_rate / counted_cpu_rate / 2 < slowdown < bare_cpu_rate / counted_cpu_rate * 2
        assert process.poll() is None, "it lives"


RECURSION = """
#include <stdio.h>
#include <time.h>
static volatile long sum;
__attribute__((noinline, noclone)) long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int main(void)
{
	clock_t begun, took, least = 1L << 40;
	for (int i = 0; i < 10; i++) {	/* the quickest, which no other program on the same core has slowed */
		begun = clock();
		sum = fib(32);	/* 7,049,155 calls */
		took = clock() - begun;
		least = took < least ? took : least;
	}
	printf("%f\\n", (double)least / CLOCKS_PER_SEC);
	fflush(stdout);
	for (;;)
		sum += fib(sum ? 32 : 31);
}
"""


def test_of_hundreds_of_millions_of_calls_a_second_a_bound_is_told(tmp_path: Path) -> None:
    """What the program takes itself cannot be seen beside what counting takes."""
    source, program = tmp_path / "recursion.c", tmp_path / "recursion"
    source.write_text(RECURSION)
    subprocess.run(["gcc", "-O1", source, "-o", program], check=True)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        rate = 7_049_155 / float(process.stdout.readline())
        refused = parprof("calls", process.pid, "-f", "fib", "-d", "1")
        process.kill()
    found = re.search(r"at least ([\d,]+) calls/s .* it would run at least [\d.]+ times", refused.stderr)
    assert refused.returncode == 1 and found, refused.stderr
    assert float(found[1].replace(",", "")) < rate


@pytest.mark.alone
def test_a_command_that_is_too_dear_runs_on_uncounted() -> None:
    done = parprof("calls", "-f", "leaf", "--", PROGRAM, "storm=1.5")
    assert done.returncode == 0 and float(done.stdout) > 2e5
    assert "counting ended after" in done.stderr and "--force" in done.stderr


def test_what_cannot_be_counted_is_said_with_what_to_do() -> None:
    with running() as process:
        for functions, expected in (
            (["leef"], "did you mean leaf"),
            (["*"], "narrower pattern"),
            (["nowhere.c:12"], "compile with -g"),
            (["calls_truth.c:1"], "no function begins"),
            (["0x10"], "no function is there"),
        ):
            done = parprof("calls", process.pid, *(word for f in functions for word in ("-f", f)))
            assert done.returncode in (1, 2) and expected in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1, "one line"
        assert process.poll() is None
    gone = parprof("calls", process.pid, "-f", "leaf")
    assert gone.returncode == 1 and "no process" in gone.stderr


def test_libraries_that_a_program_starts_with_do_not_come_later() -> None:
    """For them it is stopped, after an exec too: nothing is missed."""
    done = parprof("calls", "--force", "-f", "malloc", "--", "sh", "-c", "exec ls /")
    assert done.returncode == 0 and " malloc" in done.stderr
    assert "loaded later" not in done.stderr


def test_calls_in_a_library_that_is_loaded_later_are_counted_from_the_first_on(tmp_path: Path) -> None:
    """A command is stopped for that as well; one of which all is found is not. Python's extensions come so."""
    plug, host = tmp_path / "plug.so", tmp_path / "host"
    (tmp_path / "plug.c").write_text(
        "static int calls; __attribute__((noinline)) int plugged(void) { return ++calls; }\n"
        "__attribute__((constructor)) static void begin(void) { plugged(); }\n"
    )
    (tmp_path / "host.c").write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n"
        "__attribute__((noinline)) int own(int n) { return n + 1; }\n"
        "int main(int argc, char **argv) {\n"
        "    void *plug = dlopen(argv[1], RTLD_NOW);\n"
        '    int (*volatile step)(void) = (int (*)(void))dlsym(plug, "plugged"), n = 0;\n'
        "    for (int i = 0; i < 1009; i++) { step(); n = own(n); }\n"
        "    return n != 1009;\n}\n"
    )
    for command in (["-shared", "-fPIC", "-o", plug, tmp_path / "plug.c"], ["-o", host, tmp_path / "host.c"]):
        subprocess.run(["gcc", "-O1", *command], check=True)
    result = tmp_path / "calls.json"
    done = parprof("calls", "--force", "--json", "-o", result, "-f", "plugged", "-f", "own", "--", host, plug)
    assert done.returncode == 0, done.stderr
    counted = {row["name"]: row["calls"] for row in json.loads(result.read_text())["routines"]}
    assert counted == {"plugged": 1010, "own": 1009}
    assert "loaded later" not in done.stderr


def test_turns_of_a_loop_at_the_beginning_of_a_function_are_no_calls(tmp_path: Path) -> None:
    source, program = tmp_path / "turns.c", tmp_path / "turns"
    source.write_text(
        "#define PLAIN __attribute__((noinline, noclone))\n"
        "static PLAIN void walks(volatile int *p) { while ((*p)-- > 1); }\n"
        "PLAIN void spins(volatile int *p) { while ((*p)-- > 0); }\n"
        "void (*volatile pointer)(volatile int *) = spins;\n"
        "static PLAIN void around(void) { volatile int n = 7; pointer(&n); }\n"
        "int main(void) { for (int i = 0; i < 103; i++) { volatile int n = 5; walks(&n); around(); } return 0; }\n"
    )
    subprocess.run(["gcc", "-O2", "-g", "-fcf-protection=none", source, "-o", program], check=True)
    functions = ("-f", "walks", "-f", "spins", "-f", "around")
    done = parprof("calls", "--force", *functions, "--json", "--", program)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert {row["name"]: row["calls"] for row in loaded["routines"]} == {"walks": 103, "around": 103}
    assert any("spins cannot be counted: a loop" in note for note in loaded["notes"]), loaded["notes"]


def test_a_command_of_which_too_much_is_meant_does_not_stay_stopped() -> None:
    """It is stopped until its probes are in place, of which there are none: it runs to its end."""
    done = parprof("calls", "-f", "*", "--", PROGRAM, "storm=0.2")
    assert done.returncode == 0 and "narrower pattern" in done.stderr, (
        "its own exit code, and why it was not counted"
    )
    assert "UsageError" not in done.stderr, "a sentence for people"
    assert float(done.stdout) > 0, "what it says itself"


def test_a_function_that_is_inlined_everywhere(tmp_path: Path) -> None:
    """What to do instead is said, and does count."""
    source, program = tmp_path / "inlined.c", tmp_path / "inlined"
    source.write_text(
        "static volatile long sink;\n"
        "static inline void stepped(long x) { sink += x; }\n"
        "__attribute__((noinline)) static void around(long x) { stepped(x); }\n"
        "int main(void) { for (long i = 0; i < 509; i++) around(i); return getchar() != 'x'; }\n"
    )
    subprocess.run(["gcc", "-O2", "-g", "-include", "stdio.h", source, "-o", program], check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        refused = parprof("calls", process.pid, "-f", "stepped")
        process.kill()
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert (
        "debug information of inlined has the name: a function that is inlined wherever it is called; count what"
        in refused.stderr
    )
    counted = parprof("calls", "-f", "stepped", "-f", "around", "--", program)
    assert "509" in counted.stderr and "inlined wherever it is called" in counted.stderr


SAME_NAME = """
static volatile long sink;
__attribute__((noinline)) static void paced(long x) { sink += x; }
void PART(void) { for (long i = 0; i < CALLS; i++) paced(i); }
"""


@pytest.mark.parametrize("with_lines", [True, False])
def test_two_functions_of_one_name(tmp_path: Path, with_lines: bool) -> None:
    """Debug information tells them apart, their times too; without it they are one row, which says so."""
    main, program, out = tmp_path / "main.c", tmp_path / "program", tmp_path / "calls.json"
    main.write_text("void first(void), second(void); int main(void) { first(); second(); return 0; }\n")
    objects = []
    for part, calls in (("first", 211), ("second", 307)):
        source, made = tmp_path / f"{part}.c", tmp_path / f"{part}.o"
        source.write_text(SAME_NAME.replace("PART", part).replace("CALLS", str(calls)))
        subprocess.run(["gcc", "-O2", *["-g"] * with_lines, "-c", source, "-o", made], check=True)
        objects.append(made)
    subprocess.run(["gcc", main, *objects, "-o", program], check=True)
    done = parprof("calls", "--times", "--force", "-f", "paced", "--json", "-o", out, "--", program)
    assert done.returncode == 0, done.stderr
    loaded = result_of(out)
    found = {
        Path(row["file"]).name: (row["calls"], row["times"]["sequential"]["ended"])
        for row in loaded["routines"]
    }
    together = [note for note in loaded["notes"] if "2 functions have this name" in note]
    if with_lines:
        assert found == {"first.c": (211, 211), "second.c": (307, 307)} and not together
    else:
        assert found == {"": (518, 518)} and together


@pytest.mark.parametrize("words", [[], ["-f", "f"], ["1"], ["1", "-f", ""], ["1", "-f", "f", "-d", "0"],
                                   ["1", "-f", "f", "--budget", "0"], ["1", "-f", "f", "--", "x"]])  # fmt: skip
def test_usage(words: list[str]) -> None:
    done = parprof("calls", *words)
    assert done.returncode == 2, done.stderr


def test_a_line_and_an_address_name_a_function() -> None:
    text = (Path(__file__).parents[1] / "workloads/calls_truth.c").read_text().splitlines()
    line = next(number for number, words in enumerate(text, 1) if "sink = x * 3;" in words)
    symbols = subprocess.run(["nm", PROGRAM], capture_output=True, text=True, check=True).stdout
    address = next(words.split()[0] for words in symbols.splitlines() if words.endswith(" leaf"))
    for function in (f"calls_truth.c:{line}", f"0x{address}"):
        done = parprof("calls", "-f", function, "--", PROGRAM, "sequential")
        assert "1,009" in done.stderr, done.stderr


def test_a_stripped_program_says_so(tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-s", PROGRAM, "-o", stripped], check=True)
    with subprocess.Popen([stripped, "endless"]) as process:
        time.sleep(0.2)
        done = parprof("calls", process.pid, "-f", "leaf")
        assert process.poll() is None
        process.kill()
    assert done.returncode == 1 and "no function leaf has code of its own" in done.stderr


def test_interrupting_ends_the_count_and_not_the_program() -> None:
    with subprocess.Popen([PROGRAM, "endless"]) as process:
        time.sleep(0.2)
        with subprocess.Popen(
            [sys.executable, "-m", "parprof", "calls", str(process.pid), "-f", "leaf"],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as counting:  # fmt: skip
            assert counting.stderr
            assert "estimate" in counting.stderr.readline()
            counting.send_signal(signal.SIGINT)
            out, err = counting.communicate(timeout=30)
        assert counting.returncode == 0, err
        assert "none of the functions was called" in out
        assert process.poll() is None
        process.kill()


EARLY = """
#include <unistd.h>
void early(void);
__asm__(".globl early\\n.type early, @function\\nearly: push %rbx\\npop %rbx\\nret\\n.size early, . - early\\n");
int main(void)
{
	while (*(volatile unsigned char *)early != 0xcc)	/* a breakpoint: it is probed */
		usleep(100);
	usleep(100000);	/* counting begins when all probes are there, and the look lasts 250 ms from then */
	for (int i = 0; i < 53; i++)
		early();
	for (;;)
		pause();
}
"""


@pytest.mark.alone
def test_calls_during_the_look_count(tmp_path: Path) -> None:
    """Which come soon after the probes, and never again."""
    source, program, out = tmp_path / "early.c", tmp_path / "early", tmp_path / "calls.json"
    source.write_text(EARLY)
    subprocess.run(["gcc", "-O2", "-g", "-rdynamic", source, "-o", program], check=True)
    with subprocess.Popen([program]) as process:
        try:
            done = parprof("calls", process.pid, "-f", "early", "-d", "1", "--json", "-o", out)
        finally:
            process.kill()
    assert done.returncode == 0, done.stderr
    loaded = result_of(out)
    assert [row["calls"] for row in loaded["routines"]] == [53]
    assert [arc["sequential"]["count"] for arc in loaded["arcs"]] == [53]


def test_a_program_that_ends_is_reported_on() -> None:
    with running("sequential") as process:
        with subprocess.Popen(
            [sys.executable, "-m", "parprof", "calls", str(process.pid), "-f", "leaf"],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as counting:  # fmt: skip
            assert counting.stderr
            assert "estimate" in counting.stderr.readline()
            begin(process)
            out, err = counting.communicate(timeout=30)
    assert counting.returncode == 0, err
    assert "1,009" in out
