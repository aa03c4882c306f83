"""A profile as another number of cores would have had it, after the fact: the paper's variant n_T <> n (tallent-2009
sec. 2.1).

Which n_w there was does not depend on n, as long as the program does the same; what idles beside it does.
"""

from __future__ import annotations

from dataclasses import replace

from parprof.attribution.concurrency import elapsed_on
from parprof.errors import UsageError
from parprof.metrics import IDLENESS, OUTSIDE, STALL, STOLEN, WORK, Metrics
from parprof.model import Accounting, Interval, PathSample, Profile


def on_cores(profile: Profile, cores: int) -> Profile:
    """The same work on n cores.

    Raises:
        UsageError: the profile does not say at which n_w its call paths worked.
    """
    before = profile.process.cores
    if cores == before:
        return profile
    if any(one.metrics[WORK] and not one.levels for one in profile.samples):
        raise UsageError(
            "--cores: this profile does not tell at which n_w its call paths worked, as it is an old one or another"
            " tool rewrote it: measure again, with --cores"
        )
    samples = [_sample(one, before, cores) for one in profile.samples]
    return replace(
        profile,
        process=replace(profile.process, cores=cores),
        processes=[replace(one, cores=cores) for one in profile.processes],
        samples=samples,
        accounting=profile.accounting and _accounting(profile.accounting, samples, cores),
        intervals=[_interval(one, profile.samples, samples, cores / before) for one in profile.intervals],
        notes=[*profile.notes, f"n is {cores}, as --cores says; it was measured with {before}"],
    )


def _sample(sample: PathSample, before: int, cores: int) -> PathSample:
    metrics = sample.metrics.copy()
    available_ns = cores * elapsed_on(sample.levels, before, cores)
    metrics[IDLENESS] = max(available_ns - metrics[WORK] - metrics[STOLEN], 0.0)
    for metric in (STALL, OUTSIDE):
        metrics[metric] *= cores / before
    return replace(sample, metrics=metrics)


def _accounting(account: Accounting, samples: list[PathSample], cores: int) -> Accounting:
    counted_s = sum(max(cores - n_w, 0) * took_s for n_w, took_s in enumerate(account.level_s) if n_w)
    return replace(
        account,
        cores=float(cores),
        idleness_s=sum(one.metrics[IDLENESS] for one in samples) / 1e9,
        stall_s=account.stall_s * cores / account.cores,
        counted_idleness_s=None if account.counted_idleness_s is None else counted_s,
    )


def _interval(
    interval: Interval, before: list[PathSample], after: list[PathSample], ratio: float
) -> Interval:
    """Idleness was when it was before; where there was none it is where the work was."""
    rows = {}
    for number, part in interval.rows.items():
        rows[number] = metrics = part.copy()
        metrics[IDLENESS] = after[number].metrics[IDLENESS] * _share(part, before[number].metrics)
        for metric in (STALL, OUTSIDE):
            metrics[metric] *= ratio
    return replace(interval, rows=rows)


def _share(part: Metrics, whole: Metrics) -> float:
    metric = IDLENESS if whole[IDLENESS] else WORK
    return part[metric] / whole[metric] if whole[metric] else 0.0
