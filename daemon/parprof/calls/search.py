"""The functions of a file that are meant, and where each is probed: found in a child process, travels as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

from parprof.calls.exits import (
    GOROUTINES,
    MAX_EXITS,
    MAX_LANDINGS,
    ONE_INSTRUCTION,
    PART,
    Exits,
    find_exits,
    find_landings,
)
from parprof.calls.placing import MAX_CALLS, CallPlace, FileCode, Placement
from parprof.calls.wanted import (
    MAX_TEXT,
    in_every_symbol,
    matches,
    names_many,
    ocaml_name,
    without_arguments,
    without_scopes,
)
from parprof.files.eh_frame_header import extents_around
from parprof.files.elf import ElfFile, Symbol
from parprof.files.elf_symbols import BIND_GLOBAL, TYPE_FUNCTION, TYPE_IFUNC
from parprof.files.go_functions import GoFunctions, go_functions
from parprof.probes.wait_code import lies_in
from parprof.symbols.names import readable, without_clone_suffixes

MAX_ROUTINES = 500
"""Of one file that are looked at closer: who means more of them does not mean calls, but a profile."""
MAX_LISTED = 1 << 16
_SUGGESTIONS = 3
_MOST_COMPARED = 1 << 15
_WORST = 0.6
_SCOPES = (".", "/", "::")
_MOST_NAMES = 1 << 28
"""Bytes of debug information's names that are looked through."""
_MAX_NAME = 1 << 13
NAMELESS = "+0x"
"""What the name of a function without a name begins with: where it begins in the file follows."""


class Copy(NamedTuple):
    """A function's code: the function itself, or a compiler's copy of it, or of its rest."""

    symbol: str
    vaddr: int
    why: str
    """Why it is probed where it is."""
    places: tuple[CallPlace, ...]
    exits: Exits = Exits()
    """Where its calls end, if that was looked for."""

    @property
    def is_part(self) -> bool:
        """Its rest: the beginning is inlined into who calls it."""
        return PART in self.symbol


class FoundFunction(NamedTuple):
    """A function by its name for people, with all copies that have code of their own."""

    name: str
    copies: tuple[Copy, ...]
    notes: tuple[str, ...]


class Found(NamedTuple):
    """What a file has of what was asked for."""

    routines: tuple[FoundFunction, ...] = ()
    matched: int = 0
    """How many routines are meant, those beyond `MAX_ROUTINES` too."""
    answered: tuple[int, ...] = ()
    """Which of the patterns and addresses, by index, mean at least one of them; patterns come first."""
    suggestions: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """For patterns that mean none: names that are nearly the same."""
    indirect: tuple[int, ...] = ()
    """Patterns that mean a function of which the dynamic linker chooses one of several (IFUNC)."""
    functions: int = 0
    """How many functions the file names."""
    landings: tuple[int, ...] = ()
    """Where threads go on after exceptions and longjmp, if that was looked for: ELF virtual addresses."""
    inlined: tuple[int, ...] = ()
    """Patterns that mean none, but whose name debug information has: inlined wherever they are called."""


