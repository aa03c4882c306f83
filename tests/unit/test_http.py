# SPDX-License-Identifier: Apache-2.0
"""The HTTP server over real sockets: what it answers, whom it refuses, which clients it survives."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof import pprof_pb2 as pb
from parprof.errors import OutputError, UsageError
from parprof.metrics import Metrics
from parprof.model import ProcessInfo, Profile
from parprof.service.http import HttpServer, conversation, server, site
from parprof.service.http.address import Guard
from parprof.service.http.message import RequestError, parse_head
from parprof.service.http.process_page import process_page
from parprof.service.serving import Limits
from stand_in_service import Program, StandInService

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def service() -> StandInService:
    return StandInService()


Starter = Callable[..., HttpServer]


@pytest.fixture
def start(service: StandInService) -> Iterator[Starter]:
    with ExitStack() as stack:

        def start(address: str = "127.0.0.1:0", **options: Any) -> HttpServer:
            http_server = HttpServer(service, address, **options)
            http_server.start()
            stack.callback(http_server.close)
            return http_server

        yield start


@pytest.fixture
def running(start: Starter) -> HttpServer:
    return start()


def endpoint(http_server: HttpServer) -> tuple[str, int]:
    host, _, port = http_server.address.rpartition(":")
    return host.strip("[]"), int(port)


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


def ask(http_server: HttpServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(*endpoint(http_server), timeout=30)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        response = connection.getresponse()
        names = {name.lower(): text for name, text in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


def raw(http_server: HttpServer, data: bytes) -> bytes:
    """What comes back for these bytes and then no more, until the server ends the connection."""
    with socket.create_connection(endpoint(http_server), timeout=30) as connection:
        connection.sendall(data)
        out = b""
        while part := connection.recv(65536):
            if not out:  # earlier, our socket would have no owner any more
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
            out += part
        return out


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# What it answers


def test_metrics(running: HttpServer, service: StandInService) -> None:
    answer = ask(running, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b'\nparprof_cores{comm="heat",pid="42",cgroup="",runtime="libgomp"} 8\n' in answer.body
    assert b'parprofd_http_requests_total{code="200",route="/metrics"} 0.0\n' in answer.body
    again = ask(running, "/metrics").body
    assert b'parprofd_http_requests_total{code="200",route="/metrics"} 1.0\n' in again
    openmetrics = ask(running, "/metrics", Accept="application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_health(running: HttpServer, service: StandInService) -> None:
    for path, trouble in (("/healthz", "unhealthy"), ("/readyz", "not_ready")):
        answer = ask(running, path)
        assert (answer.status, answer.body) == (200, b"ok\n")
        setattr(service, trouble, "the loader died; see the log")
        answer = ask(running, path)
        assert (answer.status, answer.body) == (503, b"the loader died; see the log\n")


def test_profiles(running: HttpServer) -> None:
    answer = ask(running, "/profiles")
    assert answer.headers["content-type"] == "application/json"
    profiles = json.loads(answer.body)["profiles"]
    assert [entry["pid"] for entry in profiles] == [42, 77]
    for key in ("pprof", "flame_graph", "report"):
        assert ask(running, profiles[0][key]).status == 200


def test_pprof(running: HttpServer) -> None:
    answer = ask(running, "/profiles/42.pb.gz?seconds=7")
    assert answer.headers["content-disposition"] == 'attachment; filename="parprof-42.pb.gz"'
    profile = pb.Profile.FromString(gzip.decompress(answer.body))
    assert profile.duration_nanos == 7 * 10**9
    assert "pid: 42" in {profile.string_table[index] for index in profile.comment}


def test_report(running: HttpServer) -> None:
    answer = ask(running, "/profiles/42.html?seconds=7")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b'<a href="/">all processes</a>' in answer.body
    assert b'<a href="/profiles/42.pb.gz?intervals=3-8">pprof</a>' in answer.body
    assert b"7.00 s" in answer.body
    # The browser holds the page to both policies, that of the header and its own.
    policy = answer.headers["content-security-policy"].removesuffix("; frame-ancestors 'none'")
    assert f'content="{policy}"'.encode() in answer.body
    assert "unsafe" not in policy


def test_a_link_to_a_profile_is_to_that_one(running: HttpServer, service: StandInService) -> None:
    links = re.findall(r'href="(/profiles/[^"]+)"', ask(running, "/profiles/42.html?seconds=7").body.decode())
    assert links == ["/profiles/42.pb.gz?intervals=3-8", "/profiles/42.html?intervals=3-8"]
    service.asked.clear()
    assert [ask(running, link).status for link in links] == [200, 200]
    assert service.asked == [(42, (3, 8)), (42, (3, 8))]
    answer = ask(running, "/profiles/42.html?intervals=1-8")
    assert answer.status == 404 and b"not kept any more" in answer.body
    for wrong in ("8", "a-b", "1-2-3", "-1-4", "1-" + "9" * 30):
        assert ask(running, f"/profiles/42.pb.gz?intervals={wrong}").status == 400


def test_the_page_of_a_process(running: HttpServer, service: StandInService) -> None:
    status = ask(running, "/").body.decode()
    link = next(one for one in re.findall(r'href="([^"]+)"', status) if one.startswith("/processes/42?"))
    path, fragment = link.split("#")
    assert fragment == "tab=threads"
    others = [one for one in re.findall(r'href="([^"]+)"', status) if "/profiles/42." in one]
    assert len(others) == 4 and all("since=" in one for one in others)
    answer = ask(running, path)
    assert answer.status == 200
    text = answer.body.decode()
    for expected in (
        "efficiency in the last interval",
        "cores really idle",
        "0.40 %",
        "budget 1.0 %",
        "ring_full 100",
        'class="spark"',
        'id="shares"',
        "/profiles/42.pb.gz?intervals=3-8",
    ):
        assert expected in text, expected
    policy = answer.headers["content-security-policy"].removesuffix("; frame-ancestors 'none'")
    assert f'content="{policy}"' in text and "unsafe" not in policy
    assert ask(running, "/processes/42").status == 200
    assert ask(running, "/processes/4242").status == 404
    assert ask(running, "/processes/42?seconds=0").status == 400
    service.programs = [Program(42, "another")]  # which has its PID now
    service.started_s += 60
    service.advance(1)
    answer = ask(running, path)
    assert answer.status == 404 and b"has ended" in answer.body
    for other in others:
        assert ask(running, other.replace("&amp;", "&")).status == 404
    assert ask(running, "/processes/42").status == 200
    assert b'route="/processes/PID"' in ask(running, "/metrics").body


def test_the_page_of_a_process_with_hostile_names(running: HttpServer, service: StandInService) -> None:
    bad = "</title><script>alert(1)</script><img src=x onerror=alert(1)>"
    service.programs = [Program(42, bad, command=bad, notes=(bad,), cost_ratio=0.02)]
    service.lost[bad] = 7
    service.advance(1)
    text = ask(running, "/processes/42").body.decode()
    assert text.count("<script") == 3 and "<img" not in text
    assert 'class="beyond"' in text  # cost


def test_a_process_without_samples_has_a_page(service: StandInService) -> None:
    snapshot = service.snapshot()
    idle = replace(snapshot.processes[0], history=(), totals=Metrics())
    profile = Profile(ProcessInfo(42, "idle"), 30.0, 99, [])
    assert "nothing was sampled" in process_page(profile, idle, snapshot, []).html()
    assert "–" not in process_page(profile, None, snapshot, []).html()


@pytest.mark.parametrize(
    ("query", "there"),
    [
        ("", "?seconds=30"),
        ("?by=effort&seconds=12&focus=0123456789abcdef", "?seconds=12&by=effort"),
        ("?by=a%0d%0aSet-Cookie:x", "?seconds=30"),
        ("?by=" + "x" * 41, "?seconds=30"),
    ],
)
def test_where_flame_graphs_were(running: HttpServer, query: str, there: str) -> None:
    answer = ask(running, f"/profiles/42.svg{query}")
    assert (answer.status, answer.headers["location"]) == (308, f"/profiles/42.html{there}")
    assert ask(running, answer.headers["location"]).status == 200


def test_head_has_no_body(running: HttpServer) -> None:
    answer = raw(running, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == 200
    assert b"Content-Length: " in head
    assert not body


def test_every_answer_has_safety_headers(running: HttpServer) -> None:
    for path in ("/", "/metrics", "/profiles", "/profiles/42.svg", "/profiles/42.html", "/nothing"):
        headers = ask(running, path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["connection"] == ("close" if path == "/nothing" else "keep-alive")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/profiles/", 404),
        ("/profiles/42", 404),
        ("/profiles/42.txt", 404),
        ("/profiles/0.pb.gz", 404),
        ("/profiles/-1.pb.gz", 404),
        ("/profiles/99999999999.pb.gz", 404),
        ("/profiles/4242.pb.gz", 404),
        ("/profiles/../../etc/passwd", 404),
        ("/profiles/%2e%2e/%2e%2e/etc/passwd", 404),
        ("/..%2fetc/passwd", 404),
        ("//etc/passwd", 404),
        ("/profiles/42.pb.gz/../../metrics", 404),
        ("/profiles/٤٢.pb.gz".encode().decode("latin-1"), 400),
        ("/profiles/42.pb.gz?seconds=0", 400),
        ("/profiles/42.pb.gz?seconds=-1", 400),
        ("/profiles/42.pb.gz?seconds=nan", 400),
        ("/profiles/42.pb.gz?seconds=inf", 400),
        ("/profiles/42.pb.gz?seconds=1e9", 400),
        ("/profiles/42.pb.gz?seconds=" + "1" * 100, 400),
        ("/profiles/42.svg?seconds=-1", 400),
        ("/profiles/42.svg?" + "&".join("a" * 17), 400),
        ("/profiles/42.svg?by=effort&focus=0123456789abcdef", 308),
        ("/profiles/42.html?by=everything", 200),
        ("/?sort=" + "x" * 100, 200),
        ("/" + "x" * 3000, 414),
    ],
)
def test_paths(running: HttpServer, path: str, status: int) -> None:
    answer = raw(running, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1"))
    assert status_of(answer) == status
    assert b"root:" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_only_reading(running: HttpServer, method: str) -> None:
    answer = ask(running, "/metrics", method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


# What is no request


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: localhost\n\n\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n", 200),
    ],
)
def test_bytes(running: HttpServer, data: bytes, status: int) -> None:
    answer = raw(running, data)
    assert status_of(answer) == status
    assert answer.count(b"HTTP/1.1 ") == 1


@settings(deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda tail: b"GET /" + tail))
def test_any_bytes(head: bytes) -> None:
    """They are a request, or refused with a reason; nothing else."""
    try:
        request = parse_head(head)
    except RequestError as error:
        assert 400 <= error.status < 500
    else:
        assert request.path.startswith("/")


def test_endless_headers(running: HttpServer) -> None:
    with socket.create_connection(endpoint(running), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):
            while True:
                connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")
    assert ask(running, "/healthz").status == 200


# Connections that stay


def exchange(connection: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, str, bytes]:
    """Status, whether there may be more, and body."""
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.headers["connection"], response.read()


def test_many_requests_on_one_connection(running: HttpServer, service: StandInService) -> None:
    with closing(http.client.HTTPConnection(*endpoint(running), timeout=30)) as connection:
        connection.connect()
        own = connection.sock.getsockname()
        for number in range(20):
            service.advance(1)
            status, more, body = exchange(connection, "/metrics", **{"Accept-Encoding": "gzip"})
            assert (status, more) == (200, "keep-alive")
            scrapes = f'requests_total{{code="200",route="/metrics"}} {number}.0\n'
            assert scrapes.encode() in gzip.decompress(body)
        for path in ("/", "/profiles", "/profiles/42.pb.gz", "/profiles/42.svg", "/processes/42", "/healthz"):
            assert exchange(connection, path)[1] == "keep-alive"
        connection.request("HEAD", "/metrics")
        response = connection.getresponse()
        assert int(response.headers["content-length"]) > 1000 and response.read() == b""
        assert exchange(connection, "/healthz")[2] == b"ok\n", "no body was in between"
        assert connection.sock.getsockname() == own
        assert running._listener.served == 1
        assert exchange(connection, "/nothing")[:2] == (404, "close")
    until(lambda: not running._listener.served)


@pytest.mark.parametrize(
    ("request_", "stays"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", True),
        (b"GET /healthz HTTP/1.0\r\nConnection: Upgrade, Keep-Alive\r\n\r\n", True),
        (b"GET /healthz HTTP/1.0\r\n\r\n", False),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Close\r\n\r\n", False),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\n", False),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", False),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", False),
        (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", False),
        (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", False),
        (b"nonsense\r\n\r\n", False),
    ],
)
def test_which_connections_stay(running: HttpServer, request_: bytes, stays: bool) -> None:
    """Not where the next request might be something else, such as this one's body."""
    with socket.create_connection(endpoint(running), timeout=30) as connection:
        connection.sendall(request_)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65536)
        assert (b"\r\nConnection: keep-alive\r\n" in answer) is stays
        assert (b"\r\nConnection: close\r\n" in answer) is not stays
        if stays:
            connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        while part := connection.recv(65536):
            answer += part
    assert answer.count(b"HTTP/1.1 ") == 1 + stays


