"""What some unit tests share: each says that it wants it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import scale_programs
from parprof.files.dso_cache import DsoCache
from parprof.symbols.symbolizer import Symbolizer


@pytest.fixture
def cache() -> Iterator[DsoCache]:
    """What is known of files, from scratch."""
    with DsoCache() as out:
        yield out


@pytest.fixture(scope="module")
def symbolizer() -> Iterator[Symbolizer]:
    """One for all tests of a module: its workers take a while to start."""
    with Symbolizer() as out:
        yield out


@pytest.fixture(scope="module")
def new_cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that was made before is there, and nobody is asked for debug information."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARPROF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("DEBUGINFOD_URLS", raising=False)
        yield


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A directory that other users can get to."""
    for parent in [tmp_path, *tmp_path.parents]:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    return tmp_path


@pytest.fixture
def span_test_clock(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Under `parprof scale`, which runs in this very process, programs say themselves how long they work.

    The library is there already, of this checkout; all else that is kept is of these tests, of all workers.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    monkeypatch.setenv("PARPROF_SPAN_CLOCK", "test")
    scale_programs.put_library_into(common / "scale-cache")
    monkeypatch.setenv("PARPROF_CACHE", str(common / "scale-cache"))
