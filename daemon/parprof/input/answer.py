"""What to say of a profile: each routine with its law, and which will hurt first when the input grows tenfold."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches

from parprof.causes.ownership import interpreter
from parprof.errors import UsageError
from parprof.input.fit import ALIKE, EXPONENTIAL, NOISY, Fit, fit
from parprof.input.laws import CONSTANT, Size
from parprof.input.model import InputProfile, Point, Routine, RoutineName
from parprof.untrusted import visible
from parprof.values import dataclass

MIN_PERCENT = 1.0
"""Routines that cost less of the whole, with what they call, are not worth advice."""
_CONSIDERABLE = 1 / 3
"""Of what the dearest routine takes at ten times the input."""
_ABOUT_ALL = 0.9
"""Of what a routine's caller takes: it does little else then."""
_STEEP = 11.0
"""Ten times the input takes more than so many times as long: worse than linear."""
_SURE = 0.95
"""The r2 that a law must have to be worth advice."""
_DECADE = 10.0
"""The largest input over the smallest, at least, of a law that is extended by a decade."""
_SLOPE_WITHIN = 1.0
"""Half the width of the 95 % interval of the slope at the larger sizes, at most, of a law that is steeper than linear:
a wrong power is a factor of ten in what ten times the input takes."""
_SLOPE_BESIDE = 0.3
"""How far the law may be from that slope where the interval is narrower: laws are rounded to a few powers."""
_WORTH_A_WORD = 10.0
"""Routines of which no growth is known and that cost more percent than so are named beside the advice."""
_SUPERLINEAR = 30.0
"""A law by which ten times the input takes more than so many times as long is beyond n log n: so must the slope be."""
_CLEARLY = 5.0
"""How many times the law's error n log n must have at least to be out of the question, though the slope at the larger
sizes, which may change among them, might be linear."""
_STEP_CALLS, _STEP_SHARE = 1000, 0.05
"""A step of others' work: called so often, at least, with no call that takes more than this part of what all do, as one
does that makes a table larger now and then."""
_MOSTLY = 50.0
"""Percent of all cost: most of it."""
_VARIES = 2.0
"""The worst cost of calls with one size of input over their mean, from where something else decides."""
_MIN_CALLS = 3
_SHOWN_NAMES = 3
_SHOWN_CALLERS = 4
_SHOWN_PATTERN = 200


@dataclass(frozen=True, slots=True)
class Line:
    """One routine as reports show it."""

    routine: Routine
    total: Point
    cost_percent: float
    """Its own cost, of all cost."""
    inclusive_percent: float
    """The cost of its outermost activations with what they called, of all cost; at most 100."""
    law: Fit
    """Of the mean cost over trms."""
    rms_law: Fit
    worst: float = 1.0
    """The worst cost over the mean one, of calls with one size of input: that size on which most was spent."""

    @property
    def thread_percent(self) -> float:
        """Input that other threads wrote, of all its input."""
        return _percent(self.total.induced, self.total.trms_sum)

    @property
    def external_percent(self) -> float:
        """Input that system calls brought, of all its input."""
        return _percent(self.total.external, self.total.trms_sum)


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def lines(profile: InputProfile, pattern: str = "") -> list[Line]:
    """The routines, those with the greatest cost of their own first; only those whose name ``pattern`` finds.

    Raises:
        UsageError: the pattern is none, or matches no routine.
    """
    routines = list(profile.routines.values())
    if pattern:
        routines = _matching(routines, pattern)
    whole = profile.total_self_cost
    out = [_line(routine, whole) for routine in routines]
    return sorted(
        out,
        key=lambda line: (
            -line.total.self_cost,
            -line.total.cost_sum,
            line.routine.identity.name,
            line.routine.identity.callers,
            line.routine.identity.thread or 0,
        ),
    )


def _line(routine: Routine, whole: int) -> Line:
    total = routine.total()
    law = fit([_size(point.trms, point) for point in routine.by_trms()])
    rms_law = fit([_size(point.rms, point) for point in routine.by_rms()])
    own = _percent(total.self_cost, whole)
    inclusive = min(100.0, _percent(total.outer_cost, whole))
    return Line(routine, total, own, inclusive, law, rms_law, _worst(routine))


def _size(n: int, point: Point) -> Size:
    return Size(n, point.cost_mean, point.calls, point.cost_max, point.outer_cost / point.calls)


def _worst(routine: Routine) -> float:
    known = [point for point in routine.by_trms() if point.calls >= _MIN_CALLS and point.cost_sum]
    dearest = max(known, key=lambda point: point.cost_sum, default=None)
    return dearest.cost_max / dearest.cost_mean if dearest else 1.0


