"""Reads the configuration: defaults < file < PARPROF_* in the environment < flags; refuses all that is unknown.

Every problem is one line that says where it is, which key it is about, and what to write instead.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from parprof.errors import UsageError
from parprof.service.config.check import across, check, from_text, nearest, read_secret
from parprof.service.config.lines import key_lines, line_of
from parprof.service.config.schema import DEFAULT_FILE, KEYS, Config, ConfigError, Key, value_of
from parprof.service.push.config import PushConfig, from_table
from parprof.service.push.transport import Endpoint
from parprof.untrusted import visible

__all__ = ["Loaded", "changed_keys", "load", "read_secret"]

OTHER_VARIABLES = frozenset({"PARPROF_CACHE", "PARPROF_SOCKET", "PARPROF_CONFIG"})
"""Environment variables of parprof that are no keys of the configuration."""
_MAX_FILE = 1 << 20
_PUSH_NOW = "push.interval_s"
"""The one key of [push] that a reload applies."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and where each value came from. ``file``: empty where there is none."""

    config: Config
    origins: Mapping[str, str]
    """By key: ``default``, ``FILE:LINE``, ``PARPROF_X`` or ``--flag``."""
    file: str
    push_table: Mapping[str, Any]
    """[push] as it is in the file."""


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
    reader = _Reader()
    path = given or DEFAULT_FILE
    found = reader.read_file(path, must_exist=bool(given))
    reader.read_texts(_variables(environment, reader.problems))
    reader.read_texts((KEYS[key], KEYS[key].flag, text) for key, text in (flags or {}).items())
    config = reader.build()
    if config is None or reader.problems:
        raise ConfigError(reader.problems)
    return Loaded(config, reader.origins, path if found else "", reader.push_table)


def _variables(environment: Mapping[str, str], problems: list[str]) -> Iterable[tuple[Key, str, str]]:
    known = {key.variable: key for key in KEYS.values()}
    for name, text in environment.items():
        if name in known:
            yield known[name], name, text
        elif name.startswith("PARPROF_") and name not in OTHER_VARIABLES:
            if name.startswith("PARPROF_PUSH"):
                remedy = "set [push] in the configuration file"
            else:
                near = difflib.get_close_matches(name, known, 1)
                remedy = f"did you mean {near[0]}?" if near else "unset it; --help lists those that are known"
            problems.append(f"environment: {visible(name, 80)} is unknown; {remedy}")


class _Reader:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = dict.fromkeys(KEYS, "default")
        self.push_table: Mapping[str, Any] = {}
        self._push = from_table({})
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
            if name == "push" and isinstance(value, dict):
                self._read_push(value)
            else:
                self._descend(name, value)
        return True

    def _descend(self, path: str, value: Any) -> None:
        if path in KEYS:
            self._take(KEYS[path], value, self._where(path))
        elif not any(key.startswith(path + ".") for key in KEYS) and path != "push":
            self._complain(path, f"unknown key{nearest(path, [*KEYS, 'push'])}")
        elif not isinstance(value, dict):
            self._complain(path, f"is a table: write [{path}]")
        else:
            for name, inner in value.items():
                self._descend(f"{path}.{name}", inner)

    def _read_push(self, table: Mapping[str, Any]) -> None:
        self.push_table = table
        stores = [name for name, value in table.items() if isinstance(value, dict) and name != "labels"]
        top = [one.name for one in fields(PushConfig) if one.name != "stores"]
        known = [f"push.{name}" for name in (*top, "pyroscope", "parca", "otlp")]
        inner = ("protocol", *(one.name for one in fields(Endpoint)))
        paths = [f"push.{name}" for name in table]
        for store in stores:
            known += [f"push.{store}.{name}" for name in inner] if f"push.{store}" in known else []
            paths += [f"push.{store}.{name}" for name in table[store] if f"push.{store}" in known]
        unknown = [path for path in paths if path not in known]
        for path in unknown:
            self._complain(path, f"unknown key{nearest(path, known)}")
        if unknown:
            return
        try:
            self._push = from_table(table)
        except UsageError as error:
            key = re.match(r"push[\w.]*\w", str(error))
            self.problems.append(f"{self._where(key[0] if key else 'push')}: {error}")

    def _complain(self, path: str, says: str) -> None:
        self.problems.append(f"{self._where(path)}: {visible(path, 120)}: {says}")

    def read_texts(self, texts: Iterable[tuple[Key, str, str]]) -> None:
        for key, origin, text in texts:
            try:
                value = from_text(key.kind, text)
            except ValueError:
                value = text if key.kind is not str else None
            self._take(key, value, origin)

    def _take(self, key: Key, value: Any, origin: str) -> None:
        problem, value = check(key, value)
        if problem:
            self.problems.append(f"{origin}: {key.path}: {problem}")
        else:
            self.values[key.path], self.origins[key.path] = value, origin

    def build(self) -> Config | None:
        if self.problems:
            return None
        config = _construct(Config, "", self.values, self._push)
        assert isinstance(config, Config)
        for path, says in across(config):
            origin = self.origins[path]
            self.problems.append(f"{origin}: {path}: {says}")
        return config


def _construct(kind: Any, prefix: str, values: Mapping[str, Any], push: PushConfig) -> Any:
    arguments: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        path = prefix + name
        if path in KEYS:
            arguments[name] = values.get(path, KEYS[path].default)
        else:
            arguments[name] = push if path == "push" else _construct(hint, path + ".", values, push)
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
    """(keys that differ and can be applied now, keys that differ and need a restart)."""
    changed = [path for path in KEYS if value_of(old, path) != value_of(new, path)]
    now = [path for path in changed if not KEYS[path].rule.restart]
    later = [path for path in changed if KEYS[path].rule.restart]
    was, will_be = _push_values(old.push), _push_values(new.push)
    for path in {**was, **will_be}:
        if was.get(path) != will_be.get(path):
            (now if path == _PUSH_NOW else later).append(path)
    return now, later


def _push_values(push: PushConfig) -> dict[str, object]:
    """[push] by path: its keys, and each store as one."""
    values = {f"push.{one.name}": getattr(push, one.name) for one in fields(push) if one.name != "stores"}
    return values | {f"push.{one.backend.name}": (type(one.backend), one.endpoint) for one in push.stores}
