# SPDX-License-Identifier: Apache-2.0
"""Debug files from debuginfod: a real server, and servers that hang, lie or never end."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from parprof.files.dso_cache import DsoCache
from parprof.http_client import Proxy, ServerOrigin
from parprof.model import Frame
from parprof.symbols.debuginfod import Debuginfod
from parprof.symbols.fetcher import Fetcher, _proxy_of
from parprof.symbols.symbolizer import Symbolizer
from parprof.workers import protocol
from stopwatch import Stopwatch
from symbol_programs import address_of, compile_program, line_of, need_symbolic, open_dso

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Does what the server is told to do."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.paths.append(self.path)
        self.close_connection = True
        try:
            server.answer(self)
        except OSError:
            pass  # the other end was ended

    def give(self, content: bytes, length: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []
        self.answer: Answer = lambda request: request.send_error(404)
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as out:
        thread = threading.Thread(target=out.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield out
        out.closing.set()
        out.shutdown()
        thread.join()


class Files:
    """A program, stripped of debug information, and that information."""

    def __init__(self, folder: Path) -> None:
        self.whole = compile_program(folder / "program")
        self.stripped = folder / "stripped"
        self.debug = folder / "stripped.debug"
        subprocess.run(["objcopy", "--only-keep-debug", self.whole, self.debug], check=True)
        subprocess.run(["strip", "-g", "-o", self.stripped, self.whole], check=True)
        (folder / "other.c").write_text("int main(void) { return 1; }")
        self.other = folder / "other"
        subprocess.run(["gcc", "-g", folder / "other.c", "-o", self.other], check=True)

    def main(self) -> Frame:
        """What is known now of ``main`` of the stripped file, from a symbolizer of its own."""
        with Symbolizer(log=lambda line: None) as symbolizer:
            return self.main_by(symbolizer)

    def main_by(self, symbolizer: Symbolizer) -> Frame:
        with DsoCache() as cache:
            dso = open_dso(cache, self.stripped)
            return symbolizer.frames(dso, address_of(dso, "main"), False)[-1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("debuginfod"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where debug files are to appear."""
    need_symbolic()
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    for name in ("URLS", "TIMEOUT", "MAXSIZE"):
        monkeypatch.delenv(f"DEBUGINFOD_{name}", raising=False)
    return tmp_path / "cache/debuginfod"


@pytest.fixture
def real_server(files: Files, tmp_path: Path) -> Iterator[str]:
    if not shutil.which("debuginfod"):
        pytest.skip("the debuginfod server is not installed (Debian package debuginfod)")
    (tmp_path / "served").mkdir()
    shutil.copy(files.debug, tmp_path / "served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEBUGINFOD_")}
    command = ["debuginfod", "-F", str(tmp_path / "served"), "-p", str(port), "-d", ":memory:", "-t", "1"]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_scanned(url)
        yield url
    finally:
        child.terminate()
        child.wait()


def wait_until_scanned(url: str) -> None:
    give_up = time.monotonic() + 15
    while time.monotonic() < give_up:
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=2) as answer:
                if b'scanned_files_total{source=".debug file"}' in (text := answer.read()) or (
                    b'thread_work_total{role="traverse"} 1' in text and b"groom" in text
                ):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.skip("the debuginfod server does not come up")


