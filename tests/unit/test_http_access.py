# SPDX-License-Identifier: Apache-2.0
"""Who may see what over HTTP, with real users and sockets: the same as on the control socket."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import NOBODY, StandInService, as_user, process, sleeping, until
from parprof.metrics import Metrics
from parprof.model import Frame, PathSample, ProcessInfo, Profile
from parprof.process.cgroup_ids import CgroupIds
from parprof.process.cgroups import CGROUP_ROOT
from parprof.service import kernel_stacks
from parprof.service.http import HttpServer, peers, server
from parprof.service.http.peers import SocketOwner, Visitor, by_diagnosis, by_table, client_of
from parprof.service.model import FunctionUse
from parprof.symbols.kernel import KERNEL
from stopwatch import Stopwatch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

TOKEN = "0123456789abcdef-secret"
FUNCTION = FunctionUse("secret_function", "/usr/bin/x", Metrics(10, 1e9, 1e9))
Served = tuple[tuple[str, int], int, int]


@pytest.fixture
def processes() -> Iterator[tuple[StandInService, int, int]]:
    with sleeping(NOBODY, NOBODY) as own, sleeping() as roots:
        yield (
            StandInService(process(own, NOBODY, "own"), process(roots, 0, "roots", functions=(FUNCTION,))),
            own,
            roots,
        )


def address(http_server: HttpServer) -> tuple[str, int]:
    host, _, port = http_server.address.rpartition(":")
    return host.strip("[]"), int(port)


def get(where: tuple[str, int], path: str, token: str = "") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(*where, timeout=30)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, response.read().decode("latin-1")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_users_see_their_own_processes_only(processes: tuple[StandInService, int, int], host: str) -> None:
    service, own, roots = processes
    with HttpServer(service, f"{host}:0") as http_server:
        http_server.start()
        where = address(http_server)
        status, page = as_user(NOBODY, NOBODY, lambda: get(where, "/"))
        assert status == 200 and "own" in page and "other users" in page
        assert "roots" not in page and "alice" not in page
        assert as_user(NOBODY, NOBODY, lambda: get(where, f"/profiles/{own}.html"))[0] == 200
        status, answer = as_user(NOBODY, NOBODY, lambda: get(where, f"/profiles/{roots}.pb.gz"))
        assert status == 404 and "root sees all" in answer
        for path in (f"/processes/{roots}", f"/profiles/{roots}.html?intervals=1-2"):
            assert as_user(NOBODY, NOBODY, lambda path=path: get(where, path))[0] == 404
        assert as_user(NOBODY, NOBODY, lambda: get(where, f"/processes/{own}"))[0] == 200
        assert answer == as_user(NOBODY, NOBODY, lambda: get(where, "/profiles/4194300.pb.gz"))[1].replace(
            "4194300", str(roots)
        )
        metrics = as_user(NOBODY, NOBODY, lambda: get(where, "/metrics"))[1]
        assert "parprof_cores" in metrics and "secret_function" not in metrics
        assert as_user(1, 1, lambda: get(where, f"/profiles/{own}.html"))[0] == 404
        assert "roots" in get(where, "/")[1] and get(where, f"/profiles/{roots}.html")[0] == 200
        assert "secret_function" in get(where, "/metrics")[1]


def test_names_of_the_kernels_functions_on_the_status_page(
    processes: tuple[StandInService, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, own, _ = processes
    monkeypatch.setattr(kernel_stacks, "_PARANOID", tmp_path / "paranoid")
    inside = FunctionUse("do_secret_thing", KERNEL, Metrics(10, 1e9, 9e9))
    totals = Metrics(10, 1e9, 9e9)
    service.processes[own] = replace(service.processes[own], functions=(inside,), totals=totals)
    with HttpServer(service, "127.0.0.1:0") as http_server:
        http_server.start()
        where = address(http_server)
        for level, seen in (("2", False), ("1", True)):
            (tmp_path / "paranoid").write_text(level)
            page = as_user(NOBODY, NOBODY, lambda: get(where, "/"))[1]
            assert ("do_secret_thing" in page) is seen and (">[kernel]</a> 100 %" in page) is not seen
            assert "do_secret_thing" in get(where, "/")[1]


def test_who_sends_the_token_sees_everything(processes: tuple[StandInService, int, int]) -> None:
    service, _, roots = processes
    with HttpServer(service, "127.0.0.1:0", token=TOKEN) as http_server:
        http_server.start()
        where = address(http_server)
        assert as_user(NOBODY, NOBODY, lambda: get(where, "/metrics"))[0] == 401
        assert "secret_function" in as_user(NOBODY, NOBODY, lambda: get(where, "/metrics", TOKEN))[1]
        assert as_user(NOBODY, NOBODY, lambda: get(where, f"/profiles/{roots}.html", TOKEN))[0] == 200
        assert get(where, "/")[0] == 401, "root too: a token is asked of all"


def test_functions_for_all(processes: tuple[StandInService, int, int]) -> None:
    service, _, roots = processes
    with HttpServer(service, "127.0.0.1:0", functions_for_all=True) as http_server:
        http_server.start()
        where = address(http_server)
        assert "secret_function" in as_user(NOBODY, NOBODY, lambda: get(where, "/metrics"))[1]
        assert as_user(NOBODY, NOBODY, lambda: get(where, f"/profiles/{roots}.html"))[0] == 404


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_whose_a_connection_is(family: socket.AddressFamily, host: str) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((host, 0))
        listener.listen()
        where = listener.getsockname()
        for uid in (0, NOBODY, 4242):
            ready, go = os.pipe()
            child = os.fork()
            if child == 0:
                os.setresuid(uid, uid, uid)
                with socket.create_connection(where[:2]):
                    os.read(ready, 1)
                os._exit(0)
            accepted, _ = listener.accept()
            with accepted:
                theirs, ours = accepted.getpeername()[:2], accepted.getsockname()[:2]
                owner = by_diagnosis(family, theirs, ours)
                assert owner is not None and owner.uid == uid == by_table(family, theirs, ours)
                assert client_of(accepted) == Visitor(uid=uid)
                os.write(go, b"x")
                os.waitpid(child, 0)
                # what was closed is said to be root's by the kernel
                assert by_diagnosis(family, theirs, ours) is None and by_table(family, theirs, ours) is None
                assert not client_of(accepted).sees_all
            os.close(ready)
            os.close(go)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def test_the_cgroup_of_a_socket_is_among_its_attributes() -> None:
    cgroup = attribute(21, (77).to_bytes(8, sys.byteorder))
    assert (
        peers._cgroup_in(attribute(8, b"\0") + attribute(15, bytes(4)) + cgroup + attribute(22, b"R\0")) == 77
    )
    assert peers._cgroup_in(attribute(8, b"\0")) == 0, "before Linux 5.8"
    for broken in (b"", b"\1", cgroup[:-1], struct.pack("=HH", 3, 21) + bytes(8), bytes(4) + cgroup,
                   attribute(21, bytes(4)), struct.pack("=HH", 0xFFFF, 8) + cgroup):  # fmt: skip
        assert peers._cgroup_in(broken) == 0


CONTAINER = "docker-" + "ab" * 32 + ".scope"


@pytest.mark.parametrize(
    ("cgroup", "sees_all"), [("parprof-test.slice", True), (CONTAINER, False), ("kubepods.slice", False)]
)
def test_root_in_a_container_is_not_the_machines(cgroup: str, sees_all: bool) -> None:
    """With a real cgroup and no user namespace, as a container with the host's network has it."""
    root = CGROUP_ROOT / "unified" if (CGROUP_ROOT / "unified").is_dir() else CGROUP_ROOT
    folder = root / cgroup
    folder.mkdir()
    program = "import socket,sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.recv(1)"
    move = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0'); "
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            with subprocess.Popen([sys.executable, "-c", move + program, port]) as child:
                accepted, _ = listener.accept()
                with accepted:
                    assert client_of(accepted).sees_all is sees_all
            assert child.returncode == 0
    finally:
        folder.rmdir()


