from __future__ import annotations

import io
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parprof.service import log
from parprof.service.notify import Notifier


@contextmanager
def manager(address: str | bytes) -> Iterator[socket.socket]:
    """The service manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(address)
        end.settimeout(10)
        yield end


def told(end: socket.socket) -> list[str]:
    return end.recv(4096).decode().split("\n")


def test_tells_the_service_manager(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with manager(path) as end:
        environment = {"NOTIFY_SOCKET": path, "HOME": "/"}
        notifier = Notifier(environment)
        assert environment == {"HOME": "/"}, "no child may speak for us"
        assert notifier.ready("up\nREADY=0 \x1b[1m")
        assert told(end) == ["READY=1", "STATUS=up\\x0aREADY=0 \\x1b[1m"]
        before_us = time.monotonic_ns() // 1000
        notifier.reloading()
        state, when = told(end)
        assert state == "RELOADING=1"
        assert before_us <= int(when.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
        notifier.ready()
        assert told(end) == ["READY=1"]
        notifier.status("a")
        notifier.status("a")
        notifier.more_time(2)
        assert [told(end), told(end)] == [["STATUS=a"], ["EXTEND_TIMEOUT_USEC=2000000"]]
        notifier.stopping("bye")
        assert told(end) == ["STOPPING=1", "STATUS=bye"]
        notifier.close()
        assert not notifier.ready()


def test_abstract_sockets() -> None:
    name = f"parprof-test-{os.getpid()}"
    with manager(b"\0" + name.encode()) as end:
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name})
        assert notifier.ready()
        assert told(end) == ["READY=1"]
        notifier.close()


def test_signs_of_life_come_in_time(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with manager(path) as end:
        environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
        notifier = Notifier(environment)
        assert environment == {}
        assert notifier.watchdog_s == 4.0
        sent = [at / 10 for at in range(100) if notifier.alive(1000 + at / 10)]
        assert sent[0] == 0.0
        assert all(later - earlier <= 2.0 for earlier, later in zip(sent, sent[1:], strict=False))
        assert len(sent) <= 11, "not in each turn"
        assert told(end) == ["WATCHDOG=1"]
        notifier.close()


@pytest.mark.parametrize("of", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}])
def test_the_watchdog_of_others_is_not_ours(tmp_path: Path, of: dict[str, str]) -> None:
    path = str(tmp_path / "notify")
    with manager(path):
        notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1000000", **of})
        assert notifier.watchdog_s is None
        assert not notifier.alive()
        notifier.close()


@pytest.mark.parametrize("address", ["", "relative", "/nonexistent/x", "@", "/" + "x" * 200, "@a\0b"])
def test_does_nothing_where_nobody_listens(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    assert not notifier.ready("x") and not notifier.alive() and not notifier.stopping()
    notifier.close()


def test_never_waits_for_a_service_manager_that_does_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with manager(path):
        notifier = Notifier({"NOTIFY_SOCKET": path})
        sent = [notifier.status(str(number)) for number in range(100_000)]
        assert sent[0] and not sent[-1]
        notifier.close()


@contextmanager
def logger(journal: bool) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(log.LineFormatter(journal=journal))
    made = logging.Logger("x")
    made.addHandler(handler)
    yield made, out


def test_lines_have_priorities_in_the_journal() -> None:
    with logger(journal=True) as (one, out):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            one.log(level, "a %s", "b\n<0>c\x1b[2J")
    assert out.getvalue().splitlines() == [f"<{number}>a b\\x0a<0>c\\x1b[2J" for number in (7, 6, 4, 3, 2)]


def test_lines_are_plain_elsewhere_and_never_long() -> None:
    with logger(journal=False) as (one, out):
        one.info("started")
        one.warning("x" * 10_000)
        one.error("%d of %s", 1)
    first, second, third = out.getvalue().splitlines()
    assert first == "parprofd: started"
    assert second.startswith("parprofd: warning: xxx") and len(second) < 2100
    assert third.startswith("parprofd: error: %d of %s (cannot be formatted")


def test_an_exception_is_one_line_that_says_where() -> None:
    with logger(journal=False) as (one, out):
        try:
            raise ValueError("a\nb")
        except ValueError:
            one.exception("it failed")
    (line,) = out.getvalue().splitlines()
    assert line.startswith("parprofd: error: it failed: ValueError: a\\x0ab (test_notify.py:")
    assert "test_an_exception_is_one_line" in line


def test_repeated_lines_are_counted_instead() -> None:
    now = [0.0]
    limit = log.RateLimit(lambda: now[0])

    def passes(text: str, *values: object) -> str:
        record = logging.LogRecord("x", logging.INFO, "", 0, text, values, None)
        return record.getMessage() if limit.filter(record) else ""

    lines = [passes("pid %d", number) for number in range(100)]
    assert [line for line in lines if line] == [f"pid {number}" for number in range(log.BURST)]
    assert passes("other") == "other"
    now[0] = log.PERIOD_SECONDS
    assert passes("pid %d", 7) == "pid 7 (90 more like this were left out)"
    assert passes("pid %d", 8) == "pid 8"
    for number in range(2000):  # texts made with f-strings do not pile up
        assert passes(f"text {number}")
    assert len(limit._kinds) <= 512


def test_knows_the_journal_by_its_stream(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as stream:
        found = os.fstat(stream.fileno())
        assert log.is_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        assert not log.is_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
        assert not log.is_journal(stream, {})
    assert not log.is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:1"})


def test_set_up_replaces_what_was_there() -> None:
    root = logging.getLogger()
    before, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    out = io.StringIO()
    try:
        log.set_up("warning", out, {})
        logging.getLogger("parprof.x").info("no")
        log.set_level("info")
        logging.getLogger("parprof.x").info("yes")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.raiseExceptions = raises
    assert out.getvalue() == "parprofd: yes\n"
