"""The daemon's configuration: every key with its default, range and meaning, as frozen dataclasses.

`parprof.service.config.load` fills them from the file, the environment and the command line;
`parprof.service.config.text` writes them as text. A key's path, such as ``http.listen``, is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from parprof.errors import UsageError
from parprof.service.control import DEFAULT_SOCKET
from parprof.service.push.config import PushConfig

DEFAULT_FILE = "/etc/parprofd/parprofd.toml"


class ConfigError(UsageError):
    """The configuration is wrong. ``problems``: one line for each, with where it is; at least one."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        more = f" (and {len(problems) - 1} more: parprofd --check-config)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known of a key beside its type and default. ``low``, ``high``: the range, both included."""

    says: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    restart: bool = False
    """A reload does not apply it."""


def _key(default: Any, says: str, **rule: Any) -> Any:
    return field(default=default, metadata={"rule": Rule(says, **rule)})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How often, and on what."""

    frequency_hz: int = _key(
        99,
        "Samples a second and core. The governor lowers it where the budget asks for that.",
        low=1,
        high=9999,
    )
    events: tuple[str, ...] = _key(
        (),
        "Events to sample. cycles, ref-cycles or cpu-clock is the clock (without one: cycles where there is a "
        "PMU, else cpu-clock); further ones are counted beside it. `parprof check` lists those of the machine.",
        restart=True,
    )


@dataclass(frozen=True, slots=True)
class Match:
    """Processes: those to which at least one of the lists applies."""

    comm: tuple[str, ...] = _key((), "Names of processes, as in /proc/PID/comm; * and ? stand for anything.")
    uid: tuple[int, ...] = _key((), "Numbers of users.", low=0, high=2**32 - 2)
    cgroup: tuple[str, ...] = _key(
        (), "Paths of cgroups, such as /system.slice/*; each with all that is below it."
    )
    container: tuple[str, ...] = _key((), "Container ids, or how they begin.")
    pid: tuple[int, ...] = _key((), "Process ids.", low=1, high=2**22)


@dataclass(frozen=True, slots=True)
class Select:
    """Which processes are watched."""

    mode: str = _key(
        "all",
        "all: every process but those denied. listed: only those allowed, less those denied, and those that "
        "`parprof attach` asks for.",
        choices=("all", "listed"),
    )
    allow: Match = field(default_factory=Match)
    deny: Match = field(default_factory=Match)


@dataclass(frozen=True, slots=True)
class Budget:
    """What profiling may cost. It is held in the kernel, event by event; the governor tries again what was left out."""

    target_percent: float = _key(
        1.0,
        "Cost in each process, and in all of them together, in percent of the CPU time that they use.",
        low=0.01,
        high=100,
    )


@dataclass(frozen=True, slots=True)
class Http:
    """Metrics, profiles and the status page."""

    listen: str = _key(
        "127.0.0.1:9466",
        "HOST:PORT; empty: no HTTP. What is not loopback needs a token and a certificate.",
        restart=True,
    )
    token_file: str = _key(
        "", "File with the token that clients must send (Authorization: Bearer TOKEN).", restart=True
    )
    certificate: str = _key("", "PEM file with the certificate chain. A reload reads it again.", restart=True)
    key: str = _key("", "PEM file with the certificate's key, not encrypted.", restart=True)


@dataclass(frozen=True, slots=True)
class Control:
    """Where `parprof attach`, `top` and `status` find the daemon."""

    socket: str = _key(
        DEFAULT_SOCKET, "Path of the Unix socket. One that systemd hands over is used instead.", restart=True
    )


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles of the last minutes, in memory."""

    interval_seconds: float = _key(
        10.0,
        "A profile of each process is kept for each interval of this length.",
        low=0.5,
        high=600,
        restart=True,
    )
    ring_bytes: int = _key(16 << 20, "Memory for them; the oldest go first.", low=1 << 20, high=1 << 36)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on memory and on the size of /metrics."""

    processes: int = _key(
        1000, "Processes watched at a time; more are counted as lost, not watched.", low=1, high=8192
    )
    paths: int = _key(
        2000,
        "Call paths kept of each process; the coldest are folded into their callers.",
        low=10,
        high=10**6,
    )
    functions: int = _key(
        20, 'Functions of each process in /metrics; the rest is function="other".', low=0, high=1000
    )


@dataclass(frozen=True, slots=True)
class Symbols:
    """Names of functions and lines."""

    loops: bool = _key(False, "Whether call paths show the loops that they are in.", restart=True)
    debuginfod: bool = _key(False, "Whether debug files are fetched from debuginfod servers.", restart=True)
    debuginfod_urls: tuple[str, ...] = _key(
        (), "The servers; without any: those in the environment's DEBUGINFOD_URLS.", restart=True
    )


@dataclass(frozen=True, slots=True)
class Log:
    """What is logged, on standard error or in the journal."""

    level: str = _key(
        "info", "The least important messages that are logged.", choices=("error", "warning", "info", "debug")
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All of it."""

    sampling: Sampling = field(default_factory=Sampling)
    select: Select = field(default_factory=Select)
    budget: Budget = field(default_factory=Budget)
    http: Http = field(default_factory=Http)
    control: Control = field(default_factory=Control)
    profiles: Profiles = field(default_factory=Profiles)
    limits: Limits = field(default_factory=Limits)
    symbols: Symbols = field(default_factory=Symbols)
    log: Log = field(default_factory=Log)
    push: PushConfig = field(default_factory=PushConfig)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration. ``kind``: int, float, bool, str, tuple[str, ...] or tuple[int, ...]."""

    path: str
    kind: Any
    default: Any
    rule: Rule

    @property
    def table(self) -> str:
        """The table that it is in: ``select.allow`` of ``select.allow.comm``."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "PARPROF_" + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The command-line flag that sets it."""
        return "--" + self.path.replace(".", "-").replace("_", "-")

    @property
    def range(self) -> str:
        """What values it takes, in words; empty where all of its type do."""
        if self.rule.choices:
            return "one of " + ", ".join(self.rule.choices)
        if self.rule.low is not None and self.rule.high is not None:
            return f"{self.rule.low:.12g} to {self.rule.high:.12g}"
        return ""


def _walk(kind: type, prefix: str) -> Iterator[Key]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        path, hint = prefix + one.name, hints[one.name]
        if "rule" in one.metadata:
            yield Key(path, hint, one.default, one.metadata["rule"])
        elif is_dataclass(hint) and hint is not PushConfig:
            yield from _walk(hint, path + ".")  # type: ignore[arg-type]


KEYS = {key.path: key for key in _walk(Config, "")}
"""All keys but those of [push], which `parprof.service.push.config` knows, in the order of the file."""


def tables() -> Iterator[tuple[str, str]]:
    """Tables with what they are about, in the order of the file, without [push]."""
    for one in dict.fromkeys(key.table for key in KEYS.values()):
        kind: Any = Config
        for part in one.split("."):
            kind = get_type_hints(kind)[part]
        text = {"select.allow": "Watched where mode is listed. ", "select.deny": "Never watched. "}.get(
            one, ""
        )
        yield one, text + (kind.__doc__ or "")


def value_of(config: Config, path: str) -> Any:
    """The value of a key."""
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value