def search(
    elf: ElfFile,
    patterns: Sequence[str],
    addresses: Sequence[int],
    *,
    nop5_is_cheap: bool = False,
    times: bool = False,
) -> Found:
    """Look for functions by name, and by an ELF virtual address that they have. ``times``: and for where they are left.

    Raises:
        ElfError: the file cannot be read.
    """
    symbols = list({(one.name, one.value): one for one in elf.symbols()}.values())
    named = len(symbols)
    meant: dict[str, list[Symbol]] = {}
    answered, indirect = set(), set()
    sought = [(index, pattern, in_every_symbol(pattern)) for index, pattern in enumerate(patterns)]
    for symbol in symbols:
        asked = {
            index
            for index, pattern, word in sought
            if word in symbol.name
            and (
                pattern == symbol.name
                or matches(pattern, without_clone_suffixes(symbol.name), readable(symbol.name))
            )
        }
        asked |= {
            len(patterns) + index
            for index, address in enumerate(addresses)
            if symbol.value <= address < symbol.value + max(symbol.size, 1)
        }
        if not asked:
            continue
        name = readable(symbol.name)
        if symbol.kind == TYPE_IFUNC:
            indirect |= asked
            continue
        if not _is_cold(symbol):
            answered |= asked
            meant.setdefault(name, []).append(symbol)
    for index, symbol in _of_fortran(elf, patterns, symbols, answered | indirect):
        answered.add(index)
        meant.setdefault(symbol.name, []).append(symbol)
    for index, symbol in _nameless(elf, addresses, answered | indirect, len(patterns)):
        answered.add(index)
        symbols.append(symbol)
        meant[symbol.name] = [symbol]
    _drop_aliases(meant)
    routines = _routines(elf, symbols, dict(list(meant.items())[:MAX_ROUTINES]), nop5_is_cheap, times)
    missing = [i for i, one in enumerate(patterns) if i not in answered | indirect and not names_many(one)]
    return Found(
        tuple(routines),
        len(meant),
        tuple(sorted(answered)),
        tuple((index, nearest(patterns[index], symbols)) for index in missing),
        tuple(sorted(indirect)),
        named,
        find_landings(elf, symbols) if times else (),
        tuple(index for index in missing if _has_debug_name(elf, patterns[index])),
    )


def _has_debug_name(elf: ElfFile, pattern: str) -> bool:
    """Whether debug information has this name in its table, where those of four characters and more are."""
    name = without_scopes(without_arguments(pattern)).encode("utf-8", "surrogateescape")
    return b"\0" + name + b"\0" in b"\0" + elf.section_data(b".debug_str", _MOST_NAMES)


def _of_fortran(
    elf: ElfFile, patterns: Sequence[str], symbols: Iterable[Symbol], answered: Set[int]
) -> list[tuple[int, Symbol]]:
    """Procedures of no module, whose symbols end in ``_``, by the names that debug information has."""
    left = {f"{one.lower()}_": index for index, one in enumerate(patterns) if index not in answered}
    return [
        (left[one.name], one)
        for one in symbols
        if one.name in left and one.kind != TYPE_IFUNC and _has_debug_name(elf, one.name.removesuffix("_"))
    ]


def _nameless(
    elf: ElfFile, addresses: Sequence[int], answered: Set[int], first: int
) -> list[tuple[int, Symbol]]:
    """Functions that have these addresses but no name, each with the index under which the address is ``answered``."""
    left = {first + at: address for at, address in enumerate(addresses) if first + at not in answered}
    around = extents_around(elf, left.values()) if left else {}
    out = []
    for index, address in left.items():
        if address in around:
            begin, size = around[address]
            # as if other files could call it: it is probed at its entry
            out.append((index, Symbol(f"{NAMELESS}{begin:x}", begin, size, BIND_GLOBAL, TYPE_FUNCTION)))
    return out


def list_functions(elf: ElfFile) -> list[int]:
    """Where the functions of a file begin, ELF virtual addresses.

    Raises:
        ElfError: the file cannot be read.
    """
    found = {one.value for one in elf.symbols() if one.kind != TYPE_IFUNC and not _is_cold(one)}
    return sorted(found)[:MAX_LISTED]


def _is_cold(symbol: Symbol) -> bool:
    """Code that is jumped to, in the middle of a call."""
    return ".cold" in symbol.name


def _is_part(symbol: Symbol) -> bool:
    return PART in symbol.name


def _drop_aliases(meant: dict[str, list[Symbol]]) -> None:
    """A place counts once, under the name that looks least like the implementation's."""
    at: dict[int, str] = {}
    for name in sorted(meant, key=lambda name: (name.startswith("_"), len(name), name)):
        kept = [one for one in meant[name] if at.setdefault(one.value, name) == name]
        meant[name] = list({one.value: one for one in kept}.values())
    for name in [name for name, kept in meant.items() if not kept]:
        del meant[name]


