"""Where to listen, and who may ask: an address that is open to others needs a token and TLS."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
import socket
import ssl

from parprof.errors import UsageError
from parprof.patterns import regex
from parprof.untrusted import visible
from parprof.values import dataclass

MIN_TOKEN = 16
"""Characters that a token has at least."""

_HOST = regex(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host, resolved, and a port (0: any free one)."""

    family: socket.AddressFamily
    host: str
    port: int
    is_loopback: bool


def parse_address(address: str) -> ListenAddress:
    """The endpoint that ``HOST:PORT`` names.

    Raises:
        UsageError: it names none.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"HTTP address {visible(address, 100)!r}: write HOST:PORT, such as 127.0.0.1:9466")
    name = host.removeprefix("[").removesuffix("]") or "0.0.0.0"
    try:
        found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"HTTP address {visible(address, 100)!r}: the host is unknown; write its IP address"
        ) from error
    hosts = {str(entry[4][0]) for entry in found}
    family, _, _, _, chosen = found[0]
    return ListenAddress(family, str(chosen[0]), int(port), all(_is_loopback(each) for each in hosts))


def check_token(token: str) -> str:
    """The token, if it is strong enough.

    Raises:
        UsageError: it is not.
    """
    if len(token) < MIN_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(
            f"the HTTP token must have {MIN_TOKEN} or more printable ASCII characters and no space;"
            " make one with: openssl rand -hex 32"
        )
    return token


def check_exposure(
    endpoint: ListenAddress, token: str, has_tls: bool, *, client_ca: str = "", metrics_for_all: bool = False
) -> None:
    """See that nobody else can read along or ask.

    ``client_ca``: clients may show a certificate instead of the token. ``metrics_for_all``: metrics need neither, so
    that all else may be left without, too: nobody gets it.

    Raises:
        UsageError: a token or TLS is missing, or the token is too weak.
    """
    if client_ca and not has_tls:
        raise UsageError("client certificates are for TLS: set certificate and key too, or no client_ca")
    if not endpoint.is_loopback and (token or not metrics_for_all):
        where = f"HTTP on {endpoint.host} is open to other machines"
        if not token and not client_ca:
            more = "" if has_tls else ", certificate and key"
            raise UsageError(f"{where}: set a token{more} too, or listen on 127.0.0.1:{endpoint.port}")
        if not has_tls:
            raise UsageError(
                f"{where}: set certificate and key too, as the token must not cross the network in clear text,"
                f" or listen on 127.0.0.1:{endpoint.port}"
            )
    if token:
        check_token(token)


def tls_context(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext | None:
    """TLS with these PEM files; None where there are none.

    ``client_ca``: who issues the certificates of clients. Those that show none are let in: see `Guard`.

    Raises:
        UsageError: a file is missing or wrong.
    """
    if not certificate and not key:
        return None
    if not (certificate and key):
        raise UsageError("TLS needs both: set the HTTP certificate and its key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A password would be asked for on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"TLS certificate {visible(certificate)} with key {visible(key)}: {visible(str(reason), 200)};"
            " give a PEM certificate chain and its unencrypted key"
        ) from error
    if client_ca:
        trust_clients_of(client_ca, context)
    return context


def trust_clients_of(client_ca: str, context: ssl.SSLContext) -> None:
    """Ask clients for a certificate that was issued by one in this PEM file.

    Raises:
        UsageError: the file is missing or wrong.
    """
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"client CA {visible(client_ca)}: {visible(str(reason), 200)}; give a PEM file with certificates"
        ) from error
    context.verify_mode = ssl.CERT_OPTIONAL


class Guard:
    """Decides whether a request may be answered."""

    def __init__(
        self, *, is_loopback: bool, token: str, has_client_ca: bool = False, metrics_for_all: bool = False
    ) -> None:
        """``token``: empty where there is none. ``has_client_ca``: clients may show a certificate instead."""
        self._check_host = is_loopback
        self._token = token.encode()
        self._has_client_ca = has_client_ca
        self.metrics_for_all = metrics_for_all
        """Whether metrics are for everyone who can connect."""

    def take_token(self, token: str) -> None:
        """Have another one from now on."""
        self._token = token.encode()

    @property
    def has_token(self) -> bool:
        """Whether who sends the token may see everything."""
        return bool(self._token)

    @property
    def wants_proof(self) -> bool:
        """Whether clients have to show who they are: that they know the token, or a certificate."""
        return bool(self._token) or self._has_client_ca or not self._check_host

    def refuses_host(self, host: str | None) -> bool:
        """Whether a page of another site asks, having had its own name resolved to us (DNS rebinding).

        ``host``: the Host header, None when there is none, which browsers don't do.
        """
        if not self._check_host or host is None:
            return False
        match = _HOST.fullmatch(host)
        if match is None:
            return True
        name = match[1].strip("[]").lower().removesuffix(".")
        return not (name == "localhost" or name.endswith(".localhost") or _is_loopback(name))

    def refuses_token(self, authorization: str | None) -> bool:
        """Whether the Authorization header lacks the token: as Bearer, or as password of Basic (browsers)."""
        if not self._token:
            return self.wants_proof
        scheme, _, given = (authorization or "").partition(" ")
        offered = b""
        if scheme.lower() == "bearer":
            offered = given.strip().encode("utf-8", "replace")
        elif scheme.lower() == "basic":
            try:
                offered = base64.b64decode(given.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return True
        return not hmac.compare_digest(offered, self._token)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
