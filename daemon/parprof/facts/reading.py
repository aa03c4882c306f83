"""Reads files of facts (docs/facts.md). Nothing in them is trusted: anything odd is one clear error."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

from parprof.errors import ProfileFormatError
from parprof.facts.checked import U64, Checked, parse
from parprof.facts.cores import CoresHeld
from parprof.facts.drain import Drain
from parprof.facts.intervals import MOST, CountedInterval
from parprof.facts.measurement import Measurement
from parprof.facts.replay import CodePlace, RecordedImage, RecordedNames
from parprof.facts.scopes import ScopeTimes
from parprof.facts.writing import COLUMNS, FORMAT, MAX_BYTES, VERSION
from parprof.files.dso import Dso
from parprof.kernel.recording import Recording
from parprof.kernel.records import COST_NAMES, Cost
from parprof.kernel.stacks import INTERRUPTED, METHOD, Context, RawStack, StackTable
from parprof.languages import FrameOrMark, SavedLanguage
from parprof.languages.front_ends import replayed
from parprof.model import ACTIVATION, NO_EVENT, Count, Facts, Frame, SampleKey, ThreadState, add_facts
from parprof.process.identity import Process
from parprof.runtimes import agents

MAX_PATH_FRAMES = 50_000_000
"""Refuse files whose samples have more frames than this in all, contexts included: a few bytes can stand for many."""
_MANY = 1 << 22
_MAX_CONTEXT_FRAMES = 1024
"""What a context contributes to a call path: `parprof.logical.paths.MAX_CONTEXT_FRAMES`."""
_U32 = (1 << 32) - 1
_MAX_COUNT = 1 << 62
_MAX_CORES = 1 << 16
_MAX_HZ = 1 << 20
_STATES = tuple(ThreadState)
_STATE = SampleKey._fields.index("state")
_LATER_COSTS = (Cost.WAIT, Cost.CALL, Cost.TRANSFER, Cost.ALLOCATION)
"""What files of older versions may lack."""
_COUNTS = 3
"""Columns of a row of facts behind those of its key."""
_LATEST_S = 9e9
"""The year 2255: times in nanoseconds have to fit into what pprof files have for them."""
_LATER_COLUMNS = ("away", "awaits", "glimpse")
"""The last fields of a key: files of parprof before it knew which cores others had, what waits were for, or glimpses,
lack those from there on. They are 0 as far as these tell."""
_KNOWN_COLUMNS = tuple([name for name in COLUMNS if name not in _LATER_COLUMNS[known:]] for known in range(4))


def is_facts(data: bytes) -> bool:
    """Whether an unpacked file looks like one of facts, rather than like a profile."""
    return data[:1] == b"{"


def decode(data: bytes) -> tuple[Measurement, RecordedNames]:
    """The measurement in an unpacked file, and the names in it.

    Raises:
        ProfileFormatError: it is no file of facts, or damaged, or of a newer parprof.
    """
    if len(data) > MAX_BYTES:
        raise ProfileFormatError(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
    return _Decoder(_checked_head(Checked(parse(data), "the file"))).measurement()


def _checked_head(document: Checked) -> Checked:
    if document["format"].text() != FORMAT:
        raise ProfileFormatError("it is neither a profile nor facts of parprof")
    version = document["version"].integer(1 << 31, 1)
    if version > VERSION:
        writer = document["writer"].text()
        raise ProfileFormatError(
            f"its format is {version}, of a newer parprof ({writer[:80]}); this one reads up to {VERSION}: update it"
        )
    return document


class _Decoder:
    def __init__(self, document: Checked) -> None:
        self._file = document
        self._dsos = [Dso(("recorded", at), path) for at, path in enumerate(document["files"].texts(_MANY))]
        self._frames = _frames(document["frames"], document["strings"].texts(_MANY))
        self._agents = {agent.name: agent for agent in agents()}
        self._unknown_agents: dict[str, None] = {}

    def measurement(self) -> tuple[Measurement, RecordedNames]:
        file = self._file
        stacks, sizes = self._stacks(file["words"].steps())
        facts, keys = self._facts(sizes, self._contexts(stacks, sizes))
        by_cores = self._by_cores(facts, keys)
        images = {image.image: image for image in map(self._image, file["images"].items(1 << 20))}
        main = file["main"].integer(_U32)
        if main not in images:
            raise file.damaged("has no main process")
        events = tuple(file["events"].texts(64))
        if not events or any(
            key.event >= len(events) and key.event not in (ACTIVATION, NO_EVENT) for key in facts
        ):
            raise file.damaged("has samples of events without a name")
        kernel = Recording(
            events,
            file["frequency_hz"].integer(_MAX_HZ, 1),
            file["budget_ratio"].number(1.0),
            facts,
            stacks,
            Counter({name: count.integer() for name, count in file["statistics"].members().items()}),
            {name: count.integer() for name, count in file["lost"].members().items()},
        )
        names = self._thread_names()
        drain = Drain(kernel.drain(), stacks, images, names, events, kernel.frequency_hz, by_cores)
        paid = file["paid_ns"]
        paid_for = [
            kind for kind in COST_NAMES if kind not in _LATER_COSTS or COST_NAMES[kind] in paid.members()
        ]
        measured = Measurement(
            drain,
            images,
            kernel,
            main,
            started_s=file["started_s"].number(_LATEST_S),
            duration_s=file["duration_s"].number(_LATEST_S),
            own_cpu_s=file["own_cpu_s"].number(),
            paid_ns={kind: paid[COST_NAMES[kind]].number() for kind in paid_for},  # older ones have no waits
            tables_refused=file["tables_refused"].integer(_MAX_COUNT),
            shortest_region_us=file["shortest_region_us"].number(),
            cores=file["cores"].integer(_MAX_CORES) or None,
            notes=(*file["notes"].texts(), *self._notes()),
            problems={path: why.text() for path, why in file["problems"].members(1 << 16).items()},
            scopes=tuple(map(_scope, file.rows("scopes", _MANY))),
            intervals=tuple(self._interval(row, keys) for row in file.rows("intervals", 2 * MOST)),
            scope=file["scope"].text() if "scope" in file.members() else "",
        )
        return measured, self._names()

    def _notes(self) -> list[str]:
        return [
            f"the runtime agent {name} is not installed here: its frames are shown as they are"
            for name in self._unknown_agents
        ]

    def _stacks(self, words: Sequence[int]) -> tuple[StackTable, list[int]]:
        """The stacks by number, and how many frames each has; that of none comes first."""
        table, sizes = StackTable(), [0]
        for number, row in enumerate(self._file["stacks"].items(_MANY), 1):
            end, cut, python_end, native, python = row.row(5)
            found = native.integers(most=len(words) - 1, length=1 << 12)
            pairs = python.integers(length=1 << 12)
            has_methods = any((words[at] & ~INTERRUPTED) >> 62 == METHOD >> 62 for at in found)
            raw = RawStack(
                struct.pack(f"<{len(found)}Q", *(words[at] for at in found)),
                end.integer((1 << 16) - 1),
                struct.pack(f"<{len(pairs) // 2 * 2}Q", *pairs[: len(pairs) // 2 * 2]),
                python_end.integer((1 << 16) - 1),
                cut.integer((1 << 16) - 1),
                has_methods,
            )
            table.put(number, raw)
            sizes.append(len(found) + len(pairs) // 2)
        return table, sizes

    def _contexts(self, stacks: StackTable, sizes: Sequence[int]) -> dict[int, int]:
        """Put the contexts among the stacks; how many frames each brings along."""
        frames: dict[int, int] = {}
        for at, row in enumerate(self._file["contexts"].items(_MANY)):
            stack, parent, image = row.row(3)
            identity, number, outer = 2 * at + 1, stack.integer(len(sizes) - 1), parent.integer(2 * _MANY)
            if outer % 2 and outer >= identity:  # so none lies in itself
                raise row.damaged("has a context before the one that it lies in")
            stacks.put_context(identity, Context(number, outer, image.integer(_U32)))
            frames[identity] = min(sizes[number] + frames.get(outer, 0), _MAX_CONTEXT_FRAMES)
        return frames

    def _facts(self, sizes: Sequence[int], contexts: dict[int, int]) -> tuple[Facts, list[SampleKey]]:
        """The samples, and the key of each row."""
        rows = self._file["facts"]
        columns = self._file["columns"].texts(64)
        if columns not in _KNOWN_COLUMNS:
            raise self._file.damaged(f"has other columns than {', '.join(COLUMNS)}")
        facts: Facts = {}
        keys = []
        spent = 0
        for row in rows.items(_MANY):
            numbers = row.integers(most=_MAX_COUNT, length=len(columns))
            if len(numbers) != len(columns) or numbers[_STATE] >= len(_STATES):
                raise row.damaged("has a row that is none")
            state = _STATES[numbers[_STATE]]
            later = [0] * (len(COLUMNS) - len(columns))
            key = SampleKey._make([*numbers[:-_COUNTS], *later])._replace(state=state)
            count = Count(*numbers[-_COUNTS:])
            if (
                max(key.user, key.kernel) >= len(sizes)
                or key.n_working > _U32
                or count.unsure > count.samples
            ):
                raise row.damaged("has samples that cannot be")
            spent += sizes[key.user] + sizes[key.kernel] + contexts.get(key.context, 0)
            if spent > MAX_PATH_FRAMES:
                raise ProfileFormatError(f"its call paths hold more than {MAX_PATH_FRAMES} frames")
            add_facts(facts, {key: count})
            keys.append(key)
        return facts, keys

    def _by_cores(self, facts: Facts, keys: Sequence[SampleKey]) -> dict[SampleKey, dict[int, Count]]:
        out: dict[SampleKey, dict[int, Count]] = {}
        for row in self._file.rows("by_cores", _MANY):
            numbers = row.integers(most=_MAX_COUNT, length=2 + _COUNTS)
            if len(numbers) != 2 + _COUNTS or numbers[0] >= len(keys) or not 1 <= numbers[1] <= _MAX_CORES:
                raise row.damaged("has samples of no row, or with no cores")
            divided = out.setdefault(keys[numbers[0]], {})
            divided.setdefault(numbers[1], Count()).add(Count(*numbers[2:]))
        for key, divided in out.items():
            whole = Count()
            for count in divided.values():
                whole.add(count)
            if whole != facts[key]:
                raise self._file.damaged("has samples that are more or fewer when divided by cores")
        return out

    def _interval(self, row: Checked, keys: Sequence[SampleKey]) -> CountedInterval:
        begin, end, levels, rows, divided = row.row(5)
        begin_ns = begin.integer(_MAX_COUNT)
        out = CountedInterval(
            begin_ns,
            end.integer(_MAX_COUNT, begin_ns),
            tuple(levels.integers(most=_MAX_COUNT, length=1 << 12)),
        )
        for one in rows.items(_MANY):
            numbers = one.integers(most=_MAX_COUNT, length=1 + _COUNTS)
            if len(numbers) != 1 + _COUNTS or numbers[0] >= len(keys):
                raise one.damaged("has samples of no row")
            out.facts[keys[numbers[0]]] = Count(*numbers[1:])
        for one in divided.items(_MANY):
            numbers = one.integers(most=_MAX_COUNT, length=2 + _COUNTS)
            if (
                len(numbers) != 2 + _COUNTS
                or not 1 <= numbers[1] <= _MAX_CORES
                or numbers[0] >= len(keys)
                or keys[numbers[0]] not in out.facts
            ):
                raise one.damaged("has samples of no row, or with no cores")
            out.by_cores.setdefault(keys[numbers[0]], {})[numbers[1]] = Count(*numbers[2:])
        return out

    def _thread_names(self) -> dict[tuple[int, int], str]:
        out = {}
        for row in self._file["thread_names"].items(_MANY):
            image, tid, name = row.row(3)
            out[image.integer(_U32), tid.integer(_U32)] = name.text()
        return out

    def _image(self, image: Checked) -> RecordedImage:
        names = image["agents"].texts(64)
        self._unknown_agents.update(dict.fromkeys(name for name in names if name not in self._agents))
        process = Process(image["pid"].integer(_U32), 0, image["comm"].text(), image["command"].text(), "")
        return RecordedImage(
            image=image["image"].integer(_U32),
            process=process,
            agents=tuple(self._agents[name] for name in names if name in self._agents),
            runtime=image["runtime"].text(),
            cores=image["cores"].integer(_MAX_CORES, 1),
            n_w_source=image["n_w_source"].text(),
            ready_ns=image["ready_ns"].integer(),
            watched_seconds=image["watched_s"].number(),
            failures=tuple(image["failures"].texts()),
            remarked=tuple(image["remarks"].texts()),
            language=None if image["python"].is_null else replayed(self._python(image["python"])),
            places=self._places(image["places"]),
            held={held.allowed: held for held in map(_cores_held, image.rows("cores_held", _MAX_CORES))},
        )

    def _places(self, rows: Checked) -> dict[int, dict[int, CodePlace]]:
        out: dict[int, dict[int, CodePlace]] = {}
        for row in rows.items(_MANY):
            epoch, file, delta, addresses = row.row(4)
            dso, difference = self._dso(file), delta.integer(U64, -U64)
            known = out.setdefault(epoch.integer(_U32), {})
            known.update((address, (dso, (address + difference) & U64)) for address in addresses.steps())
        return out

    def _dso(self, number: Checked) -> Dso:
        return self._dsos[number.integer(len(self._dsos) - 1)]

    def _python(self, python: Checked) -> SavedLanguage:
        loops = [row.integers(length=2) for row in python["loops"].items(1 << 12)]
        if any(len(loop) != 2 for loop in loops):
            raise python.damaged("has loops that are none")
        stacks: dict[int, tuple[FrameOrMark, ...]] = {}
        for row in python["stacks"].items(_MANY):
            number, frames = row.row(2)
            stacks[number.integer(_U32)] = tuple(self._python_frame(one) for one in frames.items(1 << 12))
        return SavedLanguage(
            tuple((start, end) for start, end in loops),
            frozenset(python["modules"].texts(64)),
            stacks,
            python["unresolved"].integer(_MAX_COUNT),
        )

    def _python_frame(self, row: Checked) -> FrameOrMark:
        frame, is_entry = row.row(2)
        number = frame.integer(len(self._frames) - 1, -1)
        return (None if number < 0 else self._frames[number]), bool(is_entry.integer(1))

    def _path(self, row: Checked) -> tuple[Frame, ...]:
        numbers = row.integers(most=len(self._frames) - 1, length=1 << 9)
        if not numbers:
            raise row.damaged("has a place without a frame")
        return tuple(self._frames[number] for number in numbers)

    def _names(self) -> RecordedNames:
        out = RecordedNames(self._file["name_notes"].texts())
        for row in self._file["names"].items(_MANY):
            file, is_return, steps, paths = row.row(4)
            dso, after = self._dso(file), bool(is_return.integer(1))
            for vaddr, path in zip(steps.steps(), paths.items(_MANY), strict=False):
                out.named[dso.key, vaddr, after] = self._path(path)
        for row in self._file["kernel_names"].items(_MANY):
            address, is_return, path = row.row(3)
            out.kernel[address.integer(), bool(is_return.integer(1))] = self._path(path)
        for image in self._file["images"].items(1 << 20):
            number = image["image"].integer(_U32)
            for row in image["jit"].items(_MANY):
                address, name = row.row(2)
                out.jit[number, address.integer()] = name.text()
        return out


def _cores_held(row: Checked) -> CoresHeld:
    allowed, cores, seconds = row.row(3)
    return CoresHeld(allowed.integer(_MAX_CORES, 1), cores.integer(_MAX_CORES, 1), seconds.number())


def _scope(row: Checked) -> ScopeTimes:
    exact, working_ns, images, levels, idle_away_ns, stall_away_ns = row.row(6)
    return ScopeTimes(
        tuple(levels.integers(most=_MAX_COUNT, length=1 << 12)),
        working_ns.integer(),
        bool(exact.integer(1)),
        tuple(images.integers(most=_U32)),
        idle_away_ns.integer(),
        stall_away_ns.integer(),
    )


def _frames(rows: Checked, strings: Sequence[str]) -> list[Frame]:
    out = []
    for row in rows.items(_MANY):
        numbers = row.integers(length=8)
        if len(numbers) != 8 or max(numbers[0], numbers[1], numbers[4], numbers[5]) >= len(strings):
            raise row.damaged("has a frame that is none")
        name, file, line, start_line, module, build_id, address, flags = numbers
        if max(line, start_line) > _U32:
            raise row.damaged("has a line that cannot be")
        out.append(
            Frame(
                strings[name],
                strings[file],
                line,
                start_line,
                strings[module],
                strings[build_id],
                address,
                inlined=bool(flags & 1),
                is_loop=bool(flags & 2),
            )
        )
    return out
