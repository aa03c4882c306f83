"""The daemon's configuration: every key with its default, range, meaning and sample, as frozen dataclasses.

`parprof.service.config.load` fills them from the file, the environment and the command line;
`parprof.service.config.text` writes them as text. A key's path, such as ``http.listen``, is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from typing import Any, get_type_hints

from parprof.errors import UsageError
from parprof.service.control import DEFAULT_SOCKET
from parprof.service.groups import MAX_GROUPS
from parprof.service.push.labels import DEFAULT_LABELS, PROCESS_LABELS
from parprof.service.selection import Rules
from parprof.values import dataclass

DEFAULT_FILE = "/etc/parprofd/parprofd.toml"


class ConfigError(UsageError):
    """The configuration is wrong. ``problems``: one line for each, with where it is; at least one."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        more = f" (and {len(problems) - 1} more: parprofd --check-config)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What is known of a key beside its type and default. ``low``, ``high``: the range, both included."""

    says: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    restart: bool = False
    """A reload does not apply it."""
    filled: bool = False
    """An empty text is refused."""
    secret: bool = False
    """Its values are not printed."""
    sample: Any = None
    """What the sample shows instead of the default."""


@dataclass(frozen=True, slots=True)
class TableRule:
    """What is known of a table beside its keys. ``says``: what it is about; else its class's docstring."""

    says: str = ""
    file_only: bool = False
    """The environment and the command line set nothing in it; the sample has it commented out."""
    optional: Any = None
    """The table's class where the table may be left out, which is something else than to leave it empty."""
    like: str = ""
    """The sample shows that table, which takes the same keys, and not this one."""


def _key(default: Any, says: str, **rule: Any) -> Any:
    metadata = {"rule": KeyRule(says, **rule), "default": default}
    if isinstance(default, Mapping):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _table(kind: Any, says: str = "", *, file_only: bool = False) -> Any:
    return field(default_factory=kind, metadata={"table": TableRule(says, file_only)})


def _optional_table(kind: Any, says: str = "", like: str = "") -> Any:
    return field(default=None, metadata={"table": TableRule(says, optional=kind, like=like)})


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
class Match(Rules):
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
    allow: Match = _table(
        Match, "Watched where mode is listed. Processes: those to which at least one of the lists applies."
    )
    deny: Match = _table(Match, "Never watched. Processes: those to which at least one of the lists applies.")


@dataclass(frozen=True, slots=True)
class CostBudget:
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
        "HOST:PORT; empty: no HTTP. What is not loopback needs a certificate, and a token or client_ca.",
        restart=True,
    )
    token_file: str = _key(
        "",
        "File with the token that clients must send (Authorization: Bearer TOKEN). A reload reads it again.",
        restart=True,
    )
    functions_for_all: bool = _key(
        False,
        "Whether metrics name functions to all who get metrics: other users of this machine, too. Root always sees "
        "them.",
        restart=True,
    )
    metrics_for_all: bool = _key(
        False,
        "Whether /metrics, without functions, is for everyone who can connect, without token, certificate or TLS, "
        "though all else needs them; where they are not set, nobody gets anything else, unless it listens on "
        "loopback.",
        restart=True,
    )
    certificate: str = _key("", "PEM file with the certificate chain. A reload reads it again.", restart=True)
    key: str = _key("", "PEM file with the certificate's key, not encrypted.", restart=True)
    client_ca: str = _key(
        "",
        "PEM file. Clients that show a certificate issued by one in it need no token. A reload reads it again.",
        restart=True,
    )


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
class LimitsTable:
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
        5, 'Functions of each process in /metrics; the rest is function="other".', low=0, high=1000
    )


