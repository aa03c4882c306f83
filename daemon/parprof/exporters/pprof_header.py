"""What a pprof file of ours says besides its samples: names of labels, and ``key: value`` comment lines."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from parprof import pprof_pb2 as pb
from parprof.attribution.concurrency import RANGES, range_name
from parprof.errors import ProfileFormatError
from parprof.metrics import IDLENESS
from parprof.model import Accounting, ProcessInfo, Profile
from parprof.patterns import regex

SCHEMA = 1

SCALE_KIND = "kind: scale"
"""Comment of files of work and span (`scale_pprof`), which are no profiles of idleness."""

PHYSICAL = "physical"
LOGICAL = "logical"
"""What the paths are that `pprof_private` keeps beside those of ``location_id``. In files of before it is a label, its
value location ids, leaf first, with blanks between them."""

LOCATIONS = "locations"
"""Comment of files from before: a checksum of the locations, of which labels spoke."""

DEFAULT_SAMPLE_TYPE = IDLENESS.name

LEVEL_COLUMNS = (
    ("elapsed", "nanoseconds"),
    *(
        (f"work_at_{range_name(*ends).replace('-', '_').replace('+', '_up')}", "nanoseconds")
        for ends in RANGES[1:]
    ),
)
"""Type and unit of the columns that hold the elements of rows' `Levels`."""

OWN_LABELS = frozenset({"pid", "comm", "thread", "runtime", "overhead", PHYSICAL, LOGICAL})
"""Labels that say where a sample is from. Further ones are the user's, see `is_label_name`."""

LOOP_SYSTEM_NAME = "parprof:loop"
"""``system_name`` of the functions that stand for loops, where these are frames (``--loops``, and files of before)."""

_UNSAFE = regex("[\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNSAFE_IN_KEY = regex("[:\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPE = regex(r"\\(\\|u[0-9a-f]{4})")
_LABEL_NAME = regex("[a-zA-Z_][a-zA-Z0-9_]{0,63}")
_MAX_INT = 2**63 - 1
_TERMS = ("cores", "elapsed_s", "work_s", "ready_s", "stolen_s", "idleness_s", "stall_s")


def is_label_name(name: str) -> bool:
    """Whether users may call a label so."""
    return _LABEL_NAME.fullmatch(name) is not None and name not in OWN_LABELS


def checksum(locations: Iterable[pb.Location]) -> str:
    """What `LOCATIONS` says of these."""
    value = 0
    for location in locations:
        value = zlib.crc32(location.SerializeToString(deterministic=True), value)
    return f"{value:08x}"


def to_comments(profile: Profile) -> list[str]:
    """The comment lines of a profile. No value can break out of its line."""
    process = profile.process
    pairs = [
        ("schema", str(SCHEMA)),
        ("command", process.command),
        ("pid", str(process.pid)),
        ("comm", process.comm),
        ("runtime", process.runtime),
        ("cores", str(process.cores)),
        ("n_w_source", process.n_w_source),
        ("frequency_hz", str(profile.frequency_hz)),
        ("event", profile.event),
        ("duration_s", repr(float(profile.duration_s))),
        ("cost.target_percent", repr(float(profile.target_cost_percent))),
        ("cost.daemon_percent", repr(float(profile.daemon_cost_percent))),
        *((f"lost.{reason}", str(count)) for reason, count in profile.lost.items()),
        *(("note", note) for note in profile.notes),
    ]
    return [_line(key, value) for key, value in pairs]


def to_private_comments(profile: Profile) -> list[str]:
    """Those that are nothing for readers of other tools, see `pprof_private`."""
    pairs = [
        *(("accounting", json.dumps(asdict(one))) for one in (profile.accounting,) if one is not None),
        *(("process", json.dumps(asdict(one))) for one in profile.processes),
        *((f"extra.{key}", value) for key, value in profile.extra.items()),
    ]
    return [_line(key, value) for key, value in pairs]


def _line(key: str, value: str) -> str:
    return f"{_UNSAFE_IN_KEY.sub(_escape, key)}: {_UNSAFE.sub(_escape, value)}"


def from_comments(comments: Iterable[str], start_ns: int, duration_ns: int) -> Profile:
    """A profile without samples. Lines of other tools are ignored, missing ones get defaults.

    Raises:
        ProfileFormatError: for a newer schema, or numbers that are none.
    """
    known: dict[str, str] = {}
    lost: dict[str, int] = {}
    notes: list[str] = []
    extra: dict[str, str] = {}
    processes: list[ProcessInfo] = []
    for comment in comments:
        key, _, value = (_ESCAPE.sub(_unescape, part) for part in comment.partition(": "))
        if key == "note":
            notes.append(value)
        elif key == "process":
            processes.append(_process(value))
        elif key.startswith("lost."):
            lost[key.removeprefix("lost.")] = _int(key, value)
        elif key.startswith("extra."):
            extra[key.removeprefix("extra.")] = value
        else:
            known[key] = value
    if _int("schema", known.get("schema", "1")) > SCHEMA:
        raise ProfileFormatError("the profile was written by a newer parprof; update this one to read it")
    process = ProcessInfo(
        pid=_int("pid", known.get("pid", "0")),
        comm=known.get("comm", ""),
        command=known.get("command", ""),
        runtime=known.get("runtime", "none"),
        cores=_int("cores", known.get("cores", "1")),
        n_w_source=known.get("n_w_source", "scheduler"),
    )
    return Profile(
        process=process,
        duration_s=_float("duration_s", known.get("duration_s", repr(duration_ns / 1e9))),
        frequency_hz=_int("frequency_hz", known.get("frequency_hz", "0")),
        samples=[],
        event=known.get("event", "cpu-clock"),
        lost=lost,
        target_cost_percent=_float("cost.target_percent", known.get("cost.target_percent", "0")),
        daemon_cost_percent=_float("cost.daemon_percent", known.get("cost.daemon_percent", "0")),
        notes=notes,
        extra=extra,
        start_time_s=start_ns / 10**9,
        accounting=_accounting(known["accounting"]) if "accounting" in known else None,
        processes=processes,
    )


def _object(key: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProfileFormatError(f"the profile is corrupt: its comment {key!r} is no JSON object")
    return found


def _process(text: str) -> ProcessInfo:
    found = _object("process", text)
    words = {name: str(found.get(name, "")) for name in ("comm", "command", "runtime", "n_w_source")}
    numbers = {name: _int("process", str(found.get(name, 0))) for name in ("pid", "cores", "others")}
    return ProcessInfo(**words, **numbers)  # type: ignore[arg-type]


def _accounting(text: str) -> Accounting:
    found = _object("accounting", text)
    counted, levels = found.get("counted_idleness_s"), found.get("level_s")
    return Accounting(
        **{name: _float("accounting", str(found.get(name, 0))) for name in _TERMS},
        counted_idleness_s=None if counted is None else _float("accounting", str(counted)),
        level_s=tuple(_float("accounting", str(one)) for one in levels) if isinstance(levels, list) else (),
    )


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return "\\\\" if char == "\\" else f"\\u{ord(char):04x}"


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return "\\" if code == "\\" else chr(int(code[1:], 16))


def _int(key: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= _MAX_INT:
        raise ProfileFormatError(f"the profile is corrupt: its comment {key[:40]!r} is not a count")
    return value


def _float(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ProfileFormatError(f"the profile is corrupt: its comment {key[:40]!r} is not a number")
    return value
