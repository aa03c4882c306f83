"""Profiles of inputs as JSON: what ``--json`` prints, ``-o`` writes and ``parprof report`` reads again."""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import zlib
from contextlib import nullcontext
from typing import IO, Any

from parprof.errors import ProfileFormatError
from parprof.input.answer import Line, advice, is_sure, lines
from parprof.input.fit import Fit
from parprof.input.model import BLOCKS, NANOSECONDS, InputProfile, Point, RoutineName
from parprof.untrusted import chunks, open_regular, visible

KIND = "parprof input"
SCHEMA = 1
_MAX_BYTES = 1 << 30
_START_BYTES = 4096
_GZIP = b"\x1f\x8b"
_COUNTS = (
    "calls", "trms_sum", "rms_sum", "induced", "external", "cost_sum", "cost_max", "self_cost",
    "time_sum_ns", "time_max_ns", "unfinished", "inner_cost",
)  # fmt: skip
_MISSING = {"inner_cost": 0}
"""What older files do not have."""


def as_json(profile: InputProfile, shown: list[Line] | None = None) -> dict[str, Any]:
    """The profile as JSON has it; the routines of ``shown`` only, if that is given."""
    found = lines(profile) if shown is None else shown
    whole = profile.first + profile.induced + profile.external
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "command": profile.command,
        "tool": profile.tool,
        "cost_unit": profile.cost_unit,
        "advice": advice(found),
        "routines": [_routine(line) for line in found],
        "totals": {
            "input_volume": _rounded(profile.input_volume),
            "thread_induced_percent": _rounded(100 * profile.induced / whole if whole else 0),
            "external_percent": _rounded(100 * profile.external / whole if whole else 0),
            "first": profile.first,
            "thread_induced": profile.induced,
            "external": profile.external,
            "threads": profile.threads,
            "processes": profile.processes,
            "runs": profile.runs,
        },
        "coverage": {
            "seen_read_bytes": profile.seen_read_bytes,
            "all_read_bytes": profile.all_read_bytes,
            "counted_by": profile.counted_by,
            "seen_sent_bytes": profile.seen_sent_bytes,
            "all_sent_bytes": profile.all_sent_bytes,
        },
        "notes": profile.notes,
    }


def _routine(line: Line) -> dict[str, Any]:
    routine = line.routine
    identity = routine.identity
    return {
        "name": identity.name,
        "module": identity.module,
        "file": identity.file,
        "line": identity.line,
        "callers": list(identity.callers),
        "thread": identity.thread,
        "calls": line.total.calls,
        "cost_percent": _rounded(line.cost_percent),
        "inclusive_percent": _rounded(line.inclusive_percent),
        "thread_induced_percent": _rounded(line.thread_percent),
        "external_percent": _rounded(line.external_percent),
        "profile_richness": _rounded(routine.profile_richness),
        "input_volume": _rounded(routine.input_volume),
        "calls_by_thread": {str(thread): calls for thread, calls in sorted(routine.by_thread.items())},
        "fit": _fit(line.law, "trms"),
        "fit_rms": _fit(line.rms_law, "rms"),
        "points": [_point(routine.points[key]) for key in sorted(routine.points)],
    }


def _point(point: Point) -> dict[str, Any]:
    out: dict[str, Any] = {"rms": point.rms, "trms": point.trms, "cost_mean": _rounded(point.cost_mean)}
    out.update((name, getattr(point, name)) for name in _COUNTS)
    return out


def _fit(found: Fit, metric: str) -> dict[str, Any]:
    out: dict[str, Any] = {"metric": metric, "model": found.model or None, "r2": _rounded(found.r2)}
    out["sure"] = is_sure(found)
    if not found.is_found:
        out["reason"] = found.reason
        if found.factor:
            out["factor"] = _rounded(found.factor)
        return out
    error = found.exponent_error
    out["error"] = _rounded(found.error)
    out["exponent"] = _rounded(found.exponent)
    out["exponent_error"] = _rounded(error) if math.isfinite(error) else None
    out["sizes"] = found.n_sizes
    out["range"] = [found.smallest, found.largest]
    out["tenfold"] = _rounded(found.tenfold)
    out["fixed"] = _rounded(found.fixed)
    out["at_worst"] = found.at_worst
    return out


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def write(profile: InputProfile, file: IO[bytes], *, compressed: bool) -> None:
    """Write it to a binary file."""
    data = json.dumps(as_json(profile), separators=(",", ":")).encode()
    file.write(gzip.compress(data, 6, mtime=0) if compressed else data + b"\n")


