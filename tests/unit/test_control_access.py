# SPDX-License-Identifier: Apache-2.0
"""Who may see what on the control socket, with real users: checked against what the kernel lets them do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_standin import NOBODY, StandInService, as_user, process, serving, sleeping
from parprof.metrics import Metrics
from parprof.service import kernel_stacks
from parprof.service.control import server
from parprof.service.control.access import Peer, may_profile
from parprof.service.control.client import Client, profile_from_daemon
from parprof.service.control.intervals import uses
from parprof.service.model import FunctionUse
from parprof.symbols.kernel import KERNEL

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

OTHER = 65533


@contextmanager
def undumpable() -> Iterator[int]:
    """A process of nobody's that changed its user after it began: the kernel lets nobody look into it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(writer, b"x")
        signal.pause()
        os._exit(0)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def capable() -> Any:
    ids = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    return sleeping(wrapper=(*ids, "--inh-caps=+net_raw", "--ambient-caps=+net_raw"))


def kernel_allows(pid: int) -> bool:
    """Whether the kernel lets the caller read another process's maps: its own ptrace access check."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return bool(file.read(1))
    except PermissionError:
        return False


def test_the_rules_are_the_kernels() -> None:
    with ExitStack() as stack:
        targets = {
            "own": stack.enter_context(sleeping(NOBODY, NOBODY)),
            "root's": stack.enter_context(sleeping()),
            "other user's": stack.enter_context(sleeping(OTHER, NOBODY)),
            "other group's": stack.enter_context(sleeping(NOBODY, OTHER)),
            "not dumpable": stack.enter_context(undumpable()),
            "with capabilities": stack.enter_context(capable()),
            "init": 1,
        }
        truth = as_user(NOBODY, NOBODY, lambda: {name: kernel_allows(pid) for name, pid in targets.items()})
        peer = Peer(NOBODY, NOBODY, same_user_namespace=True)
        assert {name: may_profile(peer, pid) for name, pid in targets.items()} == truth
        assert truth == {name: name == "own" for name in targets}
        assert all(may_profile(Peer(0, 0, True), pid) for pid in targets.values())
        assert not may_profile(Peer(NOBODY, NOBODY, same_user_namespace=False), targets["own"])


def test_processes_in_other_user_namespaces_are_not_theirs() -> None:
    ids = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "unshare", "-U")
    if subprocess.run([*ids, "true"], capture_output=True).returncode:
        pytest.skip("users may make no user namespaces here")
    with sleeping(wrapper=ids) as pid:
        assert not may_profile(Peer(NOBODY, NOBODY, same_user_namespace=True), pid)


def test_a_pid_without_process() -> None:
    for pid in (2**22 + 1, 2**31 - 1):
        assert not may_profile(Peer(0, 0, True), pid)
        assert not may_profile(Peer(NOBODY, NOBODY, True), pid)


def test_users_see_their_own_processes_only(open_path: Path) -> None:
    """GIVEN processes of two users and of root THEN each user sees the own, and no trace of the others."""
    with sleeping(NOBODY, NOBODY) as own, sleeping(OTHER, OTHER) as other, sleeping() as roots:
        service = StandInService(
            process(own, NOBODY, "own"), process(other, OTHER, "theirs"), process(roots, 0, "roots")
        )
        with serving(service, open_path) as path:

            def ask() -> dict[str, object]:
                with Client(path) as client:
                    status = client.status()
                    return {
                        "seen": [(one.pid, one.comm, one.command) for one in client.processes().processes],
                        "counts": (status.processes, status.visible_processes),
                        "notes": list(status.notes),
                        "raw": status.SerializeToString().decode("latin-1")
                        + client.processes().SerializeToString().decode("latin-1"),
                    }

            for uid, pid, comm in ((NOBODY, own, "own"), (OTHER, other, "theirs")):
                answer = as_user(uid, uid, ask)
                assert answer["seen"] == [[pid, comm, f"./{comm} --secret"]]
                assert answer["counts"] == [3, 1]
                assert answer["notes"] == []
                hidden = {"own", "theirs", "roots", "alice"} - {comm}
                assert not any(name in answer["raw"] for name in hidden)
            assert [one["seen"] for one in [as_user(1, 1, ask)]] == [[]]
            assert len(ask()["seen"]) == 3  # type: ignore[arg-type]


def test_a_snapshot_that_is_wrong_about_the_owner_gives_nothing_away(open_path: Path) -> None:
    """GIVEN a PID that has passed on to root since the snapshot THEN the kernel's word counts."""
    with sleeping() as roots:
        with serving(StandInService(process(roots, NOBODY, "stale")), open_path) as path:

            def ask() -> int:
                with Client(path) as client:
                    return len(client.processes().processes)

            assert as_user(NOBODY, NOBODY, ask) == 0


