"""The control socket: how `parprof attach`, `top` and `status` talk to a running parprofd (docs/control.md)."""

from __future__ import annotations

DEFAULT_SOCKET = "/run/parprofd/control.sock"
