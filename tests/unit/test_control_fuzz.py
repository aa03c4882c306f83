# SPDX-License-Identifier: Apache-2.0
"""Anything at all on the control socket: an answer or an error, then the end, and the server lives on."""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import StandInService, process, serving
from parprof.service.control import control_pb2 as pb
from parprof.service.control.client import Client
from parprof.service.control.conversation import PROTOCOL
from parprof.service.control.frames import MAX_REQUEST, receive

HELLO = pb.Request(hello=pb.Hello(protocol=PROTOCOL)).SerializeToString()

# No seconds: a fuzzer that attaches would wait for them. PIDs that do not exist, or are no process's.
_pids = st.sampled_from([0, 2**22 + 1, 2**32 - 1])
requests = st.one_of(
    st.just(pb.Request()),
    st.just(pb.Request(status=pb.StatusRequest())),
    st.just(pb.Request(list=pb.ListRequest())),
    st.just(pb.Request(finish=pb.Finish())),
    st.just(pb.Request(hello=pb.Hello(protocol=PROTOCOL))),
    _pids.map(lambda pid: pb.Request(watch=pb.WatchRequest(pid=pid))),
    _pids.map(lambda pid: pb.Request(unwatch=pb.UnwatchRequest(pid=pid))),
    st.builds(
        lambda pid, seconds: pb.Request(attach=pb.AttachRequest(pid=pid, seconds=seconds)), _pids, st.floats()
    ),
).map(pb.Request.SerializeToString)


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@pytest.fixture(scope="module")
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        with serving(StandInService(process(os.getpid(), os.getuid())), Path(directory)) as path:
            yield path


def exchange(path: str, data: bytes) -> list[pb.Response]:
    """Send all that, and nothing after it; the answers until the server ends the connection."""
    answers = []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # it had enough before the end
        while True:
            try:
                answer = receive(sock, 32 << 20, 30, 30)
            except Exception as error:
                assert "Connection reset" in str(error)  # it ended the connection with some of ours unread
                break
            if answer is None:
                break
            answers.append(pb.Response.FromString(answer))
    return answers


def lives(path: str) -> None:
    with Client(path) as client:
        assert client.status().samples == 12345


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_junk(path: str, junk: bytes) -> None:
    answers = exchange(path, junk)
    assert [one.WhichOneof("kind") for one in answers] in ([], ["error"])
    if junk:
        assert answers
    lives(path)


@settings(max_examples=150, deadline=None)
@given(st.lists(requests | st.binary(max_size=60), max_size=5))
def test_junk_after_a_greeting(path: str, frames: list[bytes]) -> None:
    answers = exchange(path, b"".join(map(framed, [HELLO, *frames])))
    assert answers[0].hello.protocol == PROTOCOL
    assert len(answers) <= 1 + len(frames)
    malformed = [at for at, one in enumerate(answers) if one.error.code == pb.Error.MALFORMED]
    assert malformed in ([], [len(answers) - 1])  # it is the last word
    lives(path)


@settings(max_examples=100, deadline=None)
@given(requests, st.data())
def test_damaged_requests(path: str, request: bytes, data: st.DataObject) -> None:
    raw = bytearray(framed(HELLO) + framed(request))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for answer in exchange(path, bytes(raw[: data.draw(st.integers(0, len(raw)))])):
        assert answer.WhichOneof("kind") in ("hello", "status", "list", "error", "done")
    lives(path)


def test_too_large(path: str) -> None:
    for length in (MAX_REQUEST + 1, 2**32 - 1):
        answers = exchange(path, struct.pack(">I", length) + bytes(1000))
        assert [one.error.code for one in answers] == [pb.Error.MALFORMED]
        assert f"at most {MAX_REQUEST}" in answers[0].error.message
    lives(path)


def test_large_but_allowed(path: str) -> None:
    """A megabyte of what nobody knows: read, and refused as no request."""
    unknown = b"\x82\x7d" + b"\xfb\xff\x3f" + bytes(MAX_REQUEST - 5)
    answers = exchange(path, framed(HELLO) + framed(unknown))
    assert [one.WhichOneof("kind") for one in answers] == ["hello", "error"]
    assert "does not know this request" in answers[1].error.message
    lives(path)


def test_requests_before_the_greeting(path: str) -> None:
    answers = exchange(path, framed(pb.Request(list=pb.ListRequest()).SerializeToString()))
    assert [one.error.message for one in answers] == ["the first message must be a Hello"]