def test_a_request_on_a_kept_connection_has_its_time_and_no_more(
    running: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "HEAD_SECONDS", 0.3)
    with closing(http.client.HTTPConnection(*endpoint(running), timeout=30)) as connection:
        assert exchange(connection, "/healthz")[0] == 200
        time.sleep(0.6)
        assert exchange(connection, "/healthz")[0] == 200, "between two requests there is more"
        connection.sock.sendall(b"GET /healthz HT")
        assert status_of(connection.sock.recv(65536)) == 408


def test_an_idle_connection_ends(running: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "KEEP_SECONDS", 1)
    with closing(http.client.HTTPConnection(*endpoint(running), timeout=30)) as connection:
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        assert response.headers["keep-alive"] == "timeout=1" and response.read() == b"ok\n"
        began = time.monotonic()
        assert connection.sock.recv(10) == b"", "without a word, as the client has not asked"
        assert time.monotonic() - began >= 0.9
    until(lambda: not running._listener.served)


def test_a_connection_does_not_stay_for_ever(running: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "STAY_SECONDS", 0.4)
    with closing(http.client.HTTPConnection(*endpoint(running), timeout=30)) as connection:
        assert exchange(connection, "/healthz")[1] == "keep-alive"
        time.sleep(0.5)
        assert exchange(connection, "/healthz")[:2] == (200, "close")


