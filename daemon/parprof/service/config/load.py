"""Reads the configuration: defaults < file < PARPROF_* in the environment < flags; refuses all that is unknown.

Every problem is one line that says where it is, which key it is about, and what to write instead.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from parprof.service.config.check import OF_ONE_FILE, across, check, from_text, nearest
from parprof.service.config.lines import key_lines, line_of
from parprof.service.config.schema import (
    DEFAULT_FILE,
    KEYS,
    TABLES,
    Config,
    ConfigError,
    ConfigKey,
    keys_of,
    value_of,
)
from parprof.untrusted import visible
from parprof.values import dataclass

OTHER_VARIABLES = frozenset({"PARPROF_CACHE", "PARPROF_SOCKET", "PARPROF_CONFIG"})
"""Environment variables of parprof that are no keys of the configuration."""
_MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and where each value came from. ``file``: empty where there is none."""

    config: Config
    origins: Mapping[str, str]
    """By key: ``default``, ``FILE:LINE``, ``PARPROF_X`` or ``--flag``."""
    file: str


def load(
    file: str = "", flags: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Loaded:
    """The configuration from all of its sources. ``flags``: texts by key.

    ``file``: what ``--config`` says; else PARPROF_CONFIG, else the default file if there is one.

    Raises:
        ConfigError: with all problems.
    """
    environment = os.environ if environment is None else environment
    given = file or environment.get("PARPROF_CONFIG", "")
    sources = _Sources()
    path = given or DEFAULT_FILE
    found = sources.read_file(path, must_exist=bool(given))
    sources.read_texts(_variables(environment, sources.problems))
    sources.read_texts((KEYS[key], KEYS[key].flag, text) for key, text in (flags or {}).items())
    config = sources.build()
    if sources.problems:
        raise ConfigError(sources.problems)
    return Loaded(config, sources.origins, path if found else "")


def _variables(environment: Mapping[str, str], problems: list[str]) -> Iterable[tuple[ConfigKey, str, str]]:
    known = {key.variable: key for key in KEYS.values() if not key.file_only}
    file_only = {f"PARPROF_{path.upper()}": path for path, table in TABLES.items() if table.about.file_only}
    for name, text in environment.items():
        if name in known:
            yield known[name], name, text
        elif name.startswith("PARPROF_") and name not in OTHER_VARIABLES:
            if table := next((path for start, path in file_only.items() if name.startswith(start)), ""):
                remedy = f"set [{table}] in the configuration file"
            else:
                near = difflib.get_close_matches(name, known, 1)
                remedy = f"did you mean {near[0]}?" if near else "unset it; --help lists those that are known"
            problems.append(f"environment: {visible(name, 80)} is unknown; {remedy}")


class _Sources:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = dict.fromkeys(KEYS, "default")
        self._wrong: set[str] = set()
        """Tables with a problem: what their other keys add up to is not known."""
        self._present: set[str] = set()
        """Tables that are in the file."""
        self._where: Callable[[str], str] = lambda path: ""
        """FILE:LINE of a path of the file."""

    def read_file(self, path: str, *, must_exist: bool) -> bool:
        shown = visible(path, 300)
        try:
            with open(path, "rb") as opened:
                raw = opened.read(_MAX_FILE + 1)
        except FileNotFoundError:
            if must_exist:
                self.problems.append(f"{shown}: there is no such file; --print-config writes one")
            return False
        except OSError as error:
            self.problems.append(f"{shown}: {error.strerror}; make it readable for parprofd")
            return False
        try:
            if len(raw) > _MAX_FILE:
                raise ValueError("is larger than 1 MiB: this is no configuration file")
            text = raw.decode()
            parsed = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            last = raw.rstrip().count(b"\n") + 1
            self.problems.append(_syntax(shown, error, last))
            return True
        lines = key_lines(text.replace("\r\n", "\n"))
        self._where = lambda key: f"{shown}:{line_of(lines, tuple(key.split('.')))}"
        for name, value in parsed.items():
            self._descend(name, value)
        return True

    def _descend(self, path: str, value: Any) -> None:
        if path in KEYS:
            self._take(KEYS[path], value, self._where(path))
        elif path not in TABLES:
            self._complain(path, f"unknown key{nearest(path, [*KEYS, *TABLES])}")
        elif not isinstance(value, dict):
            self._complain(path, f"is a table: write [{path}]")
        else:
            self._present.add(path)
            for name, inner in value.items():
                self._descend(f"{path}.{name}", inner)
            if TABLES[path].about.optional:
                self._miss(path, value)

    def _miss(self, path: str, table: Mapping[str, Any]) -> None:
        """Complain of the keys that such a table cannot do without."""
        for key in keys_of(path):
            if key.rule.filled and key.name not in table:
                self._complain(key.path, f"is missing; write it, such as {key.rule.sample}")

    def _complain(self, path: str, says: str) -> None:
        self._wrong.add(path.rpartition(".")[0])
        self.problems.append(f"{self._where(path)}: {visible(path, 120)}: {says}")

    def read_texts(self, texts: Iterable[tuple[ConfigKey, str, str]]) -> None:
        for key, origin, text in texts:
            try:
                value = from_text(key.kind, text)
            except ValueError:
                value = text if key.kind is not str else None
            self._take(key, value, origin)

    def _take(self, key: ConfigKey, value: Any, origin: str) -> None:
        problems, value = check(key, value)
        if problems:
            self._wrong.add(key.table)
            self.problems += [f"{origin}: {key.path}: {problem}" for problem in problems]
        else:
            self.values[key.path], self.origins[key.path] = value, origin

    def build(self) -> Config:
        """The configuration, defaults in place of what is wrong; with problems of values that do not go together."""
        config = self._construct(Config, "")
        assert isinstance(config, Config)
        for path, says in across(config):
            if path in OF_ONE_FILE or not {path, path.rpartition(".")[0]} & self._wrong:
                self.problems.append(f"{self.origins.get(path) or self._where(path)}: {path}: {says}")
        return config

    def _construct(self, kind: Any, prefix: str) -> Any:
        arguments: dict[str, Any] = {}
        for one in fields(kind):
            path = prefix + one.name
            if path in self.values:
                arguments[one.name] = self.values[path]
            elif path in TABLES:
                table = TABLES[path]
                if path in self._present or not table.about.optional:
                    arguments[one.name] = self._construct(table.kind, path + ".")
        return kind(**arguments)


def _syntax(shown: str, error: Exception, last_line: int) -> str:
    text = str(error).replace("(at end of document)", f"(at line {last_line}, column end)")
    text = "is nested too deeply" if isinstance(error, RecursionError) else text
    if isinstance(error, UnicodeDecodeError):
        text = "is not UTF-8"
    place = re.search(r" \(at line (\d+), column (\w+)\)", text)
    if place is None:
        return f"{shown}: {text}"
    return f"{shown}:{place[1]}: column {place[2]}: {text[: place.start()]}; see https://toml.io for how to write it"


def changed_keys(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """(keys that differ and can be applied now, keys that differ and need a restart).

    A table that may be left out is told as one, and needs a restart.
    """
    whole = [path for path, table in TABLES.items() if table.about.optional]
    apart = [path for path, key in KEYS.items() if key.table not in whole]
    changed = [path for path in (*apart, *whole) if value_of(old, path) != value_of(new, path)]
    later = [path for path in changed if path in whole or KEYS[path].rule.restart]
    return [path for path in changed if path not in later], later
