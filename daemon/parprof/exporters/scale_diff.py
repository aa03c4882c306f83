"""What changed between two answers of `parprof scale`: the speed-ups by cores, and the sites of the least time.

Spans of two runs cannot be added (work-span: they are maxima), but each site's part of the least time can be set
beside its part in the other run. Sites are the same by their label; those whose line has moved, by kind and function,
in the order of their lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from parprof.errors import ProfileFormatError
from parprof.exporters.scale_table import short_time
from parprof.exporters.webpage import WebPage, definitions, text
from parprof.scale.answer import factor, sentence
from parprof.scale.calls import CallSite
from parprof.scale.model import Prediction, Scale, ScaleSite, context_of
from parprof.untrusted import printable
from parprof.values import dataclass
from parprof.wording import many

_T = TypeVar("_T", ScaleSite, CallSite)
_MAX_ROWS = 200
_STYLE = "td.number, th.number { text-align: right; }"


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A site, or a call site, in both: its part of the least time, in seconds."""

    label: str
    before_s: float
    after_s: float

    @property
    def change_s(self) -> float:
        """How much longer it is."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True)
class ScaleChange:
    """From one answer to another."""

    a: Scale
    b: Scale
    pairs: tuple[tuple[Prediction, Prediction], ...]
    """Of the numbers of threads that both have, the smallest first."""
    sites: tuple[SiteRow, ...]
    """Those of the last pair; the largest change first."""
    calls: tuple[SiteRow, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What readers must know."""
        found = []
        if self.a.command != self.b.command:
            found.append(f"the commands differ: {self.a.command} / {self.b.command}")
        return tuple(found)


def change(a: Scale, b: Scale) -> ScaleChange:
    """What changed.

    Raises:
        ProfileFormatError: they are not of the same numbers of threads.
    """
    if a.is_serial != b.is_serial:
        raise ProfileFormatError(
            "one of them is of --serial, the other of --threads: run `parprof scale` alike for both"
        )
    after = {one.threads: one for one in b.predictions}
    pairs = tuple((one, after[one.threads]) for one in a.predictions if one.threads in after)
    if not pairs:
        raise ProfileFormatError(
            "they have no number of threads in common: run `parprof scale` with the same --threads for both"
        )
    old, new = pairs[-1]
    return ScaleChange(
        a,
        b,
        pairs,
        _rows(old.sites, new.sites, lambda one: (one.kind, context_of(one)), lambda one: one.bound_s),
        _rows(
            old.calls, new.calls, lambda one: (one.caller, one.callee), lambda one: one.on_span.local_span_s
        ),
    )


def _rows(
    before: Sequence[_T], after: Sequence[_T], alike: Callable[[_T], object], seconds: Callable[[_T], float]
) -> tuple[SiteRow, ...]:
    left: dict[str, _T] = {one.label: one for one in before}
    unknown: list[_T] = []
    rows = []
    for one in after:
        old = left.pop(one.label, None)
        if old is None:
            unknown.append(one)
        else:
            rows.append(SiteRow(one.label, seconds(old), seconds(one)))
    for one in sorted(unknown, key=_line):
        same = min((other for other in left.values() if alike(other) == alike(one)), key=_line, default=None)
        if same is None:
            rows.append(SiteRow(one.label, 0.0, seconds(one)))
        else:
            del left[same.label]
            rows.append(SiteRow(f"{one.label} (was {same.place})", seconds(same), seconds(one)))
    rows += [SiteRow(one.label, seconds(one), 0.0) for one in left.values()]
    return tuple(sorted(rows, key=lambda row: (-abs(row.change_s), row.label)))


def _line(one: ScaleSite | CallSite) -> tuple[str, int, str]:
    file, _, line = one.place.rpartition(":")
    return file, int(line) if line.isdecimal() and len(line) < 10 else 0, one.label


def to_text(found: ScaleChange, limit: int) -> str:
    """The comparison, with at most so many rows of each table."""
    return "\n".join(printable(line) for line in _lines(found, limit)) + "\n"


def _lines(found: ScaleChange, limit: int) -> Iterator[str]:
    for name, scale in (("A", found.a), ("B", found.b)):
        yield f"{name}  {sentence(scale)}"
    for note in found.notes:
        yield f"note: {note}"
    yield ""
    yield f" {_cores(found):>7}  at best A         B  change      span A    span B"
    for old, new in found.pairs:
        x, y = _speedup(old, found.a), _speedup(new, found.b)
        yield (
            f" {old.threads:7}  {x:9.2f}  {y:8.2f}  {_percent(x, y):>6}  {short_time(old.span_s):>10}"
            f"  {short_time(new.span_s):>8}"
        )
    threads = found.pairs[-1][0].threads
    tables = (
        (f"site ({_of(found, threads)})", "time", found.sites),
        ("call, local span on span", "span", found.calls),
    )
    for heading, what, rows in tables:
        changed = [row for row in rows if row.change_s]
        if changed:
            yield ""
            yield f"    {what} A    {what} B      change  {heading}"
            for row in changed[:limit]:
                yield (
                    f"  {short_time(row.before_s):>8}  {short_time(row.after_s):>8}  {_signed(row.change_s):>10}  "
                    f"{row.label}"
                )
            if changed[limit:]:
                yield f"          ... {len(changed) - limit} more beyond --limit {limit}"


def _speedup(one: Prediction, scale: Scale) -> float:
    return one.parallelism if scale.is_serial else one.speedup


def _cores(found: ScaleChange) -> str:
    return "threads" if found.a.is_serial else "cores"


def _of(found: ScaleChange, threads: int) -> str:
    return "executed serially" if found.a.is_serial else many(threads, "thread")


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{short_time(abs(seconds))}"


def _percent(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.0f} %" if before else ""


def page(found: ScaleChange) -> WebPage:
    """The same as a web page, which needs no script."""
    facts = [(name, text(sentence(scale), 2000)) for name, scale in (("A", found.a), ("B", found.b))]
    cores = _table(
        (_cores(found), "at best A", "B", "change", "span A", "span B"),
        (
            (
                str(old.threads),
                factor(x := _speedup(old, found.a)),
                factor(y := _speedup(new, found.b)),
                _percent(x, y),
                short_time(old.span_s),
                short_time(new.span_s),
            )
            for old, new in found.pairs
        ),
    )
    notes = "".join(f"<p>{text(note)}</p>" for note in found.notes)
    body = (
        f"<h1>What changed in how far it scales</h1>{definitions(facts)}{notes}{cores}"
        f"<h2>Sites, {_of(found, found.pairs[-1][0].threads)}</h2>{_rows_table(found.sites)}"
    )
    if found.calls:
        body += f"<h2>Calls: local span on span</h2>{_rows_table(found.calls)}"
    return WebPage("parprof scale: A and B", body, _STYLE)


def _rows_table(rows: Sequence[SiteRow]) -> str:
    return _table(
        ("A", "B", "change", "site"),
        (
            (short_time(row.before_s), short_time(row.after_s), _signed(row.change_s), row.label)
            for row in rows[:_MAX_ROWS]
        ),
    )


def _table(heads: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    head = "".join(f'<th class="number">{text(one)}</th>' for one in heads)
    cells = "".join(
        "<tr>" + "".join(f'<td class="number">{text(one)}</td>' for one in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
