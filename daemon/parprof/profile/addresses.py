"""Sampled addresses to frames: all that are new are looked up at once, because a file is best read a single time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from itertools import count

from parprof.facts.drain import Drain, Image
from parprof.facts.names import KernelPlace, Namer
from parprof.files.dso import ANONYMOUS, NO_MAPPING, Dso, FileKey
from parprof.kernel.stacks import INTERRUPTED, METHOD, RawStack, StackTable
from parprof.logical.paths import MAX_KERNEL_FRAMES
from parprof.model import Frame
from parprof.profile.jit import is_made_code, jit_frame
from parprof.symbols.kernel import KERNEL, UNNAMED
from parprof.symbols.symbolizer import NameRequest
from parprof.values import dataclass

Shape = tuple[int | None, ...]
"""How the walk of a stack ended, where it is cut, and its sites, leaf first."""
PlaceNumber = int
"""A number for a place in a file, as a return address or not: the same in all processes that map the file. Never
given out twice."""
_NO_CODE: PlaceNumber = 0
"""What only looks like a return address."""
_INTERPRETED: PlaceNumber = -1
"""A frame of HotSpot's interpreter, of which its front end tells the function."""
_ALWAYS: Mapping[PlaceNumber, tuple[Frame, ...]] = {
    _NO_CODE: (),
    _INTERPRETED: (Frame("Interpreter", module=ANONYMOUS),),
}
_Where = tuple[int, int, int, bool]
"""image, for code that others do not share, else 0; number of the file; address there; whether a return address."""
_UNKNOWN_FILE = 0
_MAX_CONTEXTS = 4096
_MAX_NAMELESS = 4096
"""Places in JIT code of a process that are asked for again."""
NOWHERE = Dso(("label", NO_MAPPING), NO_MAPPING, problem="no file")
"""Where a leaf was found that is in no mapping."""


@dataclass(slots=True)
class _Found:
    """A site that is looked up for the first time."""

    image: int
    address: int
    is_return: bool
    place: tuple[Dso, int]
    where: _Where
    known: list[tuple[dict[int, PlaceNumber], int]] = field(default_factory=list)
    """In which addresses of which processes it was found."""
    weight: int = 0


@dataclass(slots=True)
class _Space:
    """The addresses of a process image in one epoch of its load map."""

    epoch: int
    image: Image | None = None
    leaves: dict[int, PlaceNumber] = field(default_factory=dict)
    returns: dict[int, PlaceNumber] = field(default_factory=dict)
    """By word of a stack: also of frames that a signal interrupted, with the mark."""
    shapes: dict[int, Shape] = field(default_factory=dict)
    """By stack id."""

    def __len__(self) -> int:
        return len(self.leaves) + len(self.returns)


