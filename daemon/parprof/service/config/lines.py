"""In which line of a TOML file a key is: tomllib does not say. For text that tomllib has accepted."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

from parprof.patterns import regex

KeyPath = tuple[str, ...]
_TOKEN = regex(
    r'''(?P<string>"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')'''
    r"""|(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<mark>[\[\]{}=,.])|(?P<bare>[^\s\[\]{}=,."'\#]+)""",
    re.DOTALL,
)
_Token = tuple[str, str, int]


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(text):
        kind, content = match.lastgroup or "", match[0]
        if kind != "comment":
            yield kind, content, line
        line += content.count("\n")


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """The line of each table and key, counted from 1; of inline tables too.

    >>> key_lines("[a]\\nb.c = {d = 1}")[("a", "b", "c", "d")]
    2
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    open_: list[tuple[str, KeyPath]] = []
    """Brackets of the value that we are in, with the path that its keys begin with."""
    key: list[str] = []
    in_header = in_value = False
    for kind, content, line in _tokens(text):
        expects_key = not in_value or bool(open_ and open_[-1][0] == "{?")
        if kind == "newline":
            if not open_:
                in_header = in_value = False
                key = []
        elif expects_key and kind in ("string", "bare"):
            key.append(_plain(kind, content))
        elif not in_value and content == "[":
            in_header = True
        elif in_header and content == "]":
            if key:
                table = tuple(key)
                _note(lines, (), table, line)
            key = []
        elif expects_key and content == "=":
            prefix = open_[-1][1] if open_ else table
            _note(lines, prefix, tuple(key), line)
            in_value = True
            if open_:
                open_[-1] = ("{", prefix)
            here = prefix + tuple(key)
            key = []
        elif in_value and content in "[{":
            open_.append(("{?" if content == "{" else "[", here))
        elif in_value and content in "]}":
            _, prefix = open_.pop()
            here = prefix
        elif in_value and content == "," and open_ and open_[-1][0] == "{":
            open_[-1] = ("{?", open_[-1][1])
    return lines


def _plain(kind: str, content: str) -> str:
    return str(tomllib.loads(f"x={content}")["x"]) if kind == "string" else content


def _note(lines: dict[KeyPath, int], prefix: KeyPath, key: KeyPath, line: int) -> None:
    for length in range(1, len(key) + 1):
        lines.setdefault(prefix + key[:length], line)


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of a key, else of the nearest table around it; 0 where there is none."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0
