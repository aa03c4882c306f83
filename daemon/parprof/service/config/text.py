"""The configuration as text: the effective one with its sources, the commented sample, and the command line."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parprof import __version__
from parprof.service.config.load import Loaded, load
from parprof.service.config.schema import DEFAULT_FILE, KEYS, tables, value_of

_WIDTH = 100
_PUSH_SAMPLE = """
# Profiles can be sent to stores as well: Pyroscope, Parca, or any that takes OTLP profiles.
#[push]
# Of each process a profile is sent so often. 1 to 3600.
#interval_s = 60.0
# What could not be sent waits here, up to so many bytes for each store, and for so long.
# (restart)
#spool = "/var/lib/parprofd/push"
#spool_bytes = 268435456
#max_age_s = 3600.0
# Labels of each process that are sent: comm, pid, uid, runtime, n_w_source, cgroup, container, unit, pod.
# (restart)
#process_labels = ["comm", "runtime", "container", "unit", "pod"]
# The process label that names the service. (restart)
#service = "comm"
# Labels that are the same for all; "node" is the host's name unless it is set. (restart)
#labels = { site = "a" }
#
# One table for each store: [push.pyroscope], [push.parca], [push.otlp]. All of them take these keys.
# (restart, all that is in them)
#[push.pyroscope]
#url = "https://pyroscope.example:4040"
# pyroscope: push or ingest; parca: grpc-web; otlp: http. The first one is the default.
#protocol = "push"
# For one request. 0.1 to 300.
#timeout_s = 10.0
# PEM files: certificates to trust instead of the system's; our own certificate and its key.
#ca_file = "/etc/parprofd/ca.pem"
#cert_file = "/etc/parprofd/client.pem"
#key_file = "/etc/parprofd/client.key"
# Who we are. Secrets are in files. Either the token or user and password.
#bearer_token_file = "/etc/parprofd/pyroscope.token"
#basic_user = "parprofd"
#basic_password_file = "/etc/parprofd/pyroscope.password"
# X-Scope-OrgID.
#tenant = "a"
#headers = { X-Extra = "a" }
"""


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but DEL must be escaped there.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return str(value)


def _by_table() -> Iterator[tuple[str, str, list[str]]]:
    for table, says in tables():
        yield table, says, [path for path, key in KEYS.items() if key.table == table]


def effective_text(loaded: Loaded) -> str:
    """The whole configuration as TOML, each value with its source. Headers of [push] may be secret: not shown."""
    out = [f"# parprofd {__version__}: {loaded.file or 'no configuration file'}"]
    for table, _, paths in _by_table():
        out += ["", f"[{table}]"]
        for path in paths:
            text = f"{KEYS[path].name} = {toml_value(value_of(loaded.config, path))}"
            out.append(f"{text:<40} # {loaded.origins[path]}")
    return "\n".join(out + list(_push_lines("push", loaded.push_table))) + "\n"


def _push_lines(path: str, table: Mapping[str, Any]) -> Iterator[str]:
    if not table:
        return
    yield from ("", f"[{path}]")
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{name} = {toml_value(value)}"
        elif name == "headers":
            yield f"{name} = {toml_value(dict.fromkeys(value, '(hidden)'))}"
        elif name == "labels":
            yield f"{name} = {toml_value(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping) and name not in ("headers", "labels"):
            yield from _push_lines(f"{path}.{name}", value)


def sample_text() -> str:
    """The file that is installed: every key, commented out, with its default and meaning."""
    out = [
        "# Configuration of parprofd. Each key is shown with its default; remove the # to change it.",
        "# PARPROF_TABLE_KEY in the environment overrides it, and --table-key on the command line overrides both.",
        "# `parprofd --check-config` says what is wrong, `parprofd --print-config` what is in effect and why.",
        "# `systemctl reload parprofd` applies changes, but for keys marked (restart).",
    ]
    for table, says, paths in _by_table():
        out += ["", *_comment(says), f"[{table}]"]
        for path in paths:
            key = KEYS[path]
            limits = f" {key.range[0].upper()}{key.range[1:]}." if key.range else ""
            out += _comment(key.rule.says + limits + (" (restart)" if key.rule.restart else ""))
            out.append(f"#{key.name} = {toml_value(key.default)}")
    return "\n".join(out) + "\n" + _PUSH_SAMPLE


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What ``parprofd`` was called with."""

    file: str
    flags: Mapping[str, str]
    print_config: bool
    check_config: bool

    def load(self) -> Loaded:
        """The configuration, read now: at start, and again for each reload.

        Raises:
            ConfigError: see `parprof.service.config.load.load`.
        """
        return load(self.file, self.flags)


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``parprofd``: one flag for each key of the configuration."""
    parser = argparse.ArgumentParser(
        prog="parprofd",
        description="Profiles all parallel programs of this machine, within a budget, and serves the results.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"parprofd {__version__}")
    parser.add_argument("--config", metavar="FILE", default="", help=f"default: {DEFAULT_FILE}, if it exists")
    parser.add_argument(
        "--print-config", action="store_true", help="print the configuration in effect, and end"
    )
    parser.add_argument("--check-config", action="store_true", help="say what is wrong with it, and end")
    for table, says, paths in _by_table():
        group = parser.add_argument_group(f"[{table}]", says)
        for path in paths:
            key = KEYS[path]
            default = toml_value(key.default)
            says = f"{key.rule.says} {key.range and key.range + ';'} default: {default}".replace("%", "%%")
            group.add_argument(key.flag, dest=path, metavar="X", help=says)
    return parser


def parse_command_line(arguments: Sequence[str] | None = None) -> CommandLine:
    """Parse the command line; exits as argparse does where it makes no sense."""
    given = vars(make_parser().parse_args(arguments))
    flags = {path: given[path] for path in KEYS if given[path] is not None}
    return CommandLine(given["config"], flags, given["print_config"], given["check_config"])


def answer(line: CommandLine) -> str:
    """What ``--print-config`` or ``--check-config`` says; empty where neither was asked for.

    Raises:
        ConfigError: see `parprof.service.config.load.load`.
    """
    if not (line.print_config or line.check_config):
        return ""
    loaded = line.load()
    if line.print_config:
        return effective_text(loaded).rstrip()
    return f"{loaded.file or 'no configuration file; defaults'}: all is well"


if __name__ == "__main__":
    print(sample_text(), end="")
