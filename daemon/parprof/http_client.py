"""HTTP/1.1 requests that end in time whatever the server does, and at once when another thread says so.

Why own code on top of ``http.client``: the libraries count their timeouts from byte to byte. A server that
sends one each 0.2 s held urllib3 2.8.0 (``Timeout(total=1)``) and httpx 0.28.1 (``timeout=1``) for 12 s, which
was as long as it went on. Here a timer shuts the socket down when the time of the whole exchange is up, and so
does `HttpClient.close`. Only the look-up of a name cannot be ended: the C library has no way to.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar
from urllib.parse import urljoin, urlsplit

from parprof.resources import Closing
from parprof.untrusted import visible
from parprof.values import dataclass

_CHUNK = 1 << 18
_REDIRECTIONS = (301, 302, 303, 307, 308)

Taken = TypeVar("Taken")


class NoAnswer(Exception):
    """What came is no answer, or not all of it; the text says why, on one line."""


class Unreachable(NoAnswer):
    """Not a word came in time: others need not try either."""


class NotTrusted(Unreachable):
    """The server's certificate is not one that we trust."""


class TooLarge(NoAnswer):
    """The answer is larger than what is taken."""


@dataclass(frozen=True, slots=True)
class ServerOrigin:
    """A server: what of a URL stands before the path."""

    host: str
    port: int
    is_tls: bool

    @classmethod
    def of(cls, url: str) -> Self:
        """The server of a URL.

        Raises:
            ValueError: there is none, or none that speaks HTTP.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(f"{visible(url, 200)!r} is not a URL such as https://host:4040/path")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or _default_port(is_tls), is_tls)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A server that passes requests on to others."""

    host: str
    port: int
    authorization: str = ""
    """The header Proxy-Authorization, if it wants one."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a server."""

    path: str
    """With the query, if any."""
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""


class Answer:
    """A server's answer while it arrives: hostile."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        """Names are in lower case."""
        self._response = response

    def beginning(self, most: int) -> bytes:
        """The first so many bytes of the body."""
        return self._response.read(most + 1)[:most]  # one more, to see the end where it ends just there

    def chunks(self, most: int) -> Iterator[bytes]:
        """The whole body, in parts.

        Raises:
            TooLarge: it is larger than ``most`` bytes, or says so.
            NoAnswer: less came than was promised.
        """
        told = self.headers.get("content-length")
        promised = int(told) if told is not None else None
        if promised is not None and promised > most:
            raise TooLarge(f"{promised} bytes are more than {most}")
        size = 0
        while chunk := self._response.read1(_CHUNK):
            size += len(chunk)
            if size > most:
                raise TooLarge(f"more than {most} bytes")
            yield chunk
        if promised is not None and size != promised:
            raise NoAnswer(f"{size} of {promised} bytes came")


class HttpClient(Closing):
    """Keeps one connection to a server. `exchange` is for one thread at a time, `close` for any."""

    def __init__(
        self,
        origin: ServerOrigin,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        """Nothing is sent yet. ``timeout_s``: for one exchange, from connecting to the end of the answer.

        ``context``: whom to trust where the origin has TLS; None: whom the system trusts.
        """
        self._origin = origin
        self._timeout_s = timeout_s
        self._context = (context or ssl.create_default_context()) if origin.is_tls else None
        self._proxy = proxy
        self._connection: _Connection | None = None
        self._closed = threading.Event()
        self._busy = threading.Lock()

    def exchange(self, question: Question, take: Callable[[Answer], Taken]) -> Taken:
        """Send a request, and return what ``take`` made of the answer, all within the time.

        Raises:
            NoAnswer: there was none in time, or the client was closed; or ``take`` raised it.
        """
        with self._busy:
            try:
                return self._exchange(question, take)
            finally:
                if self._closed.is_set():
                    self._drop()

    def close(self) -> None:
        """End what is under way, from any thread, at once; `exchange` raises from now on."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.cut()
        if self._busy.acquire(blocking=False):  # else `exchange` closes it
            self._drop()
            self._busy.release()

    def _exchange(self, question: Question, take: Callable[[Answer], Taken]) -> Taken:
        connection = self._connection
        if connection is not None:
            # The server may have closed it meanwhile, which is no failure.
            try:
                return self._talk(connection, question, take)
            except NoAnswer:
                if self._closed.is_set() or connection.is_cut or connection.has_answered:
                    raise
        if self._closed.is_set():
            raise NoAnswer("this process ends")
        try:
            connection = self._connection = _Connection(
                self._origin, self._proxy, self._timeout_s, self._context, self._closed.is_set
            )
        except (http.client.HTTPException, ValueError) as error:  # a host that cannot be one
            raise NoAnswer(visible(str(error), 200)) from error
        return self._talk(connection, question, take)

    def _talk(self, connection: _Connection, question: Question, take: Callable[[Answer], Taken]) -> Taken:
        timer = threading.Timer(self._timeout_s, connection.cut)
        timer.daemon = True
        timer.start()
        try:
            taken, keep = connection.exchange(question, take)
            if connection.is_cut:  # to ``take`` that may have looked like the end of the answer
                raise ConnectionAbortedError("this process ends")
        except (OSError, http.client.HTTPException, ValueError, NoAnswer) as error:
            self._drop()
            if connection.is_cut and not self._closed.is_set():
                raise Unreachable(_late(self._timeout_s)) from error
            raise _no_answer(error, connection.is_connected) from error
        except BaseException:
            self._drop()
            raise
        finally:
            timer.cancel()
        if not keep:
            self._drop()
        return taken

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None


