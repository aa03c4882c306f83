# SPDX-License-Identifier: Apache-2.0
"""A real parprofd of a test's own, and programs for it to watch.

As a command it is that daemon with a stand-in for what a machine does not do on demand: ``--sizes JSON`` (sizes of
BPF maps by name) and ``--clock FILE`` (seconds in a file, by which CLOCK_REALTIME is off). Its log leaves out no lines
of which there are many, and it tries again after a second what it could not watch. The rest is parprofd's.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from prometheus_client.parser import text_string_to_metric_families

from compiled import compile_once
from parprof.kernel import bpf
from parprof.kernel.objects import cache_name, get_object, object_cache
from parprof.service.config.text import toml_value

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "tests/workloads/build"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
NOBODY = 65534
PREFIX = f"{os.getpid():x}."
"""How the names of all programs of this test run begin: its daemons watch no others."""
WAIT_S = 45.0
"""For what happens in a second or two, on a machine that may be busy."""
START_S = 120.0
"""A new kernel has the programs compiled."""
_PROG_GET_NEXT_ID = 11
_LINK_GET_NEXT_ID = 31
_PR_SET_PDEATHSIG = 1
_Found = TypeVar("_Found")

PROGRAM = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
static volatile sig_atomic_t told;
static volatile unsigned long sink;
static void on_usr1(int number) { (void)number; told = 1; }
__attribute__((noinline)) void FUNCTION(void) { for (unsigned long i = 0; i < 300000; i++) sink += i; usleep(500); }
__attribute__((noinline)) void descend(int depth)
{
    if (depth) { descend(depth - 1); sink++; } else FUNCTION();
}
int main(int argc, char **argv)
{
    struct sigaction action = { .sa_handler = on_usr1 };
    const char *what = argc > 1 ? argv[1] : "spin";
    sigaction(SIGUSR1, &action, 0);
    if (!strcmp(what, "name")) prctl(PR_SET_NAME, argv[2]);
    int child = strcmp(what, "fork") ? 1 : fork();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (child) { printf("%d\n", child); fflush(stdout); }
    for (unsigned long turn = 0; !told; turn++) descend(!strcmp(what, "stacks") ? turn % 400 : 0);
    if (!strcmp(what, "exec")) execv(argv[2], argv + 2);
    if (!strcmp(what, "vfork") && !vfork()) { prctl(PR_SET_PDEATHSIG, SIGKILL); pause(); _exit(0); }
    for (;;) FUNCTION();
}
"""
"""Burns CPU time, half of the time. On SIGUSR1 it does what it was told to: exec, or vfork with a child that waits."""