def _routines(
    elf: ElfFile, symbols: list[Symbol], meant: dict[str, list[Symbol]], nop5_is_cheap: bool, times: bool
) -> list[FoundFunction]:
    code = FileCode(elf, symbols)
    chosen: list[tuple[str, list[Symbol], tuple[Copy, ...], tuple[str, ...]]] = []
    for name, copies in meant.items():
        whole = [one for one in copies if not _is_part(one)]
        parts = [one for one in copies if _is_part(one)] if whole else []
        rest = _called_parts(code, parts, whole)
        notes = []
        if parts and rest is None:
            notes.append("where its beginning is inlined and only its rest is called, that is not counted")
        elif rest:
            notes.append("where its beginning is inlined, only calls that go on to its rest are counted")
        elif not whole:
            notes.append("its beginning is inlined: only calls that go on to its rest are counted")
        chosen.append((name, whole or copies, rest or (), tuple(notes)))
    flat = [one for _, copies, _, _ in chosen for one in copies]
    placements = code.place_all(flat, nop5_is_cheap=nop5_is_cheap, entries_only=times)
    go = go_functions(elf) if times else None
    made = [
        _timed(elf, one, at, symbols, go) if times else Copy(one.name, one.value, at.why, at.places)
        for one, at in zip(flat, placements, strict=True)
    ]
    # what is only counted need not be probed at its entry, which may be dear, or where a loop goes back to
    untimed = [index for index, copy in enumerate(made) if copy.exits.untimed]
    counted = code.place_all([flat[index] for index in untimed], nop5_is_cheap=nop5_is_cheap)
    for index, at in zip(untimed, counted, strict=True):
        made[index] = made[index]._replace(why=at.why, places=at.places)
    left = iter(made)
    return [
        FoundFunction(name, (*(next(left) for _ in copies), *rest), notes)
        for name, copies, rest, notes in chosen
    ]


def _called_parts(
    code: FileCode, parts: Sequence[Symbol], whole: Sequence[Symbol]
) -> tuple[Copy, ...] | None:
    """Parts of functions that have code of their own, where others go on to them; None: not all such places are known.

    Who calls the function as a whole goes on to its part, too, and is counted at its beginning.
    """
    out = []
    own = [(one.value, one.value + one.size) for one in whole]
    found = code.references(parts) if parts else {}
    for one in parts:
        references = found[one.value]
        calls = [at for at in references.calls if not lies_in(at, own)]
        if references.other or len(calls) > MAX_CALLS:
            return None
        if calls:
            places = tuple(CallPlace(at, True, True) for at in calls)
            exits = Exits(untimed="its beginning is inlined")
            out.append(Copy(one.name, one.value, "where others than the function go on to it", places, exits))
    return tuple(out)


def _timed(
    elf: ElfFile, symbol: Symbol, at: Placement, symbols: Sequence[Symbol], go: GoFunctions | None
) -> Copy:
    """A copy that is probed at its entry and at its exits, which are other instructions."""
    if go is not None and go.at(symbol.value) is not None:
        return Copy(symbol.name, symbol.value, at.why, at.places, Exits(untimed=GOROUTINES))
    if not at.places:
        return Copy(symbol.name, symbol.value, at.why, (), Exits(untimed=at.why))
    (entry,) = at.places
    exits = find_exits(elf, symbol, entry.vaddr, symbols)
    if entry.vaddr != symbol.value and exits.untimed == ONE_INSTRUCTION:
        at = Placement(
            (CallPlace(symbol.value, False, False),), "its first instruction: it leaves at the cheap one"
        )
        exits = find_exits(elf, symbol, symbol.value, symbols)
    return Copy(symbol.name, symbol.value, at.why, at.places, exits)


