"""Where threads sleep that did so before we came, and have not woken up: nothing happens there that could tell it, so
``/proc`` is asked at the end of a measurement, when it keeps nobody from work; where waits that go on are cut in two
again and again, once of each thread that has not woken up since.

A program that hangs, on a lock or a pipe, consists of nothing else.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from parprof.attribution.waiting import KIND_AWAITED, WaitKind, wait_kind
from parprof.files.dso import Dso
from parprof.files.proc_status import number_inside
from parprof.kernel.scopes import ScopeState, wait_key
from parprof.kernel.stacks import STACK_ENDS, RawStack, StackTable
from parprof.languages import Instance
from parprof.model import (
    AWAITS_DEADLOCK,
    AWAITS_LOCKED,
    AWAITS_UNKNOWN,
    CallerStep,
    Count,
    Facts,
    Frame,
    SampleKey,
    ThreadState,
    add_facts,
)
from parprof.patterns import regex
from parprof.process.futex_waits import futex_wait
from parprof.process.loadmap import LoadMap
from parprof.process.memory import read_exactly
from parprof.process.mutexes import follow, holder_of
from parprof.process.polled import awaited
from parprof.process.threads import system_call
from parprof.session.target import Target
from parprof.symbols.kernel import KERNEL
from parprof.unwind.cache import Table
from parprof.unwind.walking import walk
from parprof.values import dataclass

Tables = Callable[[Dso], Table | None]
"""Where the unwind table of a file comes from."""

MOST_LOOKED_AT = 64
"""Threads that are looked at: each takes some 0.1 ms."""
_KERNEL_FRAME = regex(r"\[<[0-9a-f]*>\] ([\w.]+)\+(0x[0-9a-f]+)/0x[0-9a-f]+(?: (\[\w+\]))?")
_KERNEL_END = len(STACK_ENDS)
NO_TABLE = STACK_ENDS.index("no_table")
"""A stack that ends where unwind tables are missing, perhaps for now."""
_SOMEWHERE = 1
"""Behind a function's first byte: a return address there is in that function, and not in the one before it."""
_ENTERED = {
    7: "do_sys_poll", 23: "core_sys_select", 35: "hrtimer_nanosleep", 43: "__sys_accept4",
    58: "wait_for_vfork_done", 61: "do_wait",
    202: "do_futex", 230: "hrtimer_nanosleep", 232: "do_epoll_wait", 247: "do_wait", 270: "core_sys_select",
    271: "do_sys_poll", 281: "do_epoll_wait", 288: "__sys_accept4",
}  # fmt: skip
"""By number of the system call: a function of the kernel that it sleeps in, where the innermost one alone is also one
of others."""


@dataclass(frozen=True, slots=True)
class Asleep:
    """A thread, and where it sleeps."""

    target: Target
    tid: int
    user: RawStack
    kernel: tuple[tuple[Frame, int], ...]
    """Functions of the kernel and offsets in them, the innermost first."""
    awaits: int = AWAITS_UNKNOWN
    """What it waits for, where more is known than these tell: as in `parprof.model.SampleKey`."""
    awaits_end: bool = False
    """It waits for the end of another thread."""
    number: int = 0
    """Its own, in its PID namespace."""
    holder: int = 0
    """Of the thread that has the mutex which it waits for; 0: not known, or it waits for none."""

    @property
    def kind(self) -> WaitKind:
        """What it waits for, as far as the kernel knows."""
        return KIND_AWAITED.get(self.awaits) or wait_kind(function.name for function, _ in self.kernel)

    def put(self, stacks: StackTable) -> tuple[int, int]:
        """Its stacks, of the program and of the kernel, among the others: by hash."""
        kernel = [begin + offset for function, offset in self.kernel if (begin := stacks.stand_in(function))]
        packed = struct.pack(f"<{len(kernel)}Q", *kernel)
        below = _put(RawStack(packed, _KERNEL_END, b"", 0, 0), stacks) if kernel else 0
        is_own = self.user.python or self.user.is_own
        user = _put(self.user, stacks, self.target.image if is_own else 0)
        if (language := self.target.language) is not None:  # which costs nothing if that was done before
            if self.user.python:
                language.resolve([(user, stacks.get(user).python)])
            if self.user.is_own:
                language.resolve_words([(user, self.user.words)])
        return user, below


Finder = Callable[[Target, int, Tables], Asleep | None]
"""Finds out where a thread of a process sleeps."""


