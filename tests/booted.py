"""A machine of its own, in namespaces, with real systemd as PID 1 (see tests/system/boot.sh), seen from outside."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
HERE = REPO / "tests/system"
BOOT_SECONDS = 240.0
WAIT_SECONDS = 60.0
_PASSED_ON = re.compile("PIP_|SSL_CERT|.*_proxy$|.*_PROXY$|REQUESTS_CA|CURL_CA")
_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if _PASSED_ON.match(name)},
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
}


def reason_to_skip() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "booting systemd needs root"
    for tool in ("unshare", "nsenter", "chroot", "setpriv"):
        if shutil.which(tool) is None:
            return f"booting systemd needs {tool}"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "booting systemd needs overlayfs"
    if cgroup_mount() is None:
        return "booting systemd needs a cgroup2 file system"
    if is_chroot() and "shared:" in Path("/proc/1/mountinfo").read_text():
        return "in a chroot mounts of the machine would be seen outside"
    made = subprocess.run(
        [*UNSHARE_MOUNTS, "unshare", "--cgroup", "--pid", "--fork", "--uts", "--ipc", "--net", "true"],
        capture_output=True,
        text=True,
    )
    return f"namespaces cannot be made: {made.stderr.strip()}" if made.returncode else ""


def is_chroot() -> bool:
    """Whether / is no mount point, whose propagation could be changed."""
    with suppress(OSError):
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return not any(line.split()[4] == "/" for line in lines)
    return False


UNSHARE_MOUNTS = ["unshare", "--mount", "--propagation", "unchanged" if is_chroot() else "private"]


def cgroup_mount() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 ") and fields.split()[3] == "/":
            return Path(fields.split()[4])
    return None


def wait_for(what: str, condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Fails if it does not come true: a limit, not a measurement."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)


class Machine:
    """The booted machine, seen from outside."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.root = Path(f"/proc/{leader}/root")

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command inside; its output and errors are one stream."""
        return subprocess.Popen(
            [*self._enter(), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_ENVIRONMENT,
        )

    def _enter(self, network: bool = False) -> list[str]:
        own = [] if network else ["--net"]
        return ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-p", "-C", *own, "-r", "-w"]

    def run(
        self, *command: str, check: bool = True, network: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside; with ``network`` in the network outside, to reach package registries."""
        done = subprocess.run(
            [*self._enter(network), *command], capture_output=True, text=True, env=_ENVIRONMENT, timeout=180
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.journal()}"
        return done

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        return self.run("systemctl", *arguments, check=check).stdout.strip()

    def show(self, name: str, unit: str = "parprofd.service") -> str:
        """A property of a unit."""
        return self.systemctl("show", "--value", "-p", name, unit)

    def journal(self, *options: str) -> str:
        return self.run(
            "journalctl", "--no-pager", "-u", "parprofd.service", "-o", "cat", *options, check=False
        ).stdout

    def write(self, path: str, text: str) -> None:
        """Write a file inside."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def outer_pid(self, inner: int) -> int:
        """The PID of a process of the machine as it is outside."""
        namespace = os.stat(f"/proc/{self.leader}/ns/pid").st_ino
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if os.stat(entry / "ns/pid").st_ino != namespace:
                        continue
                    line = next(x for x in (entry / "status").read_text().splitlines() if x[:6] == "NSpid:")
                    if int(line.split()[-1]) == inner:
                        return int(entry.name)
        raise AssertionError(f"no process {inner} in the machine")


def find_leader(launcher: subprocess.Popen[bytes], log: Path) -> int:
    """The outer PID of systemd, once it has booted."""

    def children(pid: int) -> list[int]:
        with suppress(OSError):
            return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    deadline = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < deadline:
        assert launcher.poll() is None, f"the machine did not boot:\n{log.read_text()}"
        for pid in children(launcher.pid):
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                    return pid
        time.sleep(0.1)
    raise AssertionError(f"the machine did not boot in time:\n{log.read_text()}")


def remove_cgroups(top: Path) -> None:
    """The kernel takes a moment to let go of the processes."""
    deadline = time.monotonic() + 10
    while top.exists() and time.monotonic() < deadline:
        for path, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(path)
        time.sleep(0.1)


@contextmanager
def boot(directory: Path, log: Path) -> Iterator[Machine]:
    """Boot a machine with parprof installed. ``directory``: an empty one; ``log``: what went on before systemd."""
    mount = cgroup_mount()
    assert mount is not None
    cgroup = mount / f"parprof-boot-{os.getpid()}"
    cgroup.mkdir()
    with log.open("wb") as out:
        launcher = subprocess.Popen(
            [*UNSHARE_MOUNTS, "sh", str(HERE / "boot.sh"), str(directory), str(REPO), str(cgroup)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    leader = 0
    try:
        leader = find_leader(launcher, log)
        machine = Machine(leader)
        wait_for(
            "systemd to be up",
            lambda: machine.systemctl("is-system-running", check=False) in ("running", "degraded"),
        )
        yield machine
    finally:
        for pid in (leader, launcher.pid):
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        launcher.wait()
        remove_cgroups(cgroup)
