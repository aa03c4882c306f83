"""Man pages, and completions for bash, zsh and fish, made from the parsers: ``python -m parprof.manuals DIR``.

DIR is a ``share`` directory, such as /usr/local/share; each file goes where its reader looks for it below that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from parprof import __version__
from parprof.__main__ import CommandParser, make_parser
from parprof.service.config import text as service
from parprof.service.config.schema import DEFAULT_FILE, KEYS, TABLES, ConfigKey, keys_of

_FILES = frozenset({"FILE", "OUT", "A", "B", "CMD"})
"""Operands that name files."""


def files() -> dict[str, str]:
    """All files by their path below ``share``."""
    parser = make_parser()
    commands = _commands(parser)
    pages = {"man/man1/parprof.1": _main_page(parser, commands)}
    for name, command in commands.items():
        pages[f"man/man1/parprof-{name}.1"] = _page(f"parprof-{name}", command)
    daemon = service.make_parser()
    pages["man/man8/parprofd.8"] = _daemon_page(daemon)
    return {
        **pages,
        "bash-completion/completions/parprof": _bash(parser, commands),
        "bash-completion/completions/parprofd": _daemon_bash(daemon),
        "zsh/site-functions/_parprofd": _daemon_zsh(daemon),
        "fish/vendor_completions.d/parprofd.fish": _daemon_fish(daemon),
        "zsh/site-functions/_parprof": _zsh(parser, commands),
        "fish/vendor_completions.d/parprof.fish": _fish(parser, commands),
    }


def _commands(parser: argparse.ArgumentParser) -> dict[str, CommandParser]:
    found: dict[str, CommandParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                command.prepare()
                found[name] = command
    return found


def _summary(command: CommandParser) -> str:
    return (command.description or "").partition("\n")[0]


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if action.option_strings)


def _operands(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            yield action


def _value(action: argparse.Action) -> str:
    """What an option takes, as its help says; empty: nothing."""
    if action.nargs == 0:
        return ""
    if action.metavar:
        return str(action.metavar)
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


# man pages


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
    for operand in _operands(parser):
        parts += [".TP", f".I {_roff(str(operand.metavar or operand.dest))}", _roff(_help(parser, operand))]
    parts.append(".SH OPTIONS")
    for action in _options(parser):
        parts += _entry(parser, action)
    parts += [".SH SEE ALSO", _roff("parprof(1)") if name != "parprof" else "perf(1)"]
    return "\n".join(parts) + "\n"


def _entry(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    """An option with what it means."""
    names = ", ".join(f"\\fB{_roff(option)}\\fR" for option in action.option_strings)
    value = _value(action)
    return [".TP", names + (f" \\fI{_roff(value)}\\fR" if value else ""), _roff(_help(parser, action))]


def _main_page(parser: argparse.ArgumentParser, commands: dict[str, CommandParser]) -> str:
    listed = [".SH COMMANDS"]
    for name, command in commands.items():
        listed += [".TP", f"\\fB{_roff(f'parprof-{name}')}\\fR(1)", _roff(_summary(command))]
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
    for action in _options(parser):
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


# completions


def _words(action: argparse.Action) -> str:
    return " ".join(map(str, action.choices)) if action.choices else ""


def _bash(parser: argparse.ArgumentParser, commands: dict[str, CommandParser]) -> str:
    lines = [
        "# bash completion for parprof; made by parprof.manuals",
        "_parprof() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= word",
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        "        case $word in -*) ;; *) command=$word; break ;; esac",
        "    done",
        "    case $command:$before in",
    ]
    for name, command in commands.items():
        for action in _options(command):
            if words := _words(action):
                patterns = "|".join(f"{name}:{option}" for option in action.option_strings)
                lines.append(f'    {patterns}) COMPREPLY=($(compgen -W "{words}" -- "$current")); return ;;')
    lines += ["    esac", "    case $command in"]
    for name, command in commands.items():
        options = " ".join(option for action in _options(command) for option in action.option_strings)
        lines.append(f'    {name}) words="{options}" ;;')
    everything = " ".join([*commands, "help", *_flags(parser)])
    lines += [
        f'    help) words="{" ".join(commands)}" ;;',
        f'    *) words="{everything}" ;;',
        "    esac",
        "    if [[ -z $command || $command == help || $current == -* ]]; then",
        '        COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "    else",
        '        COMPREPLY=($(compgen -f -- "$current"))',
        "    fi",
        "}",
        "complete -o filenames -F _parprof parprof",
    ]
    return "\n".join(lines) + "\n"


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in _options(parser) for option in action.option_strings]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh(parser: argparse.ArgumentParser, commands: dict[str, CommandParser]) -> str:
    lines = [
        "#compdef parprof",
        "# made by parprof.manuals",
        "_parprof() {",
        "  local -a commands",
        "  commands=(",
    ]
    lines += [f"    {_quoted(f'{name}:{_summary(command)}')}" for name, command in commands.items()]
    lines += [
        "    'help:Say more of a command.'",
        "  )",
        "  if (( CURRENT == 2 )); then",
        "    _describe command commands",
        f"    compadd -- {' '.join(_flags(parser))}",
        "    return",
        "  fi",
        "  case $words[2] in",
    ]
    for name, command in commands.items():
        lines.append(f"  {name}) shift words; (( CURRENT-- )); _arguments -S \\")
        for action in _options(command):
            for option in action.option_strings:
                lines.append(f"    {_quoted(_zsh_option(command, action, option))} \\")
        lines.append("    '*:file:_files' ;;")
    lines += ["  help) _describe command commands ;;", "  esac", "}", '_parprof "$@"']
    return "\n".join(lines) + "\n"


def _zsh_option(
    parser: argparse.ArgumentParser, action: argparse.Action, option: str, words: str = ""
) -> str:
    text = _help(parser, action).partition(";")[0].replace("[", "(").replace("]", ")").replace(":", "\\:")
    out = f"*{option}[{text}]"
    value = _value(action)
    if not value:
        return out
    if words := words or _words(action):
        return f"{out}:value:({words})"
    return f"{out}:{value.lower()}:_files" if value in _FILES else f"{out}:{value.lower()}: "


def _fish(parser: argparse.ArgumentParser, commands: dict[str, CommandParser]) -> str:
    lines = [
        "# fish completion for parprof; made by parprof.manuals",
        "complete -c parprof -n __fish_use_subcommand -f",
    ]
    for name, command in commands.items():
        lines.append(
            f"complete -c parprof -n __fish_use_subcommand -a {name} -d {_fish_text(_summary(command))}"
        )
    lines.append("complete -c parprof -n __fish_use_subcommand -a help -d 'Say more of a command.'")
    lines.append(f"complete -c parprof -n '__fish_seen_subcommand_from help' -f -a '{' '.join(commands)}'")
    lines += [
        f"complete -c parprof -n __fish_use_subcommand{_fish_option(parser, action)}"
        for action in _options(parser)
    ]
    for name, command in commands.items():
        start = f"complete -c parprof -n '__fish_seen_subcommand_from {name}'"
        lines += [start + _fish_option(command, action) for action in _options(command)]
    return "\n".join(lines) + "\n"


def _fish_option(parser: argparse.ArgumentParser, action: argparse.Action, words: str = "") -> str:
    out = ""
    for option in action.option_strings:
        out += f" -l {option[2:]}" if option.startswith("--") else f" -s {option[1:]}"
    if value := _value(action):
        if words := words or _words(action):
            out += f" -x -a '{words}'"
        else:
            out += " -r -F" if value in _FILES else " -x"
    return f"{out} -d {_fish_text(_help(parser, action).partition(';')[0])}"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _daemon_words(action: argparse.Action) -> str:
    """The values of a key that takes one of a few."""
    key = KEYS.get(action.dest)
    if key is None or key.kind not in (str, bool):
        return ""
    return "true false" if key.kind is bool else " ".join(key.rule.choices)


def _daemon_bash(parser: argparse.ArgumentParser) -> str:
    lines = [
        "# bash completion for parprofd; made by parprof.manuals",
        "_parprofd() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "    case $before in",
    ]
    for action in _options(parser):
        patterns = "|".join(action.option_strings)
        if words := _daemon_words(action):
            lines.append(f'    {patterns}) COMPREPLY=($(compgen -W "{words}" -- "$current")); return ;;')
        elif _value(action) in _FILES:
            lines.append(f'    {patterns}) COMPREPLY=($(compgen -f -- "$current")); return ;;')
    lines += [
        "    esac",
        f'    COMPREPLY=($(compgen -W "{" ".join(_flags(parser))}" -- "$current"))',
        "}",
        "complete -o filenames -F _parprofd parprofd",
    ]
    return "\n".join(lines) + "\n"


def _daemon_zsh(parser: argparse.ArgumentParser) -> str:
    lines = ["#compdef parprofd", "# made by parprof.manuals", "_arguments -S \\"]
    options = [
        f"  {_quoted(_zsh_option(parser, action, option, _daemon_words(action)))}"
        for action in _options(parser)
        for option in action.option_strings
    ]
    return "\n".join(lines) + "\n" + " \\\n".join(options) + "\n"


def _daemon_fish(parser: argparse.ArgumentParser) -> str:
    lines = ["# fish completion for parprofd; made by parprof.manuals", "complete -c parprofd -f"]
    lines += [
        f"complete -c parprofd{_fish_option(parser, action, _daemon_words(action))}"
        for action in _options(parser)
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write them all."""
    parser = argparse.ArgumentParser(prog="python -m parprof.manuals", description=main.__doc__)
    parser.add_argument("directory", metavar="DIR", type=Path, help="a share directory")
    directory = parser.parse_args(arguments).directory
    for name, text in files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
