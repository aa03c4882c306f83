"""The child process that talks to debuginfod servers: ``python -m parprof.symbols.fetcher FD MAX-SIZE``.

It reads requests from a socket, ``{"build_id", "urls", "seconds"}`` and a descriptor to write to, then an
empty one, and answers each with ``{"build_id", "state", ...}``: any number of ``progress`` (``bytes``), then
``done``, ``absent`` (all servers say so) or ``failed`` (``problem``). The servers are not trusted: no scheme
but http and https, also not by a redirection, few redirections, no more than so many bytes. It gives up its
privileges first. How long it all takes is for the other end to say, which ends it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit

from parprof import __version__
from parprof.workers import protocol
from parprof.workers.privileges import drop_privileges

_MEMORY_LIMIT = 2 << 30
_AT_ONCE = 4
_MAX_REDIRECTIONS = 4
_CHUNK = 1 << 18
_PROGRESS_BYTES = 1 << 22
_REDIRECTIONS = (301, 302, 303, 307, 308)


class FetchFailed(Exception):
    """This server does not deliver; the text says why."""


def make_opener() -> urllib.request.OpenerDirector:
    """Opens http and https and nothing else (``build_opener`` adds files, FTP and data); no redirections."""
    opener = urllib.request.OpenerDirector()
    opener.addheaders = [("User-Agent", f"parprof/{__version__}"), ("Accept-Encoding", "identity")]
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


class Fetcher:
    """Fetches files by build id; remembers which servers do not answer."""

    def __init__(self, connection: socket.socket, max_size: int) -> None:
        """Answer on ``connection``. Made with all privileges: certificates are read here."""
        self._connection = connection
        self._max_size = max_size
        self._opener = make_opener()
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
                    response = self._open(f"{url}/buildid/{build_id}/debuginfo", seconds)
                    if response is None:
                        continue
                    with response:
                        self._copy(response, out, build_id)
                except (OSError, HTTPException, ValueError, MemoryError, FetchFailed) as error:
                    if isinstance(error, (URLError, TimeoutError)):
                        self._dead.add(url)  # not to be waited for again
                    problem = f"{url}: {_reason(error)}"
                    continue
                self._tell(build_id, "done")
                return
        if problem:
            self._tell(build_id, "failed", problem=problem[:400])
        else:
            self._tell(build_id, "absent")

    def _open(self, url: str, seconds: float) -> HTTPResponse | None:
        """The answer to follow from here; None if the server does not have it."""
        for _ in range(1 + _MAX_REDIRECTIONS):
            try:
                response: HTTPResponse = self._opener.open(url, timeout=seconds)
                return response
            except HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    if error.code not in _REDIRECTIONS:
                        raise FetchFailed(f"HTTP status {error.code}") from None
                    target = urljoin(url, error.headers.get("Location") or "")
            scheme = urlsplit(target).scheme
            if scheme not in ("http", "https") or (scheme == "http" and url.startswith("https:")):
                raise FetchFailed(f"a redirection to {scheme or 'nowhere'}: not followed")
            url = target
        raise FetchFailed("too many redirections")

    def _copy(self, response: HTTPResponse, out: Any, build_id: str) -> None:
        told = response.headers.get("Content-Length")
        expected = int(told) if told is not None else None
        if expected is not None and expected > self._max_size:
            raise FetchFailed(f"{expected} bytes are more than DEBUGINFOD_MAXSIZE")
        out.seek(0)
        out.truncate()
        size = shown = 0
        while chunk := response.read1(_CHUNK):
            size += len(chunk)
            if size > self._max_size:
                out.truncate(0)
                raise FetchFailed(f"more than {self._max_size} bytes (DEBUGINFOD_MAXSIZE)")
            if out.write(chunk) != len(chunk):
                raise FetchFailed("the disk is full")
            if size - shown >= _PROGRESS_BYTES:
                shown = size
                self._tell(build_id, "progress", bytes=size)
        if expected is not None and size != expected:
            raise FetchFailed(f"{size} of {expected} bytes came")


def _reason(error: BaseException) -> str:
    inner = error.reason if isinstance(error, URLError) else error
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def main() -> int:
    """Entry point of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    max_size = int(sys.argv[2])
    fetcher = Fetcher(connection, max_size)
    "a".encode("idna")  # loads what host names need
    drop_privileges(_MEMORY_LIMIT, max_size, 256)
    with suppress(OSError, ValueError), ThreadPoolExecutor(_AT_ONCE) as pool:
        while (received := protocol.receive(connection)) is not None and received[1]:
            request, fds = received
            pool.submit(fetcher.fetch, request, fds[0])
            protocol.close_all(fds[1:])
    os._exit(0)


if __name__ == "__main__":
    main()
