# SPDX-License-Identifier: Apache-2.0
"""Java without any option for the JVM, compiled and interpreted: tests/workloads/java/Phases.java, where there is a
JDK."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from profiling import ROOT
from reports import report_of

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not shutil.which("javac"), reason="needs a JDK: apt install openjdk-17-jdk-headless"),
]
SOURCE = ROOT / "tests/workloads/java/Phases.java"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program is."""
    folder = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-d", folder, SOURCE], check=True)
    return folder


def parprof(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "parprof", *map(str, words)], check=True)


def recorded(profile: Path, *command: object) -> dict[str, Any]:
    parprof("record", "-q", "--no-report", "-o", profile, "--", *command)
    return report_of(profile)


def samples_below(report: dict[str, Any], *names: str) -> int:
    """How many samples have these functions on their call path, in this order."""

    def is_on(frames: Iterable[str]) -> bool:
        rest = iter(frames)
        return all(name in rest for name in names)

    return sum(path["samples"] for path in report["paths"] if is_on(path["frames"]))


def early(report: dict[str, Any]) -> tuple[int, float]:
    """Samples in Java's threads from before the JVM was known, when nobody could tell what its interpreter ran, and
    their seconds. Where the main thread made them is told to the end as it was seen then."""
    entry = "thread_native_entry(Thread*)"
    paths = [path for path in report["paths"] if entry in (frames := path["frames"])
             and "Interpreter" in frames[frames.index(entry):]]  # fmt: skip
    return sum(path["samples"] for path in paths), sum(path["work_s"] for path in paths)


def nameless(report: dict[str, Any]) -> float:
    """The share of samples with code of the JVM's of which no name is known."""
    of_none = sum(path["samples"] for path in report["paths"] if "[anon]" in path["frames"])
    return of_none / report["totals"]["samples"]


@pytest.mark.parametrize("how", ["compiled", "interpreted"])
def test_a_lock(classes: Path, tmp_path: Path, how: str) -> None:
    """Whole call paths, from the function that the thread was made for."""
    options = ["-Xint"] if how == "interpreted" else []
    report = recorded(tmp_path / "lock.pb.gz", "java", *options, "-cp", classes, "Phases", "lock", 3)
    all_of_it = samples_below(report, "Phases.roots")
    assert all_of_it > 0.7 * report["totals"]["samples"]
    whole = samples_below(report, "Phases.lambda$lock$1", "Phases.locked", "Phases.roots")
    samples, seconds = early(report)
    assert whole > 0.9 * (all_of_it - samples)
    assert seconds < 1, (
        "some tenths of a second, or what it takes to read the JVM where others have the cores"
    )
    assert nameless(report) < 0.05
    assert any(cause["function"].startswith("Phases.") for cause in report["causes"])
    (roots,) = [row for row in report["functions"] if row["name"] == "Phases.roots"]
    assert roots["file"] == "Phases.java" and 18 <= roots["line"] <= 21


def test_a_stream(classes: Path, tmp_path: Path) -> None:
    """The program's own loop is interpreted, then replaced while it runs; of the library's the call path is whole."""
    report = recorded(tmp_path / "serial.pb.gz", "java", "-cp", classes, "Phases", "serial", 3)
    alone = samples_below(report, "Phases.main", "Phases.serial", "Phases.alone")
    assert alone > 0.8 * samples_below(report, "Phases.alone") > 0
    assert samples_below(report, "Phases.serial", "java.util.stream.IntPipeline.forEach") > 0
    first = report["causes"][0]
    assert first["path"] and any(name.startswith("Phases.") for name in first["path"])


def test_a_deadlock(classes: Path, tmp_path: Path) -> None:
    """Nothing happens, but what the JVM does by itself: it looks again whether a lock is free, at least once a second,
    and where a thread slept before that is not known then."""
    command = ["java", "-cp", classes, "Phases", "deadlock", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hangs:
        try:
            assert hangs.stdout is not None and hangs.stdout.readline() == "ready\n"
            parprof("attach", "-q", "--no-report", "-d", 3, "-o", tmp_path / "dead.pb.gz", hangs.pid)
        finally:
            hangs.kill()
    report = report_of(tmp_path / "dead.pb.gz")
    waits = {row["name"]: row["inclusive"]["wait_s"] for row in report["functions"]}
    assert 0.4 < waits["Phases.takeBoth"] / (2 * report["elapsed_s"]) < 1.01
    assert "Phases.takeBoth" in {cause["function"] for cause in report["causes"]}


def test_facts_that_were_saved(classes: Path, tmp_path: Path) -> None:
    facts, profile = tmp_path / "jvm.facts", tmp_path / "first.pb.gz"
    parprof(
        "record", "-q", "--no-report", "--save-facts", facts, "-o", profile, "--",
        "java", "-cp", classes, "Phases", "lock", 1,
    )  # fmt: skip
    names = [{row["name"] for row in report_of(file)["functions"]} for file in (profile, facts)]
    assert names[0] == names[1] and "Phases.locked" in names[0]


def test_strings_that_are_compared_in_line(tmp_path: Path) -> None:
    """C2's code for that keeps a word below its frame: a tenth of the stacks ended there, and its callers were not
    known."""
    subprocess.run(["javac", "-d", tmp_path, SOURCE.parent / "Strings.java"], check=True)
    report = recorded(tmp_path / "strings.pb.gz", "java", "-XX:+UseSerialGC", "-cp", tmp_path, "Strings")
    cut = samples_below(report, "[truncated]", "java.util.TreeMap.merge")
    assert samples_below(report, "Strings.main", "Strings.count", "java.util.TreeMap.merge") > 100
    assert cut < 0.02 * report["totals"]["samples"]
