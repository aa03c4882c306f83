"""``parprofd``: reads the configuration, starts the daemon's parts, and takes them down in order."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from contextlib import ExitStack

from parprof.errors import ParprofError, UsageError
from parprof.kernel.capability import children
from parprof.kernel.objects import cache_name, get_object, object_cache
from parprof.kernel.perf_events import EventChoice, choose
from parprof.process.cgroups import membership_of
from parprof.resources import share_heap
from parprof.service import capabilities, log, own_limits
from parprof.service.config.check import read_secret
from parprof.service.config.load import changed_keys
from parprof.service.config.options import DaemonOptions
from parprof.service.config.push import push_config
from parprof.service.config.schema import Config, ConfigError, Http
from parprof.service.config.text import CommandLine, answer, parse_command_line
from parprof.service.control.server import ControlServer
from parprof.service.daemon import Daemon
from parprof.service.http import HttpServer
from parprof.service.loop import DaemonLoop
from parprof.service.notify import Notifier
from parprof.service.push.pusher import Pusher
from parprof.service.selection import Selection

_LOG = logging.getLogger("parprofd")
_LAST_PUSH_SECONDS = 3.0
_START_SECONDS = 120.0
"""Compiling the programs for a new kernel takes seconds; on a loaded machine many."""


def options_of(config: Config, events: EventChoice) -> DaemonOptions:
    """What the loop has to know."""
    select = config.select
    return DaemonOptions(
        events=events.names,
        frequency_hz=config.sampling.frequency_hz,
        interval_seconds=config.profiles.interval_seconds,
        budget_ratio=config.budget.target_percent / 100,
        selection=Selection(select.mode == "listed", select.allow, select.deny),
        max_processes=config.limits.processes,
        paths_per_process=config.limits.paths,
        functions_per_process=config.limits.functions,
        by_process=config.metrics.pid,
        max_groups=config.metrics.groups,
        ring_bytes=config.profiles.ring_bytes,
        loops=config.symbols.loops,
        arguments=config.shown.arguments,
    )


class _Stopped(Exception):
    """SIGTERM or SIGINT came while nothing would have looked at a flag."""


def _raise_stopped(*_: object) -> None:
    raise _Stopped


class Parprofd:
    """All parts of the daemon."""

    def __init__(self, line: CommandLine) -> None:
        """Read the configuration and check all that can be checked before anything starts.

        Raises:
            UsageError, PrivilegeError, KernelUnsupported.
        """
        self._started_s = time.monotonic()
        share_heap()
        self._line = line
        self._config = line.load().config
        log.set_up(self._config.log.level)
        self._events = choose(list(self._config.sampling.events))
        for note in self._events.notes:
            _LOG.info("%s", note)
        _set_debuginfod(self._config)
        self._notifier = Notifier()
        self._daemon = Daemon(options_of(self._config, self._events))
        self._reload = False
        self._is_ready = False
        self._next_push_s = 0.0
        self._to_push: list[int] = []
        self._pusher: Pusher | None = None
        self._http: HttpServer | None = None
        self._http_at_start = self._config.http

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. SIGHUP reads the configuration again.

        Raises:
            ParprofError: a part cannot be started.
        """
        signal.signal(signal.SIGTERM, lambda *_: self._daemon.stop())
        signal.signal(signal.SIGINT, lambda *_: self._daemon.stop())
        signal.signal(signal.SIGHUP, lambda *_: self._ask_for_reload())
        self._notifier.more_time(_START_SECONDS)
        protection = capabilities.give_up(), children().says
        self._daemon.tell_protection(protection)
        for sentence in protection:
            _LOG.info("%s", sentence)
        if too_little := own_limits.too_little_memory(membership_of(os.getpid())):
            _LOG.warning("%s", too_little)
        with ExitStack() as parts:
            parts.callback(self._notifier.close)
            # The control socket first: of two daemons on the same files the second one has that to tell.
            control = ControlServer(self._daemon, self._config.control.socket)
            control.start()
            parts.callback(control.stop)
            if not self._compile():
                _LOG.info("stopped before the first sample")
                return
            self._start_push(parts)
            self._start_http(parts)
            self._daemon.run(self._each_turn)
            self._notifier.stopping()
            self._push_the_rest()
        _LOG.info("stopped")

    def _compile(self) -> bool:
        """Have the BPF programs for this kernel, which takes long once; False: we were told to stop meanwhile."""
        if object_cache().read(cache_name()) is not None:
            return True
        # Whoever waits for the first start should know what for.
        text = "compiling the BPF programs for this kernel, once: some 7 s of CPU time"
        _LOG.info("%s", text)
        self._notifier.status(text)
        before = {number: signal.signal(number, _raise_stopped) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            try:
                get_object()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        except _Stopped:
            self._notifier.stopping()
            return False
        return True

    def _start_push(self, parts: ExitStack) -> None:
        config = push_config(self._config.push)
        if config.stores:
            self._pusher = Pusher(config, _LOG.warning)
            parts.callback(self._pusher.close)
            push = self._daemon.push
            push.outcomes = self._pusher.outcomes
            push.queues = self._pusher.queues
            push.leave = self._pusher.submit

    def _start_http(self, parts: ExitStack) -> None:
        http = self._http_at_start
        if http.listen:
            self._http = HttpServer(
                self._daemon,
                http.listen,
                token=_read_token(http),
                certificate=http.certificate,
                key=http.key,
                client_ca=http.client_ca,
                functions_for_all=http.functions_for_all,
                metrics_for_all=http.metrics_for_all,
            )
            self._http.start()
            parts.callback(self._http.close)
            _LOG.info("http at %s", self._http.address)

    def _ask_for_reload(self) -> None:
        self._reload = True

    def _each_turn(self, loop: DaemonLoop) -> None:
        """In the loop's thread, about once a second."""
        snapshot = self._daemon.snapshot()
        status = (
            f"{len(snapshot.processes)} processes, {snapshot.samples} samples, cost {snapshot.cost_ratio:.2%}"
        )
        if not self._is_ready:
            self._is_ready = True
            self._notifier.ready("sampling")
            _LOG.info(
                "sampling %s at %d Hz, %.1f s after the start",
                self._events.names[0],
                self._config.sampling.frequency_hz,
                time.monotonic() - self._started_s,
            )
        elif self._reload:
            self._reload = False
            self._notifier.reloading()
            self._apply_new_configuration(loop)
            self._notifier.ready(status)
        else:
            self._notifier.status(status)
        self._notifier.alive()
        self._push()

    def _push(self) -> None:
        """Hand over what was sampled, as fast as it is taken: at each turn as many as there is room for."""
        if self._pusher is None:
            return
        now_s = time.monotonic()
        if not self._to_push and now_s >= self._next_push_s:
            self._next_push_s = now_s + self._config.push.interval_s
            self._to_push = list(self._daemon.recent.pids())
        while self._to_push and self._pusher.has_room():
            found = self._daemon.recent.take(self._to_push.pop())
            if found is not None:
                self._pusher.submit(*found)

    def _push_the_rest(self) -> None:
        """At the end: what was sampled since the last time goes to the stores, or waits on disk."""
        self._to_push = list(self._daemon.recent.pids())
        until_s = time.monotonic() + _LAST_PUSH_SECONDS
        self._next_push_s = math.inf
        while self._pusher is not None and self._to_push and time.monotonic() < until_s:
            self._push()
            time.sleep(0.01)
        if self._pusher is not None and self._to_push:
            _LOG.warning("the last profiles of %d processes are not pushed", len(self._to_push))

    def _reload_secrets(self, server: HttpServer) -> list[str]:
        """From the files of the start: other paths take effect at the next one. Returns what was read again."""
        at_start, again = self._http_at_start, list[str]()
        for what, file, read in (
            ("certificate", at_start.certificate, server.reload_certificate),
            ("token", at_start.token_file, lambda: server.reload_token(_read_token(at_start))),
        ):
            try:
                read()
            except ParprofError as error:
                _LOG.error("the %s is not reloaded: %s", what, error)
            else:
                again += [what] if file else []
        return again

    def _apply_new_configuration(self, loop: DaemonLoop) -> None:
        """A wrong configuration changes nothing."""
        try:
            fresh = self._line.load().config
        except UsageError as error:
            _LOG.error("not reloaded: %s", error)
            return
        now, later = changed_keys(self._config, fresh)
        if later:
            _LOG.warning("these take effect at the next start: %s", ", ".join(later))
        self._config = fresh
        log.set_level(fresh.log.level)
        loop.apply(options_of(fresh, self._events))
        again = self._reload_secrets(self._http) if self._http is not None else []
        changed = ", ".join(now) or f"nothing {'else ' if later else ''}has changed"
        _LOG.info("reloaded: %s", "; read again: ".join(filter(None, (changed, ", ".join(again)))))


def _read_token(http: Http) -> str:
    return read_secret(http.token_file) if http.token_file else ""


def _set_debuginfod(config: Config) -> None:
    """Symbols are read by code that goes by the environment, as all debuginfod clients do."""
    if not config.symbols.debuginfod:
        os.environ.pop("DEBUGINFOD_URLS", None)
    elif config.symbols.debuginfod_urls:
        os.environ["DEBUGINFOD_URLS"] = " ".join(config.symbols.debuginfod_urls)


def main(arguments: list[str] | None = None) -> int:
    """Run ``parprofd``; returns the exit code."""
    line = parse_command_line(arguments)
    try:
        text = answer(line)
        if text:
            print(text)
            return 0
        Parprofd(line).run()
    except ConfigError as error:
        log.set_up("info")
        for problem in error.problems:
            _LOG.error("%s", problem)
        return error.exit_code
    except ParprofError as error:
        log.set_up("info")
        _LOG.error("%s", error)
        return error.exit_code
    return 0