class AddressBook:
    """Frames of addresses, innermost inlined function first."""

    def __init__(self, namer: Namer, *, by_line: bool = False, kernel_depth: int = MAX_KERNEL_FRAMES) -> None:
        """``by_line``: one address stands for all that have the same line (or function, where lines are not known).

        ``kernel_depth``: show so many frames of kernel stacks, from the system call or interrupt on.
        """
        self._namer = namer
        self._by_line = by_line
        self.kernel_depth = kernel_depth
        self._spaces: dict[tuple[int, int], _Space] = {}
        self._files: dict[FileKey, int] = {}
        self._sites: dict[_Where, PlaceNumber] = {}
        self._frames: dict[PlaceNumber, tuple[Frame, ...]] = dict(_ALWAYS)
        self._numbers = count(_NO_CODE + 1)
        self._fresh: dict[PlaceNumber, _Found] = {}
        self._lines: dict[tuple[Frame, ...], PlaceNumber] = {}
        self._shapes: dict[Shape, Shape] = {}
        self._kernel: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        self._nameless: dict[int, dict[PlaceNumber, _Found]] = {}
        """By image: JIT code that its compiler has not told the name of so far."""
        self._kernel_seen: set[int] = set()
        """Kernel stacks whose addresses have been looked up."""

    def frames(self, image: int, epoch: int, address: int, is_return: bool) -> tuple[Frame, ...]:
        """Frames of an address of a process; none if it is not code."""
        space = self._spaces.get((image, epoch))
        if space is None:
            return ()
        if is_return:
            site = space.returns.get(address, _NO_CODE)
        else:
            site = space.leaves.get(address) or space.returns.get(address | INTERRUPTED, _NO_CODE)
        return self._frames.get(site, ())

    def shape(self, image: int, epoch: int, stack: int) -> Shape | None:
        """What a stack has in common with those of other processes that have the same frames; None if nothing."""
        space = self._spaces.get((image, epoch))
        return space.shapes.get(stack) if space is not None else None

    def kernel_frames(self, address: int, is_return: bool) -> tuple[Frame, ...]:
        """Frames of an address of the kernel, which do not tell the address: it would tell where the kernel is."""
        return self._kernel.get((address, is_return), UNNAMED)

    def look_up(self, drain: Drain) -> None:
        """Look up all addresses in the stacks of these facts, and of the contexts that they lie in."""
        self._ask_again(drain.images)
        stacks = drain.stacks
        kernel: set[KernelPlace] = set()
        new: list[tuple[_Space, int, RawStack | None]] = []
        for key in drain.facts:
            space = self._space(drain, key.image, key.epoch)
            for stack in (key.user, *_contexts(stacks, key.context)):
                if stack not in space.shapes:
                    raw = stacks.raw(stack)
                    space.shapes[stack] = ()
                    new.append((space, stack, raw))
                    self._find_sites(space, raw)
            if key.kernel and key.kernel not in self._kernel_seen:
                self._kernel_seen.add(key.kernel)
                kernel.update(stacks.get(key.kernel).frames)
        if self._fresh:
            if self._namer.uses_weights:
                self._weigh(drain)
            fresh, self._fresh = self._fresh, {}
            self._name(fresh, sum(count.samples for key, count in drain.facts.items() if key.event == 0))
            self._name_jit_code(fresh, drain.images)
            if self._by_line:
                self._merge_lines(fresh)
        for space, stack, raw in new:
            shape = _shape(space, raw)
            space.shapes[stack] = self._shapes.setdefault(shape, shape)
        unknown = kernel - self._kernel.keys()
        if unknown:
            found = self._namer.name_kernel(unknown, stacks.told)
            self._kernel.update(
                {place: frames for place, frames in found.items() if frames[0].name != KERNEL}
            )

    def _space(self, drain: Drain, image: int, epoch: int) -> _Space:
        space = self._spaces.get((image, epoch))
        if space is None:
            space = self._spaces[image, epoch] = _Space(epoch)
        if space.image is None:
            space.image = drain.images.get(image)
        return space

    def _find_sites(self, space: _Space, raw: RawStack | None) -> None:
        """Have a site for each address of a stack that is code."""
        if raw is None or not raw.native:
            return
        leaf, *words = raw.words
        leaf &= ~INTERRUPTED
        if leaf not in space.leaves:
            self._find_site(space, space.leaves, leaf, False)
        for word in words:
            if word not in space.returns:  # what is no code now may be when the load map has been read again
                self._find_site(space, space.returns, word, not word & INTERRUPTED)

    def _find_site(self, space: _Space, known: dict[int, PlaceNumber], word: int, is_return: bool) -> None:
        address, image = word & ~INTERRUPTED, space.image
        if address & METHOD:
            known[word] = _INTERPRETED
            return
        found = image.find(address, space.epoch) if image else None
        if found is None:
            if is_return:
                return
            # code that went away, unless a JIT compiler has told what it is
            found = NOWHERE, address
            where = (image.image if image else 0, _UNKNOWN_FILE, address, False)
        else:
            file = self._files.setdefault(found[0].key, len(self._files) + 1)
            where = (image.image if image and found[0].is_memory else 0, file, found[1], is_return)
        site = self._sites.get(where)
        if site is None:
            site = self._sites[where] = next(self._numbers)
            self._fresh[site] = _Found(image.image if image else 0, address, is_return, found, where)
        known[word] = site
        if site in self._fresh:
            self._fresh[site].known.append((known, word))

    def _weigh(self, drain: Drain) -> None:
        """How often each new site was sampled, as leaf or caller."""
        for key, counted in drain.facts.items():
            if key.event == 0:
                space = self._spaces[key.image, key.epoch]
                for stack in (key.user, *_contexts(drain.stacks, key.context)):
                    for site in set(_sites(space, drain.stacks.raw(stack))):
                        if site in self._fresh:
                            self._fresh[site].weight += counted.samples

    def _merge_lines(self, fresh: Mapping[PlaceNumber, _Found]) -> None:
        """Let one site of each line stand for all of them."""
        for site, found in fresh.items():
            line = tuple(replace(frame, address=0) for frame in self._frames[site])
            first = self._lines.setdefault(line, site)
            if first != site:
                del self._frames[site]
                self._sites[found.where] = first
                for known, word in found.known:
                    known[word] = first

    def _name(self, fresh: Mapping[PlaceNumber, _Found], total: int) -> None:
        weights: Counter[NameRequest] = Counter()
        for site, found in fresh.items():
            if found.place[0] is NOWHERE:
                self._frames[site] = (Frame(f"[unknown]+{found.address:#x}"),)
            else:
                weights[found.place[0], found.place[1], found.is_return] += found.weight
        named = self._namer.name(weights, total)
        for site, found in fresh.items():
            if found.place[0] is not NOWHERE:
                self._frames[site] = named[found.place[0], found.place[1], found.is_return]

    def _name_jit_code(self, fresh: Mapping[PlaceNumber, _Found], images: Mapping[int, Image]) -> None:
        """Names of code that no file has, where its JIT compiler has left some."""
        code: dict[int, dict[PlaceNumber, _Found]] = {}
        for site, found in fresh.items():
            if found.place[0].is_memory:
                code.setdefault(found.image, {})[site] = found
        for number, sites in code.items():
            wanted = {site: found.address - found.is_return for site, found in sites.items()}
            image = images.get(number)
            names = self._namer.name_jit_code(image, wanted.values()) if image else {}
            nameless = self._nameless.setdefault(number, {})
            for site, address in wanted.items():
                if name := names.get(address):
                    self._frames[site] = (jit_frame(name, sites[site].address),)
                    continue
                if is_made_code(sites[site].place[0]):
                    self._frames[site] = (Frame(ANONYMOUS, module=ANONYMOUS, address=sites[site].address),)
                if len(nameless) < _MAX_NAMELESS:
                    nameless[site] = sites[site]

    def _ask_again(self, images: Mapping[int, Image]) -> None:
        """Forget the places of JIT code that has got a name since: they are found anew, as places that have one."""
        for number, sites in self._nameless.items():
            image = images.get(number)
            if image is None or not sites:
                continue
            wanted = {site: found.address - found.is_return for site, found in sites.items()}
            names = self._namer.name_jit_code(image, wanted.values())
            for site in [site for site, address in wanted.items() if address in names]:
                found = sites.pop(site)
                self._sites.pop(found.where, None)
                for known, word in found.known:
                    known.pop(word, None)
            if names:
                for (owner, _), space in self._spaces.items():
                    if owner == number:
                        space.shapes.clear()

    def forget(self, images: Collection[int]) -> None:
        """Drop what belongs to processes that are gone."""
        self._spaces = {key: space for key, space in self._spaces.items() if key[0] not in images}
        for image in images:
            self._nameless.pop(image, None)

    def trim(self, limit: int = 1 << 13) -> None:
        """Forget what was only remembered to save work, if there is more than ``limit``, and end idle helpers."""
        for space in self._spaces.values():
            space.shapes.clear()
        self._shapes.clear()
        self._kernel_seen.clear()
        if len(self._frames) > limit:
            self._files.clear()
            self._sites.clear()
            self._lines.clear()
            self._nameless.clear()
            self._frames = dict(_ALWAYS)
        if not self._sites or sum(map(len, self._spaces.values())) > limit:
            self._spaces.clear()
        if len(self._kernel) > limit:
            self._kernel.clear()
        self._namer.trim()

    def __len__(self) -> int:
        """Number of places in files that are known."""
        return len(self._frames)


def _contexts(stacks: StackTable, context: int) -> Iterable[int]:
    """The stacks of a context and of those that it lies in."""
    if not context:
        return
    found = stacks.context(context)
    for _ in range(_MAX_CONTEXTS):
        if found is None:
            return
        yield found.stack
        found = stacks.context(found.parent)


def _shape(space: _Space, raw: RawStack | None) -> Shape:
    return (None, None) if raw is None else (raw.end, raw.cut, *_sites(space, raw))


def _sites(space: _Space, raw: RawStack | None) -> list[PlaceNumber]:
    if raw is None or not raw.native:
        return []
    leaf, *words = raw.words
    returns = space.returns
    return [space.leaves.get(leaf & ~INTERRUPTED, _NO_CODE), *[returns.get(word, _NO_CODE) for word in words]]
