# SPDX-License-Identifier: Apache-2.0
"""The control socket: what client and server say to each other over a real Unix socket."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import StandInService, process, serving, sleeping, taken, until
from parprof import __version__
from parprof.errors import OutputError, PrivilegeError, TargetError, UsageError
from parprof.exporters import pprof_reader
from parprof.service.control import control_pb2 as pb
from parprof.service.control import conversation, server, socket_path
from parprof.service.control import leases as leases_module
from parprof.service.control.client import Client, ControlError, NoDaemon, profile_from_daemon
from parprof.service.control.conversation import PROTOCOL
from parprof.service.control.frames import receive, send
from parprof.service.control.leases import Leases
from parprof.service.control.listening import inherited, listen, stop_listening
from parprof.service.control.server import ControlServer
from parprof.service.model import ProcessSnapshot
from parprof.service.requests import Requests
from profiles import heat

ME = os.getuid()


@pytest.fixture
def target() -> Iterator[int]:
    with sleeping() as pid:
        yield pid


def test_status(tmp_path: Path) -> None:
    with serving(StandInService(process(os.getpid(), ME)), tmp_path) as path, Client(path) as client:
        assert client.server_version == __version__
        status = client.status()
        assert (status.version, status.processes, status.samples) == (__version__, 1, 12345)
        assert (status.unhealthy, status.not_ready) == ("", "no programs yet")
        assert [(list(one.labels), one.value) for one in status.lost] == [(["map-full"], 2)]
        assert [(list(one.labels), one.value) for one in status.attach_failures] == [
            (["libomp", "stripped"], 1)
        ]
        assert list(status.protection) == ["CAP_SYS_ADMIN is given up"]
        assert status.time_s - status.started_time_s == 60
        assert client.status() == status  # a connection serves any number of requests


@pytest.mark.skipif(ME != 0, reason="only root sees everything")
def test_root_sees_all_with_most_effort_first(tmp_path: Path) -> None:
    small = process(7, 1234, "small\n\x1b[31m", n_working=-2)
    small.totals.work_ns = 1e9
    with serving(StandInService(small, process(8)), tmp_path) as path, Client(path) as client:
        listed = client.processes()
        assert [one.pid for one in listed.processes] == [8, 7]
        assert listed.processes[1].comm == "small\\x0a\\x1b[31m"
        assert listed.processes[1].n_working == 0
        first = listed.processes[0]
        assert (first.cores, first.working, first.spinning, first.n_w_source) == (4, 3, 1, "exact")
        assert (first.totals.work_s, first.totals.idleness_s, first.totals.spin_s) == (3.0, 1.0, 0.25)
        assert listed.omitted == 0
        assert list(client.status().notes) == ["/home/alice/secret: no unwind table"]


@pytest.mark.skipif(ME != 0, reason="the processes are made up, so only root sees them")
def test_more_processes_than_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parprof.service.control.answers.MAX_LISTED", 3)
    with (
        serving(StandInService(*(process(10 + n) for n in range(5))), tmp_path) as path,
        Client(path) as client,
    ):
        assert (len(client.processes().processes), client.processes().omitted) == (3, 2)


def test_losses_of_meanwhile_are_told(tmp_path: Path, target: int) -> None:
    """Those from before are not; of one process they are known exactly where there are none."""
    service = StandInService(process(target))

    def lose(_: pb.Progress) -> None:
        service.lost |= {"stack_ring": 2, "counts_full": 10}

    with serving(service, tmp_path) as path, Client(path) as client:
        assert client.attach(target, None, lose, lambda: "stack_ring" in service.lost) == taken(
            "3 counts_full, 2 stack_ring"
        )
        assert client.attach(target, 0.01) == taken()


def test_attach_to_a_watched_process(tmp_path: Path, target: int) -> None:
    service = StandInService(process(target, ME))
    with serving(service, tmp_path) as path:
        profile = profile_from_daemon(target, 0.05, path=path)
        until(lambda: len(service.looked) == 2)
    assert profile == taken()
    assert service.calls == [] and service.looked == [(target, True), (target, False)]
    assert service.seconds >= 0.05


def test_attach_to_an_unwatched_process_is_a_loan(tmp_path: Path, target: int) -> None:
    service = StandInService()
    with serving(service, tmp_path) as path:
        assert profile_from_daemon(target, 0.01, path=path) == taken()
        until(lambda: len(service.calls) == 2)
    assert service.calls == [("watch", target), ("unwatch", target)]


def test_two_attach_to_one_process(tmp_path: Path, target: int) -> None:
    """The first to be done does not end it for the other."""
    service = StandInService()
    over = threading.Event()
    with serving(service, tmp_path) as path, Client(path) as first:
        done: list[object] = []
        thread = threading.Thread(target=lambda: done.append(first.attach(target, None, None, over.is_set)))
        thread.start()
        until(lambda: service.calls == [("watch", target)])
        assert profile_from_daemon(target, 0.01, path=path) == taken()
        assert service.calls == [("watch", target)]
        over.set()
        thread.join()
        assert done == [taken()]
        until(lambda: service.calls == [("watch", target), ("unwatch", target)])
        assert service.looked == [(target, True), (target, False)]


def test_the_highest_rate_that_is_asked_for_is_that_of_all(target: int) -> None:
    service = StandInService(process(target))
    leases = Leases(service)
    with leases.attached(target, 199):
        with leases.attached(target, 499), leases.attached(target, 499):
            with leases.attached(target):
                assert service.rates == [199, 499]
        assert service.rates == [199, 499, 199]
    assert service.rates == [199, 499, 199, 0]


class Late(StandInService):
    """Does what it is asked for only when `turn` is called, as a loop that has much to do."""

    def __init__(self, *processes: ProcessSnapshot) -> None:
        super().__init__(*processes)
        self.requests = Requests[StandInService]()
        self.prompt: set[str] = set()
        """What it does at once all the same."""

    def _ask(self, name: str, *arguments: Any) -> Future[Any]:
        done = self.requests.ask(lambda loop: getattr(StandInService, name)(loop, *arguments).result())
        if name in self.prompt:
            self.turn()
        return done

    def turn(self) -> None:
        self.requests.answer(self)

    def watch(self, pid: int) -> Future[bool]:
        return self._ask("watch", pid)

    def unwatch(self, pid: int) -> Future[None]:
        return self._ask("unwatch", pid)

    def find_waits(self, pid: int, wanted: bool) -> Future[None]:
        return self._ask("find_waits", pid, wanted)

    def sample_at(self, frequency_hz: int) -> Future[None]:
        return self._ask("sample_at", frequency_hz)


def test_what_is_measured_begins_when_the_process_is_watched() -> None:
    """Not while the daemon looks into its files: that time would be missing."""
    service = StandInService()
    service.looks_into_files = 2
    with Leases(service).attached(os.getpid()):
        assert service.calls == [("watch", os.getpid())] * 3 and os.getpid() in service.processes
        assert service.cuts == 1


def test_files_that_hang_keep_nobody_from_attaching_to_other_processes() -> None:
    service = StandInService()
    service.looks_into_files = 1 << 30
    leases, begun = Leases(service), threading.Event()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:

        def attach_to_what_hangs() -> None:
            with leases.attached(os.getpid()):
                begun.set()

        hangs = threading.Thread(target=attach_to_what_hangs)
        hangs.start()
        until(lambda: len(service.calls) >= 3)
        service.processes[other.pid] = process(other.pid)
        with leases.attached(other.pid):
            assert not begun.is_set()
        service.looks_into_files = 0
        hangs.join(30)
        assert begun.is_set() and other.stdin
        other.stdin.close()


@pytest.mark.parametrize(
    "prompt", [set(), {"watch"}, {"watch", "find_waits"}], ids=["watch", "find_waits", "sample_at"]
)
def test_a_loan_that_comes_too_late_leaves_nothing(
    prompt: set[str], target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the daemon did not come to in time: nobody waits for it any more, and all is as it was before."""
    monkeypatch.setattr(leases_module, "WATCH_SECONDS", 0.05)
    service = Late()
    service.prompt = set(prompt)
    leases = Leases(service)
    with pytest.raises(TimeoutError), leases.attached(target, 499):
        raise AssertionError("it has begun")
    service.turn()
    assert target not in service.processes
    assert dict(service.looked).get(target, False) is False and service.rates[-1:] in ([], [0])
    service.prompt = {"watch", "unwatch", "find_waits", "sample_at"}
    for done in (service.calls, service.looked, service.rates):
        done.clear()
    with leases.attached(target, 199):
        assert (service.calls, service.looked, service.rates) == (
            [("watch", target)],
            [(target, True)],
            [199],
        )
    assert (service.calls[1:], service.looked[1:], service.rates[1:]) == (
        [("unwatch", target)],
        [(target, False)],
        [0],
    )


