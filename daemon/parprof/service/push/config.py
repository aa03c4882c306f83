"""What the pusher has to know: the stores, how each is spoken to, and what is sent there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from parprof.service.push.backend import Backend
from parprof.service.push.labels import DEFAULT_LABELS
from parprof.service.push.otlp import Otlp
from parprof.service.push.parca import Parca
from parprof.service.push.pyroscope import PyroscopeIngest, PyroscopePush
from parprof.service.push.transport import Endpoint
from parprof.values import dataclass

PROTOCOLS: Mapping[str, Mapping[str, Callable[[], Backend]]] = {
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
    labels: Mapping[str, str] = field(default_factory=dict)
    process_labels: tuple[str, ...] = DEFAULT_LABELS
    service: str = "comm"
    """The process label that names the service."""
