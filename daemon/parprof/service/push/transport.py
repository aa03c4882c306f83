"""POST requests to one server, over HTTP/1.1, which end in time whatever the server does.

The standard library's client waits for each byte anew; so a timer shuts the socket down when the time of the
whole exchange is up, and so does whoever wants to end the process.
"""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from parprof import __version__
from parprof.errors import UsageError
from parprof.resources import Closing
from parprof.service.push.backend import Reply, Request
from parprof.untrusted import visible

_MAX_REPLY = 1 << 16
_MAX_SECRET = 1 << 16
_OWN_HEADERS = frozenset({"host", "content-length", "content-type", "content-encoding", "transfer-encoding"})


class TransportError(Exception):
    """No answer: the server cannot be reached, is not who it should be, or does not speak HTTP."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and how to show who we are. Secrets are in files, which are read anew for each request."""

    url: str
    timeout_s: float = 10.0
    """For one request, from connecting to the end of the answer."""
    ca_file: str = ""
    """Certificates to trust instead of the system's."""
    cert_file: str = ""
    key_file: str = ""
    bearer_token_file: str = ""
    basic_user: str = ""
    basic_password_file: str = ""
    tenant: str = ""
    """X-Scope-OrgID."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Client(Closing):
    """Keeps one connection to a server. `post` is for one thread, the rest for any."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises UsageError where the endpoint makes no sense. Nothing is sent yet."""
        self._endpoint = endpoint
        url = urlsplit(endpoint.url)
        try:
            self._port = url.port
        except ValueError:
            self._port = 0
        self._host = url.hostname or ""
        secure = url.scheme == "https"
        if (
            url.scheme not in ("http", "https")
            or not self._host
            or self._port == 0
            or url.query
            or url.fragment
        ):
            raise UsageError(f"{visible(endpoint.url, 200)!r} is not a URL such as https://host:4040/path")
        if url.username is not None or url.password is not None:
            raise UsageError("credentials do not belong into a URL; use basic_user and basic_password_file")
        self._base = url.path.rstrip("/")
        self._context = _tls(endpoint) if secure else None
        names = {name.lower() for name in endpoint.headers}
        has_secret = bool(endpoint.bearer_token_file or endpoint.basic_user or "authorization" in names)
        if has_secret and not secure and self._host not in ("localhost", "127.0.0.1", "::1"):
            raise UsageError(f"credentials would go to {self._host} for all to read; use an https URL")
        if endpoint.bearer_token_file and endpoint.basic_user:
            raise UsageError("use either a bearer token or basic authentication")
        if bool(endpoint.basic_user) != bool(endpoint.basic_password_file):
            raise UsageError("basic_user and basic_password_file go together")
        for name, value in (*endpoint.headers.items(), ("X-Scope-OrgID", endpoint.tenant)):
            if name.lower() in _OWN_HEADERS or not name.isascii() or not name.replace("-", "").isalnum():
                raise UsageError(f"{visible(name, 60)!r} cannot be set as a header")
            if not value.isprintable() or not value.isascii():
                raise UsageError(f"the header {name} holds what no header can hold")
        self._headers()
        self._connection: _Connection | None = None
        self._closed = threading.Event()
        self._busy = threading.Lock()

    def post(self, request: Request) -> Reply:
        """Send a request, wait for the answer.

        Raises:
            TransportError: there was none in time, or the client was closed.
        """
        with self._busy:
            try:
                return self._post(request)
            finally:
                if self._closed.is_set():
                    self._drop()

    def _post(self, request: Request) -> Reply:
        try:
            headers = self._headers()
        except UsageError as error:
            raise TransportError(str(error)) from error
        headers["Content-Type"] = request.content_type
        if request.encoding:
            headers["Content-Encoding"] = request.encoding
        connection = self._connection
        if connection is not None:
            # The server may have closed it meanwhile, which is no failure.
            try:
                return self._exchange(connection, request, headers)
            except TransportError:
                if self._closed.is_set() or connection.is_cut or connection.has_answered:
                    raise
        if self._closed.is_set():
            raise TransportError("this process ends")
        connection = self._connection = _Connection(
            self._host, self._port, self._endpoint.timeout_s, self._context, self._closed.is_set
        )
        return self._exchange(connection, request, headers)

    def _exchange(self, connection: _Connection, request: Request, headers: Mapping[str, str]) -> Reply:
        timer = threading.Timer(self._endpoint.timeout_s, connection.cut)
        timer.daemon = True
        timer.start()
        try:
            reply, keep = connection.exchange(self._base + request.path, request.body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._drop()
            if connection.is_cut and not self._closed.is_set():
                raise TransportError(f"no answer within {self._endpoint.timeout_s:g} s") from error
            raise TransportError(_reason(error)) from error
        finally:
            timer.cancel()
        if not keep or connection.is_cut:
            self._drop()
        return reply

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _headers(self) -> dict[str, str]:
        endpoint = self._endpoint
        out = {"User-Agent": f"parprofd/{__version__}", **endpoint.headers}
        if endpoint.tenant:
            out["X-Scope-OrgID"] = endpoint.tenant
        if endpoint.bearer_token_file:
            out["Authorization"] = f"Bearer {_secret(endpoint.bearer_token_file)}"
        elif endpoint.basic_user:
            pair = f"{endpoint.basic_user}:{_secret(endpoint.basic_password_file)}".encode()
            out["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return out

    def close(self) -> None:
        """End what is under way, from any thread, at once; `post` raises from now on."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.cut()
        if self._busy.acquire(blocking=False):  # else `post` closes it
            self._drop()
            self._busy.release()


class _Connection(http.client.HTTPConnection):
    """A connection that another thread can cut in any state but while a name is looked up."""

    def __init__(
        self,
        host: str,
        port: int | None,
        timeout_s: float,
        context: ssl.SSLContext | None,
        is_closed: Callable[[], bool],
    ) -> None:
        super().__init__(host, port or (443 if context else 80), timeout=timeout_s)
        self.default_port = 443 if context else 80  # what the Host header leaves out
        self._context = context
        self._is_closed = is_closed
        self._guard = threading.Lock()
        self._handle: socket.socket | None = None
        """The same connection under a second descriptor, which no TLS object shares."""
        self.is_cut = False
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
                self.sock = (
                    self._context.wrap_socket(plain, server_hostname=self.host) if self._context else plain
                )
                return
            except OSError as error:
                plain.close()
                failure = error
                if self.is_cut or isinstance(error, ssl.SSLError):
                    break
        raise failure

    def _hold(self, plain: socket.socket) -> None:
        with self._guard:
            if self._handle is not None:
                self._handle.close()
            self._handle = plain.dup()
            if self.is_cut or self._is_closed():
                raise ConnectionAbortedError("this process ends")

    def exchange(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[Reply, bool]:
        """Post; the answer, and whether the connection can be used again."""
        self.has_answered = False
        failure: OSError | None = None
        try:
            self.request("POST", path, body, dict(headers))
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
        data = response.read(_MAX_REPLY + 1)
        keep = response.isclosed() and not response.will_close and failure is None
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, fields, data[:_MAX_REPLY]), keep

    def cut(self) -> None:
        """End what is under way. From any thread."""
        with self._guard:
            self.is_cut = True
            if self._handle is not None:
                with suppress(OSError):
                    self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both descriptors."""
        super().close()
        with self._guard:
            if self._handle is not None:
                self._handle.close()
                self._handle = None


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if endpoint.cert_file:
            context.load_cert_chain(endpoint.cert_file, endpoint.key_file or None)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use ca_file, cert_file or key_file: {error}") from error
    return context


def _secret(path: str) -> str:
    """The first line of a file that holds a secret.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    try:
        fd = os.open(Path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            text = file.read(_MAX_SECRET).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not text or not text.isprintable():
        raise UsageError(f"{path} does not hold one line of text")
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({visible(error.verify_message, 100)}); set ca_file"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.HTTPException):
        return f"the server does not speak HTTP ({visible(str(error) or type(error).__name__, 100)})"
    if isinstance(error, OSError):
        return visible(error.strerror or str(error) or type(error).__name__, 200)
    return visible(str(error), 200)
