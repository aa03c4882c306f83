"""[push] as the pusher takes it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from parprof.errors import UsageError
from parprof.service.config.schema import Push, StoreTable
from parprof.service.push.config import PROTOCOLS, PushConfig, StoreConfig
from parprof.service.push.labels import clean, is_label_name
from parprof.service.push.transport import Endpoint, StoreClient

MAX_LABELS = 16
"""Fixed labels at most: Pyroscope takes 30 in all."""


def push_config(push: Push) -> PushConfig:
    """What is pushed, and where to.

    Raises:
        UsageError: a store cannot be spoken to here.
    """
    return PushConfig(
        stores=tuple(_store(kind, table) for kind, table in _stores(push)),
        spool=Path(push.spool),
        spool_bytes=push.spool_bytes,
        max_age_s=push.max_age_s,
        labels=_fixed_labels(push.labels),
        process_labels=push.process_labels,
        service=push.service,
    )


def push_problems(push: Push) -> Iterator[tuple[str, str]]:
    """What single values do not tell: (key, what is wrong)."""
    for name in push.labels:
        if not is_label_name(name):
            yield "push.labels", f"{clean(name)!r} is no label name; use letters, digits and underscores"
    if (number := len(_fixed_labels(push.labels))) > MAX_LABELS:
        yield "push.labels", f"there are {number} labels; {MAX_LABELS} are the most"
    for kind, table in _stores(push):
        try:
            StoreClient(_store(kind, table).endpoint).close()  # sends nothing
        except UsageError as error:
            yield f"push.{kind}", str(error)


def _stores(push: Push) -> list[tuple[str, StoreTable]]:
    return [(kind, table) for kind in PROTOCOLS if (table := getattr(push, kind)) is not None]


def _store(kind: str, table: StoreTable) -> StoreConfig:
    endpoint = Endpoint(**{one.name: getattr(table, one.name) for one in fields(Endpoint)})
    return StoreConfig(PROTOCOLS[kind][table.protocol](), endpoint)


def _fixed_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {"node": clean(socket.gethostname())} | {name: clean(value) for name, value in labels.items()}
