# SPDX-License-Identifier: Apache-2.0
"""What is saved of a real session makes the same profile as the session itself."""

from __future__ import annotations

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.facts.reading import decode
from parprof.facts.replay import RememberingNamer
from parprof.facts.writing import encode
from parprof.profile.assemble import make_profile
from parprof.profile.naming import FileNamer
from parprof.session.sources import Source
from parprof.symbols.symbolizer import Symbolizer

pytestmark = pytest.mark.beside


@pytest.mark.parametrize(
    ("program", "phases", "source"),
    [
        ("omp_truth.gomp", "serial,skewed,nested,tasks", Source.EXACT),
        ("omp_truth.gomp.stripped", "balanced,skewed", None),
        ("spawn_truth.opencilk", "tree", None),
    ],
)
def test_rows_are_the_same_one_by_one(program: str, phases: str, source: Source | None) -> None:
    with (
        profiling.traced_session(source=source, by_interval=True) as session,
        Symbolizer() as symbolizer,
        FileNamer(symbolizer) as namer,
    ):
        child = Child([str(profiling.BUILD / program), phases, "--repeat", "2"])
        main = session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        main = [target for target in session.targets.values() if target.pid == main.pid][-1]
        names = RememberingNamer(namer)
        measured = session.measurement(main, own_cpu_s=0.5, notes=["a note"])
        live = make_profile(measured, names)
        written = encode(measured, names)
    replayed = make_profile(*decode(written))
    assert live.total().samples > 100
    assert len(live.intervals) > 2
    assert replayed.samples == live.samples
    assert replayed == live
