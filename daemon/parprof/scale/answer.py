"""The answer in words: which site bounds the program, why, and what fixing it would give."""

from __future__ import annotations

from parprof.scale.model import Prediction, Scale, ScaleSite, function_of
from parprof.scale.record import Flag, SiteKind
from parprof.wording import many

_MOSTLY_UNSEEN = 0.5
_FEW = 0.01
_MOSTLY_BY_TURNS = 0.5
_OF_ONE_THREAD = (SiteKind.SERIAL, SiteKind.PENDING)
_TASKS = (SiteKind.TASK, SiteKind.TASKLOOP)
_CHAINS = (*_TASKS, SiteKind.DOACROSS)
_WORTH = 1.03
_WORTH_UNEVEN = 1.08
"""Advice that would make less of a difference than this is not given; the second: where shares are uneven. The longest
of many equal ones is some percent longer by chance, and a prediction is no nearer than that."""


def factor(value: float) -> str:
    """A speed-up in few digits.

    >>> factor(14.73), factor(1.66), factor(123.4)
    ('x14.7', 'x1.66', 'x123')
    """
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"x{value:.{digits}f}"


def bottleneck(prediction: Prediction) -> ScaleSite | None:
    """The site whose repair would give most; None if no one's would give anything."""
    worth = (site for site in prediction.sites if is_worth_fixing(site, prediction))
    return max(worth, key=lambda site: site.speedup_if_fixed, default=None)


def is_worth_fixing(site: ScaleSite, prediction: Prediction) -> bool:
    """Whether a site's repair would make a difference that is more than chance."""
    is_uneven = site.uneven_s > site.critical_s and site.kind not in _OF_ONE_THREAD
    least = _WORTH_UNEVEN if is_uneven else _WORTH
    return site.speedup_if_fixed >= prediction.speedup * least


def sentence(scale: Scale) -> str:
    """The answer."""
    main = scale.main
    if not main.work_s:
        return "nothing was measured: the program ended before it did any work"
    if scale.is_serial:
        return _serial_sentence(main)
    begin = f"on {main.threads} cores at best {factor(main.speedup)}"
    site = bottleneck(main)
    if main.flags & Flag.ELSEWHERE:
        return (
            "nothing can be said of how it scales: most of its CPU time was in other processes than the one that did "
            "most work, and what these do beside each other is not followed; run the one that matters by itself "
            "(parprof scale -- PROGRAM), or see `parprof record`, which has them all"
        )
    if main.is_partial and main.widest_team == 0:
        return (
            "nothing can be said of how it scales: it was killed, or left by exit or _exit, before a region, or all of "
            "its threads, were over"
        )
    if _is_blind(main):
        return (
            f"nothing can be said of how it scales: {main.lost.runtime:.0%} of its CPU time was in threads that cannot "
            "be followed (those of OpenMP and pthreads can)"
        )
    if main.widest_team == 0:
        return f"{begin}: the program began no parallel region and no thread that can be followed"
    if site is None:
        return f"{begin}: no single site stands in the way"
    function = function_of(tuple(reversed(site.frames)))
    where = f"{site.label}{f' in {function}' if function and not site.label.endswith(function) else ''}"
    return f"{begin}: {where} {_why(site, main)}; {_remedy(site, main)} would give {factor(site.speedup_if_fixed)}"


def _is_blind(main: Prediction) -> bool:
    """Whether the program worked in threads that are not followed: those of a runtime that is linked into it, say."""
    followed = sum(site.work_s for site in main.sites if site.kind not in _OF_ONE_THREAD)
    return main.lost.runtime > _MOSTLY_UNSEEN and followed < _FEW * main.work_s


def _serial_sentence(main: Prediction) -> str:
    begin = (
        f"parallelism {main.parallelism:.2f}: no number of cores gives more than {factor(main.parallelism)}"
    )
    call = max(main.calls, key=lambda one: one.on_span.local_span_s, default=None)
    if call is not None and call.on_span.local_span_s:
        return f"{begin}; {call.label} is {call.on_span.local_span_s / main.span_s:.0%} of the span"
    site = max(main.sites, key=lambda one: one.span_s, default=None)
    if site is None or not main.span_s:
        return begin
    return f"{begin}; {site.label} is {site.span_s / main.span_s:.0%} of the span"


