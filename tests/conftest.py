"""For all tests: no time limits on single examples; what a busy machine spoilt is tried again, and counted.

The tests in ``kernel/`` and ``e2e/`` compare what real programs did with what we measured of them, by the clock, and
some others wait for children and servers, on machines whose cores others use too (a virtual machine's neighbours, a
build beside). Of 2,400 tests one or two then fail in a run, each time others. Those are run again, up to twice and
after a pause; a defect fails all three times. More than `MAX_SPOILT` tests that needed it are no bad luck: the run
fails, whatever came of them in the end.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import parts
import reruns
from parprof.session.lifecycle import Life

settings.register_profile("parprof", deadline=None)
settings.load_profile("parprof")
Life.strict = True
os.environ.pop("COLUMNS", None)  # pytest-xdist has set it: reports are as wide as that
# what pytest makes of test modules is kept, also where PYTHONDONTWRITEBYTECODE is set: each worker makes it of all of
# them, whichever it runs, and took ten seconds for that
sys.dont_write_bytecode = False

BOOTS_A_MACHINE = "system"
BOOT_TIMEOUT_S = 1200
"""Of a test that also boots systemd, or builds a package and installs it."""
MAX_SPOILT = 5

spoilt: dict[str, str] = {}
"""What was run again, by its node, and how the last of its failures began."""
other_part = pytest.StashKey[parts.Results]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parts.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    parts.forget(config)
    config.stash[other_part] = parts.take(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # behind nohup or `&`: children would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    reruns.tell_at_once(session.config)


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    parts.divide(items, here)
    for item in items:
        part = parts.folder_of(item.path, here)
        if part != BOOTS_A_MACHINE:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=3))
        if part == BOOTS_A_MACHINE:
            item.add_marker(pytest.mark.timeout(BOOT_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """What all tests are stays until the end: a quarter of the CPU time went into looking for garbage there."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures' own
        spoilt[report.nodeid] = parts.reason(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    spoilt.update(
        (one.nodeid, parts.reason(one)) for one in session.config.stash[other_part].get("rerun", ())
    )
    if len(spoilt) > MAX_SPOILT or parts.failed(session.config.stash[other_part]):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if spoilt:
        verdict = "too many: the run fails" if len(spoilt) > MAX_SPOILT else f"up to {MAX_SPOILT} may"
        terminalreporter.write_line(f"{len(spoilt)} tests were run again ({verdict}):")
        for test, why in sorted(spoilt.items()):
            terminalreporter.write_line(f"  {test}: {why}")
    parts.leave(config, terminalreporter.stats, exitstatus)
    parts.add(terminalreporter.stats, config.stash[other_part])
