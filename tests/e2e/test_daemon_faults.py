# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a real parprofd, and that it and the programs survive it. Needs root."""

from __future__ import annotations

import ctypes
import gzip
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import daemon_process as dp
from daemon_process import DaemonProcess
from hanging_mount import served, tell
from parprof.exporters import pprof
from parprof.service.control.client import Client
from parprof.untrusted import visible
from push_server import serving

pytestmark = [pytest.mark.beside, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]


@pytest.fixture(scope="module")
def daemon(directory: Path) -> Iterator[DaemonProcess]:
    with dp.running(directory / "parprofd") as running:
        yield running


@pytest.fixture(scope="module")
def spinner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dp.build(tmp_path_factory.mktemp("bin"), "spinner")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def check_answers(daemon: DaemonProcess) -> None:
    """It is healthy, and everyone who asks gets an answer."""
    assert daemon.get("/healthz")[0] == daemon.get("/readyz")[0] == 200
    with Client(str(daemon.socket)) as client:
        assert not client.status().unhealthy
    assert "Traceback" not in daemon.log(), daemon.log()


def check_well(daemon: DaemonProcess, spinner: Path) -> None:
    """And it finds and samples a new program."""
    with dp.started(spinner) as other:
        daemon.sampled(other.pid)
    check_answers(daemon)


# The daemon itself.


