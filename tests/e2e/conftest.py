# SPDX-License-Identifier: Apache-2.0
"""What some tests of the commands and the daemon share: each says that it wants it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """One that every user can enter, unlike those of pytest."""
    made = Path(tempfile.mkdtemp(prefix="parprof-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A real browser, for the tests of pages: one for all tests of a module."""
    with Browser(tmp_path_factory.mktemp("browser")) as it:
        yield it


@pytest.fixture
def tab(browser: Browser) -> Iterator[Browser]:
    """A page in it, about which it must not complain."""
    browser.complaints.clear()
    browser.resize(1000)
    yield browser
    assert not browser.complaints
