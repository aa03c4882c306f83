"""Kernel stacks are for those whom the kernel would let sample it; others see that it was the kernel, not where."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path as File

from parprof.model import Path, PathSample, Profile
from parprof.service.model import FunctionUse
from parprof.symbols.kernel import KERNEL, UNNAMED

_PARANOID = File("/proc/sys/kernel/perf_event_paranoid")
_LEVEL_WITHOUT_KERNEL = 2
"""From this level of the sysctl on users may not sample the kernel."""


def for_users(profile: Profile) -> Profile:
    """What a user may see of a profile of his process."""
    return profile if _users_may_sample() else without_kernel(profile)


def without_kernel(profile: Profile) -> Profile:
    """The same with the kernel's functions as one, which has no name."""
    return replace(profile, samples=[_cut(sample) for sample in profile.samples])


def functions_for_users(functions: tuple[FunctionUse, ...]) -> tuple[FunctionUse, ...]:
    """The same of the costliest functions of his process."""
    if _users_may_sample() or not any(_is_kernels(one.name, one.module) for one in functions):
        return functions
    name = UNNAMED[-1].name
    return tuple(replace(one, name=name) if _is_kernels(one.name, one.module) else one for one in functions)


def _is_kernels(name: str, module: str) -> bool:
    """Whether it is a function of the kernel. Names in brackets are ours."""
    return module == KERNEL and not name.startswith("[")


def _users_may_sample() -> bool:
    with suppress(OSError, ValueError):
        return int(_PARANOID.read_text()) < _LEVEL_WITHOUT_KERNEL
    return False


def _cut(sample: PathSample) -> PathSample:
    path, physical = _cut_path(sample.path), _cut_path(sample.physical)
    if path is sample.path and physical is sample.physical:
        return sample
    return replace(sample, path=path, physical=physical)


def _cut_path(path: Path) -> Path:
    """Up to the first function of the kernel."""
    for at, frame in enumerate(path):
        if _is_kernels(frame.name, frame.module):
            return (*path[:at], *UNNAMED)
    return path
