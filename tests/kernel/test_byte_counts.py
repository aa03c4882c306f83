"""Bytes that system calls bring a command and its children, counted by tracepoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parprof.commands.spawn import Child
from parprof.kernel.byte_counts import ByteCounter

pytestmark = pytest.mark.beside

READER = """
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <stdio.h>
#include <unistd.h>
static char buffer[6000];
static struct { long type; char text[40]; } message = {1, "text"};
int main(int argc, char **argv) {
    int pair[2], file = fileno(fopen("/dev/zero", "r"));
    struct iovec pieces[2] = {{buffer, 100}, {buffer + 100, 23}};
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    for (int at = 0; at < 23; at++) { send(pair[0], buffer, 5000, 0); recv(pair[1], buffer, 5000, 0); }
    for (int at = 0; at < 7; at++) readv(file, pieces, 2);
    pread(file, buffer, 600, 0);
    int queue = msgget(IPC_PRIVATE, 0600);
    for (int at = 0; at < 3; at++) { msgsnd(queue, &message, 40, 0); msgrcv(queue, &message, 40, 0, 0); }
    msgctl(queue, IPC_RMID, 0);
    getrandom(buffer, 100, 0);
    return 0;
}
"""
BROUGHT = 23 * 5000 + 7 * 123 + 600 + 3 * 40 + 100
TOOK = 23 * 5000 + 3 * 40


def build(tmp_path: Path, *prefix: str) -> Path:
    source, program = tmp_path / "reader.c", tmp_path / "reader"
    source.write_text(READER)
    subprocess.run([*prefix, "gcc", "-O1", "-g", "-o", program, source], check=True)
    return program


def test_what_a_command_and_its_children_read_is_counted(tmp_path: Path) -> None:
    program = build(tmp_path)
    child = Child(["sh", "-c", f"{program}; {program}; true"])
    with ByteCounter(child.pid) as counter:
        subprocess.run([program], check=True)  # of nobody that is counted
        child.release()
        assert child.wait() == 0
        brought, taken = counter.brought(), counter.taken()
    assert 2 * BROUGHT <= brought < 2 * BROUGHT + 12_000  # ld.so reads the heads of libraries
    assert taken == 2 * TOOK


def test_what_the_instrument_saw_is_held_against_it(tmp_path: Path) -> None:
    """The socket's bytes, too, which /proc/PID/io leaves out."""
    parprof = [sys.executable, "-m", "parprof"]
    program, output = build(tmp_path, *parprof, "cc", "--input", "--"), tmp_path / "out.json"
    done = subprocess.run([*parprof, "input", "-q", "-o", output, "--", program], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    coverage = json.loads(output.read_bytes())["coverage"]
    assert coverage["counted_by"] == "bpf" and coverage["seen_read_bytes"] == BROUGHT
    assert BROUGHT <= coverage["all_read_bytes"] < BROUGHT + 8_000
    assert coverage["seen_sent_bytes"] == coverage["all_sent_bytes"] == TOOK
    assert b"counted by BPF" in done.stdout
