# SPDX-License-Identifier: Apache-2.0
"""What pytest-rerunfailures costs where tests run in several processes.

Each test of a worker is told to the controller, and asked about, over a socket: two small messages, the first of which
nobody answers. TCP holds back the second until the first is acknowledged, which takes 40 ms: of each test.
"""

from __future__ import annotations

import socket

import pytest


def tell_at_once(config: pytest.Config) -> None:
    """Hold no message back. Without workers there are none."""
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
