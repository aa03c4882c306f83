"""What values a key takes, what goes together, and what was meant by a key that does not exist."""

from __future__ import annotations

import difflib
import os
import ssl
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from parprof.errors import ParprofError, UsageError
from parprof.kernel.amounts import parse
from parprof.kernel.perf_events import parted
from parprof.service.config.push import push_problems
from parprof.service.config.schema import Config, ConfigKey, value_of
from parprof.service.http.address import (
    MIN_TOKEN,
    check_exposure,
    check_token,
    parse_address,
    tls_context,
    trust_clients_of,
)
from parprof.untrusted import visible

_MAX_SECRET = 4096
_SOME_TOKEN = "x" * MIN_TOKEN
"""In place of one whose file is wrong: one is meant to be there."""
_T = TypeVar("_T")
_TEXT_TO_BOOL = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KINDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: 'a text in quotes, such as "x"',
    tuple[str, ...]: 'a list of texts, such as ["x", "y"]',
    tuple[int, ...]: "a list of whole numbers, such as [1, 2]",
    Mapping[str, str]: 'a table of texts, such as { x = "y" }',
}


def nearest(path: str, known: Iterable[str]) -> str:
    """The end of a message: the known key that was meant, else those that there are."""
    known = list(known)
    heads = list(dict.fromkeys(key.partition(".")[0] for key in known))
    table, _, name = path.rpartition(".")
    same = [key for key in known if key.rpartition(".")[2] == name]
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == table}
    near = difflib.get_close_matches(name, siblings, 1) if table else []
    if table:
        close = [siblings[one] for one in near]
    else:
        close = [f"[{one}]" for one in difflib.get_close_matches(path, heads, 1)]
    close = close or same[:1]
    if not close and table not in known:  # else what is there is told, not the table that it is in
        close = difflib.get_close_matches(path, known, 1)
    if close:
        return f"; did you mean {close[0]}?"
    choices = list(siblings) or heads
    return f"; there are {', '.join(choices)}"


def from_text(kind: Any, text: str) -> Any:
    """A value as the environment and flags give it. Raises ValueError."""
    if kind is bool:
        if text.lower() not in _TEXT_TO_BOOL:
            raise ValueError
        return _TEXT_TO_BOOL[text.lower()]
    if kind in (int, float):
        return kind(text)
    if kind is str:
        return text
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return [int(part) for part in parts] if kind == tuple[int, ...] else parts


def check(key: ConfigKey, value: Any) -> tuple[Sequence[str], Any]:
    """All that is wrong, of a list with each of its values; and the value in its type, if nothing is."""
    kind = key.kind
    if kind == Mapping[str, str]:
        if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
            return (), value
        return (f"must be {_KINDS[kind]}",), None
    one = {tuple[str, ...]: str, tuple[int, ...]: int}.get(kind, kind)
    if kind != one and not isinstance(value, list):
        return (f"must be {_KINDS[kind]}",), None
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # such as 1e9
    values = value if kind != one else [value]
    problems = list(dict.fromkeys(filter(None, (_wrong(key, one, each) for each in values))))
    if problems:
        return problems, None
    return (), tuple(values) if kind != one else one(value)


def _wrong(key: ConfigKey, kind: Any, value: Any) -> str:
    """What is wrong with a value, or one of a list; ``kind``: of which it has to be. Empty: nothing."""
    allowed = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        return f"must be {_KINDS[key.kind]}, not {visible(repr(value), 60)}"
    if isinstance(value, str) and (not value.isprintable() or len(value) > 4096):
        return "has control characters or is too long"
    if key.rule.filled and not value:
        return "must not be empty"
    if key.rule.choices and value not in key.rule.choices:
        near = difflib.get_close_matches(str(value), key.rule.choices, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"must be {key.range}, not {visible(repr(value), 60)}{hint}"
    low, high = key.rule.low, key.rule.high
    if low is not None and high is not None and not low <= value <= high:
        return f"must be {key.range}, not {value!r}"
    return ""


OF_ONE_FILE = frozenset({"http.token_file", "http.client_ca"})
"""Keys of which `across` tells what a file lacks, whatever else its table says."""


def across(config: Config) -> Iterable[tuple[str, str]]:
    """What single values do not tell: (key, what is wrong)."""
    yield from _events(config.sampling.events)
    for name in ("comm", "uid", "cgroup", "container", "pid"):
        if config.select.mode == "all" and getattr(config.select.allow, name):
            yield f"select.allow.{name}", 'has no effect where select.mode is "all"; set it to "listed"'
    for path in ("control.socket", "http.token_file", "http.certificate", "http.key", "http.client_ca"):
        value = value_of(config, path)
        if value and not value.startswith("/"):
            yield path, "must be an absolute path, one that begins with /"
    if len(config.control.socket.encode()) > 107:
        yield "control.socket", "is too long for a socket: at most 107 bytes"
    if config.http.listen:
        yield from _http(config)
    yield from push_problems(config.push)


def _events(names: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Not whether this machine has them: that is known at the start, with privileges."""
    try:
        parted(names)
    except UsageError as error:
        yield "sampling.events", str(error)
    for amount in filter(None, map(parse, names)):
        yield (
            "sampling.events",
            f"{amount.name} is for `parprof record` and `attach`: it would slow down each system call of the machine",
        )
        return


def _http(config: Config) -> list[tuple[str, str]]:
    """All that is wrong: what one file lacks says nothing of the others."""
    http, found = config.http, list[tuple[str, str]]()
    certificate, key, client_ca = http.certificate, http.key, http.client_ca
    token = _tried(
        found, "http.token_file", lambda: check_token(read_secret(http.token_file)) if http.token_file else ""
    )
    where = "http.certificate" if certificate else "http.key"
    is_right = _tried(found, where, lambda: tls_context(certificate, key) is not None)
    if client_ca and is_right:
        _tried(found, "http.client_ca", lambda: tls_context(certificate, key, client_ca))
    elif client_ca and is_right is None:
        _tried(
            found,
            "http.client_ca",
            lambda: trust_clients_of(client_ca, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)),
        )
    _tried(
        found,
        "http.listen",
        lambda: check_exposure(
            parse_address(http.listen),
            _SOME_TOKEN if token is None else token,
            is_right is not False,  # with files that are wrong it is meant to have TLS
            client_ca=client_ca,
            metrics_for_all=http.metrics_for_all,
        ),
    )
    return found


def _tried(found: list[tuple[str, str]], path: str, what: Callable[[], _T]) -> _T | None:
    """What comes of it; None: it does not work, which is added to what was found."""
    try:
        return what()
    except ParprofError as error:
        found.append((path, str(error)))
        return None


def read_secret(path: str) -> str:
    """The secret in a file, without white space around it.

    Raises:
        UsageError: it cannot be read, is empty or huge, or everyone can read it.
    """
    shown = visible(path, 300)
    try:
        with Path(path).open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            raw = opened.read(_MAX_SECRET + 1)
    except OSError as error:
        raise UsageError(
            f"{shown}: {error.strerror}; write the secret there, readable for parprofd"
        ) from error
    if stat.S_IMODE(mode) & stat.S_IROTH:
        raise UsageError(f"{shown}: everyone can read this secret; chmod 0600 it, and choose a new one")
    try:
        text = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(raw) > _MAX_SECRET:
        raise UsageError(f"{shown}: must hold one line of ASCII; make one with: openssl rand -hex 32")
    return text
