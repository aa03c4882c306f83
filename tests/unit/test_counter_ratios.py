# SPDX-License-Identifier: Apache-2.0
"""Ratios of hardware counters, by call path, on recorded facts to which counts of such events are added: a machine
without a PMU can test no more than what is made of them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from parprof.attribution.counters import RATIOS, derive, ratios_of
from parprof.exporters import json_report, pprof, table
from parprof.exporters.pprof_reader import read_as
from parprof.exporters.views import View
from parprof.facts.reading import decode
from parprof.model import Profile
from parprof.profile.assemble import make_profile

RECORDING = Path(__file__).resolve().parents[1] / "recordings/libgomp.facts"
CYCLES_PER_SAMPLE = 6_000_000
SERIAL_IPC, OTHER_IPC = 2.0, 0.5
MISSES_PER_THOUSAND = 7


def counted(*events: str, clock: str = "cycles") -> Profile:
    """The recording as a machine with a PMU might have made it: where one thread works it is four times as fast."""
    measured, names = read_as(RECORDING, decode)
    facts = {}
    for key, count in measured.drain.facts.items():
        if key.event != 0:
            facts[key] = count
            continue
        facts[key] = replace(count, total=count.samples * CYCLES_PER_SAMPLE)
        ipc = SERIAL_IPC if key.n_working == 1 else OTHER_IPC
        amounts = {
            "instructions": count.samples * CYCLES_PER_SAMPLE * ipc,
            "LLC-load-misses": count.samples * CYCLES_PER_SAMPLE * ipc * MISSES_PER_THOUSAND / 1000,
        }
        for index, event in enumerate(events, 1):
            facts[key._replace(event=index)] = replace(count, total=round(amounts[event]))
    drain = replace(measured.drain, events=(clock, *events), facts=facts)
    return make_profile(replace(measured, drain=drain), names)


def inclusive(profile: Profile, function: str) -> dict[str, float]:
    total: dict[str, int] = {}
    cpu_ns = 0.0
    for row in profile.samples:
        if any(frame.name == function for frame in row.path):
            cpu_ns += row.metrics.cpu_ns
            for name, amount in row.metrics.events.items():
                total[name] = total.get(name, 0) + amount
    return derive(total, cpu_ns)


def test_instructions_per_cycle_of_call_paths() -> None:
    profile = counted("instructions", "LLC-load-misses")
    serial, balanced = inclusive(profile, "serial_work"), inclusive(profile, "balanced_work")
    assert serial["instructions_per_cycle"] == pytest.approx(SERIAL_IPC, rel=0.02)
    assert balanced["instructions_per_cycle"] < 1.0
    for one in (serial, balanced):
        assert one["llc_load_misses_per_thousand_instructions"] == pytest.approx(
            MISSES_PER_THOUSAND, rel=0.01
        )
    each_s = 1 / profile.frequency_hz
    bytes_per_sample = 64 * CYCLES_PER_SAMPLE * SERIAL_IPC * MISSES_PER_THOUSAND / 1000
    assert serial["memory_gb_per_cpu_second"] == pytest.approx(bytes_per_sample / each_s / 1e9, rel=0.02)


def test_where_clocks_are_no_cycles_there_is_no_such_ratio() -> None:
    for profile in (counted("instructions", clock="cpu-clock"), counted("LLC-load-misses")):
        assert "instructions_per_cycle" not in inclusive(profile, "serial_work")
    assert not any("cycles" in row.metrics.events for row in counted("LLC-load-misses").samples), (
        "which nobody asked for"
    )


def test_reports_have_them_and_files_keep_what_they_are_made_of(tmp_path: Path) -> None:
    profile = counted("instructions", "LLC-load-misses")
    pprof.write(profile, tmp_path / "file")
    profile = pprof.read(tmp_path / "file")
    text = io.StringIO()
    table.render(profile, View(view="flat", details=True), text)
    for expected in ("IPC", "LLC MPKI", "GB/s", "instructions per cycle", "estimated: 64 bytes"):
        assert expected in text.getvalue()
    loaded = json_report.report(profile)
    assert loaded["totals"]["ratios"]["instructions_per_cycle"] > 0


def test_a_profile_without_events_has_none() -> None:
    assert ratios_of({}, 1e9) == [] and derive({}, 1e9) == {}
    assert derive({"cycles": 0, "instructions": 0}, 0.0) == {}
    assert len({ratio.key for ratio in RATIOS}) == len(RATIOS) and all(
        ratio.key.isidentifier() for ratio in RATIOS
    )
