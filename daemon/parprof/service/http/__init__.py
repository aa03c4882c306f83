"""The daemon over HTTP: metrics, health, profiles, flame graphs and a status page. Read-only."""

from __future__ import annotations

from parprof.service.http.server import HttpServer

__all__ = ["HttpServer"]