def test_root_of_a_cgroup_that_cannot_be_seen_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    ids = CgroupIds(tmp_path)
    assert ids.path_of(os.stat(tmp_path).st_ino) == "/"
    assert ids.path_of(os.stat(tmp_path / "a" / "b").st_ino) == "/a/b"
    late = tmp_path / "late"
    late.mkdir()
    number = os.stat(late).st_ino
    assert ids.path_of(number) == "/late"
    late.rmdir()
    assert ids.path_of(number) is None
    monkeypatch.setattr(peers, "_cgroups", ids)
    assert peers._known_user(SocketOwner(0, 2**60)) is None
    assert peers._known_user(SocketOwner(0, os.stat(tmp_path / "a").st_ino)) == 0
    assert peers._known_user(SocketOwner(NOBODY, 2**60)) == NOBODY, "a user has what is that uid's"
    assert peers._known_user(SocketOwner(0, 0)) == 0, "before Linux 5.8"
    assert peers._known_user(None) is None


@contextmanager
def silent(
    uid: int, number: int, places: list[tuple[str, tuple[str, int]]], begun: bytes = b""
) -> Iterator[None]:
    """Connections of a user that never ask: so many from each address to a server. ``begun``: all that each sends."""
    ready, go = os.pipe()
    done, end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setresuid(uid, uid, uid)
            held = [
                socket.create_connection(where, source_address=(source, 0))
                for source, where in places
                for _ in range(number)
            ]
            for one in held if begun else ():
                with suppress(ConnectionError):  # of those that there was no room for
                    one.sendall(begun)
            os.write(go, b"x")
            os.read(done, 1)
            status = len(held) != number * len(places)
        finally:
            os._exit(status)
    try:
        os.close(go)
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.write(end, b"x")
        assert os.waitpid(child, 0)[1] == 0
        for fd in (ready, done, end):
            os.close(fd)


