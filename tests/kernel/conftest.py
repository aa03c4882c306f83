"""What all tests with real BPF share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def a_heap_of_their_own() -> None:
    """These tests hold sessions of ours in this very process, beside what hundreds of tests before have left: a command
    has no such heap, which the collector would walk through while libraries come each 10 ms. Nor have tests after
    them."""
    gc.unfreeze()  # what was alive for the module before may be garbage by now
    gc.collect()
    gc.freeze()
