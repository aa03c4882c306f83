"""What to do about it, in sentences: the same in every report."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from parprof.attribution import Effort, Verdict, percent, verdict
from parprof.causes.cause import LEAST_SAMPLES, Cause
from parprof.causes.diagnosis import Kind
from parprof.causes.nameless import MOSTLY_NAMELESS, how_to_name, nameless_share
from parprof.causes.waiting import asleep_for_requests_ns, asleep_to_serve_ns
from parprof.exporters.readable import without_parameters
from parprof.files.dso import ANONYMOUS
from parprof.metrics import OUTSIDE, Metrics
from parprof.model import Profile
from parprof.untrusted import printable
from parprof.wording import many

_MAX_NAME = 60
_LONG_PATH = 4
_MUCH_WITHHELD_PERCENT = 30.0
"""Of the cores' time: who was given so much less was not seen running as it would by itself."""


_MOSTLY_OUTSIDE_PERCENT = 75.0
"""Of the cores' time: of a program that had nothing to do for so long that is the answer."""


def location(file: str, line: int, module: str) -> str:
    """Where something is, as short as useful: ``(heat.c:42)``, ``(heat.c)``, ``[libc.so.6]``, ``[JIT]`` or nothing."""
    if file:
        name = os.path.basename(file)
        return printable(f"({name}:{line})" if line > 0 else f"({name})")
    if module == ANONYMOUS:
        return "[JIT]"
    return printable(f"[{os.path.basename(module)}]") if module else ""


def sentence(cause: Cause) -> str:
    """A cause in full: where, which kind, how much, how sure, what is gained at best, and what to try."""
    where = f" in {named(cause)}" if cause.function else ""
    return printable(f"{cause.kind.words}{where}: {cause.what}; {_amounts(cause)}. {_capital(cause.remedy)}.")


def brief(cause: Cause) -> str:
    """A cause in as few words as say what to do where."""
    lost = f"{rounded(cause.lost_percent)} % of the cores' time"
    return printable(f"{cause.kind.words}{_where(cause)}, {lost}: {cause.what}; {cause.remedy}")


def mention(cause: Cause) -> str:
    """A cause by name only."""
    return printable(f"{cause.kind.words}{_where(cause)} ({rounded(cause.lost_percent)} %)")


def named(cause: Cause) -> str:
    """Its call path, the long ones shortened, and where it is."""
    names = [shortened(name or "[unknown]") for name in cause.path]
    if len(names) > _LONG_PATH:
        names[1:-2] = ["..."]
    where = location(cause.file, cause.line, cause.module)
    return " > ".join(names) + (f" {where}" if where else "")


def headline(profile: Profile, causes: Sequence[Cause]) -> str:
    """The one sentence to read: what to act on, or that all is well; empty without samples."""
    total = profile.total()
    if not total.samples:
        return ""
    return sentence(causes[0]) if causes else nothing_to_act_on(profile, total)


def nothing_to_act_on(profile: Profile, total: Metrics) -> str:
    """Why no cause is named. ``total`` is the sum over all of the profile's samples."""
    judged, cores = verdict(total), profile.process.cores
    if judged is Verdict.PARALLEL and (withheld := withheld_percent(profile)) >= _MUCH_WITHHELD_PERCENT:
        return (
            f"busy machine: others had the cores, or a quota withheld them, for {rounded(withheld)} % of their time;"
            " nothing stands out in the rest, but waiting and serial code may be hidden: measure when it is quiet"
        )
    effort = Effort.of(total)
    if cores == 1 and effort.stall_ns > effort.overhead_ns and judged is not Verdict.PARALLEL:
        waited = rounded(percent(effort.stall_ns, effort.total_ns))
        return (
            f"for {waited} % of its core's time it does not work, but waits; n = 1, so no core could be idle"
        )
    if judged in (Verdict.PARALLEL, Verdict.UNKNOWN) or cores == 1:
        return judged.advice + ("; n = 1, so no core could be idle" if cores == 1 else "")
    lost_ns = effort.idleness_ns + effort.overhead_ns + effort.stall_ns
    lost = rounded(percent(lost_ns, effort.total_ns))
    if total.samples < LEAST_SAMPLES:
        if asleep_for_requests_ns(profile.samples):
            return (
                f"it did next to nothing ({many(total.samples, 'sample')}): threads wait for requests, events or "
                "keys, and there were hardly any; --sort wait tells where the others sleep"
            )
        return (
            f"{lost} % of the cores' time is lost as far as {many(total.samples, 'sample')} can tell, too few to "
            "say where: measure for longer, or with a higher -F"
        )
    share = nameless_share(profile.samples, profile.process.program)
    if share >= MOSTLY_NAMELESS:
        return (
            f"{lost} % of the cores' time is lost, {rounded(100 * share)} % of that in code that was made at run time"
            f" and has no names: {how_to_name(profile.process.program)}"
        )
    where = f"{lost} % of the cores' time is lost, but at no place that stands out"
    if (outside := outside_percent(profile, total)) >= _MOSTLY_OUTSIDE_PERCENT:
        where = (
            f"for {rounded(outside)} % of the cores' time there was nothing to do; of the rest {lost} % is lost, but at"
            " no place that stands out"
        )
    if asleep_to_serve_ns(profile.samples) >= effort.idleness_ns > effort.overhead_ns + effort.stall_ns:
        return f"{where}: meanwhile others wait for requests, and have nothing to do"
    return where


def withheld_percent(profile: Profile) -> float:
    """How much of the cores' time its threads wanted and were not given."""
    account = profile.accounting
    return percent(account.withheld_s, account.available_s) if account is not None else 0.0


def outside_percent(profile: Profile, total: Metrics) -> float:
    """In how much of the cores' time there was nothing to do."""
    account = profile.accounting
    whole_s = account.available_s if account is not None else (total.effort_ns + total[OUTSIDE]) / 1e9
    return percent(total[OUTSIDE] / 1e9, whole_s)


def rounded(share: float) -> str:
    """A percentage, as exact as it is worth reading."""
    return f"{share:.0f}" if share >= 9.95 else f"{share:.1f}"


def shortened(name: str) -> str:
    """A name of bearable length."""
    name = without_parameters(name)
    half = (_MAX_NAME - 3) // 2
    return name if len(name) <= _MAX_NAME else f"{name[: half + 1]}...{name[-half:]}"


def _where(cause: Cause) -> str:
    """In which function; empty if it is in none."""
    if not cause.function:
        return ""
    where = location(cause.file, cause.line, cause.module)
    return f" in {shortened(cause.function)}" + (f" {where}" if where else "")


def _amounts(cause: Cause) -> str:
    low, high = cause.interval_percent
    lost = f"{rounded(cause.lost_percent)} % of the cores' time is lost ({rounded(low)} to {rounded(high)} %)"
    if cause.kind is Kind.SERIAL_PROGRAM:
        return f"{rounded(cause.lost_percent)} % of the cores' time is lost"
    if math.isinf(cause.gain_bound):
        return lost
    return f"{lost}, at best {cause.gain_bound:.2f} times as fast without that"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