def text_of_library(pid: int, name: str) -> tuple[bytes, bytes]:
    """The code of a mapped file, as it is in the memory of a process and in the file."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, permissions, offset, _, _, *path = line.split(maxsplit=5)
        if "x" in permissions and path and os.path.basename(path[0]).startswith(name):
            start, end = (int(word, 16) for word in span.split("-"))
            with open(f"/proc/{pid}/mem", "rb") as memory, open(path[0], "rb") as file:
                memory.seek(start)
                file.seek(int(offset, 16))
                return memory.read(end - start), file.read(end - start)
    raise AssertionError(f"{name} is not mapped")


def test_kill_9_leaves_nothing_and_harms_nobody(tmp_path: Path, spinner: Path) -> None:
    found = subprocess.run(
        ["gcc", "-print-file-name=libgomp.so.1"], capture_output=True, text=True
    ).stdout.strip()
    shutil.copy(
        Path(found).resolve(), tmp_path / "libgomp.so.1"
    )  # probes of other profilers are not in this one
    with dp.openmp(tmp_path, "ompkill", LD_LIBRARY_PATH=str(tmp_path)) as target:
        first = DaemonProcess(tmp_path / "parprofd").ready()
        try:
            first.page_when("the program", lambda page: page.info(target.pid).get("n_w_source") == "exact")
            first.sampled(target.pid, 0.5)
            programs, links = dp.bpf_ids(first.process.pid)
            helpers = dp.children(first.process.pid)
            assert programs and links and programs <= dp.loaded_ids()[0] and links <= dp.loaded_ids()[1]
            probed, plain = text_of_library(target.pid, "libgomp")
            assert probed != plain, "there is no probe, so none could be left"
        finally:
            first.process.kill()
            first.process.wait()
        dp.eventually("an end of its programs", lambda: not programs & dp.loaded_ids()[0])
        dp.eventually("an end of its links", lambda: not links & dp.loaded_ids()[1])
        dp.eventually("an end of its helpers", lambda: not any(map(lives, helpers)))
        memory, plain = text_of_library(target.pid, "libgomp")
        assert memory == plain, "a breakpoint was left in the program"
        assert target.poll() is None and first.socket.exists()
        with dp.running(tmp_path / "parprofd") as again:  # on the socket that the first one left
            again.page_when("the program", lambda page: page.info(target.pid).get("n_w_source") == "exact")
            again.sampled(target.pid, 0.5)
        target.terminate()
        assert target.wait(dp.WAIT_S) == 0


def lives(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return state_of(pid) != "Z"
    return False


def test_the_compiler_is_killed(tmp_path: Path) -> None:
    cache = {"PARPROF_CACHE": str(tmp_path / "cache")}
    daemon = DaemonProcess(tmp_path / "parprofd", environment=cache)
    try:
        (compiler,) = dp.eventually(
            "a compiler", lambda: dp.children(daemon.process.pid, "parprof.kernel.compiler"), dp.START_S
        )
        os.kill(compiler, signal.SIGKILL)
        assert daemon.process.wait(dp.WAIT_S) == 1
    finally:
        daemon.process.kill()
        daemon.process.wait()
    assert daemon.log().splitlines()[-1].startswith("parprofd: ") and "do not compile here" in daemon.log()
    assert "Traceback" not in daemon.log() and not daemon.socket.exists()


def test_sigterm_while_it_starts(tmp_path: Path) -> None:
    cache = {"PARPROF_CACHE": str(tmp_path / "cache")}
    daemon = DaemonProcess(tmp_path / "parprofd", environment=cache)
    try:
        dp.eventually(
            "a compiler", lambda: dp.children(daemon.process.pid, "parprof.kernel.compiler"), dp.START_S
        )
        daemon.process.terminate()
        assert daemon.process.wait(dp.START_S) == 0, daemon.log()
    finally:
        daemon.process.kill()
        daemon.process.wait()
    assert "Traceback" not in daemon.log() and ": sampling " not in daemon.log(), daemon.log()
    assert not daemon.socket.exists()


def test_two_at_once(daemon: DaemonProcess, directory: Path, spinner: Path) -> None:
    second = directory / "second.toml"
    second.write_text(
        dp.toml({"http": {"listen": daemon.address}, "control": {"socket": str(daemon.socket)}})
    )
    done = dp.as_user("parprof.service.main", 0, "--config", second)
    assert done.returncode == 2
    assert f"another parprofd listens on {daemon.socket}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    check_answers(daemon)


def test_without_privileges(directory: Path) -> None:
    own = directory / "nobody"
    own.mkdir(exist_ok=True)  # by an earlier try
    os.chown(own, dp.NOBODY, dp.NOBODY)
    file = directory / "nobody.toml"
    file.write_text(dp.toml(dp.configuration(own / "control.sock")))
    done = dp.as_user("parprof.service.main", dp.NOBODY, "--config", file)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "not permitted" in line and "run as root or with CAP_" in line
    assert not list(own.iterdir())


def test_helpers_are_killed(daemon: DaemonProcess, tmp_path: Path, spinner: Path) -> None:
    # a helper lives for milliseconds where the machine is quiet: new programs come until each was met, and
    # none of them may be one that an earlier try made, whose unwind tables are kept
    killed = set[str]()
    helpers = {"parprof.symbols.worker", "parprof.unwind.worker"}
    deadline = time.monotonic() + dp.WAIT_S
    for number in itertools.count():
        with dp.started(dp.build(tmp_path, f"new{number}", f"killed_{tmp_path.name}_{number}")) as target:
            looked_s = 0.0
            while True:
                for module in helpers:
                    for child in dp.children(daemon.process.pid, module):
                        with suppress(ProcessLookupError):
                            os.kill(child, signal.SIGKILL)
                            killed.add(module)
                if time.monotonic() - looked_s > 0.5:
                    if target.pid in daemon.page().pids():
                        break
                    looked_s = time.monotonic()
                    assert looked_s < deadline, killed
        if number >= 2 and killed == helpers:
            break
    with dp.started(dp.build(tmp_path, "last", "not_killed"), "stacks") as target:
        daemon.page_when("its function", lambda page: "not_killed" in page.functions(target.pid))
        profile = gzip.decompress(daemon.get(f"/profiles/{target.pid}.pb.gz?seconds=10")[1])
        assert b"descend" in profile and b"main" in profile
    check_answers(daemon)


# The kernel, the disk, the clock.


def test_full_maps_and_rings(tmp_path: Path, spinner: Path) -> None:
    sizes = {
        "counts": 16, "processes": 3, "configs": 3, "mapping_lists": 3, "threads": 4, "stacks": 4096,
        "control": 4096, "verdicts": 8, "sent_stacks": 64,
    }  # fmt: skip
    with dp.running(tmp_path / "parprofd", sizes=sizes) as daemon:
        with dp.started(spinner, "stacks") as one, dp.started(spinner, "stacks") as two:
            daemon.sampled(one.pid)
            daemon.sampled(two.pid)
            with dp.openmp(tmp_path, "omp1") as three, dp.openmp(tmp_path, "omp2") as four:
                with dp.openmp(tmp_path, "omp3") as five:
                    reasons = ("counts_full", "stack_ring")
                    daemon.page_when(
                        "losses",
                        lambda p: (
                            p.value("parprofd_attach_failures_total")  # five processes, and room for three
                            and all(p.value("parprofd_lost_total", reason=reason) for reason in reasons)
                        ),
                    )
                    assert not any(process.poll() for process in (one, two, three, four, five))
                    done = daemon.parprof("attach", one.pid, "-d", "1", "-o", tmp_path / "out.pb.gz")
                    told = re.search(r"what the daemon lost meanwhile \((.*)\) was of", done.stderr)
                    assert told and "counts_full" in told[1], done.stderr
                    three.kill()
                    four.kill()
                    two.kill()
                    daemon.page_when("the one that had no room", lambda p: {one.pid, five.pid} <= p.pids())
        daemon.page_when("their end", lambda page: not page.pids())
        check_well(daemon, spinner)


def test_the_disk_of_the_spool_is_full(tmp_path: Path, spinner: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", spool]).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        with serving() as store, dp.openmp(tmp_path, "ompdisk") as target:
            tables = {"push": {"interval_s": 1.0, "spool": str(spool)}, "push.pyroscope": {"url": store.url}}
            with dp.running(tmp_path / "parprofd", tables) as daemon:
                store.wait_for(1)
                name = "parprofd_pushed_profiles_total"

                def is_full(page: dp.Page) -> float:
                    with suppress(OSError), (spool / "ballast").open("ab", buffering=0) as ballast:
                        while ballast.write(bytes(4096)):  # what was sent meanwhile has left some room
                            pass
                    return page.value(name, outcome="dropped_disk")

                daemon.page_when("a full disk", is_full)
                check_well(daemon, spinner)
                daemon.sampled(target.pid, 0.3)
                (spool / "ballast").unlink()
                store.wait_for(len(store.accepted) + 1)
    finally:
        subprocess.run(["umount", "-l", spool], check=True)


def test_the_clock_is_set(tmp_path: Path, spinner: Path) -> None:
    """CLOCK_REALTIME as the daemon reads it; a stand-in, because it is the whole machine's."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    stamp = "parprofd_snapshot_timestamp_seconds"
    with dp.started(spinner) as target, dp.running(tmp_path / "parprofd", clock=clock) as daemon:
        page = daemon.sampled(target.pid, 0.3)
        for hours in (26, -30):
            before, began = page, time.monotonic()
            replacement = tmp_path / "new"
            replacement.write_text(str(3600 * hours))
            replacement.rename(clock)
            shift_s = 3600.0 * hours
            daemon.page_when(
                "the other time", lambda p, by=shift_s: abs(p.value(stamp) - time.time() - by) < 1800
            )
            page = daemon.sampled(target.pid, 0.5)
            work = page.value("parprof_work_seconds_total", pid=str(target.pid))
            grown = work - before.value("parprof_work_seconds_total", pid=str(target.pid))
            assert 0 < grown <= time.monotonic() - began + 5
            assert 0 <= page.value("parprof_parallel_efficiency_ratio", pid=str(target.pid)) <= 1
            assert page.value("parprofd_healthy") == 1
            (entry,) = [
                e for e in json.loads(daemon.get("/profiles")[1])["profiles"] if e["pid"] == target.pid
            ]
            assert 0 <= entry["duration_s"] < 60, "time that did not pass"
            assert daemon.get(f"/profiles/{target.pid}.pb.gz?seconds=5")[0] == daemon.get("/")[0] == 200
            (row,) = json.loads(daemon.parprof("top", "--once", "--json").stdout)["processes"]
            assert 0 < row["interval_s"] < 300, "the same"
            assert row["pid"] == target.pid