def nearest(pattern: str, symbols: Sequence[Symbol]) -> tuple[str, ...]:
    """Names that were perhaps meant: with other arguments, those that end as asked for, else those that look like it.

    Names have scopes of other forms than C++'s, too: Go's `main.(*Machine).Step` is its method `Step`.
    """
    if overloads := _overloads(pattern, symbols):
        return overloads
    asked = _plain(pattern)
    ends = tuple(scope + asked for scope in _SCOPES)
    scoped = {ocaml_name(one.name) or one.name for one in symbols}
    within = {name for name in scoped if (plain := _plain(name)) == asked or plain.endswith(ends)}
    if within:
        best = sorted(map(readable, within), key=lambda name: (pattern not in name, len(name), name))
        return tuple(best[:_SUGGESTIONS])
    names = {readable(one.name) for one in symbols[:_MOST_COMPARED] if abs(len(one.name) - len(pattern)) < 64}
    return tuple(difflib.get_close_matches(pattern, names, _SUGGESTIONS, _WORST))


def _overloads(pattern: str, symbols: Iterable[Symbol]) -> tuple[str, ...]:
    """Functions of that name, where arguments are asked for that none of them has."""
    bare = without_arguments(pattern)
    word = in_every_symbol(bare)
    if bare == pattern or not word:
        return ()
    named = sorted(
        {readable(one.name) for one in symbols if word in one.name}, key=lambda name: (len(name), name)
    )
    return tuple([name for name in named if matches(bare, "", name)][:_SUGGESTIONS])


def _plain(name: str) -> str:
    """A name in small letters, without what Go puts around a receiver, and instead of types.

    >>> _plain("main.(*Machine).Step"), _plain("slices.Sort[...]")
    ('main.machine.step', 'slices.sort')
    """
    return name.replace("(*", "").replace(")", "").replace("[...]", "").lower()


# as JSON


def found_from_json(raw: Any) -> Found:
    """What the child found, checked.

    Raises:
        ValueError: this is no such thing.
    """
    try:
        routines, matched, answered, suggestions, indirect, functions, landings, inlined = raw
        return Found(
            tuple(_routine(one) for one in _list(routines, MAX_ROUTINES)),
            _number(matched),
            tuple(_number(one) for one in _list(answered)),
            tuple((_number(index), tuple(map(_text, _list(names)))) for index, names in _list(suggestions)),
            tuple(_number(one) for one in _list(indirect)),
            _number(functions),
            tuple(_number(one) for one in _list(landings, MAX_LANDINGS)),
            tuple(_number(one) for one in _list(inlined)),
        )
    except TypeError as error:
        raise ValueError("no functions") from error


def addresses_from_json(raw: Any) -> list[int]:
    """ELF addresses, checked.

    Raises:
        ValueError: these are none.
    """
    return [_number(one) for one in _list(raw)]


def _routine(raw: Any) -> FoundFunction:
    name, copies, notes = raw
    return FoundFunction(
        _text(name), tuple(_copy(one) for one in _list(copies)), tuple(_text(one) for one in _list(notes))
    )


def _copy(raw: Any) -> Copy:
    symbol, vaddr, why, places, (exits, untimed) = raw
    return Copy(
        _text(symbol),
        _number(vaddr),
        _text(why),
        tuple(CallPlace(_number(at), bool(cheap), bool(knows)) for at, cheap, knows in _list(places)),
        Exits(tuple(_number(at) for at in _list(exits, MAX_EXITS)), _text(untimed)),
    )


def _number(raw: Any) -> int:
    if not isinstance(raw, int) or not 0 <= raw < 1 << 64:
        raise ValueError("no number")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or len(raw) > max(_MAX_NAME, MAX_TEXT):
        raise ValueError("no text")
    return raw


def _list(raw: Any, most: int = MAX_LISTED) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise ValueError("no list, or too long a one")
    return raw
