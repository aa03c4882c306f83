"""What counting calls costs: reckoned from a short look, before it goes on for long.

The look is a count itself, of a quarter of a second or until it has taken 50 ms of the program's CPU time (the breaker
in the kernel sees to that): samples say how long functions take, not how often they are called, and a bound that they
give is wrong by a factor of a hundred where a function is short.
"""

from __future__ import annotations

from parprof.values import dataclass
from parprof.wording import many

LOOK_SECONDS = 0.25
_LARGEST_SHARE = 0.95
_PART_OF_TRAP = 0.7
"""Of what counting a call takes; the rest is our program."""
_ENOUGH_SAMPLES = 30
_PRICES_ARE_WITHIN = 1.5
_NEGLIGIBLE_CORES = 0.001
_MOST_TAKEN = 0.82
"""Of the CPU time that was used: where counting took more, what was left for the program is less than prices err by."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen."""

    elapsed_s: float
    """As it would have been had nobody else had the CPUs that the program wanted."""
    cpu_s: float
    """Of the program meanwhile, what we took included."""
    cheap_calls: int
    dear_calls: int
    cheap_ns: float
    """What a call costs at a cheap place: the trap, and our program."""
    dear_ns: float
    kernel_samples: float = 0
    """Samples in the kernel, and those that were held back until a trap was over: where probes take their time. A
    program's own system calls are there, too."""
    kernel_s: float = 0.0
    """CPU time that these stand for."""
    earlier_calls: int = 0
    """Calls that were counted before; these samples are of them, too."""
    uncounted_calls: int = 0
    """Calls that still took the trap after the breaker had ended the look."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What it would cost to go on."""

    calls_per_s: float
    """Of the program when nobody counts, and nobody else has the CPUs that it wants."""
    call_ns: float
    """What counting one costs, on average."""
    share: float
    """CPU time that counting takes, by the CPU time that the program then takes for itself."""
    is_bound: bool = False
    """Whether rate and share may be many times that."""

    @property
    def cores(self) -> float:
        """How many cores counting would keep busy."""
        return self.calls_per_s * self.call_ns / 1e9

    @property
    def is_negligible(self) -> bool:
        """Whether it is next to nothing, though it be much for a program that sleeps nearly all of the time.

        >>> Estimate(50, 2000, 19.0).is_negligible, Estimate(5000, 2000, 19.0).is_negligible
        (True, False)
        """
        return self.cores < _NEGLIGIBLE_CORES

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100 * self.share

    @property
    def slowdown(self) -> str:
        """In words, for the program as a whole."""
        if self.share < 1:
            return f"counting would take {_percent(self.percent)} of what the program takes itself"
        return f"it would run {self._least}{1 + self.share:.1f} times as long"

    @property
    def _least(self) -> str:
        return "at least " if self.is_bound else ""

    def text(self, routines: int) -> str:
        """In words.

        >>> Estimate(2100, 900, 0.002).text(3)
        'estimate: 3 routines, 2,100 calls/s x 0.9 us = 0.2 % of a core'
        """
        rate = f"{self._least}{self.calls_per_s:,.0f} calls/s x {self.call_ns / 1000:.1f} us"
        return f"estimate: {many(routines, 'routine')}, {rate} = {_percent(100 * self.cores)} of a core"


def estimate(look: Look) -> Estimate:
    """What a look tells. What counting itself took meanwhile is left out of the program's time.

    Where that is most of it, all depends on the price of a call. The one that was measured on this machine before is
    right within a factor of two; what this program's probes take now is told by the samples in the kernel, if these
    are enough. They err on both sides: the program's own system calls are among them, and what a trap takes while
    interrupts are off is only as far as who asks knows where such samples are taken, back in user mode. If they say
    less than the price does, the share is the harmonic mean of both: at most twice the smaller. Where counting took
    nearly all that was used, as in a recursion that does little else than call itself, it is a bound.

    >>> made = estimate(Look(0.02, 0.02, 10_000, 0, 1000.0, 5000.0))
    >>> round(made.calls_per_s), made.share
    (1000000, 1.0)
    >>> round(estimate(Look(0.02, 0.02, 10_000, 0, 1900.0, 5000.0, 60, 0.015)).share, 2)
    5.18
    """
    calls = look.cheap_calls + look.dear_calls
    if not calls or look.elapsed_s <= 0:
        return Estimate(0.0, look.cheap_ns, 0.0)
    cpu_s = max(look.cpu_s, 1e-9)
    call_s = (look.cheap_calls * look.cheap_ns + look.dear_calls * look.dear_ns) / calls / 1e9
    share = _share(calls * call_s, cpu_s)
    if look.kernel_samples >= _ENOUGH_SAMPLES and share > 0:
        by_samples_s = look.kernel_s / (calls + look.earlier_calls + _PART_OF_TRAP * look.uncounted_calls)
        by_samples = _share(calls * min(by_samples_s, _PRICES_ARE_WITHIN * call_s), cpu_s)
        share = max(by_samples, 2 * share * by_samples / (share + by_samples))
    taken_s = cpu_s * share / (1 + share)
    # by so much a program of several threads is held up in each of them, and one that sleeps while it does not
    held_up_s = taken_s / max(cpu_s / look.elapsed_s, 1.0)
    is_bound = max(calls * call_s, taken_s) > _MOST_TAKEN * cpu_s
    return Estimate(calls / (look.elapsed_s - held_up_s), 1e9 * taken_s / calls, share, is_bound)


def _share(taken_s: float, cpu_s: float) -> float:
    """What is taken, by what is left."""
    taken_s = min(taken_s, _LARGEST_SHARE * cpu_s)
    return taken_s / (cpu_s - taken_s)


def _percent(percent: float) -> str:
    return (
        f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %" if percent >= 0.1 else "less than 0.1 %"
    )
