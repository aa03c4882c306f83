"""Grafana Pyroscope: the push API (Connect protocol, protobuf), or POST /ingest of older servers."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from urllib.parse import urlencode

from parprof.exporters.pprof_header import DEFAULT_SAMPLE_TYPE
from parprof.patterns import regex
from parprof.service.push import pyroscope_pb2 as pb
from parprof.service.push.backend import Delivery, PushRequest, Reply, judge_status
from parprof.service.push.labels import SERVICE_NAME
from parprof.service.push.shape import Payload

PROFILE_NAME = "parprof"
"""``__name__``: profile types are ``parprof:idleness:nanoseconds:cpu:nanoseconds`` and so on."""

_UNSAFE_VALUE = regex(r"[,{}=]")
_UNSAFE_SERVICE = regex(r"[^a-zA-Z0-9_./-]")


class PyroscopePush:
    """``POST /push.v1.PusherService/Push`` (grafana/pyroscope, api/push/v1): Pyroscope 1.0 and later."""

    name = "pyroscope"

    def encode(self, payload: Payload, labels: Mapping[str, str]) -> PushRequest:
        """One series with one profile."""
        data = payload.packed
        out = pb.PushRequest()
        series = out.series.add()
        series.labels.add(name="__name__", value=PROFILE_NAME)
        for name, value in sorted(labels.items()):
            series.labels.add(name=name, value=value)
        # The same profile has the same UUID, so that one that was sent twice can be told.
        series.samples.add(
            raw_profile=data, ID=str(uuid.UUID(bytes=hashlib.sha256(data).digest()[:16], version=4))
        )
        return PushRequest("/push.v1.PusherService/Push", "application/proto", out.SerializeToString())

    def judge(self, reply: Reply) -> tuple[Delivery, str]:
        """By status. In the Connect protocol, a success has the content type that was asked in."""
        return judge_status(reply, content_type="application/proto")


class PyroscopeIngest:
    """``POST /ingest`` with a multipart form, as Pyroscope's own agents send it.

    The parameter ``format=pprof`` is for bodies that are the profile itself: with it, servers do not look for
    the form. They name the profile after its columns, hence the display name ``cpu``: profile types are
    ``process_cpu:idleness:nanoseconds:cpu:nanoseconds`` and so on.
    """

    name = "pyroscope"

    def encode(self, payload: Payload, labels: Mapping[str, str]) -> PushRequest:
        """Labels and times go into the address, the profile and a word on its columns into the form."""
        labels = {name: _UNSAFE_VALUE.sub("_", value) for name, value in labels.items()}
        service = _UNSAFE_SERVICE.sub("_", labels.pop(SERVICE_NAME))
        pairs = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        columns = {
            name: {"units": unit, "display-name": "cpu" if name == "work" else name, "sampled": True}
            for name, unit in (
                ("samples", "samples"),
                ("work", "nanoseconds"),
                (DEFAULT_SAMPLE_TYPE, "nanoseconds"),
            )
        }
        profile = payload.profile
        start_s = profile.start_time_s
        query = urlencode(
            {
                "name": f"{service}{{{pairs}}}",
                "from": int(start_s),
                "until": int(start_s + profile.duration_s),
                "sampleRate": profile.frequency_hz or 100,
                "spyName": "parprof",
            }
        )
        data = payload.packed
        boundary = hashlib.sha256(data).hexdigest()
        body = _form(boundary, {"profile": data, "sample_type_config": json.dumps(columns).encode()})
        return PushRequest(f"/ingest?{query}", f"multipart/form-data; boundary={boundary}", body)

    def judge(self, reply: Reply) -> tuple[Delivery, str]:
        """By status."""
        return judge_status(reply)


def _form(boundary: str, parts: Mapping[str, bytes]) -> bytes:
    out = bytearray()
    for name, data in parts.items():
        head = f'Content-Disposition: form-data; name="{name}"; filename="{name}"'
        out += f"--{boundary}\r\n{head}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
        out += data + b"\r\n"
    out += f"--{boundary}--\r\n".encode()
    return bytes(out)
