"""Functions of parallel runtimes in which threads wait for their team."""

from __future__ import annotations

from parprof.patterns import regex

BARRIERS = regex(r".*(?:barrier|GOMP_parallel|fork_call|join|taskwait|loop_end|sections_end|single)")
_RUNTIME_FILES = regex(r"\[?lib(?:gomp|omp|iomp|tbb|opencilk|cilk)")
"""How stripped runtimes, and those that are folded to a word, are called."""


def is_barrier(function: str) -> bool:
    """Whether a thread that sleeps in a function of that name waits for its team, as a rule."""
    return bool(BARRIERS.match(function) or _RUNTIME_FILES.match(function))
