# SPDX-License-Identifier: Apache-2.0
"""Users with ids for namespaces: judged by the ids that the kernel has, counted as the one user that they are."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import NOBODY, StandInService, process, serving, sleeping
from parprof.service import subuids
from parprof.service.control import server as control
from parprof.service.control.access import peer_of
from parprof.service.control.client import Client
from parprof.service.http import HttpServer, conversation, server
from parprof.service.http.peers import Visitor, client_of
from parprof.service.serving import Limits
from parprof.service.subuids import Subuids

CLONE_NEWUSER = 0x10000000
FIRST = 300_000
NOBODY_HERE = ((f"0 {FIRST} 1000", 0), (f"0 {NOBODY} 1", 0), (f"{NOBODY} {FIRST} 1", NOBODY), ("0 0 1", 0))
"localhost".encode("idna")  # loads that codec, which children that become other users may not be able to read


def makes_namespaces() -> bool:
    """Whether we can make user namespaces: nobody can in a chroot."""
    if (pid := os.fork()) == 0:
        os._exit(ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0)
    return os.waitpid(pid, 0)[1] == 0


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not makes_namespaces(), reason="needs root, outside of a chroot, to map ids"
)


def in_namespace(maps: str, uid: int, what: Callable[[], Any]) -> Any:
    """What a function returns, as JSON can hold it, in a child that is this user of a new user namespace.

    ``maps``: as in ``/proc/PID/uid_map``; the same for groups.
    """
    reader, writer = os.pipe()
    mapped, go = os.pipe()
    made, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: dict[str, Any] = {"error": "died"}
        try:
            os.setgroups([])
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
                answer = {"error": f"unshare: {os.strerror(ctypes.get_errno())}"}
            os.write(done, b"x")
            os.read(mapped, 1)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = {"value": what()}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            os.write(writer, json.dumps(answer).encode())
            os._exit(0)
    os.close(writer)
    try:
        os.read(made, 1)
        for kind in ("gid_map", "uid_map"):
            Path(f"/proc/{pid}/{kind}").write_text(maps)
    finally:
        os.write(go, b"x")
        with os.fdopen(reader, "rb") as file:
            answer = json.loads(file.read())
        os.waitpid(pid, 0)
        for fd in (mapped, go, made, done):
            os.close(fd)
    assert "value" in answer, answer["error"]
    return answer["value"]


@needs_root
@pytest.mark.parametrize(
    ("maps", "uid", "outside"),
    [
        (f"0 {FIRST} 1000", 0, FIRST),
        (f"0 {FIRST} 1000", 5, FIRST + 5),
        (f"0 {NOBODY} 1", 0, NOBODY),
        (f"{NOBODY} {FIRST} 1", NOBODY, FIRST),
        ("0 0 1", 0, 0),
    ],
)
def test_ids_are_those_outside_of_the_namespace(maps: str, uid: int, outside: int, open_path: Path) -> None:
    """Root there is nobody in particular here, even where its id is root's: it has no powers over our namespace."""
    with socket.socket(socket.AF_UNIX) as listener, socket.create_server(("127.0.0.1", 0)) as web:
        listener.bind(str(open_path / "s"))
        (open_path / "s").chmod(0o666)
        listener.listen()

        def connect() -> int:
            with socket.socket(socket.AF_UNIX) as one, socket.create_connection(web.getsockname()):
                one.connect(str(open_path / "s"))
                one.settimeout(30)
                return len(one.recv(1))

        seen: list[Any] = []

        def accept() -> None:
            accepted, _ = listener.accept()
            visitor, _ = web.accept()
            with accepted, visitor:
                seen.extend((peer_of(accepted), client_of(visitor)))
                accepted.send(b"x")

        with Background(accept):
            assert in_namespace(maps, uid, connect) == 1
        peer, visitor = seen
        assert (peer.uid, peer.same_user_namespace, peer.is_root) == (outside, False, False)
        assert visitor == Visitor(uid=outside)