class Sleepers:
    """The threads that sleep, and of which nobody saw where they went to sleep."""

    def __init__(self, targets: Mapping[int, Target], tables: Tables, finder: Finder | None = None) -> None:
        """``targets``: those that live, by image. ``finder``: instead of `look_at`."""
        self._targets = targets
        self._tables = tables
        self._finder = finder
        self._found: dict[SampleKey, Asleep] = {}

    def look(self, unended: Facts) -> None:
        """Find out where those sleep of whose waits no place is known, the longest first.

        Who was found before, and has not woken up since, still sleeps there: of others the place is known.
        """
        placeless = {
            key: count.total
            for key, count in unended.items()
            if key.state is ThreadState.BLOCKED and not key.user and key.image in self._targets
        }
        self._found = {
            key: one for key, one in self._found.items() if key in placeless and one.user.end != NO_TABLE
        }
        tables = _Remembered(self._tables)
        longest = sorted(placeless, key=lambda key: (placeless[key], key), reverse=True)[:MOST_LOOKED_AT]
        for key in longest:
            if key not in self._found:
                found = (self._finder or look_at)(self._targets[key.image], key.tid, tables)
                if found is not None:
                    self._found[key] = found

    def placed(self, unended: Facts, stacks: StackTable) -> Facts:
        """The same facts with these places. The stacks go to the others."""
        out = {key: count for key, count in unended.items() if key not in self._found}
        circles = {key for image in self._targets for key in self._holders(image)[0]}
        for key, one in self._found.items():
            awaits = AWAITS_DEADLOCK if key in circles else one.awaits
            out[self._placed(key, replace(one, awaits=awaits), stacks)] = unended[key]
        return out

    def stall(self, scope: int, took_ns: int, stacks: StackTable) -> Facts:
        """All of that time nobody worked in a scope: it is who keeps the others asleep that has it; where these wait
        for each other's mutexes, all of them."""
        those = {key: one for key, one in self._found.items() if one.target.scope.number == scope}
        if not those:
            return {}
        blamed, awaits = self._by_mutexes(those)
        if blamed:
            keys = [key._replace(state=ThreadState.STALLED) for key in blamed]
            ones = [replace(those[key], awaits=awaits) for key in blamed]
            each, rest = divmod(took_ns, len(blamed))
            return {
                self._placed(key, one, stacks): Count(1, each + (rest if not number else 0))
                for number, (key, one) in enumerate(zip(keys, ones, strict=True))
            }
        placed = {
            key: self._placed(key._replace(state=ThreadState.STALLED), one, stacks)
            for key, one in those.items()
        }
        key = min(those, key=lambda key: _rank(those[key], placed[key].user))
        return {placed[key]: Count(1, took_ns)}

    def _by_mutexes(self, those: Mapping[SampleKey, Asleep]) -> tuple[list[SampleKey], int]:
        """Who keeps the others asleep by what mutexes it has, and what it waits for; nobody where no mutex tells."""
        found = [self._holders(image) for image in dict.fromkeys(key.image for key in those)]
        circles = [key for circle, _ in found for key in circle]
        roots = [key for _, holding in found for key in holding]
        return (circles, AWAITS_DEADLOCK) if circles else (roots[:1], AWAITS_LOCKED)

    def _holders(self, image: int) -> tuple[list[SampleKey], list[SampleKey]]:
        """Of a process: those in circles, and those at whom chains of waits for mutexes end."""
        keys = {one.number: key for key, one in self._found.items() if key.image == image and one.number}
        holders = {number: self._found[key].holder for number, key in keys.items() if self._found[key].holder}
        told = follow(holders)
        return [keys[one] for one in sorted(told.circles)], [keys[one] for one in told.roots if one in keys]

    @staticmethod
    def _placed(key: SampleKey, one: Asleep, stacks: StackTable) -> SampleKey:
        user, below = one.put(stacks)
        epoch = one.target.mapped.maps.epoch
        return wait_key(key.state, key.image, key.tid, user, below, 0, epoch, awaits=one.awaits)


def placed_at_end(unended: Facts, targets: Mapping[int, Target], tables: Tables, stacks: StackTable) -> Facts:
    """What lasts at the end of a measurement, with these places; and where nobody has ever worked in a scope, all of
    that time at who keeps the others asleep. ``targets``: those that live, by image."""
    sleepers = Sleepers(targets, tables)
    sleepers.look(unended)
    facts = sleepers.placed(unended, stacks)
    for scope in {target.scope.number: target.scope for target in targets.values()}.values():
        if scope.final is not None and not any(scope.final.level_ns[1:]):
            add_facts(facts, sleepers.stall(scope.number, scope.final.level_ns[0], stacks))
    return facts


class Meanwhile:
    """The same of one process, whose waits are cut in two again and again: each time for what has come since."""

    def __init__(self, target: Target, tables: Tables) -> None:
        """``tables`` must not wait: others want to go on."""
        self._scope = target.scope
        self._sleepers = Sleepers({target.image: target}, tables)
        self._before: ScopeState | None = None

    def placed(self, unended: Facts, now_ns: int, stacks: StackTable, *, knows_stalls: bool) -> Facts:
        """What lasts at a time (CLOCK_MONOTONIC), with these places.

        ``knows_stalls``: whether nobody can have worked without being counted.
        """
        self._sleepers.look(unended)
        facts = self._sleepers.placed(unended, stacks)
        state = self._scope.state()
        now = None if state is None else state.until(now_ns)
        before, self._before = self._before, now
        is_placed = any(key.state is ThreadState.STALLED for key in facts)
        if knows_stalls and now is not None and before is not None and not is_placed:
            took_ns = [after - then for after, then in zip(now.level_ns, before.level_ns, strict=True)]
            if took_ns[0] > 0 and not any(took_ns[1:]):
                add_facts(facts, self._sleepers.stall(self._scope.number, took_ns[0], stacks))
        return facts