def _has_few_threads(site: ScaleSite, main: Prediction) -> bool:
    """Whether there were fewer threads than cores: how even their shares are is of little weight."""
    is_chain = site.uneven_s > 0 and site.kind in _CHAINS
    return not is_chain and site.kind != SiteKind.MASKED and 0 < site.at_once < main.threads


def _is_by_turns(site: ScaleSite) -> bool:
    """Whether its threads, which may have equal shares, are on the longest path one after the other."""
    return site.kind == SiteKind.THREAD and site.chained_s > _MOSTLY_BY_TURNS * site.uneven_s


def _is_first_threads_share(site: ScaleSite) -> bool:
    """Whether others worked meanwhile, and it had most to do: the program's choice, or chance."""
    return site.kind in _OF_ONE_THREAD and site.uneven_s > site.bound_s / 2


def _why(site: ScaleSite, main: Prediction) -> str:
    share = f"{100 * site.share:.0f} % of the time that is left"
    if _is_first_threads_share(site):
        times = f"{site.uneven_factor:.1f} times the mean"
        return f"is the first thread's own share beside other threads, ends last, {times}, and is {share}"
    if site.kind in _OF_ONE_THREAD:
        return f"runs on one core and is {share}"
    if site.critical_s > site.uneven_s:
        return f"holds a lock, one thread at a time, and is {share}"
    if site.kind == SiteKind.SINGLE:
        return f"runs on one thread while the others wait and is {share}"
    if site.uneven_s and site.kind == SiteKind.DOACROSS:
        return f"is a chain of iterations that wait for each other and is {share}"
    if site.uneven_s and site.kind in _TASKS:
        return f"{_why_tasks(site, main)} and is {share}"
    if _is_by_turns(site):
        return f"stands for threads that wait for each other, one after the other on the longest path, and is {share}"
    if _has_few_threads(site, main):
        return f"is {share}, with at most {site.at_once} threads at once, whose number the program chooses"
    if site.uneven_s:
        return f"ends unevenly, its longest part {site.uneven_factor:.1f} times the mean, and is {share}"
    return f"is {share}"


def _remedy(site: ScaleSite, main: Prediction) -> str:
    if _is_first_threads_share(site):
        return "even shares"
    if site.kind in (*_OF_ONE_THREAD, SiteKind.SINGLE):
        return "running it in parallel"
    if site.critical_s > site.uneven_s:
        return "doing without the lock"
    if _is_by_turns(site):
        return "letting them work side by side"
    if _has_few_threads(site, main):
        return f"{main.threads} threads with even shares"
    if site.kind in (SiteKind.PHASE, SiteKind.REGION):
        return "even shares (schedule(dynamic) or smaller chunks)"
    if site.kind == SiteKind.THREAD:
        return "even shares for these threads"
    if site.kind == SiteKind.DOACROSS:
        return "a shorter chain (less code between wait and post)"
    if site.kind == SiteKind.LOOP:
        return "splitting its longest chunk"
    if site.kind == SiteKind.SECTIONS:
        return "as many sections as cores, with even shares,"
    if site.kind in (SiteKind.CRITICAL, SiteKind.ORDERED):
        return "even shares"
    if site.kind in _TASKS and site.uneven_s:
        return _remedy_for_tasks(site, main)
    return "splitting it"


def _has_few_tasks(site: ScaleSite, main: Prediction) -> bool:
    return site.span_count <= 1 and site.count < main.threads


def _why_tasks(site: ScaleSite, main: Prediction) -> str:
    """Tasks that are longer than the even share: one after the other, or too few, or one of them."""
    if site.span_count > 1:
        return f"has {site.span_count} of its {site.count} tasks one after the other on the longest path"
    if _has_few_tasks(site, main):
        return f"makes {many(site.count, 'task')} for {main.threads} cores"
    times = site.span_s * site.count / site.work_s if site.work_s else 1.0
    return f"has one task on the longest path, {times:.1f} times as long as the mean of its {site.count},"


def _remedy_for_tasks(site: ScaleSite, main: Prediction) -> str:
    if site.span_count > 1:
        return "shorter tasks, or more of them side by side,"
    return "more, shorter tasks" if _has_few_tasks(site, main) else "splitting that one"