def get(
    url: str,
    headers: Mapping[str, str],
    take: Callable[[Answer], Taken],
    *,
    seconds: float,
    redirections: int,
    context: ssl.SSLContext | None = None,
    proxy_of: Callable[[ServerOrigin], Proxy | None] = lambda origin: None,
) -> Taken:
    """What ``take`` makes of the answer to a GET, all within ``seconds``; so many redirections are followed.

    None of these leads to another scheme than http and https, or from https to http.

    Raises:
        NoAnswer: there was none; or ``take`` raised it.
    """
    until_s = time.monotonic() + seconds

    def take_or_follow(answer: Answer) -> tuple[Taken | None, str | None]:
        if answer.status in _REDIRECTIONS:
            return None, answer.headers.get("location", "")
        return take(answer), None

    for _ in range(1 + redirections):
        try:
            origin, parts = ServerOrigin.of(url), urlsplit(url)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        except ValueError as error:
            raise NoAnswer(str(error)) from error
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise Unreachable(_late(seconds))
        with HttpClient(origin, left_s, context, proxy_of(origin)) as client:
            question = Question(path, {**headers, "Connection": "close"})
            taken, location = client.exchange(question, take_or_follow)
        if location is None:
            return taken  # type: ignore[return-value]
        url = _next_url(url, location)
    raise NoAnswer("too many redirections")


def _next_url(url: str, location: str) -> str:
    try:
        target = urljoin(url, location)
        scheme = urlsplit(target).scheme
    except ValueError as error:
        raise NoAnswer(visible(str(error), 200)) from error
    if scheme not in ("http", "https") or (scheme == "http" and url.startswith("https:")):
        raise NoAnswer(f"a redirection to {visible(scheme, 40) or 'nowhere'}: not followed")
    return target


