"""Stacks as the kernel sends them: native frames, and behind them the Python frames of the thread."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

from parprof.kernel.file_tables import FoundMapping
from parprof.kernel.our_code import OurCode
from parprof.model import Frame
from parprof.values import dataclass

_HEADER = struct.Struct("<IHHQIHHHxxxxxx")
_CONTEXT = struct.Struct("<IIQQQ")
_CODE = struct.Struct("<IIQHHHxx160s256s384s")
RECORD_CONTEXT, RECORD_MAPPED, RECORD_CODE = 11, 14, 17
CONTEXT_UNKNOWN = 2
"""The work was created, but where was not seen. Ids of contexts that were seen are odd."""
MAX_CONTEXTS = 20_000
"""Contexts that `StackTable.trim` leaves. Each path of a tree of tasks is one: they would grow with the run."""
MAX_CONTEXTS_UNTRIMMED = 5 * MAX_CONTEXTS
"""Contexts that there are at any time: between two calls of it, or in a session that never calls it."""
_SENT_STACKS = 1 << 16
"""Ids that the kernel remembers to have sent (``sent_stacks``, of which the least used go)."""
_STAND_INS = 1 << 63
"""No address that x86-64 has: what stands for functions of the kernel that are known by name."""
STAND_IN_BITS = 24
_MAX_STAND_INS = 1 << 12
INTERRUPTED = 1 << 63
PYTHON_ENTRY = 1 << 63
METHOD, METHOD_BITS, MAX_BYTECODES = 1 << 62, 47, 0x7FFF
"""A word of a stack that is no address in code but a frame of HotSpot's interpreter: FRAME_METHOD."""
STACK_ENDS = (
    "complete",
    "no_mapping",
    "no_table",
    "bad_row",
    "unreadable",
    "too_deep",
    "zero",
    "frame_pointers",
)
"""How the walk of a user stack ended, by number (``enum stack_end``)."""
WHOLE_ENDS = frozenset(("complete", "zero"))
"""Those of whole stacks. A return address of 0 is how runtimes mark their outermost functions: Go's
``runtime.goexit``, code that calls ``clone`` itself."""
PYTHON_ENDS = ("complete", "unreadable", "too_deep", "no_state")
"""The same for a thread's Python frames (``enum python_end``); "no_state": it never ran Python."""


class CodeAt(NamedTuple):
    """A Python frame: the address of its code object and the index of its instruction there.

    ``tag`` is made of the addresses of its line table and its file name: memory is reused, and where code and tag are
    the same it is the same code object. ``is_entry``: it is the outermost frame that its C activation of the
    interpreter loop runs; without ``code`` it is nothing but that mark.
    """

    code: int
    instruction: int
    tag: int
    is_entry: bool


class SentCode(NamedTuple):
    """A Python function as it was when a stack had it first.

    The beginnings of its code object, at ``address``, and of the objects that this points to, each with its own head.
    Empty if it could not be read.
    """

    address: int
    code: bytes
    name: bytes
    file: bytes
    lines: bytes

    @classmethod
    def parse(cls, raw: bytes) -> tuple[int, SentCode]:
        """The process image and what a ``struct code_record`` says of it."""
        _, image, address, names, files, lines, code, name, file = _CODE.unpack_from(raw)
        return image, cls(address, code, name[:names], file[:files], raw[_CODE.size : _CODE.size + lines])


@dataclass(frozen=True, slots=True)
class Stack:
    """A physical stack, leaf first: (address, whether it is a return address). ``end``: one of STACK_ENDS."""

    frames: tuple[tuple[int, bool], ...] = ()
    end: str = ""
    python: tuple[CodeAt, ...] = ()
    python_end: str = ""
    cut: int = 0
    """So many innermost frames belong to the work that another context created; 0: all of them."""

    @property
    def is_whole(self) -> bool:
        """Whether the outermost frame is there."""
        return self.end in WHOLE_ENDS


@dataclass(frozen=True, slots=True)
class Context:
    """Where a piece of work was created: the creator's stack, and the context of the creator's own work (or 0)."""

    stack: int
    parent: int
    image: int


class RawStack(NamedTuple):
    """A stack as it was sent. ``native``: 64-bit words, leaf first, of which `INTERRUPTED` marks those that are no
    return addresses; ``python``: pairs of words."""

    native: bytes
    end: int
    python: bytes
    python_end: int
    cut: int
    is_own: bool = False
    """Whether it has native frames of a language's, which mean something in one process only."""

    @property
    def is_whole(self) -> bool:
        """Whether the outermost frame is there."""
        return _name(STACK_ENDS, self.end) in WHOLE_ENDS

    @property
    def words(self) -> tuple[int, ...]:
        """The words of ``native``."""
        return struct.unpack(f"<{len(self.native) // 8}Q", self.native)


