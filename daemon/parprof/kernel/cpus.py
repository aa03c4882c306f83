"""Which CPUs the machine has, and may come to have."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path("/sys/devices/system/cpu")


def possible_cpus() -> int:
    """How many values each entry of a per-CPU map has."""
    return int((_FOLDER / "possible").read_text().strip().replace(",", "-").split("-")[-1]) + 1


def online_cpus() -> list[int]:
    """CPUs that are online now."""
    out: list[int] = []
    for part in (_FOLDER / "online").read_text().strip().split(","):
        first, _, last = part.partition("-")
        out.extend(range(int(first), int(last or first) + 1))
    return out