def test_real_server(real_server: str, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.main().line == 0
    monkeypatch.setenv("DEBUGINFOD_URLS", f"file:///nowhere {real_server}/")
    told: list[str] = []
    give_up = time.monotonic() + 10
    with DsoCache() as cache:
        build_id = open_dso(cache, files.stripped).build_id
    while not (folder / f"{build_id}.debug").exists() and time.monotonic() < give_up:
        shutil.rmtree(folder, ignore_errors=True)  # it has not been scanned yet: forget that
        with Symbolizer(log=told.append) as symbolizer:
            frame = files.main_by(symbolizer)
            assert symbolizer.problems == {}
    assert (frame.name, frame.line, frame.module) == ("main", line_of("int main"), "stripped")
    assert told[0].startswith("debuginfod: ")
    assert [(file.name, file.stat().st_mode & 0o777) for file in folder.iterdir()] == [
        (f"{build_id}.debug", 0o600)
    ]
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")  # from disk
    assert files.main().line == frame.line


def test_not_asked_without_leave(
    server: Server, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for urls in ("", "file:///tmp ftp://127.0.0.1/ 127.0.0.1 http:// ima:enforcing"):
        monkeypatch.setenv("DEBUGINFOD_URLS", urls)
        assert Debuginfod.from_environment(print) is None
        assert files.main().line == 0
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    with DsoCache() as cache, Symbolizer() as symbolizer:  # has lines of its own
        dso = open_dso(cache, files.whole)
        assert symbolizer.frames(dso, address_of(dso, "main"), False)[-1].line
    assert server.paths == [] and not folder.exists()


def test_absent(server: Server, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    with Symbolizer() as symbolizer:
        assert files.main_by(symbolizer).line == 0
        assert symbolizer.problems == {}
    assert files.main().line == 0
    assert len(server.paths) == 1  # the news is kept for a day
    (kept,) = folder.iterdir()
    assert kept.suffix == ".none"
    day_ago = time.time() - 86_401
    os.utime(kept, (day_ago, day_ago))
    server.answer = lambda request: request.give(files.debug.read_bytes())
    assert files.main().line
    assert len(server.paths) == 2


def test_next_server(server: Server, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer = lambda request: request.give(files.debug.read_bytes())
    monkeypatch.setenv("DEBUGINFOD_URLS", f"http://127.0.0.1:1 {server.url}")
    assert files.main().line == line_of("int main")


@dataclass(frozen=True)
class Fetch:
    """How long the servers were asked: by the clock, without the machine's other load, and as CPU time."""

    wall_s: float
    undisturbed_s: float
    cpu_s: float
    """With that of the child, and of the server in this process."""


def cpu_s() -> float:
    return sum(os.times()[:4])


def fetches(monkeypatch: pytest.MonkeyPatch) -> list[Fetch]:
    """Those that are made from now on."""
    made: list[Fetch] = []
    fetch = Debuginfod.fetch

    def timed(self: Debuginfod, wanted: Mapping[str, str]) -> dict[str, str]:
        begin_s, begin_cpu_s, watch = time.monotonic(), cpu_s(), Stopwatch()
        problems = fetch(self, wanted)
        made.append(Fetch(time.monotonic() - begin_s, watch.seconds, cpu_s() - begin_cpu_s))
        return problems

    monkeypatch.setattr(Debuginfod, "fetch", timed)
    return made


def no_answer(request: Handler) -> None:
    server = request.server
    assert isinstance(server, Server)
    server.closing.wait(30)


def drip(request: Handler) -> None:
    """A byte now and then: no single wait is long."""
    request.give(b"", 1 << 30)
    while not request.server.closing.wait(0.1):  # type: ignore[attr-defined]
        request.wfile.write(b"\x7f")


@pytest.mark.parametrize("answer", [no_answer, drip])
def test_slow_servers(
    answer: Answer, server: Server, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = answer
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    asked = fetches(monkeypatch)
    for seconds in (0.7, 2.8, 11.2):  # on a busy machine the child may need more even to begin
        monkeypatch.setenv("DEBUGINFOD_TIMEOUT", str(seconds))
        asked.clear()
        with Symbolizer() as symbolizer:
            frame = files.main_by(symbolizer)
            assert (frame.name, frame.line) == ("main", 0)
            assert seconds - 0.1 < asked[0].wall_s and asked[0].undisturbed_s < seconds + 1.8
            assert "debuginfod" in symbolizer.problems[str(files.stripped)]
            symbolizer._remembered.clear()
            assert files.main_by(symbolizer).name == "main"
            assert sum(fetch.undisturbed_s for fetch in asked[1:]) < 0.5  # it is not asked again so soon
        if server.paths:
            break
    assert len(server.paths) == 1
    assert list(folder.iterdir()) == []


def test_a_hung_server_before_a_good_one(
    server: Server, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = lambda request: request.give(files.debug.read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as hung:  # connects, then nothing
        monkeypatch.setenv("DEBUGINFOD_URLS", f"http://127.0.0.1:{hung.getsockname()[1]} {server.url}")
        monkeypatch.setenv("DEBUGINFOD_TIMEOUT", "4")  # shared by both, the start of the child included
        assert files.main().line == line_of("int main")


def test_a_dripping_server_does_not_take_the_time_of_the_next(server: Server, tmp_path: Path) -> None:
    """The time is shared among the servers, and each share is for all that a server says."""

    def answer(request: Handler) -> None:
        drip(request) if request.path.startswith("/slow") else request.give(b"file")

    server.answer = answer
    ours, theirs = socket.socketpair()
    fetcher = Fetcher(theirs, 1 << 30)
    urls = [f"{server.url}/slow", f"{server.url}/good"]
    for name in ("first", "second"):
        fd = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)
        fetcher.fetch({"build_id": name, "urls": urls, "seconds": 3.0}, fd)
        assert protocol.receive(ours) == ({"build_id": name, "state": "done"}, [])
        assert (tmp_path / name).read_bytes() == b"file"
    assert len(server.paths) == 3  # the slow one is not asked again
    ours.close()
    theirs.close()


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = ServerOrigin("far.example", 80, False), ServerOrigin("far.example", 443, True)
    for name in (
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    assert _proxy_of(near) is _proxy_of(far) is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128/")
    monkeypatch.setenv("https_proxy", "user:p%40ss@other.example")
    assert _proxy_of(near) == Proxy("proxy.example", 3128)
    basic = "Basic " + base64.b64encode(b"user:p@ss").decode()
    assert _proxy_of(far) == Proxy("other.example", 80, basic)
    monkeypatch.setenv("no_proxy", "far.example")
    assert _proxy_of(near) is _proxy_of(far) is None


def endless(request: Handler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b"\x7fELF" * 10_000)


def chunks(request: Handler) -> None:
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    while True:
        request.wfile.write(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")


def headers(request: Handler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        request.wfile.write(b"X: " + b"y" * 1000 + b"\r\n")


@pytest.mark.parametrize("answer", [endless, chunks, headers, lambda request: request.give(b"", 1 << 50)])
def test_endless_answers(
    answer: Answer, server: Server, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = answer
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    monkeypatch.setenv("DEBUGINFOD_MAXSIZE", "1000000")
    asked = fetches(monkeypatch)
    with Symbolizer() as symbolizer:
        assert files.main_by(symbolizer).line == 0
        problem = symbolizer.problems[str(files.stripped)]
        assert "debuginfod" in problem and "did not deliver" not in problem, "the size ended it, not the time"
    assert asked[0].cpu_s < 3
    assert list(folder.iterdir()) == []


def truncated(content: bytes) -> Answer:
    def answer(request: Handler) -> None:  # no length: only the file itself can tell
        request.send_response(200)
        request.end_headers()
        request.wfile.write(content[: len(content) // 2])

    return answer


@pytest.mark.parametrize("what", ["other build", "truncated", "short", "text", "empty", "error"])
def test_wrong_answers(
    what: str, server: Server, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = files.debug.read_bytes()
    server.answer = {
        "other build": lambda request: request.give(files.other.read_bytes()),
        "truncated": truncated(good),
        "short": lambda request: request.give(good[:-1], len(good)),
        "text": lambda request: request.give(b"<html>Please log in</html>"),
        "empty": lambda request: request.give(b""),
        "error": lambda request: request.send_error(500),
    }[what]
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    with Symbolizer() as symbolizer:
        assert files.main_by(symbolizer).line == 0
        assert "debuginfod" in symbolizer.problems[str(files.stripped)]
    assert list(folder.iterdir()) == []


def redirect(target: str) -> Answer:
    def answer(request: Handler) -> None:
        request.send_response(302)
        request.send_header("Location", target)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


@pytest.mark.parametrize(
    "target", ["file://{file}", "ftp://127.0.0.1/x", "data:,x", "/again", "", "http://[::"]
)
def test_redirections_elsewhere(
    target: str, server: Server, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = redirect(target.format(file=files.debug))
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    with Symbolizer() as symbolizer:
        assert files.main_by(symbolizer).line == 0
        assert "redirection" in symbolizer.problems[str(files.stripped)] or target == "http://[::"
    assert len(server.paths) < 8
    assert list(folder.iterdir()) == []


def test_a_redirection(server: Server, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Handler) -> None:
        if request.path == "/there":
            request.give(files.debug.read_bytes())
        else:
            redirect("/there")(request)

    server.answer = answer
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    assert files.main().line == line_of("int main")


def test_without_a_cache(server: Server, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no trusted place for what would be fetched: so nothing is."""
    folder.parent.mkdir()
    folder.parent.chmod(0o777)
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    with Symbolizer() as symbolizer:
        assert files.main_by(symbolizer).line == 0
        assert "not asked" in symbolizer.problems[str(files.stripped)]
    assert server.paths == []


@pytest.mark.parametrize("value", ["", "x", "-1", "0", "inf", "nan", "1e400"])
def test_strange_settings(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
    monkeypatch.setenv("DEBUGINFOD_TIMEOUT", value)
    monkeypatch.setenv("DEBUGINFOD_MAXSIZE", value)
    made = Debuginfod.from_environment(print)
    assert made is not None
    assert (made._seconds, made._max_size) == (10.0, 2 << 30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to give up")
def test_fetcher_is_nobody(server: Server, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def answer(request: Handler) -> None:
        tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        children = [Path("/proc", pid) for task in tasks for pid in task.read_text().split()]
        fetchers = [child for child in children if b"fetcher" in (child / "cmdline").read_bytes()]
        seen.extend((child / "status").read_text() for child in fetchers)
        request.give(files.debug.read_bytes())

    server.answer = answer
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    assert files.main().line
    assert len(seen) == 1 and "Uid:\t65534\t65534" in seen[0] and "CapEff:\t0000000000000000" in seen[0]
