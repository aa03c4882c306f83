"""The client's side of the control socket."""

from __future__ import annotations

import io
import math
import socket
from collections.abc import Callable
from contextlib import suppress

from google.protobuf.message import DecodeError

from parprof import __version__
from parprof.errors import ParprofError, PrivilegeError, ProfileFormatError, TargetError, UsageError
from parprof.exporters import pprof_reader
from parprof.model import Profile
from parprof.resources import Closing
from parprof.service.control import control_pb2 as pb
from parprof.service.control import socket_path
from parprof.service.control.conversation import MAX_ATTACH_SECONDS, PROTOCOL
from parprof.service.control.frames import MAX_RESPONSE, FrameError, is_readable, receive, send
from parprof.untrusted import visible

SECONDS = 40.0
"""How long the daemon may be silent."""

_POLL_SECONDS = 0.1


class ControlError(ParprofError):
    """The daemon does not answer, or not as it should."""


class NoDaemon(ControlError):
    """Nobody listens on the control socket."""


class Client(Closing):
    """One connection to the daemon; a context manager.

    All methods raise ControlError, PrivilegeError or TargetError where the daemon says no or goes away.
    """

    def __init__(self, path: str | None = None) -> None:
        """Connect, and agree on a protocol.

        Raises:
            NoDaemon, ControlError.
        """
        self._path = socket_path(path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect()
            hello = pb.Hello(protocol=PROTOCOL, version=__version__)
            answer = self._ask(pb.Request(hello=hello), "hello").hello
        except BaseException:
            self._sock.close()
            raise
        self.server_version = visible(answer.version, 64)

    def close(self) -> None:
        """Disconnect."""
        self._sock.close()

    def status(self) -> pb.Status:
        """How the daemon is."""
        return self._ask(pb.Request(status=pb.StatusRequest()), "status").status

    def processes(self) -> pb.ProcessList:
        """The processes that it watches, as far as we may see them."""
        return self._ask(pb.Request(list=pb.ListRequest()), "list").list

    def watch(self, pid: int) -> None:
        """Have a process watched that the daemon's selection leaves out."""
        self._ask(pb.Request(watch=pb.WatchRequest(pid=pid)), "done")

    def unwatch(self, pid: int) -> None:
        """End that."""
        self._ask(pb.Request(unwatch=pb.UnwatchRequest(pid=pid)), "done")

    def attach(
        self,
        pid: int,
        seconds: float | None = None,
        on_progress: Callable[[pb.Progress], None] | None = None,
        finished: Callable[[], bool] | None = None,
        frequency_hz: int = 0,
    ) -> Profile:
        """The profile of a process from now on, sampled at ``frequency_hz`` if that is more than the daemon's own rate.

        It ends after ``seconds``, when the process does, or soon after ``finished`` is true. ``on_progress``
        is called once a second meanwhile.
        """
        if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= MAX_ATTACH_SECONDS):
            raise UsageError(f"-d {seconds}: the daemon takes up to {MAX_ATTACH_SECONDS:.0f} seconds")
        self._send(
            pb.Request(attach=pb.AttachRequest(pid=pid, seconds=seconds or 0.0, frequency_hz=frequency_hz))
        )
        parts: list[bytes] = []
        size, finishing = 0, False
        while True:
            if finished is not None and not finishing:
                while not (finishing := finished()) and not is_readable(self._sock, _POLL_SECONDS):
                    pass
                if finishing:
                    self._send(pb.Request(finish=pb.Finish()))
            answer = self._receive("progress", "profile")
            if answer.WhichOneof("kind") == "progress":
                if on_progress is not None:
                    on_progress(answer.progress)
                continue
            parts.append(answer.profile.data)
            size += len(answer.profile.data)
            if size > pprof_reader.MAX_BYTES:
                raise ControlError("parprofd sends a profile without end; restart it")
            if answer.profile.last:
                break
        try:
            return pprof_reader.read_from(io.BytesIO(b"".join(parts)))
        except ProfileFormatError as error:
            raise ControlError(f"parprofd sent a profile that cannot be read: {error}") from error

    def _connect(self) -> None:
        self._sock.settimeout(SECONDS)
        try:
            self._sock.connect(self._path)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoDaemon(
                f"no parprofd listens on {self._path}: start it (`systemctl start parprofd`, or `parprofd` as root)"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise ControlError(f"cannot connect to {self._path}: {reason}; is parprofd well?") from error

    def _ask(self, request: pb.Request, kind: str) -> pb.Response:
        self._send(request)
        return self._receive(kind)

    def _send(self, request: pb.Request) -> None:
        # One that sends us away has said why; that is still to be read.
        with suppress(FrameError):
            send(self._sock, request.SerializeToString(), SECONDS)

    def _receive(self, *kinds: str) -> pb.Response:
        try:
            data = receive(self._sock, MAX_RESPONSE, SECONDS, SECONDS)
            answer = pb.Response.FromString(data) if data is not None else None
        except FrameError as error:
            raise ControlError(f"parprofd at {self._path} does not answer: {error}; is it well?") from error
        except (DecodeError, ValueError) as error:
            raise ControlError(f"what answers at {self._path} is no parprofd") from error
        if answer is None:
            raise ControlError(f"parprofd at {self._path} ended the connection; try again")
        kind = answer.WhichOneof("kind")
        if kind == "error":
            raise _raised(answer.error)
        if kind not in kinds:
            raise ControlError(
                f"parprofd at {self._path} answers something else; use a client of its version"
            )
        return answer


def _raised(error: pb.Error) -> ParprofError:
    text = visible(error.message, 1024) or "parprofd said no"
    if error.code in (pb.Error.NOT_FOUND, pb.Error.TARGET):
        return TargetError(text)
    if error.code == pb.Error.DENIED:
        return PrivilegeError(text)
    return ControlError(text)


def profile_from_daemon(
    pid: int,
    seconds: float | None = None,
    *,
    path: str | None = None,
    on_progress: Callable[[pb.Progress], None] | None = None,
    finished: Callable[[], bool] | None = None,
    frequency_hz: int = 0,
) -> Profile:
    """The profile of a process from now on, taken by the daemon; see `Client.attach`.

    Raises:
        NoDaemon: none runs; take an engine of one's own.
        TargetError, PrivilegeError, ControlError.
    """
    with Client(path) as client:
        return client.attach(pid, seconds, on_progress, finished, frequency_hz)
