"""Man pages of the commands and of the daemon."""

from __future__ import annotations

import argparse

from parprof import __version__
from parprof.__main__ import CommandParser
from parprof.manuals.parsers import commands_of, help_of, operands_of, options_of, summary_of, value_name
from parprof.service.config import text as service
from parprof.service.config.schema import DEFAULT_FILE, KEYS, TABLES, ConfigKey, keys_of


def pages(parser: argparse.ArgumentParser, daemon: argparse.ArgumentParser) -> dict[str, str]:
    """All pages by their path below ``share``."""
    commands = commands_of(parser)
    return {
        "man/man1/parprof.1": _main_page(parser, commands),
        **{f"man/man1/parprof-{name}.1": _page(f"parprof-{name}", one) for name, one in commands.items()},
        "man/man8/parprofd.8": _daemon_page(daemon),
    }


def _roff(text: str) -> str:
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


def _page(name: str, parser: argparse.ArgumentParser) -> str:
    description = parser.description or ""
    first, _, rest = description.partition("\n")
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    parts = [
        f'.TH {name.upper()} 1 "" "parprof {__version__}" "User Commands"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(first.rstrip('.'))}",
        ".SH SYNOPSIS",
        _roff(usage),
        ".SH DESCRIPTION",
        _roff(first),
    ]
    if rest.strip():
        parts += [".PP", _roff(rest.strip())]
    for operand in operands_of(parser):
        parts += [".TP", f".I {_roff(str(operand.metavar or operand.dest))}", _roff(help_of(parser, operand))]
    parts.append(".SH OPTIONS")
    for action in options_of(parser):
        parts += _entry(parser, action)
    parts += [".SH SEE ALSO", _roff("parprof(1)") if name != "parprof" else "perf(1)"]
    return "\n".join(parts) + "\n"


def _entry(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    """An option with what it means."""
    names = ", ".join(f"\\fB{_roff(option)}\\fR" for option in action.option_strings)
    value = value_name(action)
    return [".TP", names + (f" \\fI{_roff(value)}\\fR" if value else ""), _roff(help_of(parser, action))]


def _main_page(parser: argparse.ArgumentParser, commands: dict[str, CommandParser]) -> str:
    listed = [".SH COMMANDS"]
    for name, command in commands.items():
        listed += [".TP", f"\\fB{_roff(f'parprof-{name}')}\\fR(1)", _roff(summary_of(command))]
    before, options, after = _page("parprof", parser).partition(".SH OPTIONS")
    return before + "\n".join(listed) + "\n" + options + after


_DAEMON = """\
.SH EXIT STATUS
0: it was told to end. 1: it could not start, or go on; the log says why. 2: the configuration or the command line is
wrong; one line for each problem.
.SH SIGNALS
SIGHUP reads the configuration again (keys marked "restart" need one). SIGTERM and SIGINT end it; all probes go with it,
and programs run on.
.SH FILES
.TP
.I {file}
The configuration, in TOML.
.SH SEE ALSO
parprof(1), parprof\\-top(1), parprof\\-status(1), systemctl(1)
"""


def _daemon_page(parser: argparse.ArgumentParser) -> str:
    """The daemon's: its few options, then each key with the flag and the variable that set it."""
    description = parser.description or ""
    parts = [
        f'.TH PARPROFD 8 "" "parprof {__version__}" "System Administration"',
        ".SH NAME",
        f"parprofd \\- {_roff(description[:1].lower() + description[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        _roff("parprofd [--config FILE] [--print-config | --check-config] [--TABLE-KEY VALUE ...]"),
        ".SH DESCRIPTION",
        _roff(description),
        ".SH OPTIONS",
    ]
    for action in options_of(parser):
        if action.dest not in KEYS:
            parts += _entry(parser, action)
    parts += [
        ".SH CONFIGURATION",
        _roff(
            f"Keys of {DEFAULT_FILE}, each with the flag and the environment variable that override it; the flag "
            "comes first. Tables are shown as in the file."
        ),
    ]
    for path, table in TABLES.items():
        keys = keys_of(path)
        if keys:
            parts += [f".SS [{_roff(path)}]", _roff(table.says)]
        for key in keys:
            ways = "in the file alone" if key.file_only else f"{key.flag}, {key.variable}"
            parts += [".TP", f"\\fB{_roff(key.path)}\\fR ({_roff(ways)})", _roff(_meaning(key))]
    return "\n".join(parts) + "\n" + _DAEMON.format(file=_roff(DEFAULT_FILE))


def _meaning(key: ConfigKey) -> str:
    shown = key.rule.sample if key.rule.sample is not None else key.default
    range_ = f"{key.range[0].upper()}{key.range[1:]}. " if key.range else ""
    what = "Example" if key.rule.sample is not None else "Default"
    restart = " (restart)" if key.rule.restart else ""
    return f"{key.rule.says} {range_}{what}: {service.toml_value(shown)}{restart}".strip()