def test_the_token_is_asked_for_in_each_request(start: Starter) -> None:
    running, new = start(token=TOKEN), "fedcba9876543210-secret"
    with closing(http.client.HTTPConnection(*endpoint(running), timeout=30)) as connection:
        assert exchange(connection, "/", Authorization="Bearer " + TOKEN)[0] == 200
        running.reload_token(new)
        assert exchange(connection, "/", Authorization="Bearer " + new)[0] == 200
        assert exchange(connection, "/", Authorization="Bearer " + TOKEN)[:2] == (401, "close")


def test_kept_connections_make_room(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's, too, for whoever comes: the oldest first. One that just asks, or has yet to, stays."""
    monkeypatch.setattr(server, "LIMITS", Limits(4))
    running = start()
    with ExitStack() as stack:
        stack.enter_context(socket.create_connection(endpoint(running)))
        until(lambda: running._listener.served == 1)
        kept = []
        for number in range(2, 5):
            one = stack.enter_context(closing(http.client.HTTPConnection(*endpoint(running), timeout=30)))
            assert exchange(one, "/healthz")[1] == "keep-alive"
            until(lambda number=number: running._listener.served == number)
            kept.append(one)
        until(lambda: [seat.is_kept for _, seat in running._listener._served.values()].count(True) == 3)
        kept[0].sock.sendall(b"GET /heal")
        until(lambda: [seat.is_kept for _, seat in running._listener._served.values()].count(True) == 2)
        assert ask(running, "/readyz").status == 200
        assert kept[1].sock.recv(10) == b""
        kept[0].sock.sendall(b"thz HTTP/1.0\r\n\r\n")
        assert status_of(kept[0].sock.recv(65536)) == 200
        assert exchange(kept[2], "/healthz")[0] == 200


def test_silent_connections_do_not_take_a_kept_ones_place(running: HttpServer) -> None:
    with (
        closing(http.client.HTTPConnection(*endpoint(running), timeout=30)) as connection,
        ExitStack() as stack,
    ):
        assert exchange(connection, "/metrics")[0] == 200
        own = connection.sock.getsockname()
        for _ in range(60):
            stack.enter_context(socket.create_connection(endpoint(running)))
        until(lambda: running._listener.served == 61)
        for _ in range(3):
            assert exchange(connection, "/metrics")[:2] == (200, "keep-alive")
        assert connection.sock.getsockname() == own
        assert ask(running, "/healthz").status == 200


# Whom it refuses


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("127.0.0.1:9466", False),
        ("localhost", False),
        ("LOCALHOST:1", False),
        ("localhost.", False),
        ("parprofd.localhost:9466", False),
        ("[::1]:9466", False),
        ("127.8.8.8", False),
        ("evil.example", True),
        ("evil.example:9466", True),
        ("localhost.evil.example", True),
        ("evillocalhost", True),
        ("192.168.0.1", True),
        ("[::2]", True),
        ("127.0.0.1@evil.example", True),
        ("", True),
        ("localhost:x", True),
    ],
)
def test_host(running: HttpServer, host: str, refused: bool) -> None:
    answer = raw(running, f"GET /profiles HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status_of(answer) == (421 if refused else 200)
    assert (b"heat" in answer) != refused


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer " + TOKEN[:-1], 401),
        ("Bearer " + TOKEN + "x", 401),
        ("Bearer é" + TOKEN, 401),
        (TOKEN, 401),
        ("Basic !!!", 401),
        (basic("wrong"), 401),
        (basic(TOKEN), 200),
        ("Bearer " + TOKEN, 200),
        ("bearer  " + TOKEN, 200),
    ],
)
def test_token(start: Starter, authorization: str | None, status: int) -> None:
    running = start(token=TOKEN)
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in ("/", "/metrics", "/profiles/42.pb.gz", "/nothing"):
        answer = ask(running, path, **headers)
        assert answer.status == (404 if status == 200 and path == "/nothing" else status)
        if status == 401:
            assert answer.headers["www-authenticate"].startswith("Basic ")
            assert b"heat" not in answer.body


