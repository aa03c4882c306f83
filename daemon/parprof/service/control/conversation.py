"""One client's connection: a greeting, then requests and their answers, until either side has enough."""

from __future__ import annotations

import io
import logging
import math
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future

from google.protobuf.message import DecodeError

from parprof import __version__
from parprof.errors import ParprofError, TargetError
from parprof.exporters import pprof
from parprof.halving import few
from parprof.model import Profile
from parprof.process.identity import Process, inspect, is_alive
from parprof.service.control import answers
from parprof.service.control import control_pb2 as pb
from parprof.service.control.access import Peer, may_profile
from parprof.service.control.frames import MAX_REQUEST, FrameError, is_readable, receive, send
from parprof.service.control.leases import Leases, TooMany
from parprof.service.kernel_stacks import for_users
from parprof.service.losses import LOST_MEANWHILE, lost_between, unexpected
from parprof.service.model import ProcessSnapshot, Service
from parprof.service.serving import Seat
from parprof.untrusted import visible

PROTOCOL = 1
HELLO_SECONDS = 5.0
IDLE_SECONDS = 120.0
FRAME_SECONDS = 5.0
SEND_SECONDS = 30.0
PROGRESS_SECONDS = 1.0
PROFILE_SECONDS = 300.0
"""How long to wait for symbols."""
MAX_ATTACH_SECONDS = 3600.0
MAX_HZ, MAX_USERS_HZ = 9999, 499
"""What the rate is raised to for root, and for others: it is the rate of all CPUs."""
LOSSES_SECONDS = 30.0
CHUNK_BYTES = 256 * 1024
MAX_INTERVALS = 128
"""As many as a measurement without the daemon has at most."""

_log = logging.getLogger("parprof.control")


class Refusal(Exception):
    """What the client is told instead of an answer."""

    def __init__(self, code: pb.Error.Code, message: str) -> None:
        super().__init__(message)
        self.response = pb.Response(error=pb.Error(code=code, message=message))