class Background:
    """Runs something on a thread, and waits for it."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=what, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._thread.join(30)


@needs_root
def test_who_is_root_or_the_owner_in_a_namespace_sees_nothing(open_path: Path) -> None:
    """Not the processes whose owner has the same number in there, nor those of the user who made it."""
    with sleeping(NOBODY, NOBODY) as nobodys, sleeping() as roots:
        service = StandInService(process(nobodys, NOBODY, "nobodys"), process(roots, 0, "roots"))
        with serving(service, open_path) as path:

            def ask() -> list[object]:
                with Client(path) as client:
                    said = client.status()
                    try:
                        client.attach(nobodys, 0.01)
                        refused = ""
                    except Exception as error:
                        refused = type(error).__name__
                    return [
                        len(client.processes().processes),
                        said.visible_processes,
                        len(said.notes),
                        refused,
                    ]

            for maps, uid in NOBODY_HERE:
                assert in_namespace(maps, uid, ask) == [0, 0, 0, "TargetError"], maps
            with Client(path) as root:
                assert len(root.processes().processes) == 2


@needs_root
def test_one_user_with_many_ids_is_one_client(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN ids for namespaces THEN with all of them it has no more places than others, here and over HTTP."""
    table = open_path / "subuid"
    table.write_text(f"{NOBODY}:{FIRST}:1000\n")
    monkeypatch.setattr(subuids, "_known", Subuids(table))
    monkeypatch.setattr(control, "MAX_PER_USER", 2)
    monkeypatch.setattr(server, "MAX_PER_CLIENT", 2)
    monkeypatch.setattr(server, "LIMITS", Limits(served=64))
    monkeypatch.setattr(conversation, "HEAD_SECONDS", 600.0)
    with (
        serving(StandInService(), open_path) as path,
        HttpServer(StandInService(), "127.0.0.1:0") as web,
        ExitStack() as stack,
    ):
        web.start()
        host, _, port = web.address.rpartition(":")

        def take(uid: int, kind: str) -> str:
            """Connect as one of its ids, stay busy or silent; ``in`` or what is said instead."""
            reader, writer = os.pipe()
            stay, go = os.pipe()
            pid = os.fork()
            if pid == 0:
                said = b"died"
                try:
                    os.setgroups([])
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                    said = _connected(kind, path, (host, int(port)))
                except BaseException as error:
                    said = str(error).encode()
                finally:
                    os.write(writer, said)
                    os.close(go)
                    os.read(stay, 1)
                    os._exit(0)
            os.close(stay)
            stack.callback(os.waitpid, pid, 0)
            stack.callback(os.close, go)
            with os.fdopen(reader, "rb", 0) as file:
                os.close(writer)
                return file.read(200).decode()

        for kind, refusal in (("control", "too many clients"), ("http", "503")):
            assert [take(uid, kind) for uid in (FIRST, FIRST + 1)] == ["in", "in"]
            for uid in (FIRST + 2, NOBODY):
                assert refusal in take(uid, kind), uid
            assert take(FIRST + 1000, kind) == "in", "that one is another's"


_kept: list[Any] = []


def _connected(kind: str, path: str, where: tuple[str, int]) -> bytes:
    """``in``; the connection stays open, and silent."""
    if kind == "control":
        _kept.append(Client(path))
        return b"in"
    first = socket.create_connection(where, timeout=30)
    first.settimeout(1.0)
    try:
        said = first.recv(100)
    except TimeoutError:
        _kept.append(first)
        return b"in"
    return said


def test_the_table(tmp_path: Path) -> None:
    passwd, table = tmp_path / "passwd", tmp_path / "subuid"
    passwd.write_text("root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbroken\n")
    found = Subuids(table, passwd, every_s=0.0)
    assert found.user(100_000) == 100_000, "there is no table"
    table.write_text(
        "alice:100000:65536\n1001:165536:10\nfar:200000:10\nnonsense\n:1:2\nalice:x:1\nalice:300000:1\n\n"
    )
    expected = {99_999: 99_999, 100_000: 1000, 165_535: 1000, 165_536: 1001, 165_545: 1001, 165_546: 165_546,
                200_009: "far", 200_010: 200_010, 300_000: 1000, 1000: 1000, 0: 0}  # fmt: skip
    assert {uid: found.user(uid) for uid in expected} == expected
    table.write_text("1001:100000:65536\n")
    assert found.user(100_000) == 1001, "it is read again"
    table.unlink()
    assert found.user(100_000) == 100_000
    table.mkdir()
    assert found.user(100_000) == 100_000
