"""What code a process has mapped where: addresses to (file, ELF virtual address)."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Hashable, Iterable
from contextlib import suppress
from itertools import islice, pairwise

from parprof.errors import PrivilegeError, TargetError
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.process.executable import ExecutableMappings
from parprof.values import dataclass

MAX_MAPPINGS = 1 << 16
"""Executable mappings beyond this number are left out (the kernel's own limit is 65530)."""
_MAX_FORMER = 1 << 12
"""Mappings that are remembered when they are gone, of one epoch."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """Executable memory from ``start`` up to ``end``; it shows ``dso`` from byte ``file_offset`` on."""

    start: int
    end: int
    file_offset: int
    dso: Dso


def mapped_names(pid: int) -> set[str]:
    """The base names of the files whose code a process maps; none where it cannot be read."""
    out = set()
    with suppress(OSError), ExecutableMappings(pid) as now:
        for raw in islice(now.read(), MAX_MAPPINGS):
            line = raw.parsed()
            if line is not None:
                out.add(os.fsdecode(os.path.basename(line.path)))
    return out


class LoadMap:
    """The executable mappings of one process at one time, in order of address. Never changes."""

    def __init__(self, pid: int, mappings: dict[Hashable, Mapping]) -> None:
        """``mappings`` by what tells whether each is still the same at the next reading."""
        self.pid = pid
        self._told = mappings
        self.mappings = tuple(sorted(mappings.values(), key=lambda mapping: mapping.start))
        self._starts = [mapping.start for mapping in self.mappings]

    @classmethod
    def read(cls, pid: int, previous: LoadMap | None, cache: DsoCache) -> LoadMap:
        """The mappings of a process now; ``previous`` itself if none has changed since.

        Raises:
            TargetError: the process is gone or has no memory of its own.
            PrivilegeError: we may not look at it.
        """
        known = previous._told if previous is not None and previous.pid == pid else {}
        mappings: dict[Hashable, Mapping] = {}
        any_mapping = False
        try:
            with ExecutableMappings(pid) as now:
                for raw in islice(now.read(), MAX_MAPPINGS):
                    any_mapping = True
                    mapping = known.get(raw)
                    if mapping is None or mapping.dso.key[0] == "unopened":
                        parsed = raw.parsed()
                        if parsed is None:
                            continue
                        dso = cache.get(pid, parsed)
                        if mapping is None or mapping.dso.key != dso.key:
                            mapping = Mapping(parsed.start, parsed.end, parsed.file_offset, dso)
                    mappings[raw] = mapping
        except PermissionError as error:
            raise PrivilegeError(f"may not look into process {pid}: run as root or as its user") from error
        except (FileNotFoundError, ProcessLookupError) as error:
            raise TargetError(f"process {pid} has ended") from error
        except OSError as error:
            raise TargetError(f"the memory map of process {pid} cannot be read: {error.strerror}") from error
        if not any_mapping:
            raise TargetError(f"process {pid} has no code of its own: it has ended or is a kernel thread")
        if known.keys() == mappings.keys() and all(known[raw] is mappings[raw] for raw in mappings):
            assert previous is not None
            return previous
        return cls(pid, mappings)

    @classmethod
    def of_mappings(cls, pid: int, mappings: Iterable[Mapping]) -> LoadMap:
        """These mappings, the later ones where they are of the same memory."""
        kept: dict[int, Mapping] = {}
        for mapping in mappings:
            kept.pop(mapping.start, None)
            kept[mapping.start] = mapping
        return cls(pid, {b"%x" % start: mapping for start, mapping in kept.items()})

    def keeping(self, former: LoadMap) -> LoadMap:
        """The same, with what ``former`` has where nothing is now; itself if that is nothing.

        Code that is mapped for a moment only is not to be forgotten before its samples have been named.
        """
        added: dict[Hashable, Mapping] = {}
        for told, mapping in reversed(former._told.items()):
            if self._told.get(told) is not mapping and not self._has_any(mapping.start, mapping.end):
                added[told] = mapping
                if len(added) == _MAX_FORMER:
                    break
        if not added:
            return self
        kept = {told: mapping for told, mapping in reversed(added.items()) if told not in self._told}
        return LoadMap(self.pid, {**kept, **self._told})

    def _has_any(self, start: int, end: int) -> bool:
        """Whether anything is mapped there."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0 and self.mappings[index].end > start:
            return True
        return index + 1 < len(self._starts) and self._starts[index + 1] < end

    def of(self, pid: int) -> LoadMap:
        """The same for a process that was forked from this one."""
        return LoadMap(pid, self._told)

    def find(self, address: int) -> tuple[Dso, int] | None:
        """The file that shows at an address and the ELF virtual address there; None if that is no code.

        Where there is no file, as for ``[anon]``, the second is the address itself.
        """
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        mapping = self.mappings[index]
        if address >= mapping.end:
            return None
        if mapping.dso.key[0] == "label":
            return mapping.dso, address
        return mapping.dso, mapping.dso.vaddr(address - mapping.start + mapping.file_offset)

    def bias(self, dso: Dso) -> int:
        """What to add to an ELF virtual address of a file for its address in the process; 0 if it is not mapped."""
        for mapping in self.mappings:
            if mapping.dso.key == dso.key:
                return mapping.start - dso.vaddr(mapping.file_offset)
        return 0

    def code_spans(self) -> tuple[tuple[int, int], ...]:
        """Where its code is: two spans of addresses with little else in them, on either side of the widest gap.

        An executable lies far from the libraries.
        """
        mappings = [one for one in self.mappings if one.dso.key[0] != "label"]
        if not mappings:
            return ()
        gaps = [(after.start - before.end, at) for at, (before, after) in enumerate(pairwise(mappings), 1)]
        if not gaps:
            return ((mappings[0].start, mappings[0].end),)
        _, at = max(gaps)
        return (mappings[0].start, mappings[at - 1].end), (mappings[at].start, mappings[-1].end)

    def dsos(self) -> list[Dso]:
        """The files, each once, in order of address."""
        return list({mapping.dso.key: mapping.dso for mapping in self.mappings}.values())
