"""What all tests with real BPF share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def a_heap_of_their_own() -> Iterator[None]:
    """These tests hold sessions of ours in this very process, beside what hundreds of tests before have left: a command
    has no such heap, which the collector would walk through while libraries come each 10 ms."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