def test_a_scrape_has_a_fresh_snapshot_or_the_newest(
    start: Starter, service: StandInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    assert ask(running, "/metrics").status == 200 and service.refreshed == 1
    assert ask(running, "/").status == 200 and service.refreshed == 1, "people look more often than that"
    monkeypatch.setattr(site, "_REFRESH_SECONDS", 0.05)
    service.is_busy = True
    assert b"parprof_cores" in ask(running, "/metrics").body and service.refreshed == 2


def test_a_token_is_read_again(start: Starter) -> None:
    running, new = start(token=TOKEN), "fedcba9876543210-secret"
    running.reload_token(new)
    assert ask(running, "/metrics", Authorization="Bearer " + new).status == 200
    assert ask(running, "/metrics", Authorization="Bearer " + TOKEN).status == 401
    for wrong in ("", "short"):
        with pytest.raises(UsageError):
            running.reload_token(wrong)
    assert ask(running, "/metrics", Authorization="Bearer " + new).status == 200
    with pytest.raises(UsageError, match="restart"):
        start().reload_token(TOKEN)


def test_health_needs_no_token_but_says_little(start: Starter, service: StandInService) -> None:
    running = start(token=TOKEN)
    assert ask(running, "/healthz").status == 200
    service.unhealthy = "secret detail"
    assert ask(running, "/healthz").body == b"not ok\n"
    assert ask(running, "/healthz", Authorization=f"Bearer {TOKEN}").body == b"secret detail\n"


@pytest.mark.parametrize(
    ("address", "options", "remedy"),
    [
        ("0.0.0.0:9466", {}, "set a token, certificate and key too, or listen on 127.0.0.1:9466"),
        ("[::]:9466", {}, "set a token"),
        (":9466", {}, "set a token"),
        ("192.0.2.1:9466", {}, "set a token"),
        ("0.0.0.0:9466", {"token": TOKEN}, "set certificate and key too"),
        ("0.0.0.0:9466", {"token": TOKEN, "metrics_for_all": True}, "set certificate and key too"),
        ("0.0.0.0:9466", {"client_ca": "/nowhere"}, "set certificate and key too"),
        ("127.0.0.1:9466", {"client_ca": "/nowhere"}, "set certificate and key too"),
        ("127.0.0.1:9466", {"token": "short"}, "openssl rand"),
        ("127.0.0.1:9466", {"token": "x" * 20 + "\n"}, "openssl rand"),
        ("127.0.0.1:9466", {"certificate": "/nowhere"}, "both"),
        ("127.0.0.1:9466", {"certificate": "/nowhere", "key": "/nowhere"}, "give a PEM"),
        ("9466", {}, "write HOST:PORT"),
        ("127.0.0.1:", {}, "write HOST:PORT"),
        ("127.0.0.1:x", {}, "write HOST:PORT"),
        ("127.0.0.1:70000", {}, "write HOST:PORT"),
        ("no such host:1", {}, "write its IP address"),
        ("x" * 300 + ":1", {}, "write its IP address"),
    ],
)
def test_wrong_settings(service: StandInService, address: str, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy) as error:
        HttpServer(service, address, **options)
    assert "\n" not in str(error.value)


def test_metrics_for_all_are_metrics_alone(start: Starter, service: StandInService) -> None:
    """On an address that is open to others, without a token: nobody gets anything else."""
    service.unhealthy = "secret detail"
    running = start("0.0.0.0:0", metrics_for_all=True)
    there = endpoint(running)[1]
    with socket.create_connection(("127.0.0.1", there), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: node7:9466\r\n\r\n")
        page = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"200 OK" in page and b"parprof_cores" in page and b"parprof_function_" not in page
    for path in ("/", "/profiles", "/profiles/42.pb.gz", "/profiles/42.html", "/metrics/"):
        for proof in ({}, {"Authorization": "Bearer "}, {"Authorization": basic("")}):
            answer = ask(running, path, **proof)
            assert answer.status == 401 and b"heat" not in answer.body
    assert ask(running, "/healthz").body == b"not ok\n"


def test_metrics_for_all_beside_a_token(start: Starter) -> None:
    running = start(token=TOKEN, metrics_for_all=True)
    assert b"parprof_cores" in ask(running, "/metrics").body
    assert ask(running, "/").status == 401
    assert b"parprof_function_" in ask(running, "/metrics", Authorization="Bearer " + TOKEN).body


def test_taken_address(running: HttpServer, service: StandInService) -> None:
    second = HttpServer(service, running.address)
    with pytest.raises(OutputError, match="set another"):
        second.start()
    second.close()


def test_ipv6(start: Starter) -> None:
    running = start("[::1]:0")
    assert running.address.startswith("[::1]:")
    assert ask(running, "/healthz").status == 200


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "first")


def make_certificate(directory: Path, name: str) -> tuple[str, str]:
    files = str(directory / f"{name}.pem"), str(directory / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


def test_tls_shakes_hands_once(start: Starter, certificate: tuple[str, str]) -> None:
    running = start(certificate=certificate[0], key=certificate[1])
    context = ssl.create_default_context(cafile=certificate[0])
    where = endpoint(running)
    with closing(http.client.HTTPSConnection(*where, timeout=30, context=context)) as connection:
        assert exchange(connection, "/metrics")[:2] == (200, "keep-alive")
        stream = connection.sock
        for _ in range(3):
            assert exchange(connection, "/metrics")[:2] == (200, "keep-alive")
        assert connection.sock is stream and running._listener.served == 1
        assert exchange(connection, "/nothing")[:2] == (404, "close")


def ask_tls(running: HttpServer, trust: str, path: str = "/metrics", token: str = TOKEN) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=trust)
    connection = http.client.HTTPSConnection("127.0.0.1", endpoint(running)[1], timeout=30, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_tls_open_to_others(start: Starter, certificate: tuple[str, str]) -> None:
    running = start("0.0.0.0:0", token=TOKEN, certificate=certificate[0], key=certificate[1])
    status, body = ask_tls(running, certificate[0])
    assert status == 200
    assert b"parprof_cores" in body
    assert ask_tls(running, certificate[0], token="wrong")[0] == 401
    # In clear text there is no answer at all.
    with socket.create_connection(("127.0.0.1", endpoint(running)[1]), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        received = b""
        try:
            while part := connection.recv(4096):
                received += part
        except ConnectionResetError:
            pass
    assert b"parprof" not in received
    assert ask_tls(running, certificate[0])[0] == 200


def test_client_certificates(start: Starter, certificate: tuple[str, str], tmp_path: Path) -> None:
    """One that the CA has issued is as good as the token; another one is not let in; without one there is health."""
    known, unknown = make_certificate(tmp_path, "known"), make_certificate(tmp_path, "unknown")
    running = start("0.0.0.0:0", certificate=certificate[0], key=certificate[1], client_ca=known[0])

    def ask_as(path: str, own: tuple[str, str] | None) -> int:
        context = ssl.create_default_context(cafile=certificate[0])
        if own:
            context.load_cert_chain(*own)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", endpoint(running)[1], timeout=30, context=context
        )
        with closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status

    assert [ask_as(path, known) for path in ("/metrics", "/", "/profiles/42.pb.gz")] == [200] * 3
    assert [ask_as(path, None) for path in ("/healthz", "/metrics", "/", "/profiles/42.pb.gz")] == [200] + [
        401
    ] * 3
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask_as("/metrics", unknown)
    assert ask_tls(running, certificate[0], token="")[0] == 401
    Path(known[0]).write_bytes(Path(unknown[0]).read_bytes())
    running.reload_certificate()
    assert ask_as("/", unknown) == 200


def test_tls_refuses_old_versions(start: Starter, certificate: tuple[str, str]) -> None:
    running = start(certificate=certificate[0], key=certificate[1])
    old = subprocess.run(
        ["openssl", "s_client", "-connect", running.address, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        input=b"", capture_output=True, timeout=30,
    )  # fmt: skip
    assert old.returncode != 0


def test_tls_silent_client(start: Starter, certificate: tuple[str, str]) -> None:
    running = start(certificate=certificate[0], key=certificate[1])
    with socket.create_connection(endpoint(running)):
        assert ask_tls(running, certificate[0])[0] == 200


def test_certificate_is_read_again(start: Starter, tmp_path: Path) -> None:
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    files = tmp_path / "live.pem", tmp_path / "live.key"

    def install(source: tuple[str, str]) -> None:
        for here, there in zip(source, files, strict=True):
            there.write_bytes(Path(here).read_bytes())

    install(first)
    running = start(certificate=str(files[0]), key=str(files[1]))
    assert ask_tls(running, first[0])[0] == 200
    install(second)
    running.reload_certificate()
    assert ask_tls(running, second[0])[0] == 200
    files[1].write_text("rubbish")
    with pytest.raises(UsageError):
        running.reload_certificate()
    assert ask_tls(running, second[0])[0] == 200


# Which clients it survives


def test_many_scrapes_at_once(running: HttpServer, service: StandInService) -> None:
    service.programs = [Program(1000 + number, f"p{number}") for number in range(50)]
    service.advance(1)
    started = threading.Barrier(100)

    def scrape(_: int) -> tuple[int, bytes]:
        started.wait()
        answer = ask(running, "/metrics")
        return answer.status, answer.body

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(scrape, range(100)))
    assert {status for status, _ in answers} == {200}
    assert all(body.count(b"\nparprof_cores{") == 50 for _, body in answers)


def test_silent_and_slow_clients_do_not_stop_others(running: HttpServer) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(endpoint(running))) for _ in range(40)]
        for connection in idle[20:]:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHo")
        assert ask(running, "/metrics").status == 200