class _Remembered:
    """Tables that many threads need, got once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._got: dict[Dso, Table | None] = {}

    def __call__(self, dso: Dso) -> Table | None:
        if dso not in self._got:
            self._got[dso] = self._tables(dso)
        return self._got[dso]


def _rank(one: Asleep, user: int) -> tuple[bool, bool, bool, bool, bool]:
    """The lowest is who is waited for: not who serves the language, or waits for a thread itself, of all for its end,
    nor for something to do. ``user``: its stack."""
    kind, language = one.kind, one.target.language
    awaits_end = one.awaits_end or (language is not None and language.awaits_end(user))
    is_servant = language is not None and language.is_servant(user)
    return is_servant, awaits_end, kind.is_for_threads, kind.is_outside, one.tid != one.target.process.pid


def _put(stack: RawStack, stacks: StackTable, image: int = 0) -> int:
    """``image``: that of frames of a language, whose addresses mean nothing elsewhere."""
    ends = struct.pack("<HHQ", stack.end, stack.python_end, image)
    hashed = hashlib.blake2b(ends + stack.native + stack.python, digest_size=8).digest()
    digest = int.from_bytes(hashed, "little") or 1
    if digest not in stacks:
        stacks.put(digest, stack)
    return digest


def look_at(target: Target, tid: int, tables: Tables) -> Asleep | None:
    """Where a thread sleeps. ``None``: it runs, or may not be looked at."""
    load_map = target.mapped.newest
    folder = f"/proc/{target.process.pid}/task/{tid}"
    with suppress(OSError, ValueError):
        before = system_call(target.process.pid, tid)
        words = before.split()
        if load_map is None or len(words) < 3:
            return None  # "running"
        kernel = tuple(_kernel_frames(folder)) or _kernel_place(folder, words[0])
        fd = os.open(f"/proc/{load_map.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            language = target.language
            user = _walked(load_map, tables, words, fd, language, target.made.rule)
            awaits = awaited(target.process.pid, words, lambda address, size: os.pread(fd, size, address))
            holder = holder_of(words, lambda address, size: os.pread(fd, size, address))
        finally:
            os.close(fd)
        number = number_inside(Path(folder, "status").read_text(errors="replace")) or tid
        if language is not None and language.is_open:
            python, end = language.asleep(number)
            user = user._replace(python=python, python_end=end)
        if system_call(target.process.pid, tid) == before:
            return Asleep(target, tid, user, kernel, awaits, _awaits_end(folder, words), number, holder)
    return None


def _awaits_end(folder: str, words: list[str]) -> bool:
    """Whether a system call is glibc's wait for the end of a thread: until the word that has its number is cleared, by
    the kernel, which tells all processes that share it."""
    wait = futex_wait(words)
    if wait is None or wait.is_private or not wait.value:
        return False
    return os.path.exists(f"{os.path.dirname(folder)}/{wait.value}")


def _kernel_frames(folder: str) -> Iterable[tuple[Frame, int]]:
    """None without CAP_SYS_ADMIN."""
    with suppress(OSError):
        for line in Path(folder, "stack").read_text().splitlines():
            if match := _KERNEL_FRAME.match(line):
                yield Frame(match[1], module=match[3] or KERNEL), int(match[2], 16)


def _kernel_place(folder: str, system_call: str) -> tuple[tuple[Frame, int], ...]:
    """The innermost function that is not the scheduler's, and what the system call tells: anyone who may trace it
    is told so much."""
    names = []
    with suppress(OSError):
        names = [Path(folder, "wchan").read_text().strip("\0\n")]
    names.append(_ENTERED.get(int(system_call), ""))
    return tuple(
        (Frame(name, module=KERNEL), _SOMEWHERE) for name in dict.fromkeys(names) if name not in ("", "0")
    )


def _walked(
    load_map: LoadMap,
    tables: Tables,
    words: Sequence[str],
    memory: int,
    language: Instance | None,
    made_rule: Callable[[int], int | None],
) -> RawStack:
    """``words``: of ``/proc/PID/task/TID/syscall``. ``memory``: the file with its process's. ``made_rule``: of code
    that a JIT compiler made."""
    is_own = False
    *arguments, sp, pc = (int(word, 16) for word in words[1:])

    def rule_at(address: int) -> int | None:
        found = load_map.find(address)
        if found is None or found[0].elf is None:
            return made_rule(address)
        table = tables(found[0])
        return table.rule(found[1]) if table is not None and table.count else None

    def read_word(address: int) -> int:
        return int.from_bytes(read_exactly(memory, address, 8), "little")

    def step(pc: int, sp: int, rbp: int | None) -> CallerStep | None:
        nonlocal is_own
        found = language.step(pc, sp, rbp, read_word) if language is not None else None
        is_own = is_own or found is not None
        return found

    walked = walk(pc, sp, rule_at, read_word, step, arguments)
    native = struct.pack(f"<{len(walked.addresses)}Q", *walked.addresses)
    return RawStack(native, STACK_ENDS.index(walked.end), b"", 0, 0, is_own)
