"""A measurement as a file of facts: docs/facts.md has the format."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from parprof import __version__
from parprof.errors import OutputError
from parprof.exporters.output import open_output
from parprof.facts.drain import MeasuredImage
from parprof.facts.measurement import Measurement
from parprof.facts.replay import RecordedNames
from parprof.files.dso import Dso, FileKey
from parprof.kernel.records import COST_NAMES
from parprof.kernel.stacks import CONTEXT_UNKNOWN, INTERRUPTED, Context, RawStack
from parprof.model import Frame, SampleKey

FORMAT, VERSION = "parprof-facts", 1
MAX_BYTES = 64 << 20
"""Of a file that is unpacked: what is read takes about ten times as much memory."""
COLUMNS = (*SampleKey._fields, "samples", "total", "unsure")
"""Of a row of facts."""


def encode(measured: Measurement, names: RecordedNames) -> bytes:
    """What was measured, and the names that its profile was made with: a file before it is packed."""
    return json.dumps(_Encoder(measured, names).document(), separators=(",", ":")).encode()


def save(encoded: bytes, path: str) -> None:
    """Pack and write what `encode` made.

    Raises:
        OutputError: it cannot be written, or no reader would take it.
    """
    if len(encoded) > MAX_BYTES:
        raise OutputError(
            f"the facts are {len(encoded) >> 20} MiB, more than the {MAX_BYTES >> 20} that are read again: "
            "record for a shorter time, or at a lower -F"
        )
    with open_output(path) as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(encoded)


class _Encoder:
    """Numbers everything that is named more than once: from 0 on, but stacks from 1, and contexts 1, 3, 5."""

    def __init__(self, measured: Measurement, names: RecordedNames) -> None:
        self._measured = measured
        self._names = names
        self._strings: dict[str, int] = {}
        self._frames: dict[Frame, int] = {}
        self._files: dict[FileKey, tuple[int, Dso]] = {}
        self._words: dict[int, int] = {}
        self._stacks: dict[int, int] = {}
        self._stack_rows: list[list[Any]] = []
        self._contexts: dict[int, int] = {}
        self._context_rows: list[list[int]] = []
        self._looked_up: set[tuple[int, int, int]] = set()
        self._places: dict[int, dict[int, dict[int, tuple[int, int]]]] = {}
        """Image, epoch, address -> file, ELF address."""

    def document(self) -> dict[str, Any]:
        measured, kernel = self._measured, self._measured.kernel
        facts = [
            self._fact(key, count.samples, count.total, count.unsure)
            for key, count in measured.drain.facts.items()
        ]
        for key in measured.drain.facts:
            self._find_places(key)
        images = [self._image(image) for image in measured.images.values()]
        named = self._named()
        kernel_named = [
            [address, int(is_return), self._path(frames)]
            for (address, is_return), frames in sorted(self._names.kernel.items())
        ]
        frames = [self._frame(frame) for frame in self._frames]
        return {
            "format": FORMAT,
            "version": VERSION,
            "writer": f"parprof {__version__}",
            "events": list(kernel.events),
            "frequency_hz": measured.drain.frequency_hz,
            "budget_ratio": kernel.budget_ratio,
            "main": measured.main,
            "started_s": measured.started_s,
            "duration_s": measured.duration_s,
            "own_cpu_s": measured.own_cpu_s,
            "paid_ns": {COST_NAMES[kind]: ns for kind, ns in measured.paid_ns.items()},
            "tables_refused": measured.tables_refused,
            "shortest_region_us": measured.shortest_region_us,
            "cores": measured.cores or 0,
            "notes": list(measured.notes),
            "name_notes": self._names.notes,
            "problems": {**measured.problems, **self._names.problems},
            "lost": kernel.lost(),
            "statistics": kernel.statistics(),
            "thread_names": self._thread_names(),
            "columns": COLUMNS,
            "facts": facts,
            "by_cores": self._divided(),
            "intervals": self._intervals(),
            "words": _steps(sorted(self._words)),
            "stacks": self._sorted_stacks(),
            "contexts": self._context_rows,
            "images": images,
            "scope": measured.scope,
            "scopes": [
                [
                    int(scope.exact),
                    scope.working_ns,
                    list(scope.images),
                    list(scope.level_ns),
                    scope.idle_away_ns,
                    scope.stall_away_ns,
                ]
                for scope in measured.scopes
            ],
            "names": named,
            "kernel_names": kernel_named,
            "files": [dso.path for _, dso in self._files.values()],
            "frames": frames,
            "strings": list(self._strings),
        }

    def _fact(self, key: SampleKey, *counted: int) -> list[int]:
        numbered = key._replace(
            user=self._stack(key.user), kernel=self._stack(key.kernel), context=self._context(key.context)
        )
        return [*map(int, numbered), *counted]

    def _divided(self) -> list[list[int]]:
        """[row of facts, cores that its process was allowed, what was counted with these]."""
        by_cores = self._measured.drain.by_cores
        return [
            [row, allowed, count.samples, count.total, count.unsure]
            for row, key in enumerate(self._measured.drain.facts)
            for allowed, count in by_cores.get(key, {}).items()
        ]

    def _intervals(self) -> list[list[Any]]:
        """[begin, end, time by n_w, counts by row of facts, the same by cores] of each."""
        numbers = {key: row for row, key in enumerate(self._measured.drain.facts)}
        return [
            [
                one.begin_ns,
                one.end_ns,
                list(one.level_ns),
                [
                    [numbers[key], count.samples, count.total, count.unsure]
                    for key, count in one.facts.items()
                ],
                [
                    [numbers[key], allowed, count.samples, count.total, count.unsure]
                    for key, divided in one.by_cores.items()
                    for allowed, count in divided.items()
                ],
            ]
            for one in self._measured.intervals
        ]

    def _stack(self, digest: int) -> int:
        """The number of a stack; 0: there is none."""
        raw = self._measured.drain.stacks.raw(digest)
        if raw is None:
            return 0
        number = self._stacks.get(digest)
        if number is None:
            number = self._stacks[digest] = len(self._stacks) + 1
            self._stack_rows.append(self._stack_row(raw))
        return number

    def _stack_row(self, raw: RawStack) -> list[Any]:
        words = [self._words.setdefault(word, len(self._words)) for word in raw.words]
        python = struct.unpack(f"<{len(raw.python) // 8}Q", raw.python)
        return [raw.end, raw.cut, raw.python_end, words, list(python)]

    def _sorted_stacks(self) -> list[list[Any]]:
        """With the words by their place among all in order, which makes them small."""
        place = {self._words[word]: at for at, word in enumerate(sorted(self._words))}
        return [[*head, [place[word] for word in words], python] for *head, words, python in self._stack_rows]

    def _context(self, identity: int) -> int:
        """The number of a context, whose row comes after those that it lies in; an even one if it never came."""
        if identity in (0, CONTEXT_UNKNOWN):
            return identity
        chain: dict[int, Context] = {}
        at = identity
        while at and at not in self._contexts and at not in chain:
            found = self._measured.drain.stacks.context(at)
            if found is None:
                self._contexts[at] = CONTEXT_UNKNOWN + 2 * (len(self._contexts) + 1)
                break
            chain[at] = found
            at = found.parent
        for one, found in reversed(chain.items()):
            parent = self._contexts.get(found.parent, CONTEXT_UNKNOWN) if found.parent else 0
            self._context_rows.append([self._stack(found.stack), parent, found.image])
            self._contexts[one] = 2 * len(self._context_rows) - 1
        return self._contexts[identity]

    def _find_places(self, key: SampleKey) -> None:
        image = self._measured.images.get(key.image)
        if image is None:
            return
        stacks, context = self._measured.drain.stacks, key.context
        self._places_of(image, key.epoch, key.user)
        for _ in range(len(self._context_rows)):  # an end is needed even where ids make a circle
            found = stacks.context(context)
            if found is None:
                break
            self._places_of(image, key.epoch, found.stack)
            context = found.parent

    def _places_of(self, image: MeasuredImage, epoch: int, digest: int) -> None:
        if (image.image, epoch, digest) in self._looked_up:
            return
        self._looked_up.add((image.image, epoch, digest))
        known = self._places.setdefault(image.image, {}).setdefault(epoch, {})
        raw = self._measured.drain.stacks.raw(digest)
        for word in raw.words if raw else ():
            address = word & ~INTERRUPTED
            if address not in known and (found := image.find(address, epoch)):
                known[address] = self._file(found[0]), found[1]

    def _file(self, dso: Dso) -> int:
        return self._files.setdefault(dso.key, (len(self._files), dso))[0]

    def _image(self, image: MeasuredImage) -> dict[str, Any]:
        process = image.process
        return {
            "image": image.image,
            "pid": process.pid,
            "comm": process.comm,
            "command": process.command,
            "agents": [agent.name for agent in image.agents],
            "runtime": image.runtime,
            "cores": image.parallel_cores(),
            "n_w_source": image.n_w_source,
            "ready_ns": image.ready_ns,
            "watched_s": image.watched_s(),
            "cores_held": [list(one) for one in image.cores_held()],
            "failures": list(image.failures),
            "remarks": image.remarks(),
            "places": self._grouped(self._places.get(image.image, {})),
            "jit": sorted(
                [at, name] for (number, at), name in self._names.jit.items() if number == image.image
            ),
            "python": self._python(image),
        }

    def _grouped(self, places: Mapping[int, Mapping[int, tuple[int, int]]]) -> list[list[Any]]:
        """[epoch, file, ELF address - address, addresses], where the load map does not change the difference."""
        groups: dict[tuple[int, int, int], list[int]] = {}
        for epoch, known in places.items():
            for address, (file, vaddr) in known.items():
                groups.setdefault((epoch, file, vaddr - address), []).append(address)
        return [[*group, _steps(sorted(found))] for group, found in sorted(groups.items())]

    def _python(self, image: MeasuredImage) -> dict[str, Any] | None:
        stacks = self._measured.drain.stacks
        saved = image.saved_language({digest: stacks.get(digest) for digest in self._stacks})
        if saved is None:
            return None
        rows = [
            [
                self._stacks[digest],
                [[-1 if frame is None else self._number(frame), int(last)] for frame, last in found],
            ]
            for digest, found in saved.stacks.items()
        ]
        return {
            "loops": saved.loops,
            "modules": sorted(saved.modules),
            "unresolved": saved.unresolved,
            "stacks": rows,
        }

    def _named(self) -> list[list[Any]]:
        """[file, is a return address, steps of ELF address, frames of each], for files with sampled addresses."""
        groups: dict[tuple[int, bool], list[tuple[int, tuple[Frame, ...]]]] = {}
        for (key, vaddr, is_return), frames in self._names.named.items():
            if key in self._files:
                groups.setdefault((self._files[key][0], is_return), []).append((vaddr, frames))
        out = []
        for (file, is_return), rows in sorted(groups.items()):
            rows.sort(key=lambda row: row[0])
            steps = _steps(vaddr for vaddr, _ in rows)
            out.append([file, int(is_return), steps, [self._path(frames) for _, frames in rows]])
        return out

    def _path(self, frames: Iterable[Frame]) -> list[int]:
        return [self._number(frame) for frame in frames]

    def _number(self, frame: Frame) -> int:
        return self._frames.setdefault(frame, len(self._frames))

    def _frame(self, frame: Frame) -> list[int]:
        name, file, module, build_id = (
            self._strings.setdefault(text, len(self._strings))
            for text in (frame.name, frame.file, frame.module, frame.build_id)
        )
        flags = frame.inlined + 2 * frame.is_loop
        return [name, file, frame.line, frame.start_line, module, build_id, frame.address, flags]

    def _thread_names(self) -> list[list[Any]]:
        seen = dict.fromkeys((key.image, key.tid) for key in self._measured.drain.facts)
        names = self._measured.drain.thread_names
        return [[*thread, names[thread]] for thread in seen if thread in names]


def _steps(numbers: Iterable[int]) -> list[int]:
    """Numbers in order as the differences between them, which pack well."""
    out, last = [], 0
    for number in numbers:
        out.append(number - last)
        last = number
    return out
