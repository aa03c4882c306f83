"""Small charts for web pages, as SVG without script or styles of its own."""

from __future__ import annotations

from parprof.causes.cause import Cause
from parprof.exporters.answer import rounded
from parprof.model import Accounting
from parprof.wording import many

_COLUMN, _GAP, _HEIGHT, _TOP, _BOTTOM = 34, 6, 56, 14, 16
MAX_LEVELS = 65
"""Columns; what is beyond is put into the last one."""


def concurrency(account: Accounting | None, cores: int) -> str:
    """For which share of the time so many threads worked. Empty where that is not known."""
    if account is None or not sum(account.level_s):
        return ""
    levels = list(account.level_s[:MAX_LEVELS])
    if len(account.level_s) > MAX_LEVELS:
        levels[-1] = sum(account.level_s[MAX_LEVELS - 1 :])
    whole = sum(levels)
    bars = "".join(
        _column(at, seconds, whole, cores, at == MAX_LEVELS - 1) for at, seconds in enumerate(levels)
    )
    width = len(levels) * (_COLUMN + _GAP)
    height = _TOP + _HEIGHT + _BOTTOM
    return (
        '<figure class="levels"><figcaption>threads at work, by share of the time'
        f' ({many(cores, "core")})</figcaption><div class="scroll">'
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{_said(levels, whole)}">{bars}</svg></div></figure>'
    )


def _column(at: int, seconds: float, whole: float, cores: int, is_last: bool) -> str:
    share = seconds / whole
    height = max(share * _HEIGHT, 0.5)
    left, middle = at * (_COLUMN + _GAP), at * (_COLUMN + _GAP) + _COLUMN / 2
    kind = "stall" if at == 0 else "useful" if at >= cores else "idleness"
    amount = f"{rounded(100 * share)} %" if share >= 0.001 else ""
    return (
        f'<rect class="{kind}" x="{left}" y="{_TOP + _HEIGHT - height:.1f}" width="{_COLUMN}" '
        f'height="{height:.1f}"><title>{at} at work: {seconds:.3f} s</title></rect>'
        f'<text x="{middle}" y="{_TOP + _HEIGHT - height - 3:.1f}">{amount}</text>'
        f'<text x="{middle}" y="{_TOP + _HEIGHT + 12}">{at}{"+" if is_last else ""}</text>'
    )


def _said(levels: list[float], whole: float) -> str:
    parts = (f"{at} for {100 * seconds / whole:.1f} %" for at, seconds in enumerate(levels) if seconds)
    return f"threads at work: {', '.join(parts)}"


def loss_bar(cause: Cause) -> str:
    """What a cause takes of the cores' time, with its error bar."""
    low, high = (min(value, 100.0) for value in cause.interval_percent)
    lost = min(cause.lost_percent, 100.0)
    return (
        '<svg class="loss" viewBox="0 0 100 12" width="100" height="12" preserveAspectRatio="none" role="img" '
        f'aria-label="{rounded(lost)} %"><rect class="rest" width="100" height="12"/>'
        f'<rect class="idleness" width="{lost:.2f}" height="12"/>'
        f'<path d="M{low:.2f} 6H{high:.2f}M{low:.2f} 3V9M{high:.2f} 3V9"/></svg>'
    )
