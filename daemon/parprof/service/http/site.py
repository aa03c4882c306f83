"""What is where: paths to answers. Knows no sockets."""

from __future__ import annotations

import io
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlencode

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from parprof.errors import ParprofError, TargetError
from parprof.exporters import html, pprof
from parprof.exporters.webpage import WebPage
from parprof.model import Profile
from parprof.patterns import regex
from parprof.service.http import status_page
from parprof.service.http.message import HttpRequest, RequestError, Response, number, plain
from parprof.service.http.peers import Visitor
from parprof.service.http.process_page import process_page
from parprof.service.kept_intervals import KEPT
from parprof.service.kernel_stacks import for_users, functions_for_users
from parprof.service.metrics.collector import MetricsPage
from parprof.service.model import ProcessSnapshot, Service, Snapshot

DEFAULT_SECONDS = 30.0
MAX_SECONDS = 3600.0
PROFILE_TIMEOUT_SECONDS = 20.0

MAX_PROFILES = 2
"""Profiles made at a time; others wait."""

ALL = "root sees all, and so does who sends the token of the configuration"
OTHERS = f"other users' processes are not shown: {ALL}"

_PROCESS = regex(r"/processes/([1-9][0-9]{0,9})", re.ASCII)
_PROFILE = regex(r"/profiles/([1-9][0-9]{0,9})\.(pb\.gz|svg|html)", re.ASCII)
_INTERVALS = regex(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
_HISTORY_SECONDS = 600.0
"""What the page of a process shows by default, as far as it is kept."""
_REFRESH_SECONDS = 1.0
"""How long a scrape waits for what was sampled until now."""
_BY = regex(r"[a-z_]{1,40}", re.ASCII)
_ROUTES = ("/", "/metrics", "/healthz", "/readyz", "/profiles")


class AnswerCounts(Collector):
    """Counts answers by route and status."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter({("/metrics", "200"): 0})

    def count(self, path: str, status: HTTPStatus) -> None:
        """One answer. Paths that are none of ours share a route."""
        route = path if path in _ROUTES else "none"
        for pattern, name in ((_PROFILE, "/profiles/PID"), (_PROCESS, "/processes/PID")):
            if pattern.fullmatch(path):
                route = name
        with self._lock:
            self._counts[route, str(status.value)] += 1

    def collect(self) -> Iterator[Metric]:
        """The counts."""
        family = CounterMetricFamily(
            "parprofd_http_requests", "HTTP answers by route and status.", labels=("route", "code")
        )
        with self._lock:
            counts = dict(self._counts)
        for labels, value in counts.items():
            family.add_metric(labels, value)
        yield family


class Pages:
    """Answers requests from what `Service` says."""

    METRICS = "/metrics"
    OPEN_TO_ALL = frozenset({"/healthz", "/readyz"})
    """Paths that need no token; without one their answers give no details."""

    def __init__(self, service: Service, functions_for_all: bool = False) -> None:
        """``functions_for_all``: metrics name functions whoever asks."""
        self.requests = AnswerCounts()
        self._functions_for_all = functions_for_all
        self._service = service
        self._metrics = MetricsPage(service, self.requests)
        self._profiling = threading.BoundedSemaphore(MAX_PROFILES)

    def answer(self, request: HttpRequest, client: Visitor, *, in_full: bool = True) -> Response:
        """The answer, of what the client may see. ``in_full``: whether that is details of `OPEN_TO_ALL`.

        Raises:
            RequestError: there is none.
        """
        if request.method not in ("GET", "HEAD"):
            raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, "use GET", ("Allow", "GET, HEAD"))
        match request.path:
            case "/":
                return self._status(request, client)
            case self.METRICS:
                return self._page_of_metrics(request, client)
            case "/healthz":
                return _health(self._service.is_healthy(), in_full)
            case "/readyz":
                return _health(self._service.is_ready(), in_full)
            case "/profiles":
                return self._list(client)
        if profile := _PROFILE.fullmatch(request.path):
            return self._profile(int(profile[1]), profile[2], request, client)
        if process := _PROCESS.fullmatch(request.path):
            return self._process(int(process[1]), request, client)
        raise RequestError(HTTPStatus.NOT_FOUND, "nothing is here; / links to all there is")

    def _page_of_metrics(self, request: HttpRequest, client: Visitor) -> Response:
        with_functions = self._functions_for_all or client.sees_all
        with suppress(Exception):  # the newest there is will do, as when the daemon is busy or about to stop
            self._service.refresh().result(_REFRESH_SECONDS)
        page = self._metrics.render(request.headers.get("accept", ""), with_functions)
        return Response(HTTPStatus.OK, *page)

    def _status(self, request: HttpRequest, client: Visitor) -> Response:
        trouble = tuple(filter(None, (self._service.is_healthy(), self._service.is_ready())))
        snapshot = self._service.snapshot()
        if not client.sees_all:
            seen = tuple(
                replace(one, functions=functions_for_users(one.functions))
                for one in snapshot.processes
                if client.may_see(one.pid, one.labels.uid)
            )
            snapshot = replace(
                snapshot, processes=seen, notes=(OTHERS,), past=()
            )  # notes may name others' files
        return _html(status_page.status_page(snapshot, trouble, request.query))

    def _list(self, client: Visitor) -> Response:
        profiles = [
            {
                "pid": entry.pid,
                "comm": entry.comm,
                "uid": entry.uid,
                "start_s": entry.start_s,
                "duration_s": entry.duration_s,
                "samples": entry.samples,
                "pprof": f"/profiles/{entry.pid}.pb.gz",
                "flame_graph": f"/profiles/{entry.pid}.html",
                "report": f"/profiles/{entry.pid}.html",
            }
            for entry in self._service.profiles()
            if client.may_see(entry.pid, entry.uid)
        ]
        body = json.dumps({"schema": 1, "profiles": profiles}, indent=1).encode()
        return Response(HTTPStatus.OK, "application/json", (body,))

    def _profile(self, pid: int, kind: str, request: HttpRequest, client: Visitor) -> Response:
        self._check(client, pid)
        seconds = number(request, "seconds", DEFAULT_SECONDS, 0.1, MAX_SECONDS)
        if kind == "svg":
            return _moved(pid, seconds, request.query.get("by", ""))
        _process_of(self._service.snapshot(), pid, request)
        profile = self._made(client, pid, seconds, request, by_interval=kind == "html")
        return _pprof(profile) if kind == "pb.gz" else _html(html.page(profile, _links(profile, seconds)))

    def _process(self, pid: int, request: HttpRequest, client: Visitor) -> Response:
        """All that is known of a process."""
        self._check(client, pid)
        seconds = number(request, "seconds", _HISTORY_SECONDS, 0.1, MAX_SECONDS)
        snapshot = self._service.snapshot()
        process = _process_of(snapshot, pid, request)
        profile = self._made(client, pid, seconds, request, by_interval=True)
        return _html(process_page(profile, process, snapshot, _links(profile, seconds)))

    def _made(
        self, client: Visitor, pid: int, seconds: float, request: HttpRequest, *, by_interval: bool
    ) -> Profile:
        """The profile that is asked for, as far as the client may see it."""
        only = None
        if wanted := request.query.get("intervals"):
            ends = _INTERVALS.fullmatch(wanted)
            if not ends:
                raise RequestError(
                    HTTPStatus.BAD_REQUEST, "intervals: give the first and the last, as in 3-7"
                )
            only = int(ends[1]), int(ends[2])
        if not self._profiling.acquire(timeout=PROFILE_TIMEOUT_SECONDS):
            raise RequestError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "other profiles are being made; try again",
                ("Retry-After", "5"),
            )
        try:
            if by_interval or only:
                profile = self._fetch(self._service.history(pid, seconds, only))
            else:
                profile = self._fetch(self._service.profile(pid, seconds))
            self._check(client, pid)  # it may be another user's by now
            return profile if client.sees_all else for_users(profile)
        finally:
            self._profiling.release()

    def _check(self, client: Visitor, pid: int) -> None:
        """Refuse what the client may not see, as if it was not there."""
        if client.sees_all:
            return
        owners = {one.labels.uid for one in self._service.snapshot().processes if one.pid == pid}
        if not any(client.may_see(pid, owner) for owner in owners):
            raise RequestError(HTTPStatus.NOT_FOUND, f"no process {pid} is watched that you may see: {ALL}")

    @staticmethod
    def _fetch(future: Future[Profile]) -> Profile:
        try:
            return future.result(PROFILE_TIMEOUT_SECONDS)
        except TimeoutError as error:
            future.cancel()
            raise RequestError(HTTPStatus.GATEWAY_TIMEOUT, "the profile takes too long; ask again") from error
        except CancelledError as error:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "the daemon is stopping") from error
        except TargetError as error:
            raise RequestError(HTTPStatus.NOT_FOUND, str(error)) from error
        except ParprofError as error:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


def _process_of(snapshot: Snapshot, pid: int, request: HttpRequest) -> ProcessSnapshot | None:
    """What is known of a process, if it is the one that the link was made for (``since``): others may get its PID.

    Raises:
        RequestError: it is not.
    """
    process = next((one for one in snapshot.processes if one.pid == pid), None)
    since = request.query.get("since", "")
    if since and (process is None or since != status_page.since(process)):
        raise RequestError(
            HTTPStatus.NOT_FOUND, f"the process {pid} of that link has ended; / links to those that run"
        )
    return process


def _pprof(profile: Profile) -> Response:
    file = io.BytesIO()
    pprof.write(profile, file)
    name = ("Content-Disposition", f'attachment; filename="parprof-{profile.process.pid}.pb.gz"')
    return Response(HTTPStatus.OK, "application/octet-stream", (file.getvalue(),), (name,))


def _links(profile: Profile, seconds: float) -> list[tuple[str, str]]:
    """From a page: of the very intervals that it is of, not of those that are the last when somebody clicks."""
    pid, kept = profile.process.pid, profile.extra.get(KEPT)
    which = f"intervals={kept}" if kept else f"seconds={seconds:g}"
    out = [("all processes", "/"), ("pprof", f"/profiles/{pid}.pb.gz?{which}")]
    return [*out, ("link to this profile", f"/profiles/{pid}.html?{which}")] if kept else out


def _html(page: WebPage) -> Response:
    body = page.html().encode("utf-8", "backslashreplace")
    return Response(HTTPStatus.OK, "text/html; charset=utf-8", (body,), (), page.policy)


def _moved(pid: int, seconds: float, by: str) -> Response:
    """Where the flame graph is, which had an address of its own once."""
    query = {"seconds": f"{seconds:g}"} | ({"by": by} if _BY.fullmatch(by) else {})
    address = f"/profiles/{pid}.html?{urlencode(query)}"
    return plain(HTTPStatus.PERMANENT_REDIRECT, f"moved to {address}", ("Location", address))


def _health(trouble: str, in_full: bool) -> Response:
    if not trouble:
        return plain(HTTPStatus.OK, "ok")
    return plain(HTTPStatus.SERVICE_UNAVAILABLE, trouble if in_full else "not ok")
