"""What being profiled cost a program, in all and by kind, as a share of what it did for itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parprof.patterns import regex

SPUN = "threads spinning meanwhile"
"""See `spun_for_us_ns`; beside `parprof.kernel.records.COST_NAMES`."""
BUDGET = "cost_budget_percent"
"""Beside the shares, in `Profile.extra`: what the cost is held to."""
_SHARE = regex("cost_[a-z_']+_percent")


def percent_of_rest(paid_ns: float, cpu_ns: float) -> float:
    """What was paid, in percent of the CPU time that the program used for itself."""
    return 100 * paid_ns / max(cpu_ns - paid_ns, 0.01 * cpu_ns) if cpu_ns else 0.0


def spun_for_us_ns(paid_ns: float, spin_ns: float, cores: int) -> float:
    """CPU time in which others spun because a thread was held up that they wait for: an estimate.

    Where all have the same to do, each pays for all that the others pay; never more than was spun in all.
    """
    return min(spin_ns, paid_ns * max(cores - 1, 0))


def with_spun(paid_ns: Mapping[str, float], spin_ns: float, cores: int) -> dict[str, float]:
    """What was paid, by kind, with what others spun meanwhile."""
    return {**paid_ns, SPUN: spun_for_us_ns(sum(paid_ns.values()), spin_ns, cores)}


def cost_shares(paid_ns: Mapping[str, float], cpu_ns: float) -> dict[str, str]:
    """The part that each kind has in the percentage of all of them, for `Profile.extra`."""
    all_ns = sum(paid_ns.values())
    all_percent = percent_of_rest(all_ns, cpu_ns)
    return {
        f"cost_{kind.replace(' ', '_')}_percent": f"{all_percent * ns / all_ns:.3f}"
        for kind, ns in paid_ns.items()
        if ns
    }


def merged_shares(parts: Iterable[tuple[Mapping[str, str], float]]) -> dict[str, str]:
    """The shares of all together, of (`Profile.extra`, CPU time) of each."""
    sums: dict[str, float] = {}
    whole_ns = 0.0
    for extra, cpu_ns in parts:
        whole_ns += cpu_ns
        for key, value in extra.items():
            if key != BUDGET and _SHARE.fullmatch(key):
                try:
                    sums[key] = sums.get(key, 0.0) + float(value) * cpu_ns
                except ValueError:
                    continue  # the file is not ours
    return {key: f"{of_it / whole_ns:.3f}" for key, of_it in sums.items()} if whole_ns else {}
