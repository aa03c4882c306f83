"""The table in which the programs count samples: read and emptied a phase at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from parprof.errors import KernelUnsupported
from parprof.kernel import bpf
from parprof.kernel.layout import flat_struct
from parprof.kernel.objects import LoadedObject
from parprof.model import Count, Facts, SampleKey, ThreadState, add_facts

_STATES = tuple(ThreadState)
_STATE = SampleKey._fields.index("state")
_OWN_FIELDS = ("phase", "unsure", "fresh", "slice")
"""Fields of ``struct sample_key`` that are no part of a `SampleKey`."""
_PATIENCE = 8
"""Drains that a sample waits for its stack, which found no room in the ring and comes with a later sample."""


ByTime = dict[int, Facts]
"""Facts by when they came: by the beginning of the slice of time, ns, in which they were counted."""


def together(by_time: ByTime) -> Facts:
    """All of them, whenever they came. ``by_time`` stays as it is, and may share its values."""
    if len(by_time) == 1:
        (facts,) = by_time.values()
        return facts
    out: Facts = {}
    for facts in by_time.values():
        for key, count in facts.items():
            out.setdefault(key, Count()).add(count)
    return out


class SampleDecoder:
    """Reads ``struct sample_key`` and ``struct sample_value`` as the compiled object has them."""

    def __init__(self, key: type[ctypes.Structure], value: type[ctypes.Structure]) -> None:
        """``key`` and ``value``: the layouts.

        Raises:
            KernelUnsupported: the key's fields are not those of `SampleKey`.
        """
        names = [field[0] for field in key._fields_]
        if sorted(names) != sorted((*SampleKey._fields, *_OWN_FIELDS)):
            raise KernelUnsupported(f"struct sample_key and SampleKey differ: {', '.join(names)}")
        self._unpack_key, self._unpack_value = flat_struct(key).unpack, flat_struct(value).unpack
        self._pick = itemgetter(*(names.index(name) for name in SampleKey._fields))
        self._phase, self._unsure = names.index("phase"), names.index("unsure")
        self._fresh, self._slice = names.index("fresh"), names.index("slice")
        values = [field[0] for field in value._fields_]
        self._samples, self._total = values.index("count"), values.index("total")

    def decode(
        self, entries: Iterable[tuple[bytes, bytes]], phase: int
    ) -> Iterator[tuple[bytes, SampleKey, Count, int, int]]:
        """The entries of a phase: each with its key as it was, how many of its innermost frames are new, and the slice
        of the time that it came in."""
        make = SampleKey._make
        for raw_key, raw_value in entries:
            fields = self._unpack_key(raw_key)
            if fields[self._phase] == phase:
                key = list(self._pick(fields))
                key[_STATE] = _STATES[key[_STATE]]
                value = self._unpack_value(raw_value)
                samples = value[self._samples]
                count = Count(samples, value[self._total], samples if fields[self._unsure] else 0)
                yield raw_key, make(key), count, fields[self._fresh], fields[self._slice]


class CountTable:
    """Takes the counts out, and holds back those whose stack is yet to come."""

    def __init__(
        self,
        loaded: LoadedObject,
        is_known: Callable[[int], bool],
        note_fresh: Callable[[int, SampleKey, int, int], None] = lambda at_ns, key, fresh, samples: None,
    ) -> None:
        """``is_known``: whether there is a stack of that id. ``note_fresh`` is told of samples with new frames."""
        self._note_fresh = note_fresh
        self._object = loaded
        self._decoder = SampleDecoder(loaded.layouts["sample_key"], loaded.layouts["sample_value"])
        self._is_known = is_known
        self._waiting: list[tuple[int, int, SampleKey, Count]] = []
        self.without_stack = 0
        """Samples that were given out without their stack, which never came."""

    def take(self, phase: int, slice_ns: int = 0) -> ByTime:
        """Read and delete what was counted in a phase, which the programs must have left.

        ``slice_ns``: how long a slice of the time took in it; 0: it was in one.
        """
        definition, fd = self._object.definitions["counts"], self._object.maps["counts"]
        entries = bpf.map_read_all(fd, definition["key_size"], definition["value_size"])
        by_time: ByTime = {}
        seen = []
        for raw_key, key, count, fresh, number in self._decoder.decode(entries, phase):
            seen.append(raw_key)
            at_ns = number * slice_ns
            if fresh:
                self._note_fresh(at_ns, key, fresh, count.samples)
            known = by_time.setdefault(at_ns, {}).setdefault(key, count)
            if known is not count:  # the same, but for whether it is sure
                known.add(count)
        bpf.map_delete_batch(fd, seen)
        return by_time

    def ready(self, by_time: ByTime, drain: int) -> ByTime:
        """Those of these facts, and of earlier ones, whose stacks are there, or have not come for too long."""
        is_known, waiting = self._is_known, self._waiting
        self._waiting, late = [], []
        ready: ByTime = {}
        for since, at_ns, key, count in waiting:
            if is_known(key.user) and is_known(key.kernel):
                add_facts(ready.setdefault(at_ns, {}), {key: count})
            elif drain - since < _PATIENCE:
                self._waiting.append((since, at_ns, key, count))
            else:
                late.append((at_ns, key, count))
        for at_ns, facts in by_time.items():
            found = ready.setdefault(at_ns, {})
            for key, count in facts.items():
                if not (is_known(key.user) and is_known(key.kernel)):
                    self._waiting.append((drain, at_ns, key, count))
                elif waiting:
                    add_facts(found, {key: count})
                else:
                    found[key] = count
        self._bare(ready, late)
        return ready

    def rest(self) -> ByTime:
        """Those that wait, without the stacks that have not come."""
        waiting, self._waiting = self._waiting, []
        out: ByTime = {}
        self._bare(out, (one[1:] for one in waiting))
        return out

    def _bare(self, out: ByTime, late: Iterable[tuple[int, SampleKey, Count]]) -> None:
        """Add these without their stacks."""
        for at_ns, key, count in late:
            self.without_stack += count.samples
            user = key.user if self._is_known(key.user) else 0
            kernel = key.kernel if self._is_known(key.kernel) else 0
            add_facts(out.setdefault(at_ns, {}), {key._replace(user=user, kernel=kernel): count})