def test_users_profile_their_own_processes_only(open_path: Path) -> None:
    with sleeping(NOBODY, NOBODY) as own, sleeping(OTHER, OTHER) as other, sleeping() as roots:
        service = StandInService(process(other, OTHER, "theirs"), process(roots, 0, "roots"))
        with serving(service, open_path) as path:

            def attach(pid: int) -> Any:
                return as_user(
                    NOBODY, NOBODY, lambda: profile_from_daemon(pid, 0.01, path=path).total().samples
                )

            assert attach(own) == 4510
            nothing = 2**22 + 1
            for pid in (other, roots, os.getpid(), 1, nothing):
                answer = attach(pid)
                assert answer.startswith(f"TargetError: there is no process {pid} that you may profile")
                assert answer.replace(str(pid), "X") == attach(nothing).replace(str(nothing), "X")
            for request in ("watch", "unwatch"):

                def ask(name: str = request) -> None:
                    with Client(path) as client:
                        getattr(client, name)(other)

                assert "TargetError" in as_user(NOBODY, NOBODY, ask)
        assert [pid for _, pid in service.calls] == [own, own]


def test_users_end_only_what_they_began(open_path: Path) -> None:
    with sleeping(NOBODY, NOBODY) as selected, sleeping(NOBODY, NOBODY) as left_out:
        service = StandInService(process(selected, NOBODY))
        with serving(service, open_path) as path:

            def ask() -> list[str]:
                out = []
                with Client(path) as client:
                    for name, pid in (("unwatch", selected), ("watch", left_out), ("unwatch", left_out)):
                        try:
                            getattr(client, name)(pid)
                            out.append("done")
                        except Exception as error:
                            out.append(type(error).__name__)
                return out

            assert as_user(NOBODY, NOBODY, ask) == ["PrivilegeError", "done", "done"]
            with Client(path) as root:
                root.unwatch(selected)
        assert service.calls == [("watch", left_out), ("unwatch", left_out), ("unwatch", selected)]


def test_users_have_few_watches(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parprof.service.control.leases.MAX_PER_USER", 2)
    service = StandInService()
    with ExitStack() as stack:
        pids = [stack.enter_context(sleeping(NOBODY, NOBODY)) for _ in range(3)]
        with serving(service, open_path) as path:

            def ask() -> list[str]:
                out = []
                with Client(path) as client:
                    for pid in pids:
                        try:
                            client.watch(pid)
                            out.append("done")
                        except Exception as error:
                            out.append(str(error))
                return out

            first, second, third = as_user(NOBODY, NOBODY, ask)
            assert (first, second) == ("done", "done")
            assert "too many processes" in third


def test_a_target_that_gains_privileges_is_let_go(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a process that is no longer the peer's to see, in mid-profile THEN the profile is not given."""
    allowed = [True, True, False]
    monkeypatch.setattr(
        "parprof.service.control.conversation.may_profile",
        lambda peer, pid: allowed.pop(0) if allowed else False,
    )
    monkeypatch.setattr("parprof.service.control.conversation.PROGRESS_SECONDS", 0.01)
    service = StandInService()
    with sleeping() as pid, serving(service, open_path) as path:
        with pytest.raises(Exception, match="no process"):
            profile_from_daemon(pid, 60, path=path)
        assert service.profiles_taken == []
        assert service.calls == [("watch", pid), ("unwatch", pid)]
        allowed[:] = [True]  # and once more when the profile is ready
        with pytest.raises(Exception, match="no process"):
            profile_from_daemon(pid, 0.001, path=path)


def test_users_cannot_take_all_connections(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PER_USER", 2)
    with serving(StandInService(), open_path) as path:

        def connect() -> list[str]:
            out = []
            clients = []
            for _ in range(3):
                try:
                    clients.append(Client(path))
                    out.append("in")
                except Exception as error:
                    out.append(str(error))
            with Client(path) if False else clients[0] as first:
                out.append(str(first.status().samples))
            return out

        assert as_user(NOBODY, NOBODY, connect) == [
            "in", "in", "too many clients are connected to parprofd; try again", "12345",
        ]  # fmt: skip
        with Client(path) as root:
            assert root.status().samples == 12345


def test_users_raise_the_rate_of_all_cpus_to_that_of_attach_only(open_path: Path) -> None:
    with sleeping(NOBODY, NOBODY) as own:
        service = StandInService(process(own, NOBODY))
        with serving(service, open_path) as path:

            def attach() -> float:
                return profile_from_daemon(own, 0.01, path=path, frequency_hz=9999).duration_s

            assert isinstance(as_user(NOBODY, NOBODY, attach), float)
            attach()
        assert service.rates == [499, 0, 9999, 0]


def test_users_do_not_learn_which_function_of_the_kernel(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_stacks, "_PARANOID", open_path / "paranoid")
    inside = (FunctionUse("do_secret_thing", KERNEL, Metrics(idleness_ns=9e8)),)
    with sleeping(NOBODY, NOBODY) as own:
        service = StandInService(process(own, NOBODY, functions=inside))
        with serving(service, open_path) as path:

            def blamed() -> str:
                with Client(path) as client:
                    return uses(client.processes(), None, "function")[0].blamed

            for level, seen in (("2", "[kernel]"), ("1", "do_secret_thing")):
                (open_path / "paranoid").write_text(level)
                assert as_user(NOBODY, NOBODY, blamed) == seen
                assert blamed() == "do_secret_thing"
