# SPDX-License-Identifier: Apache-2.0
"""Two runs of pytest with one closing line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import parts

TESTS = Path(__file__).resolve().parents[1]
CONFTEST = """
from pathlib import Path
import pytest, parts
other = pytest.StashKey()
def pytest_addoption(parser):
    parts.add_options(parser)
def pytest_configure(config):
    parts.forget(config)
    config.stash[other] = parts.take(config)
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    parts.divide(items, Path(__file__).parent)
def pytest_terminal_summary(terminalreporter, exitstatus, config):
    parts.leave(config, terminalreporter.stats, exitstatus)
    for category, reports in config.stash[other].items():
        for report in reports:
            terminalreporter.write_line(f"{report.nodeid} {category}: <{parts.reason(report)}>")
    parts.add(terminalreporter.stats, config.stash[other])
def pytest_sessionfinish(session):
    if parts.failed(session.config.stash[other]):
        session.exitstatus = 1
"""
FIRST = """
import pytest
def test_good(): pass
def test_skipped(): pytest.skip("no such thing")
"""
BROKEN = """
import pytest
def test_bad(): assert not "as it should be"
@pytest.fixture
def nothing(): raise OSError("no room")
def test_error(nothing): pass
"""
WITH_WORKERS = ["-p", "xdist", "-n", "2"]
SECOND = "def test_one(): pass\ndef test_two(): pass\n"


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Without the plugins that it needs not: to load them takes longer than all else."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-ra",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        *arguments,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("folder", "nearest_first", "alone"),
    [
        ("unit", [], False),
        ("unit", ["alone"], True),
        ("kernel", ["flaky"], True),
        ("kernel", ["beside"], False),
        ("kernel", ["alone", "beside"], True),
    ],
)
def test_who_needs_the_machine(folder: str, nearest_first: list[str], alone: bool) -> None:
    item: Any = SimpleNamespace(iter_markers=lambda: [SimpleNamespace(name=one) for one in nearest_first])
    assert parts.needs_the_machine(item, folder) is alone


MARKED = """
import pytest
pytestmark = pytest.mark.alone
def test_one(): pass
@pytest.mark.beside
def test_other(): pass
"""


def test_each_test_is_in_one_part(tmp_path: Path) -> None:
    """Also one of a module whose mark says otherwise."""
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/test_marked.py").write_text(MARKED)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for expression, name in ((parts.SECOND_PART, "test_one"), (parts.FIRST_PART, "test_other")):
        code, text = run(tmp_path, "--collect-only", "-m", expression)
        assert code == 0 and [line for line in text.splitlines() if "::" in line] == [
            f"kernel/test_marked.py::{name}"
        ], text


def test_make_runs_both_parts() -> None:
    commands = (TESTS.parent / "Makefile").read_text()
    for expression in (parts.FIRST_PART, parts.SECOND_PART):
        assert f'-m "{expression}"' in commands


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("conftest", CONFTEST), ("test_first", FIRST), ("test_second", SECOND)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize("workers", [[], WITH_WORKERS])
def test_both_are_counted(folder: Path, workers: list[str]) -> None:
    assert run(folder, *workers, "--leave-results", "left/results.json", "test_first.py")[0] == 0
    code, text = run(folder, "--with-results", "left/results.json", "test_second.py")
    assert code == 0 and "3 passed, 1 skipped in" in text.splitlines()[-1], text
    assert "no such thing" in text


def test_a_failure_of_the_first_is_one_of_both(folder: Path) -> None:
    (folder / "test_first.py").write_text(FIRST + BROKEN)
    assert run(folder, *WITH_WORKERS, "--leave-results", "results.json", "test_first.py")[0] == 1
    code, text = run(folder, "--with-results", "results.json", "test_second.py")
    assert code == 1 and "1 failed, 3 passed, 1 skipped, 1 error in" in text.splitlines()[-1], text
    assert "test_bad failed: <line 7: AssertionError: assert not 'as it should be'>" in text
    assert "test_error error: <line 9: OSError: no room>" in text and "test_good passed: <>" in text
    assert "FAILED test_first.py::test_bad" in text and "ERROR test_first.py::test_error" in text


def test_a_first_run_that_broke_off_is_a_failure(folder: Path) -> None:
    (folder / "results.json").write_text("{}")  # of the day before
    assert run(folder, "--leave-results", "results.json", "no_such_file.py")[0] == 4
    code, text = run(folder, "--with-results", "results.json", "test_second.py")
    assert code == 4 and "the other run left no results" in text
