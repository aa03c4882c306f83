"""The control socket: how `parprof attach`, `top` and `status` talk to a running parprofd (docs/control.md)."""

from __future__ import annotations

import os

DEFAULT_SOCKET = "/run/parprofd/control.sock"
_VARIABLE = "PARPROF_SOCKET"


def socket_path(given: str | None = None) -> str:
    """Where the daemon listens: as given, else ``PARPROF_SOCKET``, else the default."""
    return given or os.environ.get(_VARIABLE, "") or DEFAULT_SOCKET


def may_have_daemon() -> bool:
    """False if nothing is where the daemon listens: the client, which takes a while to import, need not be asked."""
    try:
        os.stat(socket_path())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # it says better what is wrong
    return True
