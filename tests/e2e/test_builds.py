# SPDX-License-Identifier: Apache-2.0
"""Jobs of hundreds of short processes, as builds are: each with its names, told by program."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from parprof.exporters import pprof_reader
from parprof.metrics import SAMPLES, WORK
from parprof.model import Profile
from profiling import BUILD
from reports import record_command

pytestmark = pytest.mark.beside
PROCESSES, MS = 500, 8


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Profile]:
    """Two processes at once, each of 8 ms."""
    out = tmp_path_factory.mktemp("build") / "build.pb.gz"
    command = ["sh", "-c", f"seq {PROCESSES} | xargs -P2 -I@ {BUILD / 'brief'} {MS}"]
    subprocess.run([*record_command(out, "-F", "999"), *command], check=True)
    yield pprof_reader.read(out)


def test_a_process_that_was_sampled_before_it_was_known_has_names(build: Profile) -> None:
    """Where code is mapped is told by another way than that there is a new process, and may come first."""
    samples = sum(sample.metrics[SAMPLES] for sample in build.samples)
    nameless = sum(
        sample.metrics[SAMPLES]
        for sample in build.samples
        if any(frame.name.startswith(("[unknown]", "[anon]")) for frame in sample.path)
    )
    assert samples > 2 * PROCESSES
    assert nameless < 0.002 * samples


def test_they_are_told_by_program(build: Profile) -> None:
    # one that others kept from ending, or of which n_w is known otherwise, is told by itself
    found = [
        (1 + process.others, metrics[WORK])
        for process, metrics in build.by_process()
        if process.comm == "brief"
    ]
    assert 0.97 * PROCESSES < sum(number for number, _ in found) <= PROCESSES
    assert max(number for number, _ in found) > 0.9 * PROCESSES
    assert 0.8 < sum(work_ns for _, work_ns in found) / (PROCESSES * MS * 1e6) < 1.5
    assert len(build.processes) < 10
    assert not any("made at run time" in note for note in build.notes)