def is_saved(path: str) -> bool:
    """Whether a file (``-``: standard input) is such a profile, as far as its beginning tells. Never raises."""
    try:
        if path == "-":
            peek = getattr(sys.stdin.buffer, "peek", None)
            return peek is not None and _is_start(peek(_START_BYTES))
        with open(open_regular(path), "rb") as file:
            return _is_start(file.read(_START_BYTES))
    except (OSError, ValueError):
        return False


def _is_start(start: bytes) -> bool:
    if start.startswith(_GZIP):
        try:
            start = zlib.decompressobj(31).decompress(start, 256)
        except zlib.error:
            return False
    plain = start[:200].translate(None, b" \n")
    return plain.startswith(f'{{"kind":"{KIND}"'.replace(" ", "").encode())


def read(path: str) -> InputProfile:
    """The profile in a file (``-``: standard input).

    Raises:
        ProfileFormatError: it cannot be read, or is none.
    """
    try:
        source = nullcontext(sys.stdin.buffer) if path == "-" else open(open_regular(path), "rb")
        with source as file:
            data = b"".join(chunks(file, _MAX_BYTES))
        if data.startswith(_GZIP):
            unpacker = zlib.decompressobj(31)
            data = unpacker.decompress(data, _MAX_BYTES)
        return decode(json.loads(data))
    except OSError as error:
        raise ProfileFormatError(
            f"cannot read {visible(os.fspath(path))}: {error.strerror or error}"
        ) from error
    except (ValueError, zlib.error, RecursionError) as error:
        raise ProfileFormatError(
            f"cannot read {visible(os.fspath(path))}: not what parprof input writes"
        ) from error


def decode(data: object) -> InputProfile:
    """The profile in what JSON held.

    Raises:
        ValueError: it is none.
    """
    top = _dict(data)
    if top.get("kind") != KIND or top.get("schema") != SCHEMA:
        raise ValueError("another kind of file")
    unit = top.get("cost_unit")
    totals, seen = _dict(top.get("totals")), _dict(top.get("coverage"))
    profile = InputProfile(
        command=_text(top.get("command")),
        tool=_text(top.get("tool")),
        cost_unit=unit if unit in (BLOCKS, NANOSECONDS) else BLOCKS,
        first=_number(totals.get("first")),
        induced=_number(totals.get("thread_induced")),
        external=_number(totals.get("external")),
        threads=_number(totals.get("threads")),
        processes=_number(totals.get("processes")),
        runs=_number(totals.get("runs")),
        seen_read_bytes=_number(seen.get("seen_read_bytes")),
        seen_sent_bytes=_number(seen.get("seen_sent_bytes")),
        all_read_bytes=_known(seen.get("all_read_bytes")),
        all_sent_bytes=_known(seen.get("all_sent_bytes")),
        counted_by=counted_by if (counted_by := seen.get("counted_by")) in ("bpf", "tool") else "proc",
        notes=[_text(note) for note in _list(top.get("notes"))],
    )
    for item in _list(top.get("routines")):
        _take_routine(profile, _dict(item))
    return profile


def _take_routine(profile: InputProfile, item: dict[str, Any]) -> None:
    name, module, file = _text(item.get("name")), _text(item.get("module")), _text(item.get("file"))
    callers = tuple(_text(caller) for caller in _list(item.get("callers", [])))
    number = item.get("thread")
    of_thread = None if number is None else _number(number)
    routine = profile.routine(RoutineName(name, module, file, _number(item.get("line")), callers, of_thread))
    for point in map(_dict, _list(item.get("points"))):
        counts = {count: _number(point.get(count, _MISSING.get(count))) for count in _COUNTS}
        if counts["calls"]:
            routine.add(Point(_number(point.get("trms")), _number(point.get("rms")), **counts))
    for thread, calls in _dict(item.get("calls_by_thread")).items():
        if thread.isdecimal() and len(thread) < 6:
            routine.by_thread[int(thread)] = _number(calls)


def _dict(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return visible(value)


def _known(value: object) -> int | None:
    return None if value is None else _number(value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 70:
        raise ValueError("not a count")
    return value