@dataclass(frozen=True)
class Page:
    """What /metrics said."""

    samples: list[tuple[str, dict[str, str], float]]

    def of(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """The series of a metric that have these labels."""
        return [(its, value) for n, its, value in self.samples if n == name and labels.items() <= its.items()]

    def value(self, name: str, **labels: str) -> float:
        """The sum of these series; 0 if there is none."""
        return sum(value for _, value in self.of(name, **labels))

    def pids(self) -> set[int]:
        """The processes that have series."""
        return {int(labels["pid"]) for labels, _ in self.of("parprof_process_info")}

    def info(self, pid: int) -> dict[str, str]:
        """The labels of a process; empty if it has no series."""
        return next((labels for labels, _ in self.of("parprof_process_info", pid=str(pid))), {})

    def functions(self, pid: int) -> set[str]:
        """The functions of a process that have series."""
        found = self.of("parprof_function_work_seconds_total", pid=str(pid))
        return {labels["function"] for labels, _ in found}

    def samples_of(self, pid: int) -> float:
        """CPU time of a process, seconds."""
        return self.value("parprof_work_seconds_total", pid=str(pid)) + self.value(
            "parprof_spin_seconds_total", pid=str(pid)
        )


def parse(text: str) -> Page:
    """A metrics page, as prometheus_client reads it."""
    families = text_string_to_metric_families(text)
    return Page([(s.name, dict(s.labels), s.value) for family in families for s in family.samples])


def eventually(what: str, condition: Callable[[], _Found], seconds: float = WAIT_S) -> _Found:
    """What ``condition`` returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)
    return found


class DaemonProcess:
    """A running parprofd."""

    def __init__(
        self, directory: Path, tables: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None,
        clock: Path | None = None, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Start it with files in ``directory``. ``tables``: what its configuration has beyond `configuration`."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.socket = directory / "control.sock"
        self.log_file = directory / "log"
        self.config = directory / "parprofd.toml"
        self.write(tables or {})
        command = [sys.executable, __file__]
        command += ["--sizes", json.dumps(sizes)] if sizes else []
        command += ["--clock", str(clock)] if clock else []
        self._log_start = len(self.log())
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--", "--config", str(self.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**ENVIRONMENT, **(environment or {})},
            )  # fmt: skip

    def write(self, tables: Mapping[str, Any]) -> None:
        """Write another configuration; see `reload`."""
        self.config.write_text(toml({**configuration(self.socket), **tables}))

    def log(self) -> str:
        """What it said."""
        with suppress(FileNotFoundError):
            return self.log_file.read_text()[getattr(self, "_log_start", 0) :]
        return ""

    def wait(self, what: str, condition: Callable[[], _Found], seconds: float = WAIT_S) -> _Found:
        """`eventually`, as long as the daemon runs."""

        def check() -> _Found:
            assert self.process.poll() is None, f"parprofd ended: {self.log()}"
            return condition()

        try:
            return eventually(what, check, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def ready(self) -> DaemonProcess:
        """Wait until it samples."""
        self.wait("parprofd to sample", lambda: ": sampling " in self.log(), START_S)
        return self

    @property
    def address(self) -> str:
        """HOST:PORT of its HTTP server."""
        return self.wait("an address", lambda: re.findall(r"http at (\S+)", self.log()))[-1]

    def get(self, path: str, timeout_s: float = WAIT_S) -> tuple[int, bytes]:
        """Status and body of a page."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=timeout_s) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def page(self) -> Page:
        """What /metrics says now."""
        status, body = self.get("/metrics")
        assert status == 200, body
        return parse(body.decode())

    def page_when(self, what: str, condition: Callable[[Page], object]) -> Page:
        """The first page of which this is true."""

        def look() -> Page | None:
            page = self.page()
            return page if condition(page) else None

        found = self.wait(what, look)
        assert found is not None
        return found

    def sampled(self, pid: int, seconds: float = 0.0) -> Page:
        """Wait until so much CPU time of a process was sampled from now on."""
        before = self.page().samples_of(pid)
        return self.page_when(f"samples of {pid}", lambda page: page.samples_of(pid) > before + seconds)

    def fresh(self) -> Page:
        """A page of an interval that began after now."""
        stamp = "parprofd_snapshot_timestamp_seconds"
        first = self.page().value(stamp)
        second = self.page_when("an interval", lambda page: page.value(stamp) != first).value(stamp)
        return self.page_when("one more interval", lambda page: page.value(stamp) != second)

    def reload(self, tables: Mapping[str, Any]) -> None:
        """SIGHUP with another configuration, which is right."""
        before = self.log().count(": reloaded: ")
        self.write(tables)
        self.process.send_signal(signal.SIGHUP)
        self.wait("a reload", lambda: self.log().count(": reloaded: ") > before)

    def parprof(self, *arguments: object, user: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a ``parprof`` command that talks to it."""
        return parprof(*arguments, user=user, PARPROF_SOCKET=str(self.socket))

    def connect(self) -> socket.socket:
        """A plain connection to the control socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(WAIT_S)
        sock.connect(str(self.socket))
        return sock

    def stop(self) -> None:
        """SIGTERM; it must end well."""
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, self.log()
        assert "Traceback" not in self.log(), self.log()


@contextmanager
def running(directory: Path, tables: Mapping[str, Any] | None = None, **more: Any) -> Iterator[DaemonProcess]:
    """A daemon that samples, and must end well."""
    daemon = DaemonProcess(directory, tables, **more)
    try:
        yield daemon.ready()
        daemon.stop()
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait()


def configuration(control: Path) -> dict[str, Any]:
    """Watches the programs of this test run alone."""
    return {
        "http": {"listen": "127.0.0.1:0"},
        "control": {"socket": str(control)},
        "profiles": {"interval_seconds": 0.5},
        "sampling": {"frequency_hz": 199},
        **selecting(comm=[PREFIX + "*"]),
    }


def selecting(deny: Mapping[str, Any] | None = None, **allow: Any) -> dict[str, Any]:
    """Tables of a configuration: who is watched."""
    return {"select": {"mode": "listed"}, "select.allow": allow, "select.deny": dict(deny or {})}


def toml(tables: Mapping[str, Any]) -> str:
    """Tables as a configuration file."""
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def parprof(*arguments: object, user: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a ``parprof`` command."""
    return as_user("parprof.__main__", user, *arguments, **environment)


def as_user(
    module: str, user: int, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call ``main`` of a module. All is imported first for another user, who may not be able to read our files."""
    later = "import locale; from parprof.commands import COMMANDS; [entry.load() for entry in COMMANDS]\n"
    later += "import parprof.commands.late_loops\n"
    code = (
        f"import encodings.idna, os, sys; from {module} import main; user = {user}\n"
        f"{later if user and module == 'parprof.__main__' else ''}"
        "if user: os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd="/",
        stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **environment},
    )  # fmt: skip


def named(directory: Path, name: str, program: str) -> Path:
    """A copy of a program of tests/workloads under a name of this test run, which is at most 15 letters long."""
    path = directory / (PREFIX + name)
    path.write_bytes((BUILD / program).read_bytes())
    path.chmod(0o755)
    return path


def build(directory: Path, name: str, function: str = "burn") -> Path:
    """`PROGRAM` under a name of this test run, with a function of that name."""
    path = directory / (PREFIX + name)
    options = ("-O1", "-g", "-fno-optimize-sibling-calls", f"-DFUNCTION={function}")
    compile_once(["gcc", *options, "-x", "c", "-", "-o", path], text=PROGRAM)
    return path


@contextmanager
def started(*command: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the block is over. Its standard output is a pipe."""
    words = [word if isinstance(word, bytes) else str(word) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@contextmanager
def openmp(
    directory: Path, name: str, phases: str = "skewed", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """omp_truth.gomp, which writes its truth to ``directory/name.truth`` if SIGTERM ends it."""
    program = named(directory, name, "omp_truth.gomp")
    truth = {"PARPROF_TRUTH": str(directory / f"{name}.truth")}
    with started(program, phases, "--forever", env={**os.environ, **truth, **environment}) as process:
        assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
        yield process


@contextmanager
def of_nobody(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs as nobody. It is opened by root, as the directories above may be closed."""
    handle = os.open(program, os.O_PATH)
    try:
        with started(
            f"/proc/self/fd/{handle}", "name", program.name, pass_fds=[handle],
            user=NOBODY, group=NOBODY, extra_groups=[],
        ) as process:  # fmt: skip
            yield process
    finally:
        os.close(handle)


def keep_compiled(cache: Path) -> None:
    """Put the BPF programs into a new cache: to compile them takes longer than all else."""
    programs = json.dumps(get_object()).encode()
    with mock.patch.dict(os.environ, PARPROF_CACHE=str(cache)):
        object_cache().write(cache_name(), programs)


def bpf_ids(pid: int) -> tuple[set[int], set[int]]:
    """The BPF programs and links that a process has descriptors of, by id."""
    programs, links = set[int](), set[int]()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            for line in entry.read_text().splitlines():
                key, _, value = line.partition(":")
                if key == "prog_id":
                    programs.add(int(value))
                elif key == "link_id":
                    links.add(int(value))
    return programs, links


def loaded_ids() -> tuple[set[int], set[int]]:
    """All BPF programs and links in the kernel, by id."""

    def following(command: int, after: int) -> int | None:
        with suppress(OSError):
            return int.from_bytes(bpf._bpf(command, after.to_bytes(8, "little"))[1][4:8], "little")
        return None

    def all_of(command: int) -> set[int]:
        found, last = set[int](), following(command, 0)
        while last is not None:
            found.add(last)
            last = following(command, last)
        return found

    return all_of(_PROG_GET_NEXT_ID), all_of(_LINK_GET_NEXT_ID)


def children(pid: int, words: str = "") -> list[int]:
    """The children of a process that have these words in their command line."""
    out = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            parent = (
                int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if entry.name.isdigit() else 0
            )
            if parent == pid and words in (entry / "cmdline").read_text():
                out.append(int(entry.name))
    return out


def _small_kernel(
    kernel: Callable[..., Any], small: dict[str, int], *arguments: Any, sizes: Mapping[str, int], **more: Any
) -> Any:
    return kernel(*arguments, sizes={**sizes, **small}, **more)


def _stand_in(sizes: dict[str, int], clock: str) -> None:
    """Replace what the daemon gets from its surroundings."""
    from parprof.service import daemon, log, watchlist

    log.BURST = 1_000_000
    watchlist.RETRY_SECONDS = 1.0
    if sizes:
        daemon.BpfKernel = functools.partial(_small_kernel, daemon.BpfKernel, sizes)  # type: ignore[misc,assignment]
    if clock:
        true_time = time.time
        time.time = lambda: true_time() + float(Path(clock).read_text() or 0)


def main() -> int:
    """Run the daemon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=json.loads, default={})
    parser.add_argument("--clock", default="")
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a test run that is killed leaves no daemon
    _stand_in(arguments.sizes, arguments.clock)
    from parprof.service.main import main as run

    return run(arguments.rest)


if __name__ == "__main__":
    sys.exit(main())
