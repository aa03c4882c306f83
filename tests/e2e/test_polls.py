# SPDX-License-Identifier: Apache-2.0
"""Who waits in poll(), select() or epoll_wait(): for somebody's answer, for time to pass, or for requests. A client
with a timeout waits there, as a server does that has nothing to do: tests/workloads/polls.c, held against its own
clock."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from profiling import BUILD
from reports import attach_command, record_command, report_of

pytestmark = pytest.mark.beside

WAIT_S = 0.5
AT_A_TIME = 4
"""Programs that are recorded at the same time: they sleep, and it takes longer to start us than they run."""


SERVERS, ANY = range(20000, 32768), range(61000, 65536)
"""Ports: as servers have; and as those may have that are asked by programs which know where they are (gRPC's), above
what Linux gives to clients by itself, so that nobody else's connection is in the way."""


UNIX = range(0)
"""No port at all: a Unix socket, with a name of its own."""


def listener(ports: range = SERVERS) -> socket.socket:
    if not ports:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(Path(tempfile.mkdtemp()) / "socket"))
        server.listen(1)
        server.settimeout(20)
        return server
    for port in ports[os.getpid() % (len(ports) - 2000) :]:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
        except OSError:
            server.close()
            continue
        server.listen(1)
        server.settimeout(20)
        return server
    raise AssertionError("no port is free")


def place_of(server: socket.socket) -> tuple[str, int] | str:
    """Where to connect to it."""
    found: tuple[str, int] | str = server.getsockname()
    return found


def as_word(place: tuple[str, int] | str) -> str:
    return place if isinstance(place, str) else str(place[1])


def connection(place: tuple[str, int] | str) -> socket.socket:
    if isinstance(place, tuple):
        return socket.create_connection(place, timeout=20)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(place)
    return client


def leave(server: socket.socket) -> None:
    """Its place to somebody else."""
    place = place_of(server)
    server.close()
    if isinstance(place, str):
        Path(place).unlink()


def recorded(profile: Path, mode: str, server: socket.socket) -> dict[str, float]:
    """What it told. Half a second after it says that it waits it gets what it waits for."""
    place = place_of(server)
    is_server = mode in ("serves", "loops")
    if is_server:
        leave(server)
    command = [*record_command(profile), str(BUILD / "polls"), mode, as_word(place)]
    told: dict[str, float] = {}
    peer: socket.socket | None = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line != "ready\n":
                name, _, seconds = line.partition(" ")
                told[name] = float(seconds)
            elif is_server and peer is None:
                peer = connection(place)
            else:
                peer = peer or server.accept()[0]
                time.sleep(WAIT_S)
                peer.sendall(b"x")
    if peer is not None:
        peer.close()
    assert process.returncode == 0 and told
    return told


CLIENTS, SERVERS_OF = (
    ("poll", "select", "epoll"),
    {"serves": "waits_for_request", "loops": "loops_for_request"},
)
OTHERS = ("naps", "ticks", "child", "ends", "locks")
Program = tuple[str, range]
"""A program's mode, and its ports."""
Recording = tuple[dict[str, Any], dict[str, float]]
"""Its report, and what it told."""


def recorded_each(programs: Iterable[Program], folder: Path) -> dict[Program, Recording]:
    """`recorded` of several programs, some at a time. No port is given away while another is looked for."""
    with ExitStack() as open_ones, ThreadPoolExecutor(AT_A_TIME) as pool:
        servers = {program: open_ones.enter_context(listener(program[1])) for program in programs}
        profiles = {program: folder / f"{number}.pb.gz" for number, program in enumerate(servers)}
        running = {
            program: pool.submit(recorded, profiles[program], program[0], server)
            for program, server in servers.items()
        }
        told = {program: recording.result() for program, recording in running.items()}
    return {program: (report_of(profile), told[program]) for program, profile in profiles.items()}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[Program, Recording]:
    """All of them, each judged once: whoever wants another has one of its own."""
    programs = [(mode, ports) for mode in (*CLIENTS, *SERVERS_OF) for ports in (SERVERS, ANY, UNIX)]
    return recorded_each([*programs, *((mode, SERVERS) for mode in OTHERS)], tmp_path_factory.mktemp("polls"))


Record = Callable[..., Recording]


