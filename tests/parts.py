# SPDX-License-Identifier: Apache-2.0
"""One closing line for a test run in two parts.

`make test` runs tests that need no quiet machine several at a time, and after that those that need it for themselves
(which `divide` marks `QUIET`). Each part is a pytest of its own: the first leaves its results in a file
(``--leave-results FILE``), the second takes them as if they were its own (``--with-results FILE``), so that its summary
and exit code speak for both.

Those of `REAL_PROGRAMS` need the machine for themselves, unless they say that they do not (`BESIDE`): what they judge
is neither n_w nor a share of time, and is of processes, files and sockets of their own; or it is a time that the
program tells itself by the clock and the kernel's account, which is as true on a busy machine.
"""

from __future__ import annotations

import functools
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

Results = dict[str, list[Any]]
"""Reports by what the terminal calls them: "passed", "failed", "error", "skipped" and so on."""
REAL_PROGRAMS = ("kernel", "e2e", "system")
"""The folders of tests that compare what programs did with what was measured of them."""
ALONE, BESIDE = "alone", "beside"
"""Markers of modules and tests. The nearer one counts."""
QUIET = "quiet"
"""The marker of tests that need the machine for themselves, after `ALONE` and `BESIDE` were weighed. ``-m alone`` would
take tests that are marked `BESIDE` in a module that is marked `ALONE`: to pytest they have both."""
FIRST_PART, SECOND_PART = f"not {QUIET} and not slow", f"{QUIET} and not slow"
"""What ``-m`` is told for each part."""
_REPORTS = (pytest.TestReport, pytest.CollectReport)


def needs_the_machine(item: pytest.Item, folder: str) -> bool:
    """Whether a test is none to run beside others."""
    said = (mark.name for mark in item.iter_markers() if mark.name in (ALONE, BESIDE))
    return next(said, ALONE if folder in REAL_PROGRAMS else BESIDE) == ALONE


def divide(items: list[pytest.Item], tests: Path) -> None:
    """Mark those that are of the second part. ``tests``: the folder of `REAL_PROGRAMS`. Before ``-m`` is applied."""
    for item in items:
        if needs_the_machine(item, folder_of(item.path, tests)):
            item.add_marker(QUIET)


@functools.cache
def folder_of(module: Path, tests: Path) -> str:
    """The folder of ``tests`` that a module is in. There are thousands of tests, and hundreds of modules."""
    return module.relative_to(tests).parts[0]


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("parts", "one summary for two runs")
    group.addoption("--leave-results", metavar="FILE", help="write the results there, for --with-results")
    group.addoption("--with-results", metavar="FILE", help="report the results of another run with one's own")


def forget(config: pytest.Config) -> None:
    """What an earlier run has left must not speak for one that breaks off."""
    if path := config.getoption("leave_results"):
        Path(path).unlink(missing_ok=True)


def leave(config: pytest.Config, results: Results, exit_code: int) -> None:
    """Write the results to the file of ``--leave-results``, if the run came to its end."""
    if not (path := config.getoption("leave_results")) or hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist knows a part of them
    if exit_code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return
    left = {
        category: [_data(config, one) for one in reports if isinstance(one, _REPORTS)]
        for category, reports in results.items()
        if category  # the others are setups and teardowns that passed
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(left), encoding="utf-8")


def _data(config: pytest.Config, report: Any) -> dict[str, Any]:
    data: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
    data.pop("node", None)  # pytest-xdist's worker that ran it
    return data


def take(config: pytest.Config) -> Results:
    """The results in the file of ``--with-results``; none without that option.

    Raises: pytest.UsageError if the other run left none.
    """
    if not (path := config.getoption("with_results")):
        return {}
    try:
        left: dict[str, list[dict[str, Any]]] = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--with-results: the other run left no results: {error}") from None
    return {category: [_report(config, data) for data in reports] for category, reports in left.items()}


def add(results: Results, others: Results) -> None:
    """Count the others' results too."""
    for category, reports in others.items():
        results.setdefault(category, []).extend(reports)


def failed(results: Results) -> bool:
    """Whether there is one that makes a run fail."""
    return bool(results.get("failed") or results.get("error"))


def reason(report: Any) -> str:
    """Where a test failed, and the beginning of why, on one line; of what says nothing of that, nothing."""
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    if crash is None:
        return ""
    return textwrap.shorten(f"line {crash.lineno}: {crash.message}", 400)


def _report(config: pytest.Config, data: dict[str, Any]) -> Any:
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    if isinstance(report.longrepr, list):  # where and why it was skipped: a tuple, which JSON does not know
        report.longrepr = tuple(report.longrepr)
    return report
