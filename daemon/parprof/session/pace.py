"""How often a session does what it does."""

from __future__ import annotations

from parprof.values import dataclass

_FIRST_DRAIN_SECONDS, _DRAIN_SHARE = 0.05, 0.5
"""A young measurement is drained sooner than at its pace, each time that its age has grown by so much: what is found
out from samples, such as where threads spin, counts most in short ones."""
_LEAST_REST_SECONDS, _REST_SHARE = 0.05, 0.1
"""A young measurement rests for so much of its age: what it learns counts most in short ones, and they are told in
short steps. Each turn takes a millisecond from the program, since nothing of ours is in the caches then, and holds a
whole team if its cores are full: twenty a second took 1 % of two cores, four take 0.3 %."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a session does what it does. Seconds."""

    poll: float = 0.1
    steady: float = 0.25
    """Instead of ``poll``, once a measurement by intervals has lasted for a while and little is going on."""
    drain: float = 1.0
    rates: float = 0.25
    tables: float = 0.003
    """While unwind tables are being built: until they are there stacks are cut short."""
    cores: float = 1.0
    """At most so often it is read how many cores a process may use; infinite: only when it is met."""
    drain_at_exit: bool = True
    """Take a process's last samples as soon as it ends, rather than with the next drain."""
    glimpses: bool = True
    """Where context switches are too dear to be followed, follow them for a moment now and then."""

    def drain_s(self, age_s: float) -> float:
        """How often a measurement by intervals is drained at that age.

        >>> [Pace().drain_s(age_s) for age_s in (0.05, 1.0, 9.0)]
        [0.05, 0.5, 1.0]
        """
        return min(self.drain, max(_FIRST_DRAIN_SECONDS, _DRAIN_SHARE * age_s))

    def rest_s(self, age_s: float, *, is_busy: bool) -> float:
        """For how long nothing need be looked at in a measurement by intervals, unless something happens.

        ``is_busy``: there is what must be looked at before long, such as functions that come and go.

        >>> [Pace().rest_s(age_s, is_busy=False) for age_s in (0.1, 1.0, 9.0)], Pace().rest_s(9.0, is_busy=True)
        ([0.05, 0.1, 0.25], 0.1)
        """
        return min(max(_LEAST_REST_SECONDS, _REST_SHARE * age_s), self.poll if is_busy else self.steady)
