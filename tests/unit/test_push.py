# SPDX-License-Identifier: Apache-2.0
"""Profiles all the way to a store: through the queue, past failures, across the death of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parprof.errors import UsageError
from parprof.exporters import pprof_reader
from parprof.model import Frame, Profile
from parprof.service.model import Labels, PushQueue
from parprof.service.push import backoff, parca_pb2, pyroscope_pb2
from parprof.service.push.backend import Delivery, Reply
from parprof.service.push.config import PushConfig, StoreConfig
from parprof.service.push.parca import Parca
from parprof.service.push.pusher import MAX_WAITING, Pusher
from parprof.service.push.pyroscope import PyroscopePush
from parprof.service.push.sender import MAX_ANSWERS
from profiles import heat
from push_server import (
    Behaviour,
    Handler,
    Received,
    Server,
    close_silently,
    garbage,
    grpc_message,
    hang,
    push_config_of,
    reset,
    serving,
    status,
    unzipped,
    web_page,
)

Make = Callable[..., Pusher]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def pusher_to(
    server: Server, tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    monkeypatch.setattr(backoff, "FIRST_S", 0.01)
    monkeypatch.setattr(backoff, "LONGEST_S", 0.02)
    made: list[Pusher] = []

    def make(*kinds: str, timeout_s: float = 30.0, **settings: object) -> Pusher:
        table = {kind: {"url": server.url, "timeout_s": timeout_s} for kind in kinds or ("pyroscope",)}
        config = push_config_of(
            {"spool": str(tmp_path / "spool"), "process_labels": ["comm", "pid"], **table}
        )
        made.append(Pusher(replace(config, **settings), log.append))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def numbered(number: int) -> Profile:
    """A profile that can be told from others by its PID."""
    profile = heat()
    profile.process = replace(profile.process, pid=number)
    return profile


def submit(pusher: Pusher, *numbers: int) -> None:
    for number in numbers:
        pusher.submit(numbered(number), Labels(comm="heat"))
        assert pusher.flush(60)


def labels_of(received: Received) -> dict[str, str]:
    """The labels of a stored profile, which must be whole."""
    if received.path.startswith("/push.v1"):
        (series,) = pyroscope_pb2.PushRequest.FromString(received.body).series
        labels = {one.name: one.value for one in series.labels}
        data = series.samples[0].raw_profile
    else:
        (stored,) = parca_pb2.WriteRawRequest.FromString(grpc_message(received.body)).series
        labels = {one.name: one.value for one in stored.labels.labels}
        data = stored.samples[0].raw_profile
    assert pprof_reader.decode(unzipped(data)).total().work_ns == heat().total().work_ns
    return labels


def pids(received: list[Received]) -> list[int]:
    return [int(labels_of(one)["pid"]) for one in received]


def wait_until_empty(pusher: Pusher) -> None:
    for _ in range(6000):
        if not any(queue.profiles for queue in pusher.queues().values()):
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"still in the queues: {pusher.queues()}")


def settled(pusher: Pusher, server: Server, count: int) -> dict[str, int]:
    """The outcomes at Pyroscope once ``count`` requests were stored and nothing waits."""
    server.wait_for(count)
    wait_until_empty(pusher)
    pusher.close()
    return {outcome: number for (_, outcome), number in pusher.outcomes().items()}


def test_all_stores(server: Server, pusher_to: Make, log: list[str]) -> None:
    pusher = pusher_to("pyroscope", "parca", "otlp", labels={"cluster": "north"})
    submit(pusher, 1, 2)
    received = server.wait_for(6)
    paths = [one.path for one in received]
    assert sorted(set(paths)) == [
        "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
        "/push.v1.PusherService/Push",
        "/v1development/profiles",
    ]
    for one in received:
        if not one.path.startswith("/v1development"):
            labels = labels_of(one)
            expected = {"__name__": "parprof", "service_name": "heat", "comm": "heat", "cluster": "north"}
            assert labels.items() >= expected.items()
    wait_until_empty(pusher)
    pusher.close()
    assert dict(pusher.outcomes()) == {(name, "sent"): 2 for name in ("pyroscope", "parca", "otlp")}
    assert not log
    assert not [queue.problem for queue in pusher.queues().values() if queue.problem]


@pytest.mark.parametrize(
    "behaviour",
    [status(500), status(503), status(408), status(429), garbage, reset, close_silently, web_page],
)
def test_failures_are_retried(server: Server, pusher_to: Make, log: list[str], behaviour: Behaviour) -> None:
    server.plan.extend([behaviour] * 3)
    pusher = pusher_to()
    submit(pusher, 1, 2)
    assert settled(pusher, server, 2) == {"retried": 3, "sent": 2}
    assert pids(server.accepted) == [1, 2]
    assert len(log) == 2 and log[1] == "push to pyroscope: works again"
    assert all(line.isprintable() for line in log)


def test_hanging_server(server: Server, pusher_to: Make) -> None:
    server.plan.append(hang)
    pusher = pusher_to(timeout_s=0.3)
    submit(pusher, 1)
    assert settled(pusher, server, 1) == {"retried": 1, "sent": 1}


@pytest.mark.parametrize("code", [400, 401, 404, 413, 422, 301])
def test_what_is_refused_is_dropped(server: Server, pusher_to: Make, log: list[str], code: int) -> None:
    server.plan.append(status(code))
    pusher = pusher_to()
    submit(pusher, 1, 2)
    assert settled(pusher, server, 1) == {"dropped_rejected": 1, "sent": 1}
    assert pids(server.accepted) == [2]
    assert str(code) in log[0]


def test_what_always_fails_is_given_up(server: Server, pusher_to: Make) -> None:
    """GIVEN a profile that breaks the server THEN it does not hold up the others for ever."""
    server.plan.extend([status(500)] * MAX_ANSWERS)
    pusher = pusher_to()
    submit(pusher, 1, 2)
    assert settled(pusher, server, 1) == {"retried": MAX_ANSWERS - 1, "dropped_failed": 1, "sent": 1}
    assert pids(server.accepted) == [2]


def test_no_server_is_no_reason_to_give_up(
    server: Server, pusher_to: Make, log: list[str], tmp_path: Path
) -> None:
    """GIVEN connections that are closed more often than answers may fail THEN nothing is dropped."""
    server.plan.extend([close_silently] * (3 * MAX_ANSWERS))
    pusher = pusher_to()
    submit(pusher, 1)
    assert settled(pusher, server, 1) == {"retried": 3 * MAX_ANSWERS, "sent": 1}


def test_a_mistake_costs_one_profile(
    server: Server, pusher_to: Make, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(self: PyroscopePush, reply: Reply) -> tuple[Delivery, str]:
        raise ZeroDivisionError("of ours")

    pusher = pusher_to()
    with monkeypatch.context() as patch:
        patch.setattr(PyroscopePush, "judge", judge)
        submit(pusher, 1)
        server.wait_for(MAX_ANSWERS)
        wait_until_empty(pusher)
    submit(pusher, 2)
    assert settled(pusher, server, MAX_ANSWERS + 1) == {
        "retried": MAX_ANSWERS - 1,
        "dropped_failed": 1,
        "sent": 1,
    }
    assert "ZeroDivisionError" in log[0]


def test_retry_after_is_honoured(server: Server, pusher_to: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("parprof.service.push.sender.Sender._wait", lambda _, seconds: waited.append(seconds))
    server.plan.append(status(429, Retry_After="17"))
    server.plan.append(status(503, Retry_After="nonsense"))
    pusher = pusher_to()
    submit(pusher, 1)
    assert settled(pusher, server, 1) == {"retried": 2, "sent": 1}
    assert waited[0] == 17.0
    assert 0 < waited[1] < 1


def test_one_store_does_not_hold_up_another(server: Server, pusher_to: Make) -> None:
    def hang_for_parca(handler: Handler) -> None:
        if handler.path.startswith("/parca"):
            hang(handler)
        else:
            handler.server.accept(Received(handler.path, {}, {}, b""))
            handler.answer()

    server.always = hang_for_parca
    pusher = pusher_to("pyroscope", "parca", timeout_s=300.0)
    submit(pusher, 1, 2, 3)
    server.wait_for(3)
    assert pusher.queues()["parca"].profiles == 3
    closer = threading.Thread(target=pusher.close)
    closer.start()
    closer.join(60)
    assert not closer.is_alive(), "the hanging server holds up the end"


def test_what_waits_and_why(server: Server, pusher_to: Make) -> None:
    server.always = reset
    pusher = pusher_to()
    submit(pusher, 1, 2)
    for _ in range(6000):
        if (queue := pusher.queues()["pyroscope"]).problem:
            break
        threading.Event().wait(0.01)
    assert "reset" in queue.problem or "Broken pipe" in queue.problem
    assert queue.profiles == 2
    assert queue.size_bytes > 2 * 100
    server.always = None
    wait_until_empty(pusher)
    pusher.close()
    assert pusher.queues()["pyroscope"] == PushQueue(0, 0)


def test_close_keeps_what_was_not_sent(server: Server, pusher_to: Make) -> None:
    begun = threading.Event()

    def hang_and_tell(handler: Handler) -> None:
        begun.set()
        hang(handler)

    server.always = hang_and_tell
    pusher = pusher_to(timeout_s=300.0)
    for number in range(1, MAX_WAITING + 1):
        pusher.submit(numbered(number), Labels())
    assert begun.wait(60)
    pusher.close()
    counts = {outcome: number for (_, outcome), number in pusher.outcomes().items()}
    server.always = None
    again = pusher_to()
    stored = server.wait_for(MAX_WAITING - counts.get("dropped_busy", 0))
    assert set(counts) <= {"dropped_busy"}
    assert pids(stored) == list(range(1, len(stored) + 1))
    pusher.submit(heat(), Labels())  # closed: counted, nothing else
    assert pusher.outcomes()["pyroscope", "dropped_busy"] == counts.get("dropped_busy", 0) + 1
    again.close()
    again.close()


def test_submit_never_waits(server: Server, pusher_to: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a disk that hangs THEN the oldest in memory go, and are counted."""
    free, stuck = threading.Event(), threading.Event()
    real = Parca.encode

    def encode(self: Parca, *arguments: object) -> object:
        stuck.set()
        assert free.wait(60)
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Parca, "encode", encode)
    pusher = pusher_to("parca")
    pusher.submit(numbered(1), Labels())
    assert stuck.wait(60)
    for number in range(2, MAX_WAITING + 5):
        assert pusher.has_room() == (number < MAX_WAITING + 2)
        pusher.submit(numbered(number), Labels())
    assert pusher.outcomes() == {("parca", "dropped_busy"): 3}
    free.set()
    stored = server.wait_for(MAX_WAITING + 1)
    assert pids(stored) == [1, *range(5, MAX_WAITING + 5)]


