"""The child process that talks to debuginfod servers: ``python -m parprof.symbols.fetcher FD MAX-SIZE``.

It reads requests from a socket, ``{"build_id", "urls", "seconds"}`` and a descriptor to write to, then an
empty one, and answers each with ``{"build_id", "state", ...}``: any number of ``progress`` (``bytes``), then
``done``, ``absent`` (all servers say so) or ``failed`` (``problem``). The servers are not trusted: no scheme
but http and https, also not by a redirection, few redirections, no more than so many bytes. It gives up its
privileges first. How long it all takes is for the other end to say, which ends it.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from parprof import __version__
from parprof.http_client import Answer, NoAnswer, Proxy, ServerOrigin, TooLarge, Unreachable, get
from parprof.workers import protocol
from parprof.workers.privileges import give_up_privileges

_MEMORY_LIMIT = 2 << 30
_AT_ONCE = 4
_MAX_REDIRECTIONS = 4
_PROGRESS_BYTES = 1 << 22
_HEADERS = {"User-Agent": f"parprof/{__version__}"}


class Fetcher:
    """Fetches files by build id; remembers which servers do not answer."""

    def __init__(self, connection: socket.socket, max_size: int) -> None:
        """Answer on ``connection``. Made with all privileges: certificates are read here."""
        self._connection = connection
        self._max_size = max_size
        self._context = ssl.create_default_context()
        self._lock = threading.Lock()
        self._dead: set[str] = set()

    def _tell(self, build_id: str, state: str, **more: object) -> None:
        with self._lock:
            protocol.send(self._connection, {"build_id": build_id, "state": state, **more})

    def fetch(self, request: dict[str, Any], fd: int) -> None:
        """Answer one request; closes the descriptor."""
        build_id, urls = request["build_id"], request["urls"]
        deadline = time.monotonic() + request["seconds"]
        problem = ""
        with open(fd, "r+b", buffering=0) as out:
            for index, url in enumerate(urls):
                if url in self._dead:
                    problem = problem or f"{url} does not answer"
                    continue
                seconds = max(0.1, deadline - time.monotonic()) / (len(urls) - index)
                try:
                    is_there = self._fetch_from(url, build_id, out, seconds)
                except (OSError, NoAnswer, MemoryError) as error:
                    if isinstance(error, Unreachable):
                        self._dead.add(url)  # not to be waited for again
                    problem = f"{url}: {error or type(error).__name__}"
                    continue
                if is_there:
                    self._tell(build_id, "done")
                    return
        if problem:
            self._tell(build_id, "failed", problem=problem[:400])
        else:
            self._tell(build_id, "absent")

    def _fetch_from(self, url: str, build_id: str, out: IO[bytes], seconds: float) -> bool:
        """Write a file as one server has it; whether it has it at all."""

        def take(answer: Answer) -> bool:
            if answer.status == 404:
                return False
            if not 200 <= answer.status < 300:
                raise NoAnswer(f"HTTP status {answer.status}")
            self._copy(answer, out, build_id)
            return True

        return get(
            f"{url}/buildid/{build_id}/debuginfo",
            _HEADERS,
            take,
            seconds=seconds,
            redirections=_MAX_REDIRECTIONS,
            context=self._context,
            proxy_of=_proxy_of,
        )

    def _copy(self, answer: Answer, out: IO[bytes], build_id: str) -> None:
        out.seek(0)
        out.truncate()
        size = shown = 0
        try:
            for chunk in answer.chunks(self._max_size):
                if out.write(chunk) != len(chunk):
                    raise NoAnswer("the disk is full")
                size += len(chunk)
                if size - shown >= _PROGRESS_BYTES:
                    shown = size
                    self._tell(build_id, "progress", bytes=size)
        except TooLarge as error:
            out.truncate(0)
            raise NoAnswer(f"{error} (DEBUGINFOD_MAXSIZE)") from None


def _proxy_of(origin: ServerOrigin) -> Proxy | None:
    """The proxy that the environment names for this server: ``http_proxy``, ``https_proxy``, ``no_proxy``."""
    named = getproxies().get("https" if origin.is_tls else "http")
    if not named or proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    parts = urlsplit(named if "://" in named else f"http://{named}")
    if not parts.hostname:
        return None
    authorization = ""
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    return Proxy(parts.hostname, parts.port or 80, authorization)


def main() -> int:
    """Entry point of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    max_size = int(sys.argv[2])
    fetcher = Fetcher(connection, max_size)
    "a".encode("idna")  # loads what host names need
    give_up_privileges(_MEMORY_LIMIT, max_size, 256, network=True)
    with suppress(OSError, ValueError), ThreadPoolExecutor(_AT_ONCE) as pool:
        while (received := protocol.receive(connection)) is not None and received[1]:
            request, fds = received
            pool.submit(fetcher.fetch, request, fds[0])
            protocol.close_all(fds[1:])
    os._exit(0)


if __name__ == "__main__":
    main()