def check_pattern(pattern: str) -> re.Pattern[str]:
    """The expression of --routine.

    Raises:
        UsageError: it is none.
    """
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:  # the last two: huge ones
        raise UsageError(
            f"--routine {visible(pattern, _SHOWN_PATTERN)}: not a regular expression: {error}"
        ) from error


def _matching(routines: list[Routine], pattern: str) -> list[Routine]:
    wanted = check_pattern(pattern)
    found = [routine for routine in routines if wanted.search(routine.identity.name)]
    if found:
        return found
    names = sorted({routine.identity.name for routine in routines})
    near = get_close_matches(pattern, names, _SHOWN_NAMES, 0.4)
    told = f"; near it: {', '.join(near)}" if near else ""
    raise UsageError(
        f"--routine {visible(pattern, _SHOWN_PATTERN)} matches none of {len(names)} routines{told}"
    )


def place(identity: RoutineName) -> str:
    """Where a routine is: ``book.c:90``, or the module."""
    if identity.file:
        return (
            f"{os.path.basename(identity.file)}:{identity.line}"
            if identity.line
            else os.path.basename(identity.file)
        )
    return identity.module


def called_by(identity: RoutineName) -> str:
    """Who called it, innermost first, and in which thread: `` called by solve < main``; empty where both are merged."""
    thread = "" if identity.thread is None else f" in thread {identity.thread}"
    if not identity.callers:
        return thread
    shown = [*reversed(identity.callers)][:_SHOWN_CALLERS]
    return (
        f" called by {' < '.join(shown)}{' < ...' if len(identity.callers) > _SHOWN_CALLERS else ''}{thread}"
    )


def full_name(identity: RoutineName) -> str:
    """The routine, where it is and who called it: ``pairs (book.c:90) called by solve < main``."""
    where = place(identity)
    return f"{identity.name}{f' ({where})' if where else ''}{called_by(identity)}"


def hurts_first(found: list[Line]) -> Line | None:
    """The routine that will take the largest part of the time at ten times its input; None where none is known to.

    Its own cost grows by its law. One that grows worse than its input is named first if it then takes a considerable
    part of what the dearest one does: that will be more with each further step. A routine that spends all in what it
    calls is named where none that does work itself takes such a part, or not half of what that one does.
    """
    known = [line for line in found if _is_sure(line)]
    if not known:
        return None
    dearest = max(known, key=_then)
    steep = [line for line in known if line.law.tenfold > _STEEP]
    spender = _spender([line for line in steep if _spends_considerably(line, dearest)])
    own = [line for line in steep if line.cost_percent >= MIN_PERCENT]
    if own:
        steepest = max(own, key=_then)
        is_minor = spender and _spent_then(steepest) < _MOSTLY / 100 * _spent_then(spender)
        if _then(steepest) >= _CONSIDERABLE * _then(dearest) and not is_minor:
            return steepest
    if spender or _then(dearest) >= _WORTH_A_WORD:
        return spender or dearest
    return _spender([line for line in known if line.inclusive_percent >= _WORTH_A_WORD])


def _spender(considerable: Sequence[Line]) -> Line | None:
    """The one that takes most with what it calls: of callers of each other that take about the same, who works most."""
    most = max(map(_spent_then, considerable), default=0.0)
    return max(
        (line for line in considerable if _spent_then(line) >= _ABOUT_ALL * most),
        key=lambda line: line.cost_percent,
        default=None,
    )


def _spent_then(line: Line) -> float:
    """Its cost with what it calls, at ten times its input, in percent of all that there is today."""
    return line.inclusive_percent * line.law.tenfold


def _spends_considerably(line: Line, dearest: Line) -> bool:
    """Whether it takes a considerable part with what it calls, today and at ten times its input."""
    return line.inclusive_percent >= _WORTH_A_WORD and _spent_then(line) >= _CONSIDERABLE * _then(dearest)


def _then(line: Line) -> float:
    """Its own cost at ten times its input, in percent of all that there is today."""
    return line.cost_percent * line.law.tenfold


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a routine's own cost becomes at ten times its input, if its law holds."""

    line: Line
    share_percent: float
    """Of the cost that all routines with a law, and the rest as it is, then have."""


def forecast(found: list[Line], limit: int) -> list[Forecast]:
    """The routines that will cost most, largest first, by laws that are sure. Costs of others stay what they are."""
    whole = sum(line.cost_percent * (line.law.tenfold if _is_sure(line) else 1.0) for line in found)
    sure = [
        Forecast(line, _percent(line.cost_percent * line.law.tenfold, whole))
        for line in found
        if _is_sure(line) and line.cost_percent > 0
    ]
    return sorted(sure, key=lambda one: -one.share_percent)[:limit]