def test_empty_and_unfit_profiles(server: Server, pusher_to: Make, log: list[str]) -> None:
    pusher = pusher_to()
    pusher.submit(replace(heat(), samples=[]), Labels())
    unfit = heat()
    unfit.samples[0].path = (Frame("x" * (5 << 20)),)
    unfit.samples = unfit.samples[:1]
    submit(pusher, 1)
    pusher.submit(unfit, Labels())
    pusher.submit(unfit, Labels())
    submit(pusher, 2)
    found = settled(pusher, server, 2)
    assert found == {"sent": 2, "dropped_unfit": 2}
    assert len(log) == 1 and "does not fit" in log[0]


def test_nothing_configured(tmp_path: Path) -> None:
    with Pusher(PushConfig(spool=tmp_path / "none"), print) as pusher:
        pusher.submit(heat(), Labels())
        assert (pusher.outcomes(), pusher.queues()) == ({}, {})
    assert not (tmp_path / "none").exists()


def test_spool_in_use(pusher_to: Make) -> None:
    pusher_to("parca")
    with pytest.raises(UsageError, match="another process"):
        pusher_to("pyroscope", "parca")
    pusher_to("pyroscope").close()  # what was opened before the failure was closed again


def test_wrong_url_names_its_table(tmp_path: Path) -> None:
    right = push_config_of({"parca": {"url": "http://parca:7070"}}).stores[0]
    assert isinstance(right, StoreConfig)
    store = replace(right, endpoint=replace(right.endpoint, url="parca:7070"))
    with pytest.raises(UsageError, match=r"push\.parca: 'parca:7070' is not a URL"):
        Pusher(PushConfig((store,), tmp_path), print)


