"""What a kind of store must provide, and what its answers can mean. A new one is a file beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from parprof.service.push.shape import Payload
from parprof.untrusted import visible
from parprof.values import dataclass

RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP status codes after which the same request may succeed later."""


class Delivery(Enum):
    """What is to become of a request that was answered."""

    SENT = "sent"
    RETRY = "retry"
    REJECTED = "rejected"
    """The store does not want it, and never will."""


@dataclass(frozen=True, slots=True)
class PushRequest:
    """A POST request but for the address and the credentials: what waits in the queue on disk."""

    path: str
    """Path and query, to be put after the path of the store's URL."""
    content_type: str
    body: bytes
    encoding: str = ""
    """Content-Encoding, if any."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer: hostile, but not large."""

    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""
    body: bytes


class Backend(Protocol):
    """A kind of store."""

    name: str

    def encode(self, payload: Payload, labels: Mapping[str, str]) -> PushRequest:
        """The request that stores a profile. ``labels`` hold ``service_name``, and are safe.

        Raises:
            ParprofError: the profile cannot be had into a form that the store takes.
        """

    def judge(self, reply: Reply) -> tuple[Delivery, str]:
        """What an answer means; and what is wrong, if anything, on one line."""


def judge_status(
    reply: Reply, retried: frozenset[int] = RETRIED_STATUS, content_type: str = ""
) -> tuple[Delivery, str]:
    """Judge by the HTTP status code. A success must have this content type, if one is given."""
    if not 200 <= reply.status < 300:
        verdict = Delivery.RETRY if reply.status in retried else Delivery.REJECTED
        return verdict, f"HTTP status {reply.status}{_hint(reply.status)}{_said(reply.body)}"
    found = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type and found != content_type:
        return (
            Delivery.RETRY,
            f"the answer is {visible(found, 60) or 'nothing'}, not {content_type}; check the URL",
        )
    return Delivery.SENT, ""


def _hint(status: int) -> str:
    if 300 <= status < 400:
        return " (redirects are not followed; name the address that it leads to)"
    hints = {401: "check the credentials", 403: "check the credentials", 404: "check the URL"}
    return f" ({hints[status]})" if status in hints else ""


def _said(body: bytes) -> str:
    text = visible(body[:200].strip(), 200)
    return f": {text}" if text else ""
