"""Loops as text: between processes, and on disk. What comes back is not believed blindly."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from parprof.loops.nest import MAX_LOOPS, Loop, LoopNest
from parprof.untrusted import visible

MAX_NUMBERS = 1 << 18
"""Of one list of addresses."""
_MAX_ADDRESS = 1 << 64
_MAX_NOTES, _MAX_TEXT = 16, 500


def to_json(nest: LoopNest) -> dict[str, Any]:
    """Loops as they are kept; addresses as distances from the one before."""
    return {
        "loops": [[loop.header, loop.branches, loop.parent, loop.depth] for loop in nest.loops],
        "notes": nest.notes,
        "addresses": _distances(nest.addresses),
        "starts": _distances(nest.starts),
        "innermost": nest.innermost,
        "end": nest.end,
    }


def _distances(numbers: list[int]) -> list[int]:
    return [number - before for before, number in zip([0, *numbers], numbers, strict=False)]


def from_json(raw: Any) -> LoopNest:
    """The loops again.

    Raises:
        ValueError: these are none.
    """
    try:
        loops = [
            Loop(index, _address(header), tuple(map(_address, branches)), int(parent), int(depth))
            for index, (header, branches, parent, depth) in enumerate(raw["loops"])
        ]
        nest = LoopNest(
            loops,
            [visible(str(note), _MAX_TEXT) for note in raw["notes"][:_MAX_NOTES]],
            list(accumulate(map(int, raw["addresses"]))),
            list(accumulate(map(int, raw["starts"]))),
            [int(index) for index in raw["innermost"]],
            _address(raw["end"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("no loops") from error
    if len(loops) > MAX_LOOPS or len(nest.addresses) > MAX_NUMBERS or len(nest.innermost) != len(nest.starts):
        raise ValueError("no loops of a function")
    if not all(-1 <= index < len(loops) for index in nest.innermost):
        raise ValueError("a block in a loop that there is not")
    if not all(-1 <= loop.parent < loop.index for loop in loops):
        raise ValueError("a loop around itself")
    for numbers in (nest.addresses, nest.starts):
        inside = not numbers or (0 <= numbers[0] and numbers[-1] < nest.end)
        if not inside or any(before >= number for before, number in pairwise(numbers)):
            raise ValueError("code that is in no order")
    if nest.addresses[:1] != nest.starts[:1]:
        raise ValueError("code outside of the function")
    return nest


def _address(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < _MAX_ADDRESS:
        raise ValueError("no address")
    return value
