"""The configuration as text: the effective one with its sources, the commented sample, and the command line."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from parprof import __version__
from parprof.patterns import regex
from parprof.service.config.load import Loaded, load
from parprof.service.config.schema import DEFAULT_FILE, KEYS, TABLES, ConfigKey, keys_of, value_of
from parprof.values import dataclass

_WIDTH = 100
_BARE_KEY = regex(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but DEL must be escaped there.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return str(value)


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def effective_text(loaded: Loaded) -> str:
    """The whole configuration as TOML, each value with its source. What may be secret is not shown."""
    out = [f"# parprofd {__version__}: {loaded.file or 'no configuration file'}"]
    for path in TABLES:
        keys = keys_of(path)
        if not keys or value_of(loaded.config, path) is None:
            continue
        out += ["", f"[{path}]"]
        for key in keys:
            value = value_of(loaded.config, key.path)
            shown = dict.fromkeys(value, "(hidden)") if key.rule.secret else value
            out.append(f"{f'{key.name} = {toml_value(shown)}':<40} # {loaded.origins[key.path]}")
    return "\n".join(out) + "\n"


def sample_text() -> str:
    """The file that is installed: every key, commented out, with its default and meaning."""
    out = [
        "# Configuration of parprofd. Each key is shown with its default; remove the # to change it.",
        "# PARPROF_TABLE_KEY in the environment overrides it, and --table-key on the command line overrides both.",
        "# `parprofd --check-config` says what is wrong, `parprofd --print-config` what is in effect and why.",
        "# `systemctl reload parprofd` applies changes, but for keys marked (restart).",
    ]
    for path, table in TABLES.items():
        if not keys_of(path) or table.about.like:
            continue
        out += ["#" if table.about.optional else "", *_comment(table.says)]
        out.append(f"{'#' if table.file_only else ''}[{path}]")
        for key in keys_of(path):
            out += _comment(_meaning(key))
            out.append(f"#{key.name} = {toml_value(key.rule.sample or key.default)}")
    return "\n".join(out) + "\n"


def _meaning(key: ConfigKey) -> str:
    """What the sample says of a key; nothing where the comment of the key before it holds for both."""
    if not key.rule.says:
        return ""
    differs = key.rule.choices and TABLES[key.table].about.optional  # from those of tables shown by this one
    limits = f" {key.range[0].upper()}{key.range[1:]}." if key.range and not differs else ""
    return key.rule.says + limits + (" (restart)" if key.rule.restart else "")


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
    for path, table in TABLES.items():
        keys = [key for key in keys_of(path) if not key.file_only]
        if keys:
            group = parser.add_argument_group(f"[{path}]", table.says)
        for key in keys:
            default = toml_value(key.default)
            says = f"{key.rule.says} {key.range and key.range + ';'} default: {default}".replace("%", "%%")
            group.add_argument(key.flag, dest=key.path, metavar="X", help=says)
    return parser


def parse_command_line(arguments: Sequence[str] | None = None) -> CommandLine:
    """Parse the command line; exits as argparse does where it makes no sense."""
    given = vars(make_parser().parse_args(arguments))
    flags = {path: given[path] for path in KEYS if given.get(path) is not None}
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