def test_silent_connections_of_one_user_leave_room(processes: tuple[StandInService, int, int]) -> None:
    """200 of nobody's, from all over its own machine, which never ask: root and another user are answered at once."""
    with HttpServer(processes[0], "127.0.0.1:0") as http_server:
        http_server.start()
        where = address(http_server)
        with silent(NOBODY, 25, [(f"127.0.0.{number}", where) for number in range(2, 10)]):
            until(lambda: http_server._listener.served + http_server._listener.waiting >= 64)
            assert http_server._listener.served <= server.MAX_PER_CLIENT
            watch = Stopwatch()
            assert get(where, "/healthz")[0] == 200
            assert as_user(1, 1, lambda: get(where, "/metrics"))[0] == 200
            assert watch.seconds < 2


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory = tmp_path_factory.mktemp("tls")
    files = str(directory / "own.pem"), str(directory / "own.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


HELLO = bytes.fromhex("16030100c8010000c40303")
"""The beginning of a TLS hello, of which the rest never comes."""


@pytest.mark.parametrize("begun", [b"", HELLO], ids=["say nothing", "begin to shake hands"])
def test_silent_clients_of_tls_leave_room(
    begun: bytes, processes: tuple[StandInService, int, int], certificate: tuple[str, str]
) -> None:
    """200 of nobody's: it is their user that counts, not what they have yet to say. Others are answered at once."""
    with HttpServer(
        processes[0], "127.0.0.1:0", certificate=certificate[0], key=certificate[1]
    ) as http_server:
        http_server.start()
        where, trust = address(http_server), Path(certificate[0]).read_text()

        def get_by_tls(path: str) -> int:
            context = ssl.create_default_context(cadata=trust)
            with closing(http.client.HTTPSConnection(*where, timeout=30, context=context)) as connection:
                connection.request("GET", path)
                return connection.getresponse().status

        with silent(NOBODY, 25, [(f"127.0.0.{number}", where) for number in range(2, 10)], begun):
            until(lambda: http_server._listener.served + http_server._listener.waiting >= 64)
            assert http_server._listener.served <= server.MAX_PER_CLIENT
            watch = Stopwatch()
            assert get_by_tls("/") == 200
            assert as_user(1, 1, lambda: get_by_tls("/metrics")) == 200
            assert watch.seconds < 2 < server.HANDSHAKE_SECONDS


def test_a_user_is_the_same_by_ipv6_and_an_ipv4_address_that_is_mapped() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        seen = set()
        for host in ("::1", "127.0.0.1", "127.0.0.9"):
            with socket.create_connection((host, port)):
                accepted, _ = listener.accept()
                with accepted:
                    seen.add(client_of(accepted))
        assert seen == {Visitor(uid=0)}


def test_three_greedy_users_make_room_for_a_fourth(processes: tuple[StandInService, int, int]) -> None:
    with HttpServer(processes[0], "127.0.0.1:0") as http_server, ExitStack() as stack:
        http_server.start()
        where = address(http_server)
        for uid in (2, 3, 4):
            stack.enter_context(silent(uid, server.MAX_PER_CLIENT, [("127.0.0.1", where)]))
        until(lambda: http_server._listener.served == server.MAX_OF_OTHERS)
        watch = Stopwatch()
        for uid in (5, NOBODY):
            assert as_user(uid, uid, lambda: get(where, "/metrics"))[0] == 200
        assert watch.seconds < 2


def test_a_scrapers_connection_outlives_a_users_crowd(processes: tuple[StandInService, int, int]) -> None:
    """60 of nobody's that never ask: root goes on on its connection, and nobody's own kept one goes first."""
    with HttpServer(processes[0], "127.0.0.1:0") as http_server, ExitStack() as stack:
        http_server.start()
        where = address(http_server)
        scraper = stack.enter_context(closing(http.client.HTTPConnection(*where, timeout=30)))

        def scrape() -> socket.socket:
            scraper.request("GET", "/metrics")
            assert scraper.getresponse().read()
            return scraper.sock

        stream = scrape()
        stack.enter_context(silent(NOBODY, 60, [("127.0.0.1", where)]))
        until(lambda: http_server._listener.served == 1 + server.MAX_PER_CLIENT)
        watch = Stopwatch()
        assert scrape() is stream and scrape() is stream
        assert as_user(1, 1, lambda: get(where, "/metrics"))[0] == 200
        assert watch.seconds < 2


def test_a_user_who_keeps_all_its_places_is_still_served(processes: tuple[StandInService, int, int]) -> None:
    with HttpServer(processes[0], "127.0.0.1:0") as http_server:
        http_server.start()
        where = address(http_server)

        def keep_many() -> list[int]:
            """Status of each, and how many of them the server has ended."""
            with ExitStack() as stack:
                kept = [
                    stack.enter_context(closing(http.client.HTTPConnection(*where, timeout=30)))
                    for _ in range(2 * server.MAX_PER_CLIENT)
                ]
                answers = []
                for one in kept:
                    one.request("GET", "/healthz")
                    response = one.getresponse()
                    answers.append(response.status)
                    response.read()
                for one in kept:
                    one.sock.setblocking(False)
                ended = 0
                for one in kept:
                    with suppress(BlockingIOError):
                        ended += one.sock.recv(10) == b""
                return [*answers, ended]

        *answers, ended = as_user(NOBODY, NOBODY, keep_many)
        assert set(answers) == {200} and ended == server.MAX_PER_CLIENT


def test_the_kernels_functions_are_for_those_who_may_sample_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, call, inner = (
        Frame("main"),
        Frame("do_syscall_64", module="[kernel]"),
        Frame("ext4_read", module="ext4"),
    )
    waits = Frame("[waits: futex]", module="[kernel]")
    samples = [
        PathSample((user, call, inner), Metrics(3, 1.0)),
        PathSample((user, waits), Metrics(2, 1.0)),
        PathSample((user,), Metrics(1, 1.0), physical=(user, call)),
    ]
    profile = Profile(ProcessInfo(), 1.0, 99, samples)
    names = [[frame.name for frame in one.path] for one in kernel_stacks.without_kernel(profile).samples]
    assert names == [["main", "[kernel]"], ["main", "[waits: futex]"], ["main"]]
    assert [one.metrics for one in kernel_stacks.without_kernel(profile).samples] == [
        one.metrics for one in samples
    ]
    assert [frame.name for frame in kernel_stacks.without_kernel(profile).samples[2].physical] == [
        "main",
        "[kernel]",
    ]
    assert profile.samples == samples and replace(profile) == profile, "the daemon's own stays as it is"
    level = tmp_path / "paranoid"
    monkeypatch.setattr(kernel_stacks, "_PARANOID", level)
    for text, whole in (("1\n", True), ("2\n", False), ("-1", True), ("", False)):
        level.write_text(text)
        assert (kernel_stacks.for_users(profile).samples == samples) is whole
    level.unlink()
    assert kernel_stacks.for_users(profile).samples != samples
