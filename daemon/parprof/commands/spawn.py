"""Starting a command that waits, before its first instruction, until it is being watched."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from parprof import resources
from parprof.errors import CommandError
from parprof.instruments import startable

_NOT_STARTED = 127


class Child:
    """A forked child that will exec a command once released, with variables of ours in its environment.

    Raises:
        CommandError: the command does not exist or is not executable.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        startable.find(command[0])
        self.command = tuple(command)
        self._environment = {**os.environ, **(environment or {})}
        self.status: int | None = None
        self.ended_by = 0
        """The signal that ended it, if one did."""
        gate_read, self._gate = os.pipe()
        self._failure, failure_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_command(gate_read, failure_write)
        os.close(gate_read)
        os.close(failure_write)

    def _become_command(self, gate: int, failure: int) -> None:
        code = errno.EINTR
        try:
            os.close(self._gate)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            resources.restore_file_limit()
            if os.read(gate, 1):
                os.execvpe(self.command[0], self.command, self._environment)
        except OSError as error:
            code = error.errno or errno.EINVAL
        finally:
            with suppress(OSError):
                os.write(failure, bytes([code & 0xFF]))
            os._exit(_NOT_STARTED)

    def release(self) -> None:
        """Let it exec."""
        os.write(self._gate, b"x")
        os.close(self._gate)
        self._gate = -1

    def exec_failure(self) -> int:
        """errno of a failed exec; 0 when it succeeded or is still under way. Call after the child ended."""
        raw = os.read(self._failure, 1)
        return raw[0] if raw else 0

    def check_exec(self) -> None:
        """Whether the command was started; call after the child ended.

        Raises:
            CommandError: the kernel would not start it.
        """
        failure = self.exec_failure() if self.poll() == _NOT_STARTED else 0
        if failure:
            raise CommandError(
                f"{self.command[0]} cannot be run: {os.strerror(failure)} ({errno.errorcode.get(failure)})",
                is_missing=failure == errno.ENOENT,
            )

    def poll(self) -> int | None:
        """The exit code once it ended (128 + signal when a signal ended it), else None."""
        if self.status is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.status = self._exit_code(status)
        return self.status

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        while self.poll() is None:
            with suppress(ChildProcessError, InterruptedError):
                _, status = os.waitpid(self.pid, 0)
                self.status = self._exit_code(status)
        return self.status or 0

    def _exit_code(self, status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        self.ended_by = max(0, -code)
        return code if code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Pass a signal on to it."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def abandon(self) -> None:
        """Give up: before its release it exits without running the command; later it is told to terminate."""
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
        elif self.poll() is None:
            self.send(signal.SIGCONT)  # it may be stopped for probes that will never come
            self.send(signal.SIGTERM)
        self.wait()
