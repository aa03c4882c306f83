# SPDX-License-Identifier: Apache-2.0
"""A real browser for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of a module."""
    with Browser(tmp_path_factory.mktemp("browser")) as it:
        yield it


@pytest.fixture
def tab(browser: Browser) -> Iterator[Browser]:
    """A page in it, about which it must not complain."""
    browser.complaints.clear()
    browser.resize(1000)
    yield browser
    assert not browser.complaints