_CHILD = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from parprof.service.model import Labels
from parprof.service.push.backend import Reply, Verdict
from push_server import push_config_of
from parprof.service.push.pusher import Pusher
from profiles import heat
table = {"spool": sys.argv[1], "process_labels": ["pid"], "pyroscope": {"url": sys.argv[2]}}
pusher = Pusher(push_config_of(table), lambda line: None)
number = int(sys.argv[4])
while True:
    number += 1
    profile = heat()
    profile.process = replace(profile.process, pid=number)
    pusher.submit(profile, Labels())
    pusher.flush(60)
    print(number, flush=True)
"""


def test_killed_in_the_middle(server: Server, pusher_to: Make, tmp_path: Path) -> None:
    """GIVEN a pusher that is killed while it writes and sends THEN all that was on the disk arrives, whole.

    In turn, and twice at most: the kill may come between the answer and the removal of the file.
    """
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    last = 0
    for turn in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, tmp_path / "spool", server.url, Path(__file__).parent, str(last)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert child.stdout is not None
        first = last
        for line in child.stdout:
            last = int(line)
            if last >= first + 7 + turn:
                break
        child.kill()
        last = max([last, *map(int, child.stdout.read().split())])
        child.stdout.close()
        child.wait()
    with pusher_to() as pusher:
        wait_until_empty(pusher)
        assert pusher.queues()["pyroscope"] == PushQueue(0, 0)
        assert "dropped_damaged" not in {outcome for _, outcome in pusher.outcomes()}
    got = pids(server.accepted)
    assert set(range(1, last + 1)) <= set(got)
    assert len(got) - len(set(got)) <= 4 * 2
    assert got == sorted(got)