class ControlConversation:
    """Answers one client, on the calling thread."""

    def __init__(self, service: Service, leases: Leases, peer: Peer, sock: socket.socket, seat: Seat) -> None:
        self._service = service
        self._leases = leases
        self._peer = peer
        self._sock = sock
        self._seat = seat

    def run(self) -> None:
        """Talk until the client leaves, errs, or falls silent. Never raises."""
        try:
            self._greet()
            while (request := self._request(IDLE_SECONDS)) is not None:
                self._seat.is_busy = True
                try:
                    self._answer(request)
                except Refusal as refusal:
                    self._send(refusal.response)
                    if refusal.response.error.code == pb.Error.MALFORMED:
                        return
                self._seat.is_busy = False
        except Refusal as refusal:
            self._try_to_send(refusal.response)
        except FrameError as error:
            self._try_to_send(_malformed(str(error)).response)
        except Exception:
            _log.exception("the control connection of user %d failed", self._peer.uid)
            self._try_to_send(pb.Response(error=pb.Error(code=pb.Error.INTERNAL, message=_INTERNAL)))

    def _greet(self) -> None:
        request = self._request(HELLO_SECONDS)
        if request is None:
            return
        if request.WhichOneof("kind") != "hello":
            raise _malformed("the first message must be a Hello")
        if request.hello.protocol != PROTOCOL:
            raise Refusal(
                pb.Error.VERSION,
                f"parprofd {__version__} speaks protocol {PROTOCOL}, the client {request.hello.protocol}:"
                " use a client of the daemon's version",
            )
        self._send(pb.Response(hello=pb.Hello(protocol=PROTOCOL, version=__version__)))

    def _request(self, idle_seconds: float) -> pb.Request | None:
        data = receive(self._sock, MAX_REQUEST, idle_seconds, FRAME_SECONDS)
        if data is None:
            return None
        try:
            return pb.Request.FromString(data)
        except (DecodeError, ValueError):
            raise _malformed("the frame holds no request") from None

    def _send(self, response: pb.Response) -> None:
        send(self._sock, response.SerializeToString(), SEND_SECONDS)

    def _try_to_send(self, response: pb.Response) -> None:
        try:
            send(self._sock, response.SerializeToString(), FRAME_SECONDS)
        except FrameError:
            pass

    def _answer(self, request: pb.Request) -> None:
        kind = request.WhichOneof("kind")
        if kind == "status":
            self._send(pb.Response(status=answers.status(self._service, self._peer)))
        elif kind == "list":
            self._send(pb.Response(list=answers.processes(self._service, self._peer)))
        elif kind == "attach":
            self._attach(request.attach)
        elif kind == "watch":
            pid = self._checked(request.watch.pid)
            self._try(pid, lambda: self._leases.watch(pid, self._peer.uid))
            self._send(pb.Response(done=pb.Done()))
        elif kind == "unwatch":
            pid = self._checked(request.unwatch.pid)
            if not self._try(pid, lambda: self._leases.unwatch(pid, self._peer.uid)):
                raise Refusal(
                    pb.Error.DENIED,
                    f"process {pid} is not watched at your request; ask root to run `parprof` for that",
                )
            self._send(pb.Response(done=pb.Done()))
        elif kind == "finish":
            pass  # the profile it was to end was on its way already
        else:
            raise _malformed(f"parprofd {__version__} does not know this request; update it")

    def _checked(self, pid: int) -> int:
        """The PID, if the peer may see its process. Whether another user has one remains unsaid."""
        if not 0 < pid < 2**31 or not may_profile(self._peer, pid):
            raise _not_found(pid)
        return pid

    def _try(self, pid: int, what: Callable[[], object]) -> object:
        """Do it, with its errors as refusals."""
        try:
            return what()
        except TooMany:
            raise Refusal(
                pb.Error.BUSY, "too many processes are watched at your request; end some of that first"
            ) from None
        except ParprofError as error:
            raise Refusal(pb.Error.TARGET, visible(str(error), 1024)) from error
        except TimeoutError as error:
            _log.error("no answer about process %d in time", pid)
            raise Refusal(pb.Error.BUSY, _LATE) from error

    def _attach(self, request: pb.AttachRequest) -> None:
        pid, seconds = self._checked(request.pid), request.seconds
        if not (math.isfinite(seconds) and 0 <= seconds <= MAX_ATTACH_SECONDS):
            raise _malformed(f"{seconds} is no number of seconds from 0 to {MAX_ATTACH_SECONDS:.0f}")
        try:
            process = inspect(pid)
        except TargetError as error:
            raise Refusal(pb.Error.TARGET, visible(str(error), 1024)) from error
        frequency_hz = min(request.frequency_hz, MAX_HZ if self._peer.is_root else MAX_USERS_HZ)
        data = self._try(pid, lambda: self._measured(process, seconds or MAX_ATTACH_SECONDS, frequency_hz))
        if isinstance(data, bytes):
            for start in range(0, len(data), CHUNK_BYTES):
                chunk = data[start : start + CHUNK_BYTES]
                self._send(
                    pb.Response(profile=pb.ProfileChunk(data=chunk, last=start + CHUNK_BYTES >= len(data)))
                )

    def _measured(self, process: Process, seconds: float, frequency_hz: int) -> bytes | None:
        """The profile file of the coming seconds; None when the client has left meanwhile."""
        pid = process.pid
        before = self._snapshot_of(pid)
        lost = self._service.losses().result(LOSSES_SECONDS)
        with self._leases.attached(pid, frequency_hz) as began:
            while is_alive(process) and (left := began + seconds - time.monotonic()) > 0:
                if is_readable(self._sock, min(left, PROGRESS_SECONDS)):
                    request = self._request(FRAME_SECONDS)
                    if request is None:
                        return None
                    if request.WhichOneof("kind") != "finish":
                        raise _malformed("only Finish may come while a profile is taken")
                    break
                self._progress(pid, began, before)
                if is_alive(process) and not may_profile(self._peer, pid):
                    raise _not_found(pid)  # it is another user's now
            elapsed = time.monotonic() - began
            profile = self._waited_for(self._service.history(pid, elapsed), pid, began, before)
        if not may_profile(self._peer, pid) and (is_alive(process) or _is_taken(pid)):
            raise _not_found(pid)
        now_lost = self._service.losses().result(LOSSES_SECONDS)
        profile.extra = {**profile.extra, LOST_MEANWHILE: lost_between(lost, now_lost)}
        profile.intervals = few(profile.intervals, len, MAX_INTERVALS)
        file = io.BytesIO()
        pprof.write(profile if self._peer.is_root else for_users(profile), file)
        return file.getvalue()

    def _waited_for(
        self, future: Future[Profile], pid: int, began: float, before: ProcessSnapshot | None
    ) -> Profile:
        """The profile; until it is there, the client hears that something goes on."""
        deadline = time.monotonic() + PROFILE_SECONDS
        while True:
            try:
                return future.result(PROGRESS_SECONDS)
            except TimeoutError:
                if future.done() or time.monotonic() >= deadline:
                    raise
            self._progress(pid, began, before)

    def _snapshot_of(self, pid: int) -> ProcessSnapshot | None:
        return next((one for one in self._service.snapshot().processes if one.pid == pid), None)

    def _progress(self, pid: int, began: float, before: ProcessSnapshot | None) -> None:
        now = self._snapshot_of(pid)
        samples = now.totals.samples - (before.totals.samples if before else 0) if now else 0
        progress = pb.Progress(
            elapsed_s=time.monotonic() - began,
            samples=max(samples, 0),
            n_working=max(now.n_working, 0) if now else 0,
            cores=max(now.cores, 0) if now else 0,
            lost=unexpected(self._service.snapshot().lost),
        )
        self._send(pb.Response(progress=progress))


_INTERNAL = "parprofd could not do it: see its log (`journalctl -u parprofd`)"
_LATE = "parprofd did not come to it in time: it or the machine has too much to do; try again"


def _is_taken(pid: int) -> bool:
    """Whether some process, maybe another one by now, has this PID."""
    try:
        inspect(pid)
    except TargetError:
        return False
    return True


def _not_found(pid: int) -> Refusal:
    return Refusal(
        pb.Error.NOT_FOUND,
        f"there is no process {pid} that you may profile: it must run as your user and group, without further"
        " privileges; or ask as root",
    )


def _malformed(why: str) -> Refusal:
    return Refusal(pb.Error.MALFORMED, why)
