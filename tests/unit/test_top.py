# SPDX-License-Identifier: Apache-2.0
"""`parprof top` and `parprof status` against a stand-in daemon on a real socket."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import StandInService, process, serving
from parprof.commands.status import StatusCommand, described
from parprof.commands.top import Feed, TopCommand, as_data, table
from parprof.errors import UsageError
from parprof.exporters.screen import Screen
from parprof.metrics import BLAME, IDLENESS, OVERHEAD, PROFILING, SPIN, WORK, Metrics
from parprof.service.control import control_pb2 as pb
from parprof.service.control.client import ControlError, NoDaemon
from parprof.service.control.intervals import sorts, uses
from parprof.service.model import FunctionUse

ME = os.getpid()
USER = os.getuid()


@pytest.fixture
def service() -> StandInService:
    """Two looks at this process, the only one that every user may see, are a minute and two seconds of it."""
    return StandInService(process(ME, USER, started_s=1e9))


def run(command: TopCommand | StatusCommand, *arguments: str) -> int:
    parser = argparse.ArgumentParser(description=command.__doc__)
    command.prepare_parser(parser)
    return command.run(parser.parse_args(arguments))


def later(service: StandInService, seconds: float, **more: float) -> None:
    """Let time pass, in which the process did something."""
    one = service.processes[ME]
    totals = one.totals.copy()
    totals.add(Metrics(**more))  # type: ignore[arg-type]
    service.time_s += seconds
    service.clock_s += seconds
    service.processes[ME] = replace(one, totals=totals)


def test_once_is_about_all_the_time(
    service: StandInService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(service, tmp_path) as path:
        assert run(TopCommand(), "--once", "--socket", path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 processes: 0.1 cores work, 0.0 stand idle" in lines[0]
    assert max(map(len, lines)) < 200, "of what is no terminal lines are as long as what they say"
    assert lines[1] == "since each was first watched; cost 0.30 %; lost 2"
    assert lines[3].split() == [
        "pid", "n_w/n", "eff%", "free", "work", "ovhd", "spin", "idle", "cost%", "source", "runtime", "to", "blame",
        "command",
    ]  # fmt: skip
    # 3 s of work, 1 of idleness, 0.5 of overhead and 0.25 of spin in 60 s; efficiency 2.5 / 4
    assert lines[4].split() == [
        str(ME), "3/4", "62.5", "0.02", "0.05", "0.01", "0.00", "0.02", "0.20", "exact", "libgomp", "heat",
    ]  # fmt: skip


def test_an_interval(service: StandInService, tmp_path: Path) -> None:
    with serving(service, tmp_path) as path:
        feed = Feed(path)
        feed.refresh()
        later(
            service,
            2.0,
            work_ns=6e9,
            idleness_ns=9e9,
            unused_ns=2e9,
            overhead_ns=1e9,
            spin_ns=5e8,
            blame_ns=4e9,
            profiling_ns=2e8,
        )
        feed.refresh()
        (use,) = feed.uses("idleness")
        assert (use.interval_s, use[WORK], use[IDLENESS], use[OVERHEAD]) == (2.0, 3.0, 4.5, 0.5)
        assert (use[SPIN], use[BLAME], use[PROFILING], use.efficiency) == (0.25, 2.0, 0.1, 5 / 8)
        feed.refresh()  # the daemon has nothing new: the last interval stays
        assert feed.uses("idleness") == [use]
        later(service, 2.0)
        feed.refresh()
        (use,) = feed.uses("idleness")
        assert (use[WORK], use.efficiency) == (0.0, None)
        feed.close()


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_the_wall_clock_is_set_between_two_looks(
    service: StandInService, tmp_path: Path, capsys: pytest.CaptureFixture[str], jump_s: int
) -> None:
    """Or the machine slept, and that clock went on."""
    with serving(service, tmp_path) as path:
        feed = Feed(path)
        feed.refresh()
        service.time_s += jump_s
        later(service, 2.0, work_ns=6e9)
        feed.refresh()
        (use,) = feed.uses("idleness")
        assert (use.interval_s, use[WORK]) == (2.0, 3.0)
        feed.close()
        assert run(TopCommand(), "--once", "--json", "--socket", path) == 0
        (data,) = json.loads(capsys.readouterr().out)["processes"]
        assert data["interval_s"] == 62, "since it was first watched"
        assert run(StatusCommand(), "--json", "--socket", path) == 0
        assert json.loads(capsys.readouterr().out)["watched_s"] == 62


def functions(**idleness_s: float) -> tuple[FunctionUse, ...]:
    return tuple(
        FunctionUse(name, "/bin/heat", Metrics(idleness_ns=1e9 * value)) for name, value in idleness_s.items()
    )


def test_the_function_to_blame(
    service: StandInService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over all the time at first, then over the interval; never one that was not known when that began."""
    heat = replace(service.processes[ME], functions=functions(serial_part=0.8, solve=0.1))
    service.processes[ME] = heat
    with serving(service, tmp_path) as path:
        assert run(TopCommand(), "--once", "--sort", "function", "--socket", path) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[4].split()[-3:] == ["serial_part", "80%", "heat"]
        assert run(TopCommand(), "--once", "--json", "--socket", path) == 0
        (data,) = json.loads(capsys.readouterr().out)["processes"]
        assert data["to_blame"] == {"function": "serial_part", "share": pytest.approx(0.8)}
        feed = Feed(path)
        feed.refresh()
        service.processes[ME] = replace(heat, functions=functions(serial_part=0.9, solve=2.1, other=5.0))
        later(service, 2.0, work_ns=1e9, idleness_ns=8e9)
        feed.refresh()
        (use,) = feed.uses("function")
        assert (use.blamed, use.blamed_share) == ("solve", pytest.approx(2 / 8))
        service.processes[ME] = replace(heat, functions=functions(solve=2.2, other=5.5))
        later(service, 2.0, work_ns=1e9, idleness_ns=8e9)
        feed.refresh()
        (use,) = feed.uses("function")
        assert (use.blamed, use.blamed_share) == ("", 0.0), "no function has a tenth of the 8 s by itself"
        assert as_data(feed, "function")["processes"][0]["to_blame"] is None
        service.processes[ME] = replace(heat, functions=functions(solve=9.2), is_parallel=False)
        later(service, 2.0, work_ns=1e9, idleness_ns=8e9)
        feed.refresh()
        assert feed.uses("function")[0].blamed == "", "serial by design"
        feed.close()