class _Connection(http.client.HTTPConnection):
    """A connection that another thread can cut in any state but while a name is looked up."""

    def __init__(
        self,
        origin: ServerOrigin,
        proxy: Proxy | None,
        timeout_s: float,
        context: ssl.SSLContext | None,
        is_closed: Callable[[], bool],
    ) -> None:
        first = proxy or origin
        super().__init__(first.host, first.port, timeout=timeout_s)
        self.default_port = _default_port(origin.is_tls)  # what the Host header leaves out
        self._origin = origin
        self._context = context
        proxy_headers = {"Proxy-Authorization": proxy.authorization} if proxy and proxy.authorization else {}
        self._has_tunnel = proxy is not None and origin.is_tls
        self._prefix = ""
        """What stands before the path: the server, where a proxy is to pass the request on."""
        self._proxy_headers: Mapping[str, str] = {}
        if self._has_tunnel:
            self.set_tunnel(origin.host, origin.port, proxy_headers)
        elif proxy is not None:
            host = f"[{origin.host}]" if ":" in origin.host else origin.host
            self._prefix = f"http://{host}:{origin.port}"
            self._proxy_headers = proxy_headers
        self._is_closed = is_closed
        self._guard = threading.Lock()
        self._response: http.client.HTTPResponse | None = None
        self._handle: socket.socket | None = None
        """The same connection under a second descriptor, which no TLS object shares."""
        self.is_cut = False
        self.is_connected = False
        """Whether there was a connection, and with whom it should be."""
        self.has_answered = False
        """Whether any of the answer to the last request came."""

    def connect(self) -> None:
        """Connect to the first address that answers, and make sure of who it is."""
        failure: OSError = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            plain = socket.socket(family, kind, protocol)
            try:
                plain.settimeout(self.timeout)
                self._hold(plain)
                plain.connect(address)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._secure(plain)
                self.is_connected = True
                return
            except OSError as error:
                plain.close()
                self.sock = None
                failure = error
                if self.is_cut or isinstance(error, ssl.SSLError):
                    break
        try:
            raise failure
        finally:
            del failure  # it holds this frame, with all that the request was

    def _secure(self, plain: socket.socket) -> None:
        """Let a proxy connect us where there is one, then TLS where it is wanted."""
        self.sock = plain
        if self._context is None:
            return
        if self._has_tunnel:
            self._pass_proxy()
        self.sock = self._context.wrap_socket(plain, server_hostname=self._origin.host)

    def _pass_proxy(self) -> None:
        """Let the proxy connect us.

        Its answer is closed whatever it says: Python 3.11.2 leaves one open that refuses, and the connection with it,
        for as long as somebody holds the exception.
        """
        answers: list[http.client.HTTPResponse] = []

        def listen(sock: socket.socket, *arguments: Any, **named: Any) -> http.client.HTTPResponse:
            answers.append(http.client.HTTPResponse(sock, *arguments, **named))
            return answers[-1]

        self.response_class = listen  # type: ignore[assignment]
        try:
            self._tunnel()  # type: ignore[attr-defined]
        finally:
            self.response_class = http.client.HTTPResponse
            for answer in answers:
                answer.close()

    def _hold(self, plain: socket.socket) -> None:
        with self._guard:
            if self._handle is not None:
                self._handle.close()
            self._handle = plain.dup()
            if self.is_cut or self._is_closed():
                raise ConnectionAbortedError("this process ends")

    def exchange(self, question: Question, take: Callable[[Answer], Taken]) -> tuple[Taken, bool]:
        """What ``take`` made of the answer, and whether the connection can be used again."""
        self.has_answered = False
        failure: OSError | None = None
        try:
            headers = {**question.headers, **self._proxy_headers}
            self.request(question.method, self._prefix + question.path, question.body or None, headers)
        except (BrokenPipeError, ConnectionResetError) as error:
            if self.sock is None:
                raise
            failure = error  # it may have said why before it stopped to listen
        try:
            response = self.getresponse()
        except (OSError, http.client.HTTPException, ValueError):
            if failure is not None:
                raise failure from None
            raise
        self.has_answered = True
        self._response = response
        taken = take(Answer(response))
        return taken, response.isclosed() and not response.will_close and failure is None

    def cut(self) -> None:
        """End what is under way. From any thread."""
        with self._guard:
            self.is_cut = True
            if self._handle is not None:
                with suppress(OSError):
                    self._handle.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close all there is. (`close` is called by ``http.client`` too, while an answer is still to be read.)"""
        self.close()
        if self._response is not None:
            self._response.close()
        with self._guard:
            if self._handle is not None:
                self._handle.close()
                self._handle = None


def _default_port(is_tls: bool) -> int:
    return 443 if is_tls else 80


def _late(seconds: float) -> str:
    return f"no answer within {round(seconds, 1):g} s"


def _no_answer(error: Exception, is_connected: bool) -> NoAnswer:
    """The failure as one that says what it means."""
    if isinstance(error, NoAnswer):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotTrusted(f"the server's certificate is not trusted ({visible(error.verify_message, 100)})")
    if isinstance(error, TimeoutError):
        return Unreachable("no answer in time")
    if isinstance(error, http.client.HTTPException):
        said = visible(str(error) or type(error).__name__, 100)
        return NoAnswer(f"the server does not speak HTTP ({said})")
    if isinstance(error, OSError):
        kind = NoAnswer if is_connected else Unreachable
        return kind(visible(error.strerror or str(error) or type(error).__name__, 200))
    return NoAnswer(visible(str(error), 200))
