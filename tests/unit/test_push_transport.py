# SPDX-License-Identifier: Apache-2.0
"""Requests to a server of the tests, which misbehaves on purpose."""

from __future__ import annotations

import base64
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.errors import UsageError
from parprof.http_client import NoAnswer
from parprof.service.push import backoff
from parprof.service.push.backend import PushRequest, Reply
from parprof.service.push.backoff import backoff_s, retry_after_s
from parprof.service.push.transport import Endpoint, StoreClient
from push_server import (
    Behaviour,
    Server,
    close_silently,
    cut_answer,
    drip,
    endless_answer,
    endless_headers,
    garbage,
    hang,
    read_slowly,
    refuse_early,
    reset,
    serving,
    status,
)

SMALL = PushRequest("/ingest?name=x", "text/x", b"hello")
LARGE = PushRequest("/ingest", "text/x", bytes(range(256)) * 8192)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def post(server: Server, request: PushRequest = SMALL, **settings: object) -> Reply:
    with StoreClient(Endpoint(server.url, **settings)) as client:  # type: ignore[arg-type]
        return client.post(request)


def test_request_and_headers(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    reply = post(
        server,
        PushRequest("/ingest?a=b", "text/x", b"hello", "gzip"),
        bearer_token_file=str(token), tenant="team", headers={"X-Extra": "1"},
    )  # fmt: skip
    assert reply.status == 200
    (got,) = server.accepted
    assert (got.path, got.query, got.body) == ("/ingest", {"a": ["b"]}, b"hello")
    assert got.headers["authorization"] == "Bearer t0ken"
    assert got.headers["x-scope-orgid"] == "team"
    assert got.headers["x-extra"] == "1"
    assert got.headers["content-type"] == "text/x"
    assert got.headers["content-encoding"] == "gzip"
    assert got.headers["host"] == server.url.removeprefix("http://")
    assert got.headers["user-agent"].startswith("parprofd/")


def test_basic_authentication_and_base_path(server: Server, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p w")
    endpoint = Endpoint(server.url + "/base/", basic_user="u", basic_password_file=str(tmp_path / "password"))
    with StoreClient(endpoint) as client:
        client.post(SMALL)
        (tmp_path / "password").write_text("new")
        client.post(SMALL)
    first, second = server.accepted
    assert first.path == "/base/ingest"
    assert first.headers["authorization"] == "Basic " + base64.b64encode(b"u:p w").decode()
    assert second.headers["authorization"] == "Basic " + base64.b64encode(b"u:new").decode()


def test_connection_is_kept(server: Server) -> None:
    ports = set()
    server.always = lambda handler: (ports.add(handler.client_address), handler.answer())[-1]
    with StoreClient(Endpoint(server.url)) as client:
        for _ in range(5):
            assert client.post(SMALL).status == 200
    assert len(ports) == 1


def test_server_that_closes_idle_connections(server: Server) -> None:
    """GIVEN a server that closes without a word after each answer THEN the client connects again."""

    def answer_and_close(handler: object) -> None:
        handler.answer()  # type: ignore[attr-defined]
        handler.close_connection = True  # type: ignore[attr-defined]

    server.plan.extend([answer_and_close] * 3)
    with StoreClient(Endpoint(server.url)) as client:
        assert [client.post(SMALL).status for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("behaviour", [close_silently, garbage, reset, endless_headers])
def test_no_answer(server: Server, behaviour: Behaviour) -> None:
    """Then again, and it works."""
    server.plan.append(behaviour)
    with StoreClient(Endpoint(server.url)) as client:
        with pytest.raises(NoAnswer) as caught:
            client.post(LARGE)
        assert str(caught.value).isprintable()
        assert client.post(LARGE).status == 200
    assert server.accepted[-1].body == LARGE.body


@pytest.mark.parametrize("behaviour", [hang, drip])
def test_silent_server(server: Server, behaviour: Behaviour) -> None:
    server.plan.append(behaviour)
    with StoreClient(Endpoint(server.url, timeout_s=0.3)) as client:
        with pytest.raises(NoAnswer, match=r"no answer (within 0\.3 s|in time)"):
            client.post(SMALL)
        assert client.post(SMALL).status == 200


def test_answers_without_end(server: Server) -> None:
    server.plan.extend([endless_answer, cut_answer])
    with StoreClient(Endpoint(server.url)) as client:
        assert len(client.post(SMALL).body) == 65536
        assert client.post(SMALL).body == b"half"
        assert client.post(SMALL).status == 200


def test_slow_reader(server: Server) -> None:
    server.plan.append(read_slowly)
    assert post(server, PushRequest("/ingest", "text/x", LARGE.body[:200_000]), timeout_s=60.0).status == 200
    assert server.accepted[0].body == LARGE.body[:200_000]


def test_refused_before_it_was_read(server: Server) -> None:
    """The answer is used if it arrives; a reset may destroy it, and then it is as good as none."""
    server.always = refuse_early
    with StoreClient(Endpoint(server.url)) as client:
        for _ in range(3):
            try:
                assert client.post(LARGE).status == 413
            except NoAnswer as error:
                assert "reset" in str(error) or "Broken pipe" in str(error)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with StoreClient(Endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}")) as client:
            with pytest.raises(NoAnswer, match="refused"):
                client.post(SMALL)


def test_unknown_name() -> None:
    with StoreClient(Endpoint("http://no-such-host.invalid:1")) as client:
        with pytest.raises(NoAnswer):
            client.post(SMALL)


def test_redirects_are_not_followed(server: Server) -> None:
    server.plan.append(status(307, Location="http://127.0.0.1:1/"))
    assert post(server).status == 307
    assert not server.accepted


def closed_from_another_thread(client: StoreClient, has_begun: threading.Event) -> str:
    """What a post says that is closed once it has begun."""
    said: list[str] = []

    def run() -> None:
        try:
            client.post(LARGE)
        except NoAnswer as error:
            said.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert has_begun.wait(60)
    client.close()
    thread.join(60)
    assert not thread.is_alive(), "closing did not end the exchange"
    return said[0]


def test_close_ends_a_hanging_exchange(server: Server) -> None:
    begun = threading.Event()

    def behaviour(handler: object) -> None:
        begun.set()
        hang(handler)  # type: ignore[arg-type]

    server.always = behaviour
    client = StoreClient(Endpoint(server.url, timeout_s=300.0))
    assert closed_from_another_thread(client, begun)
    with pytest.raises(NoAnswer, match="ends"):
        client.post(SMALL)


def test_close_ends_a_connect_that_nobody_answers() -> None:
    """A listener whose backlog is full drops what wants to connect."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        client = StoreClient(Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=300.0))
        begun = threading.Event()
        real = client.post

        def post(request: PushRequest) -> Reply:
            threading.Timer(0.2, begun.set).start()
            return real(request)

        client.post = post  # type: ignore[method-assign]
        assert closed_from_another_thread(client, begun)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", place / "key.pem", "-out",
         place / "cert.pem", "-days", "2", "-subj", "/CN=t", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return place


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with serving(context) as made:
        yield made


def test_tls(tls_server: Server, certificate: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    endpoint = Endpoint(
        tls_server.url, ca_file=str(certificate / "cert.pem"), bearer_token_file=str(tmp_path / "token")
    )
    with StoreClient(endpoint) as client:
        assert client.post(LARGE).status == 200
        assert client.post(LARGE).status == 200
    assert tls_server.accepted[1].body == LARGE.body


def test_unknown_authority(tls_server: Server) -> None:
    with pytest.raises(NoAnswer, match="not trusted.*set ca_file"):
        post(tls_server)
    assert not tls_server.accepted


def test_another_host(tls_server: Server, certificate: Path) -> None:
    url = tls_server.url.replace("127.0.0.1", "localhost")
    with StoreClient(Endpoint(url, ca_file=str(certificate / "cert.pem"))) as client:
        with pytest.raises(NoAnswer, match="not trusted"):
            client.post(SMALL)


def test_tls_where_there_is_none(server: Server) -> None:
    with StoreClient(Endpoint(server.url.replace("http", "https"))) as client:
        with pytest.raises(NoAnswer):
            client.post(SMALL)


def test_no_tls_where_there_is_one(tls_server: Server) -> None:
    with StoreClient(Endpoint(tls_server.url.replace("https", "http"), timeout_s=5.0)) as client:
        with pytest.raises(NoAnswer):
            client.post(SMALL)


def test_hanging_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with StoreClient(Endpoint(url, timeout_s=0.3)) as client:
            with pytest.raises(NoAnswer):
                client.post(SMALL)


# What makes no sense


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "ftp://x"}, "is not a URL"),
        ({"url": "http://"}, "is not a URL"),
        ({"url": "http://x:99999"}, "is not a URL"),
        ({"url": "http://x/?a=b"}, "is not a URL"),
        ({"url": "http://u:p@x"}, "credentials do not belong"),
        ({"url": "http://x", "ca_file": "", "bearer_token_file": "/dev/null"}, "use an https URL"),
        ({"url": "http://x", "headers": {"Authorization": "y"}}, "use an https URL"),
        ({"url": "https://x", "bearer_token_file": "/nonexistent"}, "cannot read"),
        ({"url": "https://x", "bearer_token_file": "/dev/null"}, "does not hold one line"),
        ({"url": "https://x", "bearer_token_file": "/x", "basic_user": "u"}, "either"),
        ({"url": "https://x", "basic_user": "u"}, "go together"),
        ({"url": "https://x", "ca_file": "/nonexistent"}, "ca_file"),
        ({"url": "http://x", "headers": {"Host": "y"}}, "cannot be set"),
        ({"url": "http://x", "headers": {"A\r\nB": "y"}}, "cannot be set"),
        ({"url": "http://x", "headers": {"A": "y\r\nB: z"}}, "no header can hold"),
        ({"url": "http://x", "tenant": "a\nb"}, "no header can hold"),
    ],
)
def test_endpoints_that_make_no_sense(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        StoreClient(Endpoint(**settings))  # type: ignore[arg-type]


# Waiting


@given(st.integers(1, 10_000), st.integers())
def test_backoff_grows_to_a_bound(failures: int, seed: int) -> None:
    longest = min(backoff.FIRST_S * 2.0 ** (failures - 1) if failures < 100 else 1e9, backoff.LONGEST_S)
    assert longest / 2 <= backoff_s(failures, Random(seed)) <= longest


def test_backoff_differs_from_daemon_to_daemon() -> None:
    assert len({backoff_s(9, Random(seed)) for seed in range(20)}) == 20


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0), (" 7 ", 7.0), ("999999999999999999999", 3600.0), ("-1", 0.0), ("1.5", 0.0), ("", 0.0),
        ("soon", 0.0), ("٣", 0.0), ("Thu, 01 Jan 1970 00:17:00 GMT", 20.0), ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0), ("Thu, 99 Foo 1970", 0.0), ("x" * 1000, 0.0),
    ],
)  # fmt: skip
def test_retry_after(text: str, seconds: float) -> None:
    assert retry_after_s(text, now_s=1000.0) == seconds


@given(st.text(max_size=80))
def test_any_retry_after(text: str) -> None:
    assert 0.0 <= retry_after_s(text) <= backoff.MAX_RETRY_AFTER_S
