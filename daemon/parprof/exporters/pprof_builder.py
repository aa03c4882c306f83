"""Builds pprof files of any kind: columns of any units, call paths, labels. What the columns mean is the caller's.

Strings, functions, locations and mappings are written once each, in the order in which they are first needed, so
equal calls make equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parprof import pprof_pb2 as pb
from parprof.exporters.pprof_header import LOOP_SYSTEM_NAME
from parprof.exporters.pprof_private import HiddenLoop
from parprof.model import Frame, Path

_NS = 10**9


class PprofBuilder:
    """A pprof message that grows. ``out`` is complete after `finish`."""

    def __init__(
        self, columns: Iterable[tuple[str, str]], default_column: str = "", *, loops: bool = True
    ) -> None:
        """``columns``: type and unit of each, such as ``("work", "nanoseconds")``.

        ``default_column``: the type that other tools show first. ``loops``: whether loops are frames.
        """
        self.hidden_loops: dict[int, list[HiddenLoop]] = {}
        """By location, if they are none."""
        self._with_loops = loops
        self.out = pb.Profile()
        self._strings: dict[str, int] = {"": 0}
        self._mappings: dict[tuple[str, str], pb.Mapping] = {}
        self._functions: dict[tuple[str, str, int, bool], int] = {}
        self._locations: dict[tuple[Frame, ...], int] = {}
        for name, unit in columns:
            self.out.sample_type.add(type=self.text(name), unit=self.text(unit))
        self._carry = [0.0] * len(self.out.sample_type)
        self.out.default_sample_type = self.text(default_column)

    def period(self, kind: str, unit: str, period: int) -> None:
        """What elapses between two samples, and how much of it."""
        self.out.period_type.type = self.text(kind)
        self.out.period_type.unit = self.text(unit)
        self.out.period = period

    def times(self, start_s: float, duration_s: float) -> None:
        """When it began, in seconds since the epoch, and how long it took."""
        self.out.time_nanos = _nanoseconds(start_s)
        self.out.duration_nanos = _nanoseconds(duration_s)

    def comment(self, line: str) -> None:
        """Add a line about the whole."""
        self.out.comment.append(self.text(line))

    def sample(self, path: Path, values: Sequence[float], labels: Iterable[tuple[str, str | int]]) -> None:
        """Add a sample with one value for each column. Labels are texts or numbers."""
        whole = [self._whole(column, value) if value else 0 for column, value in enumerate(values)]
        out = self.out.sample.add(location_id=self.path(path), value=whole)
        for key, value in labels:
            if isinstance(value, int):
                out.label.add(key=self.text(key), num=value)
            else:
                out.label.add(key=self.text(key), str=self.text(value))

    def text(self, text: str) -> int:
        """The index of a string. What UTF-8 cannot hold (undecodable file names) is spelled out."""
        clean = _clean(text)
        return self._strings.setdefault(clean, len(self._strings))

    def path(self, path: Path) -> list[int]:
        """The location ids of a call path (root first), leaf first."""
        return [self._location(group) for group in _locations(path)]

    def mapping(self, frame: Frame) -> int:
        """The id of the file that a frame is in; 0 where that is not known. Readers take the first for the program."""
        key = (frame.module, frame.build_id)
        if key == ("", ""):
            return 0
        mapping = self._mappings.get(key)
        if mapping is None:
            mapping = self._mappings[key] = self.out.mapping.add(
                id=len(self._mappings) + 1,
                filename=self.text(frame.module),
                build_id=self.text(frame.build_id),
                has_functions=True,
                has_filenames=True,
                has_line_numbers=True,
                has_inline_frames=True,
            )
        # Readers join mappings that touch; an end that is not 0 keeps ours, which all start at 0, apart.
        mapping.memory_limit = max(mapping.memory_limit, min(frame.address + 1, 2**64 - 1))
        return mapping.id

    def finish(self) -> pb.Profile:
        """The message, with its strings."""
        self.out.string_table.extend(self._strings)
        return self.out

    def _whole(self, column: int, value: float) -> int:
        """Round, and hand the rest on to the column's next value, so that the column's total is right."""
        if isinstance(value, int):
            return value
        exact = value + self._carry[column]
        whole = round(exact)
        self._carry[column] = exact - whole
        return whole

    def _location(self, group: tuple[Frame, ...]) -> int:
        """The id of an address: a function, after what is inlined into it there (innermost first)."""
        number = self._locations.get(group)
        if number is None:
            number = self._locations[group] = len(self._locations) + 1
            outer = group[-1]
            out = self.out.location.add(id=number, mapping_id=self.mapping(outer), address=outer.address)
            shown = self._without_loops(number, group)
            for frame in shown:
                out.line.add(function_id=self._function(frame), line=frame.line)
        return number

    def _without_loops(self, number: int, group: tuple[Frame, ...]) -> Sequence[Frame]:
        """The frames of a location that other tools see: its functions."""
        functions = [frame for frame in group if not frame.is_loop]
        if self._with_loops or not functions or len(functions) == len(group):
            return group
        self.hidden_loops[number] = [
            HiddenLoop(position, _clean(frame.name), _clean(frame.file), frame.line, frame.start_line)
            for position, frame in enumerate(group)
            if frame.is_loop
        ]
        return functions

    def _function(self, frame: Frame) -> int:
        key = (frame.name, frame.file, frame.start_line, frame.is_loop)
        number = self._functions.get(key)
        if number is None:
            number = self._functions[key] = len(self._functions) + 1
            name = self.text(frame.name)
            self.out.function.add(
                id=number,
                name=name,
                system_name=self.text(LOOP_SYSTEM_NAME) if frame.is_loop else name,
                filename=self.text(frame.file),
                start_line=frame.start_line,
            )
        return number


def _locations(path: Path) -> list[tuple[Frame, ...]]:
    """Split a path (root first) into its addresses, leaf first; inlined frames go with their function."""
    groups: list[list[Frame]] = []
    open_group = False
    for frame in reversed(path):
        if open_group and _place(groups[-1][-1]) == _place(frame):
            groups[-1].append(frame)
        else:
            groups.append([frame])
        open_group = frame.inlined
    return [tuple(group) for group in groups]


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _place(frame: Frame) -> tuple[int, str, str]:
    return frame.address, frame.module, frame.build_id


def _nanoseconds(seconds: float) -> int:
    """Exact to the nanosecond, where ``round(seconds * 1e9)`` is not."""
    whole, part = divmod(seconds, 1)
    return int(whole) * _NS + round(part * _NS)
