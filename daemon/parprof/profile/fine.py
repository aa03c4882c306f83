"""n_w of programs whose phases are too short for it to be read at a sample: see `parprof.attribution.finephases`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from parprof.attribution import finephases
from parprof.facts.drain import Drain, Image
from parprof.model import Count, SampleKey, ThreadState


def fine_n_working(
    drain: Drain, by_cores: Callable[[Drain, Image | None, SampleKey], Iterable[tuple[int, Count]]]
) -> dict[int, float]:
    """The mean n_w in such phases, by image of those that have them; ``by_cores``: samples of a key by n then."""
    samples: dict[int, list[tuple[ThreadState, int, int]]] = {}
    teams: dict[int, int] = {}
    least: dict[int, int] = {}
    for key, count in drain.facts.items():
        if key.fine and key.event == 0:
            samples.setdefault(key.image, []).append((key.state, key.n_working, count.samples))
            teams[key.image] = max(teams.get(key.image, 0), key.fine)
            for cores, _ in by_cores(drain, drain.images.get(key.image), key):
                least[key.image] = min(least.get(key.image, cores), cores)
    out = {}
    for image, team in teams.items():
        if team <= least[image]:  # else those that spin may take cores from those that work
            out[image] = finephases.mean_n_working(samples[image], team)
    return out
