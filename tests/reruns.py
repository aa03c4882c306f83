# SPDX-License-Identifier: Apache-2.0
"""Tests that are run again: what many share is made anew for them, and no message of theirs waits.

Where tests run in several processes each test of a worker is told to the controller, and asked about, over a socket:
two small messages, the first of which nobody answers. TCP holds back the second until the first is acknowledged, which
takes 40 ms: of each test.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import pytest

Made = TypeVar("Made")


class MadeForAll(Generic[Made]):
    """Something dear that many tests look at, such as a program's recording: a module's fixture.

    A test that asks a second time is run again as it failed: with the same recording it would fail once more.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._made: Made | None = None
        self._looked: set[str] = set()

    def take(self, test: str) -> Made:
        """What this test (a node's name) has not looked at yet."""
        if self._made is None or test in self._looked:
            self._made = self._make()
            self._looked.clear()
        self._looked.add(test)
        return self._made


def tell_at_once(config: pytest.Config) -> None:
    """Hold no message back. Without workers there are none."""
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