@pytest.fixture
def record(recordings: dict[Program, Recording], tmp_path: Path) -> Record:
    """A report on a program, and what it told."""

    def take(mode: str, ports: range = SERVERS) -> Recording:
        program = (mode, ports)
        return recordings.pop(program, None) or recorded_each([program], tmp_path)[program]

    return take


def of(report: dict[str, Any], function: str, metric: str) -> float:
    (found,) = (row for row in report["functions"] if row["name"] == function)
    return float(found["inclusive"][metric])


@pytest.mark.parametrize("ports", [SERVERS, ANY, UNIX])
@pytest.mark.parametrize("mode", CLIENTS)
def test_a_client_that_waits_with_a_timeout_waits_for_the_network(
    record: Record, mode: str, ports: range
) -> None:
    report, told = record(mode, ports)
    cores = report["process"]["cores"]
    function = f"asks_by_{mode}"
    assert of(report, function, "stall_s") / cores == pytest.approx(told[function], rel=0.03)
    assert of(report, function, "outside_s") == 0
    cause = report["causes"][0]
    assert (cause["kind"], cause["function"]) == ("stall", function) and "for the network" in cause["what"]


@pytest.mark.parametrize("ports", [SERVERS, ANY, UNIX])
@pytest.mark.parametrize(("mode", "function"), SERVERS_OF.items())
def test_a_server_that_waits_for_a_request_loses_nothing(
    record: Record, mode: str, function: str, ports: range
) -> None:
    report, told = record(mode, ports)
    cores = report["process"]["cores"]
    assert of(report, function, "outside_s") / cores == pytest.approx(told[function], rel=0.03)
    assert of(report, function, "stall_s") == 0


