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
_OWN_FIELDS = ("phase", "unsure", "fresh", "reserved")
"""Fields of ``struct sample_key`` that are no part of a `SampleKey`."""
_PATIENCE = 8
"""Drains that a sample waits for its stack, which found no room in the ring and comes with a later sample."""


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
        self._fresh = names.index("fresh")
        values = [field[0] for field in value._fields_]
        self._samples, self._total = values.index("count"), values.index("total")

    def decode(
        self, entries: Iterable[tuple[bytes, bytes]], phase: int
    ) -> Iterator[tuple[bytes, SampleKey, Count, int]]:
        """The entries of a phase: each with its key as it was, and how many of its innermost frames are new."""
        make = SampleKey._make
        for raw_key, raw_value in entries:
            fields = self._unpack_key(raw_key)
            if fields[self._phase] == phase:
                key = list(self._pick(fields))
                key[_STATE] = _STATES[key[_STATE]]
                value = self._unpack_value(raw_value)
                samples = value[self._samples]
                count = Count(samples, value[self._total], samples if fields[self._unsure] else 0)
                yield raw_key, make(key), count, fields[self._fresh]


class CountTable:
    """Takes the counts out, and holds back those whose stack is yet to come."""

    def __init__(
        self,
        loaded: LoadedObject,
        is_known: Callable[[int], bool],
        note_fresh: Callable[[SampleKey, int, int], None] = lambda key, fresh, samples: None,
    ) -> None:
        """``is_known``: whether there is a stack of that id. ``note_fresh`` is told of samples with new frames."""
        self._note_fresh = note_fresh
        self._object = loaded
        self._decoder = SampleDecoder(loaded.layouts["sample_key"], loaded.layouts["sample_value"])
        self._is_known = is_known
        self._waiting: list[tuple[int, SampleKey, Count]] = []
        self.without_stack = 0
        """Samples that were given out without their stack, which never came."""

    def take(self, phase: int) -> Facts:
        """Read and delete what was counted in a phase, which the programs must have left."""
        definition, fd = self._object.definitions["counts"], self._object.maps["counts"]
        entries = bpf.map_read_all(fd, definition["key_size"], definition["value_size"])
        facts: Facts = {}
        seen = []
        for raw_key, key, count, fresh in self._decoder.decode(entries, phase):
            seen.append(raw_key)
            if fresh:
                self._note_fresh(key, fresh, count.samples)
            known = facts.setdefault(key, count)
            if known is not count:  # the same, but for whether it is sure
                known.add(count)
        bpf.map_delete_batch(fd, seen)
        return facts

    def ready(self, facts: Facts, drain: int) -> Facts:
        """Those of these facts, and of earlier ones, whose stacks are there, or have not come for too long."""
        is_known, waiting = self._is_known, self._waiting
        self._waiting, late = [], []
        ready: Facts = {}
        for since, key, count in waiting:
            if is_known(key.user) and is_known(key.kernel):
                add_facts(ready, {key: count})
            elif drain - since < _PATIENCE:
                self._waiting.append((since, key, count))
            else:
                late.append((key, count))
        for key, count in facts.items():
            if not (is_known(key.user) and is_known(key.kernel)):
                self._waiting.append((drain, key, count))
            elif waiting:
                add_facts(ready, {key: count})
            else:
                ready[key] = count
        add_facts(ready, self._bare(late))
        return ready

    def rest(self) -> Facts:
        """Those that wait, without the stacks that have not come."""
        waiting, self._waiting = self._waiting, []
        return self._bare((key, count) for _, key, count in waiting)

    def _bare(self, late: Iterable[tuple[SampleKey, Count]]) -> Facts:
        out: Facts = {}
        for key, count in late:
            self.without_stack += count.samples
            user = key.user if self._is_known(key.user) else 0
            kernel = key.kernel if self._is_known(key.kernel) else 0
            add_facts(out, {key._replace(user=user, kernel=kernel): count})
        return out