@dataclass(frozen=True, slots=True)
class MetricsTable:
    """How processes are told apart in /metrics."""

    pid: bool = _key(
        True,
        "Whether each process has series of its own, with its pid as label. false: those of the same name, unit, "
        "container and pod share their series, which stay when processes end: for machines where many come and go, "
        "and for fleets.",
        restart=True,
    )
    groups: int = _key(
        MAX_GROUPS,
        'Where pid is false: so many groups have series of their own, the rest is comm="other".',
        low=1,
        high=10**5,
        restart=True,
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
class ShownTable:
    """What is shown of processes."""

    arguments: bool = _key(
        False,
        "Whether commands are shown with their arguments, which may hold secrets: on pages, in profiles, over the "
        "control socket. Without: the path of the program.",
    )


@dataclass(frozen=True, slots=True)
class Log:
    """What is logged, on standard error or in the journal."""

    level: str = _key(
        "info", "The least important messages that are logged.", choices=("error", "warning", "info", "debug")
    )


@dataclass(frozen=True, slots=True)
class StoreTable:
    """A store that profiles are sent to. Secrets are in files."""

    url: str = _key("", "", filled=True, sample="https://pyroscope.example:4040")
    protocol: str = _key(
        "push", "pyroscope: push or ingest; parca: grpc-web; otlp: http. The first one is the default."
    )
    timeout_s: float = _key(10.0, "For one request.", low=0.1, high=300)
    ca_file: str = _key(
        "",
        "PEM files: certificates to trust instead of the system's; our own certificate and its key.",
        sample="/etc/parprofd/ca.pem",
    )
    cert_file: str = _key("", "", sample="/etc/parprofd/client.pem")
    key_file: str = _key("", "", sample="/etc/parprofd/client.key")
    bearer_token_file: str = _key(
        "",
        "Who we are. Secrets are in files. Either the token or user and password.",
        sample="/etc/parprofd/pyroscope.token",
    )
    basic_user: str = _key("", "", sample="parprofd")
    basic_password_file: str = _key("", "", sample="/etc/parprofd/pyroscope.password")
    tenant: str = _key("", "X-Scope-OrgID.", sample="a")
    headers: Mapping[str, str] = _key({}, "", secret=True, sample={"X-Extra": "a"})


@dataclass(frozen=True, slots=True)
class PyroscopeTable(StoreTable):
    """Grafana Pyroscope."""

    protocol: str = _key(
        "push",
        "pyroscope: push or ingest; parca: grpc-web; otlp: http. The first one is the default.",
        choices=("push", "ingest"),
    )


@dataclass(frozen=True, slots=True)
class ParcaTable(StoreTable):
    """Parca."""

    protocol: str = _key("grpc-web", "", choices=("grpc-web",))


@dataclass(frozen=True, slots=True)
class OtlpTable(StoreTable):
    """Any store that takes OTLP profiles."""

    protocol: str = _key("http", "", choices=("http",))


@dataclass(frozen=True, slots=True)
class Push:
    """Profiles can be sent to stores as well: Pyroscope, Parca, or any that takes OTLP profiles."""

    interval_s: float = _key(60.0, "Of each process a profile is sent so often.", low=1, high=3600)
    spool: str = _key(
        "/var/lib/parprofd/push",
        "What could not be sent waits here, up to so many bytes for each store, and for so long.",
        restart=True,
        filled=True,
    )
    spool_bytes: int = _key(256 << 20, "", low=1 << 20, high=1 << 40, restart=True)
    max_age_s: float = _key(3600.0, "", low=1, high=1e9, restart=True)
    process_labels: tuple[str, ...] = _key(
        DEFAULT_LABELS, "Labels of each process that are sent.", choices=PROCESS_LABELS, restart=True
    )
    service: str = _key(
        "comm", "The process label that names the service.", choices=PROCESS_LABELS, restart=True
    )
    labels: Mapping[str, str] = _key(
        {},
        'Labels that are the same for all; "node" is the host\'s name unless it is set.',
        restart=True,
        sample={"site": "a"},
    )
    pyroscope: PyroscopeTable | None = _optional_table(
        PyroscopeTable,
        "One table for each store: [push.pyroscope], [push.parca], [push.otlp]. All of them take these keys. "
        "(restart, all that is in them)",
    )
    parca: ParcaTable | None = _optional_table(ParcaTable, like="push.pyroscope")
    otlp: OtlpTable | None = _optional_table(OtlpTable, like="push.pyroscope")


@dataclass(frozen=True, slots=True)
class Config:
    """All of it."""

    sampling: Sampling = _table(Sampling)
    select: Select = _table(Select)
    budget: CostBudget = _table(CostBudget)
    http: Http = _table(Http)
    control: Control = _table(Control)
    profiles: Profiles = _table(Profiles)
    limits: LimitsTable = _table(LimitsTable)
    metrics: MetricsTable = _table(MetricsTable)
    symbols: Symbols = _table(Symbols)
    shown: ShownTable = _table(ShownTable)
    log: Log = _table(Log)
    push: Push = _table(Push, file_only=True)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of the configuration.

    ``kind``: int, float, bool, str, tuple[str, ...], tuple[int, ...] or Mapping[str, str].
    """

    path: str
    kind: Any
    default: Any
    rule: KeyRule
    file_only: bool = False
    """It has no variable in the environment and no flag."""

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
            return f"{'one' if self.kind is str else 'some'} of {', '.join(self.rule.choices)}"
        if self.rule.low is not None and self.rule.high is not None:
            return f"{self.rule.low:.15g} to {self.rule.high:.15g}"
        return ""


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """One table of the configuration."""

    path: str
    kind: Any
    """Its dataclass."""
    about: TableRule
    file_only: bool
    """It or a table around it can be set in the file alone."""

    @property
    def says(self) -> str:
        """What it is about."""
        return self.about.says or self.kind.__doc__ or ""


def _tables_in(kind: Any, prefix: str = "", file_only: bool = False) -> Iterator[ConfigTable]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        about = one.metadata.get("table")
        if about is not None:
            path = prefix + one.name
            here = ConfigTable(path, about.optional or hints[one.name], about, file_only or about.file_only)
            yield here
            yield from _tables_in(here.kind, path + ".", here.file_only)


def _keys_of(table: ConfigTable) -> Iterator[ConfigKey]:
    hints = get_type_hints(table.kind)
    for one in fields(table.kind):
        if "rule" in one.metadata:
            path = f"{table.path}.{one.name}"
            yield ConfigKey(
                path, hints[one.name], one.metadata["default"], one.metadata["rule"], table.file_only
            )


TABLES = {table.path: table for table in _tables_in(Config)}
"""All tables, in the order of the file."""
KEYS = {key.path: key for table in TABLES.values() for key in _keys_of(table)}
"""All keys, in the order of the file."""


def keys_of(table: str) -> list[ConfigKey]:
    """The keys of a table, without those of tables in it."""
    return [key for key in KEYS.values() if key.table == table]


def value_of(config: Config, path: str) -> Any:
    """The value of a key or a table; None in or of an optional table that is not there."""
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part, None)
    return value