# The watched programs.


def check_idle(daemon: DaemonProcess, pid: int, out: Path) -> None:
    """What does not run has a profile without work, not an old one: it tells at most where its threads sleep."""
    done = daemon.parprof("attach", "-v", pid, "-d", "1", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "nothing was sampled" in " ".join(done.stdout.split())
    status_code, body = daemon.get(f"/profiles/{pid}.pb.gz?seconds=1")
    assert status_code == 200
    out.write_bytes(body)
    samples = pprof.read(str(out)).samples
    assert not any(one.metrics.samples or one.metrics.work_ns for one in samples), samples
    assert all(one.path[-1].name.startswith("[waits: ") for one in samples if one.path), samples


def test_stopped(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    with dp.started(spinner) as target:
        daemon.sampled(target.pid)
        target.send_signal(signal.SIGSTOP)
        dp.eventually("a stop", lambda: state_of(target.pid) == "T")  # it may have to get a core first
        still = daemon.fresh().samples_of(target.pid)
        check_idle(daemon, target.pid, tmp_path / "out.pb.gz")
        check_well(daemon, spinner)
        assert state_of(target.pid) == "T"
        assert daemon.page().samples_of(target.pid) == still
        target.send_signal(signal.SIGCONT)
        daemon.sampled(target.pid, 0.2)


def test_stopped_before_anyone_saw_it(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    with dp.started(spinner) as target:
        target.send_signal(signal.SIGSTOP)
        dp.eventually("a stop", lambda: state_of(target.pid) == "T")
        done = daemon.parprof("attach", target.pid, "-d", "1", "-o", tmp_path / "out.pb.gz")
        assert done.returncode == 0, done.stderr
        assert state_of(target.pid) == "T"
        target.send_signal(signal.SIGCONT)
        daemon.sampled(target.pid, 0.2)  # though nobody attaches to it any more: it is selected
    check_answers(daemon)


_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 17, 0x4206, 0x4207


def ptrace(request: int, pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), None, None):
        raise OSError(ctypes.get_errno(), "ptrace")


def test_traced(daemon: DaemonProcess, tmp_path: Path, spinner: Path) -> None:
    """By a debugger that holds it from the start, and by one that lets it run."""
    with dp.openmp(tmp_path, "traced") as target:
        ptrace(_PTRACE_SEIZE, target.pid)
        ptrace(_PTRACE_INTERRUPT, target.pid)
        os.waitpid(target.pid, 0)
        assert state_of(target.pid) == "t"
        daemon.fresh()
        check_well(daemon, spinner)
        ptrace(_PTRACE_DETACH, target.pid)
        page = daemon.page_when(
            "the program", lambda page: page.info(target.pid).get("n_w_source") == "exact"
        )
        ptrace(_PTRACE_SEIZE, target.pid)
        page = daemon.sampled(target.pid, 0.5)
        assert "burn" in page.functions(target.pid)
        ptrace(_PTRACE_INTERRUPT, target.pid)
        os.waitpid(target.pid, 0)
        ptrace(_PTRACE_DETACH, target.pid)
        target.terminate()
        assert target.wait(dp.WAIT_S) == 0


def test_in_vfork(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    with dp.started(spinner, "vfork") as target:
        daemon.sampled(target.pid)
        target.send_signal(signal.SIGUSR1)
        dp.eventually("an uninterruptible sleep", lambda: state_of(target.pid) == "D")
        (child,) = dp.children(target.pid)
        daemon.fresh()
        check_idle(daemon, target.pid, tmp_path / "out.pb.gz")
        check_answers(daemon)
        os.kill(child, signal.SIGUSR1)
        daemon.sampled(target.pid, 0.2)


def test_on_a_file_system_that_hangs(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    program = dp.build(tmp_path, "fuse", "spin_on_fuse")
    (tmp_path / "fuse").mkdir()
    with served(tmp_path / "fuse", program) as server:
        with dp.started(tmp_path / "fuse" / program.name) as target:
            assert target.stdout is not None and target.stdout.readline()
            tell(server, "hang")
            reader = subprocess.Popen(["cat", tmp_path / "fuse" / program.name], stdout=subprocess.DEVNULL)
            try:
                page = daemon.page_when("the program", lambda page: page.samples_of(target.pid) > 0)
                assert not any(name.startswith("spin") for name in page.functions(target.pid))
                check_well(daemon, spinner)
            finally:
                tell(server, "answer")
                reader.wait(dp.WAIT_S)
            daemon.sampled(target.pid, 0.3)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_its_file_is_gone(daemon: DaemonProcess, tmp_path: Path, how: str) -> None:
    program = dp.build(tmp_path, "gone", f"was_{how}")
    with dp.started(program) as target:
        assert target.stdout is not None and target.stdout.readline()
        program.unlink()
        if how == "replaced":
            dp.build(tmp_path, "gone", "never_ran")
        page = daemon.page_when("its function", lambda page: f"was_{how}" in page.functions(target.pid))
        assert "never_ran" not in page.functions(target.pid)
        assert f"was_{how}".encode() in gzip.decompress(daemon.get(f"/profiles/{target.pid}.pb.gz")[1])
        assert not target.poll()


HOSTILE = [
    b'"} 1\nx{a="',
    b"\xff\xfe\x80\n\r\t\x1b[0",
    b"\\\\n\"'`$(;",
    "ü\u202ex}\u2028".encode()[:10],
    b"<b>&amp;{}",
]


def check_pages(daemon: DaemonProcess) -> None:
    """All that others read is whole, and has no metric that somebody made up."""
    page = daemon.page()
    known = ("parprof_", "parprofd_", "process_", "python_")
    assert all(name.startswith(known) for name, _, _ in page.samples)
    request = urllib.request.Request(
        f"http://{daemon.address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=dp.WAIT_S) as answer:
        families = list(parse_openmetrics(answer.read().decode()))
    assert all((family.name + "_").startswith(known) for family in families)
    json.loads(daemon.get("/profiles")[1])
    html = daemon.get("/")[1].decode()
    assert f"{dp.PREFIX}<" not in html and "evil 1 \\xff{<" not in html
    assert "\x1b" not in html and "\u202e" not in html
    for arguments in (["top", "--once"], ["top", "--once", "--json"], ["status"]):
        done = daemon.parprof(*arguments)
        assert done.returncode == 0 and "\x1b" not in done.stdout and "\u202e" not in done.stdout


def test_hostile_names(daemon: DaemonProcess, spinner: Path, directory: Path) -> None:
    prefix = dp.PREFIX.encode()
    programs = [
        subprocess.Popen([spinner, "name", prefix + name], stdout=subprocess.DEVNULL) for name in HOSTILE
    ]
    try:
        pids = {program.pid for program in programs}
        page = daemon.page_when("all of them", lambda page: pids <= page.pids())
        for program, name in zip(programs, HOSTILE, strict=True):
            assert page.info(program.pid)["comm"] == visible((prefix + name)[:15])
            assert len(page.of("parprof_work_seconds_total", pid=str(program.pid))) == 1
        check_pages(daemon)
    finally:
        for program in programs:
            program.kill()
            program.wait()


def test_hostile_paths(daemon: DaemonProcess, spinner: Path, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b'/a\n"b\xff\\'
    os.mkdir(folder)
    program = folder + b"/" + dp.PREFIX.encode() + b'x"} 1\nevil 1 \xff{<b>'
    shutil.copy(spinner, program)
    with dp.started(program) as target:
        page = daemon.page_when("its function", lambda page: "burn" in page.functions(target.pid))
        modules = {
            labels["module"]
            for labels, _ in page.of("parprof_function_work_seconds_total", pid=str(target.pid))
        }
        assert any("evil" in module for module in modules)
        assert page.info(target.pid)["comm"] == visible(os.path.basename(program)[:15])
        check_pages(daemon)
        status_code, body = daemon.get(f"/profiles/{target.pid}.pb.gz")
        assert status_code == 200 and gzip.decompress(body)
        assert daemon.get(f"/profiles/{target.pid}.svg")[0] == 200


# Those who ask.


def test_malformed_control_messages(daemon: DaemonProcess, spinner: Path) -> None:
    chance = random.Random(42)
    for number in range(120):
        with daemon.connect() as sock, suppress(OSError):
            size = chance.choice((1, 3, 4, 5, 40, 5000))
            data = chance.randbytes(size)
            if number % 3 == 0:  # a frame of nonsense
                data = size.to_bytes(4, "big") + data
            elif number % 3 == 1:  # a good beginning
                data = (2).to_bytes(4, "big") + b"\x0a\x00" + data
            sock.sendall(data)
            if number % 2:
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
    silent = [daemon.connect() for _ in range(40)]  # more than are served at a time
    for sock in silent:
        sock.close()

    def answers() -> bool:
        with suppress(Exception), Client(str(daemon.socket)) as client:
            return bool(client.status().version)
        return False

    daemon.wait("an answer", answers)
    check_well(daemon, spinner)


def test_slow_and_silent_http_clients(daemon: DaemonProcess, spinner: Path) -> None:
    host, _, port = daemon.address.rpartition(":")
    clients = []
    for number in range(90):
        sock = socket.create_connection((host, int(port)), dp.WAIT_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall((b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")[number % 3])
        clients.append(sock)  # and now none of them reads or writes
    try:
        daemon.wait("a place", lambda: daemon.get("/metrics")[0] == 200)
        daemon.fresh()
    finally:
        for sock in clients:
            sock.close()
    check_answers(daemon)


@pytest.mark.alone  # who is not served in time is refused
def test_a_hundred_scrapes_at_once(daemon: DaemonProcess, spinner: Path) -> None:
    with dp.started(spinner) as target:
        daemon.sampled(target.pid)
        with ThreadPoolExecutor(100) as pool:
            answers = list(pool.map(lambda _: daemon.get("/metrics"), range(100)))
    assert {code for code, _ in answers} <= {200, 503}
    pages = [dp.parse(body.decode()) for code, body in answers if code == 200]
    assert len(pages) >= 64, "that many are served at a time"
    assert all(page.samples_of(target.pid) > 0 for page in pages)
    check_answers(daemon)


def test_a_user_asks_for_the_process_of_another(
    daemon: DaemonProcess, directory: Path, spinner: Path
) -> None:
    with dp.started(spinner) as roots, dp.of_nobody(dp.build(directory, "theirs")) as own:
        page = daemon.page_when("both", lambda page: {roots.pid, own.pid} <= page.pids())
        assert page.info(own.pid)["uid"] == str(dp.NOBODY)
        for command in (["attach", roots.pid, "-d", "1", "-o", "-"], ["attach", 1, "-d", "1", "-o", "-"]):
            done = daemon.parprof(*command, user=dp.NOBODY)
            assert done.returncode == 1 and "that you may profile" in done.stderr, done.stderr
            assert done.stdout == "" and len(done.stderr.splitlines()) == 1
        seen = daemon.parprof("top", "--once", "--json", user=dp.NOBODY)
        assert {row["pid"] for row in json.loads(seen.stdout)["processes"]} == {own.pid}
        assert roots.poll() is None and own.poll() is None