@pytest.mark.alone  # whose threads come to their waits late on a busy machine
def test_threads_that_are_handed_requests_lose_nothing_while_there_are_none(tmp_path: Path) -> None:
    profile = tmp_path / "polls.pb.gz"
    with listener() as free:
        port = free.getsockname()[1]
    command = [*record_command(profile), str(BUILD / "polls"), "hands", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
        for _ in range(3):
            time.sleep(WAIT_S)
            with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
                assert client.recv(1) == b"x"
        name, _, waited = server.stdout.readline().partition(" ")
    assert name == "waits_to_hand" and server.returncode == 0
    report = report_of(profile)
    cores = report["process"]["cores"]
    served_s = 0.2  # of the first two, meanwhile it waits, too
    outside_s = of(report, "waits_to_serve", "outside_s") + of(report, "waits_to_hand", "outside_s")
    assert outside_s / cores == pytest.approx(float(waited) - served_s, rel=0.05)
    assert of(report, "waits_to_serve", "outside_s") > 0.5 * outside_s
    assert of(report, "waits_to_serve", "stall_s") == of(report, "waits_to_hand", "stall_s") == 0
    assert "stall" not in {cause["kind"] for cause in report["causes"]}


def test_to_look_at_no_file_is_to_sleep(record: Record) -> None:
    report, told = record("naps")
    cores = report["process"]["cores"]
    for function in ("nap_by_poll", "nap_by_select"):
        assert of(report, function, "stall_s") / cores == pytest.approx(told[function], rel=0.03)
    assert "for time to pass" in report["causes"][0]["what"]


def test_a_timer_and_a_counter_of_its_own_are_no_requests(record: Record) -> None:
    report, told = record("ticks")
    cores = report["process"]["cores"]
    for function in ("ticks_by_read", "ticks_by_poll", "ticks_by_epoll", "naps_by_counter"):
        assert of(report, function, "stall_s") / cores == pytest.approx(told[function], rel=0.03)
        assert of(report, function, "outside_s") == 0
    assert "for time to pass" in report["causes"][0]["what"]


def test_who_collects_what_a_child_writes_waits_for_a_pipe(record: Record) -> None:
    """What is lost is told at the child, which has a name and is the one to sleep: who waits for it is seen to wait."""
    report, told = record("child")
    kinds = {
        path["frames"][-1]
        for path in report["paths"]
        if {"collects_by_poll", "collects_by_epoll"} & set(path["frames"]) and path["wait_s"] > 0.1
    }
    assert kinds == {"[waits: pipe]"}
    for function in ("collects_by_poll", "collects_by_epoll"):
        assert of(report, function, "wait_s") == pytest.approx(told[function], rel=0.03)
    cause = report["causes"][0]
    assert (cause["kind"], cause["function"]) == ("stall", "naps_as_child")


def test_who_waits_for_the_end_of_a_child_waits_for_no_request(record: Record) -> None:
    report, told = record("ends")
    for function in ("awaits_by_pidfd", "awaits_by_epoll", "awaits_by_signal"):
        kinds = {
            path["frames"][-1]
            for path in report["paths"]
            if function in path["frames"] and path["wait_s"] > 0.1
        }
        assert kinds == {"[waits: child]"}, function
        assert of(report, function, "wait_s") == pytest.approx(told[function], rel=0.03)
    cause = report["causes"][0]
    assert (cause["kind"], cause["function"]) == ("stall", "naps_as_child")


def test_a_lock_of_another_process_is_no_request(record: Record) -> None:
    report, told = record("locks")
    cores = report["process"]["cores"]
    assert of(report, "ProcSleep", "stall_s") / cores == pytest.approx(told["ProcSleep"], rel=0.03)
    cause = report["causes"][0]
    assert (cause["kind"], cause["function"]) == ("stall", "ProcSleep")
    assert "for a lock that another process has" in cause["what"]


@contextmanager
def client(mode: str, ports: range) -> Iterator[int]:
    """One that waits for an answer: its process."""
    with listener(ports) as server:
        command = [str(BUILD / "polls"), mode, as_word(place_of(server))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waits, server.accept()[0]:
            try:
                assert waits.stdout is not None and waits.stdout.readline() == "ready\n"
                yield waits.pid
            finally:
                waits.kill()


@contextmanager
def idle_server(mode: str, ports: range) -> Iterator[int]:
    """One that has a client, which asks for nothing: its process."""
    with listener(ports) as free:
        place = place_of(free)
        leave(free)
    command = [str(BUILD / "polls"), mode, as_word(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            with connection(place):
                assert server.stdout.readline() == "ready\n"
                yield server.pid
        finally:
            server.kill()


def await_sleep(pid: int) -> None:
    """Until the process sleeps."""
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)


def attached(programs: Iterable[Program], folder: Path) -> dict[Program, dict[str, Any]]:
    """The reports on them, to which one attaches at the same time. They slept before: what is seen of them is what
    ``/proc`` tells."""
    profiles: dict[Program, Path] = {}
    with ExitStack() as running, ExitStack() as attaching:
        pids = {
            (mode, ports): running.enter_context((client if mode in CLIENTS else idle_server)(mode, ports))
            for mode, ports in programs
        }
        for pid in pids.values():  # they have said that they are about to wait
            await_sleep(pid)
        commands = []
        for number, (program, pid) in enumerate(pids.items()):
            profiles[program] = folder / f"{number}.pb.gz"
            command = attach_command(profiles[program], pid, "-d", 1)
            commands.append(attaching.enter_context(subprocess.Popen(command)))
        assert [command.wait() for command in commands] == [0] * len(commands)
    return {program: report_of(profile) for program, profile in profiles.items()}


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> dict[Program, dict[str, Any]]:
    """All of them, each judged once: whoever wants another report has one of its own."""
    programs = [(mode, ports) for mode in (*CLIENTS, *SERVERS_OF) for ports in (SERVERS, ANY, UNIX)]
    return attached(programs, tmp_path_factory.mktemp("hanging"))


@pytest.fixture
def hanging(at_once: dict[Program, dict[str, Any]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def take(*program: Any) -> dict[str, Any]:
        return at_once.pop(program, None) or attached([program], tmp_path)[program]

    return take


@pytest.mark.parametrize("ports", [SERVERS, ANY, UNIX])
@pytest.mark.parametrize("mode", CLIENTS)
def test_one_that_hangs_on_a_server_is_told_of_it(
    mode: str, ports: range, hanging: Callable[..., dict[str, Any]]
) -> None:
    (cause,) = hanging(mode, ports)["causes"]
    assert (cause["kind"], cause["function"]) == ("stall", f"asks_by_{mode}") and "for the network" in cause[
        "what"
    ]


@pytest.mark.parametrize("ports", [SERVERS, ANY, UNIX])
@pytest.mark.parametrize("mode", SERVERS_OF)
def test_a_server_without_requests_hangs_on_nobody(
    mode: str, ports: range, hanging: Callable[..., dict[str, Any]]
) -> None:
    report = hanging(mode, ports)
    assert report["causes"] == [] and report["totals"]["stall_s"] == 0
