"""A profile has two projections: by logical call paths, as its author thinks of them, and by physical ones."""

from __future__ import annotations

from dataclasses import replace

from parprof.model import Profile


def physical(profile: Profile) -> Profile:
    """The same profile by physical call paths, the stacks as they were. No metric changes."""
    samples = [
        replace(sample, path=sample.physical, physical=()) if sample.physical else sample
        for sample in profile.samples
    ]
    return replace(profile, samples=samples)