def test_a_slow_request_is_ended(running: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte after byte does not help: the time is for the whole request."""
    monkeypatch.setattr(conversation, "HEAD_SECONDS", 0.5)
    with socket.create_connection(endpoint(running), timeout=30) as connection:
        answer = b""
        connection.settimeout(0.05)
        deadline = time.monotonic() + 60
        while not answer and time.monotonic() < deadline:
            try:
                connection.send(b"G")
                answer = connection.recv(4096)
            except TimeoutError:
                pass
        assert status_of(answer) == 408


def test_a_client_that_does_not_read_is_dropped(
    running: HttpServer, service: StandInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "SEND_SECONDS", 0.3)
    service.programs = [Program(1000 + number, f"p{number}" + "x" * 100) for number in range(500)]
    service.advance(1)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(endpoint(running))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        until(lambda: running._listener.served)
        until(lambda: not running._listener.served)
    assert ask(running, "/healthz").status == 200


def test_too_many_connections(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LIMITS", Limits(4, 4, 600.0))
    monkeypatch.setattr(conversation, "HEAD_SECONDS", 600.0)
    running = start()
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(endpoint(running)))
        until(lambda: (running._listener.served, running._listener.waiting) == (4, 4))
        answer = ask(running, "/metrics")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert running._listener.served == 4
    until(lambda: ask(running, "/metrics").status == 200)  # once it has noticed that they are gone
    answer = ask(running, "/metrics")
    assert b'parprofd_http_requests_total{code="503",route="none"}' in answer.body


def test_those_who_wait_too_long_are_sent_away(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LIMITS", Limits(1, 64, 0.3))
    monkeypatch.setattr(conversation, "HEAD_SECONDS", 600.0)
    running = start()
    with socket.create_connection(endpoint(running)):
        until(lambda: running._listener.served == 1)
        assert ask(running, "/metrics").status == 503


def test_a_profile_that_never_comes(
    running: HttpServer, service: StandInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "PROFILE_TIMEOUT_SECONDS", 0.3)
    service.hangs = True
    assert ask(running, "/profiles/42.pb.gz").status == 504
    assert service.pending[0].cancelled()


def test_few_profiles_at_a_time(
    running: HttpServer, service: StandInService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "PROFILE_TIMEOUT_SECONDS", 1.0)
    service.hangs = True
    at_once = []
    ask_service = service.profile

    def counted(pid: int, seconds: float) -> Future[Profile]:
        future = ask_service(pid, seconds)
        at_once.append(sum(not one.done() for one in service.pending))
        return future

    monkeypatch.setattr(service, "profile", counted)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: ask(running, "/profiles/42.html").status, range(8)))
    assert set(statuses) <= {503, 504}
    assert max(at_once) <= site.MAX_PROFILES
    service.hangs = False
    assert ask(running, "/profiles/42.html").status == 200


def test_a_bug_is_one_500(
    running: HttpServer,
    service: StandInService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("inner secret")

    monkeypatch.setattr(service, "profiles", broken)
    answer = ask(running, "/profiles")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "inner secret" in caplog.text
    assert ask(running, "/healthz").status == 200


def test_close_ends_everything(start: Starter) -> None:
    running = start()
    with socket.create_connection(endpoint(running), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        until(lambda: running._listener.served)
        running.close()
        assert connection.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(endpoint(running))
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("parprofd-http")])
    running.close()


def test_never_started(service: StandInService) -> None:
    HttpServer(service, "127.0.0.1:0").close()


def test_token_of_equal_length_is_compared_whole() -> None:
    guard = Guard(is_loopback=True, token=TOKEN)
    assert guard.refuses_token("Bearer " + "x" * len(TOKEN))
    assert not guard.refuses_token("Bearer " + TOKEN)


def until(condition: Callable[[], object]) -> None:
    """Wait for it, for up to a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("accepts", "packed"), [("gzip", True), ("br;q=1.0, gzip;q=0.8", True), ("gzip;q=0", False)]
)
def test_large_pages_are_packed_for_those_who_ask_for_it(
    running: HttpServer, accepts: str, packed: bool
) -> None:
    plain = ask(running, "/")
    answer = ask(running, "/", Accept_Encoding=accepts)
    assert ("content-encoding" in answer.headers) is packed and "content-encoding" not in plain.headers
    assert int(answer.headers["content-length"]) == len(answer.body)
    page = gzip.decompress(answer.body) if packed else answer.body
    assert page.startswith(b"<!DOCTYPE html>") and page[-200:] == plain.body[-200:]
    assert len(answer.body) < len(page) / 2 or not packed
    assert "content-encoding" not in ask(running, "/healthz", Accept_Encoding=accepts).headers, "too small"
