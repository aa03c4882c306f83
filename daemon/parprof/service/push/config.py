"""The ``[push]`` tables of the configuration file."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from parprof.errors import UsageError
from parprof.service.push.backend import Backend
from parprof.service.push.labels import DEFAULT_LABELS, PROCESS_LABELS, clean, is_label_name
from parprof.service.push.otlp import Otlp
from parprof.service.push.parca import Parca
from parprof.service.push.pyroscope import PyroscopeIngest, PyroscopePush
from parprof.service.push.transport import Endpoint

MAX_LABELS = 16
"""Fixed labels at most: Pyroscope takes 30 in all."""

_STORES: Mapping[str, Mapping[str, Callable[[], Backend]]] = {
    "pyroscope": {"push": PyroscopePush, "ingest": PyroscopeIngest},
    "parca": {"grpc-web": Parca},
    "otlp": {"http": Otlp},
}
"""Kinds of stores, and the protocols that each is spoken to in; the first one is the default."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One store: ``[push.pyroscope]``, ``[push.parca]`` or ``[push.otlp]``."""

    backend: Backend
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class PushConfig:
    """What is pushed, and where to."""

    stores: tuple[StoreConfig, ...] = ()
    spool: Path = Path("/var/lib/parprofd/push")
    spool_bytes: int = 256 << 20
    """For each store."""
    max_age_s: float = 3600.0
    """What has waited for longer is dropped. Pyroscope takes nothing older than an hour as it comes."""
    interval_s: float = 60.0
    """Of each process a profile is pushed so often."""
    labels: Mapping[str, str] = field(default_factory=dict)
    process_labels: tuple[str, ...] = DEFAULT_LABELS
    service: str = "comm"
    """The process label that names the service."""


def from_table(table: Mapping[str, Any]) -> PushConfig:
    """The configuration in a ``[push]`` table, as tomllib reads it.

    Raises:
        UsageError: with the key that is unknown or wrong.
    """
    stores = []
    for kind, protocols in _STORES.items():
        if kind in table:
            stores.append(_store(kind, protocols, table[kind]))
    _known("push", table, {*_STORES, *(one.name for one in fields(PushConfig) if one.name != "stores")})
    labels = _strings("push.labels", table.get("labels", {}))
    labels.setdefault("node", socket.gethostname())
    for name in labels:
        if not is_label_name(name):
            raise UsageError(
                f"push.labels: {clean(name)!r} is no label name; use letters, digits and underscores"
            )
    if len(labels) > MAX_LABELS:
        raise UsageError(f"push.labels: there are {len(labels)} labels; {MAX_LABELS} are the most")
    names = table.get("process_labels", list(DEFAULT_LABELS))
    if not isinstance(names, list) or not set(map(str, names)) <= set(PROCESS_LABELS):
        raise UsageError(f"push.process_labels is a list of some of {', '.join(PROCESS_LABELS)}")
    default = PushConfig()
    service = table.get("service", default.service)
    if service not in PROCESS_LABELS:
        raise UsageError(f"push.service is one of {', '.join(PROCESS_LABELS)}")
    return PushConfig(
        stores=tuple(stores),
        spool=Path(_string("push.spool", table.get("spool", str(default.spool)))),
        spool_bytes=int(
            _number("push.spool_bytes", table.get("spool_bytes", default.spool_bytes), 1 << 20, 1 << 40)
        ),
        max_age_s=_number("push.max_age_s", table.get("max_age_s", default.max_age_s), 1.0, 1e9),
        interval_s=_number("push.interval_s", table.get("interval_s", default.interval_s), 1.0, 3600.0),
        labels={name: clean(value) for name, value in labels.items()},
        process_labels=tuple(names),
        service=service,
    )


def _store(kind: str, protocols: Mapping[str, Callable[[], Backend]], table: Any) -> StoreConfig:
    where = f"push.{kind}"
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} is a table: [{where}]")
    _known(where, table, {"protocol", *(one.name for one in fields(Endpoint))})
    protocol = table.get("protocol", next(iter(protocols)))
    if protocol not in protocols:
        raise UsageError(f"{where}.protocol is one of {', '.join(protocols)}")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "timeout_s":
            values[key] = _number(f"{where}.{key}", value, 0.1, 300.0)
        elif key == "headers":
            values[key] = _strings(f"{where}.{key}", value)
        elif key != "protocol":
            values[key] = _string(f"{where}.{key}", value)
    if not values.get("url"):
        raise UsageError(f"{where}.url is missing; name the store's address, such as https://host:4040")
    return StoreConfig(protocols[protocol](), Endpoint(**values))


def _known(where: str, table: Mapping[str, Any], names: set[str]) -> None:
    for key in table:
        if key not in names:
            raise UsageError(f"{where}.{clean(str(key))} is unknown; there are {', '.join(sorted(names))}")


def _string(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where} is a text")
    return value


def _strings(where: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
        raise UsageError(f"{where} is a table of texts")
    return dict(value)


def _number(where: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UsageError(f"{where} is a number from {least:g} to {most:g}")
    return value