def test_serial_programs_are_not_judged(
    service: StandInService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN one that never had a second thread THEN it has no efficiency, and its idleness is no waste."""
    one = service.processes[ME]
    totals = Metrics(1000, 3e9, 189e9, 0, 0)
    service.processes[ME] = replace(one, cores=64, totals=totals, is_parallel=False)
    with serving(service, tmp_path) as path:
        assert run(TopCommand(), "--once", "--socket", path) == 0
        lines = capsys.readouterr().out.splitlines()
        assert run(TopCommand(), "--once", "--json", "--socket", path) == 0
        (data,) = json.loads(capsys.readouterr().out)["processes"]
    assert "0.1 cores work, 0.0 stand idle" in lines[0]
    assert lines[4].split()[1:4] == ["3/64", "-", "0.00"]
    assert (data["serial"], data["efficiency"], data["idleness"]) == (True, None, pytest.approx(189 / 60))


def test_a_new_process_with_an_old_pid_starts_anew(service: StandInService, tmp_path: Path) -> None:
    with serving(service, tmp_path) as path:
        feed = Feed(path)
        feed.refresh()
        service.time_s += 2
        service.clock_s += 2
        service.processes[ME] = process(
            ME, USER, started_s=service.time_s - 1, begun_s=service.clock_s - 1, totals=Metrics(1, 5e8)
        )
        feed.refresh()
        (use,) = feed.uses("work")
        assert (use.interval_s, use[WORK]) == (1.0, 0.5)
        feed.close()


_sums = st.floats(0, 1e12)
_metrics = st.builds(
    lambda a, b, c, d: pb.Metrics(work_s=a, idleness_s=b, overhead_s=c, spin_s=d), *[_sums] * 4
)
_processes = st.builds(
    lambda pid, totals, started: pb.Process(pid=pid, totals=totals, started_time_s=started),
    st.integers(1, 4), _metrics, st.sampled_from([0.0, 5.0]),
)  # fmt: skip
_lists = st.builds(
    lambda time_s, found: pb.ProcessList(time_s=time_s, processes=found),
    st.floats(1e-3, 1e10) | st.just(0.0), st.lists(_processes, max_size=5),
)  # fmt: skip


@given(_lists, st.none() | _lists, st.sampled_from(list(sorts())))
def test_rates_are_never_negative(now: pb.ProcessList, before: pb.ProcessList | None, sort: str) -> None:
    """Whatever the clock does between two looks."""
    found = uses(now, before, sort)
    assert sorted(use.process.pid for use in found) == sorted(one.pid for one in now.processes)
    for use in found:
        assert min(use[WORK], use[IDLENESS], use[OVERHEAD], use[SPIN], use.interval_s) >= 0
        assert use.efficiency is None or 0 <= use.efficiency <= 1


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("idleness", "lazy"),
        ("unused", "busy"),
        ("work", "busy"),
        ("efficiency", "lazy"),
        ("cost", "dear"),
        ("function", "zero"),
        ("pid", "busy"),
        ("name", "busy"),
    ],
)
def test_sorting(sort: str, first: str) -> None:
    def one(pid: int, comm: str, work: float, idleness: float, unused: float, cost: float) -> pb.Process:
        totals = pb.Metrics(work_s=work, idleness_s=idleness, more=[pb.Value(name="unused_s", value=unused)])
        return pb.Process(pid=pid, comm=comm, cost_ratio=cost, totals=totals)

    found = [
        one(9, "lazy", 1, 9, 2, 0),
        one(3, "busy", 9, 1, 3, 0),
        one(5, "dear", 2, 2, 0, 0.5),
        one(7, "zero", 0, 0, 0, 0),
    ]
    if sort == "function":  # 1.8 s of 9, all of one, and most of 3
        found[3].totals.idleness_s = 3
        for process_, name, idleness_s in ((found[0], "f", 1.8), (found[1], "g", 1.0), (found[3], "h", 2.8)):
            process_.functions.add(name=name, module="m", idleness_s=idleness_s)
    assert uses(pb.ProcessList(time_s=1, processes=found), None, sort)[0].process.comm == first


def rendered(feed: Feed, rows: int | None = None, width: int = 80) -> str:
    out = io.StringIO()
    with Screen(out, width) as screen:
        screen.show(table(feed, "idleness", width, rows))
    return out.getvalue()


@pytest.mark.skipif(USER != 0, reason="the processes are made up, so only root sees them")
def test_80_columns_and_hostile_names(tmp_path: Path) -> None:
    found = [
        process(
            4194304 - n, comm="\x1b[31m\n\u4e2d\u6587" + "x" * 50, runtime="y" * 50, n_w_source="z" * 50,
            cores=1024, n_working=1024, cost_ratio=1.0, totals=Metrics(10**9, 6e16, 6e15, 6e14, 6e13),
            functions=functions(**{"\x1b[31m\n\u4e2d\u6587" + "f" * 50: 6e6}),
        )
        for n in range(30)
    ]  # fmt: skip
    with serving(StandInService(*found), tmp_path) as path:
        feed = Feed(path)
        feed.refresh()
        text = rendered(feed)
        assert "\x1b" not in text
        assert max(map(cell_len, text.splitlines())) <= 80
        assert all("fff 100%" in line for line in text.splitlines()[4:]), "the share is never cut off"
        assert "source" not in text, "how it is known makes room for what there is to do"
        for width in (81, 99, 100, 101, 120, 160, 300):
            text = rendered(feed, width=width)
            assert max(map(cell_len, text.splitlines())) <= width
            assert ("source  runtime" in text) is (width >= 100) and "fff 100%" in text
        assert len(text.splitlines()) == 4 + 30
        assert "25 more not shown" in rendered(feed, 5)
        assert len(rendered(feed, 5).splitlines()) == 4 + 5
        assert as_data(feed, "pid")["processes"][0]["cores"] == 1024
        feed.close()


def test_nothing_to_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(StandInService(), tmp_path) as path:
        assert run(TopCommand(), "--once", "--socket", path) == 0
    assert "none of yours is watched" in capsys.readouterr().out


def test_json(service: StandInService, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(service, tmp_path) as path:
        assert run(TopCommand(), "--once", "--json", "--socket", path) == 0
    data = json.loads(capsys.readouterr().out)
    (one,) = data["processes"]
    assert one["work"] == pytest.approx(3 / 60)
    assert (one["pid"], one["interval_s"]) == (ME, 60.0)
    assert one["efficiency"] == pytest.approx(0.625)
    assert one["threads"] == {"working": 3, "spinning": 1, "blocked": 0}
    assert one["totals"]["work_s"] == 3.0
    assert data["lost"] == 2


def test_losses_that_are_expected_are_told_by_status_alone(
    service: StandInService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = service.snapshot
    service.snapshot = lambda: replace(plain(), lost={"map-full": 2, "settling": 40})  # type: ignore[method-assign]
    with serving(service, tmp_path) as path:
        assert run(TopCommand(), "--once", "--socket", path) == 0
        assert "; lost 2\n" in capsys.readouterr().out
        assert run(TopCommand(), "--once", "--json", "--socket", path) == 0
        assert json.loads(capsys.readouterr().out)["lost"] == 2
        assert run(StatusCommand(), "--json", "--socket", path) == 0
        assert json.loads(capsys.readouterr().out)["lost"] == {"map-full": 2, "settling": 40}


def test_without_a_daemon(tmp_path: Path) -> None:
    for command in (TopCommand(), StatusCommand()):
        with pytest.raises(NoDaemon, match="systemctl start parprofd") as caught:
            run(command, "--socket", str(tmp_path / "none"))
        assert caught.value.exit_code == 1


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "61"])
def test_intervals_are_checked(interval: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0.1 to 60"):
        run(TopCommand(), "--interval", interval, "--socket", str(tmp_path / "none"))


def test_a_restarted_daemon_is_found_again(service: StandInService, tmp_path: Path) -> None:
    with serving(service, tmp_path) as path:
        feed = Feed(path)
        feed.refresh()
    with pytest.raises(ControlError):
        feed.refresh()
    with pytest.raises(ControlError):
        feed.refresh()
    with serving(service, tmp_path):
        feed.refresh()
        assert len(feed.uses("idleness")) == 1
        feed.close()


@contextmanager
def terminal(path: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """`parprof top` on a real terminal of 80 x 24: its PID and the terminal's other end."""
    pid, leader = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where the tests run behind nohup
        os.environ.update(PYTHONPATH=":".join(sys.path), COLUMNS="80", LINES="24", TERM="xterm")
        command = ["-m", "parprof", "top", "-i", "0.1", "--socket", path, *arguments]
        os.execv(sys.executable, [sys.executable, *command])
    try:
        yield pid, leader
    finally:
        os.close(leader)


def shown_until(leader: int, wanted: bytes) -> bytes:
    text = b""
    end = time.monotonic() + 60
    while wanted not in text:
        assert time.monotonic() < end, text
        if select.select([leader], [], [], 1)[0]:
            text += os.read(leader, 65536)
    return text


def exit_code(pid: int, leader: int) -> int:
    """Of a process whose terminal output has to be read for it to end."""
    while True:
        try:
            if not os.read(leader, 65536):
                break
        except OSError:
            break
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("end", [b"q", b"\x03"])
def test_live(service: StandInService, tmp_path: Path, end: bytes) -> None:
    """GIVEN a terminal THEN the table follows the daemon and the keys; q and Ctrl-C end it and clean up."""
    with serving(service, tmp_path) as path, terminal(path) as (pid, leader):
        shown_until(leader, b"heat")
        later(service, 2.0, work_ns=77e9)
        shown_until(leader, b"38.50")
        os.write(leader, b"wx")
        shown_until(leader, b"heat")
        os.write(leader, end)
        assert exit_code(pid, leader) == 0


def test_live_when_the_daemon_goes_away(service: StandInService, tmp_path: Path) -> None:
    with serving(service, tmp_path) as path:
        with terminal(path) as (pid, leader):
            shown_until(leader, b"heat")
            os.rename(path, path + ".gone")
            service.fail = ValueError("gone")
            shown_until(leader, b"no parprofd listens")
            os.write(leader, b"q")
            assert exit_code(pid, leader) == 0


def test_status(
    service: StandInService,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with serving(service, tmp_path) as path:
        assert run(StatusCommand(), "--socket", path) == 0
        printed = capsys.readouterr().out
        assert run(StatusCommand(), "--socket", path, "--json") == 0
        data = json.loads(capsys.readouterr().out)
    text = " ".join(printed.split())
    assert "not ready: no programs yet" in text
    assert "(1 min 0 s)" in text
    assert "watches: 1 processes at 99 Hz" in text
    assert "cost: 0.30 % of this machine's CPU time in the targets, of a budget of 1.00 %" in text
    assert "lost: 2 map-full" in text
    assert "could not attach: 1 libomp > stripped" in text
    assert "governor: 4 exact > sampled" in text
    assert max(map(len, printed.splitlines())) <= 80
    assert (data["healthy"], data["ready"], data["problem"]) == (True, False, "no programs yet")
    assert data["lost"] == {"map-full": 2}
    assert data["attach_failures"] == {"libomp:stripped": 1}


def test_an_unwell_daemon_is_a_failure(
    service: StandInService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(StandInService, "is_healthy", lambda self: "the loop has not turned for 20 s")
    with serving(service, tmp_path) as path:
        assert run(StatusCommand(), "--socket", path) == 1
    assert "the loop has not turned for 20 s" in " ".join(capsys.readouterr().out.split())


def test_strange_times_are_said_to_be_strange() -> None:
    facts: dict[str, Any] = dict(described(pb.Status(started_time_s=1e300, time_s=0), "/x"))
    assert facts["since"] == "an unknown time (0 s)"
    facts = dict(
        described(pb.Status(started_time_s=0, watched_s=93784, processes=5, visible_processes=2), "/x")
    )
    assert facts["since"].endswith("(1 d 2 h)")
    assert facts["watches"].startswith("5 processes (3 of them other users')")
