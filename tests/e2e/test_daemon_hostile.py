# SPDX-License-Identifier: Apache-2.0
"""What an unprivileged user may try on a real parprofd, with files and with requests. Needs root."""

from __future__ import annotations

import gzip
import os
import re
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import daemon_process as dp
from daemon_process import DaemonProcess
from parprof import pprof_pb2 as pb
from parprof.exporters import pprof
from parprof.service.control.client import Client
from stopwatch import Stopwatch

pytestmark = [pytest.mark.beside, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]

KERNEL_ADDRESSES = 1 << 63
CALLS_THE_KERNEL = r"""
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    static char bytes[1 << 16];
    prctl(PR_SET_NAME, argv[2]);
    int random = open("/dev/urandom", O_RDONLY);
    for (;;) if (read(random, bytes, sizeof bytes) < 0) return 1;
}
"""
HOSTILE_LIBRARY = r"""
__asm__(".text\n"
    ".globl omp_get_num_threads\n.type omp_get_num_threads,@function\nomp_get_num_threads: .fill 4000,1,0x66\n"
    ".size omp_get_num_threads, 4000\n"
    ".globl omp_in_final\n.type omp_in_final,@function\nomp_in_final: jmp omp_in_final\n.size omp_in_final, 2\n"
    ".globl GOMP_barrier\n.type GOMP_barrier,@function\nGOMP_barrier: .byte 0xe9, 0xff, 0xff, 0xff, 0x7f\n"
    ".size GOMP_barrier, 5\n"
    ".globl GOMP_task\n.type GOMP_task,@function\nGOMP_task: .byte 0xf0, 0xf2, 0xf3, 0x2e, 0x48, 0x67\n"
    ".size GOMP_task, 0x7fffffff\n"
    ".globl GOMP_critical_start\n.type GOMP_critical_start,@function\nGOMP_critical_start: .byte 0x0f\n"
    ".size GOMP_critical_start, 1\n"
    ".globl GOMP_parallel\n.type GOMP_parallel,@function\nGOMP_parallel: RANDOM\n"
    ".size GOMP_parallel, 60000\n");
"""
USES_IT = r"""
#include <sys/prctl.h>
void GOMP_parallel(void), GOMP_barrier(void), GOMP_task(void), GOMP_critical_start(void), omp_in_final(void);
int omp_get_num_threads(void);
static volatile unsigned long sink;
void *never[] = { GOMP_parallel, GOMP_barrier, GOMP_task, GOMP_critical_start, omp_in_final, omp_get_num_threads };
__attribute__((noinline)) void burns(void) { for (unsigned long i = 0; i < 300000; i++) sink += i; }
int main(int argc, char **argv) { prctl(PR_SET_NAME, argv[2]); for (;;) burns(); }
"""


@pytest.fixture(scope="module")
def daemon(directory: Path) -> Iterator[DaemonProcess]:
    """With loops, for which code is read too, and a new cache: nothing is known of the files before."""
    cache = directory / "cache"
    dp.keep_compiled(cache)
    with dp.running(
        directory / "parprofd", {"symbols": {"loops": True}}, environment={"PARPROF_CACHE": str(cache)}
    ) as running:
        yield running


def built(directory: Path, name: str, source: str, *options: str) -> Path:
    path = directory / (dp.PREFIX + name)
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", path, *options], input=source.encode(), check=True)
    return path


def check_well(daemon: DaemonProcess) -> None:
    assert daemon.get("/healthz")[0] == daemon.get("/readyz")[0] == 200
    assert "Traceback" not in daemon.log(), daemon.log()
    assert "capstone" not in Path(f"/proc/{daemon.process.pid}/maps").read_text()


def check_addresses(data: bytes) -> set[str]:
    """All texts in a pprof file of which no address is the kernel's."""
    message = pb.Profile.FromString(gzip.decompress(data))
    assert message.sample
    for location in message.location:
        assert location.address < KERNEL_ADDRESSES
    for mapping in message.mapping:
        assert max(mapping.memory_start, mapping.memory_limit, mapping.file_offset) < KERNEL_ADDRESSES
    assert not re.search(r"\bffffffff[0-9a-f]{8}\b", " ".join(message.string_table))
    return set(message.string_table)


def get_as_nobody(url: str) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(dp.NOBODY, dp.NOBODY, dp.NOBODY)
            os.setresuid(dp.NOBODY, dp.NOBODY, dp.NOBODY)
            with os.fdopen(writer, "wb") as out:
                out.write(urllib.request.urlopen(url, timeout=dp.WAIT_S).read())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        data = answer.read()
    os.waitpid(child, 0)
    return data


