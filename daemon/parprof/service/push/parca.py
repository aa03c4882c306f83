"""Parca's profile store: WriteRaw, as gRPC-Web over HTTP/1.1.

Parca answers gRPC and gRPC-Web at the same address. The latter needs no gRPC library, whose import and one
channel were measured to take 16 MB of memory and 6 threads (docs/push.md).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from urllib.parse import unquote

from parprof.service.push import parca_pb2 as pb
from parprof.service.push.backend import Delivery, PushRequest, Reply, judge_status
from parprof.service.push.shape import Payload
from parprof.untrusted import visible

PROFILE_NAME = "parprof"
"""``__name__``: profile types are ``parprof:idleness:nanoseconds:cpu:nanoseconds:delta`` and so on."""

_METHOD = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
_TYPE = "application/grpc-web+proto"
_TRAILER = 0x80
# CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE
_RETRIED = frozenset({"1", "2", "4", "8", "10", "13", "14"})


class Parca:
    """``ProfileStoreService.WriteRaw`` (parca-dev/parca, profilestore/v1alpha1)."""

    name = "parca"

    def encode(self, payload: Payload, labels: Mapping[str, str]) -> PushRequest:
        """One series with one profile. Our addresses are those of the ELF files, which is ``normalized``."""
        out = pb.WriteRawRequest(normalized=True)
        series = out.series.add()
        series.labels.labels.add(name="__name__", value=PROFILE_NAME)
        for name, value in sorted(labels.items()):
            series.labels.labels.add(name=name, value=value)
        series.samples.add(raw_profile=payload.packed)
        message = out.SerializeToString()
        return PushRequest(_METHOD, _TYPE, struct.pack(">BI", 0, len(message)) + message)

    def judge(self, reply: Reply) -> tuple[Delivery, str]:
        """By HTTP status, then by ``grpc-status``, which is in the headers or in the last frame."""
        verdict, problem = judge_status(reply)
        if verdict is not Delivery.SENT:
            return verdict, problem
        said = reply.headers if "grpc-status" in reply.headers else _trailers(reply.body)
        code = said.get("grpc-status")
        if code is None:
            return Delivery.RETRY, "the answer is not one of gRPC-Web; check the URL"
        if code == "0":
            return Delivery.SENT, ""
        problem = f"gRPC status {visible(code, 10)}: {visible(unquote(said.get('grpc-message', '')), 200)}"
        return (Delivery.RETRY if code in _RETRIED else Delivery.REJECTED), problem


def _trailers(body: bytes) -> dict[str, str]:
    """What the trailer frame of an answer says; nothing if there is none."""
    offset = 0
    while offset + 5 <= len(body):
        flags, length = struct.unpack_from(">BI", body, offset)
        frame = body[offset + 5 : offset + 5 + length]
        if flags & _TRAILER and len(frame) == length:
            lines = (line.partition(":") for line in frame.decode("latin-1").split("\r\n"))
            return {name.strip().lower(): value.strip() for name, _, value in lines}
        offset += 5 + length
    return {}