def test_who_comes_to_a_busy_daemon_is_told_so(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is nothing to look for in its log."""
    monkeypatch.setattr(leases_module, "WATCH_SECONDS", 0.05)
    with serving(Late(process(target, ME)), tmp_path) as path, Client(path) as client:
        with pytest.raises(ControlError, match="too much to do; try again"):
            client.attach(target, 1.0)
        assert client.status().samples == 12345


def test_progress_and_finish(tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "PROGRESS_SECONDS", 0.02)
    service = StandInService(process(target, ME))
    seen: list[pb.Progress] = []
    with serving(service, tmp_path) as path, Client(path) as client:
        profile = client.attach(target, None, seen.append, lambda: len(seen) >= 3)
        assert profile == taken()
        assert [(one.n_working, one.cores, one.lost) for one in seen[:3]] == [(3, 4, 2)] * 3
        assert seen[2].elapsed_s > seen[0].elapsed_s
        assert client.status().samples == 12345  # the connection goes on


def test_attach_ends_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "PROGRESS_SECONDS", 0.02)
    with sleeping() as target:
        service = StandInService(process(target, ME))
        with serving(service, tmp_path) as path, Client(path) as client:
            ended = False

            def end(_: pb.Progress) -> None:
                nonlocal ended
                if not ended:
                    os.kill(target, 9)
                    ended = True

            assert client.attach(target, None, end) == taken()


def test_slow_symbols_are_waited_for(tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "PROGRESS_SECONDS", 0.02)
    service = StandInService(process(target, ME))
    service.delay_profile = True
    seen: list[pb.Progress] = []

    def progress(one: pb.Progress) -> None:
        seen.append(one)
        if len(seen) == 5:
            service.profiles_taken[0].set_result(heat())

    with serving(service, tmp_path) as path, Client(path) as client:
        assert client.attach(target, 0.01, progress) == taken()
    assert len(seen) >= 5


def test_a_client_that_leaves_ends_its_loan(tmp_path: Path, target: int) -> None:
    service = StandInService()
    with serving(service, tmp_path) as path:
        with Client(path) as client:
            client._send(pb.Request(attach=pb.AttachRequest(pid=target)))
            until(lambda: service.calls == [("watch", target)])
        until(lambda: len(service.calls) == 2)
    assert service.calls[1] == ("unwatch", target)
    assert service.profiles_taken == []


def test_large_profiles_come_in_parts(tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "CHUNK_BYTES", 100)
    with serving(StandInService(process(target, ME)), tmp_path) as path:
        assert profile_from_daemon(target, 0.01, path=path) == taken()
        monkeypatch.setattr(pprof_reader, "MAX_BYTES", 150)
        with pytest.raises(ControlError, match="without end"):
            profile_from_daemon(target, 0.01, path=path)


def test_watch_and_unwatch(tmp_path: Path, target: int) -> None:
    service = StandInService()
    with serving(service, tmp_path) as path, Client(path) as client:
        client.watch(target)
        client.watch(target)
        assert service.calls == [("watch", target)]
        assert profile_from_daemon(target, 0.01, path=path) == taken()
        assert service.calls == [("watch", target)]  # attaching does not end it
        client.unwatch(target)
        assert service.calls[1:] == [("unwatch", target)]
        with pytest.raises((TargetError, PrivilegeError)):
            client.unwatch(target)


def test_a_snapshot_from_before_the_unwatch_is_not_believed(tmp_path: Path, target: int) -> None:
    service = StandInService(process(target))
    old = service.snapshot()
    service.processes.clear()
    with serving(service, tmp_path) as path, Client(path) as client:
        client.watch(target)
        service.snapshot = lambda: old  # type: ignore[method-assign]
        client.unwatch(target)
        client.watch(target)
        assert service.calls == [("watch", target), ("unwatch", target), ("watch", target)]


@pytest.mark.parametrize("pid", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_no_such_process(tmp_path: Path, pid: int) -> None:
    with serving(StandInService(), tmp_path) as path, Client(path) as client:
        for ask in (client.watch, client.unwatch, client.attach):
            with pytest.raises(TargetError, match=f"no process {pid} that you may profile"):
                ask(pid)
        assert client.status().processes == 0


@pytest.mark.skipif(ME != 0, reason="kernel threads are root's to ask about")
def test_kernel_threads_and_targets_the_service_refuses(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PROGRESS_SECONDS", 0.02)
    service = StandInService(process(target))
    with serving(service, tmp_path) as path, Client(path) as client:
        with pytest.raises(TargetError, match="kernel thread"):
            client.attach(2, 1.0)
        with pytest.raises(TargetError, match="is not watched"):
            client.attach(target, None, lambda _: service.processes.clear(), lambda: not service.processes)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), float("inf"), 1e9])
def test_durations_are_checked(tmp_path: Path, target: int, seconds: float) -> None:
    with serving(StandInService(process(target, ME)), tmp_path) as path:
        with Client(path) as client, pytest.raises(UsageError, match="-d "):
            client.attach(target, seconds)
        if seconds:
            with Client(path) as client:
                client._send(pb.Request(attach=pb.AttachRequest(pid=target, seconds=seconds)))
                with pytest.raises(ControlError, match="no number of seconds"):
                    client._receive("profile")


def test_a_failing_service_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = StandInService()
    service.fail = ValueError("secret detail")
    with serving(service, tmp_path) as path:
        with Client(path) as client, pytest.raises(ControlError, match="see its log") as caught:
            client.status()
        assert "secret" not in str(caught.value)
        service.fail = None
        with Client(path) as client:
            assert client.status().samples == 12345
    assert "secret detail" in caplog.text


def test_no_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "none.sock")
    with pytest.raises(NoDaemon, match="systemctl start parprofd"):
        Client(path)
    with serving(StandInService(), tmp_path) as path:
        pass
    with pytest.raises(NoDaemon):
        profile_from_daemon(1, 1.0, path=path)


def test_socket_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARPROF_SOCKET", raising=False)
    assert socket_path() == "/run/parprofd/control.sock"
    monkeypatch.setenv("PARPROF_SOCKET", "/x")
    assert (socket_path(), socket_path("/y")) == ("/x", "/y")


def test_another_protocol(tmp_path: Path) -> None:
    with serving(StandInService(), tmp_path) as path:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            send(sock, pb.Request(hello=pb.Hello(protocol=PROTOCOL + 1)).SerializeToString(), 5)
            error = pb.Response.FromString(receive(sock, 1 << 20, 5, 5) or b"").error
            assert error.code == pb.Error.VERSION
            assert "use a client of the daemon's version" in error.message
            assert receive(sock, 1 << 20, 5, 5) is None


def test_a_daemon_that_is_none(tmp_path: Path) -> None:
    """GIVEN something else that listens there THEN the client says so, and does not wait forever."""
    path = str(tmp_path / "x")
    with listen(path) as listener:

        def answer() -> None:
            for reply in (b"HTTP/1.1 400 Bad Request\r\n", b"\0\0\0\2\xff\xff", b"\0\0\0\0", b"\0\0", b""):
                sock, _ = listener.accept()
                with sock:
                    sock.recv(1000)
                    sock.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        for _ in range(5):
            with pytest.raises(ControlError):
                Client(path)
        thread.join()


def test_the_socket_is_open_to_all_and_goes_away(tmp_path: Path) -> None:
    with serving(StandInService(), tmp_path) as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    assert not os.path.exists(path)


def test_stale_sockets_are_replaced_and_live_ones_are_not(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(path)
    with serving(StandInService(), tmp_path):
        with pytest.raises(UsageError, match="another parprofd listens"):
            ControlServer(StandInService(), path).start()
        with Client(path) as client:
            assert client.status().samples == 12345


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("kept")
    with pytest.raises(UsageError, match="in the way"):
        listen(str(path))
    assert path.read_text() == "kept"
    with pytest.raises(OutputError, match="set another control socket"):
        listen(str(tmp_path / ("x" * 200)))
    with pytest.raises(OutputError):
        listen("/proc/none/control.sock")


def test_a_socket_that_replaced_ours_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    ours = listen(path)
    inode = os.stat(path).st_ino
    os.rename(path, path + ".old")
    with listen(path):
        stop_listening(ours, path, inode)
        assert os.path.exists(path)


def test_handed_over_by_systemd(tmp_path: Path) -> None:
    """A real process that finds its socket where systemd puts it: at descriptor 3 and following."""
    path = str(tmp_path / "x")
    script = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(3, 4);"
        "os.environ['LISTEN_PID'] = str(os.getpid());"
        "from parprof.service.control.listening import inherited;"
        "print(inherited().getsockname(), os.get_inheritable(3))"
    )
    with listen(path) as listener:
        run = subprocess.run(
            [sys.executable, "-c", script, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={"PYTHONPATH": ":".join(sys.path), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "control:http"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert run.stdout.split() == [path, "False"]


def test_not_handed_over() -> None:
    me = str(os.getpid())
    assert inherited(environment={}) is None
    assert inherited(environment={"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "control"}) is None
    assert inherited(environment={"LISTEN_PID": me, "LISTEN_FDS": "x", "LISTEN_FDNAMES": "control"}) is None
    assert inherited(environment={"LISTEN_PID": me, "LISTEN_FDS": "9", "LISTEN_FDNAMES": "http"}) is None


def test_connections_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with serving(StandInService(), tmp_path) as path:
        clients = [Client(path) for _ in range(3)]
        with pytest.raises(ControlError, match="too many clients"):
            Client(path)
        clients[0].close()

        def again() -> bool:
            try:
                Client(path).close()
            except ControlError:
                return False
            return True

        until(again)
        for client in clients[1:]:
            assert client.status().samples == 12345
            client.close()


def test_stop_ends_conversations(tmp_path: Path, target: int) -> None:
    before = threading.active_count()
    service = StandInService()
    with serving(service, tmp_path) as path:
        idle = Client(path)
        attached = Client(path)
        attached._send(pb.Request(attach=pb.AttachRequest(pid=target)))
        until(lambda: ("watch", target) in service.calls)
    until(lambda: threading.active_count() == before)
    assert ("unwatch", target) in service.calls
    for client in (idle, attached):
        client._sock.settimeout(5)
        with pytest.raises(ControlError):
            while True:
                client._receive("progress")
        client.close()


def test_silent_clients_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "HELLO_SECONDS", 0.05)
    monkeypatch.setattr(conversation, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(conversation, "FRAME_SECONDS", 0.05)
    with serving(StandInService(), tmp_path) as path:
        for said in (b"", b"\0", b"\0\0\0\x09abc"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                sock.sendall(said)
                answer = receive(sock, 1 << 20, 30, 30)
                assert pb.Response.FromString(answer or b"").error.code == pb.Error.MALFORMED
                assert receive(sock, 1 << 20, 30, 30) is None


def test_slow_readers_are_dropped_and_hold_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "SEND_SECONDS", 0.1)
    monkeypatch.setattr(conversation, "FRAME_SECONDS", 0.1)
    service = StandInService(*(process(100 + n, ME, "x" * 200) for n in range(3000)))
    with serving(service, tmp_path) as path:
        slow = Client(path)
        request = pb.Request(list=pb.ListRequest())
        for _ in range(20):
            slow._send(request)
        with Client(path) as other:
            assert other.status().processes == 3000
        until(lambda: not _control_threads())
        slow.close()


def _control_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "control-client"]


def test_no_descriptors_are_left(tmp_path: Path) -> None:
    with serving(StandInService(), tmp_path) as path:
        with Client(path) as client:
            client.status()
        until(lambda: not _control_threads())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            with Client(path) as client:
                client.status()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                sock.sendall(b"junkjunk")
        until(lambda: not _control_threads() and len(os.listdir("/proc/self/fd")) == before)