def kernel_names(file: Path) -> set[str]:
    return {
        frame.name
        for sample in pprof.read(file).samples
        for path in (sample.path, sample.physical)
        for frame in path
        if frame.module == "[kernel]" and not frame.name.startswith("[")
    }


def test_the_kernel_stays_hidden_from_users(daemon: DaemonProcess, directory: Path, tmp_path: Path) -> None:
    """No function of its in a user's profile, over HTTP and the control socket; and no address in anybody's."""
    program = built(directory, "reads", CALLS_THE_KERNEL)
    with dp.of_nobody(program) as target:
        daemon.sampled(target.pid, 1.0)
        url = f"http://{daemon.address}/profiles/{target.pid}.pb.gz?seconds=60"
        files = {}
        for who, data in (("root", urllib.request.urlopen(url).read()), ("nobody", get_as_nobody(url))):
            files[who] = tmp_path / f"{who}.pb.gz"
            files[who].write_bytes(data)
        for who, user in (("root", 0), ("nobody", dp.NOBODY)):
            out = Path(tempfile.mkdtemp(dir=directory)) / "out.pb.gz"
            os.chown(out.parent, user, user)
            done = daemon.parprof("attach", target.pid, "-d", "2", "-q", "-o", out, user=user)
            assert done.returncode == 0, done.stderr
            files[f"{who} by attach"] = out
    names = {who: check_addresses(file.read_bytes()) for who, file in files.items()}
    secret = kernel_names(files["root"]) | kernel_names(files["root by attach"])
    assert secret <= names["root"] | names["root by attach"] and len(secret) > 1
    for who in ("nobody", "nobody by attach"):
        assert not kernel_names(files[who])
        assert not names[who] & secret
    check_well(daemon)


def test_silent_control_clients_of_a_user(daemon: DaemonProcess) -> None:
    ready, go = os.pipe()
    done, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(dp.NOBODY, dp.NOBODY, dp.NOBODY)
            held = []
            for _ in range(40):
                sock = socket.socket(socket.AF_UNIX)
                sock.connect(str(daemon.socket))
                held.append(sock)
            os.write(go, b"x")
            os.read(done, 1)
        finally:
            os._exit(0)
    try:
        os.close(go)
        assert os.read(ready, 1) == b"x", "40 are connected"
        for _ in range(5):
            watch = Stopwatch()
            with Client(str(daemon.socket)) as client:
                assert client.status().version
            assert watch.seconds < 1
    finally:
        os.write(end, b"x")
        os.waitpid(child, 0)
        for fd in (ready, done, end):
            os.close(fd)


def test_a_runtime_of_hostile_bytes(daemon: DaemonProcess, directory: Path) -> None:
    """What its user has chosen is disassembled for prices, n_w and loops: by children, who are nobody."""
    bytes_of = ".byte " + ",".join(str(byte) for byte in os.urandom(60000))
    library = directory / "libgomp.so.1"
    source = HOSTILE_LIBRARY.replace("RANDOM", bytes_of)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-Wl,-soname,libgomp.so.1"],
        input=source.encode(), check=True,
    )  # fmt: skip
    program = built(
        directory, "hostile", USES_IT, "-x", "none", str(library), f"-Wl,-rpath,{directory}", "-rdynamic"
    )
    with dp.of_nobody(program) as target:
        page = daemon.page_when("its runtime", lambda page: page.info(target.pid).get("runtime") == "libgomp")
        # what was sampled before its names are there is other functions'
        daemon.page_when("its function", lambda page: "burns" in page.functions(target.pid))
        daemon.sampled(target.pid, 1.0)
        assert page.info(target.pid)["uid"] == str(dp.NOBODY)
        assert target.poll() is None, "no breakpoint in the midst of what is no instruction"
        check_well(daemon)


@pytest.mark.alone
def test_a_program_of_400_000_functions(daemon: DaemonProcess, directory: Path) -> None:
    program = dp.named(directory, "bomb", "many_functions")
    rss = "process_resident_memory_bytes"
    with ExitStack() as stack:
        calm = stack.enter_context(dp.of_nobody(dp.build(directory, "calm")))
        daemon.sampled(calm.pid, 0.5)
        before = daemon.page().value(rss)
        target = stack.enter_context(dp.of_nobody(program))
        drains, sizes = [], []

        def seen() -> bool:
            page = daemon.page()
            drains.append(page.value("parprofd_drain_seconds"))
            sizes.append(page.value(rss))
            return "burns" in page.functions(target.pid)

        daemon.wait("its function", seen)
        daemon.sampled(target.pid, 1.0)
        seen()
        print(f"drains {max(drains):.2f} s, memory {before / 1e6:.0f} -> {max(sizes) / 1e6:.0f} MB")
        assert max(drains) < 3
        assert max(sizes) - before < 32e6
    check_well(daemon)
