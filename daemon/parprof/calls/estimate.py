"""What counting calls costs: reckoned from a short look, before it goes on for long.

The look is a count itself, of a quarter of a second or until it has taken 50 ms of the program's CPU time (the breaker
in the kernel sees to that): samples say how long functions take, not how often they are called, and a bound that they
give is wrong by a factor of a hundred where a function is short.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK_SECONDS = 0.25
_LARGEST_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen."""

    elapsed_s: float
    cpu_s: float
    """Of the program meanwhile, what we took included."""
    cheap_calls: int
    dear_calls: int
    cheap_ns: float
    """What a call costs at a cheap place: the trap, and our program."""
    dear_ns: float
    samples: int = 0
    kernel_samples: int = 0
    """Of these, in the kernel: where probes take their time. A program's own system calls are there, too."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What it would cost to go on."""

    calls_per_s: float
    """Of the program when nobody counts."""
    call_ns: float
    """What counting one costs, on average."""
    share: float
    """CPU time that counting takes, by the CPU time that the program then takes for itself."""

    @property
    def cores(self) -> float:
        """How many cores counting would keep busy."""
        return self.calls_per_s * self.call_ns / 1e9

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100 * self.share

    def text(self, routines: int) -> str:
        """In words.

        >>> Estimate(2100, 900, 0.002).text(3)
        'estimate: 3 routines, 2,100 calls/s x 0.9 us = 0.2 % of a core'
        """
        what = "1 routine" if routines == 1 else f"{routines:,} routines"
        return (
            f"estimate: {what}, {self.calls_per_s:,.0f} calls/s x {self.call_ns / 1000:.1f} us = "
            f"{_percent(100 * self.cores)} of a core"
        )


def estimate(look: Look) -> Estimate:
    """What a look tells. What counting itself took meanwhile is left out of the program's time.

    Where that is nearly all of it, the prices, which are right within a third, say little of the rest; but then samples
    do, by how many of them are not in the kernel.

    >>> made = estimate(Look(0.02, 0.02, 10_000, 0, 1000.0, 5000.0))
    >>> round(made.calls_per_s), made.share
    (1000000, 1.0)
    >>> round(estimate(Look(0.02, 0.02, 10_000, 0, 1900.0, 5000.0, 98, 74)).share, 2)
    3.0
    """
    calls = look.cheap_calls + look.dear_calls
    taken_s = (look.cheap_calls * look.cheap_ns + look.dear_calls * look.dear_ns) / 1e9
    if not calls or look.elapsed_s <= 0:
        return Estimate(0.0, look.cheap_ns, 0.0)
    cpu_s = max(look.cpu_s, 1e-9)
    taken_s = min(taken_s, _LARGEST_SHARE * cpu_s)
    if look.samples:
        taken_s = min(taken_s, cpu_s * (look.kernel_samples + 1) / (look.samples + 2))
    own_s = cpu_s - taken_s
    return Estimate(calls / (look.elapsed_s * own_s / cpu_s), 1e9 * taken_s / calls, taken_s / own_s)


def _percent(percent: float) -> str:
    return (
        f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %" if percent >= 0.1 else "less than 0.1 %"
    )