def _is_sure(line: Line) -> bool:
    return is_sure(line.law) and line.inclusive_percent >= MIN_PERCENT


def is_sure(law: Fit) -> bool:
    """Whether the points support a law so well that it may be extended by a decade."""
    is_wide = law.largest - law.fixed >= _DECADE * (law.smallest - law.fixed)
    return law.is_found and law.r2 >= _SURE and is_wide and _slope_is_known(law)


def _slope_is_known(law: Fit) -> bool:
    if law.tenfold <= _STEEP:
        return True
    might_be_linear = law.exponent - law.exponent_error <= 1 and law.linear_error < _CLEARLY * law.error
    if law.tenfold > _SUPERLINEAR and might_be_linear:
        return False
    differs = abs(law.steepness - law.exponent)
    return law.exponent_error <= _SLOPE_WITHIN and differs <= max(law.exponent_error, _SLOPE_BESIDE)


def advice(found: list[Line]) -> str:
    """One sentence for people."""
    if not found:
        return "no routine was seen: was the program built for it, and did it call anything?"
    explosive = grows_exponentially(found)
    if not explosive:
        return _advice(found)
    rest = _advice([line for line in found if line.law.reason != EXPONENTIAL])
    return f"{_explosion(explosive)}{f'; apart from it: {rest}' if rest else ''}"


def _of_interpreter(*named: Line | None) -> str:
    """What is to be said where routines that are named are an interpreter's; empty if none is."""
    modules = (line.routine.identity.module for line in named if line)
    name = next(filter(None, map(interpreter, modules)), "")
    return (
        f"; {name} runs a script, whose functions are not told apart: this is a routine of its own"
        if name
        else ""
    )


def grows_exponentially(found: Sequence[Line]) -> Line | None:
    """The dearest routine whose cost is multiplied by each further cell of its input."""
    return max(
        (line for line in found if line.law.reason == EXPONENTIAL and line.cost_percent >= MIN_PERCENT),
        key=lambda line: line.cost_percent,
        default=None,
    )


def _explosion(line: Line) -> str:
    law = line.law
    return (
        f"{full_name(line.routine.identity)} grows exponentially ({law.n_sizes} sizes, {law.smallest:.0f} to "
        f"{law.largest:.0f}): each further cell of input takes {times(law.factor)} as long, and with 10 x the input "
        "it will hardly come to an end"
    )


def _advice(found: list[Line]) -> str:
    if not found:
        return ""
    line, unknown = hurts_first(found), costly_unknown(found)
    if line is None or (unknown and line.law.model == CONSTANT):
        dearest = unknown or found[0]
        return f"{_nothing_known(dearest)}{_of_interpreter(dearest)}"
    law, identity = line.law, line.routine.identity
    out = (
        f"{full_name(identity)} {growth(law)} ({law.n_sizes} sizes, {law.smallest:.0f} to {law.largest:.0f}): "
        f"10 x the input will take {times(law.tenfold)} as long"
    )
    if not any(_is_sure(one) and one.law.tenfold > _STEEP for one in found):
        what = "no routine whose growth is known" if unknown else "nothing"
        out = f"{what} grows worse than its input; {out}"
    kinds = [(line.thread_percent, "other threads"), (line.external_percent, "system calls")]
    parts = [f"{percent:.0f} % of its input came from {kind}" for percent, kind in kinds if percent >= 5]
    if line.inclusive_percent >= _WORTH_A_WORD and line.cost_percent < line.inclusive_percent / 2:
        parts.insert(0, f"with what it calls it takes {line.inclusive_percent:.0f} % of the cost")
    if unknown:
        name = unknown.routine.identity.name
        parts.append(f"how {name} grows ({_share(unknown)}) is not known: {why_unknown(unknown)}")
    return f"{'; '.join([out, *parts])}{_of_interpreter(line, unknown)}"


def _nothing_known(line: Line) -> str:
    """Where the dearest routine has no law, and no other one grows."""
    dear = f"{line.routine.identity.name} costs most ({line.cost_percent:.0f} %)"
    if _spends_in_others(line):
        dear = f"most is spent in {line.routine.identity.name} and what it calls ({line.inclusive_percent:.0f} %)"
    if _is_sure(line):
        return f"no routine whose growth is known takes a considerable part: {dear}, and {growth(line.law)}"
    if line.law.is_found:
        return (
            f"no law is sure: {dear}, and {why_unknown(line)}; run with inputs of several sizes and add the runs up "
            "(--with FILE)"
        )
    if _varies(line):
        return f"no law: {dear}, but how it grows its inputs do not tell: {why_unknown(line)}"
    reason = why_unknown(line) if line.law.reason == NOISY else line.law.reason
    return (
        f"no law: {dear}, but its inputs tell no growth ({reason}); run with inputs of several sizes and add the runs "
        "up (--with FILE)"
    )


