"""POST requests to one store: who we are, and what its address must be like. How they end in time is
`parprof.http_client`'s.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

from parprof import __version__
from parprof.errors import UsageError
from parprof.http_client import Answer, HttpClient, NoAnswer, NotTrusted, Question, ServerOrigin
from parprof.resources import Closing
from parprof.service.push.backend import PushRequest, Reply
from parprof.untrusted import visible
from parprof.values import dataclass

_MAX_REPLY = 1 << 16
_MAX_SECRET = 1 << 16
_OWN_HEADERS = frozenset({"host", "content-length", "content-type", "content-encoding", "transfer-encoding"})


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


class StoreClient(Closing):
    """Keeps one connection to a store. `post` is for one thread, `close` for any."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises UsageError where the endpoint makes no sense. Nothing is sent yet."""
        origin = _checked_origin(endpoint)
        _check_headers(endpoint)
        self._endpoint = endpoint
        self._base = urlsplit(endpoint.url).path.rstrip("/")
        self._headers()
        context = _tls(endpoint) if origin.is_tls else None
        self._client = HttpClient(origin, endpoint.timeout_s, context)

    def post(self, request: PushRequest) -> Reply:
        """Send a request, wait for the answer. Redirections are not followed.

        Raises:
            NoAnswer: there was none in time, or the client was closed.
        """
        try:
            headers = self._headers()
        except UsageError as error:
            raise NoAnswer(str(error)) from error
        headers["Content-Type"] = request.content_type
        if request.encoding:
            headers["Content-Encoding"] = request.encoding
        try:
            question = Question(self._base + request.path, headers, "POST", request.body)
            return self._client.exchange(question, _reply)
        except NotTrusted as error:
            raise NoAnswer(f"{error}; set ca_file") from error

    def close(self) -> None:
        """End what is under way, from any thread, at once; `post` raises from now on."""
        self._client.close()

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


def _checked_origin(endpoint: Endpoint) -> ServerOrigin:
    """The server; UsageError where it is none, or where secrets would go to it in the clear."""
    try:
        origin, url = ServerOrigin.of(endpoint.url), urlsplit(endpoint.url)
        if url.query or url.fragment:
            raise ValueError("there is more behind the path")
    except ValueError as error:
        text = f"{visible(endpoint.url, 200)!r} is not a URL such as https://host:4040/path"
        raise UsageError(text) from error
    if url.username is not None or url.password is not None:
        raise UsageError("credentials do not belong into a URL; use basic_user and basic_password_file")
    names = {name.lower() for name in endpoint.headers}
    has_secret = bool(endpoint.bearer_token_file or endpoint.basic_user or "authorization" in names)
    if has_secret and not origin.is_tls and origin.host not in ("localhost", "127.0.0.1", "::1"):
        raise UsageError(f"credentials would go to {origin.host} for all to read; use an https URL")
    return origin


def _check_headers(endpoint: Endpoint) -> None:
    if endpoint.bearer_token_file and endpoint.basic_user:
        raise UsageError("use either a bearer token or basic authentication")
    if bool(endpoint.basic_user) != bool(endpoint.basic_password_file):
        raise UsageError("basic_user and basic_password_file go together")
    for name, value in (*endpoint.headers.items(), ("X-Scope-OrgID", endpoint.tenant)):
        if name.lower() in _OWN_HEADERS or not name.isascii() or not name.replace("-", "").isalnum():
            raise UsageError(f"{visible(name, 60)!r} cannot be set as a header")
        if not value.isprintable() or not value.isascii():
            raise UsageError(f"the header {name} holds what no header can hold")


def _reply(answer: Answer) -> Reply:
    return Reply(answer.status, answer.headers, answer.beginning(_MAX_REPLY))


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