class StackTable:
    """All stacks of a session by their hash. Few are ever asked for twice, so they are kept as bytes."""

    def __init__(self, our_code: OurCode | None = None) -> None:
        """``our_code``: our programs in the kernel, whose addresses nobody has to look for."""
        self._our_code = our_code
        self._records: dict[int, RawStack] = {}
        self._fresh: list[tuple[int, int]] = []
        self._own: list[tuple[int, int]] = []
        self._mappings: list[FoundMapping] = []
        self._functions: list[tuple[int, SentCode]] = []
        self._contexts: dict[int, Context] = {}
        self._asked: dict[int, int] = {}
        """By context: the period in which it was asked for last, or before which it came."""
        self._forgotten: deque[int] = deque(maxlen=_SENT_STACKS)
        """Contexts that the kernel must send again when it sees them."""
        self.told: dict[int, Frame] = {}
        """Functions of the kernel that are known by name alone, by what stands for their address: see `stand_in`."""
        self._stand_ins: dict[Frame, int] = {}
        self._now = 0
        self._used: dict[int, int] = {}
        self._leaving: set[int] = set()
        """Stacks that the kernel sends again when it sees them: they go with the next `trim` if it does not."""

    def __contains__(self, digest: object) -> bool:
        return digest in self._records

    def add(self, records: Iterable[bytes]) -> None:
        """Keep what came out of the ring buffer."""
        for raw in records:
            if raw[0] == RECORD_CONTEXT:
                _, image, identity, stack, parent = _CONTEXT.unpack_from(raw)
                self._contexts[identity] = Context(stack, parent, image)
                # what was sampled lately comes before what is only new, of which few are ever sampled
                self._asked[identity] = max(self._asked.get(identity, -1), self._now - 1)
                if len(self._contexts) > MAX_CONTEXTS_UNTRIMMED:
                    self._forget_contexts()
                continue
            if raw[0] == RECORD_MAPPED:
                self._mappings.append(FoundMapping.parse(raw))
                continue
            if raw[0] == RECORD_CODE:
                self._functions.append(SentCode.parse(raw))
                continue
            _, depth, end, digest, image, python_depth, python_end, cut = _HEADER.unpack_from(raw)
            middle = _HEADER.size + 8 * depth
            python = raw[middle : middle + 16 * python_depth]
            native = raw[_HEADER.size : middle]
            if end >= len(STACK_ENDS) and self._our_code is not None:
                native = self._without_ours(native, self._our_code)
            is_own = bool(image) and not python_depth
            self._records[digest] = RawStack(native, end, python, python_end, cut, is_own)
            self._leaving.discard(digest)
            if python_depth:
                self._fresh.append((image, digest))
            elif is_own:
                self._own.append((image, digest))

    def _without_ours(self, native: bytes, our_code: OurCode) -> bytes:
        """A kernel stack in which names stand for addresses in our programs."""
        words = list(struct.unpack(f"<{len(native) // 8}Q", native))
        found = {at: own for at, word in enumerate(words) if (own := our_code.find(word)) is not None}
        for at, (program, offset) in found.items():
            if stand_in := self.stand_in(program):
                words[at] = stand_in + offset
        return struct.pack(f"<{len(words)}Q", *words) if found else native

    def put(self, digest: int, stack: RawStack) -> None:
        """A stack that was recorded, under an id of the recording's."""
        self._records[digest] = stack

    def stand_in(self, function: Frame) -> int:
        """What stands in kernel stacks for the address where such a function begins: no real one, and each so far from
        the next that offsets in it can be added. 0 if there are too many."""
        found = self._stand_ins.get(function, 0)
        if not found and len(self._stand_ins) < _MAX_STAND_INS:
            found = self._stand_ins[function] = _STAND_INS + (len(self._stand_ins) << STAND_IN_BITS)
            self.told[found >> STAND_IN_BITS] = function
        return found

    def put_context(self, identity: int, context: Context) -> None:
        """A context that was recorded."""
        self._contexts[identity] = context

    def raw(self, digest: int) -> RawStack | None:
        """The stack of that hash as it was sent; None if it never came."""
        return self._records.get(digest)

    def get(self, digest: int) -> Stack:
        """The stack of that hash; an empty one if it never came."""
        record = self._records.get(digest)
        if record is None:
            return Stack()
        words = record.words
        if record.end >= len(STACK_ENDS):  # a kernel stack, whose addresses have the bit set
            frames = tuple((w, i > 0) for i, w in enumerate(words))
        else:
            frames = tuple((w & ~INTERRUPTED, i > 0 and not w & INTERRUPTED) for i, w in enumerate(words))
        return Stack(
            frames,
            _name(STACK_ENDS, record.end),
            _Frames().of(record),
            _name(PYTHON_ENDS, record.python_end),
            record.cut,
        )

    def touch(self, digests: Iterable[int], now: int) -> None:
        """These stacks were sampled in the period of that number: `trim` keeps them for a while."""
        self._now = now
        for digest in digests:
            self._used[digest] = now

    def trim(self, before: int, limit: int) -> list[int]:
        """Begin to forget stacks that were not sampled since a period, if there are more than ``limit``.

        Those of contexts stay, of which `MAX_CONTEXTS` do; the others are forgotten at once. Returns the hashes of
        such stacks and the ids of such contexts, which the kernel must send again from now on. The stacks go with
        the next call, since samples that were counted before that may still mean them.
        """
        if len(self._contexts) > MAX_CONTEXTS:
            self._forget_contexts()
        forgotten = list(self._forgotten)
        self._forgotten.clear()
        kept = {context.stack for context in self._contexts.values()}
        for digest in self._leaving:
            if self._used.get(digest, -1) < before and digest not in kept:
                self._records.pop(digest, None)
                self._used.pop(digest, None)
        self._leaving.clear()
        if len(self._records) > limit:
            unused = (d for d in self._records if self._used.get(d, -1) < before)
            self._leaving.update(d for d in unused if d not in kept)
        return [*self._leaving, *forgotten]

    def _forget_contexts(self) -> None:
        """Keep `MAX_CONTEXTS`: those that samples were in last, with all that these lie in.

        Of those that were in use at the same time the innermost go first, so that none goes before those in it.
        """
        contexts, used = self._contexts, self._asked
        for identity in sorted(used, key=used.__getitem__, reverse=True):
            now, at = used[identity], contexts[identity].parent
            while at in contexts and used[at] < now:
                used[at] = now
                at = contexts[at].parent
        depth = self._depths()
        order = sorted(used, key=lambda identity: (used[identity], -depth[identity]))
        for identity in order[: len(contexts) - MAX_CONTEXTS]:
            del contexts[identity], used[identity]
            self._forgotten.append(identity)

    def _depths(self) -> dict[int, int]:
        """In how many others each context lies."""
        depth: dict[int, int] = {}
        for identity in self._contexts:
            chain: dict[int, None] = {}
            at = identity
            # an end is needed even where hashes make a circle
            while at in self._contexts and at not in depth and at not in chain:
                chain[at] = None
                at = self._contexts[at].parent
            below = depth.get(at, -1)
            for one in reversed(chain):
                below = depth[one] = below + 1
        return depth

    def forget(self, images: Collection[int]) -> None:
        """These process images are gone: so are the contexts in them, whose stacks `trim` may now forget."""
        self._contexts = {key: one for key, one in self._contexts.items() if one.image not in images}
        self._asked = {key: period for key, period in self._asked.items() if key in self._contexts}

    def context(self, identity: int) -> Context | None:
        """The context of that id; None if it is 0, unknown, forgotten, or never came.

        Whoever deals with samples asks for theirs: that is how `trim` knows which are in use.
        """
        found = self._contexts.get(identity)
        if found is not None:
            self._asked[identity] = self._now
        return found

    def take_mappings(self) -> list[FoundMapping]:
        """The mappings that came since the last call."""
        taken, self._mappings = self._mappings, []
        return taken

    def take_functions(self) -> list[tuple[int, SentCode]]:
        """(image, function) of the Python functions that came since the last call, before the stacks that have them."""
        taken, self._functions = self._functions, []
        return taken

    def take_fresh(self) -> list[tuple[int, int, tuple[CodeAt, ...]]]:
        """(image, hash, Python frames) of the stacks with such frames that came since the last call."""
        fresh, self._fresh = self._fresh, []
        frames = _Frames()
        return [(image, d, frames.of(self._records[d])) for image, d in fresh if d in self._records]

    def take_own(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(image, hash, words) of the stacks that came since the last call whose native frames are a language's."""
        own, self._own = self._own, []
        return [(image, d, self._records[d].words) for image, d in own if d in self._records]


class _Frames(dict[tuple[int, int], CodeAt]):
    """Python frames by the two words that stand for each: the stacks of one moment have most of theirs in common."""

    def __missing__(self, words: tuple[int, int]) -> CodeAt:
        code, place = words
        made = CodeAt(code & ~PYTHON_ENTRY, place & 0xFFFFFFFF, place >> 32, bool(code & PYTHON_ENTRY))
        self[words] = made
        return made

    def of(self, record: RawStack) -> tuple[CodeAt, ...]:
        """Those of a stack, innermost first."""
        return tuple(map(self.__getitem__, struct.iter_unpack("<QQ", record.python)))


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else ""
