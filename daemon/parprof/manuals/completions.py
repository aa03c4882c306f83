"""Completions for bash, zsh and fish: commands, options with what they take, processes, commands to run, files."""

from __future__ import annotations

import argparse

from parprof.__main__ import CommandParser
from parprof.manuals.parsers import (
    FILES,
    commands_of,
    help_of,
    operands_of,
    options_of,
    summary_of,
    value_name,
)
from parprof.service.config.schema import KEYS


def completions(parser: argparse.ArgumentParser, daemon: argparse.ArgumentParser) -> dict[str, str]:
    """All scripts by their path below ``share``."""
    commands = commands_of(parser)
    return {
        "bash-completion/completions/parprof": _bash(parser, commands),
        "zsh/site-functions/_parprof": _zsh(parser, commands),
        "fish/vendor_completions.d/parprof.fish": _fish(parser, commands),
        "bash-completion/completions/parprofd": _daemon_bash(daemon),
        "zsh/site-functions/_parprofd": _daemon_zsh(daemon),
        "fish/vendor_completions.d/parprofd.fish": _daemon_fish(daemon),
    }


def _operand(command: argparse.ArgumentParser) -> str:
    """What the first operand is: PID, CMD, FILE; empty: there is none."""
    return next(("FILE" if (name := value_name(one)) in FILES else name for one in operands_of(command)), "")


def _words(action: argparse.Action) -> str:
    return " ".join(map(str, action.choices)) if action.choices else ""


_BASH_OPERANDS = {
    "PID": 'COMPREPLY=($(compgen -W "$(ps -eo pid=)" -- "$current"))',
    "CMD": 'COMPREPLY=($(compgen -c -f -- "$current"))',
    "FILE": 'COMPREPLY=($(compgen -f -- "$current"))',
}
_ZSH_OPERANDS = {
    "PID": "'*:process:_pids' ;;",
    "CMD": "'(-)1:command:_command_names -e' '*::arguments:_normal' ;;",
    "FILE": "'*:file:_files' ;;",
    "": "&& return ;;",
}
_FISH_OPERANDS = {
    "PID": "-f -a '(__fish_complete_pids)'",
    "CMD": "-a '(__fish_complete_subcommand --fcs-skip=2)'",
    "FILE": "-F",
    "": "-f",
}


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
        lines += [_bash_value(action, _words(action), f"{name}:") for action in _with_values(command)]
    lines += ["    esac", "    case $command in"]
    for name, command in commands.items():
        lines.append(f'    {name}) words="{" ".join(_flags(command))}" ;;')
    everything = " ".join([*commands, "help", *_flags(parser)])
    lines += [
        f'    help) words="{" ".join(commands)}" ;;',
        f'    *) words="{everything}" ;;',
        "    esac",
        "    if [[ -z $command || $command == help || $current == -* ]]; then",
        '        COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "    else case $command in",
        *(
            f"    {name}) {_BASH_OPERANDS[kind]} ;;"
            for name, one in commands.items()
            if (kind := _operand(one))
        ),
        "    esac; fi",
        "}",
        "complete -o filenames -F _parprof parprof",
    ]
    return "\n".join(lines) + "\n"


def _with_values(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in options_of(parser) if value_name(action)]


def _bash_value(action: argparse.Action, words: str, before: str = "") -> str:
    """A branch that completes what an option takes: one of ``words``, or a file; else it is anything. ``before``: what
    each of its names has in front of it."""
    reply = f"{_BASH_OPERANDS['FILE']}; " if value_name(action) in FILES else ""
    if words:
        reply = f'COMPREPLY=($(compgen -W "{words}" -- "$current")); '
    patterns = "|".join(before + option for option in action.option_strings)
    return f"    {patterns}) {reply}return ;;"


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in options_of(parser) for option in action.option_strings]


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
    lines += [f"    {_quoted(f'{name}:{summary_of(command)}')}" for name, command in commands.items()]
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
        for action in options_of(command):
            for option in action.option_strings:
                lines.append(f"    {_quoted(_zsh_option(command, action, option))} \\")
        lines.append(f"    {_ZSH_OPERANDS[_operand(command)]}")
    lines += ["  help) _describe command commands ;;", "  esac", "}", '_parprof "$@"']
    return "\n".join(lines) + "\n"


def _zsh_option(
    parser: argparse.ArgumentParser, action: argparse.Action, option: str, words: str = ""
) -> str:
    text = help_of(parser, action).partition(";")[0].replace("[", "(").replace("]", ")").replace(":", "\\:")
    out = f"*{option}[{text}]"
    value = value_name(action)
    if not value:
        return out
    if words := words or _words(action):
        return f"{out}:value:({words})"
    return f"{out}:{value.lower()}:_files" if value in FILES else f"{out}:{value.lower()}: "


def _fish(parser: argparse.ArgumentParser, commands: dict[str, CommandParser]) -> str:
    lines = [
        "# fish completion for parprof; made by parprof.manuals",
        "complete -c parprof -n __fish_use_subcommand -f",
    ]
    for name, command in commands.items():
        lines.append(
            f"complete -c parprof -n __fish_use_subcommand -a {name} -d {_fish_text(summary_of(command))}"
        )
    lines.append("complete -c parprof -n __fish_use_subcommand -a help -d 'Say more of a command.'")
    lines.append(f"complete -c parprof -n '__fish_seen_subcommand_from help' -f -a '{' '.join(commands)}'")
    lines += [
        f"complete -c parprof -n __fish_use_subcommand{_fish_option(parser, action)}"
        for action in options_of(parser)
    ]
    for name, command in commands.items():
        start = f"complete -c parprof -n '__fish_seen_subcommand_from {name}'"
        lines.append(f"{start} {_FISH_OPERANDS[_operand(command)]}")
        lines += [start + _fish_option(command, action) for action in options_of(command)]
    return "\n".join(lines) + "\n"


def _fish_option(parser: argparse.ArgumentParser, action: argparse.Action, words: str = "") -> str:
    out = ""
    for option in action.option_strings:
        out += f" -l {option[2:]}" if option.startswith("--") else f" -s {option[1:]}"
    if value := value_name(action):
        if words := words or _words(action):
            out += f" -x -a '{words}'"
        else:
            out += " -r -F" if value in FILES else " -x"
    return f"{out} -d {_fish_text(help_of(parser, action).partition(';')[0])}"


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
    lines += [_bash_value(action, _daemon_words(action)) for action in _with_values(parser)]
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
        for action in options_of(parser)
        for option in action.option_strings
    ]
    return "\n".join(lines) + "\n" + " \\\n".join(options) + "\n"


def _daemon_fish(parser: argparse.ArgumentParser) -> str:
    lines = ["# fish completion for parprofd; made by parprof.manuals", "complete -c parprofd -f"]
    lines += [
        f"complete -c parprofd{_fish_option(parser, action, _daemon_words(action))}"
        for action in options_of(parser)
    ]
    return "\n".join(lines) + "\n"