def _share(line: Line) -> str:
    """Its part of the cost; where most is in what it calls, that too."""
    if _spends_in_others(line):
        return f"{line.inclusive_percent:.0f} % of the cost with what it calls"
    return f"{line.cost_percent:.0f} % of the cost"


def _spends_in_others(line: Line) -> bool:
    return line.cost_percent < _MOSTLY <= line.inclusive_percent


def costly_unknown(found: Sequence[Line]) -> Line | None:
    """The routine with the greatest cost of its own among those of which no law is sure; None where it is small.

    Steps say nothing of growth, it is their number that grows: where they are most of the cost, it is the routine that
    makes them, though most is spent in what it calls.
    """
    unsure = [line for line in found if not _is_sure(line) and not _is_step(line)]
    line = max(unsure, key=lambda line: line.cost_percent, default=None)
    if line is None or line.cost_percent >= _WORTH_A_WORD:
        return line
    if sum(one.cost_percent for one in found if _is_step(one)) < _MOSTLY:
        return None
    return line if line.cost_percent >= MIN_PERCENT and line.inclusive_percent >= _MOSTLY else None


def _is_step(line: Line) -> bool:
    """Whether its calls are many, and each a small matter that costs about the same."""
    if line.law.is_found and line.law.model != CONSTANT:
        return False
    total = line.total
    return total.calls >= _STEP_CALLS and total.cost_max <= _STEP_SHARE * total.cost_sum


def growth(law: Fit) -> str:
    """How the cost grows, for people: ``grows as n^2``."""
    if law.model == CONSTANT:
        return "does not grow with its input"
    return f"grows {'at worst ' if law.at_worst else ''}as {law.model}{beyond(law)}"


def beyond(law: Fit) -> str:
    """What the law's n leaves out, if anything."""
    return f" beyond the {law.fixed:.0f} cells that each call reads" if law.fixed else ""


def _varies(line: Line) -> bool:
    return line.worst >= _VARIES


def why_unknown(line: Line) -> str:
    """Why a routine has no law that is sure, for people."""
    law = line.law
    if law.is_found and law.r2 < _SURE:
        return f"its points fit {law.model} only roughly"
    if law.is_found and not _slope_is_known(law):
        return f"its points fit {law.model}, but how steeply it grows at its larger inputs is uncertain"
    if law.is_found:
        beginning = "" if law.model == CONSTANT else f"its points fit {law.model}, but "
        return f"{beginning}its largest input was less than {_DECADE:.0f} times its smallest"
    if law.reason == EXPONENTIAL:
        return f"it grows exponentially, {times(law.factor)} for each further cell"
    if _varies(line):
        return (
            f"calls with inputs of one size cost up to {times(line.worst)} their mean, so something else decides, "
            "such as a number that they are given"
        )
    if law.reason == NOISY:
        return "its costs follow no one law over the sizes of its inputs"
    if law.reason == ALIKE:
        return "its inputs are too alike in size"
    remedy = ": add runs with others (--with)" if law.n_sizes else ""
    return f"its calls had {law.reason}{remedy}"


def times(factor: float) -> str:
    """A factor: ``100 x``."""
    return f"{factor:.0f} x" if factor >= 10 else f"{factor:.2g} x"


def coverage(profile: InputProfile) -> str:
    """What the instrument saw of the bytes that system calls brought, and of those that they took."""
    seen, sent = profile.seen_read_bytes, profile.seen_sent_bytes
    if profile.counted_by == "tool":
        return f"{size(seen)} read and {size(sent)} sent by system calls: all of them pass through the tool"
    if profile.all_read_bytes is None:
        return (
            f"{size(seen)} from system calls and {size(sent)} to them were seen; how much there was is not known, "
            "the kernel was not asked"
        )
    out = f"seen were {_of(seen, profile.all_read_bytes)} that system calls brought"
    if profile.all_sent_bytes is not None:
        out += f", and {_of(sent, profile.all_sent_bytes)} that they took"
    if profile.counted_by == "bpf":
        return f"{out} (counted by BPF; what ld.so reads is in it)"
    return f"{out} (by /proc/PID/io: what went through sockets is not known, counting that takes root)"


def _of(seen: int, known: int) -> str:
    share = 100.0 * min(seen / known, 1.0) if known else 100.0
    return f"{size(seen)} of {size(known)} ({share:.0f} %)"


def size(n_bytes: float) -> str:
    """Bytes for people: ``41.2 MB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    raise AssertionError
