"""What systemd is told: ready, reloading, alive, stopping. Does nothing where nobody listens.

The protocol is sd_notify(3): datagrams of VARIABLE=VALUE lines to the socket named in NOTIFY_SOCKET. (Sockets
that systemd hands over are `parprof.service.control.listening`'s.)
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

from parprof.untrusted import visible

_MAX_STATUS = 500


class Notifier:
    """The way to the service manager. For one thread: the loop's, so that the watchdog bites if it hangs."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Take the address and the watchdog's interval out of ``environment``, so that no child has them."""
        environment = os.environ if environment is None else environment
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", "")
        self._socket = _open(address)
        self.watchdog_s: float | None = None
        """How long the service manager waits for a sign of life; None: it does not watch."""
        if (
            self._socket
            and microseconds.isdigit()
            and int(microseconds)
            and process in ("", str(os.getpid()))
        ):
            self.watchdog_s = int(microseconds) / 1e6
        self._next_alive_s = 0.0
        self._status = ""

    def ready(self, status: str = "") -> bool:
        """Started, or reloaded."""
        return self._send("READY=1", *self._text(status))

    def reloading(self) -> bool:
        """The configuration is being read again; `ready` ends that."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def status(self, text: str) -> bool:
        """One line for ``systemctl status``; sent only when it differs from the last one."""
        lines = self._text(text)
        return self._send(*lines) if lines else True

    def stopping(self, status: str = "") -> bool:
        """On the way to the end."""
        return self._send("STOPPING=1", *self._text(status))

    def more_time(self, seconds: float) -> bool:
        """Starting, reloading or stopping takes up to ``seconds`` more from now on."""
        return self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def alive(self, now_s: float | None = None) -> bool:
        """A sign of life; call it in each turn of the loop. Sent at most at half of the watchdog's interval.

        ``now_s``: CLOCK_MONOTONIC.
        """
        if self.watchdog_s is None:
            return False
        now_s = time.monotonic() if now_s is None else now_s
        if now_s < self._next_alive_s:
            return False
        # Turns of the loop are not to be counted on to come in time for the very half.
        self._next_alive_s = now_s + self.watchdog_s / 4
        return self._send("WATCHDOG=1")

    def close(self) -> None:
        """Say nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _text(self, status: str) -> tuple[str, ...]:
        line = visible(status, _MAX_STATUS)
        if not line or line == self._status:
            return ()
        self._status = line
        return (f"STATUS={line}",)

    def _send(self, *lines: str) -> bool:
        """Whether it was sent. Never waits: a service manager that does not read must not stop the loop."""
        if self._socket is None:
            return False
        with suppress(OSError):
            self._socket.send("\n".join(lines).encode("utf-8", "replace"), socket.MSG_DONTWAIT)
            return True
        return False


def _open(address: str) -> socket.socket | None:
    """A socket that is connected to the address: a path, or ``@`` and an abstract name. None if there is none."""
    if address[:1] not in ("/", "@"):
        return None
    name = "\0" + address[1:] if address[0] == "@" else address
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(name)
    except (OSError, ValueError):
        connection.close()
        return None
    return connection
