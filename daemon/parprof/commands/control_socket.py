"""The option that says where the daemon listens."""

from __future__ import annotations

import argparse

from parprof.service.control import DEFAULT_SOCKET


def add_socket_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--socket``, as `Client` takes it."""
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help=f"the daemon's control socket (default: PARPROF_SOCKET, or {DEFAULT_SOCKET})",
    )
